"""Rows of a flat table as columns: what most rows are is converted a batch at a time, and odd rows are left.

A kind of flat tables may say how a whole batch becomes columns of the schema (`Kind.convert_batch`). Rows that are not
as most (a cell of another form, a fault, no verdict) are marked as odd here, and `Kind.convert` reads each of them or
says what is wrong with it.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from p2l.votes.kinds.self_names import REVEALS, SelfNames, clue_pattern
from p2l.votes.kinds.texts import RowError
from p2l.votes.kinds.values import BOLD, FENCE_MARKS, HEADER, LIST_ITEM, NoVerdictError, without_code

Columns = dict[str, Any]
# A cell that may be a list of texts as JSON writes it on one line; others that begin like JSON are read row by row.
_MAY_BE_LIST = r'^\s*\["[^\n\r]*"\]\s*$'
_LIKE_JSON = r"^\s*[\[{]"
_ODD_TEXT = rf"{_LIKE_JSON}|\x00"
# A field that no cell can name, so that a cell cannot close its object and begin another.
_CELL_FIELD = secrets.token_hex(8)


class OddBatchError(ValueError):
    """A batch whose columns are not of the types of a flat table: all of its rows are read one by one."""


class FlatBatch:
    """A batch of a flat table, whose text is of Arrow's type `string`, and which of its rows are odd."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self.is_odd = np.zeros(len(batch), dtype=bool)

    def __len__(self) -> int:
        return len(self._batch)

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns of the table."""
        names: Sequence[str] = self._batch.schema.names
        return names

    def leave(self, rows: Any) -> None:
        """Mark rows (N,), a mask of Arrow or NumPy, as odd."""
        if not isinstance(rows, np.ndarray):
            rows = pc.fill_null(rows, False).to_numpy(zero_copy_only=False)
        self.is_odd |= rows

    def first(self, *names: str) -> Any:
        """Return the first value of several columns that is not null; OddBatchError where their types differ."""
        there = [self._batch.column(name) for name in names if name in self._batch.schema.names]
        columns = [column for column in there if not pa.types.is_null(column.type)]
        if len({column.type for column in columns}) > 1:
            columns = [_as_text(column) for column in columns]
        return pc.coalesce(*columns) if columns else pa.nulls(len(self._batch), pa.string())

    def texts(self, *names: str) -> Any:
        """Return the first value of several columns as text; OddBatchError where one is neither text nor a count."""
        return _as_text(self.first(*names))

    def names(self, *names: str) -> Any:
        """Return models' names; rows without one are odd."""
        column = self.first(*names)
        if not pa.types.is_string(column.type):
            raise OddBatchError
        self.leave(pc.fill_null(pc.equal(pc.utf8_trim_whitespace(column), ""), True))
        return column.cast(pa.string())

    def words(self, *names: str) -> Any:
        """Return prompts of one text each, null where there is none; cells that look like JSON or hold NUL are odd."""
        column = self.texts(*names)
        self.leave(pc.match_substring_regex(column, _ODD_TEXT))
        return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)

    def each(self, convert: Callable[[Any], Any], kind: Any, *names: str, needed: bool = True) -> Any:
        """Return what `convert` makes of each different value of columns, as an array of an Arrow type.

        Rows whose value it refuses are odd, and with `needed` those without a value.
        """
        column = self.mapped(convert, kind, *names)
        self.leave(column.is_null() if needed else pc.and_(column.is_null(), self.first(*names).is_valid()))
        return column

    def mapped(self, convert: Callable[[Any], Any], kind: Any, *names: str) -> Any:
        """Return what `convert` makes of each different value of columns; null where it makes nothing or refuses."""
        column = self.first(*names)
        if pa.types.is_nested(column.type):
            raise OddBatchError
        encoded = column.dictionary_encode()
        values: list[Any] = []
        for value in encoded.dictionary.to_pylist():
            try:
                values.append(convert(value))
            except (RowError, NoVerdictError):
                values.append(None)
        return pa.array(values, kind).take(encoded.indices)

    def turns(self, name: str) -> Any:
        """Return prompts as lists of turns, of texts or of JSON lists in cells; rows without one are odd."""
        cells = self.texts(name)
        self.leave(cells.is_null())
        return self._lists(cells)

    def measures(self, name: str, side: str) -> Columns:
        """Return characters and Markdown of the answers of a side: texts, or JSON lists of them in cells."""
        answers = pc.binary_join(self._lists(self.texts(name)), "\n\n")
        prose, blocks = answers, pc.if_else(answers.is_valid(), pa.scalar(0), pa.scalar(None, pa.int64()))
        fenced = pc.fill_null(pc.match_substring_regex(answers, "|".join(FENCE_MARKS)), False)
        if pc.any(fenced).as_py():  # the end of a block is the mark that it began with, which RE2 cannot say
            cut = [without_code(text) for text in answers.filter(fenced).to_pylist()]
            prose = pc.replace_with_mask(prose, fenced, pa.array([text for text, _ in cut], pa.string()))
            blocks = pc.replace_with_mask(blocks, fenced, pa.array([count for _, count in cut], blocks.type))
        # Arrow's count begins anew after each match, where `^` would match too: lines begin behind a line feed instead.
        lines = pc.binary_join_element_wise("\n", prose, "")
        return {
            f"length_{side}": pc.utf8_length(answers),
            f"headers_{side}": pc.count_substring_regex(lines, f"\n{HEADER}"),
            f"lists_{side}": pc.count_substring_regex(lines, f"\n{LIST_ITEM}"),
            f"bold_{side}": pc.count_substring_regex(prose, BOLD),
            f"code_{side}": blocks,
            f"{REVEALS}_{side}": _reveals(answers),
        }

    def _lists(self, cells: Any) -> Any:
        """Return a list of texts for each cell: of JSON's where it is one, else of the cell alone."""
        like_json = pc.fill_null(pc.match_substring_regex(cells, _LIKE_JSON), False)
        plain = _alone(cells)
        if not pc.any(like_json).as_py():
            return plain
        may_be = pc.and_(like_json, pc.fill_null(pc.match_substring_regex(cells, _MAY_BE_LIST), False))
        parsed = _parsed_lists(cells.filter(may_be))
        if parsed is None:
            self.leave(like_json)
            return plain
        self.leave(pc.and_(like_json, pc.invert(may_be)))
        is_list = may_be.to_numpy(zero_copy_only=False)
        # Where each row lies in the plain lists, and behind them in the parsed ones.
        places = np.arange(len(cells))
        places[is_list] = len(cells) + np.arange(int(is_list.sum()))
        lists = pa.concat_arrays([plain, parsed]).take(pa.array(places))
        missing = lists.flatten().is_null()
        if pc.any(missing).as_py():
            self.is_odd[pc.list_parent_indices(lists).filter(missing).to_numpy()] = True
        return lists


def _as_text(column: Any) -> Any:
    if pa.types.is_string(column.type) or pa.types.is_integer(column.type) or pa.types.is_null(column.type):
        return column.cast(pa.string())
    raise OddBatchError


def _alone(cells: Any) -> Any:
    """Return each text as a list of one; null where there is none."""
    filled = cells.is_valid().to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(filled)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), cells.drop_null(), mask=pa.array(~filled))


def _parsed_lists(cells: Any) -> Any:
    """Return cells that are JSON lists of texts as lists; None where one of them is not."""
    import pyarrow.json as pj

    lines = pc.binary_join_element_wise(f'{{"{_CELL_FIELD}":', cells, "}\n", "")
    block = "".join(lines.to_pylist()).encode()
    schema = pa.schema([(_CELL_FIELD, pa.list_(pa.string()))])
    parse = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    try:
        table = pj.read_json(io.BytesIO(block), pj.ReadOptions(use_threads=False, block_size=2 * len(block) + 1), parse)
    except pa.ArrowException:
        return None
    lists = table.column(0).combine_chunks()
    return lists if len(lists) == len(cells) else None


def _reveals(answers: Any) -> Any:
    """Return which answers (N,) tell their model or maker: one or zero, null where there is none."""
    reveals = pc.if_else(answers.is_valid(), pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64()))
    may = pc.fill_null(pc.match_substring_regex(answers, clue_pattern()), False)
    if not pc.any(may).as_py():
        return reveals
    names = SelfNames.of()
    found = [int(names.revealed(text)) for text in answers.filter(may).to_pylist()]
    return pc.replace_with_mask(reveals, may, pa.array(found, pa.int64()))
