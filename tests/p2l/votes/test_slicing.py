"""Held-out votes in slices by the time of a stream, and the committed slices of the demo's arena."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from p2l.cli import dispatch
from p2l.commands.votes import main
from p2l.common.errors import VoteError
from p2l.votes import open_votes
from p2l.votes.splitting import cut_slices
from tests.conftest import ROOT, write_votes


def votes(path: Path, times: list[float], pairs: list[str]) -> Path:
    rows = [
        {
            "prompt": f"p{time}",
            "model_a": pair[0],
            "model_b": pair[1],
            "winner": "model_a",
            "tstamp": time,
            "topic": "x",
        }
        for time, pair in zip(times, pairs, strict=True)
    ]
    return write_votes(path, rows)


def stream(tmp_path: Path) -> Path:
    """Eight votes; model c comes with the fifth."""
    return votes(tmp_path / "stream.jsonl", [1, 2, 3, 4, 5, 6, 7, 8], ["ab"] * 4 + ["ac"] * 4)


def test_a_slice_holds_the_time_since_the_one_before_and_models_seen_by_then(tmp_path: Path) -> None:
    held = votes(tmp_path / "held.jsonl", [7.5, 0.5, 4.0, 4.5, 3.9, 8.5], ["bc", "ab", "ab", "ac", "ac", "ab"])
    with open_votes(stream(tmp_path)) as train, open_votes(held) as other:
        slices = cut_slices(train, other, batch_size=2, every=2)
        found = {one.number: [row["tstamp"] for row in other.rows(one.ids)] for one in slices}
    # Of 3.9 model c was not there yet, and 8.5 is after the stream.
    assert found == {2: [0.5, 4.0], 4: [4.5, 7.5]}


def test_the_command_writes_slices_with_their_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = votes(tmp_path / "held.jsonl", [float(n) / 10 for n in range(5, 75)], ["ab"] * 70)
    out = tmp_path / "slices"
    words = ["slice", stream(tmp_path), "--held-out", held, "--output", out, "--batch-size", 2, "--every", 1]
    assert main([str(word) for word in [*words, "--most", 3, "--columns", "topic"]]) == 0
    assert "4 slices, validation-1.csv to validation-4.csv, 12 votes" in capsys.readouterr().out
    with open_votes(out / "validation-2.csv") as part:
        assert [row["tstamp"] for row in part.rows()] == [2.1, 3.1, 4.0]
        assert part.columns == ["prompt", "model_a", "model_b", "winner", "tstamp", "topic"]
    assert json.loads((out / "timestamps.json").read_text())["2"] == {"end_tstamp": 4.0}
    with pytest.raises(VoteError, match=r"validation-1\.csv: is a slice of another cut"):
        main([str(word) for word in [*words[:-1], 2]])


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([2.0, 1.0, 3.0, 4.0], "vote 2 is older than the one before it"),
        ([1.0, 2.0], "holds 2 votes; the first slice needs 4"),
        ([1.0], "holds 1 vote; the first slice needs 4"),
    ],
)
def test_streams_that_cannot_be_sliced_by_are_refused(tmp_path: Path, times: list[float], message: str) -> None:
    path = votes(tmp_path / "stream.jsonl", times, ["ab"] * len(times))
    with open_votes(path) as train, pytest.raises(VoteError, match=message):
        cut_slices(train, train, batch_size=2, every=2)


def test_held_out_votes_without_times_or_for_a_slice_are_refused(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"prompt": "p", "model_a": "a", "model_b": "b", "winner": "tie"}]
    early = votes(tmp_path / "early.jsonl", [0.5], ["ab"])
    with open_votes(stream(tmp_path)) as train:
        with open_votes(write_votes(tmp_path / "n.jsonl", rows)) as held, pytest.raises(VoteError, match="'tstamp'"):
            cut_slices(train, held, batch_size=2, every=2)
        with open_votes(early) as held, pytest.raises(VoteError, match="no vote falls into slice 4"):
            cut_slices(train, held, batch_size=2, every=2)


def _cells(path: Path) -> list[list[str]]:
    """All cells; of a time its milliseconds, since its last digit depends on how a processor adds."""
    if path.suffix == ".json":
        return [[path.read_text(encoding="utf-8")]]
    with path.open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    time = head.index("tstamp")
    return [head, *([*row[:time], f"{float(row[time]):.3f}", *row[time + 1 :]] for row in rows)]


def test_the_documented_commands_make_the_committed_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "validation_sets" / "README.md").read_text(encoding="utf-8")
    lines = text.split("```bash\n")[1].split("```")[0].replace("\\\n", " ").splitlines()
    monkeypatch.chdir(tmp_path)
    for line in lines:
        dispatch([*line.split()[1:], "--quiet"])
    made, kept = (sorted((root / "validation_sets").glob("*.*s*")) for root in (tmp_path, ROOT))
    assert [file.name for file in made] == [file.name for file in kept]
    assert [file.name for file, old in zip(made, kept, strict=True) if _cells(file) != _cells(old)] == []
