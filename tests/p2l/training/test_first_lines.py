"""What `p2l train --votes` says of the votes before it trains, and the side that it takes by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from p2l.common.errors import ConfigError
from p2l.train import main
from p2l.training.planning import Request, dry_run, plan_run
from tests.conftest import write_votes
from tests.p2l.leaderboard.test_first_look import Rows, cast


def planned(folder: Path, rows: Rows, *control: str) -> tuple[dict[str, object], str]:
    """Return the configuration that would be written for votes, and all that is printed."""
    votes = write_votes(folder / "votes.jsonl", rows)
    text = dry_run(Request(str(votes), size="reader", encoder="none", control=control))
    return yaml.safe_load(text), text


def test_a_side_beyond_chance_is_taken_and_said(tmp_path: Path) -> None:
    settings, text = planned(tmp_path, cast(3_000, side=0.5))
    assert settings["covariates"] == ["side"]
    assert text.startswith("# what the votes show:\n#   the first answer wins ")
    assert "#   side is fitted beside the model and left out of its predictions; --control none: not\n" in text
    lines = text.splitlines()
    reason = lines[lines.index("covariates:") - 1]
    assert reason.startswith("# the first answer wins ")
    assert reason.endswith("; --control none leaves it out")


def test_it_can_be_refused_or_named(tmp_path: Path) -> None:
    rows = cast(3_000, side=0.5, length=1.5)
    settings, text = planned(tmp_path, rows, "none")
    assert "covariates" not in settings
    assert "the first answer wins" in text
    assert "is fitted beside" not in text
    assert planned(tmp_path, rows, "length")[0]["covariates"] == ["length"]
    with pytest.raises(ConfigError, match="--control none goes without other names"):
        main(["--votes", str(tmp_path / "votes.jsonl"), "--encoder", "none", "--control", "none,side", "--dry-run"])


def test_without_a_side_nothing_is_taken_or_said(tmp_path: Path) -> None:
    settings, text = planned(tmp_path, cast(3_000, stronger_first=0.9, seed=1))
    assert "covariates" not in settings
    assert "what the votes show" not in text


def test_a_column_of_that_name_is_left_to_the_user(tmp_path: Path) -> None:
    rows = [row | {"side": number % 2} for number, row in enumerate(cast(3_000, side=0.5))]
    assert "covariates" not in planned(tmp_path, rows)[0]


def test_the_side_is_that_of_people_beside_judges_and_voters(tmp_path: Path) -> None:
    people = [row | {"source": "human", "voter": f"v{number % 60}"} for number, row in enumerate(cast(3_000, side=0.5))]
    judged = [row | {"source": "gpt-judge", "voter": None} for row in cast(1_000, side=-2.0, seed=1)]
    settings, text = planned(tmp_path, people + judged)
    assert (settings["people"], settings["weigh_voters"], settings["covariates"]) == ("human", True, ["side"])
    assert "of votes of human, the second " in text
    fair = [row | {"source": "human"} for row in cast(3_000)]
    settings, _ = planned(tmp_path, fair + judged)
    assert "covariates" not in settings
    assert planned(tmp_path, fair + judged, "length")[0]["covariates"] == ["length"]


def test_the_same_line_goes_on_with_the_side_that_it_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    votes = write_votes(tmp_path / "votes.jsonl", cast(1_500, side=0.6))
    held_out = write_votes(tmp_path / "held_out.jsonl", cast(200, seed=1))
    request = Request(str(votes), "reader", val=str(held_out), encoder="none", output=str(tmp_path / "run"))
    first = plan_run(request)
    first.lock.close()
    folder = first.folder
    assert "side is fitted beside the model" in capsys.readouterr().err
    assert yaml.safe_load((folder / "training.yaml").read_text())["covariates"] == ["side"]
    again = plan_run(request)
    again.lock.close()
    assert again.folder == folder
    assert "resuming" in capsys.readouterr().err
