"""Votes of people and judges in a run: what is trained on, what chooses, and what a resumed run knows."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from p2l.common.errors import ConfigError
from p2l.online_training.online_config import OnlineConfig
from p2l.people import SourceFit, Voter
from p2l.people.runs import VoteAdjustments, of_people, sources_of, terms_of, to_text
from p2l.training.loop import RunOptions
from p2l.training.offline import train
from p2l.training.selection import hold_out, to_choose_by
from p2l.training.train_config import load_config, load_config_as
from p2l.votes import open_votes
from tests.conftest import Configure, write_votes
from tests.p2l.people.people_votes import SHARP, SIDED, cast

SOURCED = {"people": "human", "weigh_voters": True, "shuffle": True}


@pytest.fixture(scope="module")
def votes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 votes of people, of whom one is rigged, and 200 verdicts of each of two judges, on common prompts."""
    rng = np.random.default_rng(0)
    rows = [*cast(200, "human", rng), *cast(200, SHARP, rng), *cast(200, SIDED, rng)]
    for number, row in enumerate(rows):
        row["prompt"] = f"prompt {number % 150}"
        if row["voter"] == "voter-2":
            row["winner"] = "model_a"
    return write_votes(tmp_path_factory.mktemp("sourced") / "votes.jsonl", rows)


def test_terms_scale_coefficients_about_gamma() -> None:
    terms = VoteAdjustments(torch.tensor([2.0, 1.0]), torch.zeros(2, 3), np.ones(2))
    coefs, gamma = torch.tensor([[1.0, 3.0], [1.0, 3.0]]), torch.tensor([1.0, 0.5])
    assert terms.scaled(coefs, None).tolist() == [[2.0, 6.0], [1.0, 3.0]]
    assert terms.scaled(coefs, gamma).tolist() == [[1.0, 5.0], [1.0, 3.0]]
    twice = terms.repeated(2, torch.device("cpu"))
    assert twice.scale.tolist() == [2.0, 1.0, 2.0, 1.0]


def test_voters_who_vote_often_are_not_called_rigged() -> None:
    voters = (Voter("rig", 90, 0.01, 0.01), Voter("busy", 80, 0.99, 0.3), Voter("calm", 5, 0.99, 0.99))
    assert to_text(SourceFit(np.zeros(2), None, (), voters), None).splitlines() == [
        "voters unlike people, whose votes count for less than half: 1 of 3, with 90 votes",
        "voters with so many votes that each counts for less than half: 1 of 3, with 80 votes",
    ]


def test_people_choose_on_prompts_that_nobody_trains_on(configure: Configure, votes: Path) -> None:
    config = load_config(configure(**SOURCED, selection_share=0.3))
    with open_votes(str(votes)) as store:
        parts = hold_out(store, config)
        assert parts is not None
        trained, chosen = parts
        assert {row["source"] for row in chosen.rows()} == {"human"}
        assert {row["source"] for row in trained.rows()} == {"human", SHARP, SIDED}
        assert not set(map(str, trained.prompts())) & set(map(str, chosen.prompts()))
        assert len(of_people(store, config)) == 200
        fit = sources_of(trained, config)
        weights = to_choose_by(chosen, config, fit).weights
        rigged = np.array([row["voter"] == "voter-2" for row in chosen.rows()])
        assert weights[rigged].max(initial=0.0) < weights[~rigged].min()
        terms = terms_of(trained, config)
        assert terms is not None
        assert len(set(terms.scale.tolist())) == 3
        assert terms_of(store, load_config(configure())) is None


def test_voters_who_are_trusted_all_count_alike(configure: Configure, tmp_path: Path) -> None:
    rows = cast(400, "human", np.random.default_rng(1))
    config = load_config(configure(weigh_voters=True))
    with open_votes(str(write_votes(tmp_path / "votes.jsonl", rows))) as store:
        assert {one.weight for one in sources_of(store, config).voters} == {1.0}


@pytest.mark.slow
def test_a_resumed_run_has_the_terms_of_the_first(configure: Configure, votes: Path) -> None:
    settings = {**SOURCED, "train_data_path": str(votes), "val_data_path": None, "cross_fit": 2, "batch_size": 16}
    options = RunOptions(eval_steps=1000, quiet=True, save_steps=1)
    first = train(str(configure(**settings)), options)
    comparison = json.loads((first / "comparison.json").read_text(encoding="utf-8"))
    assert (comparison["votes"], comparison["folds"]) == (200, 2)
    found = json.loads((first / "sources.json").read_text(encoding="utf-8"))
    assert set(found["loss"]) == {"people alone", "with judges"}
    whole = (first / "model.safetensors").read_bytes()
    (first / "model.safetensors").unlink()
    (first / "sources.json").unlink()
    again = train(str(configure(**settings)), replace(options, checkpoint=str(min(first.glob("checkpoint-*")))))
    assert again == first
    assert (again / "model.safetensors").read_bytes() == whole
    assert json.loads((first / "sources.json").read_text(encoding="utf-8")) == found


def test_what_sources_do_not_go_with_is_refused(configure: Configure) -> None:
    with pytest.raises(ConfigError, match="people: judges are fitted to all votes"):
        load_config_as(OnlineConfig, configure(people="human"))


def test_covariates_are_those_of_peoples_votes(configure: Configure, tmp_path: Path) -> None:
    """The side that people take, a judge's lean and a rigged voter are told apart, and together they forecast best."""
    rng = np.random.default_rng(2)
    people = cast(600, "human", rng, side=0.8)
    for row in people:
        if row["voter"] in {"voter-2", "voter-9", "voter-17"}:
            row["winner"] = "model_b"
    rows = [*people, *cast(900, SHARP, rng), *cast(900, SIDED, rng)]
    places = {
        "train_data_path": str(write_votes(tmp_path / "train.jsonl", rows)),
        "val_data_path": str(write_votes(tmp_path / "held_out.jsonl", cast(800, "human", rng, side=0.8))),
    }
    kinds = {"head_type": "rk", "loss_type": "grk", "init_type": "marginal", "shuffle": True, "batch_size": 100}
    losses = {}
    for name, settings in {
        "together": {"people": "human", "weigh_voters": True, "covariates": ["side"]},
        "side": {"covariates": ["side"]},
        "sources": {"people": "human", "weigh_voters": True},
    }.items():
        path = configure(f"{name}.yaml", proj_name=name, learning_rate=1e-3, **kinds, **places, **settings)
        folder = train(str(path), RunOptions(eval_steps=1000, quiet=True))
        results = json.loads((folder / "eval_results.json").read_text(encoding="utf-8"))
        losses[name] = results.get("covariates", results)["Loss"]
    assert losses["together"] < min(losses["side"], losses["sources"]) - 0.002

    folder = tmp_path / "out" / "together"
    stored = json.loads((folder / "covariates.json").read_text(encoding="utf-8"))
    (side,) = stored["covariates"]
    assert side["lower"] < 0.8 < side["upper"]
    assert stored["votes"] < 601
    sources = json.loads((folder / "sources.json").read_text(encoding="utf-8"))
    assert sources["judges"][1]["side"] == pytest.approx(0.9, abs=0.35)
    assert sources["covariates"][0]["coef"] == pytest.approx(side["effect"], abs=0.15)
    weights = {voter["name"]: voter["weight"] for voter in sources["voters"]}
    assert max(weights[name] for name in ("voter-2", "voter-9", "voter-17")) < 0.1 < np.median(list(weights.values()))
