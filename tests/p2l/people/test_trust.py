"""How far voters are trusted: rigged ones little, people fully, and nobody beyond a share of the votes."""

from __future__ import annotations

import numpy as np
import pytest

from p2l.people import fit_sources
from p2l.votes import WINNERS
from tests.p2l.people.people_votes import MODELS, TRUTH, cast, sourced


def rigged(rows: list[dict[str, object]], how: str, rng: np.random.Generator) -> list[dict[str, object]]:
    """Return votes that a fifth of their voters cast for a model, for the first answer, or at random."""
    worst = MODELS[int(TRUTH.argmin())]
    out = []
    for row in rows:
        winner = row["winner"]
        if int(str(row["voter"]).partition("-")[2]) % 5 == 0:
            if how == "side":
                winner = "model_a"
            elif how == "random":
                winner = WINNERS[rng.integers(4)]
            elif worst in (row["model_a"], row["model_b"]):
                winner = "model_a" if row["model_a"] == worst else "model_b"
        out.append({**row, "winner": winner})
    return out


@pytest.mark.parametrize(("how", "separation"), [("side", 0.8), ("model", 0.4)])
def test_rigged_voters_are_trusted_less(how: str, separation: float) -> None:
    rng = np.random.default_rng(1)
    votes = sourced(rigged(cast(3000, "human", rng), how, rng))
    trust = {one.name: one.trust for one in fit_sources(votes, "grk").voters}
    assert len(trust) == 150
    bad = [value for name, value in trust.items() if int(name.partition("-")[2]) % 5 == 0]
    good = [value for name, value in trust.items() if int(name.partition("-")[2]) % 5]
    assert np.mean(good) > np.mean(bad) + separation
    assert np.mean(good) > 0.9


def test_random_voters_are_told_by_many_votes_and_else_do_little_harm() -> None:
    rng = np.random.default_rng(1)
    rows = rigged(cast(12_000, "human", rng), "random", rng)
    few = {one.name: one.trust for one in fit_sources(sourced(rows[:3000]), "grk").voters}
    assert min(few.values()) > 0.5
    many = [{**row, "voter": f"voter-{int(row['voter'].partition('-')[2]) % 20}"} for row in rows]
    trust = {one.name: one.trust for one in fit_sources(sourced(many), "grk").voters}
    bad = [value for name, value in trust.items() if int(name.partition("-")[2]) % 5 == 0]
    good = [value for name, value in trust.items() if int(name.partition("-")[2]) % 5]
    assert np.mean(good) > np.mean(bad) + 0.8


def test_rigged_voters_do_little_harm() -> None:
    rng = np.random.default_rng(2)
    honest = cast(3000, "human", rng)
    votes = rigged(honest, "model", rng)
    errors = {
        "honest": np.std(fit_sources(sourced(honest), "grk").coefs - TRUTH),
        "weighed": np.std(fit_sources(sourced(votes), "grk").coefs - TRUTH),
        "as they are": np.std(fit_sources(sourced([{**row, "voter": None} for row in votes]), "grk").coefs - TRUTH),
    }
    assert errors["weighed"] < errors["honest"] + 0.5 * (errors["as they are"] - errors["honest"])


def test_people_are_trusted() -> None:
    fit = fit_sources(sourced(cast(2000, "human", np.random.default_rng(4))), "grk")
    assert min(one.trust for one in fit.voters) > 0.5
    assert np.mean([one.trust for one in fit.voters]) > 0.97


def test_no_voter_counts_for_more_than_a_share() -> None:
    rows = cast(3000, "human", np.random.default_rng(5))
    rows = [{**row, "voter": "busy" if place < 600 else row["voter"]} for place, row in enumerate(rows)]
    voters = {one.name: one for one in fit_sources(sourced(rows), "grk").voters}
    assert voters["busy"].votes == 600
    assert voters["busy"].weight * 600 <= 30.0 + 1e-6
    assert voters["voter-100"].weight == pytest.approx(voters["voter-100"].trust)
