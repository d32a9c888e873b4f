"""An estimate as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["dollars", "estimate_text", "grid", "minutes"]


def estimate_text(found: Mapping[str, Any]) -> str:
    """Totals, then phase by phase, provider by provider, model by model."""
    what = "What is left" if found["is_remaining_estimate"] else "Estimate"
    head = (
        f"{what}: {found['total_calls']:,} calls, {dollars(found['total_cost_usd'])}, "
        f"about {minutes(found['total_time_min'])}"
    )
    if found["batch_savings_usd"]:
        head += f"; batches save {dollars(found['batch_savings_usd'])}"
    phases = [
        (name, f"{part['calls']:,}", dollars(part["cost_usd"]), minutes(part["time_min"]))
        for name, part in found["per_phase"].items()
    ]
    providers = [
        (name, f"{part['calls']:,}", dollars(part["cost_usd"]), minutes(part["time_min"]))
        for name, part in found["per_provider"].items()
    ]
    parts = [
        head,
        grid(("phase", "calls", "cost", "time"), phases),
        grid(("provider", "calls", "cost", "time"), providers),
        grid(
            ("model", "calls", "cost", "$/M in", "$/M out", "tokens/s", ""),
            [row for named in found["per_model"].items() for row in _model(*named)],
        ),
        "\n".join(_notes(found["per_model"])),
    ]
    return "\n\n".join(part for part in parts if part)


def _model(name: str, part: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """A row for what it is asked for, and for each role that has a model of its own."""
    asked_for = part["models"].items() if len(part["models"]) > 1 else [("", part)]
    for asked, share in asked_for:
        yield (
            f"{name}: {asked}" if asked else name,
            f"{share['estimated_calls']:,}",
            dollars(share["cost_usd"]),
            f"{share['price_input_per_m']:g}",
            f"{share['price_output_per_m']:g}",
            f"{part['tokens_per_second']:,.0f}",
            ", ".join(_marks(part, share)),
        )


def _marks(part: Mapping[str, Any], share: Mapping[str, Any]) -> Iterator[str]:
    if share["price_is_default"]:
        yield "price guessed"
    if part["sample_error"]:
        yield "speed guessed"


def _notes(models: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What the marks mean: each reason once, with the models that it holds for."""
    if any(share["price_is_default"] for part in models.values() for share in (part, *part["models"].values())):
        yield "price guessed: no price list here has the model; write its usual name, or read the cost as a rough one"
    reasons: dict[str, list[str]] = {}
    for name, part in models.items():
        if part["sample_error"]:
            reasons.setdefault(part["sample_error"], []).append(name)
    yield from (f"speed guessed of {', '.join(names)}: {why}" for why, names in reasons.items())


def dollars(amount: float) -> str:
    """Cents, and more where there are few of them."""
    return f"${amount:,.2f}" if amount >= 1 or not amount else f"${amount:.4f}"


def minutes(amount: float) -> str:
    """A duration in the unit that fits."""
    if amount >= 90:
        return f"{amount / 60:.1f} h"
    return f"{amount:.1f} min" if amount >= 1.5 else f"{60 * amount:.0f} s"


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need, the first to the left, numbers to the right."""
    if not rows:
        return ""
    table = [list(head), *map(list, rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    last = len(head) - 1
    lines = []
    for row in table:
        cells = [
            cell.ljust(width) if column == 0 or (column == last and not head[column]) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
