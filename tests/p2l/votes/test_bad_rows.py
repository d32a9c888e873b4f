"""Rows that cannot be read: `p2l votes import` names the first, and with --drop-bad leaves them out and counts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from p2l.batch_inference.prompts import open_prompts
from p2l.commands.votes import main
from p2l.common.errors import VoteError
from p2l.votes import open_votes
from tests.p2l.votes_helpers import vote


def lines(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def imported(path: Path, *flags: str) -> list[dict[str, Any]]:
    output = path.with_name("output.parquet")
    assert main(["import", str(path), "--output", str(output), "--quiet", *flags]) == 0
    rows: list[dict[str, Any]] = pq.read_table(output).to_pylist()
    return rows


GOOD = lines(vote(0), vote(1))
CSV = b"prompt,model_a,model_b,winner\n"
GRADES = b"question,model,score\n"
FILES: dict[str, tuple[str, bytes, str, int, int]] = {  # name, content, what is said, good rows, bad rows
    "list among names": ("v.jsonl", lines(vote(0), vote(1, model_a=["x"])), "line 2: model_a is not text", 1, 1),
    "number among names": ("v.jsonl", lines(vote(0), vote(1, model_b=3)), "line 2: model_b is not text", 1, 1),
    "list among graded": (
        "s.jsonl",
        lines({"question": "Q", "model": "ant", "score": 1}, {"question": "Q", "model": ["x"], "score": 1}),
        "line 2: model is not text",
        1,
        1,
    ),
    "torn line": ("v.jsonl", GOOD + b'{"prompt": "Hi", "mod\n' + GOOD, "line 3: is not JSON", 4, 1),
    "torn first line": ("v.jsonl", b'{"prompt": "Hi", "mod\n' + GOOD, "line 1: is not JSON", 2, 1),
    "torn last line": ("v.jsonl", GOOD + b'\n{"prompt": "Hi", "mod', "line 4: is not JSON", 2, 1),
    "torn graded line": (
        "s.jsonl",
        b'{"question"\n' + lines({"question": "Q", "model": "ant", "score": 1}),
        "line 1: is not JSON",
        1,
        1,
    ),
    "list for a line": ("v.jsonl", GOOD + b"[1]\n", "line 3: holds a list", 2, 1),
    "bytes in CSV": ("v.csv", CSV + b"Hi,ant,bee,tie\nH\xff,ant,bee,tie\n", "row 3: prompt is not UTF-8", 1, 1),
    "bytes in a name": ("v.csv", CSV + b"Hi,\xff,bee,tie\nHi,ant,bee,tie\n", "row 2: model_a is not UTF-8", 1, 1),
    "bytes in a model": ("s.csv", GRADES + b"Q,ant,1\nQ,\xff,1\n", "row 3: model is not UTF-8", 1, 1),
    "bytes in JSON": (
        "v.jsonl",
        GOOD + GOOD.replace(b"question 1", b"question \xff"),
        "line 4: prompt is not UTF-8",
        3,
        1,
    ),
    "bytes in a key": ("v.jsonl", GOOD + GOOD.replace(b'"prompt"', b'"prom\xffpt"', 1), "line 3: is not UTF-8", 3, 1),
    "bytes in a key of a list": (
        "v.jsonl",
        GOOD + GOOD.replace(b"{", b'{"facts": [{"\x81": 1}], ', 1),
        "line 3: is not UTF-8",
        3,
        1,
    ),
    "NUL in a question": ("s.csv", GRADES + b"Q,ant,1\nQ\0,bee,1\n", "row 3: prompt holds a NUL character", 1, 1),
    "invisible name": ("s.csv", GRADES + "Q,ant,1\nQ,\u200b,1\n".encode(), "row 3: model has no name", 1, 1),
}


@pytest.mark.parametrize("case", FILES)
def test_a_bad_row_is_named_or_dropped_and_counted(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, content, says, good, bad = FILES[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(VoteError, match=rf"{name}: .*{says}.*; add --drop-bad"):
        imported(tmp_path / name)
    assert len(imported(tmp_path / name, "--drop-bad")) == good
    is_graded = content.startswith(GRADES) or b'"score"' in content
    why = "cannot be read" if is_graded else "is not a vote"
    assert f"({bad} row that {why} left out)" in capsys.readouterr().out


@pytest.mark.parametrize("change", [{"model_a": 3}, {"winner": 1}, {"prompt": 7}, {"prompt": {"text": "Hi"}}])
def test_a_column_of_another_type_is_a_bad_row_each(change: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(vote(0, **change), vote(1, **change)))
    (tmp_path / "b.jsonl").write_bytes(GOOD)
    pattern = str(tmp_path / "?.jsonl")
    output = str(tmp_path / "o.parquet")
    with pytest.raises(VoteError, match=r"a\.jsonl: line 1: .* holds .*; it must hold text"):
        main(["import", pattern, "--output", output, "--quiet"])
    assert main(["import", pattern, "--output", output, "--quiet", "--drop-bad"]) == 0
    assert pq.read_table(output).num_rows == 2
    with pytest.raises(VoteError, match="holds no votes"):
        imported(tmp_path / "a.jsonl", "--drop-bad")


PAIR = {"prompt": "Hi", "chosen": "a", "rejected": "b", "chosen_model": "ant", "rejected_model": "bee"}
LOOSE: dict[str, tuple[list[dict[str, Any]], tuple[str, ...], str]] = {  # rows, flags, what is said
    "renamed": (
        [{"q": "Hi", "left": left, "right": "bee", "vote": "tie"} for left in ("ant", ["x"])],
        ("--columns", "prompt=q,model_a=left,model_b=right,winner=vote"),
        "model_a is not text",
    ),
    "renamed number": (
        [{"q": "Hi", "left": left, "right": "bee", "vote": "tie"} for left in ("ant", 3)],
        ("--columns", "prompt=q,model_a=left,model_b=right,winner=vote"),
        "model_a is not text",
    ),
    "of a kind": ([PAIR, PAIR | {"chosen_model": ["x"]}], (), "chosen_model is not text"),
    "of a flat table": (
        [{"question": "Q", "model_name": name, "score": 1} for name in ("ant", {"name": "x"})],
        (),
        "model is not text",
    ),
}


@pytest.mark.parametrize("case", LOOSE)
def test_a_list_among_texts_is_no_name_in_whatever_column(case: str, tmp_path: Path) -> None:
    rows, flags, says = LOOSE[case]
    (tmp_path / "v.jsonl").write_bytes(lines(*rows))
    with pytest.raises(VoteError, match=rf"v\.jsonl: line 2: {says}; add --drop-bad"):
        imported(tmp_path / "v.jsonl", *flags)
    assert len(imported(tmp_path / "v.jsonl", *flags, "--drop-bad")) == 1


def test_scores_of_several_types_are_what_they_are(tmp_path: Path) -> None:
    rows = [{"question": f"Q{n}", "model": "ant", "score": score} for n, score in enumerate((1, "0", True, "50%"))]
    (tmp_path / "s.jsonl").write_bytes(lines(*rows))
    assert [row["score"] for row in imported(tmp_path / "s.jsonl")] == [1.0, 0.0, 1.0, 0.5]


@pytest.mark.parametrize("content", [b'{"prompt": "Hi", "mod\n{"prompt": \n', b"[1]\n[2]\n"])
@pytest.mark.parametrize("flags", [(), ("--drop-bad",)])
def test_a_file_of_torn_lines_alone_is_refused_with_what_to_do(
    content: bytes, flags: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "b.jsonl").write_bytes(GOOD)
    says = r"a\.jsonl: none of its first lines is an object \(line 1: .*\), so --drop-bad would keep nothing; leave the"
    with pytest.raises(VoteError, match=says):
        main(["import", str(tmp_path / "?.jsonl"), "--output", str(tmp_path / "o.parquet"), "--quiet", *flags])


def test_what_reads_prompts_alone_refuses_a_torn_line(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_bytes(GOOD + b'{"prompt": "Hi\n')
    with pytest.raises(VoteError, match=r"p\.jsonl: line 3: is not JSON"):
        list(open_prompts(str(tmp_path / "p.jsonl")).tables())


def test_models_of_grades_are_one_by_all_their_spellings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.csv").write_text(
        "question,model,score\nP,ant,1\nQ,ant ,1\nR,\u200bant,0\nR,bee,1\n", encoding="utf-8"
    )
    assert {row["model"] for row in imported(tmp_path / "s.csv")} == {"ant", "bee"}
    said = capsys.readouterr().out
    assert "2 names of models read without invisible letters and blank ends: 'ant ' -> 'ant'" in said
    assert "4 graded answers, 2 models" in said
    (tmp_path / "wide.csv").write_text("question,ant ,\u200bbee\nP,1,0\nQ,0,1\n", encoding="utf-8")
    assert {row["model"] for row in imported(tmp_path / "wide.csv")} == {"ant", "bee"}


def test_columns_are_named_for_kinds_too(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text(
        "prompt,response,llm,helpfulness,correctness,coherence,complexity,verbosity\n"
        "Name a colour,Blue,ant,4,4,4,1,1\nName a colour,Cow,bee,0,1,4,1,1\n"
    )
    rows = imported(tmp_path / "ratings.csv", "--columns", "model=llm,score=helpfulness")
    assert [(row["model"], row["score"]) for row in rows] == [("ant", 4.0), ("bee", 0.0)]


def test_lists_of_nulls_alone_are_read(tmp_path: Path) -> None:
    (tmp_path / "v.jsonl").write_bytes(lines(*(vote(number, model_version=[None, None]) for number in range(3))))
    with open_votes(tmp_path / "v.jsonl") as votes:
        assert len(votes) == 3
    assert [row["model_version"] for row in imported(tmp_path / "v.jsonl")] == [[None, None]] * 3


def test_votes_of_grades_leave_out_what_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grades = [{"question": "Q", "model": model, "score": score} for model, score in (("ant", 1), ("bee", 0))]
    (tmp_path / "s.jsonl").write_bytes(lines(*grades) + b'{"question"\n')
    with pytest.raises(VoteError, match=r"s\.jsonl: line 3: is not JSON"):
        imported(tmp_path / "s.jsonl", "--as", "votes")
    assert len(imported(tmp_path / "s.jsonl", "--as", "votes", "--drop-bad")) == 1
    assert "left out: 1 record (cannot be read)" in capsys.readouterr().out
