"""An explanation as text: the clusters, then what each model is better and worse at."""

from __future__ import annotations

from collections.abc import Sequence

from p2l.explaining.result import Explanation, Strength

__all__ = ["to_text"]

_MODELS = 20


def to_text(made: Explanation, *, models: Sequence[str] = (), every: bool = False, top: int = 3) -> str:
    """Tables for a terminal.

    Args:
        made: what was found.
        models: only these; all (in the order of the overall leaderboard) if empty.
        every: all cells of each model rather than its few largest strengths and weaknesses.
        top: how many of each.
    """
    shown = [name for name in made.models if not models or name in models]
    head = [
        f"{made.prompts:,} prompts measured, in {len(made.clusters)} clusters found on {made.chosen_from:,} others; "
        f"likelihood {made.likelihood}",
        f"the clusters explain {max(made.explained, 0.0):.0%} of the variance of the coefficients"
        + (f"; words alone place {made.recovered:.0%} of prompts" if made.recovered is not None else ""),
        "",
    ]
    body = [*_clusters(made), "", *_models(made, shown, every, top)]
    return "\n".join([*head, *body, *_agreement(made), *(f"note: {note}" for note in made.notes)])


def _clusters(made: Explanation) -> list[str]:
    rows = [["cluster", "prompts", "share", "typical words"]]
    rows += [
        [_cut(one.name), f"{one.prompts:,}", f"{one.share:.1%}", _cut(", ".join(one.terms), 70)]
        for one in made.clusters
    ]
    return _table(rows, right=(1, 2))


def _models(made: Explanation, shown: Sequence[str], every: bool, top: int) -> list[str]:
    rows = [["model", "", "cluster", "points", f"{made.level:.0%} interval", "rank here", "overall", "beats the field"]]
    if any(cell.observed for cell in made.strengths):
        rows[0].append("votes say")
    named = shown if every or len(shown) <= _MODELS else shown[:_MODELS]
    for name in named:
        cells = made.of(name) if every else _extremes(made.of(name), top)
        rows += [_row(cell, len(rows[0])) for cell in cells] or [
            [name, "", "(as overall everywhere)", *[""] * (len(rows[0]) - 3)]
        ]
    more = (
        [f"{len(shown) - len(named)} more models: --models NAME, or --output FILE"] if len(named) < len(shown) else []
    )
    found = len([cell for cell in made.found if cell.model in set(shown)])
    least = f", by more than {made.least_change:g} points" if made.least_change else ""
    line = f"found: {found} strengths and weaknesses{least}, at a false discovery rate of {made.fdr:.0%}"
    return [*_table(rows, right=(3, 4, 5, 6, 7)), *more, line]


def _extremes(cells: Sequence[Strength], top: int) -> list[Strength]:
    """The largest that were found, best first, worst last; `cells` are the best first."""
    better = [cell for cell in cells if cell.verdict == "better"][:top]
    worse = [cell for cell in cells if cell.verdict == "worse"][-top:]
    return better + worse


def _row(cell: Strength, columns: int) -> list[str]:
    said = "" if cell.observed is None else f"{cell.observed.change:+.0f} ({cell.observed.votes:,} votes)"
    return [
        cell.model,
        cell.verdict,
        _cut(cell.cluster),
        f"{cell.change:+.0f}",
        f"{cell.lower:+.0f} to {cell.upper:+.0f}",
        f"{cell.rank} ({cell.rank_lower}-{cell.rank_upper})",
        f"{cell.overall_rank}",
        f"{cell.overall_win_rate:.0%} -> {cell.win_rate:.0%}",
        said,
    ][:columns]


def _agreement(made: Explanation) -> list[str]:
    found = made.agreement
    if found is None:
        return []
    lines = [f"votes: {found.votes:,} placed in clusters; {found.cells} cells have enough of them"]
    if found.correlation is not None:
        lines[0] += f"; predicted and observed change correlate by {found.correlation:.2f}"
    if found.found:
        lines.append(f"votes move {found.same_sign} of {found.found} strengths and weaknesses in the same direction")
    return lines


def _cut(text: str, most: int = 44) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _table(rows: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]
