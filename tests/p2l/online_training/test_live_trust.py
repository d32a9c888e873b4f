"""A live run weighs the voters of its stream, and its gate judges by votes of those who were trusted before."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from p2l.common.errors import ConfigError
from p2l.inference import P2L
from p2l.online_training.candidates import recent
from p2l.online_training.live_trust import LiveTrust
from p2l.online_training.online_train import main
from tests.p2l.online_training.live_helpers import add, line, live
from tests.p2l.online_training.test_follow import QUIET, bag, config, follow

__all__ = ["bag", "config"]
MODELS = ["ant", "bee", "cat", "dog"]


def arena(count: int, *, colluders: int, each: int = 8, seed: int = 0) -> list[str]:
    """Votes of visitors, 8 each, for whom dog is best and ant worst, and of colluders for whom ant always wins."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        a, b = rng.choice(4, 2, replace=False).tolist()
        winner = "model_a" if rng.random() < 1 / (1 + np.exp(1.0 * (b - a))) else "model_b"
        rows.append({"model_a": MODELS[a], "model_b": MODELS[b], "winner": winner, "voter": f"visitor-{number // 8}"})
    for number in range(colluders * each):
        other = MODELS[1 + int(rng.integers(3))]
        rows.append({"model_a": "ant", "model_b": other, "winner": "model_a", "voter": f"colluder-{number // each}"})
    order = rng.permutation(len(rows)).tolist()
    return [line(place, **rows[row], tstamp=1000.0 + 700 * place) for place, row in enumerate(order)]


def test_colluders_of_a_stream_weigh_little_and_judge_nothing(tmp_path: Path) -> None:
    path = add(tmp_path / "votes.jsonl", arena(1600, colluders=40))
    votes, _ = live(path, held_share=0.2)
    votes.wait_for(10_000)
    said: list[str] = []
    trust = LiveTrust(votes, said.append)
    trust.update(len(votes))
    names = [votes.voters[code] for code in votes.voter_codes().tolist()]
    weights = trust.weights(np.arange(len(votes)))
    of_colluders = np.array([name.startswith("colluder") for name in names])
    assert weights[of_colluders].mean() < 0.05
    assert weights[~of_colluders].mean() > 0.95
    assert "do not vote like people" in said[-1]
    assert "ant is 4 in place of 3" in said[-1]
    held = recent(votes.held, len(votes), 1000, trust)
    judged_by = np.flatnonzero(trust.trusted(votes.held, np.arange(len(votes.held))))
    assert len(held.prompts) == len(judged_by) > 150
    judges = {votes.held.voters[code] for code in votes.held.voter_codes(judged_by).tolist()}
    assert not any(name.startswith("colluder") for name in judges)
    assert len(recent(votes.held, len(votes), 1000).prompts) > len(judged_by)


def test_weights_depend_on_the_votes_that_have_arrived_alone(tmp_path: Path) -> None:
    path = add(tmp_path / "votes.jsonl", arena(800, colluders=20))
    votes, _ = live(path)
    votes.wait_for(10_000)
    steady, resumed = LiveTrust(votes, lambda _: None), LiveTrust(votes, lambda _: None)
    for arrived in range(0, 900, 7):
        steady.update(arrived)
    resumed.update(896)
    ids = np.arange(len(votes))
    assert np.array_equal(steady.weights(ids), resumed.weights(ids))
    assert (steady.weights(np.array([-3, -1])) == 1.0).all()


def test_newcomers_judge_nothing_and_a_file_without_voters_is_judged_as_ever(tmp_path: Path) -> None:
    lines = arena(400, colluders=0) + [line(n, voter=f"new-{n}") for n in range(300)]
    votes, _ = live(add(tmp_path / "votes.jsonl", lines), held_share=0.3)
    votes.wait_for(10_000)
    trust = LiveTrust(votes, lambda _: None)
    trust.update(len(votes))
    ids = np.arange(len(votes.held))
    judges = {votes.held.voters[code] for code in votes.held.voter_codes(ids[trust.trusted(votes.held, ids)]).tolist()}
    assert judges
    assert not any(name.startswith("new") for name in judges)
    nameless, _ = live(add(tmp_path / "nameless.jsonl", [line(n) for n in range(200)]), held_share=0.3)
    nameless.wait_for(10_000)
    free = LiveTrust(nameless, lambda _: None)
    free.update(len(nameless))
    assert free.trusted(nameless.held, np.arange(len(nameless.held))).all()


def test_a_live_run_learns_from_people(tmp_path: Path, config: Path) -> None:
    votes = add(tmp_path / "votes.jsonl", arena(900, colluders=30))
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    ranks = {}
    for name, is_weighed in (("as-they-are", False), ("weighed", True)):
        config.write_text(yaml.safe_dump(settings | {"proj_name": name, "weigh_voters": is_weighed}), encoding="utf-8")
        follow(config, votes)
        coefs = P2L.from_pretrained(tmp_path / "out" / name, device="cpu").predict([["question 1"]]).coefs[0]
        ranks[name] = float(coefs[0] - coefs[3])  # ant above dog
    assert ranks["weighed"] < ranks["as-they-are"] - 0.2
    record = json.loads((tmp_path / "out" / "weighed" / "training_config.json").read_text(encoding="utf-8"))
    assert record["weigh_voters"] is True


def test_a_data_set_is_not_a_stream_of_voters(tmp_path: Path, config: Path) -> None:
    path = add(tmp_path / "votes.jsonl", arena(40, colluders=0))
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    settings |= {"weigh_voters": True, "train_data_path": str(path)}
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    with pytest.raises(ConfigError, match="weigh_voters: goes with --follow"):
        main(["--config", str(config), *QUIET])
