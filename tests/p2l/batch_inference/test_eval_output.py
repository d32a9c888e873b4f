import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from p2l.batch_inference.output import OutputFiles, PartFolder, as_batch, publish_model_list, write_output
from p2l.batch_inference.prompts import ROWS, open_prompts
from p2l.common.cli import progress
from p2l.inference import Prediction


def written(
    tmp_path: Path,
    source: Any,
    coefs: Any,
    *,
    eta: Any = None,
    familiarity: Any = None,
    old_chunks: Sequence[int] = (),
) -> OutputFiles:
    """Both files of a data set (its path, or a table) of which the model said this; an older version `old_chunks`."""
    path = source if isinstance(source, Path) else tmp_path / "rows.parquet"
    if path is not source:
        pq.write_table(source, path)
    data = open_prompts(str(path))
    parts = PartFolder(tmp_path / "parts")
    parts.folder.mkdir()
    said = as_batch(Prediction(coefs, eta, None, np.arange(len(coefs)) % 2 == 1, familiarity=familiarity))
    chunks = {chunk: said.slice(chunk * ROWS, ROWS) for chunk in range(-(-len(coefs) // ROWS))}
    if old_chunks:
        names = [name for name in said.schema.names if name != "familiarity"]
        parts.write({chunk: chunks.pop(chunk).select(names) for chunk in old_chunks})
    parts.write(chunks)
    parts.refresh()
    output = OutputFiles(tmp_path / "out", "model", ("json", "parquet"))
    output.folder.mkdir()
    survey = data.survey()
    with progress(description="write", quiet=True) as bar:
        write_output(output, data, survey, parts, {"rows": survey.rows, "model": "m"}, bar)
    return output


def test_rows_say_how_familiar_their_prompt_is(tmp_path: Path) -> None:
    count, shares = ROWS + 2, np.linspace(0, 1, ROWS + 2, dtype=np.float32)
    table = pa.table({"prompt": ["a"] * count})
    output = written(tmp_path, table, np.ones((count, 2), np.float32), familiarity=shares)
    rows = json.loads(output.files[0].read_text())
    assert list(rows[0]) == ["prompt", "coefs", "eta", "gamma", "truncated", "familiarity"]
    assert np.array_equal(np.array([row["familiarity"] for row in rows], np.float32), shares)
    assert np.array_equal(pq.read_table(output.files[1])["familiarity"].to_numpy(), shares)


def test_a_run_that_an_older_version_began_has_no_familiarity_in_its_chunks(tmp_path: Path) -> None:
    shares = np.full(ROWS + 2, 0.5, np.float32)
    table, coefs = pa.table({"prompt": ["a"] * len(shares)}), np.ones((len(shares), 2), np.float32)
    for name, old in (("first", [0]), ("last", [1])):
        folder = tmp_path / name
        folder.mkdir()
        output = written(folder, table, coefs, familiarity=shares, old_chunks=old)
        rows = json.loads(output.files[0].read_text())
        assert [place for place, row in enumerate(rows) if "familiarity" not in row] == (
            list(range(ROWS)) if old == [0] else [ROWS, ROWS + 1]
        )
        assert len(pq.read_table(output.files[1])) == len(rows)


def test_json_is_laid_out_as_documented(tmp_path: Path) -> None:
    count = ROWS + 3
    table = pa.table({"prompt": ['a\nb "é" 中'] * count, "n": range(count)})
    coefs = np.random.default_rng(0).uniform(0.1, 9, (count, 3)).astype(np.float32)
    output = written(tmp_path, table, coefs, eta=coefs[:, 0])
    text = output.files[0].read_text(encoding="utf-8")
    rows = json.loads(text)
    assert text == json.dumps(rows, indent=4, ensure_ascii=False) + "\n"
    assert list(rows[0]) == ["prompt", "n", "coefs", "eta", "gamma", "truncated"]
    assert [row["n"] for row in rows] == list(range(count))
    assert np.array_equal(np.array([row["coefs"] for row in rows], dtype=np.float32)[:, 0], coefs)
    assert np.array_equal(np.array([row["eta"] for row in rows], dtype=np.float32)[:, 0, 0], coefs[:, 0])
    assert [row["truncated"] for row in rows] == [n % 2 == 1 for n in range(ROWS)] + [
        n % 2 == 1 for n in (512, 513, 514)
    ]
    info = json.loads(output.info_file.read_text())
    assert info == {
        "rows": count,
        "model": "m",
        "truncated": count // 2,
        "not_finite": 0,
        "files": ["model.json", "model.parquet"],
    }


def test_what_json_does_not_have_becomes_null_or_text(tmp_path: Path) -> None:
    when = datetime(2025, 3, 4, tzinfo=timezone.utc)
    table = pa.table({"prompt": ["a", "b"], "x": [float("nan"), 1.0], "when": [when, None], "raw": [b"\x00\xff", None]})
    output = written(tmp_path, table, np.array([[np.nan, np.inf], [1e-7, 3e20]], dtype=np.float32))
    first, second = json.loads(output.files[0].read_text())
    assert (first["x"], first["raw"], first["when"]) == (None, "AP8=", "2025-03-04 00:00:00+00:00")
    assert first["coefs"] == [[None, None]]
    assert json.loads(output.info_file.read_text())["not_finite"] == 1
    assert np.array_equal(np.float32(second["coefs"][0]), np.float32([1e-7, 3e20]))
    assert pq.read_table(output.files[1])["when"].to_pylist() == [when, None]


@pytest.mark.parametrize("texts_first", [True, False])
def test_texts_and_lists_of_one_data_set_become_lists_in_parquet(tmp_path: Path, texts_first: bool) -> None:
    """Blocks of JSON lines are read one by one: prompts are texts in some and lists in others."""
    source = tmp_path / "rows.jsonl"
    filler = "x" * 9_000_000
    rows = [{"prompt": "one", "filler": filler}, {"prompt": ["two", "three"], "filler": filler, "late": 3}]
    source.write_text("".join(json.dumps(row) + "\n" for row in (rows if texts_first else rows[::-1])))
    output = written(tmp_path, source, np.ones((2, 3), dtype=np.float32))
    told = json.loads(output.files[0].read_text())
    assert [row["prompt"] for row in told] == [row["prompt"] for row in (rows if texts_first else rows[::-1])]
    table = pq.read_table(output.files[1])
    assert sorted(table["prompt"].to_pylist()) == [["one"], ["two", "three"]]
    assert sorted(table["late"].to_pylist(), key=str) == [3, None]


def test_a_model_list_grows_but_is_not_exchanged(tmp_path: Path) -> None:
    file = tmp_path / "model_list.json"
    for names, done, then in (
        (["a", "b"], True, ["a", "b"]),
        (["a", "b", "c"], True, ["a", "b", "c"]),
        (["a"], True, ["a", "b", "c"]),
        (["b", "a", "c"], False, ["a", "b", "c"]),
    ):
        assert publish_model_list(tmp_path, names) is done
        assert json.loads(file.read_text()) == then
