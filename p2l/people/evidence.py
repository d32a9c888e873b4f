"""How far to trust each voter, alone and together with others, by what the others' votes forecast of the votes.

A voter is a person, who votes as the others' leaderboard has it, or is rigged in one of these ways:

    random            outcomes as often as all votes have them, whatever the models; alone
    a side            the answer shown first, or second, but for some votes
    for, against      one model whenever it is shown, or whatever it is shown beside, but for some votes; else half a
                      person, half random

The evidence is the ratio of the likelihoods of the voter's votes. That of a person is a mean over tastes for the model:
normal, of a standard deviation that suits all voters. A person's ratio has the mean one, so that one of V people
exceeds V / a with probability a at most (Markov): a voter who does is accused alone. The same holds of products over
voters, with a share of rigged ones, and of means over shares and ways: they tell voters who are rigged in one way
*together*, each by votes too few to accuse him, among all voters or those of one network, of the same minutes, on the
same prompt, or with as many votes. People who agree with them by chance are among the suspects then, in proportion.

Shapes: N votes, V voters, M models, K cells of a voter and a model that he was shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
LARGEST_SHARE = 0.01
"""Share of the votes beyond which no voter counts, or `LEAST_CAP` votes where that is less."""
LEAST_CAP = 20
SUSPECT = 0.5
"""Trust below which a voter is accused, and counts less."""
_ALONE_ALARMS = 0.004  # probability that one of all people is accused alone
_FEWEST_PEOPLE = 100  # as how many a few voters count: one in many is rigged, however few vote
_TOGETHER_ALARMS = 0.0015  # that people are accused together among all voters, and the same for each kind of group
_FAITHFUL = (0.95, 0.75)  # shares of its votes that a rigged voter may cast as rigged
# Shares of the ways among voters who are accused alone: random, each of the two sides, for and against any model.
_RANDOM = 0.25
_SIDE = 0.125
_FOR_A_MODEL = _AGAINST_A_MODEL = 0.25
_TASTES = (0.0, 0.25, 0.5)  # standard deviations, in logits, that are tried
# Of Gauss and Hermite, three points of a normal distribution: zero, and this many standard deviations to either side.
_TASTE_POINT = 3.0**0.5
_TASTE_WEIGHTS = np.log([2 / 3, 1 / 6, 1 / 6])
_CARELESS_SHARE = 0.2  # of people
_SHARES = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5])  # of rigged ones among all voters
_SHARES_OF_GROUP = np.array([0.3, 0.6, 0.9, 0.97])
_AS_MANY = "number of votes"
_SIZES_IN_A_DOUBLING = 2  # 1, 2, 3 to 4, 5, 6 to 8, ... votes count as one number
_LARGEST_GROUP = 0.9  # of the voters; a larger one is as good as all
_EM_ROUNDS = 30
_SMALLEST_SHARE = 1e-6  # of people or of a way, so that its logarithm is finite
_LARGEST_EXPONENT = 700.0  # exp overflows beyond 709


@dataclass(frozen=True)
class Voter:
    """A voter and what is made of the votes."""

    name: str
    votes: int
    trust: float
    """Chance that these are the votes of a person."""
    weight: float
    """What a vote of this voter counts."""
    reason: str = ""
    """What the votes look like, where the voter is accused."""

    @property
    def is_suspect(self) -> bool:
        """Whether the voter is accused."""
        return self.trust < SUSPECT


class _Way(NamedTuple):
    """A way of being rigged: random, first, second, for, against; of the last two the model, else -1."""

    kind: str
    model: int = -1


class _Ratios(NamedTuple):
    """Log likelihood ratios of rigged and honest votes of units: voters, or the votes of voters in a group."""

    plain: dict[str, Floats]
    """(V,) by way that needs no model."""
    unit: Ints
    """(K,)"""
    model: Ints
    """(K,)"""
    of_model: dict[str, Floats]
    """(K,) for and against the model of the cell."""
    unseen: Floats
    """(V,) for and against a model that was never shown."""

    def of(self, way: _Way) -> Floats:
        """Return the ratios (V,) of one way."""
        if way.model < 0:
            return self.plain[way.kind]
        ratios = self.unseen.copy()
        rows = self.model == way.model
        ratios[self.unit[rows]] = self.of_model[way.kind][rows]
        return np.asarray(ratios)


@dataclass(frozen=True)
class VoterEvidence:
    """What the votes of people say of their voters, whatever the leaderboard is.

    Attributes:
        names: of the V voters.
        voter: (N,) positions in `names`; -1 for a vote without a name.
        labels: (N, 3) `[winner, loser, tie]`. side: (N,) 1 where the winner was shown first, else -1.
        models: M names.
        groups: what votes may have in common, such as "network", and codes (N,) of it; -1 for nothing.
    """

    names: list[str]
    voter: Ints
    labels: npt.NDArray[np.integer]
    side: Floats
    models: list[str]
    groups: Mapping[str, Ints] = field(default_factory=dict)

    def voters(self, log_likelihood: Floats) -> list[Voter]:
        """Return the voters; `log_likelihood` (N,) is that of each vote by what the others say."""
        return self.judged(log_likelihood)[0]

    def judged(self, log_likelihood: Floats) -> tuple[list[Voter], float]:
        """Return the voters, and by how much accusing them raises the log-likelihood of all votes."""
        if not self.names:
            return [], 0.0
        taste = self._taste(log_likelihood)
        ratios = self._ratios(self._units, log_likelihood, taste)
        priors = [*self._together(ratios), *self._in_groups(log_likelihood, taste)]
        # Of two leaderboards, the one that explains more votes is told by what they are, without any benefit of doubt.
        plain = self._odds(self._ratios(self._units, log_likelihood, 0.0), priors).log
        # That of a voter is a mean: over a person, whose odds are one, and over all the ways in which he may be rigged.
        all_odds = 1.0 + sum((np.exp(prior.log_odds) * prior.members for prior in priors), np.zeros(len(plain)))
        gain = float((np.logaddexp(0.0, plain) - np.log(all_odds)).sum())
        return self._sentenced(self._odds(ratios, priors)), gain

    def _odds(self, ratios: _Ratios, priors: Sequence[_RiggedPrior]) -> _Odds:
        """Return the log odds that voters are rigged, alone or together."""
        log_odds, ways = self._alone(ratios)
        groups = np.full(len(self.names), -1)
        for prior in priors:
            more = np.where(prior.members, prior.log_odds + ratios.of(prior.way), -np.inf)
            is_likeliest = more > log_odds
            ways = [prior.way if there else way for way, there in zip(ways, is_likeliest.tolist(), strict=True)]
            groups[is_likeliest] = prior.group
            log_odds = np.logaddexp(log_odds, more)
        return _Odds(log_odds, ways, groups)

    def _sentenced(self, odds: _Odds) -> list[Voter]:
        """Return the voters with trust, weight and, of the accused, the reason."""
        trust = 1.0 / (1.0 + np.exp(np.minimum(odds.log, _LARGEST_EXPONENT)))
        votes, kinds = self._votes, list(self._all_groups)
        cap = max(float(LEAST_CAP), LARGEST_SHARE * len(self.voter))
        weights = np.minimum(1.0, trust / SUSPECT) * np.minimum(1.0, cap / np.maximum(votes, 1))
        voters = []
        for code, name in enumerate(self.names):
            reason = ""
            if trust[code] < SUSPECT:
                group = int(odds.groups[code])
                reason = self._reason(code, odds.ways[code], kinds[group] if group >= 0 else "")
            voters.append(Voter(name, int(votes[code]), float(trust[code]), float(weights[code]), reason))
        return voters

    @cached_property
    def _votes(self) -> Ints:
        return np.bincount(self.voter[self.voter >= 0], minlength=len(self.names))

    @cached_property
    def _all_groups(self) -> dict[str, Ints]:
        """The groups, and voters with about as many votes, as those are who throw their names away."""
        return {**self.groups, _AS_MANY: np.append(self.sizes, -1)[self.voter]}

    @cached_property
    def sizes(self) -> Ints:
        """Codes (V,) of about how many votes each voter cast."""
        return np.asarray(np.ceil(_SIZES_IN_A_DOUBLING * np.log2(np.maximum(self._votes, 1))), dtype=np.int64)

    @cached_property
    def _decided(self) -> Mask:
        return np.asarray(self.labels[:, 2] == 0)

    @cached_property
    def _random(self) -> Floats:
        """Log-likelihood (N,) of votes that are cast at random, both sides alike."""
        counts = np.bincount(self.labels[:, 2], minlength=3) + 1.0
        return np.asarray(np.log(counts / counts.sum() / np.array([2.0, 1.0, 1.0]))[self.labels[:, 2]])

    @cached_property
    def _units(self) -> _Units:
        return _Units.of(np.flatnonzero(self.voter >= 0), self.voter, len(self.names), self)

    def _taste(self, honest: Floats) -> float:
        """Return the standard deviation of tastes for a model under which the votes are likeliest."""
        gains = [self._units.tasted(honest, self._decided, taste).sum() for taste in _TASTES]
        return _TASTES[int(np.argmax(gains))]

    def _ratios(self, units: _Units, honest: Floats, taste: float) -> _Ratios:
        random, first = self._random, self.side > 0
        otherwise = np.logaddexp(honest, random) + np.log(0.5) - honest
        # A careless person, half of whose votes are random, is none of the rigged.
        careless = np.logaddexp(np.log1p(-_CARELESS_SHARE), np.log(_CARELESS_SHARE) + units.sums(otherwise))
        plain = {"random": units.sums(random - honest) - careless}
        for kind, chosen in (("first", first), ("second", ~first)):
            obeys = self._decided & chosen
            plain[kind] = _log_mean(
                np.stack([units.sums(_obeyed(obeys, random, share) - honest) for share in _FAITHFUL])
            )
        else_so = units.sums(otherwise)
        person = units.tasted(honest, self._decided, taste) + units.cell_sums(honest, honest)
        rest = else_so[units.unit] - units.cell_sums(otherwise, otherwise)
        won, lost = list[Floats](), list[Floats]()
        for share in _FAITHFUL:
            obeyed, refused = (_obeyed(self._decided & is_asked, random, share) for is_asked in (True, False))
            won.append(units.cell_sums(obeyed, refused))
            lost.append(units.cell_sums(refused, obeyed))
        of_model = {
            "for": _log_mean(np.stack(won)) - person + rest,
            "against": _log_mean(np.stack(lost)) - person + rest,
        }
        return _Ratios(plain, units.unit, units.model, of_model, else_so)

    def _alone(self, ratios: _Ratios) -> tuple[Floats, list[_Way]]:
        """Return the log odds (V,) of being rigged, whatever others do, and the likeliest way."""
        size, num_models = len(self.names), len(self.models)
        shares = {"random": _RANDOM, "first": _SIDE, "second": _SIDE}
        options = [(np.log(shares[kind]) + values, _Way(kind)) for kind, values in ratios.plain.items()]
        unseen = np.maximum(num_models - np.bincount(ratios.unit, minlength=size), 1e-300)
        total = np.logaddexp.reduce([values for values, _ in options], axis=0)
        best = np.max([values for values, _ in options], axis=0)
        kinds = np.argmax([values for values, _ in options], axis=0)
        ways = [options[kind][1] for kind in kinds.tolist()]
        for kind, share in (("for", _FOR_A_MODEL), ("against", _AGAINST_A_MODEL)):
            log_share = np.log(share / num_models)
            summed = np.log(unseen) + ratios.unseen
            np.logaddexp.at(summed, ratios.unit, ratios.of_model[kind])
            total = np.logaddexp(total, log_share + summed)
            order = np.argsort(ratios.of_model[kind], kind="stable")
            largest, model = np.full(size, -np.inf), np.zeros(size, dtype=np.int64)
            largest[ratios.unit[order]] = log_share + ratios.of_model[kind][order]
            model[ratios.unit[order]] = ratios.model[order]
            for code in np.flatnonzero(largest > best).tolist():
                ways[code] = _Way(kind, int(model[code]))
            best = np.maximum(best, largest)
        return total + np.log(_ALONE_ALARMS / max(size, _FEWEST_PEOPLE)), ways

    def _together(self, ratios: _Ratios) -> list[_RiggedPrior]:
        """Return the ways in which voters are rigged together, with the log odds of it."""
        size = len(self.names)
        # Careless people are random together, and mean no ill.
        ways = [_Way(kind) for kind in ratios.plain if kind != "random"]
        evidence = [_log_mean(_gain(ratios.plain[way.kind], _SHARES).sum(axis=1)) for way in ways]
        of_nobody = _gain(ratios.unseen, _SHARES)
        for kind, values in ratios.of_model.items():
            more = _gain(values, _SHARES) - of_nobody[:, ratios.unit]
            sums = np.stack([np.bincount(ratios.model, row, len(self.models)) for row in more])
            evidence += _log_mean(sums + of_nobody.sum(axis=1)[:, None]).tolist()
            ways += [_Way(kind, model) for model in range(len(self.models))]
        least = np.log(len(ways) / _TOGETHER_ALARMS)
        active = [way for way, value in zip(ways, evidence, strict=True) if value >= least]
        if not active:
            return []
        everybody = np.ones(size, dtype=bool)
        shares = _shares_of(np.stack([ratios.of(way) for way in active]))
        return [
            _RiggedPrior(float(np.log(share / shares[0])), way, everybody, -1)
            for way, share in zip(active, shares[1:].tolist(), strict=True)
            if share > 0
        ]

    def _in_groups(self, honest: Floats, taste: float) -> list[_RiggedPrior]:
        """Return the ways in which voters of one group are rigged together, with the log odds of being so."""
        priors = []
        for place, codes in enumerate(self._all_groups.values()):
            rows = np.flatnonzero((self.voter >= 0) & (codes >= 0))
            pairs, unit = np.unique(codes[rows] * len(self.names) + self.voter[rows], return_inverse=True)
            group, voter = pairs // len(self.names), pairs % len(self.names)
            sizes = np.bincount(group)
            usable = (sizes > 1) & (sizes <= _LARGEST_GROUP * len(self.names))
            if not usable.any():
                continue
            unit_of_vote = np.full(len(self.voter), -1)
            unit_of_vote[rows] = np.where(usable[codes[rows]], unit.reshape(-1), -1)
            units = _Units.of(np.flatnonzero(unit_of_vote >= 0), unit_of_vote, len(pairs), self)
            ratios = self._ratios(units, honest, taste)
            for suspect, way, share in self._rigged_groups(ratios, group, usable):
                members = np.zeros(len(self.names), dtype=bool)
                members[voter[group == suspect]] = True
                priors.append(_RiggedPrior(float(np.log(share / (1.0 - share))), way, members, place))
        return priors

    def _rigged_groups(self, ratios: _Ratios, group: Ints, usable: Mask) -> list[tuple[int, _Way, float]]:
        """Return groups of units (by `group` of each) that are rigged for or against a model, and the share in it."""
        num_models, size = len(self.models), len(usable)
        of_nobody = _gain(ratios.unseen, _SHARES_OF_GROUP)
        bases = np.stack([np.bincount(group, row, size) for row in of_nobody])
        cells, cell = np.unique(group[ratios.unit] * num_models + ratios.model, return_inverse=True)
        sums, at = [], cells // num_models
        for values in ratios.of_model.values():
            more = _gain(values, _SHARES_OF_GROUP) - of_nobody[:, ratios.unit]
            sums.append(np.stack([np.bincount(cell, row, len(cells)) for row in more]) + bases[:, at])
        evidence = np.stack(sums)  # by kind, share and cell
        # Of the ways, which are 2 M for each group: one that no cell has is worth next to nothing.
        least = np.log(usable.sum() / _TOGETHER_ALARMS * 2 * num_models * len(_SHARES_OF_GROUP))
        # Of each group the likeliest, since its members are rigged in one way if in any.
        cases = np.argwhere(evidence >= least)
        order = np.argsort(-evidence[tuple(cases.T)], kind="stable")
        likeliest: dict[int, tuple[int, _Way, float]] = {}
        kinds = list(ratios.of_model)
        for kind, share, place in cases[order].tolist():
            way = _Way(kinds[kind], int(cells[place] % num_models))
            likeliest.setdefault(int(at[place]), (int(at[place]), way, float(_SHARES_OF_GROUP[share])))
        return list(likeliest.values())

    def _reason(self, code: int, way: _Way, group: str) -> str:
        """Return what the votes of an accused voter look like."""
        rows = self._rows_of(code)
        labels, decided = self.labels[rows], self._decided[rows]
        if way.model >= 0:
            shown = (labels[:, :2] == way.model).any(axis=1)
            column, name = (0, "wins") if way.kind == "for" else (1, "losses")
            obeyed = int((decided & (labels[:, column] == way.model)).sum())
            text = f"{obeyed} {name} of {int(shown.sum())} votes on {self.models[way.model]}"
        elif way.kind == "random":
            text = "votes as if cast at random"
        else:
            is_first = self.side[rows] > 0
            obeyed = int((decided & (is_first == (way.kind == "first"))).sum())
            text = f"{obeyed} of {int(decided.sum())} decided votes for the {way.kind} answer"
        return f"{text}, like others of the same {group}" if group else text

    def _rows_of(self, code: int) -> Ints:
        order, starts = self._sorted
        return order[starts[code] : starts[code + 1]]

    @cached_property
    def _sorted(self) -> tuple[Ints, Ints]:
        order = np.argsort(self.voter, kind="stable")
        return order, np.searchsorted(self.voter[order], np.arange(len(self.names) + 1))


class _Odds(NamedTuple):
    """How likely voters are rigged."""

    log: Floats
    """(V,)"""
    ways: list[_Way]
    """The likeliest way of each."""
    groups: Ints
    """(V,) position of the kind of group that tells it; -1 for none."""


class _RiggedPrior(NamedTuple):
    """The log odds that voters are rigged in one way, before their own votes are looked at."""

    log_odds: float
    way: _Way
    members: Mask
    """(V,)"""
    group: int
    """Position of the kind of group; -1 for all voters."""


class _Units(NamedTuple):
    """Units whose votes are looked at together, and their cells."""

    rows: Ints
    """(n,) the votes that belong to a unit."""
    unit_of_row: Ints
    """(n,)"""
    size: int
    cell: Ints
    """(2n,) of each vote and its first, then its second model."""
    unit: Ints
    """(K,)"""
    model: Ints
    """(K,)"""

    @classmethod
    def of(cls, rows: Ints, unit: Ints, size: int, evidence: VoterEvidence) -> _Units:
        """Find the cells of votes `rows`, by the unit (N,) of every vote."""
        num_models = len(evidence.models)
        keys = [unit[rows] * num_models + evidence.labels[rows, place] for place in (0, 1)]
        cells, cell = np.unique(np.concatenate(keys), return_inverse=True)
        return cls(rows, unit[rows], size, cell.reshape(-1), cells // num_models, cells % num_models)

    def sums(self, values: Floats) -> Floats:
        """Return the sums of values (N,) by unit."""
        return np.asarray(np.bincount(self.unit_of_row, values[self.rows], self.size), dtype=np.float64)

    def cell_sums(self, of_first: Floats, of_second: Floats) -> Floats:
        """Return the sums (K,) by cell of values (N,) of votes, for the winner and for the loser."""
        values = np.concatenate([of_first[self.rows], of_second[self.rows]])
        return np.asarray(np.bincount(self.cell, values, len(self.unit)), dtype=np.float64)

    def tasted(self, honest: Floats, decided: Mask, taste: float) -> Floats:
        """Return by how much a taste for the model of a cell raises the log-likelihood (K,) of a person's votes."""
        if taste == 0.0:
            return np.zeros(len(self.unit))
        # A tie says as much of a taste for either model: nothing.
        raised, lowered = (
            np.where(decided, _logit_shifted(honest, shift) - honest, 0.0)
            for shift in (_TASTE_POINT * taste, -_TASTE_POINT * taste)
        )
        points = [np.zeros(len(self.unit)), self.cell_sums(raised, lowered), self.cell_sums(lowered, raised)]
        return np.asarray(np.logaddexp.reduce(np.stack(points) + _TASTE_WEIGHTS[:, None], axis=0))


def _obeyed(obeys: Mask, random: Floats, share: float) -> Floats:
    """Return the log-likelihood (N,) of votes of which a share is cast as rigged, and the rest at random."""
    rest = np.log(1.0 - share) + random
    return np.asarray(np.where(obeys, np.logaddexp(np.log(share), rest), rest))


def _logit_shifted(log_probability: Floats, shift: float) -> Floats:
    """Return the log-probabilities of events whose log-odds are moved by `shift`."""
    probability = np.clip(np.exp(log_probability), 1e-12, 1.0 - 1e-12)
    logit = np.log(probability) - np.log1p(-probability)
    return np.asarray(-np.logaddexp(0.0, -logit - shift))


def _gain(ratios: Floats, shares: Floats) -> Floats:
    """Return log(1 - share + share exp(ratio)) by share (S,) and ratio (n,): (S, n)."""
    return np.asarray(np.logaddexp(np.log1p(-shares)[:, None], np.log(shares)[:, None] + ratios))


def _log_mean(values: Floats) -> Floats:
    """Return the log of the mean of exp(values) over the first axis."""
    return np.asarray(np.logaddexp.reduce(values, axis=0) - np.log(len(values)))


def _shares_of(ratios: Floats) -> Floats:
    """Return the shares (C + 1,) of people and of C ways under which the ratios (C, V) are likeliest (EM)."""
    together = np.vstack([np.zeros(ratios.shape[1]), ratios])
    shares = np.concatenate([[0.5], np.full(len(ratios), 0.5 / len(ratios))])
    for _ in range(_EM_ROUNDS):
        terms = together + np.log(shares)[:, None]
        shares = np.exp(terms - np.logaddexp.reduce(terms, axis=0)).mean(axis=1)
        shares = np.maximum(shares, _SMALLEST_SHARE)
    return np.asarray(shares / shares.sum())
