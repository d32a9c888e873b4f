from pathlib import Path

import numpy as np
import pytest
import torch

from p2l.model import openvino, precision
from p2l.model.openvino import CompiledBackbone
from p2l.model.precision import PROBES, Agreement, Timing, agreement, choose_dtype, coefficients, in_dtype, of_length
from tests.p2l.serving_models import tiny


def timed(monkeypatch: pytest.MonkeyPatch, product: float, passes: list[float]) -> None:
    """A machine on which bfloat16 is so many times as fast, in a product and in passes of several lengths."""
    monkeypatch.setattr(openvino, "has_bfloat16", lambda: product >= 1)
    monkeypatch.setattr(precision, "_product", lambda: Timing(64, product, 1.0))
    monkeypatch.setattr(precision, "_time", lambda *_: [Timing(60 + n, gain, 1.0) for n, gain in enumerate(passes)])


@pytest.fixture(params=["openvino", "torch"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What computes."""
    if request.param == "torch":
        monkeypatch.setattr(openvino, "is_installed", lambda: False)
    elif not openvino.is_installed():
        pytest.skip("no OpenVINO")
    return openvino.version() if request.param == "openvino" else "torch"


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_the_faster_dtype_is_chosen_and_said_why(
    family: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = tiny(tmp_path, family)
    exact = coefficients(model, tokenizer.encode(PROBES))
    timed(monkeypatch, 2.0, [1.5, 2.0])
    found = choose_dtype(model, tokenizer)
    assert found.dtype == next(found.model.model.parameters()).dtype == torch.bfloat16
    assert found.reason.startswith(
        "bfloat16: 1.7 times as fast as float32 here on average (1e+03 against 1.5e+03 ms for 60 tokens)"
    )
    assert found.reason.endswith(f"of their spread on average; computed by {by}")
    assert isinstance(found.model.model, CompiledBackbone) == (by != "torch")
    now = coefficients(found.model, tokenizer.encode(PROBES))
    assert 0 < np.abs(now - exact).max() < 0.05
    assert found.model.head.head.weight.dtype == torch.float32
    assert next(model.model.parameters()).dtype == torch.float32


@pytest.mark.parametrize("passes", [[1.05, 1.1], [0.5]])
def test_a_small_gain_is_none(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: list[float]) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    exact = coefficients(model, tokenizer.encode(PROBES))
    timed(monkeypatch, 2.0, passes)
    found = choose_dtype(model, tokenizer)
    assert found.dtype == torch.float32
    assert found.reason.startswith(("float32: bfloat16 is only 1.1 times", "float32: bfloat16 is not faster here ("))
    assert found.reason.endswith(f"computed by {by}")
    np.testing.assert_allclose(coefficients(found.model, tokenizer.encode(PROBES)), exact, atol=1e-5)


def test_coefficients_that_suffer_keep_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    timed(monkeypatch, 2.0, [2.0])
    monkeypatch.setattr(openvino, "is_installed", lambda: False)
    monkeypatch.setattr(precision, "agreement", lambda *_: Agreement(0.9, 0.5, 0.03))
    found = choose_dtype(model, tokenizer)
    assert found.dtype == torch.float32
    assert "but its coefficients differ by 3.0% of their spread" in found.reason


def test_a_machine_without_such_instructions_does_not_try(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    timed(monkeypatch, 0.1, [])
    found = choose_dtype(model, tokenizer)
    assert found.dtype == torch.float32
    if by == "torch":
        assert found.model is model
        assert found.reason == "float32: a product in bfloat16 takes 10.0 times as long here; computed by torch"
    else:
        assert found.reason == f"float32: this processor has no bfloat16; computed by {by}"


@pytest.mark.skipif(not openvino.is_installed(), reason="no OpenVINO")
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_a_library_that_gives_other_coefficients_is_left_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    exact = coefficients(model, tokenizer.encode(PROBES))
    monkeypatch.setattr(openvino, "has_bfloat16", lambda: True)
    monkeypatch.setattr(precision, "agreement", lambda *_: Agreement(0.9, 0.5, 0.03))
    found = in_dtype(model, tokenizer, getattr(torch, name), "as asked")
    assert not isinstance(found.model.model, CompiledBackbone)
    assert found.reason.startswith("as asked; computed by torch, for coefficients of OpenVINO ")
    assert found.reason.endswith("differ by 3.0% of their spread")
    np.testing.assert_allclose(coefficients(found.model, tokenizer.encode(PROBES)), exact, atol=0.05)


@pytest.mark.skipif(not openvino.is_installed(), reason="no OpenVINO")
def test_a_model_that_the_library_cannot_read_stays_with_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny(tmp_path, "llama")

    def unreadable(*_: object) -> None:
        raise RuntimeError("an operation that nobody knows")

    monkeypatch.setattr(precision, "Graph", unreadable)
    found = choose_dtype(model, tokenizer)
    assert not isinstance(found.model.model, CompiledBackbone)
    assert "computed by torch, for OpenVINO" in found.reason
    assert found.reason.endswith("cannot read this model (RuntimeError)")


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
    monkeypatch.setattr(precision, "_MAX_TIMING_SECONDS", 0)
    assert len(precision._time(model, model, tokenizer)) == 1
    assert len(passes) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_dtype_that_is_asked_for_is_computed_in(by: str, tmp_path: Path, dtype: torch.dtype) -> None:
    if by != "torch" and dtype == torch.bfloat16 and not openvino.has_bfloat16():
        pytest.skip("no bfloat16 here")
    model, tokenizer = tiny(tmp_path, "llama")
    before = coefficients(model, tokenizer.encode(PROBES))
    found = in_dtype(model, tokenizer, dtype, "as measured; computed by something")
    assert (found.dtype, found.reason) == (dtype, f"as measured; computed by {by}")
    after = coefficients(found.model, tokenizer.encode(PROBES))
    np.testing.assert_allclose(after, before, atol=1e-5 if dtype == torch.float32 else 0.03)
    assert next(found.model.model.parameters()).dtype == dtype


def test_a_bag_of_words_is_asked_for_in_vain(tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, "tfidf")
    found = in_dtype(model, tokenizer, torch.bfloat16, "as asked")
    assert (found.model, found.dtype, found.reason) == (model, torch.float32, "as asked")


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
