from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.real_votes.agreement import agreement, rank_correlation
from benchmarks.real_votes.neighbours import best_setting, nearest_votes, neighbours, rows_of
from benchmarks.real_votes.parts import (
    Part,
    SidedForecast,
    join_forecasts,
    join_parts,
    mean_loss,
    of_votes,
    read_forecast,
    read_part,
    write_forecast,
)
from benchmarks.real_votes.recipes import RECIPES
from benchmarks.real_votes.sets import SETS, arena_votes, make, oasst_votes, split_by_prompt, votes_from_scores
from benchmarks.real_votes.tables import calibration, measure, table
from benchmarks.real_votes.training import configuration
from p2l.common.errors import InputError
from p2l.training.forecasts import Forecast, marginal, per_category

MODELS = ["ant", "bee", "cat"]


def scores(questions: int = 40) -> pd.DataFrame:
    """Ant answers even questions, bee odd ones, cat none; the last question lacks cat."""
    rows = [
        {"question_id": f"q{q:03}", "prompt": f"question {q}", "category": "even" if q % 2 == 0 else "odd"}
        | {"model": model, "score": float((model == "ant" and q % 2 == 0) or (model == "bee" and q % 2 == 1))}
        for q in range(questions)
        for model in MODELS
        if not (q == questions - 1 and model == "cat")
    ]
    return pd.DataFrame(rows)


def part(prompts: int = 30, each: int = 40) -> Part:
    """Ant beats bee and bee cat on even prompts, the other way round on odd ones, six times in seven."""
    rng = np.random.default_rng(0)
    place = np.repeat(np.arange(prompts), each)
    first = rng.integers(0, 3, len(place))
    pair = np.sort(np.stack([first, (first + rng.integers(1, 3, len(place))) % 3]), axis=0)
    swap = (place % 2 == 1) ^ (rng.random(len(place)) < 1 / 7)
    winner, loser = np.where(swap, pair[::-1], pair)
    labels = np.stack([winner, loser, np.zeros(len(place), int)], axis=1)
    categories = np.where(place % 2 == 0, "even", "odd").astype(object)
    shown_first = np.where(rng.random(len(place)) < 0.5, 1.0, -1.0)
    texts = [[f"{p}"] for p in range(prompts)]
    return Part(MODELS, labels.astype(np.int32), categories, place, place, texts, shown_first)


def test_two_graded_answers_make_a_vote() -> None:
    votes = votes_from_scores(scores(), 5, np.random.default_rng(0))
    assert (votes.groupby("question_id").size() == 5).all()
    assert (votes["model_a"] != votes["model_b"]).all()
    even, asked = votes["category"] == "even", votes[["model_a", "model_b"]].apply(set, axis=1)
    for here, right in ((even, "ant"), (~even, "bee")):
        with_right = here & asked.map(lambda pair, right=right: right in pair)
        won = np.where(votes["winner"] == "model_a", votes["model_a"], votes["model_b"])
        assert (won[with_right] == right).all()
        assert (votes["winner"][here & ~with_right] == "tie (bothbad)").all()
    assert not asked[votes["question_id"] == "q039"].map(lambda pair: "cat" in pair).any()


def test_a_prompt_is_on_one_side_of_a_split() -> None:
    votes = votes_from_scores(scores(), 5, np.random.default_rng(0))
    votes["prompt"] = votes["prompt"].replace("question 3", "question 2")  # one text under two ids
    rest, held = split_by_prompt(votes, 0.25)
    assert not set(rest["prompt"]) & set(held["prompt"])
    assert held["prompt"].nunique() == 10
    again = split_by_prompt(votes.sample(frac=1, random_state=0).sort_values("question_id", kind="stable"), 0.25)[1]
    assert set(again["prompt"]) == set(held["prompt"])


def test_folds_hold_out_other_prompts_each_time() -> None:
    votes = votes_from_scores(scores(), 5, np.random.default_rng(0))
    held = [set(split_by_prompt(votes, 0.25, fold)[1]["question_id"]) for fold in range(4)]
    assert set.union(*held) == set(votes["question_id"])
    assert sum(map(len, held)) == votes["question_id"].nunique()


def test_parts_joined_are_measured_as_their_votes_together() -> None:
    parts = [part(30), part(12)]
    forecasts = [
        Forecast(np.random.default_rng(n).normal(size=(len(p.labels), 3)), None, None) for n, p in enumerate(parts)
    ]
    together, forecast = join_parts(parts), join_forecasts(forecasts)
    assert len(set(together.clusters)) == len(together.prompts) == 42
    assert [together.prompts[place] for place in together.place[-40:]] == [["11"]] * 40
    losses = [mean_loss(one, p, "bt") * len(p.labels) for one, p in zip(forecasts, parts, strict=True)]
    assert mean_loss(forecast, together, "bt") == pytest.approx(sum(losses) / len(together.labels))


def test_votes_with_prompts_of_their_own_are_split_one_by_one() -> None:
    votes = pd.DataFrame({"question_id": [str(n) for n in range(20)], "prompt": ["same tags"] * 20})
    assert [len(side) for side in split_by_prompt(votes, 0.25)] == [15, 5]


def test_battles_of_the_arena_have_their_tags_as_prompt_and_category() -> None:
    battles = pd.DataFrame(
        {"question_id": ["1", "2", "3"], "model_a": ["ant", "bee", "cat"], "model_b": ["bee", "bee", "ant"]}
        | {"winner": ["model_a", "tie", "tie (bothbad)"], "tag_math": [True, False, False]}
        | {"tag_if": [True, False, False], "if_score": [4.0, 0.0, np.nan]}
    )
    votes = arena_votes(battles, 1, np.random.default_rng(0))
    assert list(votes["question_id"]) == ["1", "3"]  # a model against itself is not a vote
    assert list(votes["prompt"]) == ["math, instruction following; instructions 4 of 5", "none; instructions 0 of 5"]
    assert list(votes["category"]) == ["2 tags", "0 tags"]


def test_verdicts_are_kept_up_to_a_number_for_each_prompt() -> None:
    battles = pd.DataFrame(
        {"question_id": ["a"] * 5 + ["b"] * 2, "prompt": [["one"]] * 5 + [["one", "two"]] * 2, "language": "English"}
        | {"model_a": "ant", "model_b": "bee", "winner": "model_a"}
    )
    votes = oasst_votes(battles, 3, np.random.default_rng(0))
    assert votes["question_id"].value_counts().to_dict() == {"a": 3, "b": 2}
    assert set(votes["category"]) == {"another language, one turn", "another language, several turns"}


def test_a_set_is_written_in_parts_that_share_no_prompt(tmp_path: Path) -> None:
    scores(60).to_parquet(tmp_path / "zeroeval_scores.parquet")
    make(SETS["zeroeval"], tmp_path, tmp_path, 50)
    parts = {name: read_part(tmp_path / f"{name}.parquet", MODELS) for name in ("train", "val", "rest", "tune")}
    prompts = {name: {turns[0] for turns in read.prompts} for name, read in parts.items()}
    assert len(prompts["train"] | prompts["val"]) == 50
    assert not prompts["train"] & prompts["val"]
    assert not prompts["rest"] & prompts["tune"]
    assert prompts["rest"] | prompts["tune"] == prompts["train"]
    place = parts["train"].place  # the votes of a prompt stand together
    assert (np.diff(place) != 0).sum() == len(prompts["train"]) - 1
    with pytest.raises(InputError, match="no such file"):
        make(SETS["arena"], tmp_path, tmp_path, 50)


def test_nearest_votes_are_those_of_whole_prompts() -> None:
    of_prompt = rows_of(np.array([1, 0, 1, 2, 2, 2]), 3)
    assert [rows.tolist() for rows in of_prompt] == [[1], [0, 2], [3, 4, 5]]
    similarity = np.array([0.1, 0.9, 0.5])
    assert nearest_votes(similarity, of_prompt, 2).tolist() == [0, 2]
    assert nearest_votes(similarity, of_prompt, 3).tolist() == [0, 2, 3, 4, 5]
    assert len(nearest_votes(similarity, of_prompt, 100)) == 6


def test_neighbours_forecast_what_their_prompts_said() -> None:
    train = part()
    known = np.array([[1.0, 0.0], [0.0, 1.0]])[np.arange(30) % 2]
    said = neighbours(known, train, np.array([[0.9, 0.1], [0.1, 0.9]]), "grk", 200, 0.5)
    assert said.coefs.argmax(axis=1).tolist() == [0, 2]


def test_the_best_setting_has_the_least_loss() -> None:
    assert best_setting(lambda a, b: (a - 2) ** 2 + b, (1, 2, 3), (5, 4)) == (2, 4)


def test_the_right_leaderboard_of_each_category_agrees_better_than_one_for_all() -> None:
    held = part()
    each = per_category(held.labels, held.categories, held.categories, MODELS, "grk")
    forecasts = {"one": marginal(held.labels, len(held.labels), MODELS, "grk"), "each": each}
    found = agreement(forecasts, held, "grk", draws=5, seed=0)
    assert found["each"].estimate > found["one"].estimate
    assert found["each"].lower <= found["each"].estimate <= found["each"].upper
    assert rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])) == pytest.approx(-1)

    lines = measure(forecasts, {"one": "one for all", "each": "each its own"}, ("one",), held, "grk")
    gain = lines[1].less_than["one"]
    assert gain.lower > 0
    assert gain.estimate == pytest.approx(lines[0].loss.estimate - lines[1].loss.estimate)
    text = table(lines, {"one": "one"})
    assert "| each its own | " in text
    assert f"{gain.estimate:+.4f}" in text


def test_a_forecast_of_the_true_chances_is_calibrated() -> None:
    held = part(200)
    known = per_category(held.labels, held.categories, held.categories, MODELS, "grk")
    middle = known.coefs.mean(axis=1, keepdims=True)
    good = calibration(known, held, "grk")
    sure = calibration(Forecast(middle + 4 * (known.coefs - middle), known.eta), held, "grk")
    assert good.lower <= good.estimate <= good.upper
    assert good.estimate < 0.05 < sure.estimate


def test_forecasts_are_kept_and_spread_over_votes(tmp_path: Path) -> None:
    held = part(3, 2)
    said = Forecast(np.arange(9.0).reshape(3, 3), np.array([0.1, 0.2, 0.3]))
    write_forecast(tmp_path / "kept.npz", said)
    again = read_forecast(tmp_path / "kept.npz")
    np.testing.assert_array_equal(again.coefs, said.coefs)
    assert again.gamma is None
    spread = of_votes(again, held.place)
    assert spread.coefs.shape == (6, 3)
    assert mean_loss(spread, held, "grk") > 0


def test_what_being_shown_first_is_worth_is_kept_and_counts(tmp_path: Path) -> None:
    known = part(30)
    # In ten of eleven votes the winner was shown first: a lean of log 10 beyond what the prompts say.
    first = np.where(np.arange(len(known.labels)) % 11 > 0, 1.0, -1.0)
    held = replace(known, shown_first=first)
    plain = Forecast(np.zeros((30, 3)), None)
    sided = SidedForecast(plain.coefs, None, None, side=np.full(30, np.log(10)))
    write_forecast(tmp_path / "kept.npz", sided)
    votes = of_votes(read_forecast(tmp_path / "kept.npz"), held.place)
    assert mean_loss(of_votes(plain, held.place), held, "bt") == pytest.approx(np.log(2))
    share = (first > 0).mean()
    assert mean_loss(votes, held, "bt") == pytest.approx(-share * np.log(10) + np.log(11))
    turned = replace(held, shown_first=-first)
    assert mean_loss(votes, turned, "bt") > mean_loss(votes, held, "bt")
    together = join_forecasts([votes, votes])
    assert mean_loss(together, join_parts([held, held]), "bt") == pytest.approx(mean_loss(votes, held, "bt"))


def test_a_step_takes_whole_prompts_with_all_their_votes() -> None:
    config = configuration(RECIPES["tiny"], "zeroeval", "grk", part(100, 10))
    assert config["batch_size"] % 10 == 0
    assert config["shuffle"] == "by_prompt"
    assert config["warmup_steps"] >= 1
    alone = part(600, 1)
    assert configuration(RECIPES["tiny"], "arena", "grk", alone)["shuffle"] is True
