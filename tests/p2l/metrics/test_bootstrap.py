from __future__ import annotations

import numpy as np
import pytest

from p2l.common.bootstrap import anytime_interval
from p2l.common.errors import ConfigError
from p2l.metrics import bootstrap_mean, bootstrap_ratio, bootstrap_skill


def test_the_standard_error_of_independent_votes_is_the_textbook_one():
    values = np.random.default_rng(0).normal(3.0, 2.0, 1_500)
    interval = bootstrap_mean(values)
    assert interval.estimate == pytest.approx(values.mean())
    assert interval.standard_error == pytest.approx(values.std() / 1_500**0.5, rel=0.08)
    assert interval.upper - interval.lower == pytest.approx(2 * 1.96 * interval.standard_error, rel=0.1)


def test_dealing_many_clusters_into_groups_keeps_the_standard_error():
    values = np.random.default_rng(0).exponential(size=200_000)
    assert bootstrap_mean(values).standard_error == pytest.approx(values.std() / 200_000**0.5, rel=0.08)


def test_votes_of_one_prompt_are_drawn_together():
    rng = np.random.default_rng(1)
    prompts = np.repeat(np.arange(300), 20)
    values = rng.normal(size=300)[prompts] + 0.1 * rng.normal(size=6_000)
    means = np.array([values[prompts == prompt].mean() for prompt in range(300)])
    together, alone = bootstrap_mean(values, clusters=prompts), bootstrap_mean(values)
    assert together.standard_error == pytest.approx(means.std() / 300**0.5, rel=0.08)
    assert together.standard_error > 3 * alone.standard_error


def test_codes_of_clusters_may_be_any_integers():
    values = np.random.default_rng(2).normal(size=60)
    codes = np.arange(60) // 3
    assert bootstrap_mean(values, clusters=codes) == bootstrap_mean(values, clusters=codes * 1_000_003 - 7)


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(3)
    hits = 0
    for seed in range(150):
        effects = rng.normal(size=60)
        interval = bootstrap_mean(
            np.repeat(effects, 2), clusters=np.repeat(np.arange(60), 2), level=0.9, replicates=200, seed=seed
        )
        hits += interval.lower < 0 < interval.upper
    assert 0.82 < hits / 150 < 0.96


def test_a_seed_gives_the_same_interval_again():
    values = np.random.default_rng(4).normal(size=100)
    assert bootstrap_mean(values, seed=5) == bootstrap_mean(values, seed=5)
    assert bootstrap_mean(values, seed=5) != bootstrap_mean(values, seed=6)


def test_weights_and_missing_values():
    values = np.array([1.0, 2.0, np.nan, 4.0])
    assert bootstrap_mean(values, weights=[1, 1, 5, 2]).estimate == pytest.approx(11 / 4)


def test_several_metrics_are_drawn_together():
    values = np.random.default_rng(5).normal(size=(100, 3))
    joint = bootstrap_mean(values)
    assert joint.lower.shape == (3,)
    single = bootstrap_mean(values[:, 1])
    assert (joint.lower[1], joint.upper[1]) == pytest.approx((single.lower, single.upper))


def test_skill_over_itself_is_zero_without_doubt():
    losses = np.random.default_rng(6).exponential(size=50)
    assert bootstrap_skill(losses, losses)[:3] == pytest.approx((0, 0, 0))
    better = bootstrap_skill(0.5 * losses, losses)
    assert (better.estimate, better.lower, better.upper) == pytest.approx((0.5, 0.5, 0.5))


def test_mistakes_are_named():
    ones = np.ones(3)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        bootstrap_mean(ones, level=95)
    with pytest.raises(ConfigError, match="too few"):
        bootstrap_mean(ones, replicates=1)
    with pytest.raises(ConfigError, match="one code for each vote"):
        bootstrap_mean(ones, clusters=[0, 1])
    with pytest.raises(ConfigError, match="nothing to draw"):
        bootstrap_ratio(ones, 0 * ones)
    with pytest.raises(ConfigError, match="nothing to draw"):
        bootstrap_mean(np.full(3, np.nan))


def test_an_anytime_interval_has_the_truth_however_often_one_looks() -> None:
    rng = np.random.default_rng(0)
    looks = range(100, 3001, 50)
    missed_any_time = missed_one_look = 0
    for _ in range(300):
        values = rng.random(3000) < 0.3
        errors = {count: float(values[:count].std() / np.sqrt(count)) for count in looks}
        means = {count: float(values[:count].mean()) for count in looks}
        intervals = [anytime_interval(means[count], errors[count], count) for count in looks]
        missed_any_time += any(not each.lower <= 0.3 <= each.upper for each in intervals)
        missed_one_look += any(abs(means[count] - 0.3) > 1.96 * errors[count] for count in looks)
    assert missed_any_time <= 15  # one in twenty
    assert missed_one_look > 60


def test_an_anytime_interval_of_few_units_is_infinite() -> None:
    interval = anytime_interval(0.5, 0.1, 29)
    assert (interval.lower, interval.upper) == (-np.inf, np.inf)
    assert anytime_interval(0.5, 0.1, 30).upper < np.inf
