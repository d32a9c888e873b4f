"""How soon is a new model known?

    python -m benchmarks.new_rows arena DATA_DIR [--orders 10]
    python -m benchmarks.new_rows answers DATA_DIR [--orders 10]

arena    each of the twelve newest models of arena140k_votes is hidden in turn. Its row is fitted to its first votes,
         against the leaderboard of all votes without it. Printed: excess loss of all of its votes over the row that
         they all give, for the fitted prior, with and without organisations, N(0, 5), and the mean row
answers  the models of mmlu_pro_scores are hidden by fives, drawn by seed 0. The known ones' coefficients are logits of
         their shares of right answers by subject, or by words and form of the prompt, on four fifths of the prompts, on
         which their answers are graded; a few graded answers there give the new row. Printed: loss of its answers on
         the other fifth, for prompts drawn at random and chosen, and as `p2l add-model --forecasts` forecasts them,
         where the known models' answers to the other fifth are graded too, beside the mean row and the row that all
         answers to the four fifths give; then the same of each five; then how far its mean score over all prompts that
         it was not asked is from what was forecast, and from its share of right answers to as many drawn at random

All draws are seeded.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.tables import table
from p2l.common.cli import parser, positive, run
from p2l.common.prompts import form_of
from p2l.leaderboard.fitting import fit
from p2l.likelihood import get
from p2l.model.posterior import kernel, median_distance
from p2l.newcomers.rows import (
    LEAST_SLOPE,
    AnswerScale,
    NewRow,
    RowPrior,
    answers_of_new,
    expected_scores,
    fit_answer_scale,
    fit_row,
    fit_row_prior,
    probes,
    votes_on_new,
)
from p2l.people.voters import organisation_of

__all__ = ["main"]

Floats = npt.NDArray[np.float64]
NEWEST, COUNTS = 12, (5, 10, 40, 100)
NEWCOMERS, ASKED = 5, (5, 20, 50)
RIDGE = 4.0


@dataclasses.dataclass(frozen=True)
class Chances:
    """Chances of right answers at prompts of which nothing but the coefficients is known.

    The slope is smaller than that of an `AnswerScale`, because a prompt's own logit is averaged over.
    """

    slope: float
    level: float

    @classmethod
    def fit(cls, coefs: Floats, scores: Floats) -> Chances:
        """Fit a logistic regression to n scores, the slope held near 1 by the weight of one score."""
        slope, level = 1.0, 0.0
        for _ in range(20):
            chance = 1.0 / (1.0 + np.exp(-(slope * coefs + level)))
            weight, residual = chance * (1.0 - chance), scores - chance
            cross = (weight * coefs).sum()
            terms = np.array([(residual * coefs).sum() - (slope - 1.0), residual.sum()])
            curve = np.array([[(weight * coefs**2).sum() + 1.0, cross], [cross, weight.sum() + 1e-3]])
            step = np.clip(np.linalg.solve(curve, terms), -0.5, 0.5)
            slope, level = max(slope + float(step[0]), LEAST_SLOPE), level + float(step[1])
        return cls(slope, level)

    def at(self, coefs: Floats, sd: float | Floats = 0.0) -> Floats:
        """Return the mean (N,) of the sigmoid of normal logits; `sd` is the standard deviation of the coefficients."""
        nodes, masses = np.polynomial.hermite_e.hermegauss(15)
        draws = (self.slope * coefs + self.level)[..., None] + (self.slope * np.asarray(sd))[..., None] * nodes
        return np.asarray((masses / masses.sum() / (1.0 + np.exp(-draws))).sum(axis=-1))


def _bare(prior: RowPrior, sd: float, mean: float) -> RowPrior:
    """Return a prior of the offset alone, from which components are left out."""
    covariance = np.diag(np.r_[sd**2, np.full(len(prior.mean) - 1, 1e-12)])
    return dataclasses.replace(prior, mean=np.r_[mean, np.zeros(len(prior.mean) - 1)], covariance=covariance)


def arena(data: Path, orders: int) -> None:
    """Print the excess loss after a few votes."""
    import pandas as pd

    votes = pd.read_parquet(data / "arena140k_votes.parquet", columns=["model_a", "model_b", "winner", "month_sim"])
    votes = votes[votes.model_a != votes.model_b].sample(frac=1, random_state=0)
    votes = votes.sort_values("month_sim", kind="stable").reset_index(drop=True)
    names = sorted({*votes.model_a, *votes.model_b})
    code = {name: number for number, name in enumerate(names)}
    a, b = (votes[side].map(code).to_numpy() for side in ("model_a", "model_b"))
    outcome = votes.winner.map({"model_a": 0, "model_b": 1, "tie": 2, "tie (bothbad)": 3}).to_numpy()
    first = [int(np.flatnonzero((a == model) | (b == model))[0]) for model in range(len(names))]
    excess: dict[str, list[Floats]] = {}
    for model in np.argsort(first)[::-1][:NEWEST].tolist():
        for name, row in _excess(names, a, b, outcome, model, orders).items():
            excess.setdefault(name, []).append(row)
    print(f"arena140k: excess loss, mean of {NEWEST} models, {orders} orders each [largest]\n")
    lines = []
    for name, rows in excess.items():
        means, tops = np.mean(rows, axis=0), np.max(rows, axis=0)
        lines.append([name, *(f"{mean:.4f} [{top:.3f}]" for mean, top in zip(means, tops, strict=True))])
    print(table(["prior", f"{COUNTS[0]} votes", *map(str, COUNTS[1:])], lines))


def _excess(names: list[str], a: Any, b: Any, outcome: Any, model: int, orders: int) -> dict[str, Floats]:
    own = (a == model) | (b == model)
    others = [name for number, name in enumerate(names) if number != model]
    place = np.array([number - (number > model) for number in range(len(names))])
    board = fit(place[a[~own]], place[b[~own]], outcome[~own], models=others, likelihood="grk", intervals=None)
    is_first = (a[own] == model) ^ (outcome[own] == 1)
    known = np.tile(board.coefs, (int(own.sum()), 1))
    beaten = board.coefs[place[np.where(a[own] == model, b[own], a[own])]]
    ties, eta = np.maximum(outcome[own] - 1, 0), np.full(len(known), board.eta or 0.0)

    def observed(rows: Any) -> Any:
        return votes_on_new(get("grk"), beaten[rows], is_first[rows], ties[rows], eta[rows])

    everything = observed(np.arange(len(known)))

    def loss(prior: RowPrior, rows: Any) -> float:
        return -float(everything(fit_row(prior, known[rows], observed(rows)).coefs(known))[0].mean())

    alone = fit_row_prior(board.coefs[None])
    kin = [organisation_of(name) for name in others]
    priors = {
        "fitted, with organisations": fit_row_prior(board.coefs[None], kin, organisation_of(names[model])),
        "fitted": alone,
        "N(0, 5)": _bare(alone, 5.0, -float(board.coefs.mean())),
        "the mean row, whatever the votes": _bare(alone, 1e-4, 0.0),
    }
    base = loss(_bare(alone, 100.0, 0.0), np.arange(len(known)))
    draws = [np.random.default_rng(seed).permutation(len(known)) for seed in range(orders)]
    return {
        name: np.array([np.mean([loss(prior, draw[:count]) - base for draw in draws]) for count in COUNTS])
        for name, prior in priors.items()
    }


def answers(data: Path, orders: int) -> None:
    """Print the loss of a new model's answers after a few graded ones."""
    import pandas as pd

    columns = ["question_id", "category", "model", "score", "prompt"]
    graded = pd.read_parquet(data / "mmlu_pro_scores.parquet", columns=columns)
    scores = graded.pivot_table(index="question_id", columns="model", values="score")
    questions = graded.drop_duplicates("question_id").set_index("question_id").loc[scores.index]
    _, subject = np.unique(questions.category, return_inverse=True)
    rng = np.random.default_rng(0)
    is_test = rng.random(len(scores)) < 0.2
    order = rng.permutation(scores.shape[1])
    fives = np.split(order, range(NEWCOMERS, len(order), NEWCOMERS))
    every = scores.to_numpy()
    # A known model's coefficients come from its own answers, so that those of all are found once.
    by = {
        "subject": _by_subject(every, subject, is_test),
        "words and form": _by_text(every, list(questions.prompt), subject, is_test),
    }
    losses = {
        name: [_losses_of_five(coefs, every, five, is_test, orders) for five in fives] for name, coefs in by.items()
    }
    counts = [f"{ASKED[0]} graded answers", *map(str, ASKED[1:])]
    print(f"mmlu_pro: loss an answer, mean of {len(order)} models, {orders} draws each\n")
    weights = [len(five) for five in fives]
    means = {
        name: {way: np.average([group[way] for group in groups], axis=0, weights=weights) for way in groups[0]}
        for name, groups in losses.items()
    }
    lines = [
        [name, way, *(f"{value:.4f}" for value in values)]
        for name, ways in means.items()
        for way, values in ways.items()
        if way not in _MEANS
    ]
    print(table(["coefficients by", "prompts", *counts], lines))
    lines = [
        [
            f"{np.nanmean(every[:, five]):.0%}",
            *(f"{value:.4f}" for value in group["chosen"]),
            *(f"{group[way][-1]:.4f}" for way in ("all its answers", "the mean row, no answers", _GRADED)),
        ]
        for five, group in zip(fives, losses["words and form"], strict=True)
    ]
    print(f"\nBy words and form, each of the {len(fives)} draws of {NEWCOMERS} models:\n")
    header = ["right answers", *counts, "all its answers", "the mean row", f"{ASKED[-1]}, known models graded too"]
    print(table(header, lines))
    print("\nMean score of all prompts that were not asked, mean absolute error; by words and form:\n")
    *ways, held = _MEANS
    lines = [[way, *(f"{value:.3f}" for value in means["words and form"][way])] for way in ways]
    lines.append([held, *(f"{value:.0%}" for value in means["words and form"][held])])
    print(table(["", *counts], lines))


_GRADED = "chosen, known models graded on the other fifth too"
_MEANS = ("share of as many drawn answers", "forecast of chosen ones", "95 % intervals hold it")


def _losses_of_five(coefs: Floats, every: Floats, five: Any, is_test: Any, orders: int) -> dict[str, Floats]:
    """Return the mean losses of models that are hidden together, and errors of their mean scores."""
    known, told = np.delete(every, five, axis=1), np.delete(coefs, five, axis=1)
    models = [_NewModel(told, known, every[:, model], is_test) for model in five]
    rows = [model.losses(orders) | model.errors_of_mean(orders) for model in models]
    return {way: np.mean([row[way] for row in rows], axis=0) for way in rows[0]}


def _by_subject(known: Floats, subject: Any, is_test: Any) -> Floats:
    """Return known models' coefficients (P, M): logits of their shares of right answers by subject."""
    shares = np.stack([np.nanmean(known[~is_test & (subject == one)], axis=0) for one in range(subject.max() + 1)])
    return np.asarray(np.log(shares / (1.0 - shares))[subject])


def _by_text(known: Floats, prompts: list[Any], subject: Any, is_test: Any) -> Floats:
    """Return known models' coefficients (P, M) by kernel ridge regression on words, pairs of words, form and subject.

    Those of prompts that it is fitted to come from the other four fifths of these.
    """
    from scipy.linalg import cho_factor, cho_solve

    alike = _alike([prompt if isinstance(prompt, str) else "\n".join(prompt) for prompt in prompts], subject)
    filled = np.where(np.isnan(known), np.nanmean(known[~is_test], axis=0), known)
    fold = np.where(is_test, 5, np.random.default_rng(1).permutation(len(known)) % 5)
    shares = np.empty_like(known)
    for one in range(6):
        fitted, told = np.flatnonzero((fold != one) & ~is_test), np.flatnonzero(fold == one)
        mean = filled[fitted].mean(axis=0)
        system = alike[np.ix_(fitted, fitted)]
        system[np.diag_indices(len(fitted))] += RIDGE
        weights = cho_solve(cho_factor(system, overwrite_a=True), (filled[fitted] - mean).astype(np.float32))
        shares[told] = mean + alike[np.ix_(told, fitted)] @ weights
    shares = np.clip(shares, 0.03, 0.97)
    return np.asarray(np.log(shares / (1.0 - shares)))


def _alike(texts: list[str], subject: Any) -> npt.NDArray[np.float32]:
    """Return the kernel (P, P): words and pairs of words, the reader's counts of form, and subject, of equal weight."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(ngram_range=(1, 2), min_df=3, sublinear_tf=True, dtype=np.float32).fit_transform(texts)
    form = np.array([form_of([text]) for text in texts])
    form = form[:, form.std(axis=0) > 1e-6]
    form = np.clip((form - form.mean(axis=0)) / form.std(axis=0), -4.0, 4.0)
    scaled = form / median_distance(form)
    near = kernel(scaled, scaled)
    return np.asarray((words @ words.T).toarray() + near + (subject[:, None] == subject), dtype=np.float32)


@dataclasses.dataclass(frozen=True)
class _NewModel:
    """A hidden model; P prompts, M known models."""

    coefs: Floats
    """(P, M)"""
    known: Floats
    """(P, M) scores."""
    own: Floats
    """(P,) scores."""
    is_test: Any

    @cached_property
    def scale(self) -> tuple[AnswerScale, Floats]:
        """Of the prompts on which the known models are graded where those to come have no grades (P,), zero there."""
        train = ~self.is_test
        scale, ease = fit_answer_scale(self.coefs[train], self.known[train])
        easier = np.zeros(len(self.own))
        easier[train] = ease
        return scale, easier

    @cached_property
    def chances(self) -> Chances:
        """Of the prompts on which the known models are graded."""
        train = ~self.is_test
        there = ~np.isnan(self.known[train])
        return Chances.fit(self.coefs[train][there], self.known[train][there])

    @cached_property
    def whole_scale(self) -> tuple[AnswerScale, Floats]:
        """Of all prompts (P,), where the known models are graded on all."""
        return fit_answer_scale(self.coefs, self.known)

    def at(self, rows: Any) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
        """Return coefficients of the known models, the prompts' own logits, and which known models are graded there."""
        return self.coefs[rows], self.whole_scale[1][rows], ~np.isnan(self.known[rows])

    @cached_property
    def prior(self) -> RowPrior:
        """Fitted to the prompts on which the known models are graded."""
        return fit_row_prior(self.coefs[~self.is_test])

    @cached_property
    def graded(self) -> Any:
        """Prompts that the new model can be asked."""
        return np.flatnonzero(~self.is_test & ~np.isnan(self.own))

    def row_of(self, rows: Any, scale: AnswerScale, easier: Floats) -> NewRow:
        """Return the row that graded answers give."""
        return fit_row(self.prior, self.coefs[rows], answers_of_new(scale, easier[rows], self.own[rows]))

    def chosen(self, count: int, seed: int) -> Any:
        """Return prompts that `p2l probes` would choose, of a sample."""
        scale, easier = self.scale
        sample = np.random.default_rng([seed, 1]).choice(self.graded, 2000, replace=False)
        information = scale.information(self.coefs[sample].mean(axis=1), easier[sample])
        return sample[probes(self.prior, self.coefs[sample], information, count)]

    def drawn(self, count: int, seed: int) -> Any:
        """Return prompts drawn at random."""
        return np.random.default_rng([seed, count]).choice(self.graded, count, replace=False)

    def losses(self, orders: int) -> dict[str, Floats]:
        """Return losses (3) after so many graded answers, by how these are chosen and what is known besides."""
        tests = np.flatnonzero(self.is_test & ~np.isnan(self.own))

        def loss(chance: Floats) -> float:
            own = self.own[tests]
            return -float(np.mean(own * np.log(chance) + (1.0 - own) * np.log1p(-chance)))

        def after(rows: Any) -> float:
            row = self.row_of(rows, *self.scale)
            return loss(self.chances.at(row.coefs(self.coefs[tests]), row.sd(self.coefs[tests])))

        def beside(rows: Any) -> float:
            whole, easier = self.whole_scale
            row = self.row_of(rows, whole, easier)
            return loss(expected_scores(whole, row, *self.at(tests)).scores)

        def mean(measured: Any, way: Any) -> Floats:
            return np.array([np.mean([measured(way(count, seed)) for seed in range(orders)]) for count in ASKED])

        return {
            "drawn at random": mean(after, self.drawn),
            "chosen": mean(after, self.chosen),
            "drawn, known models graded on the other fifth too": mean(beside, self.drawn),
            _GRADED: mean(beside, self.chosen),
            "the mean row, no answers": np.full(3, loss(self.chances.at(self.coefs[tests].mean(axis=1)))),
            "all its answers": np.full(3, after(self.graded)),
        }

    def errors_of_mean(self, orders: int) -> dict[str, Floats]:
        """Return (3) errors of two forecasts of the mean score of prompts not asked, and how often one holds it."""
        whole, easier = self.whole_scale
        found = np.empty((len(ASKED), orders, len(_MEANS)))
        for number, count in enumerate(ASKED):
            for seed in range(orders):
                rows = self.chosen(count, seed)
                rest = np.setdiff1d(np.flatnonzero(~np.isnan(self.own)), rows)
                truth = float(self.own[rest].mean())
                row = self.row_of(rows, whole, easier)
                expected = expected_scores(whole, row, *self.at(rest))
                share = float(self.own[self.drawn(count, seed)].mean())
                away = abs(expected.mean - truth)
                found[number, seed] = abs(share - truth), away, away <= 1.959964 * expected.sd
        return dict(zip(_MEANS, found.mean(axis=1).T, strict=True))


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.new_rows", "Measure how soon new models are known.")
    commands = flags.add_subparsers(dest="command", required=True)
    for name in ("arena", "answers"):
        one = commands.add_parser(name)
        one.add_argument("data", type=Path, metavar="DATA_DIR")
        one.add_argument("--orders", type=positive, default=10)
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run one part."""
    args = build_parser().parse_args(argv)
    measure = {"arena": arena, "answers": answers}[args.command]
    measure(args.data, args.orders)


if __name__ == "__main__":
    run(main)
