"""Drift between two trained models: what each says of the same prompts.

Every different prompt counts once. Intervals say how much the change would differ on other prompts of the kind; that
two trainings on the same votes differ too is not in them.

Shapes: U different prompts, M models that both know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.command import progress
from p2l.drift_cells import Measured
from p2l.errors import InputError
from p2l.leaderboard.field import win_rates
from p2l.leaderboard.sources import Groups
from p2l.likelihood import Likelihood
from p2l.votes.reader import VoteBatch, read_votes
from p2l.votes.schema import hash_turns
from p2l.votes.sources import open_source

__all__ = ["ModelDrift", "drift_of_models"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_PROMPTS_AT_ONCE = 512


@dataclass(frozen=True)
class ModelDrift:
    """The changes, and what a reader must know of them."""

    likelihood: str
    measured: list[Measured]
    notes: list[str]


@dataclass(frozen=True)
class _Side:
    """One of the two models, and what it says: coefs (U, M) of the common models, centred, and win rates (U, M)."""

    model: Any
    columns: list[int]
    coefs: list[Floats]
    rates: list[Floats]

    def ask(self, prompts: Sequence[Sequence[str]]) -> None:
        """Add what the model says of some prompts.

        Raises:
            InputError: that is no number.
        """
        said = self.model.predict(prompts)
        if not np.isfinite(said.coefs).all():
            raise InputError("a model gives coefficients that are no finite numbers; compare another checkpoint")
        coefs = said.coefs[:, self.columns].astype(np.float64)
        self.coefs.append(coefs - coefs.mean(axis=1, keepdims=True))
        self.rates.append(win_rates(coefs, self.model.likelihood, said.eta, said.gamma))


def drift_of_models(
    before: str, after: str, prompts: str, *, by: Sequence[str] = (), least: int = 20, quiet: bool = True
) -> ModelDrift:
    """Compare what two model folders say of a file of prompts, over all of it and for each value of the `by` columns.

    Args:
        before, after: folders or hub ids.
        prompts: a file with a column `prompt`.
        by: columns (see `p2l.leaderboard.grouping`).
        least: categories with fewer different prompts are left out.
        quiet: no progress bar.

    Raises:
        InputError: a model or the prompts cannot be read, or the models cannot be compared.
    """
    from p2l.inference import P2L

    models = [P2L.from_pretrained(path) for path in (before, after)]
    names = _common(models, before, after)
    sides = [_Side(model, [model.model_list.index(name) for name in names], [], []) for model in models]
    groups, members = _ask(sides, prompts, by, quiet=quiet)
    first, second = sides
    change, rates = np.concatenate(second.coefs) - np.concatenate(first.coefs), [
        np.concatenate(side.rates) for side in sides
    ]  # fmt: skip
    measured, small = list[Measured](), 0
    for column, value, code in groups.ordered({code: len(rows) for code, rows in members.items()}):
        rows = members[code]
        small += len(rows) < least
        measured += [] if len(rows) < least else _measure(column, value, names, change[rows], *(r[rows] for r in rates))
    if not measured:
        raise InputError(f"{prompts}: no category has {least} different prompts; lower --min-prompts")
    return ModelDrift(first.model.likelihood.name, measured, _notes(models, names, small, least))


def _common(models: Sequence[Any], before: str, after: str) -> list[str]:
    kinds: list[Likelihood] = [model.likelihood for model in models]
    if kinds[0].name != kinds[1].name:
        raise InputError(
            f"{before} has likelihood {kinds[0].name}, {after} has {kinds[1].name}: "
            "their coefficients mean different things; compare models of one likelihood"
        )
    names = [name for name in models[0].model_list if name in set(models[1].model_list)]
    if len(names) < 2:
        raise InputError(f"{before} and {after} have {len(names)} models in common; a field needs two")
    return names


def _ask(sides: Sequence[_Side], prompts: str, by: Sequence[str], *, quiet: bool) -> tuple[Groups, dict[int, Ints]]:
    """Ask both sides about each different prompt once; the rows (of U) of each category."""
    source = open_source(prompts)
    groups, place, pairs = Groups(source, by), dict[int, int](), set[tuple[int, int]]()
    columns = list(dict.fromkeys(["prompt", *groups.bases.values()]))
    with progress(total=source.rows, description="prompts", unit=" prompts", quiet=quiet) as bar:
        for batch in read_votes(source, columns=columns, batch_size=_PROMPTS_AT_ONCE):
            rows, new = _places(batch, place)
            for side in sides if new else ():
                side.ask(new)
            for codes, members in groups.members(batch):
                pairs |= set(zip(codes.tolist(), rows[members].tolist(), strict=True))
            bar.update(len(batch))
    found: dict[int, list[int]] = {}
    for code, row in sorted(pairs):
        found.setdefault(code, []).append(row)
    return groups, {code: np.array(rows) for code, rows in found.items()}


def _places(batch: VoteBatch, place: dict[int, int]) -> tuple[Ints, list[list[str]]]:
    """The number of each row's prompt among the different ones, and those that are new."""
    new, rows = [], []
    for turns in batch.batch.column("prompt").to_pylist():
        key = hash_turns(turns)
        if key not in place:
            place[key] = len(place)
            new.append(turns)
        rows.append(place[key])
    return np.array(rows, dtype=np.int64), new


def _measure(
    column: str, value: str, names: Sequence[str], change: Floats, before: Floats, after: Floats
) -> list[Measured]:
    """A category's changes (n, M) as means with their standard errors."""
    mean, error = change.mean(axis=0), change.std(axis=0, ddof=1) / np.sqrt(len(change))
    rates = before.mean(axis=0), after.mean(axis=0)
    return [
        Measured(column, value, name, len(change), float(mean[m]), float(error[m]), *(float(rate[m]) for rate in rates))
        for m, name in enumerate(names)
    ]


def _notes(models: Sequence[Any], names: Sequence[str], small: int, least: int) -> list[str]:
    lists = [set(model.model_list) for model in models]
    alone = sorted((lists[0] | lists[1]) - set(names))
    notes = ["intervals are over prompts; two trainings on the same votes differ too: --least-change leaves that out."]
    if alone:
        shown = ", ".join(alone[:5]) + (", ..." if len(alone) > 5 else "")
        notes.append(f"{len(alone)} models are known to one side only and left out: {shown}.")
    if small:
        notes.append(f"{small} categories with fewer than {least} different prompts are left out.")
    return notes
