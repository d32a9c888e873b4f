"""Covariates over HTTP and through the client: asked for, they count in votes on pairs; otherwise they are left out."""

from pathlib import Path

import numpy as np
import pytest

from p2l.client import P2LClient
from p2l.common.errors import BadRequestError
from p2l.leaderboard.controls import Design, Term
from p2l.model.covariates import CovariateEffects
from p2l.model.model import P2LModel
from p2l.model.tokenizer import load_tokenizer
from tests.p2l.serving.conftest import NAMES, Running, Start

PROMPT = "what is 12 plus 34"
SIDE, HARD = 0.7, -0.4


@pytest.fixture
def server(start: Start, folder: Path, tmp_path: Path) -> Running:
    """A model whose votes lean to the answer shown first, and tie less on hard prompts."""
    model = P2LModel.from_pretrained(folder)
    terms = (Term("side", "difference", ()), Term("hard", "ties", ("hard",)))
    model.covariates = CovariateEffects(("side", "hard"), Design(terms), [1.0, 2.0])
    model.covariates.start({("side", "difference"): SIDE, ("hard", "ties"): HARD})
    model.save_pretrained(tmp_path / "model")
    load_tokenizer(folder).save_pretrained(tmp_path / "model")
    return start(model_path=str(tmp_path / "model"))


def test_covariates_count_in_votes_where_they_are_asked_for(server: Running) -> None:
    plain = server.predict([PROMPT]).json()
    pairs = [["ant", "dog"], ["dog", "bee"]]
    body = {"prompt": [PROMPT], "pairs": pairs, "covariates": {"side": -1, "hard": 2.5}}
    answer = server.client.post("/predict", json=body).json()
    assert {name: answer[name] for name in plain} == plain
    assert answer.keys() - plain.keys() == {"votes"}  # intervals of pairs need a posterior
    a, b = zip(*pairs, strict=True)
    expected = server.model.vote_probs([PROMPT] * 2, a, b, {"side": -1, "hard": 2.5})
    for pair, vote, probs in zip(pairs, answer["votes"], expected, strict=True):
        first, second = (NAMES.index(name) for name in pair)
        assert vote["log_odds"] == pytest.approx(plain["coefs"][first] - plain["coefs"][second] - SIDE, abs=1e-5)
        assert list(vote["probs"]) == ["model_a", "model_b", "tie", "tie (bothbad)"]
        assert np.allclose(list(vote["probs"].values()), probs, atol=1e-5)
    left_out = server.model.vote_probs([PROMPT] * 2, a, b)
    assert not np.allclose(expected, left_out, atol=0.01)
    assert server.client.get("/info").json()["covariates"] == ["side", "hard"]


def test_the_client_asks_for_them(server: Running) -> None:
    with P2LClient(server.url) as client:
        first = client.predict(PROMPT, pairs=[("ant", "bee")], covariates={"side": 1}).votes
        swapped = client.predict(PROMPT, pairs=[("bee", "ant")], covariates={"side": -1}).votes
        assert first is not None
        assert swapped is not None
        assert first[0].log_odds == pytest.approx(-swapped[0].log_odds, abs=1e-5)
        assert first[0].probs["model_a"] == pytest.approx(swapped[0].probs["model_b"], abs=1e-5)
        with pytest.raises(BadRequestError, match="covariate 'sid' is unknown"):
            client.predict(PROMPT, pairs=[("ant", "bee")], covariates={"sid": 1})
        with pytest.raises(BadRequestError, match="name the pairs too"):
            client.predict(PROMPT, covariates={"side": 1})


@pytest.mark.parametrize(
    "values",
    [{"side": "left"}, {"side": True, "x" * 201: 1}, {f"c{n}": 1 for n in range(101)}, ["side"]],
)
def test_what_cannot_be_a_covariate_is_refused(shared: Running, values: object) -> None:
    body = {"prompt": [PROMPT], "pairs": [["ant", "bee"]], "covariates": values}
    response = shared.client.post("/predict", json=body)
    assert response.status_code == 422
    assert response.json()["detail"].startswith("covariates")


def test_a_model_without_any_says_so(shared: Running) -> None:
    body = {"prompt": [PROMPT], "pairs": [["ant", "bee"]], "covariates": {"side": 1}}
    response = shared.client.post("/predict", json=body)
    assert response.status_code == 422
    assert "trained without covariates" in response.json()["detail"]
    assert shared.client.get("/info").json()["covariates"] == []
