"""Tables as text: for terminals, with columns as wide as their longest cell, and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from p2l.common.display import printable


def align(rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,), indent: str = "") -> list[str]:
    """Return one line for each row, after `indent`, its cells padded to the width of their column.

    Cells of the columns `left` are aligned to the left; the others to the right, as numbers are.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,), joined_rule: bool = False
) -> list[str]:
    """Return the lines of a table with a rule below its header; a joined one runs through the gaps between columns."""
    lines = align([header, *rows], left=left)
    if joined_rule:
        rule = "-" * max(map(len, lines))
    else:
        columns = zip(header, *rows, strict=True)
        rule = "  ".join("-" * max(len(printable(cell)) for cell in column) for column in columns)
    return [lines[0], rule, *lines[1:]]


# What Markdown takes for more than text; a colon, or the point after www, would make an address a link.
_MARKS = re.compile(r"[\\`*_\[\]|~<>&$#@]|(?<=[A-Za-z]):(?=\S)|(?<=[wW]{3})\.|^[-+]|(?<=^\d)[.)]")


def markdown_text(text: str) -> str:
    """Return a text of one line as Markdown that shows it as it is: no markup, HTML or link in it counts."""
    return _MARKS.sub(lambda match: f"\\{match[0]}", printable(text).strip())


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,)) -> list[str]:
    """Return the lines of a table as GitHub's Markdown; columns but those of `left` are aligned to the right."""
    rule = [":--" if place in left else "--:" for place in range(len(header))]
    lines = [[markdown_text(cell) or " " for cell in row] for row in (header, *rows)]
    return [f"| {' | '.join(cells)} |" for cells in (lines[0], rule, *lines[1:])]
