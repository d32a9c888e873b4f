from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from p2l.model import backbones
from p2l.model.backbones import Packed, one_by_one
from p2l.model.batching import collate
from p2l.model.int8 import of_length, probes
from p2l.model.kernels import PackedLinear, has_packed
from p2l.model.lean import LeanLayer, attend, layers_of, replace_layers, streamlined
from tests.p2l.serving_models import tiny

pytestmark = pytest.mark.skipif(not has_packed(), reason="torch without oneDNN")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "bert", "modernbert"])
def test_a_streamlined_model_answers_as_before(family: str, tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, family)
    batch = collate([*probes(tokenizer), of_length(tokenizer, 300)], 0, packed=True)
    with torch.inference_mode():
        before = model(batch)
        replace_layers(model, partial(streamlined, model, make=PackedLinear))
        after = model(batch)
    torch.testing.assert_close(after.coefs, before.coefs, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(after.eta, before.eta, atol=1e-5, rtol=1e-4)
    lean = [isinstance(layer, LeanLayer) for layer in layers_of(model)]
    assert lean == [family in ("llama", "qwen2", "qwen3")] * 2
    assert sum(isinstance(part, PackedLinear) for part in model.modules()) >= 8


def test_the_mean_over_all_tokens_reads_them_all(tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    model.record, model._read = replace(model.record, pooling="mean"), backbones.get("llama").reader("mean")
    batch = collate(probes(tokenizer), 0, packed=True)
    with torch.inference_mode():
        before = model(batch).coefs
        replace_layers(model, partial(streamlined, model, make=PackedLinear))
        torch.testing.assert_close(model(batch).coefs, before, atol=1e-5, rtol=1e-4)


def test_a_window_and_biases_are_kept(tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, "qwen2")
    for layer in model.model.layers:
        layer.self_attn.sliding_window = 7
        for part in (layer.self_attn.q_proj, layer.self_attn.v_proj):
            torch.nn.init.normal_(part.bias)
    batch = collate(probes(tokenizer), 0, packed=True)
    with torch.inference_mode():
        before = model(batch).coefs
        replace_layers(model, partial(streamlined, model, make=PackedLinear, half_attention=True))
        torch.testing.assert_close(model(batch).coefs, before, atol=1e-5, rtol=1e-4)


def test_a_bag_of_words_has_no_layers(tmp_path: Path) -> None:
    model, _ = tiny(tmp_path, "tfidf")
    assert len(layers_of(model)) == 0
    replace_layers(model, partial(streamlined, model, make=PackedLinear))


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("window", [None, 40])
def test_attention_in_steps_is_attention(groups: int, window: int | None) -> None:
    torch.manual_seed(0)
    lengths = [300, 1, 96, 128, 13]
    total = sum(lengths)
    query, key, value = torch.randn(total, 6, 16), torch.randn(total, groups, 16), torch.randn(total, groups, 16)
    packed = Packed.of(torch.tensor(lengths), torch.device("cpu"))
    q, k, v = (states.transpose(0, 1)[None] for states in (query, key, value))
    reach = -1 if window is None else window - 1
    expected = one_by_one(q, k, v, packed.lengths, window=(reach, 0), scale=0.25)[0]
    torch.testing.assert_close(attend(query, key, value, packed, 0.25, window=window), expected, atol=1e-5, rtol=1e-4)
    half = attend(query, key, value, packed, 0.25, window=window, half=True)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, expected, atol=0.03, rtol=0.03)
