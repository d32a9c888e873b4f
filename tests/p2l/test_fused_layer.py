from pathlib import Path

import pytest
import torch

from p2l.attention import Packed
from p2l.fused_layer import FusedLayer, HalfLinear, WholeLinear
from p2l.int8 import Int8Linear
from p2l.kernels import PackedLinear, has_int8
from p2l.lean import LeanLayer, layers_of
from tests.p2l.serving_models import tiny

pytestmark = pytest.mark.skipif(not has_int8(), reason="torch without oneDNN")


def inputs(model, lengths):
    torch.manual_seed(0)
    total = sum(lengths)
    places = torch.cat([torch.arange(length) for length in lengths])[None]
    states = torch.randn(total, model.hidden_size)
    cos, sin = model.model.rotary_emb(states[None], places)
    half = sin.shape[-1] // 2
    turn = cos[0, :, None], torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)[:, None]
    return states, turn, Packed.of(torch.tensor(lengths), torch.device("cpu"))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("lengths", [[1], [300], [20, 1, 130, 64]])
@pytest.mark.parametrize("window", [None, 7, 200])
@pytest.mark.parametrize(("plain", "fast"), [(Int8Linear, Int8Linear), (PackedLinear, HalfLinear)])
def test_the_fused_layer_is_the_plain_one(family, lengths, window, plain, fast, tmp_path: Path):
    model, _ = tiny(tmp_path, family)
    layer = layers_of(model)[0]
    layer.self_attn.sliding_window = window
    for part in layer.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if name == "bias" or parameter.dim() == 1:
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
    states, turn, packed = inputs(model, lengths)
    with torch.inference_mode():
        expected = LeanLayer(layer, plain, half_attention=True)(states.clone(), turn, packed)
        found = FusedLayer(layer, fast)(states.clone(), turn, packed)
    moved = (expected - states).std()
    assert (found - expected).abs().mean() < 0.01 * moved
    assert (found - expected).abs().max() < 0.1 * moved


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("lengths", [[1], [300], [20, 1, 130, 64]])
@pytest.mark.parametrize("window", [None, 7])
def test_in_float32_it_is_exact(family, lengths, window, tmp_path: Path):
    model, _ = tiny(tmp_path, family)
    layer = layers_of(model)[0]
    layer.self_attn.sliding_window = window
    states, turn, packed = inputs(model, lengths)
    with torch.inference_mode():
        expected = LeanLayer(layer, PackedLinear)(states.clone(), turn, packed)
        found = FusedLayer(layer, WholeLinear)(states.clone(), turn, packed)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_for_the_cls_alone_the_other_tokens_are_zero(tmp_path: Path):
    model, _ = tiny(tmp_path, "llama")
    layer = layers_of(model)[0]
    states, turn, packed = inputs(model, [5, 3])
    with torch.inference_mode():
        whole = FusedLayer(layer, Int8Linear)(states.clone(), turn, packed)
        found = FusedLayer(layer, Int8Linear, cls_only=True)(states.clone(), turn, packed)
    assert torch.equal(found[[4, 7]], whole[[4, 7]])
    assert found[[0, 1, 2, 3, 5, 6]].abs().max() == 0


def test_a_prompt_does_not_depend_on_its_neighbours(tmp_path: Path):
    model, _ = tiny(tmp_path, "qwen2")
    layer = FusedLayer(layers_of(model)[0], Int8Linear)
    states, turn, packed = inputs(model, [40, 9])
    alone = Packed.of(torch.tensor([40]), torch.device("cpu"))
    with torch.inference_mode():
        together = layer(states.clone(), turn, packed)[:40]
        states[40:] *= 1e4
        assert torch.equal(layer(states.clone(), turn, packed)[:40], together)
        short = (turn[0][:40], turn[1][:40])
        torch.testing.assert_close(layer(states[:40].clone(), short, alone), together, atol=1e-4, rtol=1e-3)
