"""What votes show beyond chance before anything is trained: sides, length, format, copies, and who or what dominates.

    side         the same two models in both orders: what being shown first is worth, whatever the models are worth
    NAME         length and format (columns NAME_a, NAME_b): effects of one leaderboard, fitted together
    copies       votes that repeat another: prompt, models, winner, and whatever else tells votes apart
    voter, pair, prompts, kinds    who casts the votes, between which models, and on what

What being shown first is worth is Mantel and Haenszel's common odds ratio over pairs of models, a tie half a win of
either. So neither uneven models nor an order that depends on them looks like a side. Intervals are of 99 %, by
prompt or by voter, whichever is wider.

Shapes: N votes, n votes of a batch, M models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.cli import counted
from p2l.common.errors import P2LError, VoteError
from p2l.leaderboard.controls import FORMAT, Controls
from p2l.leaderboard.covariates import SIDE, Effect
from p2l.leaderboard.fitting import fit
from p2l.leaderboard.pair_tables import Covariates
from p2l.votes import VoteStore
from p2l.votes.splitting import hash_prompts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
LEVEL = 0.99
_QUANTILE = 2.5758293035489004  # of the normal distribution, at that level
_LEAST_EFFECT = 0.05  # in log-odds, below which it is not worth a covariate
_LARGEST_SHARE = 0.95  # of decided votes for a side; beyond, the order of a file says who won, not who was shown first
_LEAST_VOTES = 100
_LEAST_BOTH_WAYS = 50.0  # votes that compare two orders, below which nothing is concluded
_LEAST_CLUSTERS = 30  # below which those of length and format take each vote by itself
_DOMINANT_VOTER, _DOMINANT_PAIR, _DOMINANT_PROMPT = 0.2, 0.5, 0.5  # shares of the votes
_NOTABLE_COPIES = 0.01  # share of the votes
_FEW_PROMPTS = 100
_LISTED_KINDS = 5
_MOST_VOTES = 2_000_000  # in memory, about 100 bytes each; of more, those on a random part of the prompts
_MOST_FITTED_VOTES, _MOST_FITTED_MODELS = 50_000, 200  # for length and format
_STEPS = 8  # to which differences are rounded, so that votes with equal ones are counted together
_POINTS = np.array([1.0, 0.0, 0.5, 0.5])  # of the first model, by the position in WINNERS
_ODD = np.uint64(0x9E3779B97F4A7C15)  # numbers times it look random
_IDENTITY = ("voter", "source", "judge", "question_id", "tstamp")  # what tells equal votes apart


@dataclass(frozen=True)
class Observation:
    """One thing that the votes show; an effect is in log-odds, with its interval of 99 %."""

    kind: str
    """side, length, headers, ..., copies, voter, pair, prompts or kinds."""
    text: str
    is_notable: bool = False
    """Whether it is beyond chance and large enough to matter."""
    estimate: float | None = None
    """An effect; else a share of the votes, or a number."""
    lower: float | None = None
    upper: float | None = None


def side_to_control(observations: Iterable[Observation]) -> Observation | None:
    """Return what being shown first is worth if a model should be trained with it, else None."""
    side = next((seen for seen in observations if seen.kind == SIDE and seen.is_notable), None)
    return None if side is None or side.estimate is None else side


def look_at(votes: VoteStore, people: str | None = None) -> tuple[Observation, ...]:
    """Return what stored votes show; `people` is the source whose sides, length and format these are, if not all's."""
    look = FirstLook(votes.columns, votes.name)
    labels, pairs = votes.labels(), votes.pairs()
    winner = np.where(labels[:, 2] > 0, labels[:, 2] + 1, labels[:, 0] != pairs[:, 0])
    hashes = hash_prompts(votes) if "prompt" in votes.columns else None
    for ids, batch in votes.batches():
        prompts = None if hashes is None else hashes[ids]
        look.add(batch, pairs[ids, 0], pairs[ids, 1], winner[ids], prompts)
    return look.observations(votes.model_list, people)


class FirstLook:
    """Votes as they are read: `add` each batch, then ask for `observations`."""

    def __init__(self, columns: Sequence[str], name: str) -> None:
        """Begin with the columns of a source and its name in messages."""
        marks = ("length", *FORMAT)
        self._marks = [mark for mark in marks if {f"{mark}_a", f"{mark}_b"} <= set(columns)]
        self._controls = Controls(self._marks, columns, name, steps=_STEPS) if self._marks else None
        self._identity = [column for column in _IDENTITY if column in columns]
        self._has_prompts = "prompt" in columns
        self._has_voters = "voter" in columns
        self._voters: dict[str, int] = {}
        self._sources: dict[str | None, int] = {}
        self._kinds: Counter[str] = Counter()
        self._parts: list[dict[str, npt.NDArray[Any]]] = []
        self._seen = self._kept = 0
        self._thinning = 0  # votes are kept whose mixed hash ends with this number of zero bits

    @property
    def sources(self) -> list[str | None]:
        """The different values of the column `source`."""
        return list(self._sources)

    def add(self, batch: Any, first: Ints, second: Ints, winner: Ints, prompts: Hashes | None) -> None:
        """Add an Arrow batch: codes (n,) of both models, places in WINNERS, and hashes of the prompts, if any."""
        numbers = np.arange(self._seen, self._seen + len(batch), dtype=np.uint64)
        self._seen += len(batch)
        hashes = numbers if prompts is None else np.asarray(prompts, dtype=np.uint64)
        part: dict[str, npt.NDArray[Any]] = {
            "first": np.asarray(first, dtype=np.int32),
            "second": np.asarray(second, dtype=np.int32),
            "winner": np.asarray(winner, dtype=np.int8),
            "prompt": hashes * _ODD,
        }
        names = batch.schema.names
        part["voter"] = _codes(batch.column("voter"), self._voters) if "voter" in names else np.full(len(batch), -1)
        unnamed = self._sources.setdefault(None, len(self._sources)) if "source" not in names else 0
        part["source"] = np.full(len(batch), unnamed)
        if "source" in names:
            part["source"] = _codes(batch.column("source"), self._sources, nulls=True)
        part["identity"] = np.zeros(len(batch), dtype=np.uint64)
        for name in set(self._identity) & set(names):
            part["identity"] = (part["identity"] ^ _hashes_of(batch.column(name))) * _ODD
        if "category" in names:
            kinds, rows = _distinct(batch.column("category"))
            of_kinds = zip(kinds, np.bincount(rows, minlength=len(kinds)).tolist(), strict=True)
            self._kinds.update({kind: number for kind, number in of_kinds if kind is not None})
        if self._controls is not None:
            try:
                values = self._controls.read(batch)
                part |= dict(zip(self._marks, values, strict=True))
            except VoteError:  # a column of this name that holds something else
                self._controls = None
        self._parts.append(part)
        self._kept += len(batch)
        while self._kept > _MOST_VOTES and self._thinning < 63:
            self._thinning += 1
            self._thin()
        if self._thinning:
            self._thin(last=True)

    def _thin(self, *, last: bool = False) -> None:
        """Leave out the votes of half the prompts; of the `last` batch, those that earlier batches left out."""
        shift = np.uint64(64 - self._thinning)
        for place in range(len(self._parts) - 1 if last else 0, len(self._parts)):
            part = self._parts[place]
            keep = part["prompt"] >> shift == 0
            self._parts[place] = {name: column[keep] for name, column in part.items()}
        self._kept = sum(len(part["prompt"]) for part in self._parts)

    def observations(self, models: Sequence[str], people: str | None = None) -> tuple[Observation, ...]:
        """Return what the votes show, nothing of fewer than 100.

        Where `people` names a source, sides, length and format are those of its votes.
        """
        if self._kept < _LEAST_VOTES:
            return ()
        names = set.intersection(*(set(part) for part in self._parts))
        votes = {name: np.concatenate([part[name] for part in self._parts]) for name in names}
        of_people = votes
        if people is not None:
            codes = [code for name, code in self._sources.items() if name in (people, None)]
            rows = np.isin(votes["source"], codes)
            of_people = {name: column[rows] for name, column in votes.items()}
        whose = "" if people is None else f" of {people}"
        clusters = self._clusters(of_people)
        side = self._side(of_people, models, whose, clusters)
        # Without an order that tells sides, the one of the file is left out of the fit too.
        sided = side is not None and side.lower is not None
        seen = [side, *self._marked(of_people, whose, clusters, sided=sided), self._copies(votes)]
        seen += [self._voter(of_people, whose), _pair(votes, models), self._prompts(votes), self._kinds_of_prompts()]
        return tuple(observation for observation in seen if observation is not None)

    def _side(
        self, votes: dict[str, npt.NDArray[Any]], models: Sequence[str], whose: str, clusters: Sequence[Ints]
    ) -> Observation | None:
        first, second, winner = votes["first"].astype(np.int64), votes["second"].astype(np.int64), votes["winner"]
        if len(first) < _LEAST_VOTES:
            return None
        shares = [float((winner == place).mean()) for place in (0, 1)]
        text = f"the first answer wins {shares[0]:.1%} of votes{whose}, the second {shares[1]:.1%}"
        effect = _side_effect(first, second, _POINTS[winner], clusters)
        if effect is None:
            ordered = np.array([name.casefold() for name in models])
            by_name = bool((ordered[first] < ordered[second]).all())
            why = (
                "models stand in the order of their names" if by_name else "hardly any two models stand in both orders"
            )
            return Observation(SIDE, f"{text}; {why}, so what being shown first is worth cannot be told")
        estimate, error = effect
        if not np.isfinite(error) or max(shares) > _LARGEST_SHARE * sum(shares):
            place = "first" if shares[0] > shares[1] else "second"
            return Observation(
                SIDE,
                f"{text}: the winner stands {place} nearly always, so the order is hardly the one that was shown; what "
                "being shown first is worth cannot be told",
                is_notable=True,
            )
        lower, upper = estimate - _QUANTILE * error, estimate + _QUANTILE * error
        is_notable = (lower > 0 or upper < 0) and abs(estimate) > _LEAST_EFFECT
        small = ", too little to matter" if abs(estimate) <= _LEAST_EFFECT else ""
        chance = small if lower > 0 or upper < 0 else ", no more than chance"
        text += f": being shown first is worth {_in_words(estimate, lower, upper)}{chance}"
        return Observation(SIDE, text, is_notable, estimate, lower, upper)

    def _clusters(self, votes: dict[str, npt.NDArray[Any]]) -> list[Ints]:
        """Return codes (N,) of what votes may have in common: nothing, then prompts and voters where they are known."""
        numbers = np.arange(len(votes["first"]))
        voters = np.where(votes["voter"] < 0, -1 - numbers, votes["voter"])
        clusters = [votes["prompt"]] * self._has_prompts + [voters] * self._has_voters
        return [numbers, *(np.unique(column, return_inverse=True)[1] for column in clusters)]

    def _marked(
        self, votes: dict[str, npt.NDArray[Any]], whose: str, clusters: Sequence[Ints], *, sided: bool
    ) -> list[Observation]:
        """Return the effects of length and format, of one leaderboard."""
        if self._controls is None or len(votes["first"]) < _LEAST_VOTES:
            return []
        *_, largest = (codes for codes in clusters if codes.max() + 1 >= _LEAST_CLUSTERS)
        effects = _effects(votes, self._marks, largest, sided=sided)
        return [_of_mark(effect, whose) for effect in effects if effect.name != SIDE]

    def _copies(self, votes: dict[str, npt.NDArray[Any]]) -> Observation | None:
        if not self._has_prompts:
            return None
        keys = votes["identity"]
        for name in ("prompt", "first", "second", "winner"):
            keys = (keys ^ votes[name].astype(np.uint64)) * _ODD
        ranked = np.sort(keys)
        copies = int((ranked[1:] == ranked[:-1]).sum())
        if not copies:
            return None
        share = copies / len(keys)
        what = ", ".join(["prompt", "models", "winner", *self._identity])
        text = f"{counted(copies, 'vote')} ({share:.1%}) {'repeats' if copies == 1 else 'repeat'} another ({what})"
        tells_apart = {"voter", "tstamp", "question_id"} & set(self._identity)
        text += "" if tells_apart else "; no column tells copies from voters who agree"
        return Observation("copies", text, bool(tells_apart) and share > _NOTABLE_COPIES, share)

    def _voter(self, votes: dict[str, npt.NDArray[Any]], whose: str) -> Observation | None:
        known = votes["voter"][votes["voter"] >= 0]
        if len(known) == 0 or len(votes["voter"]) < _LEAST_VOTES:
            return None
        busiest, number = _most_frequent(known)
        share = number / len(votes["voter"])
        if share <= _DOMINANT_VOTER:
            return None
        name = list(self._voters)[busiest]
        return Observation("voter", f"one voter, {name}, casts {share:.0%} of the votes{whose}", True, share)

    def _prompts(self, votes: dict[str, npt.NDArray[Any]]) -> Observation | None:
        if not self._has_prompts or self._thinning:
            return None
        ends = np.flatnonzero(np.diff(np.sort(votes["prompt"])))
        sizes = np.diff(np.concatenate([[-1], ends, [len(votes["prompt"]) - 1]]))
        largest = float(sizes.max() / len(votes["prompt"]))
        if largest > _DOMINANT_PROMPT:
            text = (
                f"one prompt has {largest:.0%} of the votes; how models differ from prompt to prompt, the others tell"
            )
            return Observation("prompts", text, True, largest)
        if len(sizes) >= _FEW_PROMPTS:
            return None
        prompts = counted(len(sizes), "different prompt")
        text = f"{prompts}: few to learn from how models differ from prompt to prompt"
        return Observation("prompts", text, True, float(len(sizes)))

    def _kinds_of_prompts(self) -> Observation | None:
        if not self._kinds:
            return None
        total = self._kinds.total()
        listed = [f"{name} {number / total:.0%}" for name, number in self._kinds.most_common(_LISTED_KINDS)]
        rest = len(self._kinds) - len(listed)
        text = ", ".join(listed) + (f", {rest} more" if rest else "")
        return Observation("kinds", f"{counted(len(self._kinds), 'kind')} of prompts: {text}", estimate=float(total))


def _side_effect(first: Ints, second: Ints, points: Floats, clusters: Sequence[Ints]) -> tuple[float, float] | None:
    """Return what being shown first is worth and its standard error; None where too few pairs were shown both ways.

    With a, b points of the lower and the higher model of a pair where the lower one stands first, c, d where the higher
    one does, and n votes: exp(2 side) = sum(a d / n) / sum(b c / n). The error follows from the slope of that along
    each vote, summed by cluster.
    """
    turned = first > second
    low, high = np.minimum(first, second), np.maximum(first, second)
    _, pair = np.unique(low * (int(high.max()) + 1) + high, return_inverse=True)
    of_low = np.where(turned, 1.0 - points, points)
    cell, size = pair * 2 + turned, 2 * (int(pair.max()) + 1)
    shown = np.bincount(cell, minlength=size).reshape(-1, 2)
    a, c = np.bincount(cell, of_low, size).reshape(-1, 2).T
    b, d = shown[:, 0] - a, shown[:, 1] - c
    n = shown.sum(axis=1)
    if 2.0 * (shown[:, 0] * shown[:, 1] / n).sum() < _LEAST_BOTH_WAYS:
        return None
    for_side, against = a * d / n, b * c / n
    if for_side.sum() == 0 or against.sum() == 0:
        return (float("inf") if against.sum() == 0 else float("-inf")), float("inf")
    of_high = 1.0 - of_low
    slope_for = np.where(turned, of_high * a[pair], of_low * d[pair]) / n[pair] - (for_side / n)[pair]
    slope_against = np.where(turned, of_low * b[pair], of_high * c[pair]) / n[pair] - (against / n)[pair]
    slope = slope_for / for_side.sum() - slope_against / against.sum()
    squares = [float((np.bincount(codes, slope) ** 2).sum()) for codes in clusters]
    return float(np.log(for_side.sum() / against.sum()) / 2.0), float(np.sqrt(max(squares)) / 2.0)


def _effects(votes: dict[str, npt.NDArray[Any]], marks: Sequence[str], cluster: Ints, *, sided: bool) -> list[Effect]:
    """Return the effects of differences between answers, fitted with one leaderboard of the models voted on most."""
    first, second = votes["first"], votes["second"]
    frequencies = np.bincount(np.concatenate([first, second]))
    known = np.sort(np.argsort(-frequencies, kind="stable")[:_MOST_FITTED_MODELS])
    rows = np.flatnonzero(np.isin(first, known) & np.isin(second, known))
    if len(rows) > _MOST_FITTED_VOTES:
        rows = rows[np.argsort(votes["prompt"][rows], kind="stable")[:_MOST_FITTED_VOTES]]  # on some of the prompts
    columns = {name: votes[name][rows] for name in marks} | ({SIDE: np.ones(len(rows))} if sided else {})
    covariates = Covariates(tuple(columns), ("difference",) * len(columns), np.stack(list(columns.values()), axis=1))
    try:
        board = fit(
            np.searchsorted(known, first[rows]),
            np.searchsorted(known, second[rows]),
            votes["winner"][rows],
            models=[str(code) for code in known],
            clusters=cluster[rows],
            covariates=covariates,
            level=LEVEL,
        )
    except P2LError:  # as without a vote that counts
        return []
    return list(board.effects)


def _of_mark(effect: Effect, whose: str) -> Observation:
    """Return what is to be said of the effect of length or of a mark of format."""
    is_beyond = effect.lower > 0 or effect.upper < 0
    is_length = effect.name == "length"
    # An answer of twice the length differs by a third in (a - b) / (a + b), one with marks by one from one without.
    scale = 1.0 / 3.0 if is_length else 1.0
    size = "twice the length is worth" if is_length else "some beside none are worth"
    words = _in_words(effect.coef * scale, effect.lower * scale, effect.upper * scale)
    if is_length:
        answers = "longer answers" if effect.coef > 0 else "shorter answers"
    else:
        answers = f"answers with {'more' if effect.coef > 0 else 'less'} {effect.name}"
    if is_beyond:
        text = f"{answers} win more votes{whose}: {size} {words}"
    else:
        text = f"{effect.name}: {size} {words}, no more than chance"
    is_notable = is_beyond and abs(effect.coef) > _LEAST_EFFECT
    return Observation(effect.name, text, is_notable, effect.coef, effect.lower, effect.upper)


def _pair(votes: dict[str, npt.NDArray[Any]], models: Sequence[str]) -> Observation | None:
    low, high = np.minimum(votes["first"], votes["second"]), np.maximum(votes["first"], votes["second"])
    pairs = low.astype(np.int64) * len(models) + high
    most, number = _most_frequent(pairs)
    share = number / len(pairs)
    if share <= _DOMINANT_PAIR or number == len(pairs):
        return None
    names = " and ".join(sorted(models[code] for code in divmod(most, len(models))))
    return Observation("pair", f"one pair of models, {names}, has {share:.0%} of the votes", True, share)


def _in_words(estimate: float, lower: float, upper: float) -> str:
    return f"{estimate:.2f} log-odds [{lower:.2f}, {upper:.2f}]"


def _most_frequent(values: npt.NDArray[Any]) -> tuple[int, int]:
    distinct, counts = np.unique(values, return_counts=True)
    place = int(np.argmax(counts))
    return int(distinct[place]), int(counts[place])


def _distinct(column: Any) -> tuple[list[str | None], Ints]:
    """Return the different values of an Arrow column as texts, and which of them each row (n,) has."""
    import pyarrow as pa

    if pa.types.is_nested(column.type):
        return [None], np.zeros(len(column), dtype=np.int64)
    encoded = column.dictionary_encode(null_encoding="encode")
    texts = [None if value is None else str(value) for value in encoded.dictionary.to_pylist()]
    return texts, np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)


def _codes(column: Any, codes: dict[Any, int], *, nulls: bool = False) -> Ints:
    """Return codes (n,) of texts by a table that grows; -1 for a missing one unless `nulls` have a code."""
    texts, rows = _distinct(column)
    numbers = [-1 if text is None and not nulls else codes.setdefault(text, len(codes)) for text in texts]
    return np.array(numbers, dtype=np.int64)[rows]


def _hashes_of(column: Any) -> Hashes:
    """Return a number (n,) for each value, equal where values are, in this process."""
    import pyarrow as pa

    if pa.types.is_floating(column.type):
        return np.array(column.to_numpy(zero_copy_only=False), dtype=np.float64).view(np.uint64)
    texts, rows = _distinct(column)
    return np.array([hash(text) & (1 << 64) - 1 for text in texts], dtype=np.uint64)[rows]
