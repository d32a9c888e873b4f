"""Judges that depend on each other: copies, families, tastes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.coeval_panels import Panel, coverage, has_star, planted
from benchmarks.coeval_planted import arena, write
from coeval.analysis.fit import Fit, fit_table
from coeval.analysis.judge_tests import panel_worth
from coeval.analysis.panel import effective_number, error_correlation, shared_errors
from coeval.analysis.statistics import kendall
from coeval.reports.findings import panel_sentences


def fit_of(panel: Panel) -> Fit:
    fit = fit_table(panel.as_table())
    assert fit is not None
    return fit


@pytest.mark.parametrize(
    ("groups", "errors"),
    [
        ((0, 0, 1, 2), 0.95),
        ((0, 0, 1, 2, 3), 0.98),
        ((0, 1, 0, 1, 0), 0.56),
        ((0, 0, 0, 1, 2), 0.95),
        ((0, 1, 2, 3, 4), 0.9),
    ],
)
def test_errors_in_common_are_found_in_exact_correlations(groups: tuple[int, ...], errors: float) -> None:
    family = np.array(groups)
    truth = np.where(family[:, None] == family, errors, 0.0)
    np.fill_diagonal(truth, 1.0)
    quality = np.full(len(groups), 0.7)
    correlation = np.outer(quality, quality) + truth * (1.0 - 0.49)
    shared = shared_errors(correlation, np.full(correlation.shape, 1e4))
    found = effective_number(error_correlation(shared, quality), 1.0 - quality**2)
    assert found == pytest.approx(effective_number(truth, 1.0 - quality**2), rel=0.03)


def test_sharp_judges_among_blunt_ones_are_no_copies() -> None:
    quality = np.array([0.9, 0.9, 0.5, 0.5, 0.5])
    correlation = np.outer(quality, quality)
    np.fill_diagonal(correlation, 1.0)
    assert not shared_errors(correlation, np.full(correlation.shape, 1e4)).any()


def test_two_copies_count_about_once_and_take_no_panel() -> None:
    taus, plain, weights = [], [], []
    for seed in range(8):
        panel = planted("copies with a taste", seed)
        fit = fit_of(panel)
        taus.append(kendall(panel.quality, fit.score))
        plain.append(kendall(panel.quality, panel.scores.mean(axis=(0, 2))))
        weights.append(fit.judges.information / fit.judges.information.sum())
    assert np.mean(weights, axis=0)[:2].sum() < 0.35
    assert np.mean(taus) > np.mean(plain) + 0.03  # type: ignore[arg-type]


def test_tastes_of_judges_are_in_tests_and_intervals() -> None:
    hits: list[bool] = []
    for seed in range(10):
        panel = planted("tastes", seed)
        hits += coverage(fit_of(panel), panel)
    assert 0.88 <= np.mean(hits) <= 0.99
    assert sum(has_star(fit_of(planted("tastes", seed, equal=True))) for seed in range(20)) <= 3


def test_a_panel_says_how_many_independent_judges_it_is_worth(tmp_path: Path) -> None:
    loaded = write(tmp_path / "run", arena(1, 0.65))
    worth = panel_worth(loaded)
    assert worth is not None
    assert worth.judges == 4  # the random and the constant one tell nothing
    assert worth.lower <= worth.effective <= worth.upper <= 4
    (sentence,) = panel_sentences(worth)
    assert sentence.startswith("4 judges, worth")
