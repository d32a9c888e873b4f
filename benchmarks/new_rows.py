"""How soon is a new model known, and how far does a live run fall behind one that is trained anew?

    python -m benchmarks.new_rows arena DATA_DIR [--orders 10]
    python -m benchmarks.new_rows answers DATA_DIR [--orders 10]
    python -m benchmarks.new_rows live [--seeds 1] [--folder DIR]

arena    each of the twelve newest models of arena140k_votes is hidden in turn. Its row is fitted to its first votes,
         against the leaderboard of all votes without it. Printed: excess loss of all of its votes over the row that
         they all give, for the fitted prior, with and without organisations, N(0, 5), and the mean row
answers  the models of mmlu_pro_scores are hidden by fives, drawn by seed 0. The known ones' coefficients are logits of
         their shares of right answers by subject, or by words and form of the prompt, on four fifths of the prompts, on
         which their answers are graded; a few graded answers there give the new row. Printed: loss of its answers on
         the other fifth, for prompts drawn at random and chosen, and where the known models' answers to the other fifth
         are graded too, beside the mean row and the row that all answers to the four fifths give; then the same of each
         five
live     a simulated arena: a model is trained on 5,000 votes in one line, and follows 4,000 more, three new models
         among them, with the README's live line. Printed: loss on held-out votes, beside a model of one line on
         all 9,000, the model as it was, and the live line without the past votes

All draws are seeded.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.tables import table
from p2l.common.cli import parser, positive, run
from p2l.leaderboard.fitting import fit
from p2l.leaderboard.newcomers import (
    NewRow,
    RowPrior,
    answers_of_new,
    fit_answer_scale,
    fit_row,
    fit_row_prior,
    organisation_of,
    probes,
    votes_on_new,
)
from p2l.likelihood import get
from p2l.model.form import form_of
from p2l.model.process import kernel, median_distance

__all__ = ["main"]

Floats = npt.NDArray[np.float64]
NEWEST, COUNTS = 12, (5, 10, 40, 100)
NEWCOMERS, ASKED = 5, (5, 20, 50)
RIDGE = 4.0
BEFORE, AFTER = 5000, 4000


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
    lines = []
    for name, groups in losses.items():
        for way in groups[0]:
            means = np.average([group[way] for group in groups], axis=0, weights=[len(five) for five in fives])
            lines.append([name, way, *(f"{value:.4f}" for value in means)])
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


_GRADED = "chosen, known models graded on the other fifth too"


def _losses_of_five(coefs: Floats, every: Floats, five: Any, is_test: Any, orders: int) -> dict[str, Floats]:
    """Return the mean losses of models that are hidden together."""
    known, told = np.delete(every, five, axis=1), np.delete(coefs, five, axis=1)
    rows = [_NewModel(told, known, every[:, model], is_test).losses(orders) for model in five]
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

    def losses(self, orders: int) -> dict[str, Floats]:
        """Return losses (3) after so many graded answers, by how these are chosen and what is known besides."""
        train = np.flatnonzero(~self.is_test)
        scale, ease = fit_answer_scale(self.coefs[train], self.known[train])
        easier = np.zeros(len(self.own))
        easier[train] = ease
        prior = fit_row_prior(self.coefs[train])
        graded = train[~np.isnan(self.own[train])]
        tests = np.flatnonzero(self.is_test & ~np.isnan(self.own))

        def loss(chance: Floats) -> float:
            own = self.own[tests]
            return -float(np.mean(own * np.log(chance) + (1.0 - own) * np.log1p(-chance)))

        def row_of(rows: Any) -> NewRow:
            return fit_row(prior, self.coefs[rows], answers_of_new(scale, easier[rows], self.own[rows]))

        def after(rows: Any) -> float:
            row = row_of(rows)
            return loss(scale.chances(row.coefs(self.coefs[tests]), row.sd(self.coefs[tests])))

        def beside(rows: Any) -> float:
            both, there = fit_answer_scale(self.coefs[tests], self.known[tests])
            logits = both.slope * row_of(rows).coefs(self.coefs[tests]) + both.level + there
            return loss(1.0 / (1.0 + np.exp(-logits)))

        def chosen(count: int, seed: int) -> Any:
            sample = np.random.default_rng([seed, 1]).choice(graded, 2000, replace=False)
            information = scale.information(self.coefs[sample].mean(axis=1), easier[sample])
            return sample[probes(prior, self.coefs[sample], information, count)]

        def drawn(count: int, seed: int) -> Any:
            return np.random.default_rng([seed, count]).choice(graded, count, replace=False)

        def mean(measured: Any, way: Any) -> Floats:
            return np.array([np.mean([measured(way(count, seed)) for seed in range(orders)]) for count in ASKED])

        return {
            "drawn at random": mean(after, drawn),
            "chosen": mean(after, chosen),
            "drawn, known models graded on the other fifth too": mean(beside, drawn),
            _GRADED: mean(beside, chosen),
            "the mean row, no answers": np.full(3, loss(scale.chances(self.coefs[tests].mean(axis=1)))),
            "all its answers": np.full(3, after(graded)),
        }


def live(folder: Path, seeds: int) -> None:
    """Print the losses of a followed model and of one that is trained anew."""
    lines = []
    for seed in range(seeds):
        place = folder / str(seed)
        place.mkdir(parents=True, exist_ok=True)
        for name, (*losses, seconds) in _live_once(place, seed).items():
            cells = ("-" if np.isnan(loss) else f"{loss:.4f}" for loss in losses)
            lines.append([str(seed), name, *cells, f"{seconds:.0f}"])
    print(table(["seed", "model", "all votes", "known models", "newcomers", "seconds"], lines))


def _command(*words: object) -> float:
    """Run a command of p2l, and return its seconds."""
    started = time.monotonic()
    line = [sys.executable, "-m", "p2l.cli", *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)}: {done.stderr[-2000:]}")
    return time.monotonic() - started


def _live_once(place: Path, seed: int) -> dict[str, tuple[float, float, float, float]]:
    import pandas as pd

    votes, held = place / "votes.parquet", place / "held.parquet"
    total = BEFORE + AFTER
    models = ("--models", 15, "--seed", seed + 1, "--quiet")
    _command("simulate", "--votes", total, "--output", votes, "--val", 3000, "--val-output", held, *models)
    every, test = pd.read_parquet(votes), pd.read_parquet(held)
    newest = sorted({*every.model_a})[-3:]
    is_new = every.model_a.isin(newest) | every.model_b.isin(newest)
    first = every[~is_new].iloc[:BEFORE]
    later = every.drop(first.index).reset_index(drop=True)
    for name, part in (("first", first), ("later", later), ("all", every)):
        part.to_json(place / f"{name}.jsonl", orient="records", lines=True)
    size = ("--size", "tiny", "--quiet")
    seconds = {
        "as it was": _command("train", "--votes", place / "first.jsonl", "--output", place / "first", *size),
        f"one line on all {total:,} votes": _command(
            "train", "--votes", place / "all.jsonl", "--output", place / "all", *size
        ),
    }
    follow = ("--no-eval", "--follow", place / "later.jsonl", "--stop-when-idle", 0, "--quiet")
    for name, more in (("live line", ()), ("live line without the past (`--past none`)", ("--past", "none"))):
        seconds[name] = _command("online-train", "--checkpoint", place / "first", *follow, *more)
    folders = dict(zip(seconds, ("first", "all", "first-online", "first-online_1"), strict=True))
    return {name: (*_losses(place / folders[name], test, newest), took) for name, took in seconds.items()}


def _losses(folder: Path, test: Any, newest: Sequence[str]) -> tuple[float, float, float]:
    """Return the loss of all held-out votes, of those between known models, and of those on newcomers.

    The first and the last are not numbers for a model that knows no newcomer.
    """
    from p2l import P2L

    model = P2L.from_pretrained(folder, device="cpu")
    own = test[test.model_a.isin(model.model_list) & test.model_b.isin(model.model_list)]
    names = np.array(["model_a", "model_b", "tie", "tie (bothbad)"])
    place = [model.likelihood.outcomes.index(name) for name in ("win", "loss", "tie", "bothbad")]
    probs = model.vote_probs([list(prompt) for prompt in own.prompt], list(own.model_a), list(own.model_b))
    outcome = np.array([place[int(np.flatnonzero(names == winner)[0])] for winner in own.winner])
    losses = -np.log(probs[np.arange(len(own)), outcome])
    is_new = (own.model_a.isin(newest) | own.model_b.isin(newest)).to_numpy()
    between_known = float(losses[~is_new].mean())
    if not is_new.any():
        return float("nan"), between_known, float("nan")
    return float(losses.mean()), between_known, float(losses[is_new].mean())


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.new_rows", "Measure how soon new models are known, and live runs.")
    commands = flags.add_subparsers(dest="command", required=True)
    for name in ("arena", "answers"):
        one = commands.add_parser(name)
        one.add_argument("data", type=Path, metavar="DATA_DIR")
        one.add_argument("--orders", type=positive, default=10)
    one = commands.add_parser("live")
    one.add_argument("--seeds", type=positive, default=1)
    one.add_argument("--folder", type=Path)
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run one part."""
    args = build_parser().parse_args(argv)
    if args.command == "arena":
        arena(args.data, args.orders)
    elif args.command == "answers":
        answers(args.data, args.orders)
    else:
        with tempfile.TemporaryDirectory() as name:
            live(args.folder or Path(name), args.seeds)


if __name__ == "__main__":
    run(main)
