"""Offsets beside P2L's coefficients, from ratings: of models that P2L does not know, and of models that change.

The offset of each model is a Gaussian belief on the scale of the coefficients. A rating of two answers is an outcome of
the difference d of what the two are believed to be on that prompt, P(first wins) = sigmoid(d); a thumb is one of the
difference to how generous the raters are. Each updates means and variances as one step of Newton's method does (an
extended Kalman filter), so that ratings of one model against strong ones count for what they are.

A newcomer begins at the mean coefficient of the prompt's leaderboard, with a broad prior. A share of the requests draws
its offset from the belief (Thompson sampling), which explores; to the others it is as good as is likely at least. A
model that P2L knows begins at 0, nearly certain; two sums of log-likelihood ratios watch whether its ratings come from
one that is worse or better by half a coefficient (CUSUM); where one passes its threshold the belief is broad again.

Shapes: M models in the order of the menu.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from route.routing.candidates import Menu
from route.routing.optimizers import Floats

_EXPLORED_SHARE = 0.25
"""The share of the requests for which the offset of a newcomer is drawn."""
_NEWCOMER_VARIANCE = 1.5**2
_KNOWN_VARIANCE = 0.1**2
_CHANGED_VARIANCE = 0.6**2
_GENEROSITY_VARIANCE = 1.0
_LEAST_VARIANCE = 0.1**2
_CAUTION = 0.5
"""Where a newcomer is not explored, standard deviations below its mean that it is taken to be."""
_CHANGE = 0.5  # of a coefficient
_CHANGE_NATS = 4.0
"""Evidence of a change after which the belief is broad again."""
_ANSWERS_KEPT = 20_000
_ANSWER = struct.Struct("=qiidd")
"""An answer that was shown: its key, the numbers of one model or two, and what P2L said of each."""
_NO_MODEL = -1
_CERTAIN_RATINGS = 60
"""Ratings after which the offset of a newcomer is drawn no more."""
_OPTIMISM = 1.0
"""Standard deviations above its mean that a newcomer is taken to be after these."""
RESULTS: Mapping[str, float] = {"first": 1.0, "second": 0.0, "tie": 0.5, "both_bad": 0.5, "up": 1.0, "down": 0.0}
"""The share of a win of the first model, or of an answer that is liked, by verdict."""


@dataclass
class _Belief:
    """The belief about the offset of a model."""

    mean: float = 0.0
    variance: float = _KNOWN_VARIANCE
    ratings: int = 0
    worse: float = 0.0
    """Evidence, in nats, that it has become worse; at least 0."""
    better: float = 0.0


class Offsets:
    """The beliefs of one worker, which tells others of ratings; used from one event loop."""

    def __init__(self, menu: Menu, rng: np.random.Generator, before: Offsets | None = None) -> None:
        """Begin with the beliefs of another one on models of the same name."""
        self._menu = menu
        self._rng = rng
        self._beliefs: dict[str, _Belief] = {} if before is None else before._beliefs
        self._generosity: _Belief = _Belief(variance=_GENEROSITY_VARIANCE) if before is None else before._generosity
        self._shown: _Shown = _Shown() if before is None else before._shown
        self.newcomers: frozenset[str] = frozenset()
        """The models that P2L does not know."""
        self._means = np.zeros(len(menu.names))
        self.on_rating: Callable[[Mapping[str, float], str], None] | None = None
        """Called with what `take` was called with, for a rating that nobody else knows of."""
        self.on_unknown: Callable[[str, str], None] | None = None
        """Called for a rating of an answer that was not given here."""
        self.is_idle = True
        """Whether there is neither a newcomer nor a rating, so that coefficients stay what they are."""
        self._refresh()

    def belief(self, name: str) -> _Belief:
        """Return what is believed of a model."""
        belief = self._beliefs.get(name)
        if belief is None:
            variance = _NEWCOMER_VARIANCE if name in self.newcomers else _KNOWN_VARIANCE
            belief = self._beliefs[name] = _Belief(variance=variance)
        return belief

    def beliefs(self) -> dict[str, list[float]]:
        """Return the beliefs of models that were rated, and under the empty name that of the generosity of raters."""
        rated = {name: belief for name, belief in self._beliefs.items() if belief.ratings}
        return {name: list(astuple(belief)) for name, belief in {**rated, "": self._generosity}.items()}

    def begin_with(self, beliefs: Mapping[str, Sequence[float]]) -> None:
        """Take over the beliefs of another worker, if there was no rating here yet."""
        if self._generosity.ratings or any(belief.ratings for belief in self._beliefs.values()):
            return
        for name, values in beliefs.items():
            mean, variance, ratings, worse, better = values
            belief = _Belief(mean, variance, int(ratings), worse, better)
            if name:
                self._beliefs[name] = belief
            else:
                self._generosity = belief
        self._refresh()

    def limit(self, unknown: Collection[str]) -> None:
        """Take over which models P2L does not know; what was kept beside it of one that it knows now is forgotten."""
        for name in self.newcomers - set(unknown):
            self._beliefs.pop(name, None)
        self.newcomers = frozenset(unknown)
        self._refresh()

    def apply(self, coefs: Floats) -> Floats:
        """Return coefficients (M,) with offsets; a newcomer's NaN becomes the mean of the others and its offset."""
        if self.is_idle:
            return coefs
        moved = coefs + self._means
        if self.newcomers:
            known = coefs[np.isfinite(coefs)]
            if not len(known):
                return coefs
            base = float(known.mean())
            is_explored = self._rng.random() < _EXPLORED_SHARE
            for name in self.newcomers:
                belief = self.belief(name)
                place = self._menu.places[name]
                is_certain = belief.ratings >= _CERTAIN_RATINGS
                deviations = _OPTIMISM if is_certain else self._rng.normal() if is_explored else -_CAUTION
                moved[place] = base + belief.mean + deviations * math.sqrt(belief.variance)
        return moved

    def show(self, request_id: str, coefs: Mapping[str, float], models: Collection[str]) -> None:
        """Remember what P2L says of the models of an answer, for ratings of it; relative to the leaderboard's mean."""
        known = [coefs[name] for name in self._menu.names if name in coefs]
        if not known:
            return
        mean = sum(known) / len(known)
        self._shown.add(request_id, {name: coefs.get(name, mean) - mean for name in models})

    def rate(self, request_id: str, verdict: str, *, ask: bool = True) -> None:
        """Take over a rating of an answer that this worker gave; a second one of the same answer changes nothing.

        Others are told of it, and `ask` says whether they are asked where one of them gave the answer.
        """
        shown = self._shown.pop(request_id)
        if shown is not None:
            self.take(shown, verdict)
            if self.on_rating is not None:
                self.on_rating(shown, verdict)
        elif ask and self.on_unknown is not None:
            self.on_unknown(request_id, verdict)

    def take(self, shown: Mapping[str, float], verdict: str) -> None:
        """Take over a rating of answers; `shown` is P2L's coefficient by model, less the leaderboard's mean."""
        names, result = list(shown), RESULTS[verdict]
        if len(names) == 2:
            first, second = (self.belief(name) for name in names)
            self._observe(first, second, shown[names[0]] - shown[names[1]], result)
            self._refresh()
        elif len(names) == 1:
            self._observe(self.belief(names[0]), self._generosity, shown[names[0]], result, sign=1.0)
            self._refresh()

    def _observe(self, first: _Belief, second: _Belief, base: float, result: float, sign: float = -1.0) -> None:
        """Update two beliefs by an outcome of sigmoid(base + first + sign second)."""
        gap = base + first.mean + sign * second.mean
        _watch(first, gap, result)
        if sign < 0.0:
            _watch(second, -gap, 1.0 - result)
        # At 30 the outcome is certain; math.exp overflows above 709.
        chance = 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, gap))))
        # Without a floor one surprise at a certain outcome would move a belief as far as hundreds of ratings.
        weight = max(chance * (1.0 - chance), 0.02)
        spread = first.variance + second.variance + 1.0 / weight
        step = (result - chance) / weight / spread
        for belief, direction in ((first, 1.0), (second, sign)):
            belief.mean += direction * belief.variance * step
            # Never nearly certain: a model that changes has to be able to move again.
            belief.variance = max(belief.variance - belief.variance**2 / spread, min(belief.variance, _LEAST_VARIANCE))
            belief.ratings += 1

    def _refresh(self) -> None:
        for name, place in self._menu.places.items():
            belief = self._beliefs.get(name)
            is_known = belief is not None and name not in self.newcomers
            self._means[place] = belief.mean if belief is not None and is_known else 0.0
        self.is_idle = not self.newcomers and not self._means.any()


class _Shown:
    """What P2L said of the models of the latest answers, one or two each.

    They lie in one block of memory: objects of Python, which outlive the burst of requests that they came with, would
    take ten times as much, and each would keep a page of what the burst took.
    """

    def __init__(self) -> None:
        self._block = bytearray(_ANSWER.size * _ANSWERS_KEPT)
        # A view of each answer's first eight bytes, its key.
        self._keys = np.frombuffer(self._block, dtype=np.int64)[:: _ANSWER.size // 8]
        self._next = 0
        self._numbers: dict[str, int] = {}
        """By model, in the order in which they were first shown."""

    def add(self, request_id: str, coefs: Mapping[str, float]) -> None:
        """Keep an answer in place of the oldest one."""
        numbers = [self._numbers.setdefault(name, len(self._numbers)) for name in coefs]
        values = [*coefs.values()]
        if len(numbers) == 1:
            numbers, values = [*numbers, _NO_MODEL], [*values, 0.0]
        _ANSWER.pack_into(self._block, self._next * _ANSWER.size, _key_of(request_id), *numbers, *values)
        self._next = (self._next + 1) % _ANSWERS_KEPT

    def pop(self, request_id: str) -> dict[str, float] | None:
        """Return what was said of the models of an answer, and forget it; None for an unknown one."""
        key = _key_of(request_id)
        places = np.flatnonzero(self._keys == key)
        if not len(places):
            return None
        place = int(places[-1])
        _, first, second, *values = _ANSWER.unpack_from(self._block, place * _ANSWER.size)
        self._keys[place] = 0
        names = list(self._numbers)
        return {
            names[number]: value for number, value in zip((first, second), values, strict=True) if number != _NO_MODEL
        }


def _key_of(request_id: str) -> int:
    """Return a number for an answer in this process, never 0, which stands for none."""
    return hash(request_id) | 1


def _watch(belief: _Belief, gap: float, result: float) -> None:
    """Add the evidence of an outcome that the model has changed; make the belief broad where there is enough."""

    def evidence(change: float) -> float:
        return result * (_log_sigmoid(gap + change) - _log_sigmoid(gap)) + (1.0 - result) * (
            _log_sigmoid(-gap - change) - _log_sigmoid(-gap)
        )

    belief.worse = max(0.0, belief.worse + evidence(-_CHANGE))
    belief.better = max(0.0, belief.better + evidence(_CHANGE))
    if max(belief.worse, belief.better) > _CHANGE_NATS:
        belief.worse = 0.0
        belief.better = 0.0
        belief.variance = max(belief.variance, _CHANGED_VARIANCE)


def _log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x)) if x > 0.0 else x - math.log1p(math.exp(x))
