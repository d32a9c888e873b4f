"""Files of votes that ask for far more work than their size: refused in one line, before the work is done."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from p2l.commands.leaderboard import main
from p2l.common.errors import VoteError
from p2l.common.spreadsheets import MOST_COLUMNS
from p2l.leaderboard import fit
from p2l.leaderboard.pair_tables import MAX_MODELS
from p2l.votes import read_votes

VOTE = {"model_a": "ant", "model_b": "bee", "winner": "tie", "prompt": "Why?"}
PLAIN = json.dumps(VOTE)
DEEP = "[" * 100_000
MEGABYTE = "x" * 1_000_000


def _write(path: Path, *lines: str) -> None:
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        file.writelines(f"{line}\n" for line in lines)


def _refusal(source: Any) -> str:
    """Return the one line that refuses a source; little memory is taken for it."""
    allocated = pa.default_memory_pool().max_memory()
    with pytest.raises(VoteError) as caught:
        for _ in read_votes(source):
            pass
    assert pa.default_memory_pool().max_memory() - allocated < 512 << 20
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    return str(caught.value)


DEEP_LINE = PLAIN[:-1] + f', "x": {DEEP}'
LINES: dict[str, tuple[Callable[[], Iterator[str]], str]] = {
    "deep": (lambda: iter([DEEP_LINE]), "line 1: is not JSON: is nested deeper than 200 levels"),
    "deep late": (lambda: iter([PLAIN] * 2000 + [DEEP_LINE]), "line 2001: is nested deeper than 200"),
    "deep later": (lambda: iter([PLAIN] * 3000 + [DEEP_LINE]), "line 3001: is nested deeper than 200"),
    "deep over lines": (lambda: iter([PLAIN] * 2000 + [f"{PLAIN}["] + ["["] * 99_999), "line 2001: is not JSON"),
    "long": (lambda: iter([PLAIN, json.dumps(MEGABYTE * 20)]), "line 2: is longer than 16 MiB"),
    "long late": (lambda: iter([PLAIN] * 3000 + [json.dumps(MEGABYTE * 20)]), "line 3001: is longer than 16 MiB"),
    "quotes": (lambda: iter([PLAIN] * 2000 + ['\\"' * 4_000_000]), "line 2001: is not JSON"),
    "columns": (lambda: iter([json.dumps({f"k{i}": 1 for i in range(2000)})]), "has 2,000 columns, of at most 1,000"),
    "keys": (
        lambda: iter([PLAIN[:-1] + f', "m": {{"k{i}": 1}}}}' for i in range(4000)]),
        "different keys; write them as a list",
    ),
    "keys late": (
        lambda: iter([PLAIN] * 3000 + [PLAIN[:-1] + f', "k{i}": 1}}' for i in range(4000)]),
        "different keys; write them as a list",
    ),
}


@pytest.mark.parametrize(("name", "ending"), [*((name, ".jsonl") for name in LINES), ("long late", ".jsonl.gz")])
def test_json_lines_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, ending: str) -> None:
    monkeypatch.setattr("p2l.votes.json_lines._BLOCK_BYTES", 100_000)
    monkeypatch.setattr("p2l.votes.json_lines._MAX_CELLS", 1_000_000)
    lines, message = LINES[name]
    path = tmp_path / f"votes{ending}"
    _write(path, *lines())
    assert message in _refusal(path)


def test_lines_with_other_keys_in_later_blocks_are_read_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that come and go, numbers that become fractions, text that becomes lists."""
    monkeypatch.setattr("p2l.votes.json_lines._BLOCK_BYTES", 100_000)
    path = tmp_path / "votes.jsonl"
    filler = "word " * 10
    rows: list[dict[str, Any]] = []
    for number in range(8000):
        row: dict[str, Any] = {**VOTE, "prompt": f"{number} {filler}", "weight": 1 if number < 4000 else 1.5}
        if number > 3000:
            row["extra"] = {"a": number} if number < 6000 else {"a": number, "b": None}
        if number > 7000:
            row["prompt"] = [str(number), filler]
        rows.append(row)
    _write(path, *map(json.dumps, rows))
    votes = [row for batch in read_votes(path) for row in batch.batch.to_pylist()]
    assert len(votes) == len(rows)
    for row, vote in zip(rows, votes, strict=True):
        turns = row["prompt"] if isinstance(row["prompt"], list) else [row["prompt"]]
        assert (vote["prompt"], vote["weight"]) == (turns, row["weight"])
        assert (vote.get("extra") or {}).get("a") == row.get("extra", {}).get("a")


def test_csv_is_bounded_by_its_header(tmp_path: Path) -> None:
    path = tmp_path / "votes.csv"
    names = [*VOTE, *(f"c{number}" for number in range(20_000))]
    _write(path, ",".join(names), ",".join(["ant", "bee", "tie", "Why?"] + ["1"] * 4000))
    assert f"has 20,004 columns, of at most {MOST_COLUMNS:,}" in _refusal(path)
    _write(path, "," * 2_000_000)
    assert "row 1: the header cannot be read: it is longer than 1 MiB" in _refusal(path)
    _write(path, ",".join(VOTE) + "," + "x" * 2_000_000)
    assert "row 1: the header cannot be read" in _refusal(path)


@pytest.mark.parametrize(
    "cells", [[DEEP + "]" * len(DEEP)], [f'"{{""k{number}"": 1}}"' for number in range(10_000)]], ids=["deep", "keys"]
)
def test_json_in_csv_that_is_too_much_stays_text(tmp_path: Path, cells: list[str]) -> None:
    path = tmp_path / "votes.csv"
    _write(path, ",".join(VOTE) + ",more", *(f"ant,bee,tie,Why?,{cell}" for cell in cells))
    batches = list(read_votes(path))
    assert sum(map(len, batches)) == len(cells)
    assert {batch.batch.schema.field("more").type for batch in batches} == {pa.string()}


def _repeated(rows: int, text: str) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


def _parquet(path: Path, rows: int, **columns: Any) -> Path:
    names = {name: _repeated(rows, text) for name, text in VOTE.items()}
    table = pa.table({**names, **columns})
    # Without Arrow's schema a reader does not know that the columns were dictionaries.
    pq.write_table(table, path, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=False)
    return path


def test_a_text_that_repeats_is_stored_once_and_refused(tmp_path: Path) -> None:
    path = _parquet(tmp_path / "votes.parquet", 5000, prompt=_repeated(5000, MEGABYTE))
    assert path.stat().st_size < 31_000
    assert "unpack to some 5.0 GB, which votes do not" in _refusal(path)


def test_a_long_text_is_refused_and_long_ones_come_in_small_batches(tmp_path: Path) -> None:
    path = _parquet(tmp_path / "votes.parquet", 50, prompt=_repeated(50, MEGABYTE * 17))
    assert "row group 1: prompt holds a text of 17.0 MB, of at most 16 MiB" in _refusal(path)
    path = _parquet(tmp_path / "votes.parquet", 300, prompt=_repeated(300, MEGABYTE))
    assert max(len(batch) for batch in read_votes(path)) <= 67


def test_rows_without_end_are_refused(tmp_path: Path) -> None:
    """Of equal rows only their number is stored, and so it is of elements that a list lacks."""
    rows = 20_000_000
    names = _repeated(rows, "a")
    table = pa.table({"model_a": names, "model_b": names, "winner": names, "prompt": names})
    path = tmp_path / "votes.parquet"
    pq.write_table(table, path, row_group_size=rows, store_schema=False)
    assert "unpack to some" in _refusal(path)


def test_columns_of_parquet_are_counted_before_they_are_read(tmp_path: Path) -> None:
    path = _parquet(tmp_path / "votes.parquet", 1, **{f"c{number}": [1] for number in range(2000)})
    assert "has 2,004 columns" in _refusal(path)


def _saved(folder: Path, table: pa.Table, compression: str | None) -> Path:
    """What `save_to_disk` writes, its one file compressed, which `datasets` reads and never writes."""
    datasets.Dataset.from_list([VOTE]).save_to_disk(folder)
    [file] = folder.glob("*.arrow")
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with file.open("wb") as sink, pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return folder


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_saved_folder_that_unpacks_without_end_is_refused(tmp_path: Path, compression: str) -> None:
    prompt = pa.array([MEGABYTE]).take(pa.array(np.zeros(1200, np.int64)))
    table = pa.table({name: [text] * 1200 for name, text in VOTE.items()} | {"prompt": prompt})
    folder = _saved(tmp_path / "bomb", table, compression)
    del prompt, table
    assert sum(file.stat().st_size for file in folder.iterdir()) < 10_000_000
    assert "unpack to some 1.2 GB, which votes do not" in _refusal(folder)


def test_rows_that_a_saved_folder_does_not_store_are_refused(tmp_path: Path) -> None:
    folder = _saved(tmp_path / "bomb", pa.concat_tables([pa.table({"nothing": pa.nulls(2**20)})] * 200), None)
    assert "unpack to some" in _refusal(folder)


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
def test_a_saved_folder_of_ordinary_size_is_read(tmp_path: Path, compression: str | None) -> None:
    table = pa.table({name: [text, text * 1000] if name == "prompt" else [text] * 2 for name, text in VOTE.items()})
    folder = _saved(tmp_path / "votes", table, compression)
    assert [row["prompt"] for batch in read_votes(folder) for row in batch.batch.to_pylist()] == [
        ["Why?"],
        ["Why?" * 1000],
    ]


def test_a_category_that_stands_for_gigabytes_is_refused() -> None:
    table = pa.table({**{name: [text] * 5000 for name, text in VOTE.items()}, "prompt": _repeated(5000, MEGABYTE)})
    assert "hold 5.0 GB of text" in _refusal(table)


def test_no_leaderboard_has_more_models_than_fit_into_its_tables(tmp_path: Path) -> None:
    path = tmp_path / "votes.csv"
    _write(path, "model_a,model_b,winner", *(f"a{number},b{number},tie" for number in range(100_000)))
    with pytest.raises(VoteError, match=rf"{path}: [\d,]+ models or more, and a leaderboard has at most 10,000"):
        main(["--votes", str(path), "--quiet"])
    codes = np.arange(MAX_MODELS + 2)
    with pytest.raises(VoteError, match="models or more, and a leaderboard has at most"):
        fit(codes[:-1], codes[1:], np.zeros(len(codes) - 1, int), models=[str(code) for code in codes])
