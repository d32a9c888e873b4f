import pytest
import torch
from torch import nn

from p2l.model.int8_linear import Int8Linear
from p2l.model.kernels import NarrowEmbedding, PackedLinear, has_int8, has_packed

pytestmark = pytest.mark.skipif(not (has_packed() and has_int8()), reason="torch without oneDNN")


def made(outputs: int = 24, inputs: int = 40, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=bias)


@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_is_the_layer(bias: bool) -> None:
    layer, x = made(bias=bias), torch.randn(2, 5, 40)
    packed = PackedLinear(layer.weight, layer.bias)
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), layer(x), atol=1e-5, rtol=1e-5)
    assert (packed.in_features, packed.out_features, packed.weight.shape) == (40, 24, layer.weight.shape)


def test_a_packed_layer_computes_in_its_own_dtype_and_answers_in_the_callers() -> None:
    layer, x = made(), torch.randn(7, 40)
    packed = PackedLinear(layer.weight.bfloat16(), layer.bias.bfloat16())
    with torch.inference_mode():
        assert packed(x).dtype == torch.float32
        assert torch.equal(packed(x), packed(x.bfloat16()).float())
        assert 1e-4 < (packed(x) - layer(x)).abs().max() < 0.05


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_is_the_product_of_rounded_numbers(bias: bool, dtype: torch.dtype) -> None:
    layer, x = made(bias=bias), torch.randn(3, 5, 40).to(dtype)
    found = Int8Linear(layer.weight, layer.bias)(x)
    largest = x.float().abs().amax(-1, keepdim=True)
    states = (x.float() * (127 / largest)).round() * largest / 127
    scales = layer.weight.detach().abs().amax(1, keepdim=True) / 127
    weight = (layer.weight.detach() / scales).round() * scales
    expected = nn.functional.linear(states, weight, None if layer.bias is None else layer.bias.detach())
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected.to(dtype), atol=1e-5, rtol=1e-5 if dtype == torch.float32 else 1e-2)


def test_a_product_can_be_added_to_something() -> None:
    layer, x, onto = made(), torch.randn(7, 40), torch.randn(7, 24)
    for kind in (PackedLinear, Int8Linear):
        one = kind(layer.weight.detach(), layer.bias.detach())
        kept = onto.clone()
        torch.testing.assert_close(one(x, onto=onto), one(x) + onto, atol=1e-5, rtol=1e-5)
        assert torch.equal(onto, kept)


def test_a_token_does_not_depend_on_the_tokens_beside_it() -> None:
    layer = Int8Linear(made().weight)
    x = torch.randn(6, 40)
    alone = layer(x[:1])
    x[1:] *= 1e4
    assert torch.equal(layer(x)[:1], alone)


def test_many_tokens_are_rounded_as_few_are() -> None:
    layer, x = Int8Linear(made().weight), torch.randn(3000, 40)
    few = torch.cat([layer(part) for part in x.split(100)])
    torch.testing.assert_close(layer(x), few, atol=1e-6, rtol=1e-6)


def test_tokens_and_outputs_of_zeros_give_zeros() -> None:
    weight = made().weight.detach().clone()
    weight[3] = 0
    found = Int8Linear(weight)(torch.cat([torch.zeros(1, 40), torch.randn(1, 40)]))
    assert found[0].abs().max() == 0
    assert found[1, 3] == 0
    assert found.isfinite().all()


def test_what_is_no_number_stays_none() -> None:
    x = torch.randn(2, 40)
    x[0, 0] = float("nan")
    found = Int8Linear(made().weight)(x)
    assert found[0].isnan().all()
    assert found[1].isfinite().all()


def test_narrow_rows_are_read_as_float32() -> None:
    rows = nn.Embedding(9, 4, padding_idx=0)
    narrow = NarrowEmbedding(rows)
    ids = torch.tensor([[1, 0, 8]])
    assert narrow(ids).dtype == torch.float32
    assert narrow.weight.dtype == torch.bfloat16
    torch.testing.assert_close(narrow(ids), rows(ids), atol=0.02, rtol=0.01)
