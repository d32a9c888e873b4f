"""Votes of a router become training data: every format, through the readers and checks that training uses."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from p2l.commands.votes import Exported, export_main, export_votes
from p2l.commands.votes import main as votes_main
from p2l.common.errors import InputError, VoteError
from p2l.votes import open_votes, read_votes
from route.keep.sqlite import prepare
from tests.conftest import Command
from tests.p2l.serving.conftest import make_model

COLUMNS = "request_id, time, key, model_a, model_b, version_a, version_b, propensity, revision, prompt, verdict, voted"
Row = tuple[Any, ...]


def shown(
    request_id: str, verdict: str, *, model_b: str | None = "bee", prompt: Sequence[str] | None = ("Which?",), at: float
) -> Row:
    text = None if prompt is None else json.dumps(prompt)
    return (request_id, at, "ops", "ant", model_b, "ant-1", None, 0.25, "r1", text, verdict, at + 9)


ROWS = [
    shown("later", "second", at=20.5, prompt=['One,\n"two"', "[three]"]),
    shown("first", "first", at=10.0),
    shown("tie", "tie", at=30.0),
    shown("bad", "both_bad", at=40.0, prompt=["Ünïcode \U0001f41d"]),
    shown("unstored", "first", at=50.0, prompt=None),
    shown("thumbs", "up", at=60.0, model_b=None),
]


@pytest.fixture
def router(tmp_path: Path) -> Path:
    """A router's database with votes of every kind, while a router has it open."""
    return database(tmp_path / "router.sqlite", ROWS)


def database(path: Path, votes: Sequence[Row]) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        prepare(connection)
        connection.executemany(f"INSERT INTO votes ({COLUMNS}) VALUES ({', '.join('?' * 12)})", votes)
        connection.commit()
    return path


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "jsonl.gz", "csv"])
def test_exported_votes_are_votes_to_train_on(router: Path, tmp_path: Path, ending: str) -> None:
    output = tmp_path / f"votes.{ending}"
    assert export_votes(router, output) == Exported(written=4, without_prompt=1, thumbs=1)
    assert votes_main(["check", str(output), "--quiet"]) == 0
    votes = [vote for batch in read_votes(output) for vote in batch.batch.to_pylist()]
    assert [vote["question_id"] for vote in votes] == ["first", "later", "tie", "bad"]
    assert [vote["winner"] for vote in votes] == ["model_a", "model_b", "tie", "tie (bothbad)"]
    assert votes[1]["prompt"] == ['One,\n"two"', "[three]"]
    assert votes[3]["prompt"] == ["Ünïcode \U0001f41d"]
    assert {(vote["model_a"], vote["model_b"]) for vote in votes} == {("ant", "bee")}
    assert [float(vote["tstamp"]) for vote in votes] == [10.0, 20.5, 30.0, 40.0]
    assert {float(vote["propensity"]) for vote in votes} == {0.25}


def test_versions_of_both_models_are_kept(router: Path, tmp_path: Path) -> None:
    export_votes(router, tmp_path / "votes.jsonl")
    vote = json.loads((tmp_path / "votes.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert vote["model_version"] == ["ant-1", None]


def test_voters_have_pseudonyms_that_only_the_database_can_trace(tmp_path: Path) -> None:
    def exported(path: Path) -> list[str]:
        output = tmp_path / "votes.jsonl"
        export_votes(path, output)
        return [json.loads(line)["voter"] for line in output.read_text(encoding="utf-8").splitlines()]

    votes = [shown(f"{number}", "first", at=float(number)) for number in range(4)]
    votes[2] = (*votes[2][:2], "shop", *votes[2][3:])
    one, two = (database(tmp_path / name, votes) for name in ("one.sqlite", "two.sqlite"))
    voters = exported(one)
    assert voters[0] == voters[1] == voters[3] != voters[2]
    assert exported(one) == voters
    assert not set(exported(two)) & set(voters)  # another secret
    assert not {"ops", "shop"} & set(voters)


def test_a_database_of_an_earlier_router_is_exported(tmp_path: Path) -> None:
    path = database(tmp_path / "old.sqlite", ROWS)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE voters")
        connection.execute("ALTER TABLE votes DROP COLUMN visitor")
    export_votes(path, tmp_path / "votes.jsonl")
    lines = (tmp_path / "votes.jsonl").read_text(encoding="utf-8").splitlines()
    assert len({json.loads(line)["voter"] for line in lines}) == 1


def test_leaderboards_need_no_prompts(router: Path, tmp_path: Path) -> None:
    output = tmp_path / "votes.parquet"
    assert export_votes(router, output, prompts=False) == Exported(written=5, without_prompt=0, thumbs=1)
    with open_votes(output, need_prompt=False) as store:
        assert len(store) == 5


def test_the_command_says_what_was_left_out(router: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export_main(["--database", str(router), "--output", str(tmp_path / "votes.csv")])
    said = capsys.readouterr().out
    assert "4 votes; left out: 1 without a stored prompt (--without-prompts writes them), 1 thumbs" in said


def test_where_there_is_nothing_to_train_on_no_file_is_written(tmp_path: Path) -> None:
    empty, thumbs = database(tmp_path / "empty.sqlite", []), database(tmp_path / "thumbs.sqlite", ROWS[-2:])
    for path, why in ((empty, "holds no votes to write"), (thumbs, "1 without a stored prompt .*, 1 thumbs")):
        with pytest.raises(InputError, match=why):
            export_votes(path, tmp_path / "votes.parquet")
    assert not (tmp_path / "votes.parquet").exists()


def test_many_votes_are_written_in_batches(tmp_path: Path) -> None:
    path = database(tmp_path / "many.sqlite", [shown(f"{n:05}", "first", at=float(n)) for n in range(25_000)])
    assert export_votes(path, tmp_path / "votes.parquet").written == 25_000


def test_a_file_that_is_no_routers_is_refused(tmp_path: Path) -> None:
    other, text = tmp_path / "other.sqlite", tmp_path / "notes.txt"
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE things (name TEXT)")
    text.write_text("no database " * 100)
    for path, why in ((other, "no such table"), (text, "not a database"), (tmp_path / "none", "no such file")):
        with pytest.raises(InputError, match=f"^{re.escape(str(path))}: .*{why}"):
            export_votes(path, tmp_path / "votes.parquet")
    assert not (tmp_path / "votes.parquet").exists()


def test_a_mistake_is_one_line_and_exit_code_2(command: Command, router: Path, tmp_path: Path) -> None:
    done = command("p2l", "export-votes", "--database", router, "--output", tmp_path / "votes.txt")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    with pytest.raises(VoteError):
        export_votes(router, tmp_path / "votes.txt")


def test_the_export_imports_nothing_of_the_router(command: Command, router: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from p2l.commands.votes import export_votes; "
        "export_votes(sys.argv[1], sys.argv[2]); print([name for name in sys.modules if name.startswith('route')])"
    )
    done = command("python", "-c", script, router, tmp_path / "votes.parquet")
    assert done.stdout.strip() == "[]", done.stderr


def test_categories_are_the_clusters_of_a_model(tmp_path: Path) -> None:
    """The kind of a prompt is named by its words; a vote whose prompt was not stored has none."""
    kinds = ["what is {} plus {}, the sum of numbers", "write a poem about spring {} and love {}"]
    rows = [shown(f"v{n}", "first", prompt=[kinds[n % 2].format(n, n % 7)], at=float(n)) for n in range(120)]
    path = database(tmp_path / "router.sqlite", [*rows, shown("unstored", "first", prompt=None, at=500.0)])
    output, model = tmp_path / "votes.parquet", make_model(tmp_path / "model", seed=1)
    export_main(["--database", str(path), "--output", str(output), "--categories", str(model)])
    with open_votes(str(output)) as votes:
        found = {tuple(row["prompt"]): row["category"] for row in votes.rows()}
    assert len(found) == 120
    assert len(set(found.values())) > 1
    assert all(found.values())
    export_votes(path, output, prompts=False, category_model=str(model))
    import pyarrow.parquet as pq

    table = pq.read_table(output)
    assert "prompt" not in table.column_names
    assert table.column("category").to_pylist()[:-1] == [found[tuple(json.loads(row[9]))] for row in rows]
    assert table.column("category").to_pylist()[-1] is None
