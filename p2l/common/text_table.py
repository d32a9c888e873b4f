"""Text tables for terminals: columns as wide as their longest cell."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def align(rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,), indent: str = "") -> list[str]:
    """Return one line for each row, its cells padded to the width of their column.

    Args:
        rows: cells of equal number; none at all gives no lines.
        left: columns aligned to the left; the others are aligned to the right, as numbers are.
        indent: before each line.
    """
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
    """Return the lines of a table with a rule below its header.

    Args:
        header: names of the columns.
        rows: as many cells each.
        left: columns aligned to the left.
        joined_rule: whether the rule runs through the gaps between columns, as long as the longest line.
    """
    lines = align([header, *rows], left=left)
    if joined_rule:
        rule = "-" * max(map(len, lines))
    else:
        rule = "  ".join("-" * max(map(len, column)) for column in zip(header, *rows, strict=True))
    return [lines[0], rule, *lines[1:]]
