"""Flat tables are converted a batch at a time: the result is that of reading them row by row, whatever cells hold."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from p2l.common.errors import VoteError
from p2l.votes.importing import ImportOptions, import_votes
from p2l.votes.kinds.flat import FlatBatch, OddBatchError

ROWS = 400
TEXTS = (
    *(
        "Name a colour",
        "two\nlines",
        "",
        "  ",
        "[see below]",
        "[1, 2]",
        '["Hi"]',
        '["Hi", "and then?"]',
        '["Hi", null]',
    ),
    *('["Hi \\ud83d"]', '["\\u00e9t\\u00e9 \U0001f600"]', "['Hi', 'Yo']", '["a\nb"]', "[]", "{}", '{"messages": []}'),
    *('["a"] , "x": ["b"]', ' ["blank before"] ', '[["nested"]]', '["a", 3]', '[{"role": "user", "content": "Hi"}]'),
)
ANSWERS = (
    *TEXTS,
    *(
        "# Head# no\n## Head\n#none",
        "- one\n- two\n  3. three\n-none",
        "**bold** and __bold__ and ** not **",
        "~~~\n# x\n~~~",
    ),
    *(
        "```py\n# no head\n```\n# head\n",
        "``` in a line",
        '["```\\n- x\\n```", "- one"]',
        "#\u00a0no\n# \u00a0x",
        "\u2003- wide",
    ),
)
NAMES = ("ant", "bee", "ant ", "\u200bant", "", " ", "7")
GRADES = ("1", "0", "true", "FALSE", "C", "I", "73%", "0.25", "", " 1 ", "good", "nan", "1e400", "-2")
MARKS = ("1", "0", "0", "0", "1.0", "True", "", "2")


def lmsys(rng: random.Random) -> dict[str, str]:
    marks = {f"winner_{outcome}": rng.choice(MARKS) for outcome in ("model_a", "model_b", "tie")}
    answers = {f"response_{side}": rng.choice(ANSWERS) for side in "ab"}
    names = {f"model_{side}": rng.choice(NAMES) for side in "ab"}
    return {"id": str(rng.randrange(99)), **names, "prompt": rng.choice(TEXTS), **answers, **marks}


def wsdm(rng: random.Random) -> dict[str, str]:
    row = lmsys(rng)
    words = ("model_a", "model_b", "tie", "A", " Both Bad ", "", "ant")
    kept = {name: row[name] for name in ("id", "prompt", "response_a", "response_b")}
    return kept | {
        "winner": rng.choice(words),
        "model_a": "ant",
        "model_b": "bee",
        "language": rng.choice(("French", "")),
    }


def score_table(rng: random.Random) -> dict[str, str]:
    return {
        "task_id": rng.choice(("t1", "t2", "")),
        "id": rng.choice(("1", "")),
        "question": rng.choice(TEXTS),
        "model": rng.choice(NAMES),
        "correct": rng.choice(GRADES),
        "passed": rng.choice(("", "1", "no")),
        "cost": rng.choice(("", "0.001", "2", "free")),
        "output_chars": rng.choice(("", "12")),
        "subject": rng.choice(("sums", "")),
    }


def wide(rng: random.Random) -> dict[str, str]:
    return {
        "question": rng.choice(TEXTS),
        "ant": rng.choice(("1", "0.5", "")),
        "bee": rng.choice(("0", "1", "true", "")),
    }


TABLES = (lmsys, wsdm, score_table, wide)


def imported(path: Path) -> tuple[list[dict[str, Any]], int, tuple[str, ...], str]:
    output = path.parent / "out.parquet"
    done = import_votes([path], output, ImportOptions(drop_bad=True))
    return pq.read_table(output).to_pylist(), done.dropped, done.notes, done.about


def fault(path: Path) -> str:
    with pytest.raises(VoteError) as refused:
        import_votes([path], path.parent / "out.parquet")
    return str(refused.value)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[FlatBatch]:
    """Return a list that each batch is added to which is read from now on."""
    batches: list[FlatBatch] = []

    class Watched(FlatBatch):
        def __init__(self, batch: Any) -> None:
            super().__init__(batch)
            batches.append(self)

    monkeypatch.setattr("p2l.votes.kinds.converting.FlatBatch", Watched)
    return batches


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise OddBatchError

    monkeypatch.setattr(FlatBatch, "first", refuse)


def write_csv(path: Path, rows: Sequence[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_lines(path: Path, rows: Sequence[dict[str, str]]) -> None:
    lines = [json.dumps({name: cell or None for name, cell in row.items()}) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_parquet(path: Path, rows: Sequence[dict[str, str]]) -> None:
    pq.write_table(pa.Table.from_pylist([{name: cell or None for name, cell in row.items()} for row in rows]), path)


@pytest.mark.parametrize("write", [write_csv, write_lines, write_parquet])
@pytest.mark.parametrize("row_of", TABLES)
def test_a_batch_becomes_what_its_rows_become(
    row_of: Callable[[random.Random], dict[str, str]],
    write: Callable[[Path, Sequence[dict[str, str]]], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(7)
    ending = {write_csv: "csv", write_lines: "jsonl", write_parquet: "parquet"}[write]
    path = tmp_path / f"rows.{ending}"
    # The first row is one of the tool's own, by which the kind is recognised.
    clean = {"prompt": "Hi", "question": "Hi", "ant": "1", "bee": "0", "model": "ant", "correct": "1", "winner": "tie"}
    clean |= {"winner_model_a": "1", "winner_model_b": "0", "winner_tie": "0", "model_a": "ant", "model_b": "bee"}
    rows = [row_of(rng) for _ in range(ROWS)]
    rows[0] |= {name: cell for name, cell in clean.items() if name in rows[0]}
    write(path, rows)
    batches = watched(monkeypatch)
    by_batch, refused = imported(path), fault(path)
    assert 0 < batches[0].is_odd.sum() < ROWS
    assert len(by_batch[0]) > ROWS // 20
    assert by_batch[1] > 0
    one_by_one(monkeypatch)
    assert imported(path) == by_batch
    assert fault(path) == refused


def test_an_empty_cell_among_lists_is_no_answer(tmp_path: Path) -> None:
    lists = {"prompt": '["Hi"]', "response_a": '["Yo"]', "response_b": '["Hey"]'}
    marks = {"model_a": "ant", "model_b": "bee", "winner_model_a": "1", "winner_model_b": "0", "winner_tie": "0"}
    rows = [lists | marks, lists | marks | {"response_a": ""}, lists | marks | {"prompt": ""}]
    write_csv(tmp_path / "v.csv", rows)
    assert "row 4: prompt is missing" in fault(tmp_path / "v.csv")
    write_csv(tmp_path / "v.csv", rows[:2])
    votes, *_ = imported(tmp_path / "v.csv")
    assert [(vote["prompt"], vote["length_a"], vote["length_b"]) for vote in votes] == [
        (["Hi"], 2, 3),
        (["Hi"], None, 3),
    ]


def test_numbers_and_truths_of_a_typed_table_are_grades(tmp_path: Path) -> None:
    columns = {
        "question_id": pa.array([1, 2, 3, 4]),
        "model": pa.array(["ant", "bee", "ant", "bee"]).dictionary_encode(),
        "score": pa.array([True, False, None, True]),
        "acc": pa.array([None, None, 0.25, None], pa.float64()),
        "cost": pa.array([0.5, None, 2.0, 1.0]),
    }
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(columns), path)
    rows, dropped, _, _ = imported(path)
    assert [(row["question_id"], row["model"], row["score"]) for row in rows] == [
        ("1", "ant", 1.0),
        ("2", "bee", 0.0),
        ("3", "ant", 0.25),
        ("4", "bee", 1.0),
    ]
    assert [row["cost"] for row in rows] == [0.5, None, 2.0, 1.0]
    assert dropped == 0


def test_a_faulty_row_far_down_a_table_is_named_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    lines = [f"q{n},ant,{n % 2}\n" for n in range(25_000)]
    lines[21_234] = "q,ant,good\n"
    path.write_text("question,model,score\n" + "".join(lines))
    assert fault(path).startswith(f"{path}: row 21236: score 'good' is neither a number nor a verdict")
    assert import_votes([path], tmp_path / "out.parquet", drop_bad=True).rows == 24_999
