"""Files that are nearly what their tools write: each ends in one line that says what is wrong, and exit code 2."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from p2l.commands.votes import main
from p2l.common.cli import run
from p2l.votes.kinds import KINDS


def zipped(**entries: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in entries.items():
            # A fixed date, since bytes that differ between runs would be other test cases.
            entry = zipfile.ZipInfo(name.replace("__", "/").replace("_json", ".json"), (2026, 1, 1, 0, 0, 0))
            archive.writestr(entry, text)
    return buffer.getvalue()


def sample(kind: str, **changes: Any) -> str:
    """Return the sample of a kind with other values of some fields; a field that is to be `...` is left out."""
    row = json.loads(KINDS[kind].sample.replace("\n...", "").removeprefix("a .eval file, or "))
    row = row[0] if isinstance(row, list) else row
    return json.dumps({name: value for name, value in (row | changes).items() if value is not ...}) + "\n"


VOTES = "prompt,model_a,model_b,winner\n"
KAGGLE = "id,model_a,model_b,prompt,response_a,response_b,winner_model_a,winner_model_b,winner_tie\n"
LOG = zipped(header_json='{"eval": {"model": "ant"}}', samples__1_json="{")
PACKED = gzip.compress(f"{VOTES}a,b,c,tie\n".encode() * 1000)
NO_METRIC = sample("lm-eval", metrics=..., exact_match=...)

_LOCKED = bytearray(zipped(v="x"))
_LOCKED[6] |= 1  # the mark of an encrypted file, before it and in the list of files
_LOCKED[_LOCKED.find(b"PK\x01\x02") + 8] |= 1
ENCRYPTED = bytes(_LOCKED)

FILES: list[tuple[str, str | bytes, str]] = [
    ("empty.csv", "", "is empty"),
    ("bare.csv", "\n\n", "row 1: leaves columns without a name"),
    ("nothing.json", "[]", "holds no rows"),
    ("numbers.json", "[1, 2]", "row 1 is not an object"),
    ("cut.json", '[{"model_a": "x", ', "is not JSON"),
    ("lists.jsonl", "[1]\n[2]\n", "line 1: holds a list"),
    ("deep.json", "[" * 5000 + "]" * 5000, "nested deeper than 200 levels"),
    ("deep.jsonl", '{"a": ' + "[" * 500 + "]" * 500 + "}\n", "line 1: is not JSON: is nested deeper"),
    ("votes.pkl", pickle.dumps({"a": 1}), "is a pickle, which runs whatever code it holds"),
    ("cut.csv.gz", PACKED[:-20], "cannot be unpacked as gzip"),
    ("bad.csv.zst", b"\x28\xb5\x2f\xfd\0\0", "cannot be unpacked as Zstandard"),
    ("bad.csv.bz2", b"BZh9garbage", "cannot be unpacked as bzip2"),
    ("bad.csv.xz", b"\xfd7zXZ\0garbage", "cannot be unpacked as xz"),
    ("two.zip", zipped(a="1", b="2"), "is a zip of 2 files (a, b)"),
    ("nothing.zip", zipped(), "is a zip that holds no file"),
    ("locked.zip", ENCRYPTED, "cannot be unpacked as zip: File 'v' is encrypted"),
    ("empty.csv.gz", gzip.compress(b"", mtime=0), "is empty when unpacked"),
    ("v.avro", b"Obj\x01" + b"x" * 100, "is an Avro file; write it as Parquet"),
    ("v.xml", "<?xml version='1.0'?><a/>", "is XML, and no table"),
    ("cut.zip", zipped(a="1", b="2")[:30], "cannot be unpacked as zip"),
    ("page.csv", "<!DOCTYPE html><html><body>Not found</body></html>", "is a page of HTML"),
    ("pointer.csv", "version https://git-lfs.github.com/spec/v1\noid sha256:a\n", "`git lfs pull`"),
    ("base.db", b"SQLite format 3\0" + b"x" * 100, "is a database of SQLite; write its table as CSV"),
    ("v.feather", b"ARROW1\0\0" + b"x" * 100, "is an Arrow (Feather) file; write it as Parquet"),
    ("v.xlsx", zipped(**{"[Content_Types].xml": "", "xl__workbook.xml": ""}), "is a workbook or another document"),
    ("v.tar.gz", gzip.compress(b"v.csv".ljust(257, b"\0") + b"ustar" + b"\0" * 300), "is a tar archive; unpack it"),
    ("v.csv.gz", gzip.compress(gzip.compress(gzip.compress(VOTES.encode()))), "is packed more than twice"),
    ("sep.csv", "sep=;\nprompt;model_a;model_b;winner\n", "begins with a line for Excel"),
    ("blank.csv", "\n\nprompt,model_a,model_b,winner\n", "row 1: leaves columns without a name"),
    ("title.csv", f"My votes,,,\n{VOTES}a,b,c,tie\n", "row 1: leaves columns without a name"),
    ("long.csv", VOTES + "x" * (20 << 20) + ",a,b,tie\n", "row 2: prompt is longer than 16 MiB; leave it out, or"),
    ("longer.csv", VOTES + "x" * (40 << 20) + ",a,b,tie\n", "row 2: is longer than 16 MiB; cut its prompt, or close"),
    ("turns.csv", f"{KAGGLE}1,a,b,[],x,y,1,0,0\n", "row 2: prompt has no turns"),
    ("nulls.csv", f"{KAGGLE}1,a,b,[null],x,y,1,0,0\n", "row 2: turn 1 of prompt is null"),
    ("nan.csv", f"{VOTES}\"['Hi', nan]\",a,b,tie\n", "row 2: turn 2 of prompt is null"),
    ("feedback.jsonl", KINDS["langsmith-feedback"].sample.replace("\n", ""), "names neither models nor inputs"),
    ("bytes.bin", bytes(range(256)) * 10, "is neither text nor a file that is known"),
    ("half.csv", b"\xff\xfea\0b\0\0\xd8c", "begins like UTF-16 text, and is not"),
    ("pointer.parquet", "version https://git-lfs.github.com/spec/v1\n", "`git lfs pull`"),
    ("model.eval", zipped(header_json="{}"), "names no model (eval.model)"),
    ("sample.eval", LOG, "cannot be read as a log of Inspect"),
    ("cut.eval", b"PK\x03\x04" + b"0" * 100, "cannot be unpacked as zip"),
    ("model.json", sample("inspect", eval={}), "names no model (eval.model)"),
    ("numbers.json", sample("inspect", samples=[3]), "sample 1: is not an object"),
    ("number.json", sample("inspect", samples=3), "is not as Inspect logs are"),
    ("words.json", sample("inspect", samples=[{"id": 1, "input": "x", "scores": {"s": {"value": "meh"}}}]), "'meh'"),
    ("two.csv", f"{KAGGLE}1,a,b,Hi,x,y,1,1,0\n", "row 2: exactly one outcome must be 1"),
    (
        "none.csv",
        f"{KAGGLE.replace('model_b,', '', 1)}1,a,Hi,x,y,1,0,0\n",
        "LMSYS table of votes, but has no 'model_b'",
    ),
    ("null.csv", f'{KAGGLE}1,a,b,"[""Hi"", null]",x,y,1,0,0\n', "row 2: turn 2 of prompt is null"),
    ("side.jsonl", sample("mt-bench", model_b=...), "looks like MT-bench judgements, but has no 'model_b'"),
    ("talk.jsonl", sample("mt-bench", conversation_a=3), "line 1: conversation_a must be a list"),
    ("word.jsonl", sample("mt-bench", winner="ant"), "line 1: winner 'ant' is no outcome"),
    ("states.jsonl", sample("fastchat-log", states=[1, 2]), "line 1: a field is missing or of another type"),
    ("games.jsonl", sample("arena-hard", games="x"), "line 1: games must be a list"),
    ("verdict.jsonl", sample("arena-hard", games=[{"score": "A is best"}]), "is no verdict such as 'A>B'"),
    (
        "generator.json",
        f"[{sample('alpaca-eval', generator_2=...)}]",
        "AlpacaEval annotations, but has no 'generator_2'",
    ),
    ("seven.json", f"[{sample('alpaca-eval', preference=7)}]", "row 1: preference is 7"),
    ("undecided.json", f"[{sample('alpaca-eval', preference=None)}]", "holds no votes: 1 record (no preference)"),
    ("nameless.jsonl", sample("chosen-rejected", chosen_model=...), "does not say which models gave the answers"),
    ("number.jsonl", sample("chosen-rejected", chosen_model=3), "line 1: chosen_model is not text"),
    ("ratings.jsonl", sample("ultra-feedback", completions="x"), "line 1: completions must be a list"),
    ("ranks.jsonl", sample("nectar", answers=[1]), "line 1: answers must be a list"),
    ("chosen.jsonl", sample("comparia", chosen_model_name="zed"), "'zed' is neither model_a_name nor model_b_name"),
    ("time.jsonl", sample("comparia", timestamp="yesterday"), "line 1: time 'yesterday' cannot be read"),
    ("label.jsonl", sample("judge-bench", label="C"), "line 1: label must be A>B or B>A"),
    ("word.csv", "question,model,score\nq,a,good\n", "row 2: score 'good' is neither a number nor a verdict"),
    ("model.csv", "question,model,score\nq,,1\n", "row 2: model is missing"),
    ("ungraded.csv", "question,model,score\nq,a,\n", "holds no graded answers: 1 record (no score)"),
    ("one.csv", "question,ant\nq,1\n", "no column 'model_a'; columns: question, ant"),
    ("results.json", sample("promptfoo", results={"version": 3}), "has no list results.results"),
    ("result.json", sample("promptfoo", results={"results": [3]}), "result 1 is not an object"),
    ("deepeval.json", sample("deepeval", hyperparameters=...), "names no model; DeepEval keeps it where"),
    ("events.jsonl", KINDS["openai-evals-log"].sample + "\n{\n", "line 3: is not JSON"),
    ("scores.csv", "id,traceId,name,value\n1,t,c,1\n", "Langfuse's table of scores: names neither models nor inputs"),
    ("swe.json", sample("swe-bench", resolved_ids=3), "resolved_ids must be a list"),
    ("records.json", sample("llm-router-bench", records=3), "records must be a list"),
    ("arguments.jsonl", sample("lm-eval", arguments=3), "line 1: arguments hold no text"),
    ("metric.jsonl", NO_METRIC, "holds no graded answers: 1 record (no metric)"),
    ("ragged.csv", f"{VOTES}a,b\n", "Expected 4 columns, got 2"),
    ("twice.csv", "prompt,model_a,model_a,winner\na,b,c,tie\n", "column 'model_a' occurs twice"),
    ("half.csv", f'{VOTES}"[""Hi \\ud83d"", ""x""]",a,b,tie\n', "row 2: prompt holds half of a surrogate pair"),
    ("half.jsonl", '{"model_a": "\\ud83d", "model_b": "b", "winner": "tie"}\n', "model_a holds half of a surrogate"),
    ("board.csv", "model,rating,votes\nant,1000,3\n", "holds results and neither votes nor answers"),
    ("near.csv", "prompt,model_a,model_b,winer\na,b,c,tie\n", "no column 'winner' (did you mean 'winer'?)"),
    ("mislead.csv", "prompt,model_a,model_b,winnings\na,b,c,300\n", "no column 'winner'; columns: prompt"),
]


def one_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        run(main, argv)
    assert caught.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    assert len(lines) == 1
    return lines[0]


# Packed content holds the time of packing: as part of a test's name it would differ between processes of tests.
@pytest.mark.parametrize(("name", "content", "says"), FILES, ids=[f"{name}-{says}" for name, _, says in FILES])
def test_a_malformed_file_ends_in_one_line(
    name: str, content: str | bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    error = one_line(["import", str(tmp_path / name), "--output", str(tmp_path / "o.parquet"), "--quiet"], capsys)
    assert says in error
    assert str(tmp_path / name) in error
    assert not (tmp_path / "o.parquet").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_that_a_file_is_not_ends_in_one_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in (("v.csv", "first,second\na,b\n"), ("v.json", '[{"a": 1}]'), ("w.json", '{"a": 1}')):
        (tmp_path / name).write_text(content)
        output = str(tmp_path / "o.parquet")
        one_line(["import", str(tmp_path / name), "--kind", kind, "--output", output, "--quiet"], capsys)


def test_folders_and_paths_that_hold_nothing_end_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folder = tmp_path / "helm" / "run"
    run_folder.mkdir(parents=True)
    for name, content in (("run_spec", '{"adapter_spec": 3}'), ("scenario_state", "{}"), ("per_instance_stats", "[3]")):
        (run_folder / f"{name}.json").write_text(content)
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    (mixed / "a.csv").write_text(f"{VOTES}a,b,c,tie\n")
    (mixed / "b.csv").write_text("question,model,score\nq,a,1\n")
    (tmp_path / "bare").mkdir()
    for path, says in (
        (tmp_path / "helm", "is not as HELM runs are"),
        (mixed, "holds votes and"),
        (tmp_path / "bare", "is an empty folder"),
        (tmp_path / "none.csv", "no such file"),
        (tmp_path / "none*.csv", "no file matches"),
    ):
        assert says in one_line(["import", str(path), "--output", str(tmp_path / "o.parquet"), "--quiet"], capsys)
