from pathlib import Path

import numpy as np
import pytest
import torch

from p2l.common.errors import InputError
from p2l.inference import P2L, Member
from p2l.model.fused_layer import HalfLinear
from p2l.model.int8 import LEAST_SPEARMAN, MOST_INT8_ERROR, PROBES, Agreement, Quantized, coefficients, probes, quantize
from p2l.model.int8_linear import Int8Linear
from p2l.model.kernels import NarrowEmbedding, has_int8
from tests.p2l.serving_models import tiny

pytestmark = pytest.mark.skipif(not has_int8(), reason="torch without oneDNN")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "bert", "modernbert"])
def test_int8_answers_nearly_as_before_and_says_how_nearly(family: str, tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, family)
    exact = coefficients(model, probes(tokenizer))
    said = quantize(model, tokenizer, dtype=torch.bfloat16)
    now = coefficients(model, probes(tokenizer))
    assert not np.array_equal(now, exact)
    assert said.agreement.spearman >= LEAST_SPEARMAN
    assert said.agreement.error == pytest.approx(np.abs(now - exact).mean() / exact.std(axis=1).mean(), rel=1e-3)
    assert 0 < said.agreement.error <= MOST_INT8_ERROR
    assert "int8" in str(said)
    assert sum(isinstance(part, Int8Linear) for part in model.modules()) >= 4


def test_a_quantised_engine_gives_the_same_whatever_shares_the_batch(tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    quantize(model, tokenizer)
    asked = P2L([Member(model, tokenizer)], torch.device("cpu"))
    together = asked.predict(PROBES).coefs
    alone = np.concatenate([asked.predict([prompt]).coefs for prompt in PROBES])
    np.testing.assert_allclose(together, alone, atol=1e-4)


def test_no_float_weights_of_the_layers_are_left(tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    before = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    quantize(model, tokenizer)
    left = {name: parameter for name, parameter in model.named_parameters() if parameter.dim() > 1}
    assert set(left) == {"model.embed_tokens.weight", "head.head.weight", "head.eta_head.weight"}
    assert isinstance(model.model.embed_tokens, NarrowEmbedding)
    assert sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()) < before / 3


def test_first_layers_stay_when_rounding_all_is_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny(tmp_path, "llama", layers=8)
    said = [Agreement(1.0, 1.0, 0.05), Agreement(0.98, 0.9, 0.0), Agreement(0.999, 0.99, 0.019)]
    monkeypatch.setattr("p2l.model.int8.agreement", lambda *_: said.pop(0))
    found = quantize(model, tokenizer, dtype=torch.bfloat16)
    assert found == Quantized(8, 2, Agreement(0.999, 0.99, 0.019))
    assert str(found).startswith("int8, 6 of 8 layers: rank correlation 0.9990 (lowest 0.9900), mean error 1.90%")
    kinds = [type(layer.read) for layer in model.model.layers]
    assert kinds == [HalfLinear] * 2 + [Int8Linear] * 6
    assert model.model.layers[0].read.weight.dtype == torch.bfloat16
    assert np.isfinite(coefficients(model, probes(tokenizer))).all()


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
