"""Tables as columns: a run of twenty models has a hundred thousand rows in some, too many to be an object each.

Shapes: N rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Columns"]

Row = TypeVar("Row")


@dataclass(frozen=True, eq=False)
class Columns(Generic[Row]):
    """A table; to iterate over it gives its rows."""

    row: type[Row]
    """The dataclass that a row is; `values` are in the order of its fields."""
    names: Mapping[str, Sequence[str]]
    """Column of names -> what its codes stand for."""
    values: Mapping[str, npt.NDArray[Any]]
    """Column -> (N,): codes where it has names; NaN is None in a row."""

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def __iter__(self) -> Iterator[Row]:
        columns = [self.listed(name) for name in self.values]
        for row in zip(*columns, strict=True):
            yield self.row(**dict(zip(self.values, row, strict=True)))

    def __getitem__(self, place: int) -> Row:
        return next(iter(self.where(np.array([place]))))

    def where(self, rows: npt.NDArray[Any]) -> Columns[Row]:
        """The rows that a mask or indices choose."""
        return Columns(self.row, self.names, {name: column[rows] for name, column in self.values.items()})

    def listed(self, name: str) -> list[Any]:
        """A column as plain values, names in full."""
        if name in self.names:
            return [self.names[name][code] for code in self.values[name].tolist()]
        return plain_list(self.values[name])

    def plain(self) -> dict[str, Any]:
        """For JSON: names and, for each column, its values; columns of names hold places in those."""
        columns = {name: plain_list(column) for name, column in self.values.items()}
        return {"names": {name: list(found) for name, found in self.names.items()}, "columns": columns}


def plain_list(column: npt.NDArray[Any]) -> list[Any]:
    """Values of a column, None for what is no number."""
    values: list[Any] = column.tolist()
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        return [value if known else None for value, known in zip(values, np.isfinite(column).tolist(), strict=True)]
    return values
