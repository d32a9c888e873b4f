"""Every valid score of a run as one row of a flat table, CSV or Parquet, for those who reckon with other tools."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from coeval.analysis.records import norm_of
from coeval.analysis.statistics import Codes, Floats
from coeval.analysis.units import LoadedRun, codes_of
from coeval.analysis.verdicts import evaluation_of
from coeval.storage.records import is_failed
from p2l.common.files import atomic_path
from p2l.common.spreadsheets import to_cells

_ROWS_PER_BATCH = 65_536  # so that a table of millions of scores never lies in memory as a whole
_NAMED = ("task", "teacher", "student", "judge", "factor")
_Column = Callable[[slice], Any]  # rows -> their values, as an Arrow array


def export_units(loaded: LoadedRun, path: Path, *, form: str, attributes: str = "columns") -> int:
    """Write the valid scores to a `csv` or `parquet` file and return their number; InputError if it cannot be written.

    `attributes` of items are text in `columns` named `attribute.NAME`, in one column of `json`, or left out (`none`).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        from pyarrow import csv, parquet

        batches = _batches(_columns(loaded, attributes), len(loaded.units))
        first = next(batches)
        writer = (
            parquet.ParquetWriter(temporary, first.schema)
            if form == "parquet"
            else csv.CSVWriter(temporary, first.schema, write_options=csv.WriteOptions(quoting_style="needed"))
        )
        with writer:
            for batch in chain([first], batches):
                writer.write_table(batch if form == "parquet" else _cells(batch))
    return len(loaded.units)


def _columns(loaded: LoadedRun, attributes: str) -> dict[str, _Column]:
    """Return the columns, in order."""
    units, columns = loaded.units, dict[str, _Column]()
    for name in _NAMED:
        columns[name] = _names(loaded.names(name), getattr(units, name))
    columns["datapoint_id"] = _names(loaded.datapoints, units.datapoint)
    columns["response_id"] = _names(loaded.responses, units.response)
    columns["judge_kind"] = _names(loaded.kinds, units.judge)
    columns["score"] = _plain(units.norm)
    columns["raw_score"] = _names(*_raw_scores(loaded))
    columns["token_count"] = _plain(loaded.tokens[units.response].astype(np.int64))
    columns["is_self_judging"] = _plain(loaded.is_student("judge"))
    columns["is_self_teaching"] = _plain(loaded.is_student("teacher"))
    columns["evaluated_at"] = _names(loaded.evaluations.at, units.evaluation)
    items = loaded.attributes
    if attributes == "json":
        texts = [json.dumps(item, ensure_ascii=False, sort_keys=True) for item in items]
        columns["attributes"] = _names(texts, units.datapoint)
    elif attributes == "columns":
        for key in sorted({key for item in items for key in item}):
            columns[f"attribute.{key}"] = _names([item.get(key) for item in items], units.datapoint)
    return columns


def _plain(values: Any) -> _Column:
    import pyarrow as pa

    return lambda rows: pa.array(values[rows])


def _names(names: Sequence[str | None], codes: Codes) -> _Column:
    import pyarrow as pa

    texts = pa.array(
        [None if name is None else name.encode("utf-8", "replace").decode() for name in names], pa.string()
    )
    return lambda rows: texts.take(pa.array(codes[rows]))


def _raw_scores(loaded: LoadedRun) -> tuple[list[str | None], Codes]:
    """Return texts, and which of them each unit has: the judge's own, read again since memory holds norms alone."""
    units, shape = loaded.units, (len(loaded.judges), max(len(loaded.factors), 1))
    keys, norms, text_codes, texts = _raw_texts(loaded, shape)
    codes = np.full(len(units), len(texts))  # that of None, which comes last
    if len(units):
        mine = (units.response * shape[0] + units.judge) * shape[1] + units.factor
        order = np.argsort(mine, kind="stable")
        place = order[np.minimum(np.searchsorted(mine[order], keys), len(order) - 1)]
        counts = (mine[place] == keys) & (units.norm[place] == norms)  # else its text has changed since
        codes[place[counts]] = text_codes[counts]  # of several, the last
    return [*texts, None], codes


def _raw_texts(loaded: LoadedRun, shape: tuple[int, int]) -> tuple[Codes, Floats, Codes, list[str]]:
    """(response, judge, factor) keys, scores in [0, 1] and places in the texts, by file and line."""
    responses, judges, factors = (codes_of(names) for names in (loaded.responses, loaded.judges, loaded.factors))
    keys, norms, text_codes, texts = array("q"), array("d"), array("q"), dict[str, int]()
    for record in loaded.run.read("evaluation"):
        is_whole = isinstance(record.get("id"), str) and isinstance(record.get("scores"), Mapping)
        if not is_whole or is_failed(record):
            continue
        response, judge = evaluation_of(record)
        if response not in responses or judge not in judges:
            continue
        place = (responses[response] * shape[0] + judges[judge]) * shape[1]
        grades = record.get("grades")
        named = grades if isinstance(grades, Mapping) else {}
        for factor, value in record["scores"].items():
            norm = norm_of(value)
            if norm is not None and factor in factors:
                keys.append(place + factors[factor])
                norms.append(norm[0])
                # As the judge gave it, which is on its scale where that is known.
                text_codes.append(texts.setdefault(str(named.get(factor, value)), len(texts)))
    return np.array(keys, dtype=np.int64), np.array(norms), np.array(text_codes, dtype=np.int64), list(texts)


def _batches(columns: Mapping[str, _Column], rows: int) -> Iterator[Any]:
    """Yield tables of some rows each; a table without rows where there are none, for the names of the columns."""
    import pyarrow as pa

    for start in range(0, max(rows, 1), _ROWS_PER_BATCH):
        places = slice(start, min(start + _ROWS_PER_BATCH, rows))
        yield pa.table({name: column(places) for name, column in columns.items()})


def _cells(table: Any) -> Any:
    from pyarrow import types

    for place, field in enumerate(table.schema):
        if types.is_string(field.type):
            table = table.set_column(place, field, to_cells(table.column(place)))
    return table
