"""How few votes decide ranks, against the plain way: leave out one vote after the other and fit again each time."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from p2l.commands.leaderboard import main
from p2l.leaderboard import Leaderboard, Prior, fit, fit_table, vote_table
from p2l.votes import WINNERS
from tests.conftest import ROOT
from tests.p2l.leaderboard.test_leaderboard import draw_votes, names

PRIOR = Prior(sd=1.0, broad=5.0)


def certified(votes, number, **options) -> Leaderboard:
    return fit_table(vote_table(*votes, number), models=names(number), certified_votes=1, **options)


def refitted(votes, number, likelihood):
    board = fit(*votes, models=names(number), likelihood=likelihood, prior=PRIOR, intervals=None)
    return board.coefs


def greedy(votes, number, likelihood, model, reverse):
    """Return how many votes change the model's rank: for each neighbour, the vote that helps most, again and again."""
    start = refitted(votes, number, likelihood)
    order = np.argsort(-start)
    rank = list(order).index(model)
    best = np.inf
    for other in {order[place] for place in (rank - 1, rank + 1) if 0 <= place < number}:
        a, b, winner = (np.asarray(column).copy() for column in votes)
        sign = np.sign(start[model] - start[other])
        for number_changed in range(1, 25):
            if number_changed >= best:
                break
            trials = []
            for kind in np.unique(np.stack([a, b, winner], axis=1), axis=0):
                if reverse and kind[2] > 1:
                    continue
                row = np.flatnonzero((a == kind[0]) & (b == kind[1]) & (winner == kind[2]))[0]
                trial = changed((a, b, winner), [row], reverse)
                coefs = refitted(trial, number, likelihood)
                trials.append((sign * (coefs[model] - coefs[other]), trial, coefs))
            gap, (a, b, winner), coefs = min(trials, key=lambda entry: entry[0])
            if gap < -1e-6:
                if np.argsort(-coefs)[rank] != model:
                    best = number_changed
                break
    return best


def changed(votes, rows, reverse):
    a, b, winner = (np.asarray(column).copy() for column in votes)
    if reverse:
        winner[rows] = 1 - winner[rows]
        return a, b, winner
    kept = np.ones(len(a), dtype=bool)
    kept[rows] = False
    return a[kept], b[kept], winner[kept]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("likelihood", "seed"), [("bt", 1), ("grk", 2), ("rk", 3)])
def test_the_number_is_that_of_leaving_out_one_vote_after_the_other(likelihood, seed, reverse):
    rng = np.random.default_rng(seed)
    votes = draw_votes(np.array([0.5, 0.2, -0.1, -0.6]), 0.1, 50, rng, likelihood)
    board = certified(votes, 4, likelihood=likelihood, prior=PRIOR)
    found = board.certificate.rank_reversed if reverse else board.certificate.rank_removed
    wanted = [greedy(votes, 4, likelihood, model, reverse) for model in range(4)]
    for number, plain in zip(found, wanted, strict=True):
        assert plain < 25
        assert number <= np.ceil(1.05 * plain), (found, wanted)


@pytest.mark.parametrize("likelihood", ["bt", "bt-tie", "grk", "ba"])
def test_the_votes_that_are_named_change_the_first_place(likelihood):
    rng = np.random.default_rng(5)
    votes = draw_votes(rng.normal(0, 0.4, 12), 0.1, 3000, rng, "grk" if likelihood == "ba" else likelihood)
    board = certified(votes, 12, likelihood=likelihood)
    leader = int(np.argmax(board.coefs))
    assert board.certificate.first == f"m{leader}"
    for change, reverse in ((board.certificate.removed, False), (board.certificate.reversed, True)):
        after = fit(*changed(votes, rows_of(votes, change.votes), reverse), models=names(12), likelihood=likelihood)
        assert after.models[int(np.argmax(after.coefs))] == change.leader != board.certificate.first
        assert change.number == sum(kind.votes for kind in change.votes)


def rows_of(votes, kinds):
    """Return rows of the votes that a certificate names, whichever model was shown first."""
    a, b, winner = (np.asarray(column) for column in votes)
    rows = []
    for kind in kinds:
        first, second, won = int(kind.model_a[1:]), int(kind.model_b[1:]), WINNERS.index(kind.winner)
        same = (a == first) & (b == second) & (winner == won)
        turned = (a == second) & (b == first) & (winner == (1 - won if won < 2 else won))
        rows += np.flatnonzero(same | turned)[: kind.votes].tolist()
    return rows


def test_a_sure_first_place_rests_on_many_votes_and_nothing_is_claimed_of_other_weights():
    a, b = np.zeros(400, dtype=int), np.ones(400, dtype=int)
    winner = np.r_[np.zeros(300, dtype=int), np.ones(100, dtype=int)]
    board = certified((a, b, winner), 2)
    assert board.certificate.removed.number == 201  # 99 wins to 100 losses are left
    assert board.certificate.reversed.number == 101
    assert board.certificate.sentence == (
        "201 votes of 400 decide the first place: without them m1 leads. 101 votes, turned to the other model, would "
        "do too: then m1 leads."
    )
    weights = np.linspace(0.5, 1.5, 400)
    table = vote_table(a, b, winner, 2, weights)
    unequal = fit_table(table, models=names(2), certified_votes=1)
    assert unequal.certificate is None
    assert any("different weights" in note for note in unequal.notes)
    halves = fit_table(vote_table(a, b, winner, 2, np.full(400, 0.5)), models=names(2), certified_votes=1)
    assert halves.certificate.removed.number == 201


def test_a_model_far_behind_with_few_votes_is_tried_too():
    # m2 has lost most of its few votes: it takes fewer to leave these out than to bring m1 in front of m0.
    a = np.r_[np.zeros(6000, dtype=int), np.zeros(40, dtype=int), np.ones(40, dtype=int)]
    b = np.r_[np.ones(6000, dtype=int), np.full(80, 2)]
    winner = np.r_[np.zeros(4500), np.ones(1500), np.zeros(30), np.ones(10), np.zeros(25), np.ones(15)].astype(int)
    board = certified((a, b, winner), 3)
    assert board.certificate.removed.leader == "m2"
    assert board.certificate.removed.number <= 55


def test_models_that_never_met_have_no_ranks_to_certify():
    board = certified(([0, 2, 0], [1, 3, 1], [0, 0, 1]), 4)
    assert board.certificate is None
    assert any("not all models were compared" in note for note in board.notes)


def test_the_command_says_it_in_text_json_and_on_the_page(tmp_path, capsys):
    rng = np.random.default_rng(8)
    a, b, winner = draw_votes(np.array([0.6, 0.55, 0.0, -0.5]), 0.1, 800, rng, "bt")
    frame = pd.DataFrame(
        {
            "model_a": np.array(names(4))[a],
            "model_b": np.array(names(4))[b],
            "winner": np.array(WINNERS)[winner],
        }
    )
    frame.to_csv(tmp_path / "votes.csv", index=False)
    out, page = tmp_path / "board.json", tmp_path / "board.html"
    flags = ["--votes", str(tmp_path / "votes.csv"), "--quiet", "--html", str(page)]
    main([*flags, "--output", str(out)])
    printed = capsys.readouterr().out
    board = json.loads(out.read_text())[0]
    certificate, best = board["certificate"], board["models"][0]
    assert certificate["first"] == best["model"]
    assert certificate["removed"]["number"] == best["rank_removed"]
    sentence = f"of 800 decide the first place: without them {certificate['removed']['leader']} leads."
    assert sentence in " ".join(printed.split())
    assert "rests on" in printed
    assert sentence in page.read_text()
    without_named_votes(frame, certificate["removed"]["votes"]).to_csv(tmp_path / "fewer.csv", index=False)
    main(["--votes", str(tmp_path / "fewer.csv"), "--quiet", "--intervals", "none", "--output", str(out)])
    after = json.loads(out.read_text())[0]
    assert after["models"][0]["model"] == certificate["removed"]["leader"]
    assert after["certificate"] is None  # which goes with intervals


def without_named_votes(frame, kinds):
    rows: list[int] = []
    turned = {"model_a": "model_b", "model_b": "model_a"}
    for kind in kinds:
        same = (
            (frame.model_a == kind["model_a"]) & (frame.model_b == kind["model_b"]) & (frame.winner == kind["winner"])
        )
        swapped = (frame.model_a == kind["model_b"]) & (frame.model_b == kind["model_a"])
        swapped &= frame.winner == turned.get(kind["winner"], kind["winner"])
        rows += frame.index[same | swapped][: kind["votes"]].tolist()
    return frame.drop(index=rows)


DATA = ROOT.parent / "shared" / "data"


@pytest.mark.skipif(not DATA.is_dir(), reason="no public data here")
@pytest.mark.parametrize("name", ["alpaca_eval_battles", "llmfao_votes", "oasst_vicuna_gpt4_battles"])
def test_public_votes_have_a_certificate_that_holds(name, tmp_path):
    out = tmp_path / "board.json"
    main(["--votes", str(DATA / f"{name}.parquet"), "--drop-bad", "--quiet", "--output", str(out)])
    board = json.loads(out.read_text())[0]
    assert board["certificate"]["removed"]["number"] == board["models"][0]["rank_removed"] > 0
