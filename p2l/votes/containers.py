"""What a file is, told by its first bytes rather than its name: packed, Parquet, JSON, JSON lines, separated values.

A packed file (gzip, Zstandard, bzip2, xz, a zip with one file) and a text in another encoding than UTF-8 are written
anew into a temporary file, which lives as long as the `TableFile` that names it.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import os
import re
import shutil
import tempfile
import weakref
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from p2l.common.errors import VoteError, first_line
from p2l.common.files import parse_json

_MAX_UNPACKED_BYTES = 64 << 30
_MAX_EXPANSION = 2_000  # unpacked bytes that one packed byte may stand for, beyond a gigabyte
_SMALL_BYTES = 1 << 30
_PIECE_BYTES = 8 << 20
_HEAD_BYTES = 1 << 20
# Keys of one JSON object that is a whole file, on one line.
_ROW_MARKS = frozenset(
    {
        *("data", "rows", "items", "results", "records", "events", "runs"),
        *("eval", "testCases", "testRunData", "test_results", "resolved_ids"),
    }
)
_SEPARATORS = ",\t;|"
_BOMS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Byte order marks, those of UTF-32 first: one begins with that of UTF-16."""
_PACKINGS: dict[bytes, str] = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",  # an empty one
}
# Letters of Western European languages, quotation marks and dashes as Windows writes them: what a text in its encoding
# consists of, and a damaged UTF-8 text does not.
_WINDOWS_BYTES = frozenset("€…‘’“”–—™ £§©«®°±´·»½¿ÀÁÂÄÅÆÇÈÉÊÍÑÓÔÖ×ØÚÜßàáâãäåæçèéêëìíîïñòóôõöøùúûü".encode("cp1252"))


_HIDDEN = re.compile(r"(^|/)(__MACOSX/|\.)")  # what systems put beside files
_OTHERS: dict[bytes, str] = {
    b"SQLite format 3\0": "is a database of SQLite; write its table as CSV",
    b"ARROW1": "is an Arrow (Feather) file; write it as Parquet",
    b"\xd0\xcf\x11\xe0": "is a document of an office; save its table as CSV",
    b"Obj\x01": "is an Avro file; write it as Parquet",
    b"%PDF": "is a PDF, and no table",
    b"\x89PNG": "is a picture, and no table",
    b"<!doctype html": "is a page of HTML, a report or an error; take the file of results itself",
    b"<html": "is a page of HTML, a report or an error; take the file of results itself",
    b"<promptfoo>": "is promptfoo's XML; write its results as JSON (`-o results.json`)",
    b"evalId:": "is promptfoo's YAML; write its results as JSON (`-o results.json`)",
    b"<?xml": "is XML, and no table; export JSON or CSV",
    b"version https://git-lfs": "is a pointer of Git LFS; fetch the file itself with `git lfs pull`",
    b"sep=": "begins with a line for Excel (sep=...); delete that line",
}
"""How files that are no tables begin, in small letters -> what they are, and what to do."""
_UNPACKING = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, pa.ArrowException)
_TAR_MARK = slice(257, 262)  # where the head of a tar archive says `ustar`


class TemporaryFile:
    """A temporary file that is removed with the last reference to it."""

    def __init__(self) -> None:
        descriptor, name = tempfile.mkstemp(prefix="p2l-votes-")
        os.close(descriptor)
        self.path = Path(name)
        weakref.finalize(self, os.unlink, name)


@dataclass(frozen=True)
class TableFile:
    """A file to read rows from, called by the name that the user gave."""

    path: Path
    name: str
    separator: str = ","
    note: str = ""  # how the file was read where that is not plain from its name
    temporary: TemporaryFile | None = None  # the file itself, where it is one

    def __str__(self) -> str:
        return self.name

    def open(self) -> IO[bytes]:
        """Open the bytes of the rows."""
        return self.path.open("rb")


def head_of(path: Path, length: int = _HEAD_BYTES) -> bytes:
    """Return the first bytes of a file."""
    with path.open("rb") as file:
        return file.read(length)


def what_else(path: Path) -> str:
    """Return what a file is that is no table, as far as its beginning tells, and what to do; empty where it may be."""
    head = head_of(path, 512)
    if head[_TAR_MARK] == b"ustar":
        return "is a tar archive; unpack it, and name a file or the folder"
    if any(head.startswith(mark) for mark in _PACKINGS):
        return "is packed more than twice; unpack it"
    start = head.lstrip().lower()
    return next((about for mark, about in _OTHERS.items() if start.startswith(mark.lower())), "")


def unpack(file: TableFile) -> TableFile:
    """Return the file inside of a packed one, as a temporary file; the same file where it is not packed."""
    head = head_of(file.path, 8)
    packing = next((name for mark, name in _PACKINGS.items() if head.startswith(mark)), None)
    if packing is None:
        return file
    temporary = TemporaryFile()
    try:
        with _opened(file, packing) as packed, temporary.path.open("wb") as target:
            _copy(packed, target, file)
    # An encrypted file of a zip, and one packed in a way that Python does not know, are no bad zips to it.
    except (*_UNPACKING, RuntimeError, NotImplementedError) as error:
        raise VoteError(f"{file}: cannot be unpacked as {packing}: {first_line(error)}") from error
    if not temporary.path.stat().st_size:
        raise VoteError(f"{file}: is empty when unpacked")
    inner = TableFile(temporary.path, file.name, note=packing, temporary=temporary)
    return unpack(inner) if file.temporary is None else inner


@contextmanager
def _opened(file: TableFile, packing: str) -> Iterator[Any]:
    """Open the unpacked bytes of a file."""
    if packing == "zip":
        with zipfile.ZipFile(file.path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/") and not _HIDDEN.search(name)]
            if {"[Content_Types].xml", "mimetype"} & {*names}:
                raise VoteError(f"{file}: is a workbook or another document of an office; save its table as CSV")
            if not names:
                raise VoteError(f"{file}: is a zip that holds no file")
            if len(names) != 1:
                shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
                raise VoteError(
                    f"{file}: is a zip of {len(names)} files ({shown}); unpack it and name one, or a folder"
                )
            with archive.open(names[0]) as inside:
                yield inside
    elif packing == "Zstandard":
        with pa.CompressedInputStream(str(file.path), "zstd") as stream:
            yield stream
    else:
        openers: dict[str, Callable[[Path], Any]] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
        with openers[packing](file.path) as stream:
            yield stream


def _copy(packed: Any, target: Any, file: TableFile) -> None:
    """Copy unpacked bytes within bounds."""
    limit = min(_MAX_UNPACKED_BYTES, max(_SMALL_BYTES, _MAX_EXPANSION * file.path.stat().st_size))
    total = 0
    while piece := packed.read(_PIECE_BYTES):
        total += len(piece)
        if total > limit:
            raise VoteError(f"{file}: unpacks to more than {limit / 1e9:,.1f} GB, which votes do not")
        target.write(piece)


def as_utf8(file: TableFile) -> TableFile:
    """Return a text file in UTF-8: one in UTF-16, UTF-32 or Windows-1252 is written anew, and noted."""
    head = head_of(file.path)
    encoding = next((name for mark, name in _BOMS.items() if head.startswith(mark)), None)
    if encoding is None:
        encoding = "cp1252" if _looks_like_windows(file) else None
    if encoding is None:
        return file
    temporary = TemporaryFile()
    try:
        with (
            file.path.open(encoding=encoding, newline="") as source,
            temporary.path.open("w", encoding="utf-8", newline="") as target,
        ):
            shutil.copyfileobj(source, target, _PIECE_BYTES)
    except UnicodeError as error:
        raise VoteError(f"{file}: begins like {encoding.upper()} text, and is not; save it as UTF-8") from error
    name = {"cp1252": "Windows-1252, not UTF-8", "utf-16": "UTF-16", "utf-32": "UTF-32"}[encoding]
    return TableFile(temporary.path, file.name, note=f"text is {name}", temporary=temporary)


def _looks_like_windows(file: TableFile) -> bool:
    """Return whether text is not UTF-8, and has no other bytes than a text of Windows-1252 has."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    is_utf8 = True
    letters: set[int] = set()
    with file.open() as source:
        while piece := source.read(_PIECE_BYTES):
            if is_utf8:
                try:
                    decoder.decode(piece)
                except UnicodeDecodeError:
                    is_utf8 = False
            if not piece.isascii():
                letters.update(byte for byte in set(piece) if byte > 127)
    return not is_utf8 and letters <= _WINDOWS_BYTES


def is_object(line: bytes) -> bool:
    """Return whether a line is an object of JSON."""
    try:
        return isinstance(parse_json(line), dict)
    except ValueError:
        return False


def text_kind(file: TableFile) -> str:
    """Return what a text file holds: `lines` of JSON objects, one JSON value (`json`), or separated values (`csv`)."""
    with file.open() as source:
        head = source.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    if head[:1] not in (b"[", b"{"):
        return "csv"
    line, _, rest = head.partition(b"\n")
    try:
        value = parse_json(line)
    except ValueError:
        # A first line that goes on behind what was read is a line of its own, and so is one that is torn.
        is_torn = not rest or _is_torn(line, rest, is_lines=file.name.lower().endswith(".jsonl"))
        return "lines" if head[:1] == b"{" and is_torn else "json"
    if isinstance(value, list):
        return "lines" if rest.strip() else "json"
    are_columns = len(value) > 1 and all(isinstance(column, dict | list) for column in value.values())
    return "lines" if rest.strip() or (_ROW_MARKS.isdisjoint(value) and not are_columns) else "json"


def _is_torn(line: bytes, rest: bytes, *, is_lines: bool) -> bool:
    """Return whether a line that begins an object ends within it: where an object of its own follows, or by name."""
    if line.rstrip().endswith((b"{", b"[", b",", b":")):
        return False
    try:
        follows = parse_json(rest.lstrip().partition(b"\n")[0])
    except ValueError:
        return is_lines
    return is_lines or isinstance(follows, dict)


def sniff_separator(file: TableFile) -> str:
    """Return what separates the columns of a header: the separator that occurs outside of quotes in it most."""
    text = head_of(file.path).decode("utf-8-sig", errors="replace")
    try:
        rows = {mark: next(csv.reader(io.StringIO(text, newline=""), delimiter=mark), []) for mark in _SEPARATORS}
    except csv.Error:
        return ","
    counts = Counter({mark: len(row) for mark, row in rows.items()})
    mark, count = counts.most_common(1)[0]
    return mark if count > 1 and count > counts[","] else ","
