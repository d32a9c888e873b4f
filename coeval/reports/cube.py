"""The scores that a page filters in the browser: sums by (task, teacher, student, judge, factor), as one constant.

Numbers of a run with 20 models in every role take about 3 MB. Names and texts may hold anything, `</script>` too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from coeval.analysis.results import Header, SliceRow
from coeval.reports.frame import note_of

__all__ = ["DIMENSIONS", "cube", "embedded", "joined"]

DIMENSIONS = ("task", "teacher", "student", "judge", "factor")
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def embedded(value: Any) -> str:
    """JSON for a `<script>` element: nothing in it can end the element or start a comment."""
    from markupsafe import Markup

    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for letter, code in _UNSAFE.items():
        text = text.replace(letter, code)
    return Markup(text)


def cube(header: Header, slices: Sequence[SliceRow]) -> str:
    """Names of each dimension, notes on them, and rows of places in those names with their sums.

    A row is [task, teacher, student, judge, factor, scores, total, High, Medium, Low].
    """
    known = [one for one in slices if one.valid and one.mean is not None]
    names = {dimension: _names(header, known, dimension) for dimension in DIMENSIONS}
    places = {dimension: {name: place for place, name in enumerate(found)} for dimension, found in names.items()}
    rows = [_row(one, places) for one in known]
    notes = {dimension: _notes(header, dimension, found) for dimension, found in names.items()}
    return embedded({"names": names, "notes": notes, "rows": rows})


def joined(constant: str, more: Mapping[str, Any]) -> str:
    """The constant with further keys."""
    from markupsafe import Markup

    return Markup(f"{constant[:-1]},{embedded(more)[1:]}")


def _names(header: Header, slices: Sequence[SliceRow], dimension: str) -> list[str]:
    """Those with scores, in the order of the header."""
    found = dict.fromkeys(str(getattr(one, dimension)) for one in slices)
    first = [name for name in getattr(header, f"{dimension}s") if name in found]
    return [*first, *(name for name in found if name not in set(first))]


def _notes(header: Header, dimension: str, names: Sequence[str]) -> dict[str, str]:
    return {name: note for name in names if (note := note_of(header, dimension, name))}


def _row(one: SliceRow, places: Mapping[str, Mapping[str, int]]) -> list[float]:
    total = round((one.mean or 0.0) * one.valid, 6)
    where = [places[dimension][getattr(one, dimension)] for dimension in DIMENSIONS]
    return [*where, one.valid, int(total) if total.is_integer() else total, one.high, one.medium, one.low]
