"""A kind of file: how it is recognised by its content, and how its rows become votes or graded answers.

A kind is one entry of the registry (`p2l.votes.kinds.registry`): whoever wants another one read writes a `Kind` and
registers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from p2l.common.errors import VoteError
from p2l.common.files import json_reason, parse_json
from p2l.votes.kinds.flat import Columns, FlatBatch

Row = dict[str, Any]
_MAX_DOCUMENT_BYTES = 1 << 30  # of one JSON document, which is parsed whole


class Record(NamedTuple):
    """One thing of a file that becomes rows, and the words that name its place."""

    place: str
    content: Row
    fault: str = ""  # why it cannot be read


def read_document(path: Path, name: str) -> Any:
    """Return the value of a JSON file, called `name`; VoteError for one that is too long, or no JSON."""
    size = path.stat().st_size
    if size > _MAX_DOCUMENT_BYTES:
        raise VoteError(f"{name}: is one JSON value of {size / 1e9:,.1f} GB; write it as one object a line")
    try:
        return parse_json(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except UnicodeDecodeError as error:
        raise VoteError(f"{name}: is not UTF-8 (byte {error.start + 1})") from error
    except ValueError as error:
        raise VoteError(f"{name}: is not JSON: {json_reason(error)}") from error


@dataclass
class Sample:
    """What is known of a path before its rows are read."""

    name: str  # the path as the user wrote it
    path: Path
    names: Sequence[str] = ()  # names of the columns of a table, in their order
    rows: list[Row] = field(default_factory=list)  # the first rows of a table
    files: tuple[str, ...] = ()  # names of the files of a folder, relative to it
    unpacked: Path | None = None  # the bytes of a file that was packed
    is_document: bool = False  # whether the file is one JSON object
    is_copy: bool = False  # of stdin or a pipe, so that neither its name nor its folder says anything
    rows_of: Callable[[str], Iterator[Record]] = lambda _: iter(())
    """Yields the rows of a table: of one among the files of a folder, by its name, or of the file itself, by ''."""

    @property
    def table_path(self) -> Path:
        """The bytes of the file, unpacked where it was packed."""
        return self.unpacked or self.path

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns of a table; none of a folder."""
        return frozenset(self.names)

    def check_named(self) -> None:
        """Raise VoteError where the file's place is to name the model, and it has none."""
        if self.is_copy:
            raise VoteError(f"{self.name}: names no model, which its file or folder would; name the file instead")

    def has(self, *names: str) -> bool:
        """Return whether all of these are columns."""
        return self.columns.issuperset(names)


def _no_row(_: Row) -> Iterable[Row]:
    return ()


@dataclass(frozen=True)
class Kind:
    """One kind of file."""

    name: str  # as `--kind` takes it
    about: str  # as a sentence begins: "MT-bench judgements"
    gives: Literal["votes", "scores"]
    recognise: Callable[[Sample], bool]
    sample: str  # two lines of such a file, for `--list-kinds`
    reads: str = ""  # how its fields are read: "judge -> voter or source, turn -> turns of the prompt"
    convert: Callable[[Row], Iterable[Row]] = _no_row
    """Turns a record into votes or graded answers; raises RowError or NoVerdictError."""
    convert_batch: Callable[[FlatBatch], Sequence[Columns]] | None = None
    """Turns the rows of a flat table that are as most into columns, one set for each answer of a row; see `flat`."""
    records: Callable[[Sample], Iterator[Record]] | None = None
    """Yields the records of a folder or a document; None: the rows of the table."""
    marks: Sequence[str] = ()  # columns that tell this kind from others, where not all it needs is there
    needs: Sequence[str] = ()  # columns it cannot be read without
    refusal: str = ""  # why files of this kind hold neither votes nor scores, and what to do

    def lacks(self, sample: Sample) -> list[str]:
        """Return the needed columns that a file which looks like this kind does not have; none where it does not."""
        if not self.marks or not sample.has(*self.marks):
            return []
        return [name for name in self.needs if name not in sample.columns]
