"""Cells of CSV files that a spreadsheet would take for formulas: written with a quote mark before, read without.

A model called `=HYPERLINK(...)`, or a note that begins with `@`, is run and not shown by whoever opens the file. A
quote mark before it makes it text. A cell that begins with quote marks and then like a formula gets one more, so that
what is read is what was written. Numbers stay numbers, negative ones too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

# Both patterns are also given to Arrow, whose regular expressions look neither ahead nor back.
_FORMULA = "^'*(?:[\\x00-\\x20\\x7f-\xa0\u200b\u3000\ufeff]*[=+\\-@\uff1d\uff0b\uff0d\uff20]|[\\t\\r\\n])"
_HARMLESS = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)?(?:[eE][+-]?[0-9]+)?%?"
_formula, _harmless = re.compile(_FORMULA), re.compile(_HARMLESS)


def is_formula(text: str) -> bool:
    """Return whether a spreadsheet may run a text, or it looks like a quoted one that it would."""
    return bool(_formula.match(text)) and not _harmless.fullmatch(text)


def to_cell(entry: Any) -> Any:
    """Return what to write for an entry: a text that a spreadsheet would run is quoted, all else is as it is."""
    return f"'{entry}" if isinstance(entry, str) and is_formula(entry) else entry


def of_cell(cell: Any) -> Any:
    """Return the entry that `to_cell` wrote as this cell."""
    return cell[1:] if isinstance(cell, str) and cell[:1] == "'" and is_formula(cell[1:]) else cell


def to_cells(texts: Any) -> Any:
    """Return an Arrow array of text as `to_cell` writes each."""
    import pyarrow.compute as pc

    quoted = formulas(texts)
    return pc.if_else(quoted, pc.binary_join_element_wise("'", texts, ""), texts) if pc.any(quoted).as_py() else texts


def of_cells(cells: Any) -> Any:
    """Return an Arrow array of text as `of_cell` reads each."""
    import pyarrow.compute as pc

    begun = pc.starts_with(cells, "'")
    if not pc.any(begun).as_py():  # most columns
        return cells
    bare = pc.binary_replace_slice(cells, 0, 1, "")
    quoted = pc.and_(begun, formulas(bare))
    return pc.if_else(quoted, bare, cells) if pc.any(quoted).as_py() else cells


def formulas(texts: Any) -> Any:
    """Return which entries of an Arrow array of text are formulas, as `is_formula` says of each."""
    import pyarrow.compute as pc

    is_one = pc.match_substring_regex(texts, _FORMULA)
    return pc.and_not(is_one, pc.match_substring_regex(texts, f"^(?:{_HARMLESS})$"))


def frame_to_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table, its header too, as `to_cell` writes each entry."""
    cells: pd.DataFrame = frame.map(to_cell).rename(columns=to_cell)
    return cells


def frame_of_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table, its header too, as `of_cell` reads each cell."""
    entries: pd.DataFrame = frame.map(of_cell).rename(columns=of_cell)
    return entries
