"""Pairs are planned where their votes teach most, and every pair keeps a chance."""

import csv
from pathlib import Path

import numpy as np
import pytest

from p2l.commands.next_pairs import main
from p2l.common.errors import ConfigError, InputError
from p2l.leaderboard.fitting import fit
from p2l.leaderboard.next_pairs import plan_pairs
from p2l.votes.door import read_frame
from tests.conftest import write_votes

COLUMNS = ["model_a", "model_b", "votes", "propensity"]
NAMES = ["ant", "bee", "cat", "dog", "eel"]


def votes(count: int, models: int, seed: int = 0) -> np.ndarray:
    """Votes (n, 3) of first, second and winner among the first few models, the later the stronger."""
    rng = np.random.default_rng(seed)
    pairs = np.array([rng.choice(models, 2, replace=False) for _ in range(count)])
    chance = 1 / (1 + np.exp(0.5 * (pairs[:, 1] - pairs[:, 0])))
    return np.column_stack([pairs, rng.random(count) > chance]).astype(np.int64)


@pytest.mark.parametrize("likelihood", ["bt", "grk", "rk"])
def test_a_model_without_votes_is_planned_first(likelihood: str) -> None:
    cast = votes(400, 4)
    board = fit(*cast.T, models=NAMES, likelihood=likelihood, intervals=None)
    plan = plan_pairs(board, cast[:, :2], 50)
    has_eel = (plan.pairs == 4).any(axis=1)
    assert plan.votes[has_eel].sum() > 40
    assert plan.votes.sum() == 50
    assert plan.propensities.sum() == pytest.approx(1.0)
    assert plan.propensities.min() >= 0.1 / 10
    assert plan.variance_after < plan.variance_random < plan.variance_before


def test_the_expected_variance_is_that_of_a_fit_to_as_many_votes() -> None:
    cast = votes(300, 5)
    board = fit(*cast.T, models=NAMES, likelihood="bt", intervals=None)
    none = plan_pairs(board, cast[:, :2], 0)
    whole = fit(*cast.T, models=NAMES, likelihood="bt")
    assert whole.covariance is not None
    centre = np.eye(5) - 0.2
    fitted = np.trace(centre @ whole.covariance @ centre) / 5
    assert none.variance_before == pytest.approx(fitted, rel=0.25)
    assert none.variance_after == pytest.approx(none.variance_before)
    assert none.propensities.tolist() == pytest.approx([0.1] * 10)


def test_votes_go_to_the_models_that_are_named() -> None:
    cast = votes(500, 5)
    board = fit(*cast.T, models=NAMES, likelihood="bt", intervals=None)
    plan = plan_pairs(board, cast[:, :2], 100, named=np.array([2]))
    assert plan.votes[(plan.pairs == 2).any(axis=1)].sum() > 90


def test_the_command_writes_every_pair_with_its_propensity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"prompt": "a", "model_a": NAMES[a], "model_b": NAMES[b], "winner": ("model_a", "model_b")[w]}
        for a, b, w in votes(200, 5).tolist()
    ]
    source, output = write_votes(tmp_path / "votes.jsonl", rows), tmp_path / "pairs.csv"
    flags = ["--votes", str(source), "--output", str(output), "--quiet"]
    main([*flags, "--count", "40", "--models", "cat"])
    with output.open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert len(table) == 10
    assert sum(int(row["votes"]) for row in table) == 40
    assert sum(float(row["propensity"]) for row in table) == pytest.approx(1.0, abs=1e-4)
    assert "cat" in (table[0]["model_a"], table[0]["model_b"])
    assert "after as many on pairs drawn at random" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="model 'cta' is unknown"):
        main([*flags, "--models", "cta"])
    with pytest.raises(ConfigError, match="--random-share"):
        main([*flags, "--random-share", "2"])
    with pytest.raises(ConfigError, match="--new cat: has votes already"):
        main([*flags, "--new", "cat"])
    with pytest.raises(ConfigError, match="--new: a model needs a name"):
        main([*flags, "--new", " "])


def test_the_ending_names_the_format(tmp_path: Path) -> None:
    rows = [{"prompt": ["x"], "model_a": "ant", "model_b": name, "winner": "model_a"} for name in ("bee", "cat")]
    source = write_votes(tmp_path / "votes.jsonl", rows)
    tables = []
    for ending in ("csv", "jsonl", "parquet"):
        output = tmp_path / f"pairs.{ending}"
        main(["--votes", str(source), "--output", str(output), "--quiet", "--count", "10"])
        tables.append(read_frame(output, COLUMNS))
    assert [*tables[0].columns] == COLUMNS
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])
    with pytest.raises(InputError, match=r"pairs\.txt: unknown kind of file"):
        main(["--votes", str(tmp_path / "none.jsonl"), "--output", str(tmp_path / "pairs.txt"), "--quiet"])
    assert not (tmp_path / "pairs.txt").exists()


def test_the_command_plans_for_models_that_have_no_vote_yet(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "model_a": "ant", "model_b": "cat", "winner": "model_a"}] * 50
    source, output = write_votes(tmp_path / "votes.jsonl", rows), tmp_path / "pairs.csv"
    main(["--votes", str(source), "--output", str(output), "--quiet", "--count", "40", "--new", "eel"])
    with output.open(encoding="utf-8") as file:
        votes = {(row["model_a"], row["model_b"]): int(row["votes"]) for row in csv.DictReader(file)}
    assert sorted(votes) == [("ant", "cat"), ("ant", "eel"), ("cat", "eel")]
    assert votes["ant", "eel"] + votes["cat", "eel"] == 40
