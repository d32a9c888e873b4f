"""Drift between two trained models: what the votes behind them say of the same prompts.

Each model keeps votes that it was trained on (`p2l.model.kept_votes`), and for every category one leaderboard is fitted
to those of each side. Votes that both sides hold say nothing of a change and count on the earlier side alone. Prompts
that both sides were asked are paired, so that what is their own cancels. A model's own coefficients, which are shrunk
and whose errors nothing tells, are compared only where a folder keeps no votes, with a warning.

Shapes: U different prompts asked about, M models that both know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from p2l.common.cli import counted, progress
from p2l.common.errors import ConvergenceError, InputError
from p2l.insight.drift import Changes, Measured
from p2l.insight.kept_boards import VotesOnPrompts, joint_variance
from p2l.leaderboard.groups import Groups
from p2l.likelihood import win_rates
from p2l.votes.reading import read_votes
from p2l.votes.rows import Source
from p2l.votes.schema import hash_turns
from p2l.votes.sources import open_source

if TYPE_CHECKING:
    from p2l.inference import P2L

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_PROMPTS_PER_BATCH = 512


class _Asked:
    """The different prompts of a source, and the rows (of U) of each category."""

    def __init__(self, source: Source, by: Sequence[str], *, quiet: bool) -> None:
        # The first of the pairs is empty, so that there is something to join where the file has no rows.
        place, pairs = dict[int, int](), [np.empty((2, 0), dtype=np.int64)]
        self.prompts: list[list[str]] = []
        self.groups = Groups(source, by)
        columns = list(dict.fromkeys(["prompt", *self.groups.bases.values()]))
        with progress(total=source.rows, description="prompts", unit=" prompts", quiet=quiet) as bar:
            for batch in read_votes(source, columns=columns, batch_size=_PROMPTS_PER_BATCH):
                rows = list[int]()
                for turns in batch.batch.column("prompt").to_pylist():
                    key = hash_turns(turns)
                    if key not in place:
                        place[key] = len(place)
                        self.prompts.append(turns)
                    rows.append(place[key])
                for codes, members in self.groups.members(batch):
                    pairs.append(np.stack([codes, np.array(rows, dtype=np.int64)[members]]))
                bar.update(len(batch))
        self.hashes = np.array(list(place), dtype=np.uint64)
        codes, prompts_of = np.unique(np.concatenate(pairs, axis=1), axis=1)
        self.rows = {int(code): prompts_of[codes == code] for code in np.unique(codes)}


def drift_of_models(
    before: str, after: str, prompts: Source | str, *, by: Sequence[str] = (), least: int = 20, quiet: bool = True
) -> Changes:
    """Compare what two model folders say of a source of prompts, over all of it and by values of columns.

    Categories with fewer than `least` different prompts are left out, and models with votes on fewer of them. Raise
    InputError where a model or the prompts cannot be read, or the models cannot be compared.
    """
    from p2l.inference import P2L

    models = [P2L.from_pretrained(path) for path in (before, after)]
    names = _common(models, before, after)
    asked = _Asked(open_source(prompts), by, quiet=quiet)
    for model in models:
        model.keep_states()  # the second model reads what the first one read, where the encoder is the same
    sides = [_votes_on(model, asked) for model in models]
    notes = _notes({before: models[0], after: models[1]}, names)
    if sides[0] is not None and sides[1] is not None:
        comparison: ChangesOfVotes | _OfPredictions = ChangesOfVotes(sides[0], sides[1], names, least)
    else:
        comparison = _OfPredictions(models, asked.prompts, names)
    measured, small = list[Measured](), 0
    for column, category, code in asked.groups.ordered({code: len(rows) for code, rows in asked.rows.items()}):
        rows = asked.rows[code]
        if len(rows) < least:
            small += 1
            continue
        measured += comparison.cells(column, category, rows)
    if not measured:
        raise InputError(
            f"{open_source(prompts).name}: no category has {least} different prompts, and as many with votes on a "
            "model; lower --min-prompts"
        )
    if small:
        are = "categories are" if small > 1 else "category is"
        notes.append(f"{small} {are} left out, with fewer than {least} different prompts.")
    return Changes(models[0].likelihood.name, measured, [*notes, *comparison.notes()])


def _common(models: Sequence[P2L], before: str, after: str) -> list[str]:
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


def _votes_on(model: P2L, asked: _Asked) -> VotesOnPrompts | None:
    """Return the votes that a model keeps with the prompts asked about; None where it keeps none."""
    kept = model.kept_votes
    if kept is None or not len(kept) or not asked.prompts:
        return None
    places = kept.place(model.inputs(asked.prompts)).astype(np.float64)
    return VotesOnPrompts(kept, model.likelihood, asked.hashes, places)


class ChangesOfVotes:
    """Changes between the leaderboards of two sides' votes, of models with votes on enough prompts."""

    def __init__(self, before: VotesOnPrompts, after: VotesOnPrompts, names: Sequence[str], least: int) -> None:
        # In this order: of a model that goes on learning the later side holds the votes of the earlier one too.
        self.after = after.without(before.kept)
        self.before = before.without(self.after.kept)
        self.names, self.least = names, least
        self._few = 0
        self._unfitted = list[str]()

    def cells(self, column: str, category: str, rows: Ints) -> list[Measured]:
        """Return the change of each model in a category, the prompts asked about at `rows`."""
        sides = (self.before, self.after)
        try:
            boards = [side.board(rows, side.kept.of_category(column, category)) for side in sides]
        except ConvergenceError as error:
            self._unfitted.append(f"{category} is left out: {error}.")
            return []
        columns = [[side.kept.models.index(name) for name in self.names] for side in sides]
        prompts = np.minimum(*(board.prompts[places] for board, places in zip(boards, columns, strict=True)))
        chosen = np.flatnonzero(prompts >= self.least)
        self._few += len(self.names) - len(chosen)
        if len(chosen) < 2:
            return []
        coefs, influences = list[Floats](), list[Floats]()
        for board, places in zip(boards, columns, strict=True):
            field = np.array(places)[chosen]
            coefs.append(board.coefs[field] - board.coefs[field].mean())
            moved = board.influences[:, field]
            influences.append(moved - moved.mean(axis=1, keepdims=True))
        errors = np.sqrt(joint_variance(*sides, influences[0], influences[1]))
        return [
            Measured(
                by=column,
                category=category,
                model=self.names[place],
                prompts=int(prompts[place]),
                change=float(coefs[1][row] - coefs[0][row]),
                error=float(errors[row]),
                rate_before=float(boards[0].rates[columns[0][place]]),
                rate_after=float(boards[1].rates[columns[1][place]]),
            )
            for row, place in enumerate(chosen.tolist())
        ]

    def notes(self) -> list[str]:
        """Return what is left out, and how many votes there are."""
        sides = (self.before, self.after)
        numbers = [f"{len(side.kept):,} of {counted(side.kept.total, 'vote')}" for side in sides]
        notes = [f"changes are those that votes show, {numbers[0]} before and {numbers[1]} after."]
        if self._few:
            are = "cells are" if self._few > 1 else "cell is"
            notes.append(f"{self._few} {are} left out: votes on fewer than {self.least} prompts of one side.")
        return notes + self._unfitted


class _OfPredictions:
    """Changes between the coefficients of two models, with intervals over prompts alone."""

    def __init__(self, models: Sequence[P2L], prompts: Sequence[Sequence[str]], names: Sequence[str]) -> None:
        self.names = names
        self.coefs, self.rates = list[Floats](), list[Floats]()
        for model in models:
            predictions = model.predict(list(prompts))
            if not np.isfinite(predictions.coefs).all():
                raise InputError("a model gives coefficients that are not finite numbers; compare another checkpoint")
            columns = [model.model_list.index(name) for name in names]
            coefs = predictions.coefs[:, columns].astype(np.float64)
            self.coefs.append(coefs - coefs.mean(axis=1, keepdims=True))
            self.rates.append(win_rates(coefs, model.likelihood, predictions.eta, predictions.gamma))

    def cells(self, column: str, category: str, rows: Ints) -> list[Measured]:
        """Return the mean change of each model over the prompts at `rows`."""
        change = (self.coefs[1] - self.coefs[0])[rows]
        error = np.sqrt(change.var(axis=0, ddof=1) / len(rows))
        rates_before, rates_after = (rates[rows].mean(axis=0) for rates in self.rates)
        return [
            Measured(
                by=column,
                category=category,
                model=name,
                prompts=len(rows),
                change=float(change[:, place].mean()),
                error=float(error[place]),
                rate_before=float(rates_before[place]),
                rate_after=float(rates_after[place]),
            )
            for place, name in enumerate(self.names)
        ]

    def notes(self) -> list[str]:
        """Return nothing: every model is compared."""
        return []


def _notes(models: Mapping[str, P2L], names: Sequence[str]) -> list[str]:
    alone = sorted({name for model in models.values() for name in model.model_list} - set(names))
    bare = [path for path, model in models.items() if model.kept_votes is None]
    notes = []
    if bare:
        keeps = "neither model keeps its votes" if len(bare) == len(models) else f"{bare[0]} does not keep its votes"
        notes = [
            f"warning: {keeps}, so that intervals are over prompts alone, and two trainings on votes of the same truth "
            "differ too: run `p2l posterior`, or leave small changes out (--least-change)."
        ]
    for path, model in models.items():
        if model.covariates and model.kept_votes is not None and model.kept_votes.shift is None:
            names = ", ".join(model.covariates)
            notes.append(
                f"warning: {path} keeps votes without values of its covariates ({names}): changes hold theirs."
            )
    if alone:
        listed = ", ".join(alone[:5]) + (", ..." if len(alone) > 5 else "")
        are = "model is" if len(alone) == 1 else "models are"
        notes.append(f"{len(alone)} {are} known to one side only and left out: {listed}.")
    return notes
