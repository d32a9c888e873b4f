"""Leaderboards of a trained model: of prompts one by one, or of a file of prompts and of its groups."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from p2l.common.cli import nearest, progress
from p2l.common.errors import InputError
from p2l.common.prompts import familiarity_note, unfamiliar_note
from p2l.leaderboard.aggregation import aggregate
from p2l.leaderboard.board import Leaderboard, Named
from p2l.leaderboard.controls import FORMAT
from p2l.leaderboard.covariates import Effect
from p2l.public import PUBLIC, Names

if TYPE_CHECKING:
    from p2l.inference import P2L
    from p2l.leaderboard.groups import Groups, Ints
    from p2l.votes.rows import Source

_PROMPTS_AT_ONCE = 512


def boards_of_model(args: argparse.Namespace) -> list[Named]:
    """Return the leaderboard of each prompt, or those of a file of prompts and of its groups."""
    from p2l.inference import P2L
    from p2l.serving.probing import check_model

    check_model(args.model)
    model = P2L.from_pretrained(args.model)
    effects = _effects(model, args)
    shown = _Shown.of(model, args.models)
    boards = _boards(model, shown, effects, args)
    return _by_public(boards) if args.model == PUBLIC else boards


@dataclass(frozen=True)
class _Shown:
    """The LLMs on a board: names, and places in the model's list."""

    names: list[str]
    places: list[int]

    @classmethod
    def of(cls, model: P2L, names: Sequence[str]) -> _Shown:
        """Return those that are asked for, or all; InputError where the model does not know one of them."""
        places = {name: place for place, name in enumerate(model.model_list)}
        if not names:
            return cls(list(places), list(places.values()))
        matched = Names.load().matched(names, places)
        unknown = next((name for name in names if name not in matched), None)
        if unknown is not None:
            raise InputError(f"--models: it knows no {unknown!r}{nearest(unknown, places)}; --top 0 lists all it knows")
        chosen = list(dict.fromkeys(matched.values()))
        if len(chosen) == 1:
            raise InputError(f"--models: {chosen[0]} alone has nobody to be compared with; name another")
        return cls(chosen, [places[name] for name in chosen])


def _by_public(boards: list[Named]) -> list[Named]:
    """Return the boards, the first with the note that the public model made them."""
    from p2l.public.model import public_note

    first = boards[0]
    note = f"By {public_note()}."
    return [first._replace(board=replace(first.board, notes=(*first.board.notes, note))), *boards[1:]]


def _boards(model: Any, shown: _Shown, effects: tuple[Effect, ...], args: argparse.Namespace) -> list[Named]:
    if args.prompt:
        return [
            Named(
                "prompt",
                prompt,
                1,
                replace(_of_prompt(model, prompt, shown, args.level), effects=() if number else effects),
            )
            for number, prompt in enumerate(args.prompt)
        ]
    # The board of a prompt needs no Arrow, which takes forty megabytes.
    from p2l.leaderboard.groups import Groups
    from p2l.leaderboard.sources import fit_options
    from p2l.votes.sources import open_source

    source = open_source(args.prompts)
    groups = Groups(source, args.by)
    predictions, inputs, members = _ask(model, source, groups, quiet=args.quiet)
    sizes = {code: len(rows) for code, rows in members.items()}
    boards = list[Named]()
    for by, name, code in groups.ordered(sizes):
        rows = members[code]
        eta, gamma, familiarity = (None if column is None else column[rows] for column in predictions[1:])
        board = aggregate(
            predictions[0][rows][:, shown.places],
            eta,
            gamma,
            model.likelihood.name,
            models=shown.names,
            **fit_options(args),
        )
        board = _with_familiarity(_with_posterior(board, model, shown, inputs[rows]), familiarity)
        boards.append(Named(by, name, sizes[code], replace(board, effects=() if boards else effects)))
    return boards


def board_of(model: P2L, prompt: str, level: float = 0.95) -> Leaderboard:
    """Return the leaderboard of all LLMs that a model predicts for a prompt, with intervals by its posterior."""
    return _of_prompt(model, prompt, _Shown.of(model, ()), level)


def _of_prompt(model: P2L, prompt: str, shown: _Shown, level: float) -> Leaderboard:
    """Return the leaderboard of some LLMs for a prompt.

    With a posterior its intervals are of each true coefficient less the mean of the others', since the level that all
    coefficients share says nothing about who is better.
    """
    prediction = model.predict([prompt])
    columns = (prediction.coefs[:, shown.places], prediction.eta, prediction.gamma)
    board = aggregate(*columns, model.likelihood.name, models=shown.names, intervals=None)
    if prediction.variances is None or prediction.basis is None or prediction.familiarity is None:
        return board
    basis = prediction.basis[shown.places].astype(np.float64)
    reach = NormalDist().inv_cdf(0.5 + level / 2) * prediction.field_sd(shown.places)[0]
    familiarity = float(prediction.familiarity[0])
    note = familiarity_note(familiarity)
    return replace(
        board,
        lower=board.coefs - reach,
        upper=board.coefs + reach,
        covariance=(basis * prediction.variances[0]) @ basis.T,
        level=level,
        intervals_of="model",
        familiarity=familiarity,
        notes=(*board.notes, *([note] if note else [])),
    )


def _with_posterior(board: Leaderboard, model: P2L, shown: _Shown, inputs: npt.NDArray[np.float32]) -> Leaderboard:
    """Return the leaderboard of several prompts with intervals that hold what the votes leave open of their mean too.

    As for a single prompt that is of each coefficient less the mean of the others'.
    """
    if model.basis is None:
        note = "Intervals are over prompts alone; p2l posterior adds what the votes leave open."
        return board if board.covariance is None else replace(board, notes=(*board.notes, note))
    if board.covariance is None:
        return board
    basis, count = model.basis[shown.places].astype(np.float64), len(board.models)
    variances = model.mean_variances(inputs).astype(np.float64)
    contrasts = (basis - basis.mean(axis=0)) * (count / max(1, count - 1))
    reach = NormalDist().inv_cdf(0.5 + board.level / 2) * np.sqrt((contrasts**2) @ variances)
    return replace(
        board,
        lower=board.coefs - np.hypot(board.coefs - board.lower, reach),
        upper=board.coefs + np.hypot(board.upper - board.coefs, reach),
        covariance=board.covariance + (basis * variances) @ basis.T,
        intervals_of="prompts and model",
    )


def _with_familiarity(board: Leaderboard, familiarity: npt.NDArray[np.float32] | None) -> Leaderboard:
    """Return the leaderboard of several prompts with the mean of their familiarities, and how many are strange."""
    if familiarity is None:
        return board
    note = unfamiliar_note(familiarity.tolist())
    return replace(board, familiarity=float(familiarity.mean()), notes=(*board.notes, *([note] if note else [])))


def _effects(model: Any, args: argparse.Namespace) -> tuple[Effect, ...]:
    """Return the effects that --control asks for; InputError if the model was trained without one of them."""
    names = [name for text in args.control for part in text.split(",") if (name := part.strip())]
    if not names:
        return ()
    effects = model.effects(args.level)
    there = list(dict.fromkeys(effect.name.split(" = ")[0] for effect in effects))
    chosen = [
        part for name in names for part in ([one for one in FORMAT if one in there] if name == "format" else [name])
    ]
    for name in chosen or names:
        if name not in there:
            trained = f"with {', '.join(there)}" if there else "without covariates"
            raise InputError(
                f"{args.model}: was trained {trained}, not {name}; train with --control, or use --votes FILE"
            )
    return tuple(effect for effect in effects if effect.name.split(" = ")[0] in chosen)


def _ask(
    model: P2L, source: Source, groups: Groups, *, quiet: bool
) -> tuple[list[Any], npt.NDArray[np.float32], dict[int, Ints]]:
    """Return coefs (N, M), eta, gamma and familiarity ((N,) or None), inputs (N, F) of N prompts, and groups' rows."""
    from p2l.votes.reading import read_votes

    model.keep_states()  # prompts are read twice: for coefficients, and for their place among the votes'
    predictions, inputs, number = [], [], 0
    rows: dict[int, list[Ints]] = {}
    names = list(dict.fromkeys(["prompt", *groups.bases.values()]))
    with progress(total=source.rows, description="prompts", unit=" prompts", quiet=quiet) as bar:
        for batch in read_votes(source, columns=names, batch_size=_PROMPTS_AT_ONCE):
            turns = batch.batch.column("prompt").to_pylist()
            predictions.append(model.predict(turns))
            inputs.append(model.inputs(turns) if model.basis is not None else np.zeros((len(turns), 0), np.float32))
            for group, row in groups.members(batch):
                for code in np.unique(group):
                    rows.setdefault(int(code), []).append(row[group == code] + number)
            number += len(batch)
            bar.update(len(batch))
    columns = ([getattr(part, name) for part in predictions] for name in ("coefs", "eta", "gamma", "familiarity"))
    joined = [None if parts[0] is None else np.concatenate(parts) for parts in columns]
    return joined, np.concatenate(inputs), {code: np.concatenate(parts) for code, parts in rows.items()}
