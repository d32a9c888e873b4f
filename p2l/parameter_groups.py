"""Which weights train at which rate, and which of them decay.

The head learns from nothing and the backbone from a text model: one rate is too slow for the one or too fast for the
other. Decay pulls matrices towards zero; biases, which hold the leaderboard of all prompts, and norms are left alone.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from p2l.config import TrainConfig

__all__ = ["parameter_groups"]


def parameter_groups(model: nn.Module, config: TrainConfig) -> list[dict[str, Any]] | None:
    """The trainable parameters in groups of an optimizer, those of the backbone first.

    None where all are treated alike: without decay and a rate for the head, or under an `optimizer` block.
    """
    if config.optimizer is not None or not (config.weight_decay or config.head_learning_rate):
        return None
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            kind = (name.startswith("head."), parameter.ndim < 2)
            groups.setdefault(kind, []).append(parameter)
    return [_group(config, groups[kind], *kind) for kind in sorted(groups)]


def _group(config: TrainConfig, parameters: list[nn.Parameter], is_head: bool, is_vector: bool) -> dict[str, Any]:
    rate = config.head_learning_rate if is_head and config.head_learning_rate else config.learning_rate
    return {"params": parameters, "lr": rate, "weight_decay": 0.0 if is_vector else config.weight_decay}
