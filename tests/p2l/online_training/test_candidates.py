"""A candidate is shrunk as far as held-out votes ask for, and gets a posterior; the run itself is not touched."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from p2l.inference import P2L
from p2l.likelihood import get
from p2l.model.checkpoint import WEIGHTS_FILE
from p2l.model.posterior import POSTERIOR_FILE
from p2l.online_training.candidates import (
    FEWEST_HELD_OUT_PROMPTS,
    ArrivedVotes,
    HeldOutVotes,
    complete,
    forecast_of,
    one_leaderboard,
)
from p2l.votes import WINNERS, open_votes
from tests.conftest import write_votes
from tests.p2l.serving.conftest import NAMES, make_model

CPU = torch.device("cpu")
COUNT = 400


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("one"), seed=1)


def votes_by(coefs: np.ndarray, seed: int) -> list[list[int]]:
    """Labels of a vote on each row of coefficients, whose eta is zero."""
    rng = np.random.default_rng(seed)
    labels = []
    for row in coefs:
        a, b = rng.choice(len(NAMES), size=2, replace=False)
        outcome = rng.choice(4, p=get("grk").probs(np.float64(row[a]), np.float64(row[b]), np.float64(0.0)))
        labels.append([[a, b, 0], [b, a, 0], [a, b, 1], [a, b, 2]][outcome])
    return labels


def prompts(count: int) -> list[list[str]]:
    return [[f"what is {n} plus {n % 7}"] for n in range(count)]


def arrived(tmp_path: Path, labels: list[list[int]]) -> ArrivedVotes:
    rows = [
        {"prompt": turns, "model_a": NAMES[a], "model_b": NAMES[b], "winner": ("model_a", *WINNERS[2:])[tie]}
        for turns, (a, b, tie) in zip(prompts(len(labels)), labels, strict=True)
    ]
    votes = open_votes(str(write_votes(tmp_path / "arrived.jsonl", rows)), model_list=list(NAMES))
    return ArrivedVotes(votes, len(votes), list(NAMES), list(NAMES))


def held(labels: list[list[int]]) -> HeldOutVotes:
    return HeldOutVotes(prompts(len(labels)), np.array(labels, dtype=np.int32), list(NAMES))


@pytest.fixture
def candidate(model: Path, tmp_path: Path) -> Path:
    shutil.copytree(model, tmp_path / "candidate")
    return tmp_path / "candidate"


def test_a_model_that_knows_nothing_of_prompts_becomes_the_leaderboard(candidate: Path, tmp_path: Path) -> None:
    """All prompts are alike in truth, and the model is one of random weights."""
    truth = np.tile([1.5, 0.5, -0.5, -1.5], (COUNT, 1))
    before = P2L.from_pretrained(candidate, device="cpu")
    votes, judges = arrived(tmp_path, votes_by(truth, 0)), held(votes_by(truth, 1))
    facts = complete(candidate, votes, judges, CPU, is_new=False)
    assert facts["factor"] < 0.5
    assert facts["factor_votes"] == COUNT
    board = one_leaderboard(votes, forecast_of(before, judges.prompts), "grk", weighted=False)
    assert list(np.argsort(-board.coefs)) == [0, 1, 2, 3]
    after = P2L.from_pretrained(candidate, device="cpu")
    expected = facts["factor"] * before.predict(judges.prompts).coefs + (1 - facts["factor"]) * board.coefs
    assert np.allclose(after.predict(judges.prompts).coefs, expected, atol=1e-5)


def test_a_few_votes_do_not_undo_what_a_run_began_with(candidate: Path, tmp_path: Path) -> None:
    """Forty votes say little of a model that is right and hardly tells prompts apart; 0 to 1 are within their noise."""
    weights = (candidate / WEIGHTS_FILE).read_bytes()
    coefs = P2L.from_pretrained(candidate, device="cpu").predict(prompts(COUNT)).coefs
    votes, judges = arrived(tmp_path, votes_by(coefs, 0)), held(votes_by(coefs[:40], 1))
    assert complete(candidate, votes, judges, CPU, is_new=False)["factor"] == 1.0
    assert (candidate / WEIGHTS_FILE).read_bytes() == weights
    assert complete(candidate, votes, judges, CPU, is_new=True)["factor"] == 0.0


def test_a_model_that_is_right_stays_as_it_is(candidate: Path, tmp_path: Path) -> None:
    model = P2L.from_pretrained(candidate, device="cpu")
    coefs = model.predict(prompts(600)).coefs
    inner = model.model
    with torch.no_grad():  # so that prompts differ by far more than noise, and models on average hardly
        scale = 3.0 / float((coefs - coefs.mean(0)).std())
        inner.head.head.bias.sub_(torch.from_numpy(coefs.mean(0))).mul_(scale)
        inner.head.head.weight.mul_(scale)
        inner.head.eta_head.weight.zero_()
        inner.head.eta_head.bias.zero_()
    inner.save_pretrained(candidate)
    weights = (candidate / WEIGHTS_FILE).read_bytes()
    coefs = P2L.from_pretrained(candidate, device="cpu").predict(prompts(600)).coefs
    facts = complete(candidate, arrived(tmp_path, votes_by(coefs, 0)), held(votes_by(coefs, 1)), CPU)
    assert facts["factor"] >= 0.8
    assert facts["factor"] < 1 or (candidate / WEIGHTS_FILE).read_bytes() == weights


@pytest.mark.parametrize("judges", [None, held([[0, 1, 0]] * (FEWEST_HELD_OUT_PROMPTS - 1))])
def test_nothing_is_concluded_from_too_few_prompts(
    candidate: Path, tmp_path: Path, judges: HeldOutVotes | None
) -> None:
    weights = (candidate / WEIGHTS_FILE).read_bytes()
    facts = complete(candidate, arrived(tmp_path, [[0, 1, 0], [2, 3, 0]] * 20), judges, CPU)
    assert facts == ({} if judges is None else {"factor": 1.0, "factor_votes": FEWEST_HELD_OUT_PROMPTS - 1})
    assert (candidate / WEIGHTS_FILE).read_bytes() == weights
    assert not (candidate / POSTERIOR_FILE).exists()


def test_deviations_come_with_it_and_only_a_new_run_shrinks_by_distance(candidate: Path, tmp_path: Path) -> None:
    votes = arrived(tmp_path, votes_by(np.zeros((COUNT, len(NAMES))), 0))
    asked = [*prompts(3), ["write a poem about the sea, at length"]]
    before = P2L.from_pretrained(candidate, device="cpu").predict(asked)
    complete(candidate, votes, None, CPU, is_new=False)
    known = P2L.from_pretrained(candidate, device="cpu").predict(asked)
    assert np.allclose(known.coefs, before.coefs, atol=1e-6)
    assert (known.sd() > 0).all()
    complete(candidate, votes, None, CPU, is_new=True)
    assert not np.allclose(P2L.from_pretrained(candidate, device="cpu").predict(asked).coefs, before.coefs, atol=1e-4)


def test_a_model_without_votes_keeps_its_mean(model: Path, tmp_path: Path) -> None:
    """What a run began with knows models that its stream has not named yet."""
    forecast = forecast_of(P2L.from_pretrained(model, device="cpu"), prompts(30))
    board = one_leaderboard(arrived(tmp_path, [[0, 1, 0]] * 50), forecast, "grk", weighted=False)
    assert board.coefs[2:] == pytest.approx(forecast.coefs.mean(axis=0)[2:])
    assert board.coefs[0] > forecast.coefs.mean(axis=0)[0]
