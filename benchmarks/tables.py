"""The tables that benchmarks print, as Markdown: benchmarks/RESULTS.md takes them in as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown; cells are taken as they are."""
    lines = [header, ["---"] * len(header), *rows]
    return re.sub(r"\|  (?=\|)", "| ", "\n".join(f"| {' | '.join(cells)} |" for cells in lines))


def share(value: float, digits: int = 0) -> str:
    """Return a share as a percentage."""
    return f"{value:.{digits}%}".replace("%", " %")
