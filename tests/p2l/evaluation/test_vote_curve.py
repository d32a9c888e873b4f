"""What more votes are worth: on losses that fall, on noise, and by the command on votes."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from p2l.commands.scaling import main
from p2l.common.errors import InputError
from p2l.evaluation.vote_curve import TrainedPart, compare_parts
from tests.conftest import vote_rows, write_votes


def part(votes: int, loss: float, noise: np.ndarray, *, draw: int = 0, variant: str = "reader") -> TrainedPart:
    losses = (loss + noise).tolist()
    return TrainedPart(variant, draw, votes, votes, losses, 0.7, 0.5, votes / 100)


def points(loss_of: Callable[[int], float], spread: float) -> list[TrainedPart]:
    rng = np.random.default_rng(2)
    hard = 0.3 * rng.standard_normal(40)  # what is hard for all models does not blur differences
    sizes = [(draw, votes) for draw in (0, 1) for votes in (500, 1000, 2000)]
    return [
        part(votes, loss_of(votes), hard + spread * rng.standard_normal(40), draw=draw)
        for draw, votes in [*sizes, (0, 4000)]
    ]


def test_each_doubling_says_what_it_was_worth() -> None:
    curve = compare_parts(points(lambda votes: 0.5 + 4 * votes**-0.5, 0.003), held_votes=400, held_prompts=200)
    assert [doubling.votes for doubling in curve.doublings] == [1000, 2000, 4000]
    for doubling in curve.doublings:
        truth = 4 * ((doubling.votes / 2) ** -0.5 - doubling.votes**-0.5)
        assert doubling.gain.estimate == pytest.approx(truth, abs=0.002)
        assert doubling.gain.lower <= doubling.gain.estimate <= doubling.gain.upper
    assert curve.last == curve.doublings[-1].gain
    text = curve.to_text(price=0.5)
    assert "More votes help" in text
    assert "4,000 more votes cost 2,000.00" in text
    assert curve.to_dict(0.5)["cost"] == 2000
    assert curve.to_dict()["seconds"] == 80
    assert [row["votes"] for row in curve.to_dict()["doublings"]] == [1000, 2000, 4000]


def test_noise_is_called_noise() -> None:
    curve = compare_parts(points(lambda _: 0.65, 0.05), held_votes=400, held_prompts=200)
    assert curve.last.lower < 0 < curve.last.upper
    assert "noise is larger than the effect" in curve.to_text()


def test_another_model_is_compared_on_the_same_prompts() -> None:
    first = points(lambda votes: 0.5 + 4 * votes**-0.5, 0.0)
    better = [value - 0.05 for value in first[-1].losses]
    other = TrainedPart("encoder=large", 0, 4000, 4000, better, 0.7, 0.5, 100.0)
    curve = compare_parts([*first, other], held_votes=400, held_prompts=200)
    assert curve.others["encoder=large"].estimate == pytest.approx(0.05)
    assert "encoder=large on the same votes: lower by 0.0500 [0.0500, 0.0500] (better)" in curve.to_text()


@pytest.mark.slow
def test_the_command_measures_and_goes_on(tmp_path: Path, backbone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row | {"prompt": f"{row['prompt']} {number}"} for number, row in enumerate(vote_rows(1000))]
    votes = write_votes(tmp_path / "votes.jsonl", rows)
    flags = ["--votes", votes, "--backbone", backbone, "--draws", "1", "--folder", tmp_path / "work", "--quiet"]
    main([*map(str, flags), "--output", str(tmp_path / "curve.json"), "--price", "0.1"])
    out = capsys.readouterr().out
    assert "between draws" not in out
    assert "Twice the votes (1,6" in out
    assert "trained model:" not in out
    curve = json.loads((tmp_path / "curve.json").read_text())
    sizes = [point["votes"] for point in curve["points"]]
    assert sizes == sorted(sizes)
    assert [round(sizes[-1] / size) for size in sizes] == [8, 4, 2, 1]
    assert sizes[-1] + curve["held_votes"] == 1000
    lines = (tmp_path / "work" / "points.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "work" / "points.jsonl").write_text("".join(lines[:3]) + lines[3][:20])
    main([*map(str, flags), "--output", str(tmp_path / "curve.csv"), "--plot", str(tmp_path / "curve.svg")])
    drawn = (tmp_path / "curve.svg").read_text(encoding="utf-8")
    assert "one leaderboard" in drawn
    again = list(csv.DictReader((tmp_path / "curve.csv").read_text().splitlines()))
    assert [float(row["loss"]) for row in again] == pytest.approx([point["loss"] for point in curve["points"]])
    assert (tmp_path / "work" / "points.jsonl").read_text().splitlines()[:3] == [line.strip() for line in lines[:3]]


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    few = write_votes(tmp_path / "few.jsonl", vote_rows(200))

    def refused(*flags: str) -> str:
        with pytest.raises(InputError) as caught:
            main(["--votes", str(few), "--quiet", *flags])
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "holds 200 votes, too few" in refused("--folder", str(tmp_path / "work"))
    assert ".json or .csv" in refused("--output", "curve.txt")
    assert "--also" in refused("--also", "encodr=x")
    assert "twice" in refused("--also", "tiny", "--also", "tiny")
    assert ".png" in refused("--plot", "curve.txt")
    assert "--price" in refused("--price", "nan")
