"""torch.compile for a backbone, layer by layer: one graph serves all layers and all lengths of text."""

from __future__ import annotations

import torch
from torch import nn

from p2l.attention import P2L_ATTENTION, register_attention
from p2l.compilers import check_compiler
from p2l.errors import ConfigError

__all__ = ["compile_backbone"]


def compile_backbone(backbone: nn.Module, device: torch.device) -> None:
    """Compile every layer of a transformer at its first forward pass; the names of its weights stay as they are.

    Attention over packed prompts stays as it is: its loops and kernels depend on where each prompt ends, and would be
    compiled anew for every batch.

    Raises:
        ConfigError: no compiler, or a backbone without layers.
    """
    if device.type == "cpu":
        check_compiler("key 'compile'", "set it to false")
    stacks = [module for module in backbone.modules() if isinstance(module, nn.ModuleList)]
    if not stacks:
        raise ConfigError("key 'compile': this backbone has no layers to compile; set it to false")
    _keep_attention_out()
    for layer in max(stacks, key=len):
        layer.compile(dynamic=True)


def _keep_attention_out() -> None:
    from transformers import AttentionInterface

    register_attention()
    attend = AttentionInterface()[P2L_ATTENTION]  # type: ignore[no-untyped-call]
    AttentionInterface.register(P2L_ATTENTION, torch.compiler.disable(attend))  # type: ignore[no-untyped-call]
