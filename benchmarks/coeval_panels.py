"""Panels of judges with planted errors: what CoEval's fit makes of those that depend on each other.

python -m benchmarks.coeval_panels [--runs 40] [--equal-runs 200] [--stopping]

Scores are drawn as the fit reads them, without files. The fit stands beside the mean of all scores of each student.
Stars are counted in runs of equal students, one or more in a run being one; the effective number of judges is compared
with that of the errors that were planted. Seeds are 0, 1, 2, ...
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from benchmarks.tables import share, table
from coeval.analysis.fit import Fit, fit_table
from coeval.analysis.panel import ScoreTable, effective_number
from coeval.analysis.statistics import holm, kendall
from coeval.analysis.students import fitted_pairs
from coeval.planning.stopping import first_place, looks

Floats = npt.NDArray[np.float64]
SETTINGS = (
    "independent",
    "copies",
    "copies with a taste",
    "families",
    "tastes",
    "adversary",
    "adversary among four",
    "adversary among three",
    "random",
    "sharp",
    "missing",
    "missing by student",
    "two judges",
    "two judges with strong tastes",
)
_JUDGES = {"adversary among four": 4, "adversary among three": 3, "two judges": 2, "two judges with strong tastes": 2}
_TASTES = {"tastes": 0.4, "two judges": 0.2, "two judges with strong tastes": 0.5}  # standard deviations
_SCORE_OF_QUALITY = 0.12  # score for a quality of 1, so that few scores meet an end of the scale


@dataclass(frozen=True)
class Panel:
    """Scores of every judge of every answer, and the truth."""

    scores: Floats  # (D, S, J), NaN where there is none
    quality: Floats  # (S,)
    correlation: Floats  # (J, J): of errors

    def as_table(self) -> ScoreTable:
        """Return the scores as the fit takes them."""
        items, students, judges = self.scores.shape
        return ScoreTable(
            student=np.tile(np.arange(students), items),
            item=np.repeat(np.arange(items), students),
            task=np.zeros(items * students, dtype=np.int64),
            scores=self.scores.reshape(-1, judges).copy(),
            own=np.zeros((items * students, judges), dtype=bool),
            wrote=np.zeros(items * students, dtype=bool),
            length=np.zeros(items * students),
            cluster=np.arange(items),
            items=np.arange(items),
            students=students,
            tasks=1,
        )


def planted(setting: str, seed: int, *, equal: bool = False, items: int = 80) -> Panel:
    """Draw a panel of a setting; six students, equal or between -0.6 and 0.6."""
    rng = np.random.default_rng(seed)
    judges, students = _JUDGES.get(setting, 5), 6
    quality = np.zeros(students) if equal else rng.permutation(np.linspace(-0.6, 0.6, students))
    seen = quality + 0.6 * rng.normal(size=(items, 1)) + 0.6 * rng.normal(size=(items, students))
    noise = np.full(judges, 0.65) if setting in ("copies", "families") else rng.uniform(0.4, 0.9, size=judges)
    errors = noise * rng.normal(size=(items, students, judges))
    taste, sharpness, correlation = np.zeros((students, judges)), np.ones(judges), np.eye(judges)
    if setting.startswith("copies"):
        errors[..., 1] = errors[..., 0] + 0.1 * rng.normal(size=(items, students))
        correlation[0, 1] = correlation[1, 0] = noise[0] / np.hypot(noise[0], 0.1)
    if setting == "copies with a taste":
        taste[:, 0] = 0.5 * rng.normal(size=students)
        taste[:, 1] = taste[:, 0]
    if setting in _TASTES:
        taste = _TASTES[setting] * rng.normal(size=(students, judges))
    if setting == "families":
        common = rng.normal(size=(items, students, 3))[..., np.arange(judges) // 2]
        errors = noise * (0.75 * common + np.sqrt(1 - 0.75**2) * rng.normal(size=errors.shape))
        family = np.arange(judges) // 2
        correlation = np.where(family[:, None] == family, 0.75**2, 0.0)
        np.fill_diagonal(correlation, 1.0)
    if setting.startswith("adversary"):
        sharpness[0] = -0.7
    if setting == "random":
        sharpness[0] = 0.0
    if setting == "sharp":
        errors[..., :2] *= 0.3
    scores = 0.5 + _SCORE_OF_QUALITY * (seen[..., None] * sharpness + errors + taste + 0.3 * rng.normal(size=judges))
    if setting == "missing":
        scores[rng.random(scores.shape) < 0.4] = np.nan
    if setting == "missing by student":  # most judges skip half of what the best student answers
        skipped = (rng.random(scores.shape) < 0.5) & (quality == quality.max())[:, None] & (np.arange(judges) > 1)
        scores[skipped] = np.nan
    return Panel(np.clip(scores, 0.0, 1.0), quality, correlation)


def first_items_of(panel: Panel, items: int) -> Panel:
    """Return what a panel says of its first items alone."""
    return replace(panel, scores=panel.scores[:items])


def has_star(fit: Fit) -> bool:
    """Return whether any two students are told apart beyond chance."""
    return bool((holm([test.p_value for _, (test, _) in fitted_pairs(fit)]) < 0.05).any())


def coverage(fit: Fit, panel: Panel) -> list[bool]:
    """Return whether the interval of each difference of two students holds the true one."""
    hits = []
    for (a, b), (test, spread) in fitted_pairs(fit):
        truth = _SCORE_OF_QUALITY * float(panel.quality[a] - panel.quality[b])
        sign = 1.0 if test.difference >= 0 else -1.0
        lower, upper = test.limits(spread, sign)
        hits.append(lower <= sign * truth <= upper)
    return hits


def _row(setting: str, runs: int, equal_runs: int) -> tuple[str, ...]:
    taus, plain, hits, numbers, true_numbers = [], [], [], [], []
    for seed in range(runs):
        panel = planted(setting, seed)
        fit = fit_table(panel.as_table())
        if fit is None:
            continue
        taus.append(kendall(panel.quality, fit.score) or 0.0)
        plain.append(kendall(panel.quality, np.nanmean(panel.scores, axis=(0, 2))) or 0.0)
        hits += coverage(fit, panel)
        seeing = fit.judges.sees
        chosen = np.ix_(seeing, seeing)
        numbers.append(effective_number(fit.judges.errors[chosen], fit.judges.noise[seeing]))
        true_numbers.append(effective_number(panel.correlation[chosen], fit.judges.noise[seeing]))
    fits = (fit_table(planted(setting, seed, equal=True).as_table()) for seed in range(equal_runs))
    stars = np.mean([fit is not None and has_star(fit) for fit in fits])
    figures = [f"{np.mean(values):.3f}" for values in (taus, plain, hits)]
    return setting, *figures, share(float(stars), 1), f"{np.mean(numbers):.2f}", f"{np.mean(true_numbers):.2f}"


def _stopping_row(setting: str, runs: int, items: int) -> tuple[str, ...]:
    """Return how judging ends that looks after every batch: at which items, how often rightly, and among equals."""
    stops: dict[bool, list[int]] = {False: [], True: []}
    right = []
    for equal in stops:
        for seed in range(runs):
            panel = planted(setting, seed, equal=equal, items=items)
            for number in looks(items):
                fit = fit_table(first_items_of(panel, number).as_table())
                place = None if fit is None else first_place(fit, 0.95)
                if place is not None and place.is_decided:
                    stops[equal].append(number)
                    if not equal:
                        right.append(place.student == int(panel.quality.argmax()))
                    break
    judged = stops[False] + [items] * (runs - len(stops[False]))
    figures = [share(len(stops[False]) / runs), share(float(np.mean(right)), 1) if right else ""]
    return setting, *figures, f"{np.mean(judged):.0f} of {items}", share(len(stops[True]) / runs, 1)


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--runs", type=int, default=40)
    flags.add_argument("--equal-runs", type=int, default=200)
    flags.add_argument("--settings", nargs="+", choices=SETTINGS, default=SETTINGS)
    flags.add_argument("--stopping", action="store_true", help="how soon first place is decided, in place of the fits")
    flags.add_argument("--items", type=int, default=300, help="of a run that may stop")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print a row for each setting."""
    args = build_parser().parse_args(argv)
    if args.stopping:
        head = ["five judges, or fewer", "decided", "rightly", "items judged", "decided among equals"]
        print(table(head, [_stopping_row(setting, args.runs, args.items) for setting in args.settings]))
        return
    head = [
        "five judges, or fewer",
        "tau, the fit",
        "tau, plain mean",
        "intervals hold",
        "stars for equals",
        "worth",
        "planted",
    ]
    print(table(head, [_row(setting, args.runs, args.equal_runs) for setting in args.settings]))


if __name__ == "__main__":
    main()
