from pathlib import Path

import numpy as np
import pytest
import torch

from p2l.common.errors import InputError
from p2l.inference import P2L
from p2l.model import openvino
from p2l.model.openvino import CompiledBackbone
from p2l.model.precision import (
    MAX_INT8_ERROR,
    MIN_SPEARMAN,
    PROBES,
    Agreement,
    Quantized,
    coefficients,
    quantize,
)
from tests.p2l.serving_models import tiny

needs_openvino = pytest.mark.skipif(not openvino.is_installed(), reason="no OpenVINO")


@needs_openvino
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "bert", "modernbert"])
def test_int8_answers_nearly_as_before_and_says_how_nearly(family: str, tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, family)
    exact = coefficients(model, tokenizer.encode(PROBES))
    said = quantize(model, tokenizer)
    now = coefficients(model, tokenizer.encode(PROBES))
    assert not np.array_equal(now, exact)
    assert said.agreement.spearman >= MIN_SPEARMAN
    assert said.agreement.error == pytest.approx(np.abs(now - exact).mean() / exact.std(axis=1).mean(), rel=1e-3)
    assert 0 < said.agreement.error <= MAX_INT8_ERROR
    assert "int8" in str(said)


@needs_openvino
def test_a_quantised_engine_gives_the_same_whatever_shares_the_batch(tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    quantize(model, tokenizer)
    asked = P2L(model, tokenizer, torch.device("cpu"))
    together = asked.predict(PROBES).coefs
    alone = np.concatenate([asked.predict([prompt]).coefs for prompt in PROBES])
    np.testing.assert_allclose(together, alone, atol=1e-4)


@needs_openvino
def test_no_float_weights_of_the_layers_are_left(tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    before = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    quantize(model, tokenizer)
    left = {name: parameter for name, parameter in model.named_parameters() if parameter.dim() > 1}
    assert set(left) == {"model.embed_tokens.weight", "head.head.weight", "head.eta_head.weight"}
    assert left["model.embed_tokens.weight"].dtype == torch.bfloat16
    assert sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()) < before / 3


@needs_openvino
def test_first_layers_stay_when_rounding_all_is_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny(tmp_path, "llama", layers=8)
    said = [Agreement(1.0, 1.0, 0.05), Agreement(0.98, 0.9, 0.0), Agreement(0.999, 0.99, 0.019)]
    monkeypatch.setattr("p2l.model.precision.agreement", lambda *_: said.pop(0))
    firsts = []
    compiled = openvino.Graph.compiled

    def watched(graph: openvino.Graph, precision: str, *, threads: int, first: int | None = None) -> CompiledBackbone:
        firsts.append(first)
        return compiled(graph, precision, threads=threads, first=first)

    monkeypatch.setattr(openvino.Graph, "compiled", watched)
    found = quantize(model, tokenizer)
    assert found == Quantized(8, 2, Agreement(0.999, 0.99, 0.019))
    assert str(found).startswith("int8, 6 of 8 layers: rank correlation 0.9990 (lowest 0.9900), mean error 1.90%")
    assert firsts == [0, 1, 2]
    assert isinstance(model.model, CompiledBackbone)
    assert np.isfinite(coefficients(model, tokenizer.encode(PROBES))).all()


@needs_openvino
def test_a_model_that_does_not_bear_it_is_refused_in_one_line(tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    with torch.no_grad():  # one state that dwarfs the others, in every layer: nothing of the others is left
        for layer in model.model.layers:
            layer.input_layernorm.weight[0] = 1e5
            layer.post_attention_layernorm.weight[0] = 1e5
            for part in (*layer.self_attn.children(), layer.mlp.gate_proj, layer.mlp.up_proj):
                part.weight[:, 0] *= 1e-5
    with pytest.raises(
        InputError, match=r"int8 changes this model's answers too much: .*serve it without --quantize"
    ) as error:
        quantize(model, tokenizer)
    assert "\n" not in str(error.value)


def test_what_cannot_be_quantised_is_refused(tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, "tfidf")
    with pytest.raises(InputError, match="int8 is for transformers, not for tfidf"):
        quantize(model, tokenizer)
    with pytest.raises(InputError, match="quantize 'int4' is unknown; use int8"):
        quantize(model, tokenizer, "int4")
    with pytest.raises(InputError, match="int8 is for CPUs, and the model is on meta"):
        quantize(model.to("meta"), tokenizer)


def test_without_the_library_a_line_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    monkeypatch.setattr(openvino, "is_installed", lambda: False)
    with pytest.raises(InputError, match=r"int8 needs OpenVINO: pip install 'p2l\[cpu\]', or leave --quantize out"):
        quantize(model, tokenizer)


@needs_openvino
def test_a_model_that_the_library_cannot_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny(tmp_path, "llama")

    def unreadable(*_: object) -> None:
        raise RuntimeError("an operation that nobody knows")

    monkeypatch.setattr("p2l.model.precision.Graph", unreadable)
    with pytest.raises(InputError, match=r"OpenVINO, which cannot read this model \(RuntimeError\)"):
        quantize(model, tokenizer)
