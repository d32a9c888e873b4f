"""A plan as the training configuration that it is, each choice with its reason, and as a few lines for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from p2l.sizes import Plan

__all__ = ["plan_lines", "to_yaml"]


def to_yaml(settings: Mapping[str, Any], reasons: Mapping[str, str], header: Sequence[str]) -> str:
    """YAML with `header` as a comment on top, and the reason of a key behind it."""
    lines = [f"# {line}" if line else "#" for line in header]
    for key, value in settings.items():
        text = yaml.safe_dump({key: value}, sort_keys=False, allow_unicode=True, width=10_000).rstrip()
        reason = reasons.get(key)
        if reason and "\n" in text:
            lines.append(f"# {reason}")
        lines.append(f"{text:<40}  # {reason}" if reason and "\n" not in text else text)
    return "\n".join(lines) + "\n"


def plan_lines(plan: Plan) -> list[str]:
    """What a user wants to know before training starts."""
    chosen = plan.settings
    return [
        f"backbone {chosen['pretrain_model_name']}: {plan.reasons['pretrain_model_name']}",
        f"loss {chosen['loss_type']}: {plan.reasons['loss_type']}",
        f"max_length {chosen['max_length']}: {plan.reasons['max_length']}",
        f"{plan.steps:,} steps, {plan.reasons['batch_size']}; {chosen['num_train_epochs']} epochs "
        f"({plan.reasons['num_train_epochs']})",
        f"about {plan.tokens:,} tokens; how long they take is said after the first minute of training",
    ]
