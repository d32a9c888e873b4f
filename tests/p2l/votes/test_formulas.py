"""Votes of strangers in CSV: a spreadsheet runs nothing of them, and they are read as they were."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from p2l.common.spreadsheets import is_formula
from p2l.evaluation.references import read_arena
from p2l.leaderboard.report.files import write_frame
from p2l.votes import read_votes
from p2l.votes.writing import write_votes

NAMES = ("@cf/meta/llama", '=HYPERLINK("http://127.0.0.1/")', "-x", "'=x", "plain")
PROMPTS = ("=1+1", "- a list\n- of points", "@you: hi", "+1", "'-5 degrees", "\tindented", "-5", "plain", '["=x"]')


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.string())])
def test_votes_in_csv_hold_no_formula_and_come_back(tmp_path: Path, kind: Any) -> None:
    prompts: list[Any] = [*PROMPTS] if kind == pa.string() else [[prompt, "=2"] for prompt in PROMPTS]
    rows = [
        {
            "prompt": prompt,
            "model_a": NAMES[n % 5],
            "model_b": NAMES[(n + 1) % 5],
            "winner": "tie",
            "note": f"={n}",
            "=head": "x",
        }
        for n, prompt in enumerate(prompts)
    ]
    schema = pa.schema({"prompt": kind} | dict.fromkeys(("model_a", "model_b", "winner", "note", "=head"), pa.string()))
    write_votes([pa.RecordBatch.from_pylist(rows, schema)], schema, tmp_path / "votes.csv")
    with (tmp_path / "votes.csv").open(newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not any(is_formula(cell) for cell in cells if not cell.startswith("'"))
    read = [row for batch in read_votes(tmp_path / "votes.csv") for row in batch.batch.to_pylist()]
    assert [(row["model_a"], row["model_b"], row["note"]) for row in read] == [
        (row["model_a"], row["model_b"], row["note"]) for row in rows
    ]
    turns = [row["prompt"] if isinstance(row["prompt"], list) else [row["prompt"]] for row in read]
    expected = [prompt if isinstance(prompt, list) else [prompt] for prompt in prompts]
    assert turns == [["=x"] if prompt == ['["=x"]'] else prompt for prompt in expected]


def test_a_leaderboard_file_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "board.csv"
    rows = [{"model_name": name, "category": "full", "rating": -5.5 - n} for n, name in enumerate(NAMES)]
    write_frame(pd.DataFrame(rows), path, "csv")
    with path.open(newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert "-5.5" in cells  # a number stays one
    assert not any(is_formula(cell) for cell in cells if not cell.startswith("'"))
    assert read_arena(str(path)).ratings == {"full": {row["model_name"]: row["rating"] for row in rows}}
