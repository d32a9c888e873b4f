"""The commands that write votes in the order of a buffer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2l.cli import dispatch
from p2l.common.cli import run
from p2l.common.errors import InputError, VoteError
from p2l.online_training import geometric_buffer, replay_buffer
from p2l.online_training.buffer import NewVotes
from p2l.online_training.buffers import BufferSettings, make_buffer
from p2l.online_training.reorder import batches_of, reorder
from p2l.votes import open_votes
from tests.p2l.votes_helpers import ENDINGS, MODELS, save, vote

FLAGS = ["--batch-size", "8", "--seed", "5", "--quiet"]
GEOMETRIC = ["--gamma", "0.8", "--epsilon", "0.1"]


def stream(count: int = 203) -> list[dict[str, Any]]:
    """Votes in time order with columns beyond the schema."""
    return [
        vote(n, tstamp=1000.0 + 3 * n, tags=["a", "b"] if n % 3 else ["c"], score=n / 7 if n % 2 else 0.5)
        for n in range(count)
    ]


def columns_of(path: Path, name: str) -> list[Any]:
    with open_votes(path) as store:
        return list(store.column(name))


def expected_order(count: int, **settings: Any) -> list[np.ndarray]:
    """On the fly: models numbered as they first appear, fed a few votes at a time."""
    buffer = make_buffer(BufferSettings(**settings), 8, seed=5)
    ids = np.arange(count)
    votes = NewVotes(ids, (ids % 4).astype(np.int32), ((ids + 1) % 4).astype(np.int32), 1000.0 + 3 * ids)
    batches = []
    for start in range(0, count, 13):
        batches += buffer.add(votes[start : start + 13])
    return batches + buffer.drain()


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_file_has_the_order_of_training_on_the_fly(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = save(tmp_path / f"votes{ending}", stream()), tmp_path / f"out{ending}"
    words = ["buffer", "geometric", "--input", str(source), "--output", str(output), *FLAGS, *GEOMETRIC]
    assert dispatch(words) == 0
    batches = expected_order(203, type="geometric", gamma=0.8, epsilon=0.1)
    order = np.concatenate(batches)
    assert columns_of(output, "question_id") == [f"q{n}" for n in order]
    assert columns_of(output, "tstamp") == [1000.0 + 3 * n for n in order]
    with open_votes(source) as before, open_votes(output) as after:
        assert after.rows() == before.rows(order)
        assert after.prompts() == before.prompts(order)
    report = capsys.readouterr().out
    assert f"{output}: 203 votes in 26 batches; train with a global batch size of 8" in report
    ends = json.loads(Path(f"{output}.timestamps.json").read_text())
    newest = np.maximum.accumulate(1000.0 + 3 * order)
    assert ends == {str(n): {"end_tstamp": newest[min(8 * n + 7, 202)]} for n in range(26)}
    lag = json.loads(Path(f"{output}.lag.json").read_text())
    assert (lag["votes"], lag["batches"], lag["dropped"], lag["lag_votes"]) == (203, 26, 0, 203)
    assert lag["lag_median_batches"] > 0


def test_replayed_votes_are_there_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = save(tmp_path / "votes.parquet", stream()), tmp_path / "out.parquet"
    replay_buffer.main(["--input", str(source), "--output", str(output), *FLAGS, "--limit", "40", "--min-batches", "2"])
    order = np.concatenate(expected_order(203, type="replay", epsilon=0.2, limit=40, min_batches=2))
    assert columns_of(output, "question_id") == [f"q{n}" for n in order]
    assert len(order) > len(set(order.tolist())) == 203
    assert "train with a global batch size of 10" in capsys.readouterr().out
    assert json.loads(Path(f"{output}.lag.json").read_text())["global_batch_size"] == 10


def test_replay_goes_on_top_of_geometric(tmp_path: Path) -> None:
    source, output = save(tmp_path / "votes.jsonl", stream()), tmp_path / "out.jsonl"
    words = ["--geometric", "--gamma", "0.8", "--geometric-epsilon", "0.1"]
    assert dispatch(["buffer", "replay", "--input", str(source), "--output", str(output), *FLAGS, *words]) == 0
    below = {"type": "geometric", "gamma": 0.8, "epsilon": 0.1}
    order = np.concatenate(expected_order(203, type="replay", epsilon=0.2, on=below))
    assert columns_of(output, "question_id") == [f"q{n}" for n in order]


def test_drop_tail_leaves_full_batches_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = save(tmp_path / "votes.parquet", stream()), tmp_path / "out.parquet"
    geometric_buffer.main(["--input", str(source), "--output", str(output), *FLAGS, *GEOMETRIC, "--drop-tail"])
    votes = len(columns_of(output, "tstamp"))
    assert votes % 8 == 0
    assert f"dropped: {203 - votes} votes that waited at the end" in capsys.readouterr().out


def test_sort_brings_votes_into_the_order_of_time(tmp_path: Path) -> None:
    rows = stream()
    shuffled = [rows[n] for n in np.random.default_rng(0).permutation(len(rows))]
    sorted_file, mixed = save(tmp_path / "sorted.jsonl", rows), save(tmp_path / "mixed.jsonl", shuffled)
    for source, more in ((sorted_file, []), (mixed, ["--sort"])):
        output = source.with_suffix(".out.jsonl")
        geometric_buffer.main(["--input", str(source), "--output", str(output), *FLAGS, *GEOMETRIC, *more])
    assert (tmp_path / "sorted.out.jsonl").read_text() == (tmp_path / "mixed.out.jsonl").read_text()


def test_votes_cross_blocks_and_columns_of_files_that_differ(tmp_path: Path) -> None:
    # A column that only later lines have, and more votes than are written together.
    rows = [vote(n, tstamp=float(n), **({"late": n} if n > 15_000 else {})) for n in range(20_000)]
    source, output = save(tmp_path / "votes.jsonl", rows), tmp_path / "out.jsonl"
    with open_votes(source) as store:
        buffer = make_buffer(BufferSettings(type="geometric"), 64, seed=1)
        order = np.concatenate(list(batches_of(store, make_buffer(BufferSettings(type="geometric"), 64, seed=1))))
        assert reorder(store, buffer, output).votes == 20_000
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["question_id"] for line in lines] == [f"q{n}" for n in order]
    assert [line["late"] for line in lines] == [int(n) if n > 15_000 else None for n in order]


def broken(change: Callable[[list[dict[str, Any]]], Any]) -> list[dict[str, Any]]:
    rows = stream(20)
    change(rows)
    return rows


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (broken(lambda rows: rows[7].update(tstamp=1.0)), "vote 8 is older than the one before it; add --sort"),
        (broken(lambda rows: rows[7].pop("tstamp")), "vote 8 has no tstamp"),
        ([vote(n) for n in range(9)], "no column 'tstamp' to tell the order of votes; columns: question_id"),
        (broken(lambda rows: [row.pop("model_b") for row in rows]), "no column 'model_b'"),
        (broken(lambda rows: rows[3].update(model_b=MODELS[3])), "row 4: .*--drop-bad"),
    ],
)
def test_votes_that_cannot_be_ordered_are_refused(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    source, output = save(tmp_path / "votes.parquet", rows), tmp_path / "out.parquet"
    with pytest.raises(VoteError, match=message):
        geometric_buffer.main(["--input", str(source), "--output", str(output), *FLAGS])
    assert [path.name for path in tmp_path.iterdir()] == ["votes.parquet"]


def test_rows_that_are_no_votes_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = broken(lambda rows: rows[3].update(model_b=MODELS[3]))
    source, output = save(tmp_path / "votes.parquet", rows), tmp_path / "out.parquet"
    geometric_buffer.main(["--input", str(source), "--output", str(output), *FLAGS, "--drop-bad"])
    assert "left out: 1 row that is not a vote" in capsys.readouterr().out
    assert len(columns_of(output, "tstamp")) == 19


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["geometric", "--gamma", "0"], "gamma: input should be greater than 0"),
        (["geometric", "--epsilon", "1.5"], "epsilon: input should be less than or equal to 1"),
        (["geometric", "--output", "votes.txt"], "votes.txt: unknown kind of file"),
        (["geometric", "--output", "votes.parquet"], "votes.parquet: is an input too"),
        (["geometric", "--batch-size", "1000", "--drop-tail"], "20 votes cannot fill a batch of 1,000"),
        (["geometric", "--input", "no.parquet"], "no.parquet: no such file"),
        (["geometric", "--seed", "-1"], "--seed: must be a whole number of at least 0"),
        (["replay", "--epsilon", "1"], "epsilon: a share of 1"),
        (["replay", "--min-batches", "-1"], "--min-batches: must be a whole number of at least 0"),
        (["replay", "--gamma", "0.5"], "--gamma and --geometric-epsilon belong to --geometric"),
        (["replay", "--limit", "0"], "--limit: must be a whole number of at least 1"),
    ],
)
def test_flags_that_mean_nothing_end_with_2_and_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "votes.parquet", stream(20))
    line = ["buffer", words[0], "--input", "votes.parquet", "--output", "out.parquet", *FLAGS, *words[1:]]
    with pytest.raises(SystemExit) as ended:
        run(dispatch, line)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["votes.parquet"]


def test_the_commands_of_the_modules_are_these(command: Callable[..., Any], tmp_path: Path) -> None:
    source = save(tmp_path / "votes.csv", stream(30))
    module = "p2l.online_training.geometric_buffer"
    done = command("python", "-m", module, "--input", source, "--output", tmp_path / "out.csv", *FLAGS)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out.csv.timestamps.json").exists()
    with pytest.raises(InputError, match="no such file"):
        replay_buffer.main(["--input", str(tmp_path / "no.csv"), "--output", str(tmp_path / "o.csv")])
