"""The row of a new model: a prior of the known ones, votes or answers, and what is worth asking."""

import numpy as np
import pytest

from benchmarks.new_rows import Chances
from p2l.common.errors import InputError
from p2l.likelihood import get
from p2l.newcomers.rows import (
    answers_of_new,
    expected_scores,
    fit_answer_scale,
    fit_row,
    fit_row_prior,
    fit_row_to_labels,
    probes,
    votes_on_new,
)
from p2l.people.voters import organisation_of

PROMPTS, KNOWN = 300, 24


def world(seed: int, models: int = KNOWN + 1) -> np.ndarray:
    """Coefficients (P, M): a level, and a score on one direction in which prompts differ."""
    rng = np.random.default_rng(seed)
    kind = rng.normal(size=PROMPTS)
    return rng.normal(0, 0.6, models) + kind[:, None] * rng.normal(0, 0.5, models)


def votes(coefs: np.ndarray, other: np.ndarray, likelihood: str, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Whether the new model stands first in the label, and the tie, of a vote for each row."""
    probs = get(likelihood).probs(coefs, other, np.zeros(len(coefs)), np.zeros(len(coefs)))
    outcome = np.array([rng.choice(len(row), p=row / row.sum()) for row in probs])
    names = np.array(get(likelihood).outcomes)[outcome]
    ties = np.select([names == "tie", names == "bothbad"], [1, 2], 0)
    return names != "loss", ties


def test_without_votes_it_is_the_mean_and_as_wide_as_the_known_models() -> None:
    known = world(0)[:, :KNOWN]
    prior = fit_row_prior(known)
    row = fit_row(prior, known[:0], votes_on_new(get("bt"), np.zeros(0), np.zeros(0, bool), np.zeros(0, int)))
    np.testing.assert_allclose(row.coefs(known), known.mean(axis=1), atol=1e-9)
    spread = (known - known.mean(axis=1, keepdims=True)).std()
    assert row.sd(known).mean() == pytest.approx(spread, rel=0.2)


@pytest.mark.parametrize("likelihood", ["bt", "bt-tie", "rk", "grk", "ba"])
def test_many_votes_give_the_row_and_a_mixture_of_known_rows_is_that_row(likelihood: str) -> None:
    coefs = world(1)
    known, truth = coefs[:, :KNOWN], coefs[:, KNOWN]
    rng = np.random.default_rng(2)
    rows, others = rng.integers(PROMPTS, size=4000), rng.integers(KNOWN, size=4000)
    beaten = known[rows, others]
    is_first, ties = votes(truth[rows], beaten, likelihood, rng)
    zeros = np.zeros(len(rows))
    row = fit_row(
        fit_row_prior(known), known[rows], votes_on_new(get(likelihood), beaten, is_first, ties, zeros, zeros)
    )
    error = row.coefs(known) - truth
    assert np.abs(error).mean() < 0.15
    assert np.mean(np.abs(error) < 3 * row.sd(known)) > 0.9
    mixture, shift = row.prior.combination(row.theta)
    assert mixture.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(known @ mixture + shift, row.coefs(known), atol=1e-9)


def test_what_covariates_add_to_votes_is_not_taken_for_the_new_model() -> None:
    """Half of the votes are of a set that marks all answers lower, and that asks about the new model alone."""
    coefs = world(3)
    known, truth = coefs[:, :KNOWN], coefs[:, KNOWN]
    rng = np.random.default_rng(4)
    rows, others = rng.integers(PROMPTS, size=3000), rng.integers(KNOWN, size=3000)
    level = np.where(rng.integers(2, size=3000), -1.5, 0.0)
    is_first, ties = votes(truth[rows] + level, known[rows, others] + level, "grk", rng)
    labels = np.where(is_first[:, None], [KNOWN, 0], [0, KNOWN])
    labels[np.arange(3000), np.where(is_first, 1, 0)] = others
    errors = []
    for shift in (None, np.column_stack([level, level, np.zeros(3000)])):
        row = fit_row_to_labels(
            fit_row_prior(known),
            get("grk"),
            np.column_stack([labels, ties]),
            model=KNOWN,
            known=known[rows],
            coefs=known[rows],
            eta=np.zeros(3000),
            gamma=None,
            shift=shift,
        )
        errors.append((row.coefs(known) - truth).mean())
    assert errors[0] < -0.2
    assert abs(errors[1]) < 0.1


def test_few_votes_are_forecast_better_than_with_a_broad_prior_and_intervals_hold() -> None:
    excess, covered = {"fitted": 0.0, "broad": 0.0}, []
    for seed in range(12):
        coefs = world(seed)
        known, truth = coefs[:, :KNOWN], coefs[:, KNOWN]
        rng = np.random.default_rng(seed)
        rows, others = rng.integers(PROMPTS, size=10), rng.integers(KNOWN, size=10)
        is_first, ties = votes(truth[rows], known[rows, others], "bt", rng)
        observed = votes_on_new(get("bt"), known[rows, others], is_first, ties)
        prior = fit_row_prior(known)
        broad = type(prior)(
            prior.weights,
            prior.shifts,
            prior.mean,
            np.diag([25.0, 1e-6, 1e-6, 1e-6, 1e-6])[: len(prior.mean), : len(prior.mean)],
            0.0,
        )
        for name, one in (("fitted", prior), ("broad", broad)):
            row = fit_row(one, known[rows], observed)
            excess[name] += float(((row.coefs(known) - truth) ** 2).mean()) / 12
            if name == "fitted":
                covered.append(np.abs(row.coefs(known) - truth) < 1.96 * row.sd(known))
    assert excess["fitted"] < 0.8 * excess["broad"]
    assert np.mean(covered) > 0.85


def test_models_of_one_organisation_draw_a_new_one_to_their_own() -> None:
    """Eight organisations of three models that hardly differ; the new one is of the best."""
    levels = np.repeat(np.linspace(-1.0, 1.0, 8), 3) + np.tile([-0.02, 0.0, 0.02], 8)
    names = [f"house{group}/m{n}" for group in range(8) for n in range(3)]
    kin = [organisation_of(name) for name in names]
    alone, own = fit_row_prior(levels[None]), fit_row_prior(levels[None], kin, "house7")
    assert alone.mean[0] == 0.0
    assert own.mean[0] == pytest.approx(1.0, abs=0.05)
    assert own.covariance[0, 0] < 0.1 * alone.covariance[0, 0]
    # Where organisations tell nothing, they change nothing.
    mixed = fit_row_prior(levels[None], [kin[n % 8 * 3] for n in range(24)], "house7")
    assert abs(mixed.mean[0]) < 0.4
    assert (organisation_of("gpt-4o-mini"), organisation_of("Meta/llama-3")) == ("gpt", "meta")


def test_graded_answers_count_for_how_hard_a_prompt_was_for_the_others() -> None:
    rng = np.random.default_rng(5)
    errors = {"item": [], "alone": []}
    for seed in range(30):
        coefs = world(seed)
        coefs[:, KNOWN] = coefs[:, :KNOWN].mean(axis=1) + 1.2  # as good as the best, which a prior has to learn
        known, truth = coefs[:, :KNOWN], coefs[:, KNOWN]
        rows = rng.integers(PROMPTS, size=20)
        hard = rng.normal(0, 1.5, 20)
        scores = (rng.random((20, KNOWN + 1)) < 1 / (1 + np.exp(-coefs[rows] - hard[:, None]))).astype(float)
        scale, own = fit_answer_scale(known[rows], scores[:, :KNOWN])
        assert np.corrcoef(own, hard)[0, 1] > 0.8
        prior = fit_row_prior(known)
        for name, logits in (("item", own), ("alone", np.zeros(20))):
            row = fit_row(prior, known[rows], answers_of_new(scale, logits, scores[:, KNOWN]))
            errors[name].append((row.coefs(known) - truth).mean() ** 2)
    assert np.mean(errors["item"]) < np.mean(errors["alone"])
    there = ~np.isnan(scores[:, :KNOWN])
    chances = Chances.fit(known[rows][there], scores[:, :KNOWN][there])
    assert chances.at(np.array([-9.0, 9.0])) == pytest.approx([0.0, 1.0], abs=0.05)


def test_chances_at_prompts_of_which_nothing_is_known_are_the_shares_of_right_answers() -> None:
    """What is a prompt's own pulls chances to one half; the scale given the prompt is steeper."""
    rng = np.random.default_rng(6)
    coefs = rng.normal(0.0, 1.5, (4000, 8))
    own = rng.normal(0.0, 2.0, 4000)
    scores = (rng.random(coefs.shape) < 1 / (1 + np.exp(-coefs - own[:, None]))).astype(float)
    scores[::7, 3] = np.nan
    scale, easier = fit_answer_scale(coefs, scores)
    assert np.corrcoef(easier, own)[0, 1] > 0.8
    there = ~np.isnan(scores)
    chances = Chances.fit(coefs[there], scores[there])
    assert chances.slope < 0.8 * scale.slope
    for low in (-2.0, 0.0, 1.5):
        near = (np.abs(coefs - low) < 0.25) & ~np.isnan(scores)
        assert chances.at(coefs[near]).mean() == pytest.approx(scores[near].mean(), abs=0.03)
    assert chances.at(np.array([2.0]), 3.0) < chances.at(np.array([2.0]))


def test_intervals_of_a_mean_score_hold_it_and_are_narrower_than_the_share_of_right_answers() -> None:
    """Known models' answers say how hard the other prompts are; ten answers of the new one then tell its mean score."""
    held, widths, errors, shares = [], [], [], []
    for seed in range(60):
        rng = np.random.default_rng([seed, 8])
        coefs = world(seed)
        known, hard = coefs[:, :KNOWN], rng.normal(0.0, 1.5, PROMPTS)
        scores = (rng.random(coefs.shape) < 1 / (1 + np.exp(-coefs - hard[:, None]))).astype(float)
        scale, own = fit_answer_scale(known, scores[:, :KNOWN])
        asked, rest = np.split(rng.permutation(PROMPTS), [10])
        row = fit_row(fit_row_prior(known), known[asked], answers_of_new(scale, own[asked], scores[asked, KNOWN]))
        expected = expected_scores(scale, row, known[rest], own[rest], np.ones((len(rest), KNOWN), dtype=bool))
        truth = scores[rest, KNOWN].mean()
        assert expected.mean == pytest.approx(expected.scores.mean())
        held.append(abs(expected.mean - truth) < 1.96 * expected.sd)
        widths.append(expected.sd)
        errors.append(abs(expected.mean - truth))
        shares.append(abs(scores[asked, KNOWN].mean() - truth))
    assert 0.85 <= np.mean(held) <= 1.0
    assert np.mean(errors) < 0.8 * np.mean(shares)
    assert max(widths) < 0.15


def test_a_few_grades_of_known_models_tell_little_of_other_prompts() -> None:
    known = world(4)[:, :KNOWN]
    prior = fit_row_prior(known)
    widths = []
    for prompts in (4, 40):
        scores = np.full((prompts, KNOWN), np.nan)
        scores[:, :2] = 1.0
        scores[::2, 1] = 0.0
        scale, own = fit_answer_scale(known[:prompts], scores)
        row = fit_row(prior, known[:2], answers_of_new(scale, own[:2], np.ones(2)))
        there = ~np.isnan(scores[2:])
        widths.append(expected_scores(scale, row, known[2:prompts], own[2:], there).sd)
    assert widths[0] > 0.2
    assert widths[0] > 1.5 * widths[1]


def test_chosen_probes_leave_less_open_than_any_twenty() -> None:
    known = world(3)[:, :KNOWN]
    prior, weight = fit_row_prior(known), np.full(PROMPTS, 0.25)

    def left(rows: np.ndarray) -> float:
        design = prior.design(known[rows])
        covariance = np.linalg.inv(np.linalg.inv(prior.covariance) + 0.25 * design.T @ design)
        whole = prior.design(known)
        return float((whole @ covariance * whole).sum())

    chosen = probes(prior, known, weight, 20)
    assert len(set(chosen.tolist())) == 20
    drawn = [left(np.random.default_rng(seed).choice(PROMPTS, 20, replace=False)) for seed in range(20)]
    assert left(chosen) < min(drawn)
    assert len(probes(prior, known[:5], weight[:5], 20)) == 5


def test_one_known_model_is_too_few() -> None:
    with pytest.raises(InputError, match="at least two known models"):
        fit_row_prior(np.zeros((3, 1)))
