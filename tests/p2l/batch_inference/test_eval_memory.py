from typing import Any

import numpy as np
import pytest
import torch

from p2l.batch_inference.launch import Predictor
from p2l.common.errors import InputError
from p2l.inference import P2L
from p2l.model.model import P2LModel
from tests.p2l.eval_helpers import make_model

PROMPTS = [["write a poem"], ["what is 2 plus 3"] * 2, ["bees"], ["a poem about bees, a long one"]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> P2L:
    return P2L.from_pretrained(make_model(tmp_path_factory.mktemp("model") / "tiny", kind="qwen2"), device="cpu")


def memory_for(monkeypatch: pytest.MonkeyPatch, tokens: int, error: Exception) -> None:
    """A machine that fails with `error` on forward passes of more tokens."""
    forward = P2LModel.forward

    def limited(self: P2LModel, *words: Any, **batch: Any) -> Any:
        ids = next(value for value in [*words, *batch.values()] if isinstance(value, dict | torch.Tensor))
        ids = ids["input_ids"] if isinstance(ids, dict) else ids
        if ids.numel() > tokens:
            raise error
        return forward(self, *words, **batch)

    monkeypatch.setattr(P2LModel, "forward", limited)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_fewer_tokens_at_a_time_when_memory_runs_out(
    model: P2L, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    expected = model.predict(PROMPTS)
    memory_for(monkeypatch, 40, error)
    notes: list[str] = []
    predictor = Predictor(model, notes.append)
    said = predictor.predict(PROMPTS, hidden=False)
    np.testing.assert_allclose(said.coefs, expected.coefs, atol=1e-5)
    assert predictor.max_batch_tokens < 100
    assert notes[-1] == f"out of memory: forward passes hold at most {predictor.max_batch_tokens} tokens from now on"
    told = len(notes)
    predictor.predict(PROMPTS, hidden=False)
    assert len(notes) == told


def test_a_prompt_that_never_fits_is_told_in_one_line(model: P2L, monkeypatch: pytest.MonkeyPatch) -> None:
    memory_for(monkeypatch, 3, torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(InputError, match="a single prompt does not fit into memory"):
        Predictor(model, lambda _: None).predict(PROMPTS, hidden=False)


def test_another_error_is_not_hidden(model: P2L, monkeypatch: pytest.MonkeyPatch) -> None:
    memory_for(monkeypatch, 3, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        Predictor(model, lambda _: None).predict(PROMPTS, hidden=False)
