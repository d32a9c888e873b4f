from pathlib import Path

import pytest
import torch

from p2l.model.backbones import Packed
from p2l.model.fused_layer import FusedLayer, HalfLinear
from p2l.model.fused_small import SmallLayer
from p2l.model.int8_linear import Int8Linear
from p2l.model.kernels import PackedLinear, has_int8
from p2l.model.lean import LeanLayer, layers_of
from tests.p2l.serving_models import tiny

pytestmark = pytest.mark.skipif(not has_int8(), reason="torch without oneDNN")


def arrays(turn):
    return tuple(part.numpy() for part in turn)


def tensors(turn):
    return tuple(part[:, None] for part in turn)


def inputs(model, lengths):
    torch.manual_seed(0)
    total = sum(lengths)
    places = torch.cat([torch.arange(length) for length in lengths])[None]
    states = torch.randn(total, model.hidden_size)
    cos, sin = model.model.rotary_emb(states[None], places)
    half = sin.shape[-1] // 2
    turn = cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
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
        expected = LeanLayer(layer, plain, half_attention=True)(states.clone(), tensors(turn), packed)
        found = FusedLayer(layer, fast)(states.clone(), arrays(turn), packed)
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
        expected = LeanLayer(layer, PackedLinear)(states.clone(), tensors(turn), packed)
        found = SmallLayer(layer)(states.clone(), arrays(turn), packed)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_for_the_cls_alone_the_other_tokens_are_zero(tmp_path: Path):
    model, _ = tiny(tmp_path, "llama")
    layer = layers_of(model)[0]
    states, turn, packed = inputs(model, [5, 3])
    with torch.inference_mode():
        whole = FusedLayer(layer, Int8Linear)(states.clone(), arrays(turn), packed)
        found = FusedLayer(layer, Int8Linear, cls_only=True)(states.clone(), arrays(turn), packed)
    assert torch.equal(found[[4, 7]], whole[[4, 7]])
    assert found[[0, 1, 2, 3, 5, 6]].abs().max() == 0


def test_a_prompt_does_not_depend_on_its_neighbours(tmp_path: Path):
    model, _ = tiny(tmp_path, "qwen2")
    layer = FusedLayer(layers_of(model)[0], Int8Linear)
    states, turn, packed = inputs(model, [40, 9])
    alone = Packed.of(torch.tensor([40]), torch.device("cpu"))
    with torch.inference_mode():
        together = layer(states.clone(), arrays(turn), packed)[:40]
        states[40:] *= 1e4
        assert torch.equal(layer(states.clone(), arrays(turn), packed)[:40], together)
        short = (turn[0][:40].numpy(), turn[1][:40].numpy())
        torch.testing.assert_close(layer(states[:40].clone(), short, alone), together, atol=1e-4, rtol=1e-3)


def test_a_small_layer_answers_for_the_cls_alone_as_for_all(tmp_path: Path):
    model, _ = tiny(tmp_path, "qwen3")
    layer = layers_of(model)[0]
    states, turn, packed = inputs(model, [5, 1, 3])
    with torch.inference_mode():
        every = SmallLayer(layer)(states.clone(), arrays(turn), packed)
        found = SmallLayer(layer, cls_only=True)(states.clone(), arrays(turn), packed)
    torch.testing.assert_close(found[[4, 5, 8]], every[[4, 5, 8]])
