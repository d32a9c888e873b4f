from pathlib import Path

import numpy as np
import pytest
import torch

from p2l.model import int8
from p2l.model.fused_small import SmallLayer
from p2l.model.int8 import Agreement, Timing, agreement, choose_dtype, coefficients, make_fast, of_length, probes
from p2l.model.kernels import PackedLinear, SmallLinear, has_packed
from tests.p2l.serving_models import tiny


def timed(monkeypatch: pytest.MonkeyPatch, product: float, passes: list[float]) -> None:
    """A machine on which bfloat16 is so many times as fast, in a product and in passes of several lengths."""
    monkeypatch.setattr(int8, "_product", lambda: Timing(64, product, 1.0))
    monkeypatch.setattr(int8, "_time", lambda *_: [Timing(60 + n, gain, 1.0) for n, gain in enumerate(passes)])


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_the_faster_dtype_is_chosen_and_said_why(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny(tmp_path, family)
    exact = coefficients(model, probes(tokenizer))
    timed(monkeypatch, 2.0, [1.5, 2.0])
    found = choose_dtype(model, tokenizer)
    assert found.dtype == next(found.model.model.parameters()).dtype == torch.bfloat16
    assert found.reason.startswith(
        "bfloat16: 1.7 times as fast as float32 here (1e+03 against 1.5e+03 ms for 60 tokens)"
    )
    assert "of their spread on average" in found.reason
    now = coefficients(found.model, probes(tokenizer))
    assert 0 < np.abs(now - exact).max() < 0.05
    assert found.model.head.head.weight.dtype == torch.float32
    assert next(model.model.parameters()).dtype == torch.float32


@pytest.mark.parametrize("passes", [[1.05, 1.1], [0.5]])
def test_a_small_gain_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: list[float]) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    exact = coefficients(model, probes(tokenizer))
    timed(monkeypatch, 2.0, passes)
    found = choose_dtype(model, tokenizer)
    assert found.dtype == torch.float32
    assert found.reason.startswith(("float32: bfloat16 is only 1.1 times", "float32: bfloat16 is not faster here ("))
    np.testing.assert_allclose(coefficients(found.model, probes(tokenizer)), exact, atol=1e-5)


def test_coefficients_that_suffer_keep_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    timed(monkeypatch, 2.0, [2.0])
    monkeypatch.setattr(int8, "agreement", lambda *_: Agreement(0.9, 0.5, 0.03))
    found = choose_dtype(model, tokenizer)
    assert found.dtype == torch.float32
    assert "but its coefficients differ by 3.0% of their spread" in found.reason


def test_a_machine_without_such_instructions_does_not_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    timed(monkeypatch, 0.1, [])
    found = choose_dtype(model, tokenizer)
    assert found.model is model
    assert found.reason == "float32: a product in bfloat16 takes 10.0 times as long here"


def test_a_bag_of_words_stays_in_float32(tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, "tfidf")
    found = choose_dtype(model, tokenizer)
    assert found.model is model
    assert found.dtype == torch.float32
    assert "tfidf" in found.reason


def test_the_measurement_itself_decides_something(tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, "qwen2")
    found = choose_dtype(model, tokenizer)
    assert found.dtype in (torch.float32, torch.bfloat16)
    assert found.reason.startswith(str(found.dtype).removeprefix("torch."))


def test_timing_stops_when_its_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    passes = []
    model.register_forward_hook(lambda *_: passes.append(1))
    monkeypatch.setattr(int8, "SECONDS", 0)
    assert len(int8._time(model, model, tokenizer)) == 1
    assert len(passes) == 4


@pytest.mark.skipif(not has_packed(), reason="torch without oneDNN")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_is_made_fast_in_its_own_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    model.to(dtype)
    before = coefficients(model, probes(tokenizer))
    make_fast(model)
    after = coefficients(model, probes(tokenizer))
    np.testing.assert_allclose(after, before, atol=1e-5 if dtype == torch.float32 else 0.03)
    packed = [part for part in model.modules() if isinstance(part, PackedLinear | SmallLinear | SmallLayer)]
    assert {part.weight.dtype for part in packed} == {dtype}


def test_probes_have_the_lengths_that_are_asked_for(tmp_path: Path) -> None:
    _, tokenizer = tiny(tmp_path, "llama")
    for tokens in (2, 16, 250, 512):
        prompt = of_length(tokenizer, tokens)
        assert len(prompt.ids) == tokens
        assert prompt.ids[-1] == tokenizer.cls_token_id
    assert len(of_length(tokenizer, 9_999).ids) == 512


def test_agreement_is_of_ranks_and_of_size() -> None:
    exact = np.array([[0, 1, 2, 3], [3, 2, 1, 0]], dtype=np.float32)
    assert agreement(exact, exact) == Agreement(1.0, 1.0, 0.0)
    swapped = exact.copy()
    swapped[0] = [1, 0, 2, 3]
    found = agreement(exact, swapped)
    assert found.spearman == pytest.approx(0.9)
    assert found.lowest == pytest.approx(0.8)
    assert found.error == pytest.approx(0.25 / np.std([0, 1, 2, 3]))
    assert agreement(exact[:, :1], exact[:, :1]) == Agreement(1.0, 1.0, 0.0)
    assert agreement(exact, np.full_like(exact, np.nan)).spearman == -1
