"""Tables as text: for terminals, as wide as a screen shows them and with its rows alone, and as Markdown."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Sequence

from p2l.common.cli import whole
from p2l.common.display import columns_of, printable

FIRST_ROWS = 10  # rows of a table on a terminal, unless `--top` says otherwise


def align(rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,), indent: str = "") -> list[str]:
    """Return one line for each row, after `indent`, its cells padded to the width of their column.

    Cells of the columns `left` are aligned to the left; the others to the right, as numbers are. Widths are those that
    a terminal shows: a wide letter takes two columns.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(columns_of, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            blanks = " " * (width - columns_of(cell))
            cells.append(cell + blanks if column in left else blanks + cell)
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def text_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Collection[int] = (0,),
    joined_rule: bool = False,
    most: int | None = None,
    flag: str = "--top",
) -> list[str]:
    """Return the lines of a table with a rule below its header; a joined one runs through the gaps between columns.

    Of more than `most` rows the first are listed, and a line counts the others and names the flag that lists them.
    """
    first_rows = rows if most is None else rows[:most]
    lines = align([header, *first_rows], left=left)
    if joined_rule:
        rule = "-" * max(map(columns_of, lines))
    else:
        columns = zip(header, *first_rows, strict=True)
        rule = "  ".join("-" * max(columns_of(printable(cell)) for cell in column) for column in columns)
    left_out = len(rows) - len(first_rows)
    end = [f"... and {left_out:,} more ({flag} 0 lists all)"] if left_out else []
    return [lines[0], rule, *lines[1:], *end]


def add_rows_flag(
    flags: argparse._ActionsContainer,
    what: str = "rows of each table",
    names: Sequence[str] = ("--top", "--rows"),
) -> None:
    """Add `--top` and its older name `--rows`; `rows_to_print(args.rows)` reads it."""
    text = f"{what}, 0 for all (default: {FIRST_ROWS} on a terminal, all elsewhere; files hold all)"
    flags.add_argument(*names, dest="rows", type=whole, metavar="N", help=text)


def rows_to_print(flag: int | None) -> int | None:
    """Return the rows of a table that are printed, None for all; `flag` is what `--top` says, None without it."""
    if flag is not None:
        return flag or None
    return FIRST_ROWS if sys.stdout.isatty() else None


def cut(text: str, most: int = 32) -> str:
    """Return a text of others in one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"


def formatted(value: float, form: str) -> str:
    """Return a number in a format such as `+.0f` or `.1%`, without the sign of a number that rounds to zero."""
    text = f"{value:{form}}"
    return text if re.search("[1-9a-z]", text) else text.lstrip("+-")


# What Markdown takes for more than text; a colon, or the point after www, would make an address a link. No number is a
# mark of a list, whose marks have no digit after them.
_MARKS = re.compile(r"[\\`*_\[\]|~<>&$#@]|(?<=[A-Za-z]):(?=\S)|(?<=[wW]{3})\.|^[-+](?!\d)|(?<=^\d)[.)](?!\d)")


def markdown_text(text: str) -> str:
    """Escape a text of one line so that Markdown shows it literally: no markup, HTML or link in it counts."""
    return _MARKS.sub(lambda match: f"\\{match[0]}", printable(text).strip())


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,)) -> list[str]:
    """Return the lines of a table as GitHub's Markdown; columns but those of `left` are aligned to the right."""
    rule = [":--" if place in left else "--:" for place in range(len(header))]
    lines = [[markdown_text(cell) or " " for cell in row] for row in (header, *rows)]
    return [f"| {' | '.join(cells)} |" for cells in (lines[0], rule, *lines[1:])]
