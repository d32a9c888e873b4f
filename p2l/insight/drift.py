"""What changed between two sides: one cell for each model and category, with its interval and whether it is chance.

A change is that of the model's coefficient against the mean of the models that both sides know, in points of an arena
score (400 points: odds of 10 to 1). A cell's interval is its own, and of many cells some intervals lie
off zero by chance, so a model is said to have risen or fallen only where the Benjamini-Hochberg procedure over all
cells finds it at the false discovery rate asked for.

Shapes: n cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.cli import progress
from p2l.common.errors import InputError
from p2l.leaderboard.board import POINTS_PER_LOGIT
from p2l.leaderboard.groups import Groups
from p2l.likelihood import win_rates
from p2l.votes.reading import read_votes
from p2l.votes.rows import Source
from p2l.votes.schema import hash_turns
from p2l.votes.sources import open_source

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """A change in logits, before it is judged; `by` is the column of the category, empty for everything."""

    by: str
    category: str
    model: str
    prompts: int
    """Different ones, of the side with fewer."""
    change: float
    error: float
    """Standard error of the change over prompts."""
    rate_before: float
    """Chance of beating a model drawn from the rest of the field; ties count half."""
    rate_after: float


@dataclass
class Changes:
    """Measured changes and notes for the reader."""

    likelihood: str
    measured: list[Measured] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class DriftCell:
    """How much better one model has become in one category."""

    by: str
    category: str
    model: str
    prompts: int
    change: float
    """In points; the interval too."""
    lower: float
    upper: float
    rate_before: float
    rate_after: float
    p: float
    """Chance of as large a change where the true one is no larger than the least that counts."""
    q: float
    """The least false discovery rate at which the change is found."""
    verdict: str
    """rose, fell, or empty."""

    @property
    def title(self) -> str:
        """The category as the heading of a table."""
        return f"{self.by} = {self.category}" if self.by else self.category


@dataclass(frozen=True)
class Drift:
    """All cells of a comparison."""

    before: str
    after: str
    likelihood: str
    level: float
    fdr: float
    cells: list[DriftCell]
    notes: list[str]
    least_change: float = 0.0
    """In points."""

    @property
    def found(self) -> list[DriftCell]:
        """The cells that rose or fell, the largest change first."""
        return sorted((cell for cell in self.cells if cell.verdict), key=lambda cell: -abs(cell.change))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"cells_looked_at": len(self.cells), "cells_changed": len(self.found), **asdict(self)}


def judge(measured: Sequence[Measured], *, level: float, fdr: float, least_change: float = 0.0) -> list[DriftCell]:
    """Return each change with its interval (t distribution over prompts), p-value and verdict.

    With `least_change`, in points, only larger changes count.
    """
    from scipy.special import stdtrit

    change = np.array([cell.change for cell in measured])
    error = np.array([cell.error for cell in measured])
    freedom = np.array([cell.prompts - 1.0 for cell in measured])
    p = p_values(change, error, freedom, least_change)
    q = adjusted(p)
    half = stdtrit(freedom, 0.5 + level / 2) * error
    return [
        DriftCell(
            by=cell.by,
            category=cell.category,
            model=cell.model,
            prompts=cell.prompts,
            change=POINTS_PER_LOGIT * cell.change,
            lower=POINTS_PER_LOGIT * (cell.change - float(half[place])),
            upper=POINTS_PER_LOGIT * (cell.change + float(half[place])),
            rate_before=cell.rate_before,
            rate_after=cell.rate_after,
            p=float(p[place]),
            q=float(q[place]),
            verdict="" if q[place] > fdr or not cell.change else "rose" if cell.change > 0 else "fell",
        )
        for place, cell in enumerate(measured)
    ]


def p_values(change: Floats, error: Floats, freedom: Floats, least_change: float) -> Floats:
    """Return chances of as large changes (in logits, with standard errors) by the t distribution.

    The true change is taken to be as large as the least that counts, in points.
    """
    from scipy.special import stdtr

    with np.errstate(divide="ignore", invalid="ignore"):
        beyond = np.maximum(np.abs(change) - least_change / POINTS_PER_LOGIT, 0.0)
        ratio = np.where(beyond == 0, 0.0, beyond / error)
    return np.asarray(np.minimum(1.0, 2 * stdtr(freedom, -ratio)))


def adjusted(p: Floats) -> Floats:
    """Return Benjamini and Hochberg's adjusted p-values (n,): q_(i) = min over j >= i of p_(j) n / j."""
    order = np.argsort(p)
    scaled = p[order] * len(p) / np.arange(1, len(p) + 1)
    out = np.empty(len(p))
    out[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return np.minimum(out, 1.0)


# Drift between two trained models: their coefficients on the same prompts, every different prompt once. Intervals are
# over other prompts of the kind, and hold the noise of training: two trainings on votes of the same truth differ, by
# how much the posteriors of both models say. These count as independent, which is too wide where votes are shared, and
# what votes leave open as the same for all prompts of a category, but for each prompt's own part, which averages out.
#
# Shapes: U different prompts, M models that both know, R components of a posterior.

Ints = npt.NDArray[np.int64]
_PROMPTS_PER_BATCH = 512


class _Side:
    """One of the two models, asked about prompts in blocks: centred coefs (U, M) and win rates (U, M) of common models.

    `variances` are (U, R) of the posterior's components, empty for a model without one.
    """

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        self.model, self.columns = model, [model.model_list.index(name) for name in names]
        self._coefs: list[Floats] = []
        self._rates: list[Floats] = []
        self._variances: list[Floats] = []

    @property
    def coefs(self) -> Floats:
        return np.concatenate(self._coefs)

    @property
    def rates(self) -> Floats:
        return np.concatenate(self._rates)

    def ask(self, prompts: Sequence[Sequence[str]]) -> None:
        """Add the model's predictions for some prompts; InputError if they are not finite."""
        predictions = self.model.predict(prompts)
        if not np.isfinite(predictions.coefs).all():
            raise InputError("a model gives coefficients that are not finite numbers; compare another checkpoint")
        coefs = predictions.coefs[:, self.columns].astype(np.float64)
        self._coefs.append(coefs - coefs.mean(axis=1, keepdims=True))
        self._rates.append(win_rates(coefs, self.model.likelihood, predictions.eta, predictions.gamma))
        if predictions.variances is not None:
            self._variances.append(predictions.variances.astype(np.float64))

    def noise(self, rows: Ints) -> Floats:
        """Return the variance (M,) that the votes leave of the mean centred coefficients over some prompts."""
        if not self._variances:
            return np.zeros(len(self.columns))
        basis = np.asarray(self.model.basis, dtype=np.float64)[self.columns]
        mean = np.concatenate(self._variances)[rows].mean(axis=0)
        # Each prompt's own part averages out over the prompts.
        shared = np.maximum(mean - self.model.own_variances * (1.0 - 1.0 / len(rows)), 0.0)
        return np.asarray((basis - basis.mean(axis=0)) ** 2 @ shared)


def drift_of_models(
    before: str, after: str, prompts: Source | str, *, by: Sequence[str] = (), least: int = 20, quiet: bool = True
) -> Changes:
    """Compare the predictions of two model folders for a source of prompts, over all of it and by values of columns.

    Categories with fewer than `least` different prompts are left out. Raise InputError where a model or the prompts
    cannot be read, or the models cannot be compared.
    """
    from p2l.inference import P2L

    models = [P2L.from_pretrained(path) for path in (before, after)]
    names = _common(models, before, after)
    first, second = (_Side(model, names) for model in models)
    groups, members = _ask((first, second), prompts, by, quiet=quiet)
    change = second.coefs - first.coefs
    rates_before, rates_after = first.rates, second.rates
    measured, small = list[Measured](), 0
    for column, category, code in groups.ordered({code: len(rows) for code, rows in members.items()}):
        rows = members[code]
        if len(rows) < least:
            small += 1
            continue
        # A model compared with itself has no noise of training.
        noise = first.noise(rows) + second.noise(rows) if before != after else np.zeros(len(names))
        mean = change[rows].mean(axis=0)
        error = np.sqrt(change[rows].var(axis=0, ddof=1) / len(rows) + noise)
        before_mean, after_mean = rates_before[rows].mean(axis=0), rates_after[rows].mean(axis=0)
        for m, name in enumerate(names):
            cell = Measured(
                by=column,
                category=category,
                model=name,
                prompts=len(rows),
                change=float(mean[m]),
                error=float(error[m]),
                rate_before=float(before_mean[m]),
                rate_after=float(after_mean[m]),
            )
            measured.append(cell)
    if not measured:
        raise InputError(f"{open_source(prompts).name}: no category has {least} different prompts; lower --min-prompts")
    notes = _notes({before: models[0], after: models[1]}, names, small, least)
    return Changes(first.model.likelihood.name, measured, notes)


def _common(models: Sequence[Any], before: str, after: str) -> list[str]:
    first, second = (model.likelihood.name for model in models)
    if first != second:
        raise InputError(
            f"{before} has likelihood {first}, {after} has {second}: their coefficients mean different things; compare "
            "models of one likelihood"
        )
    names = [name for name in models[0].model_list if name in set(models[1].model_list)]
    if len(names) < 2:
        raise InputError(f"{before} and {after} have {len(names)} models in common; a field needs two")
    return names


def _ask(
    sides: Sequence[_Side], prompts: Source | str, by: Sequence[str], *, quiet: bool
) -> tuple[Groups, dict[int, Ints]]:
    """Ask both sides about each different prompt once; return the rows (of U) of each category."""
    source = open_source(prompts)
    # The first of the pairs is empty, so that there is something to join where the file has no rows.
    groups, place, pairs = Groups(source, by), dict[int, int](), [np.empty((2, 0), dtype=np.int64)]
    columns = list(dict.fromkeys(["prompt", *groups.bases.values()]))
    with progress(total=source.rows, description="prompts", unit=" prompts", quiet=quiet) as bar:
        for batch in read_votes(source, columns=columns, batch_size=_PROMPTS_PER_BATCH):
            # `rows` are the numbers of the prompts among the different ones.
            new, rows = list[list[str]](), list[int]()
            for turns in batch.batch.column("prompt").to_pylist():
                key = hash_turns(turns)
                if key not in place:
                    place[key] = len(place)
                    new.append(turns)
                rows.append(place[key])
            for side in sides if new else ():
                side.ask(new)
            for codes, members in groups.members(batch):
                pairs.append(np.stack([codes, np.array(rows, dtype=np.int64)[members]]))
            bar.update(len(batch))
    codes, prompts_of = np.unique(np.concatenate(pairs, axis=1), axis=1)
    return groups, {int(code): prompts_of[codes == code] for code in np.unique(codes)}


def _notes(models: Mapping[str, Any], names: Sequence[str], small: int, least: int) -> list[str]:
    alone = sorted({name for model in models.values() for name in model.model_list} - set(names))
    bare = [path for path, model in models.items() if model.basis is None]
    notes = ["intervals are over prompts, and hold what the votes of both models leave open."]
    if len(bare) == len(models):
        notes = [
            "warning: intervals are over prompts alone, and two trainings on votes of the same truth differ too: run "
            "`p2l posterior` on both models, or leave small changes out (--least-change)."
        ]
    elif bare:
        notes = [
            f"warning: {bare[0]} has no posterior, so that intervals leave out what its votes leave open: run `p2l "
            "posterior` on it, or leave small changes out (--least-change)."
        ]
    if alone:
        listed = ", ".join(alone[:5]) + (", ..." if len(alone) > 5 else "")
        are = "model is" if len(alone) == 1 else "models are"
        notes.append(f"{len(alone)} {are} known to one side only and left out: {listed}.")
    if small:
        with_few, are = f"with fewer than {least} different prompts", "is" if small == 1 else "are"
        notes.append(f"{small} {'category' if small == 1 else 'categories'} {with_few} {are} left out.")
    return notes
