"""Votes in a lake: each once, by day, readable wherever votes are; leaderboards by counts that add up."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from p2l.commands import leaderboard
from p2l.commands.votes import main as votes
from p2l.common.errors import InputError, VoteError
from p2l.votes.lake import Lake
from p2l.votes.reading import read_votes
from p2l.votes.splitting import hash_prompts
from p2l.votes.store import open_votes_together

MODELS = ["ant", "bee", "cat", "dog"]
CATEGORIES = ["sums", "poems", None]


def table(count: int, seed: int, *, day: int = 20_000, days: int = 10) -> Any:
    rng = np.random.default_rng(seed)
    a = rng.integers(4, size=count)
    b = (a + rng.integers(1, 4, size=count)) % 4
    winner = np.where(rng.random(count) < 0.2, 2, (rng.random(count) < 1 / (1 + np.exp((b - a) * 0.5))).astype(int))
    names = np.array(["model_a", "model_b", "tie", "tie (bothbad)"])
    return pa.table(
        {
            "model_a": np.array(MODELS)[a],
            "model_b": np.array(MODELS)[b],
            "winner": names[winner],
            "tstamp": (day + rng.integers(days, size=count)) * 86_400.0 + rng.random(count) * 86_000,
            "category": pa.array([CATEGORIES[number] for number in rng.integers(3, size=count)]),
            "weight": rng.random(count) + 0.5,
            "question_id": [f"{seed}-{number}" for number in range(count)],
            # Differences of sixteenths, and numbers of four bits, which rounding to 16 steps leaves as they are.
            "length_a": (length := rng.integers(1, 32, size=count)),
            "length_b": 32 - length,
            "cost": rng.integers(-15, 16, size=count) * 0.5,
            "judge": np.array(["one", "two", "three"])[rng.integers(3, size=count)],
        }
    )


def file(folder: Path, name: str, *tables: Any) -> Path:
    path = folder / name
    pq.write_table(pa.concat_tables(tables), path)
    return path


def board(*words: object, output: Path) -> list[dict[str, Any]]:
    leaderboard.main([*map(str, words), "--quiet", "--output", str(output)])
    rows: list[dict[str, Any]] = json.loads(output.read_text(encoding="utf-8"))
    for one in [rows, *rows["periods"]] if isinstance(rows, dict) else rows:
        one.pop("p2l-provenance", None)  # names the votes file
    for one in rows["periods"] if isinstance(rows, dict) else rows:
        one["effects"].sort(key=lambda effect: (effect["name"], effect["role"]))  # texts are in the order of votes
    return rows


def same(one: Any, two: Any) -> None:
    """Both hold the same, numbers to 1e-8."""
    assert type(one) is type(two)
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            same(one[key], two[key])
    elif isinstance(one, list):
        assert len(one) == len(two)
        for left, right in zip(one, two, strict=True):
            same(left, right)
    elif isinstance(one, float):
        assert one == pytest.approx(two, rel=1e-8, abs=1e-8)
    else:
        assert one == two


def test_a_lake_holds_each_vote_once_by_day(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = file(tmp_path, "first.parquet", table(500, 1))
    second = tmp_path / "second.jsonl"
    rows = [{"model_a": "ant", "model_b": "bee", "winner": "tie", "other": 1}]
    second.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    lake = tmp_path / "lake"
    for _ in range(2):
        assert votes(["lake", str(first), str(second), "--output", str(lake)]) == 0
    assert "first.parquet: is there already" in capsys.readouterr().out
    opened = Lake(lake)
    assert opened.rows == 501
    assert sorted({part.path.split("/")[0] for part in opened.parts}) == [
        *(f"day=2024-10-{day:02}" for day in range(4, 14)),
        "day=none",
    ]
    there = [row["question_id"] for row in rows_of(lake)]
    assert sorted(filter(None, there)) == sorted(table(500, 1)["question_id"].to_pylist())
    assert votes(["check", str(lake), "--quiet"]) in (0, 2)
    compressions = pq.ParquetFile(lake / opened.parts[0].path).metadata.row_group(0).column(0)
    assert (compressions.compression, compressions.has_dictionary_page) == ("ZSTD", True)


def test_a_file_that_has_changed_and_a_folder_of_others_are_refused(tmp_path: Path) -> None:
    path = file(tmp_path, "votes.parquet", table(50, 1))
    votes(["lake", str(path), "--output", str(tmp_path / "lake")])
    file(tmp_path, "votes.parquet", table(50, 1), table(50, 2))
    with pytest.raises(InputError, match="has changed since it was added"):
        votes(["lake", str(path), "--output", str(tmp_path / "lake")])
    with pytest.raises(InputError, match="holds other files"):
        votes(["lake", str(path), "--output", str(tmp_path)])
    with pytest.raises(InputError, match="name files of votes"):
        votes(["lake", "--output", str(tmp_path / "other")])


def test_what_a_killed_run_has_written_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lake = file(tmp_path, "votes.parquet", table(300, 1)), tmp_path / "lake"
    write = Lake.write

    def killed(self: Lake, name: str, content: bytes) -> None:
        if name.startswith("_commits"):
            raise KeyboardInterrupt
        write(self, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(Lake, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            votes(["lake", str(path), "--output", str(lake)])
    assert list(lake.glob("day=*/*.parquet"))
    assert Lake(lake).rows == 0
    votes(["lake", str(path), "--output", str(lake)])
    assert Lake(lake).rows == 300


class Camera:
    """Copies of a folder before every line that a lake's modules run: what a kill -9 there would have left behind."""

    def __init__(self, watched: Path, copies: Path) -> None:
        self.watched, self.copies = watched, copies
        self.seen: set[str] = set()

    def __call__(self, frame: Any, event: str, _: Any) -> Any:
        if frame.f_globals.get("__name__") not in ("p2l.votes.lake", "p2l.votes.writing"):
            return None
        sizes = {str(path): path.stat().st_size for path in self.watched.rglob("*") if path.is_file()}
        state = f"{self.watched.exists()} {sorted(sizes.items())}"
        if event == "line" and state not in self.seen:
            copy = self.copies / f"{len(self.seen):03}"
            self.seen.add(state)
            if self.watched.exists():
                shutil.copytree(self.watched, copy)
        return self


def test_a_run_killed_at_any_moment_is_taken_up_by_the_next(tmp_path: Path) -> None:
    path, lake, copies = file(tmp_path, "votes.parquet", table(30, 1, days=2)), tmp_path / "lake", tmp_path / "copies"
    copies.mkdir()
    before = sys.gettrace()
    sys.settrace(Camera(lake, copies))
    try:
        votes(["lake", str(path), "--output", str(lake)])
    finally:
        sys.settrace(before)
    left = sorted(copies.iterdir())
    names = {entry.relative_to(copy).as_posix() for copy in left for entry in copy.rglob("*")}
    assert {"_lake.json.new", "_lake.json"} <= names  # moments of the creation, and of what follows, are among them
    assert any(name.startswith("_commits/") and name.endswith(".json.new") for name in names)
    for copy in left:
        votes(["lake", str(path), "--output", str(copy)])
        assert Lake(copy).rows == 30
        assert sorted(row["question_id"] for row in rows_of(copy)) == sorted(
            row["question_id"] for row in rows_of(lake)
        )


def rows_of(lake: Path) -> list[dict[str, Any]]:
    return [row for batch in read_votes(lake, need_prompt=False) for row in batch.batch.to_pylist()]


def test_a_folder_with_anything_beside_a_killed_creation_is_refused(tmp_path: Path) -> None:
    for name in ("_lake.json.new", "other.txt"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    with pytest.raises(InputError, match="holds other files"):
        Lake(tmp_path, create=True)


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--by", "category"],
        ["--by", "category", "--weighted", "--likelihood", "bt-tie"],
        ["--over", "week"],
        ["--over", "day", "--periods", "alone"],
        ["--control", "side"],
        ["--control", "side,length,cost,judge", "--by", "category", "--weighted"],
        ["--control", "length,judge", "--over", "week", "--periods", "alone"],
    ],
    ids=" ".join,
)
def test_boards_of_a_lake_are_those_of_its_votes(tmp_path: Path, flags: list[str]) -> None:
    early, late = table(2000, 1), table(1500, 2, day=20_010, days=5)
    lake = tmp_path / "lake"
    votes(["lake", str(file(tmp_path, "early.parquet", early)), "--output", str(lake)])
    board("--votes", lake, *flags, output=tmp_path / "of-early.json")
    votes(["lake", str(file(tmp_path, "late.parquet", late)), "--output", str(lake)])
    whole = file(tmp_path, "whole.parquet", early, late)
    expected = board("--votes", whole, *flags, output=tmp_path / "of-votes.json")
    for _ in range(2):  # with counts of the early ones, and with counts of all
        same(board("--votes", lake, *flags, output=tmp_path / "of-lake.json"), expected)


def test_coefficients_that_are_kept_are_a_start_and_no_result(tmp_path: Path) -> None:
    lake, flags = tmp_path / "lake", ["--by", "category", "--likelihood", "rk"]
    votes(["lake", str(file(tmp_path, "votes.parquet", table(2000, 1))), "--output", str(lake)])
    first = board("--votes", lake, *flags, output=tmp_path / "first.json")
    [kept] = (lake / "_counts").glob("*.json")
    content, rng = json.loads(kept.read_text(encoding="utf-8")), np.random.default_rng(0)
    assert [entry[:2] for entry in content["boards"]] == [["", "all"], ["category", "sums"], ["category", "poems"]]
    for entry in content["boards"]:
        entry[2] = {name: rng.normal(0, 3) for name in entry[2]}
    damaged = [json.dumps(content), "no JSON", "[]", json.dumps({**content, "boards": [["", "all", {"ant": "x"}, 1]]})]
    for text in damaged:
        kept.write_text(text, encoding="utf-8")
        same(board("--votes", lake, *flags, output=tmp_path / "again.json"), first)


def test_votes_without_nulls_are_stored_so_and_read_alike(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    whole, gaps = table(200, 1, days=1), table(200, 2, days=1)
    whole = whole.set_column(whole.column_names.index("category"), "category", pa.array(["sums"] * 200))
    votes(
        ["lake", *(str(file(tmp_path, f"{n}.parquet", t)) for n, t in enumerate((whole, gaps))), "--output", str(lake)]
    )
    opened = Lake(lake)
    stored = [pq.read_schema(lake / part.path) for part in opened.parts]
    assert all(not schema.field("model_a").nullable for schema in stored)
    assert sorted(schema.field("category").nullable for schema in stored) == [False, True]
    batches = [batch for part in opened.parts for batch in opened.batches(part, None, 100)]
    assert len(pa.Table.from_batches([batch.select(["category", "weight"]) for batch in batches])) == 400


def test_rounding_is_what_the_flag_says(tmp_path: Path) -> None:
    votes_of = table(1000, 1)
    whole = file(tmp_path, "whole.parquet", votes_of)
    near = np.round((votes_of["length_a"].to_numpy() - 16) / 16 * 4) * 4
    rounded = votes_of.set_column(7, "length_a", pa.array(16 + near)).set_column(8, "length_b", pa.array(16 - near))
    expected = board(
        "--votes", file(tmp_path, "near.parquet", rounded), "--control", "length", output=tmp_path / "a.json"
    )
    same(board("--votes", whole, "--control", "length", "--control-steps", 4, output=tmp_path / "b.json"), expected)
    with pytest.raises(InputError, match="goes with --votes and --control"):
        board("--votes", whole, "--control-steps", 4, output=tmp_path / "c.json")


def test_a_new_file_alone_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = tmp_path / "lake"
    votes(["lake", str(file(tmp_path, "early.parquet", table(500, 1))), "--output", str(lake)])
    board("--votes", lake, "--by", "category", output=tmp_path / "board.json")
    votes(["lake", str(file(tmp_path, "late.parquet", table(100, 2, day=20_020, days=1))), "--output", str(lake)])
    read: list[str] = []
    batches = Lake.batches

    def noted(self: Lake, part: Any, *arguments: Any, **options: Any) -> Any:
        read.append(part.path)
        return batches(self, part, *arguments, **options)

    monkeypatch.setattr(Lake, "batches", noted)
    board("--votes", lake, "--by", "category", output=tmp_path / "board.json")
    assert [path.split("/")[0] for path in read] == ["day=2024-10-24"]


def test_counts_of_several_machines_add_up(tmp_path: Path) -> None:
    halves = [table(1000, 1), table(800, 2)]
    for number, half in enumerate(halves):
        path = file(tmp_path, f"{number}.parquet", half)
        flags = ["--votes", str(path), "--by", "category", "--counts-only", "--quiet"]
        leaderboard.main([*flags, "--output", str(tmp_path / f"counts-{number}.parquet")])
        flags = ["--votes", str(path), "--over", "day", "--counts-only", "--quiet"]
        leaderboard.main([*flags, "--output", str(tmp_path / f"days-{number}.parquet")])
    whole = file(tmp_path, "whole.parquet", *halves)
    counts, days = ([tmp_path / f"{name}-{number}.parquet" for number in range(2)] for name in ("counts", "days"))
    same(
        board("--from-counts", *counts, output=tmp_path / "a.json"),
        board("--votes", whole, "--by", "category", output=tmp_path / "b.json"),
    )
    same(
        board("--from-counts", *days, "--over", "day", output=tmp_path / "a.json"),
        board("--votes", whole, "--over", "day", output=tmp_path / "b.json"),
    )
    with pytest.raises(InputError, match="go with --over day"):
        board("--from-counts", *days, output=tmp_path / "a.json")
    with pytest.raises(VoteError, match="holds no counts of votes"):
        board("--from-counts", whole, output=tmp_path / "a.json")


def test_nodes_hold_the_prompts_of_their_part_and_know_of_all_votes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = table(3000, 1)
    prompts = pa.array([f"prompt {number % 500}" for number in range(len(rows))])
    lake = tmp_path / "lake"
    votes(["lake", str(file(tmp_path, "votes.parquet", rows.append_column("prompt", prompts))), "--output", str(lake)])
    whole = open_votes_together(str(lake), spread=True)
    held = []
    for number, names in enumerate([("GROUP_RANK", "GROUP_WORLD_SIZE"), ("CROSS_RANK", "CROSS_SIZE")]):
        with monkeypatch.context() as launcher:  # torchrun's names, and those of DeepSpeed's launcher
            for name, content in zip(names, (number, 2), strict=True):
                launcher.setenv(name, str(content))
            store = open_votes_together(str(lake), spread=True)
            assert open_votes_together(str(lake)).held() is None
        np.testing.assert_array_equal(store.labels(), whole.labels())
        np.testing.assert_array_equal(store.tstamps(), whole.tstamps())
        for seed in (0, 7):
            np.testing.assert_array_equal(hash_prompts(store, seed), hash_prompts(whole, seed))
        assert store.fingerprint == whole.fingerprint
        mask = store.held()
        assert mask is not None
        own, other = np.flatnonzero(mask), np.flatnonzero(~mask)
        assert store.prompts(own[::-1]) == whole.prompts(own[::-1])
        assert store.rows(own[:9]) == whole.rows(own[:9])
        with pytest.raises(LookupError, match="on another node"):
            store.prompts(other[:1])
        with pytest.raises(LookupError, match="on other nodes"):
            store.column("category")
        held.append(mask)
    assert (held[0] != held[1]).all()
    assert 0.4 < held[0].mean() < 0.6
