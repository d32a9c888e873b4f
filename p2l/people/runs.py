"""Votes of people and judges in a training run: terms of each vote, and which votes speak for people.

Where the votes have a source (key `people`) or voters (key `weigh_voters`), what `p2l.people` fits to the votes that
are trained on turns the model's coefficients into those of each vote's source, and weighs voters. Whatever is chosen or
measured is by the votes of people alone. Covariates (key `covariates`) are of people's votes, fitted with the rest.
Shapes: N votes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2l.common.files import write_json
from p2l.common.text_table import text_table
from p2l.leaderboard import Leaderboard
from p2l.leaderboard.controls import Controls, Design
from p2l.leaderboard.covariates import able
from p2l.leaderboard.newton import shift_invariant
from p2l.likelihood import get
from p2l.people import SourcedVotes, SourceFit, fit_sources, sourced_votes
from p2l.people.judges import Forecast
from p2l.people.voters import by_people
from p2l.votes import VoteStore

_SOURCES_FILE = "sources.json"
_DISTRUST = 0.5
"""Trust of a voter below which it is worth weighing voters at all."""
Ids = NDArray[np.int64]
_fits: WeakKeyDictionary[VoteStore, SourceFit] = WeakKeyDictionary()


class _SourceSettings(Protocol):
    """What a training configuration says of sources."""

    people: str | None
    """The source of people's votes; None: there are no judges."""
    weigh_voters: bool
    """Whether votes count by how their voters agree with the others."""
    weighted_loss: bool
    """Whether votes have weights of their own."""
    loss_type: str
    """The likelihood."""
    covariates: tuple[str, ...]
    """Names of covariates of people's votes."""


@dataclass(frozen=True)
class VoteAdjustments:
    """What turns coefficients of people into those of N votes, and how much each counts."""

    scale: Tensor
    """(N,)"""
    shift: Tensor
    """(N, 3): added to winner, loser and eta."""
    weight: NDArray[np.float64]
    """(N,)"""

    def take(self, ids: Ids) -> VoteAdjustments:
        """Return the terms of some votes."""
        return VoteAdjustments(self.scale[ids], self.shift[ids], self.weight[ids])

    def scaled(self, coefs: Tensor, gamma: Tensor | None) -> Tensor:
        """Return coefficients (n, M) of people as those of the votes' sources, but for the shift."""
        scale = self.scale.to(coefs)[:, None]
        return coefs * scale if gamma is None else gamma.view(-1, 1) * (1 - scale) + coefs * scale

    def repeated(self, members: int, device: torch.device) -> VoteAdjustments:
        """Return them once for each member of a backbone."""
        return replace(
            self, scale=self.scale.repeat(members).to(device), shift=self.shift.repeat(members, 1).to(device)
        )


class VoteAdjuster(Protocol):
    """What knows the terms of votes by their ids."""

    def take(self, ids: Ids) -> VoteAdjustments:
        """Return the terms of some votes."""


def has_sources(config: _SourceSettings) -> bool:
    """Return whether votes have sources, or voters, that count."""
    return config.people is not None or config.weigh_voters


def people_rows(votes: VoteStore, config: _SourceSettings) -> Ids:
    """Return the ids of the votes that people cast."""
    return np.flatnonzero(by_people(votes, config.people))


def of_people(votes: VoteStore, config: _SourceSettings) -> VoteStore:
    """Return the votes that people cast."""
    rows = people_rows(votes, config)
    return votes if len(rows) == len(votes) else votes.subset(rows)


def sources_of(votes: VoteStore, config: _SourceSettings, design: Design | None = None) -> SourceFit:
    """Return what one leaderboard of people says of the sources of votes; kept as long as the votes are.

    Its covariates are those of a model's `design`, or by default of these votes.
    """
    if votes not in _fits:
        _fits[votes] = _steady(fit_sources(_with_covariates(votes, config, design), config.loss_type))
    return _fits[votes]


def refitted(votes: VoteStore, config: _SourceSettings, forecasts: Forecast) -> SourceFit:
    """Return the same by forecasts of the votes, by models that were not trained on their prompts."""
    return _steady(fit_sources(_with_covariates(votes, config), config.loss_type, forecasts))


def terms_of(votes: VoteStore, config: _SourceSettings, fit: SourceFit | None = None) -> VoteAdjustments | None:
    """Return the terms of votes by a fit, or by that of `sources_of`; None where there are no sources."""
    if not has_sources(config):
        return None
    terms = (fit or sources_of(votes, config)).terms(_read(votes, config), config.loss_type)
    scale = torch.as_tensor(terms.scale, dtype=torch.float32)
    return VoteAdjustments(scale, torch.as_tensor(terms.shift, dtype=torch.float32), terms.weight)


def board_of(votes: VoteStore, config: _SourceSettings, design: Design | None = None) -> Leaderboard:
    """Return the one leaderboard of what people say, with the covariates of `sources_of`."""
    fit, likelihood = sources_of(votes, config, design), get(config.loss_type)
    coefs = fit.coefs - fit.coefs.mean() if shift_invariant(likelihood) else fit.coefs
    unknown = np.full(len(coefs), np.nan)
    return Leaderboard(
        models=list(votes.model_list),
        coefs=coefs,
        lower=unknown,
        upper=unknown,
        eta=fit.eta,
        gamma=likelihood.board_gamma,
        likelihood=likelihood.name,
        loss=float("nan"),
        votes=None,
        components=np.zeros(len(coefs), dtype=np.int64),
        effects=fit.effects,
    )


def _read(votes: VoteStore, config: _SourceSettings) -> SourcedVotes:
    sourced = sourced_votes(votes, config.people)
    if not config.weighted_loss:
        sourced = replace(sourced, weights=np.ones(len(sourced)))
    return sourced if config.weigh_voters else replace(sourced, voters=[], voter=np.full(len(sourced), -1))


def _with_covariates(votes: VoteStore, config: _SourceSettings, design: Design | None = None) -> SourcedVotes:
    """Return the votes with who cast them and, where the configuration names covariates, those of people's votes."""
    sourced = _read(votes, config)
    if not config.covariates:
        return sourced
    people, rows = of_people(votes, config), people_rows(votes, config)
    if design is None:
        controls = Controls(config.covariates, people.columns, people.name, key="covariate")
        for _, batch in people.batches():
            controls.add(batch)
        design = controls.design()
    roles = able(get(config.loss_type))
    values = np.zeros((len(votes), len(design.terms)))
    for ids, batch in people.batches():
        values[rows[ids]] = design.read(batch, people.name, {})
    covariates = design.covariates(values)
    covariates = covariates.pick([role in roles for role in covariates.roles] & (values != 0).any(axis=0))
    if not covariates.names:
        return sourced
    # Votes are seen from the winner: a difference changes its sign where that was shown second.
    turns = np.array([role == "difference" for role in covariates.roles])
    seen = np.where((sourced.side < 0)[:, None] & turns, -covariates.values, covariates.values)
    return replace(sourced, covariates=replace(covariates, values=seen))


def _steady(fit: SourceFit) -> SourceFit:
    """Return a fit in which all voters count alike, unless one of them is distrusted or casts too many votes."""
    # Weights of voters who are all much alike are noise, and would make every run differ from one without them.
    if any(voter.trust < _DISTRUST or voter.weight < _DISTRUST * voter.trust for voter in fit.voters):
        return fit
    return replace(fit, voters=tuple(replace(voter, weight=1.0) for voter in fit.voters))


# What is written and printed.


@dataclass(frozen=True)
class WorthOfJudges:
    """Losses of people's votes by models that were not trained on their prompts, with and without judges' verdicts."""

    alone: float
    together: float

    @property
    def helps(self) -> bool:
        """Whether the judges' verdicts are trained on."""
        return self.together <= self.alone


def write_sources(folder: Path, fit: SourceFit, worth: WorthOfJudges | None) -> None:
    """Write sources.json."""
    content: dict[str, Any] = fit.to_dict()
    if worth is not None:
        content["loss"] = {"people alone": worth.alone, "with judges": worth.together}
    write_json(folder / _SOURCES_FILE, content, indent=2)


def to_text(fit: SourceFit, worth: WorthOfJudges | None) -> str:
    """Return the judges' terms and the voters who count less, for the terminal."""
    lines = []
    if fit.judges:
        header = ["judge", "verdicts", "sharpness", "first answer", "longer answer", "own family", "taste"]
        rows = [
            [judge.judge, f"{judge.verdicts:,}", f"{judge.scale:.2f}"]
            + [f"{lean:+.2f}" for lean in (judge.side, judge.length, judge.own)]
            + [f"{judge.taste:.2f}"]
            for judge in fit.judges
        ]
        lines += [*text_table(header, rows, left={0}), ""]
    if worth is not None:
        verdict = "they are trained on" if worth.helps else "they are left out"
        lines.append(
            f"people's votes on prompts not trained on: loss {worth.alone:.4f} without judges, {worth.together:.4f} "
            f"with them; {verdict}"
        )
    rigged = [voter for voter in fit.voters if voter.trust < _DISTRUST]
    busy = [voter for voter in fit.voters if voter.trust >= _DISTRUST > voter.weight]
    for voters, reason in (
        (rigged, "voters unlike people, whose votes count for less than half"),
        (busy, "voters with so many votes that each counts for less than half"),
    ):
        if voters:
            votes = sum(voter.votes for voter in voters)
            lines.append(f"{reason}: {len(voters):,} of {len(fit.voters):,}, with {votes:,} votes")
    return "\n".join(lines)
