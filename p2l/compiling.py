"""torch.compile for a backbone, layer by layer: one graph serves all layers and all lengths of text."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from p2l.attention import P2L_ATTENTION, register_attention
from p2l.compilers import check_compiler
from p2l.errors import ConfigError

__all__ = ["compile_backbone"]


def compile_backbone(backbone: nn.Module, device: torch.device) -> None:
    """Compile every layer of a transformer at its first forward pass; the names of its weights stay as they are.

    Attention over packed prompts stays as it is: its loops and kernels depend on where each prompt ends, and would be
    compiled anew for every batch. Gradient checkpointing has to be switched on before, and validation then runs plain.

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
        if getattr(layer, "gradient_checkpointing", False):
            _compile_within_checkpoint(layer)
        else:
            layer.compile(dynamic=True)


def _compile_within_checkpoint(layer: Any) -> None:
    """Compile what gradient checkpointing runs again in the backward pass.

    It is part of the layer's forward pass. Compiled from outside it would meet attention, which is no part of a graph,
    in the middle of a checkpoint, and torch then compiles nothing of the layer, without a word.
    """
    checkpoint = layer._gradient_checkpointing_func
    forwards: dict[Callable[..., Any], Callable[..., Any]] = {}

    def checkpoint_compiled(run: functools.partial[Any], *inputs: Any) -> Any:
        if run.func not in forwards:
            forwards[run.func] = torch.compile(run.func, dynamic=True)
        return checkpoint(functools.partial(forwards[run.func], *run.args, **run.keywords), *inputs)

    layer._gradient_checkpointing_func = checkpoint_compiled


def _keep_attention_out() -> None:
    from transformers import AttentionInterface

    register_attention()
    attend = AttentionInterface()[P2L_ATTENTION]  # type: ignore[no-untyped-call]
    AttentionInterface.register(P2L_ATTENTION, torch.compiler.disable(attend))  # type: ignore[no-untyped-call]
