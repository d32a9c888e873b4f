"""JSON that nests deeper than what reads it can walk: every file of JSON is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from coeval.storage.records import read_json, read_records
from p2l.batch_inference.json_arrays import open_json_array
from p2l.chrono.matrix import read_times
from p2l.common.errors import InputError
from p2l.common.files import parse_json
from p2l.model.checkpoint import read_model_list
from p2l.online_training.live_votes import parse_line
from p2l.online_training.timestamps import times_of_ids
from p2l.simulate import load_arena
from p2l.training.run_folder import read_state
from p2l.training.run_records import STATE_FILE

DEEP = {
    "beyond the parser": "[" * 200_000,
    "closed": "[" * 200_000 + "]" * 200_000,
    "within the parser": "[" * 500 + "]" * 500,
    "objects": '{"a":' * 500 + "1" + "}" * 500,
}


def _arena(path: Path) -> object:
    path.rename(path.with_name("arena.json"))
    return load_arena(path.parent)


def _state(path: Path) -> object:
    path.rename(path.with_name(STATE_FILE))
    return read_state(path.parent)


def _model_list(path: Path) -> object:
    path.rename(path.with_name("model_list.json"))
    return read_model_list(path.parent)


READERS: dict[str, Callable[[Path], object]] = {
    "times": lambda path: read_times(str(path)),
    "arena": _arena,
    "state": _state,
    "model list": _model_list,
    "times of ids": lambda path: times_of_ids(str(path)),
    "outputs": lambda path: open_json_array(path),
    "a live vote": lambda path: parse_line(path.read_bytes()),
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_every_reader_refuses_it_in_one_line(tmp_path: Path, read: Callable[[Path], object], text: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_a_run_folder_counts_it_as_no_record(tmp_path: Path, text: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(f'{{"id": "1"}}\n{text}\n')
    bad: list[tuple[int, str]] = []
    assert list(read_records(path, lambda _, line, reason: bad.append((line, reason)))) == [{"id": "1"}]
    assert bad == [(2, "no JSON")]
    assert read_json(path) is None


def test_what_people_write_is_parsed() -> None:
    wide = [{"a": [1, {"b": []}]}] * 1000
    assert parse_json(json.dumps(wide)) == wide
    deep = "[" * 150 + "]" * 150
    assert json.dumps(parse_json(deep)) == deep
    brackets = json.dumps("[{" * 1000)
    assert parse_json(brackets.encode()) == "[{" * 1000
