"""The kernels for packed prompts on a card, beside the reference that a CPU runs."""

import pytest
import torch

from p2l.model.backbones import Packed, one_by_one, varlen_kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("window", [(-1, 0), (-1, -1), (31, 0), (16, 16)])
@pytest.mark.parametrize("key_heads", [8, 2])
def test_the_kernel_agrees_with_one_by_one(window: tuple[int, int], key_heads: int) -> None:
    kernel = varlen_kernel("cuda", torch.bfloat16)
    if kernel is None:
        pytest.skip("this torch has no kernel for varying lengths, and flash-attn is not installed")
    lengths = torch.tensor([700, 1, 64, 65, 3, 129])
    packed = Packed.of(lengths, torch.device("cuda"))
    torch.manual_seed(0)
    shapes = [(1, heads, int(lengths.sum()), 64) for heads in (8, key_heads, key_heads)]
    exact = [torch.randn(shape, device="cuda").bfloat16().float().requires_grad_() for shape in shapes]
    rounded = [states.detach().bfloat16().requires_grad_() for states in exact]
    pull = torch.randn(1, int(lengths.sum()), 8, 64, device="cuda")

    reference = one_by_one(*exact, packed.lengths, window=window, scale=0.125)
    (reference * pull).sum().backward()
    found = kernel(*(states[0].transpose(0, 1) for states in rounded), packed, window, 0.125).unsqueeze(0)
    (found.float() * pull).sum().backward()
    torch.testing.assert_close(found.float(), reference, atol=2e-2, rtol=2e-2)
    for one, other in zip(rounded, exact, strict=True):
        torch.testing.assert_close(one.grad.float(), other.grad, atol=5e-2, rtol=5e-2)


def test_float32_takes_the_reference() -> None:
    assert varlen_kernel("cuda", torch.float32) is None
