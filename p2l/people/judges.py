"""What a judge's verdicts say of people's votes: a scale, offsets, and one leaderboard of people, fitted together.

A vote between models a and b of a source j has the coefficients

    coef_a = s_j theta_a + level_j + offset_ja + lean / 2,     coef_b = s_j theta_b + level_j + offset_jb - lean / 2,
    eta_j = eta + ties_j,
    lean = side_j + length_j (length_a - length_b) / (length_a + length_b) + own_j (a is of its family - b is)

with s = 1 and no offsets for people, so that theta is what people say: a judge who is biased in these ways teaches
without misleading. The judge's taste for each model (offset) has a normal prior whose standard deviation is fitted to
its verdicts and people's votes (MacKay's evidence update): verdicts of a judge with tastes of its own say much of how
models differ from prompt to prompt, and little of how good they are. Where coefficients have a zero, s_j turns them
about it; under ba, about gamma. With forecasts of the votes in the place of one leaderboard, theta is what has to be
added to them.

Covariates of people's votes are fitted with all that, as `p2l.leaderboard.covariates` has them, each with an effect for
all of these votes. A verdict has none: what a judge leans to is its own.

Voters are weighed as everywhere (`p2l.people.collusion`).

Shapes: N votes, M models, J judges, C covariates, D parameters (M coefficients; eta where there is one; log of people's
scale, which is held at zero without forecasts; for each judge log s, level, ties, side, length, own and M offsets; C
effects, each of a typical value of its covariate).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve

from p2l.common.errors import InputError
from p2l.leaderboard.covariates import Effect
from p2l.leaderboard.newton import BROAD, Expansion, derivatives, has_eta, one_blas_thread
from p2l.likelihood import Likelihood, counted, get, targets, vote_losses
from p2l.people.cast import cast_of_sources
from p2l.people.collusion import examine
from p2l.people.evidence import Voter
from p2l.people.voters import PERSON, SourcedVotes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_SCALARS = ("log_scale", "level", "ties", "side", "length", "own")
_SCALAR_SDS = (0.5, 2.0, 2.0, 2.0, 2.0, 2.0)  # of their priors
# Of the prior of the offsets: where its fit starts, and a pseudo-observation, so that it never falls to zero.
_FIRST_TASTE, _PSEUDO_TASTE = 0.3, 0.1
_MIN_SD = 0.01
_CORRECTION_SD = 0.2  # of what has to be added to forecasts
# Of Fisher scoring.
_MAX_STEPS = 50
_LONGEST_STEP = 4.0
_LAST_STEP = 1e-4
_MAX_HALVINGS = 30
# Of prior and judges in turns.
_STEADY_CHANGE = 0.01
_MAX_ROUNDS = 12
_MAX_FITTED_VOTES = 200_000  # whose slopes along all parameters are in memory together
_BLOCK_VOTES = 1 << 15  # whose derivatives are in memory at a time


@dataclass(frozen=True)
class JudgeTerms:
    """What tells a judge's verdicts from people's votes, in logits; zero, and a scale of one, where nothing does."""

    judge: str
    verdicts: int
    scale: float
    """How much sharper than people the judge tells models apart."""
    level: float
    ties: float
    side: float
    """Lean towards the answer shown first."""
    length: float
    """Lean towards the longer answer, per unit of (a - b) / (a + b)."""
    own: float
    """Lean towards models of its own family."""
    taste: float
    """Standard deviation of its offsets for models."""
    offsets: dict[str, float]
    """By model."""


class VoteTerms(NamedTuple):
    """What makes votes of several sources out of a model of people: coefficients x scale + shift, counted by weight."""

    scale: Floats
    """(N,)"""
    shift: Floats
    """(N, 3): added to winner, loser and eta."""
    weight: Floats
    """(N,)"""


@dataclass(frozen=True)
class SourceFit:
    """A leaderboard of what people say, and what judges and voters are made of."""

    coefs: Floats
    """(M,)"""
    eta: float | None
    judges: tuple[JudgeTerms, ...]
    voters: tuple[Voter, ...]
    effects: tuple[Effect, ...] = ()
    """Of the covariates of people's votes, per unit and without intervals; `terms` leaves them out."""
    verdict: str = ""
    """A sentence on voters who do not vote like people; empty without any."""

    def terms(self, votes: SourcedVotes, likelihood: str) -> VoteTerms:
        """Return the terms of votes, of which judges and voters that the fit does not know count as people."""
        unit = get(likelihood).eta_scale.unit
        judges = {terms.judge: terms for terms in self.judges}
        scale, shift = np.ones(len(votes)), np.zeros((len(votes), 3))
        for code, name in enumerate(votes.judges):
            judge = judges.get(name)
            if judge is None:
                continue
            rows = np.flatnonzero(votes.judge == code)
            offsets = np.array([judge.offsets.get(model, 0.0) for model in votes.models])
            winner, loser = votes.labels[rows, 0], votes.labels[rows, 1]
            lean = judge.side * votes.side[rows] + judge.length * votes.length[rows]
            lean += judge.own * (votes.own[code, winner] - votes.own[code, loser])
            scale[rows] = judge.scale
            shift[rows, 0] = judge.level + offsets[winner] + lean / 2.0
            shift[rows, 1] = judge.level + offsets[loser] - lean / 2.0
            shift[rows, 2] = judge.ties * unit
        weights = {voter.name: voter.weight for voter in self.voters}
        table = np.array([*(weights.get(name, 1.0) for name in votes.voters), 1.0])
        return VoteTerms(scale, shift, table[votes.voter])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for a file."""
        effects = [{"name": effect.name, "role": effect.role, "coef": effect.coef} for effect in self.effects]
        return {
            "coefs": self.coefs.tolist(),
            "eta": self.eta,
            "judges": [asdict(judge) for judge in self.judges],
            "voters": [asdict(voter) for voter in self.voters],
        } | ({"covariates": effects} if effects else {})

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> SourceFit:
        """Return what `to_dict` wrote; KeyError or TypeError for something else."""
        judges = tuple(JudgeTerms(**judge) for judge in content["judges"])
        voters = tuple(Voter(**voter) for voter in content["voters"])
        effects = tuple(_effect(**effect) for effect in content.get("covariates", ()))
        return cls(np.array(content["coefs"], dtype=np.float64), content["eta"], judges, voters, effects)


def _effect(name: str, role: str, coef: float) -> Effect:
    return Effect(name, role, coef, float("nan"), float("nan"))


@dataclass(frozen=True)
class Forecast:
    """Predicted parameters of N votes: coefs (N, M), and eta, gamma (N,) or None where the likelihood has none.

    `shift` (N, 3) is what covariates add to the winner's coefficient, the loser's, and eta; None without covariates.
    """

    coefs: npt.NDArray[np.floating]
    eta: npt.NDArray[np.floating] | None
    gamma: npt.NDArray[np.floating] | None = None
    shift: npt.NDArray[np.floating] | None = None

    def take(self, rows: Ints) -> Forecast:
        """Return those of some votes."""
        columns = (None if values is None else values[rows] for values in (self.eta, self.gamma, self.shift))
        return Forecast(self.coefs[rows], *columns)


@one_blas_thread()
def fit_sources(votes: SourcedVotes, likelihood: str, forecasts: Forecast | None = None) -> SourceFit:
    """Fit people's leaderboard, judges' terms and voters' weights; InputError where no vote counts.

    With `forecasts` the coefficients are what has to be added to them, and the judges' scales are beside people's.
    """
    model = get(likelihood)
    if not (votes.weights * counted(model, votes.labels)).any():
        raise InputError(f"no vote counts under likelihood {likelihood}")
    sample, forecasts_of_sample = votes, forecasts
    if len(votes) > _MAX_FITTED_VOTES:
        # The leaderboard is of people, and judges have many more verdicts: people keep up to half of the places.
        order = np.random.default_rng(0).permutation(len(votes))
        is_person = votes.by_people[order]
        people = order[is_person][: _MAX_FITTED_VOTES // 2]
        rows = np.sort(np.concatenate([people, order[~is_person][: _MAX_FITTED_VOTES - len(people)]]))
        sample, forecasts_of_sample = votes.take(rows), None if forecasts is None else forecasts.take(rows)
    problem = _PenalisedLikelihood.of(sample, model, forecasts_of_sample)
    theta = problem.mean.copy()
    spread = 1.0 if forecasts is None else _CORRECTION_SD
    prior = _SourcePrior(level=0.0, spread=spread, tastes=np.full(len(votes.judges), _FIRST_TASTE))
    examination = examine(cast_of_sources(votes))
    weights = np.array([*(examination.weights.get(name, 1.0) for name in votes.voters), 1.0])
    weight = weights[sample.voter]  # -1, of a vote without a name, takes the one at the end
    for _ in range(_MAX_ROUNDS):
        point = problem.minimise(theta, weight, prior)
        theta, last = point.theta, prior
        prior = problem.suited_prior(point, prior)
        if prior.is_near(last):
            break
    verdicts = np.bincount(votes.judge[~votes.by_people], minlength=len(votes.judges))
    fit = problem.result(theta, prior, verdicts.tolist())
    return replace(fit, voters=examination.weighed, verdict=examination.verdict)


class _SourcePrior(NamedTuple):
    """What is fitted of the prior."""

    level: float
    """Mean of people's leaderboard."""
    spread: float
    """Standard deviation of its models."""
    tastes: Floats
    """(J,) of each judge's offsets."""

    def is_near(self, other: _SourcePrior) -> bool:
        """Whether one more round would change little."""
        ratios = np.log(np.append(self.tastes / other.tastes, self.spread / other.spread))
        return bool(np.abs(ratios).max() < _STEADY_CHANGE) and abs(self.level - other.level) < _STEADY_CHANGE


@dataclass(frozen=True)
class _PenalisedLikelihood:
    """The penalised likelihood of votes, as a function of the D parameters."""

    votes: SourcedVotes
    model: Likelihood
    base: Floats
    """(N, 3) forecasts of winner, loser and eta; zero without."""
    gamma: Floats | None
    mean: Floats
    """(D,) of the prior."""
    sd: Floats
    """(D,)"""
    jacobians: tuple[Any, ...]
    """For winner, loser and eta: sparse (N, D), the slopes of all but people's leaderboard and the scales."""
    typical: Floats
    """(C,) typical values of the covariates, by which theirs are divided."""
    is_correction: bool
    """Whether the leaderboard is added to forecasts."""

    @classmethod
    def of(cls, votes: SourcedVotes, model: Likelihood, forecasts: Forecast | None) -> _PenalisedLikelihood:
        size, number = len(votes.models), len(votes)
        rows, base, gamma = np.arange(number), np.zeros((number, 3)), None
        if forecasts is not None:
            for place in (0, 1):
                base[:, place] = forecasts.coefs[rows, votes.labels[:, place]]
            base[:, 2] = 0.0 if forecasts.eta is None else forecasts.eta
            gamma = None if forecasts.gamma is None else np.asarray(forecasts.gamma, dtype=np.float64)
        elif model.board_gamma is not None:
            gamma = np.full(number, model.board_gamma)
        eta, unit = has_eta(model), model.eta_scale.unit
        per_judge = len(_SCALARS) + size
        typical = _typical_values(votes, unit)
        mean = np.zeros(size + eta + 1 + per_judge * len(votes.judges) + len(typical))
        sd = np.ones(len(mean))
        if eta:
            mean[size] = model.eta_scale.start if forecasts is None else 0.0
            sd[size] = (5.0 if forecasts is None else 1.0) * unit
        # Without forecasts people's scale is that of their leaderboard, and stays at one.
        sd[size + eta] = 1e-6 if forecasts is None else 0.7
        for judge in range(len(votes.judges)):
            start = size + eta + 1 + judge * per_judge
            sd[start : start + len(_SCALARS)] = _SCALAR_SDS
        sd[len(mean) - len(typical) :] = BROAD
        slopes = _slopes(votes, eta, unit, len(mean))
        if votes.covariates is not None:
            scaled, roles = votes.covariates.values / typical, votes.covariates.matrix
            before = sparse.csr_matrix((number, len(mean) - len(typical)))
            for place in range(2 + eta):
                of_place = sparse.csr_matrix(scaled * roles[:, place])
                slopes[place] = (slopes[place] + sparse.hstack([before, of_place])).tocsr()
        return cls(votes, model, base, gamma, mean, sd, tuple(slopes), typical, is_correction=forecasts is not None)

    @property
    def has_eta(self) -> int:
        return int(has_eta(self.model))

    def _at(self, judge: int) -> int:
        """Return where the parameters of a judge begin."""
        size = len(self.votes.models)
        return size + self.has_eta + 1 + judge * (len(_SCALARS) + size)

    def _levels(self, theta: Floats) -> tuple[Floats, Floats]:
        """Return what people's leaderboard says of winner and loser (N, 2) above gamma, and the scales (N,)."""
        size = len(self.votes.models)
        levels = theta[:size][self.votes.labels[:, :2]] + self.base[:, :2]
        if self.gamma is not None:
            levels = levels - self.gamma[:, None]
        # People's code is -1: they take the zero at the end.
        of_judges = np.array([*(theta[self._at(judge)] for judge in range(len(self.votes.judges))), 0.0])
        common = theta[size + self.has_eta]
        return levels, np.asarray(np.exp(common + of_judges[self.votes.judge]))

    def parameters(self, theta: Floats) -> tuple[Floats, Floats, Floats | None, Floats | None]:
        """Return coefficients of winner and loser, eta and gamma (N,) of each vote."""
        levels, scales = self._levels(theta)
        rest = theta.copy()
        rest[: len(self.votes.models)] = 0.0  # which the scales multiply
        first, second = (scales * levels[:, place] + self.jacobians[place] @ rest for place in (0, 1))
        if self.gamma is not None:
            first, second = first + self.gamma, second + self.gamma
        eta = self.jacobians[2] @ rest + self.base[:, 2] if self.has_eta else None
        return first, second, eta, self.gamma

    def losses(self, theta: Floats) -> Floats:
        """Return the loss (N,) of each vote."""
        first, second, eta, gamma = self.parameters(theta)
        labels = np.column_stack([np.zeros(len(first)), np.ones(len(first)), self.votes.labels[:, 2]]).astype(np.int64)
        return np.asarray(vote_losses(self.model, np.stack([first, second], axis=1), labels, eta, gamma))

    def minimise(self, theta: Floats, weight: Floats, prior: _SourcePrior) -> Expansion:
        """Descend by Fisher scoring; the Hessian of the point is the information, the prior's included."""
        size, mean, sd = len(self.votes.models), self.mean.copy(), self.sd.copy()
        mean[:size], sd[:size] = prior.level, prior.spread
        for judge, taste in enumerate(prior.tastes):
            start = self._at(judge) + len(_SCALARS)
            sd[start : start + size] = taste
        precision = np.asarray(sd**-2.0)
        weight = weight * self.votes.weights

        def value_at(theta: Floats) -> float:
            return float(weight @ self.losses(theta) + 0.5 * precision @ (theta - mean) ** 2)

        value = value_at(theta)
        for _ in range(_MAX_STEPS):
            gradient, information = self._slope(theta, weight)
            gradient = gradient + precision * (theta - mean)
            information = information + np.diag(precision)
            step = -cho_solve(cho_factor(information, lower=True), gradient)
            # Where probabilities are near zero or one the information is small, and the step too long.
            step *= min(1.0, _LONGEST_STEP / max(float(np.abs(step).max()), 1e-300))
            for _ in range(_MAX_HALVINGS):
                trial = value_at(theta + step)
                if trial <= value + 1e-12 * abs(value):
                    break
                step = step / 2.0
            theta, value = theta + step, trial
            if float(np.abs(step).max()) < _LAST_STEP:
                break
        return Expansion(theta, value, gradient, information)

    def _slope(self, theta: Floats, weight: Floats) -> tuple[Floats, Floats]:
        """Return gradient (D,) and Fisher information (D, D) of the votes."""
        width, columns = 2 + self.has_eta, self.parameters(theta)
        jacobians = self._jacobians(theta)[:width]
        gradient, information = np.zeros(len(theta)), np.zeros((len(theta), len(theta)))
        for start in range(0, len(self.votes), _BLOCK_VOTES):
            rows = slice(start, start + _BLOCK_VOTES)
            logs, slopes, _ = derivatives(self.model, *(None if column is None else column[rows] for column in columns))
            slopes = slopes[..., :width]
            mass = np.asarray(targets(self.model, self.votes.labels[rows, 2])) * weight[rows, None]
            score = -np.einsum("nk,nkq->nq", mass, slopes)
            fisher = np.einsum("nk,nkq,nkr->nqr", np.exp(logs) * mass.sum(axis=1)[:, None], slopes, slopes)
            blocks = [jacobian[rows] for jacobian in jacobians]
            for q, first in enumerate(blocks):
                gradient += first.T @ score[:, q]
                weighted = sum(sparse.diags(fisher[:, q, r]) @ second for r, second in enumerate(blocks))
                information += (first.T @ weighted).toarray()
        return gradient, information

    def _jacobians(self, theta: Floats) -> list[Any]:
        """Return the slopes (N, D) of winner, loser and eta."""
        size, number = len(self.votes.models), len(self.votes)
        levels, scales = self._levels(theta)
        common = size + self.has_eta
        scale_at = np.array([*(self._at(judge) for judge in range(len(self.votes.judges))), common])[self.votes.judge]
        rows = np.arange(number)
        out = []
        for place in (0, 1):
            sloped = scales * levels[:, place]
            of_judge = np.where(scale_at == common, 0.0, sloped)  # people have no scale of their own
            entries = np.concatenate([scales, sloped, of_judge])
            columns = np.concatenate([self.votes.labels[:, place], np.full(number, common), scale_at])
            of_scales = sparse.csr_matrix((entries, (np.tile(rows, 3), columns)), shape=self.jacobians[place].shape)
            out.append(of_scales + self.jacobians[place])
        return [*out, self.jacobians[2]]

    def suited_prior(self, point: Expansion, prior: _SourcePrior) -> _SourcePrior:
        """Return the prior that suits the votes best, all parameters integrated out (one round of MacKay's update)."""
        covariance, size = np.linalg.inv(point.hessian), len(self.votes.models)

        def sd_of(start: int, centre: float, before: float, pseudo: float) -> float:
            places = slice(start, start + size)
            decided = max(size - float(np.trace(covariance[places, places])) / before**2, 0.0)
            squares = float(((point.theta[places] - centre) ** 2).sum())
            return float(max(_MIN_SD, np.sqrt((squares + pseudo**2) / (decided + 1.0))))

        tastes = [
            sd_of(self._at(judge) + len(_SCALARS), 0.0, sd, _PSEUDO_TASTE) for judge, sd in enumerate(prior.tastes)
        ]
        if self.is_correction:
            return prior._replace(tastes=np.array(tastes))
        level = float(point.theta[:size].mean())
        return _SourcePrior(level, sd_of(0, level, prior.spread, 1.0), np.array(tastes))

    def result(self, theta: Floats, prior: _SourcePrior, verdicts: list[int]) -> SourceFit:
        size, judges = len(self.votes.models), []
        for code, name in enumerate(self.votes.judges):
            start = self._at(code)
            log_scale, level, ties, side, length, own = theta[start : start + len(_SCALARS)].tolist()
            offsets = theta[start + len(_SCALARS) :][:size].tolist()
            terms = JudgeTerms(
                judge=name,
                verdicts=verdicts[code],
                scale=float(np.exp(log_scale)),
                level=level,
                ties=ties,
                side=side,
                length=length,
                own=own,
                taste=float(prior.tastes[code]),
                offsets=dict(zip(self.votes.models, offsets, strict=True)),
            )
            judges.append(terms)
        eta = float(theta[size]) if self.has_eta else None
        effects: tuple[Effect, ...] = ()
        if self.votes.covariates is not None:
            names, roles = self.votes.covariates.names, self.votes.covariates.roles
            sizes = (theta[len(theta) - len(names) :] / self.typical).tolist()
            effects = tuple(map(_effect, names, roles, sizes))
        return SourceFit(theta[:size].copy(), eta, tuple(judges), (), effects)


def _typical_values(votes: SourcedVotes, unit: float) -> Floats:
    """Return the root mean square (C,) of each covariate in people's votes; steps of eta are `unit` long."""
    if votes.covariates is None:
        return np.zeros(0)
    values = votes.covariates.values[votes.by_people]
    typical = np.sqrt((values**2).mean(axis=0)) if len(values) else np.ones(values.shape[1])
    units = np.array([unit if role == "ties" else 1.0 for role in votes.covariates.roles])
    return np.asarray(np.where(typical > 0, typical, 1.0) / units)


def _slopes(votes: SourcedVotes, eta: bool, unit: float, parameters: int) -> list[Any]:
    """Return the slopes (N, D) of winner, loser and eta along all parameters but people's leaderboard and scales."""
    size, number = len(votes.models), len(votes)
    is_judge = votes.judge != PERSON
    rows = np.flatnonzero(is_judge)
    at = size + eta + 1 + votes.judge[rows] * (len(_SCALARS) + size)
    ones, out = np.ones(len(rows)), list[Any]()
    models = votes.labels[rows]
    own = votes.own[votes.judge[rows], models[:, 0]] - votes.own[votes.judge[rows], models[:, 1]]
    for place, sign in ((0, 0.5), (1, -0.5)):
        entries = {
            "level": ones,
            "side": sign * votes.side[rows],
            "length": sign * votes.length[rows],
            "own": sign * own,
        }
        columns = [at + _SCALARS.index(name) for name in entries] + [at + len(_SCALARS) + models[:, place]]
        values = np.concatenate([*entries.values(), ones])
        cells = (np.tile(rows, len(columns)), np.concatenate(columns))
        out.append(sparse.csr_matrix((values, cells), shape=(number, parameters)))
    if not eta:
        return [*out, sparse.csr_matrix((number, parameters))]
    values = np.concatenate([np.ones(number), unit * ones])
    columns = [np.full(number, size), at + _SCALARS.index("ties")]
    cells = (np.concatenate([np.arange(number), rows]), np.concatenate(columns))
    return [*out, sparse.csr_matrix((values, cells), shape=(number, parameters))]
