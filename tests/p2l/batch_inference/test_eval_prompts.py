import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from p2l.batch_inference.prompts import open_prompts
from p2l.common.errors import InputError
from p2l.votes.writing import write_votes
from tests.p2l.eval_helpers import prompt_rows, write_jsonl


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "rows.jsonl", prompt_rows(30))


@pytest.mark.parametrize("limit", [None, 1, 7, 16, 30, 99])
@pytest.mark.parametrize("batch", [1, 3, 8, 100])
def test_chunks_do_not_depend_on_batches(data: Path, limit: int | None, batch: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("p2l.batch_inference.prompts.ROWS", 8)
    monkeypatch.setattr("p2l.batch_inference.prompts._BATCH_ROWS", batch)
    prompts = open_prompts(str(data), limit=limit)
    rows = prompt_rows(30)[:limit]
    chunks = [chunk.to_pylist() for chunk in prompts.chunks()]
    assert [len(chunk) for chunk in chunks[:-1]] == [8] * (len(chunks) - 1)
    assert [turns for chunk in chunks for [turns] in chunk] == [row["prompt"] for row in rows]
    pieces = list(prompts.tables())
    assert [row for _, piece in pieces for row in piece.to_pylist()] == rows
    assert [number for number, piece in pieces for _ in range(len(piece))] == [n // 8 for n in range(len(rows))]
    survey = prompts.survey()
    assert (survey.rows, len(survey.chunks)) == (len(rows), len(chunks))


def test_the_fingerprint_is_of_the_content(data: Path, tmp_path: Path) -> None:
    import datasets

    def fingerprint(path: Path, **settings: Any) -> str:
        return open_prompts(str(path), **settings).survey().fingerprint

    first = fingerprint(data)
    assert fingerprint(data, limit=3) == first
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(data.read_bytes())
    assert fingerprint(copy) == first
    write_jsonl(data, [*prompt_rows(29), {"prompt": "other"}])
    assert fingerprint(data) != first
    kept = datasets.Dataset.from_list(prompt_rows(5))
    for name, changed in (("one", kept), ("two", kept.select([0, 1, 2, 4, 3]))):
        changed.save_to_disk(str(tmp_path / name))
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "one") != fingerprint(tmp_path / "two")


def test_a_csv_field_may_hold_the_list_of_turns(tmp_path: Path) -> None:
    table = pa.table({"prompt": [["a"], ["b", "c"]], "winner": [1, 2]})
    write_votes(table.to_batches(), table.schema, tmp_path / "rows.csv")
    prompts = open_prompts(str(tmp_path / "rows.csv"))
    assert [chunk.to_pylist() for chunk in prompts.chunks()] == [[["a"], ["b", "c"]]]


def test_columns_of_votes_may_hold_anything(tmp_path: Path) -> None:
    """They are not votes here: a number for a winner is carried through like any other column."""
    rows = [{"prompt": "a", "winner": 3, "model_a": [1], "labels": None}]
    [(_, piece)] = open_prompts(str(write_jsonl(tmp_path / "rows.jsonl", rows))).tables()
    assert piece.to_pylist() == rows


def test_a_dictionary_of_texts_is_read_as_texts(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    table = pa.table(
        {"prompt": pa.array(["a", "b", "a"]).dictionary_encode(), "k": pa.array(["x"] * 3).dictionary_encode()}
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    prompts = open_prompts(str(tmp_path / "rows.parquet"))
    assert [row for _, piece in prompts.tables() for row in piece.to_pylist()] == table.to_pylist()
    assert prompts.survey().schema.types == [pa.string(), pa.string()]


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes(b"prompt,k\na,x\nb,\xff\xfe\n")
    with pytest.raises(InputError, match=r"rows\.csv: row 3: k is not UTF-8 text"):
        open_prompts(str(file)).survey()


def test_nothing_is_no_data_set(tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("prompt,k\n")
    with pytest.raises(InputError, match="holds no prompts"):
        open_prompts(str(tmp_path / "none.csv")).survey()
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match="is empty"):
        open_prompts(str(tmp_path / "empty.jsonl"))
    (tmp_path / "split.jsonl").write_text(json.dumps({"prmopt": "a"}))
    with pytest.raises(InputError, match=r"no column 'prompt'.*did you mean 'prmopt'"):
        open_prompts(str(tmp_path / "split.jsonl"))
