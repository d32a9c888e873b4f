"""The scores that a page filters in the browser: sums by (task, teacher, student, judge, factor), as one constant.

A run with 20 models in every role has 128,000 such sums, few of them different; so a page holds the different ones, and
for each place of the cube which of them it has: about 0.3 MB. Names and texts may hold anything, `</script>` too.

Shapes: N slices, R runs of neighbours, K different sums.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from coeval.analysis.coverage import SliceRow
from coeval.analysis.tables import Columns
from coeval.analysis.units import Header
from coeval.reports.pieces import describe

DIMENSIONS = ("task", "teacher", "student", "judge", "factor")
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def embedded(value: Any) -> str:
    """Return JSON for a `<script>` element, in which nothing can end the element or start a comment."""
    from markupsafe import Markup

    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for letter, code in _UNSAFE.items():
        text = text.replace(letter, code)
    return Markup(text)


def cube(header: Header, slices: Columns[SliceRow], *, with_sums: bool = True) -> str:
    """Return names of each dimension that have scores, notes on them and, if asked for, the sums.

    `sums` are [scores, total, High, Medium, Low]. Places of the cube are counted with the factor fastest; `runs` are
    pairs of a place and how many stand there without a gap, `sum` says of each which of the sums it has.
    """
    scored = slices.where((slices.values["valid"] > 0) & np.isfinite(slices.values["mean"]))
    used = {dimension: np.unique(scored.values[dimension], return_inverse=True) for dimension in DIMENSIONS}
    names = {dimension: [scored.names[dimension][code] for code in codes] for dimension, (codes, _) in used.items()}
    notes = {
        dimension: {name: note for name in members if (note := describe(header, dimension, name))}
        for dimension, members in names.items()
    }
    if not with_sums:
        return embedded({"names": names, "notes": notes})
    place = np.zeros(len(scored), dtype=np.int64)
    for dimension in DIMENSIONS:
        place = place * len(names[dimension]) + used[dimension][1]
    order = np.argsort(place, kind="stable")
    return embedded({"names": names, "notes": notes, **_sums(scored.where(order)), "runs": _runs(place[order])})


def joined(constant: str, more: Mapping[str, Any]) -> str:
    """Return the constant with further keys."""
    from markupsafe import Markup

    return Markup(f"{constant[:-1]},{embedded(more)[1:]}")


def _sums(slices: Columns[SliceRow]) -> dict[str, Any]:
    """Return the distinct sums, (K, 5), the most frequent first, and the one of each slice, (N,)."""
    values = slices.values
    total = np.round(values["mean"] * values["valid"], 6)
    table = np.stack([values["valid"], total, *(values[name] for name in ("high", "medium", "low"))], axis=1)
    different, which, counts = np.unique(table, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    rows = [[int(value) if value.is_integer() else value for value in row] for row in different[order].tolist()]
    return {"sums": rows, "sum": rank[which.reshape(-1)].tolist()}


def _runs(places: Any) -> list[int]:
    """Return sorted places (N,) as (2 R,) starts and lengths of runs without a gap."""
    starts = np.flatnonzero(np.diff(places, prepend=-2) != 1)  # -2: the first place, even 0, starts a run
    lengths = np.diff(starts, append=len(places))
    runs: list[int] = np.stack([places[starts], lengths], axis=1).ravel().tolist()
    return runs
