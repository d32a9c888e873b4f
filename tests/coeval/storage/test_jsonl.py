from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from coeval.storage.records import (
    LONGEST_RECORD,
    RecordIndex,
    append_line,
    as_line,
    open_for_append,
    read_json,
    read_records,
    repair_tail,
    write_json,
)


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.jsonl"
    descriptor = open_for_append(path)
    wanted: list[dict[str, Any]] = [{"a": "é\n\u2028"}, {"a": 1, "b": [None]}]
    for record in wanted:
        append_line(descriptor, as_line(record))
    os.close(descriptor)
    assert list(read_records(path)) == wanted
    assert "é" in path.read_text(encoding="utf-8")


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    descriptor = open_for_append(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    append_line(descriptor, b"{}\n" * 10)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, before[1]))
    try:
        with pytest.raises(OSError, match="space"):
            append_line(descriptor, b"{}\n" * 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    append_line(descriptor, b"{}\n")
    os.close(descriptor)
    assert path.read_bytes() == b"{}\n" * 11


def test_half_a_character_does_not_stop_a_run(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(as_line({"a": "x\ud800"}))
    assert list(read_records(path)) == [{"a": "x?"}]


def test_bad_lines_are_skipped_and_told(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n\n{"a": \n[1]\n\xff\xfe\n{"a": 2}\n{"a": 3')
    told: list[tuple[int, str]] = []
    assert list(read_records(path, lambda _, line, why: told.append((line, why)))) == [{"a": 1}, {"a": 2}]
    assert told == [(3, "no JSON"), (4, "no JSON object"), (5, "no JSON"), (7, "a line that ends early")]
    assert list(read_records(tmp_path / "none.jsonl")) == []


def test_a_line_that_no_record_has_is_skipped_and_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"id": "1"}\n')
    os.truncate(path, LONGEST_RECORD + 100)  # zeros, of which the disk holds none
    with path.open("ab") as file:
        file.write(b'\n{"id": "2"}\n')
    told: list[tuple[int, str]] = []
    assert [record["id"] for record in read_records(path, lambda _, line, why: told.append((line, why)))] == ["1", "2"]
    assert told == [(2, "a line of more than 256 MiB")]
    index = RecordIndex([path], lambda _: True)
    assert index.get("2") == {"id": "2"}
    os.truncate(path, path.stat().st_size - 13)
    assert repair_tail(path) == LONGEST_RECORD + 100 - 12
    assert path.read_bytes() == b'{"id": "1"}\n'


@pytest.mark.parametrize("length", [10, 100_000, 200_000])
def test_a_torn_last_line_is_set_aside(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x.jsonl"
    torn = b'{"a": "' + b"x" * length
    path.write_bytes(b'{"a": 1}\n' + torn)
    os.close(open_for_append(path))
    assert path.read_bytes() == b'{"a": 1}\n'
    assert (tmp_path / "x.jsonl.torn").read_bytes() == torn + b"\n"


def test_a_whole_last_line_without_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}')
    assert repair_tail(path) == 0
    assert path.read_bytes() == b'{"a": 1}\n{"a": 2}\n'
    assert repair_tail(path) == 0
    path.write_bytes(b'{"a')
    assert repair_tail(path) == len(b'{"a')
    assert path.read_bytes() == b""


def test_json_files_are_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert read_json(path) is None
    write_json(path, {"a": "é"})
    assert read_json(path) == {"a": "é"}
    path.write_text("{")
    assert read_json(path) is None
    assert [one.name for one in tmp_path.iterdir()] == ["x.json"]
