"""Leaderboards of a trained model: of one prompt, or of a file of prompts and of its groups."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from p2l.common.cli import progress
from p2l.leaderboard.aggregation import aggregate
from p2l.leaderboard.board import Leaderboard, Named
from p2l.leaderboard.sources import Floats, Groups, Ints, fit_options
from p2l.votes.reading import read_votes
from p2l.votes.schema import Source
from p2l.votes.sources import open_source

_PROMPTS_AT_ONCE = 512


class _Predictions(NamedTuple):
    """Predictions of a model for N prompts: coefs (N, M), eta and gamma (N,) or None."""

    coefs: Floats
    eta: Floats | None
    gamma: Floats | None

    def of(self, rows: Ints) -> _Predictions:
        """Some of the prompts."""
        parts = (None if values is None else values[rows] for values in (self.eta, self.gamma))
        return _Predictions(self.coefs[rows], *parts)


def boards_of_model(args: argparse.Namespace) -> list[Named]:
    """The leaderboard of one prompt, or those of a file of prompts and of its groups.

    Raises:
        InputError: a model or prompts that cannot be read.
    """
    from p2l.inference import P2L

    model = P2L.from_pretrained(args.model)
    if args.prompt is not None:
        return [Named("", "prompt", 1, _single(model, args.prompt))]
    source = open_source(args.prompts)
    groups = Groups(source, args.by)
    predictions, members = _ask(model, source, groups, quiet=args.quiet)
    sizes = {code: len(rows) for code, rows in members.items()}
    boards = []
    for by, name, code in groups.ordered(sizes):
        part = predictions.of(members[code])
        board = aggregate(*part, model.likelihood.name, models=model.model_list, **fit_options(args))
        boards.append(Named(by, name, sizes[code], board))
    return boards


def _single(model: Any, prompt: str) -> Leaderboard:
    prediction = model.predict([prompt])
    return aggregate(
        prediction.coefs,
        prediction.eta,
        prediction.gamma,
        model.likelihood.name,
        models=model.model_list,
        intervals=None,
    )


def _ask(model: Any, source: Source, groups: Groups, *, quiet: bool) -> tuple[_Predictions, dict[int, Ints]]:
    """Predictions for all prompts of a source, and the rows of each group."""
    predictions, rows, number = [], dict[int, list[Ints]](), 0
    columns = list(dict.fromkeys(["prompt", *groups.bases.values()]))
    with progress(total=source.rows, description="prompts", unit=" prompts", quiet=quiet) as bar:
        for batch in read_votes(source, columns=columns, batch_size=_PROMPTS_AT_ONCE):
            predictions.append(model.predict(batch.batch.column("prompt").to_pylist()))
            for group, row in groups.members(batch):
                for code in np.unique(group):
                    rows.setdefault(int(code), []).append(row[group == code] + number)
            number += len(batch)
            bar.update(len(batch))
    joined = (_join([getattr(part, name) for part in predictions]) for name in ("coefs", "eta", "gamma"))
    return _Predictions(*joined), {code: np.concatenate(parts) for code, parts in rows.items()}  # type: ignore[arg-type]


def _join(parts: Sequence[Any]) -> Floats | None:
    return None if parts[0] is None else np.concatenate(parts)
