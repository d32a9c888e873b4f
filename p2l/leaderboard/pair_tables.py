"""Votes as a table of pairs: all that a leaderboard fit needs of them, in O(M^2) memory.

Shapes: N votes, M models, P pairs of models that met (P <= M (M - 1) / 2), 4 winners in the order of `WINNERS`.

Two million votes between 130 models are 8,385 rows here, so a Newton step costs the same for a thousand votes as for
a billion. Tables of parts of a stream add up to the table of the whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.errors import VoteError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_DENSE_CELLS = 1 << 22  # a dense count array of up to 32 MB, whatever the number of votes
MAX_MODELS = 10_000
_SEARCH_STEPS = 4


def check_number_of_models(number: int, name: str = "") -> None:
    """Raise VoteError where there are more models than a leaderboard, with a number for each two, can be fitted to."""
    if number > MAX_MODELS:
        place = f"{name}: " if name else ""
        raise VoteError(
            f"{place}{number:,} models or more, and a leaderboard has at most {MAX_MODELS:,}; are these their names?"
        )


ROLES = {"difference": (0.5, -0.5, 0.0), "level": (1.0, 1.0, 0.0), "ties": (0.0, 0.0, 1.0)}
"""What a value of one, times the effect, does to the first coefficient, to the second and to eta."""


@dataclass(frozen=True)
class Covariates:
    """Names and roles of C covariates and their values (N, C), those of differences seen from model_a."""

    names: tuple[str, ...]
    roles: tuple[str, ...]
    values: Floats

    @property
    def matrix(self) -> Floats:
        """The roles as what they do to both coefficients and eta (C, 3)."""
        return np.array([ROLES[role] for role in self.roles], dtype=np.float64).reshape(-1, 3)

    def pick(self, kept: Sequence[bool] | npt.NDArray[np.bool_]) -> Covariates:
        """Return some of the covariates."""
        places = np.flatnonzero(kept)
        names, roles = (tuple(column[place] for place in places) for column in (self.names, self.roles))
        return Covariates(names, roles, self.values[:, places])


@dataclass(frozen=True)
class PairTable:
    """Votes per pair of models and winner.

    Attributes:
        num_models: M.
        first: (P,) code of the pair's lower model.
        second: (P,) code of its higher model; first < second, each pair once.
        weights: (P, 4) summed weight of the votes that first won, second won, tie, tie (bothbad).
        squares: (P, 4) summed squared weight, for sandwich intervals.
        votes: (P, 4) number of votes.
        covariates: their values in each row, where a row is a pair with equal values and pairs have several rows.
        offsets: (P, 3) what is known to be added to both coefficients and eta; each vote is a row of its own then.
    """

    num_models: int
    first: Ints
    second: Ints
    weights: Floats
    squares: Floats
    votes: Floats
    covariates: Covariates | None = None
    offsets: Floats | None = None

    def votes_per_model(self, counted: npt.ArrayLike = True) -> Ints:
        """Number of votes (M,) that each model took part in; `counted` (4,) masks the winners that count."""
        rows: Floats = (self.votes * np.broadcast_to(np.asarray(counted, dtype=bool), (4,))).sum(axis=1)
        both = np.bincount(self.first, rows, self.num_models) + np.bincount(self.second, rows, self.num_models)
        return np.asarray(np.rint(both), dtype=np.int64)


def vote_table(
    model_a: npt.ArrayLike,
    model_b: npt.ArrayLike,
    winner: npt.ArrayLike,
    num_models: int,
    weights: npt.ArrayLike | None = None,
) -> PairTable:
    """Count votes (N,) by pair and winner: codes in [0, M) of the models shown first and second, places in `WINNERS`.

    Weights are not negative, one each when absent. Weight 2 is the same as two votes, but for `squares`.
    """
    keys = vote_keys(model_a, model_b, winner, num_models)
    if weights is None:
        return _table_from_keys(*_count(keys, num_models, None), num_models=num_models)
    vote_weights = np.asarray(weights, dtype=np.float64)
    if vote_weights.shape != keys.shape or not np.isfinite(vote_weights).all() or (vote_weights < 0).any():
        raise VoteError("weights must be one finite number of at least 0 for each vote")
    unique, votes = _count(keys, num_models, None)
    with np.errstate(over="ignore", under="ignore"):  # a fit refuses weights as far out as that
        total, squares = (_count(keys, num_models, values)[1] for values in (vote_weights, vote_weights**2))
    return _table_from_keys(unique, votes, total, squares, num_models=num_models)


def vote_keys(model_a: npt.ArrayLike, model_b: npt.ArrayLike, winner: npt.ArrayLike, num_models: int) -> Ints:
    """Return one integer (N,) for each vote: ((a M + b) 4 + winner)."""
    a, b, won = (np.asarray(column) for column in (model_a, model_b, winner))
    if not a.shape == b.shape == won.shape or a.ndim != 1:
        raise VoteError("model_a, model_b and winner must be of one length")
    if len(a) and (min(a.min(), b.min(), won.min()) < 0 or max(a.max(), b.max()) >= num_models or won.max() > 3):
        raise VoteError(f"codes must lie in [0, {num_models}) for models and in [0, 4) for winners")
    if (a == b).any():
        raise VoteError(f"vote {int(np.argmax(a == b)) + 1}: a model meets itself; drop such votes")
    keys: Ints = a.astype(np.int64)
    keys *= num_models
    keys += b
    keys *= 4
    keys += won
    return keys


def _count(keys: Ints, num_models: int, weights: Floats | None) -> tuple[Ints, Floats]:
    """Return the distinct keys (those of every vote, weight 0 too) and their summed weights."""
    cells = num_models * num_models * 4
    if cells <= max(_DENSE_CELLS, len(keys)):
        return np.arange(cells, dtype=np.int64), np.bincount(keys, weights, minlength=cells).astype(np.float64)
    unique, inverse = np.unique(keys, return_inverse=True)
    return unique, np.bincount(inverse, weights, minlength=len(unique)).astype(np.float64)


def _table_from_keys(
    keys: Ints, votes: Floats, weights: Floats | None = None, squares: Floats | None = None, *, num_models: int
) -> PairTable:
    """Build a table from distinct keys of `vote_keys` and their sums; pairs are folded so that first < second."""
    used = votes > 0
    pair, winner = keys[used] >> 2, keys[used] & 3
    folded, column = fold(*np.divmod(pair, num_models), winner, num_models)
    pairs, pair_of = distinct(folded, num_models * num_models)

    def spread(values: Floats) -> Floats:
        sums = np.bincount(pair_of * 4 + column, values[used], minlength=4 * len(pairs))
        return sums.astype(np.float64).reshape(-1, 4)

    first, second = np.divmod(pairs, num_models)
    counted = spread(votes)
    weighted = counted if weights is None else spread(weights)
    squared = counted if squares is None else spread(squares)
    return PairTable(num_models, first, second, weighted, squared, counted)


def distinct(codes: Ints, size: int) -> tuple[Ints, Ints]:
    """Return the distinct codes of [0, size), sorted, and the place (N,) of each code among them."""
    unique, [place] = distinct_in([codes], size)
    return unique, place.astype(np.int64)


def distinct_in(parts: Sequence[Any], size: int) -> tuple[Ints, list[Any]]:
    """Return the distinct codes of [0, size) in any part, sorted, and the places of each part's codes among them."""
    if size > _DENSE_CELLS:
        unique, place = np.unique(np.concatenate(parts), return_inverse=True)
        return unique, np.split(place.reshape(-1), np.cumsum([len(codes) for codes in parts])[:-1])
    is_there = np.zeros(size, dtype=bool)
    for codes in parts:
        is_there[codes] = True
    place_of = np.cumsum(is_there, dtype=np.int32) - np.int32(1)
    return np.flatnonzero(is_there), [place_of[codes] for codes in parts]


def table_cells(
    table: PairTable, model_a: npt.ArrayLike, model_b: npt.ArrayLike, winner: npt.ArrayLike
) -> tuple[Ints, Ints]:
    """Return the row and column (N,) of a table that each of its votes was counted in."""
    a, b, won = (np.asarray(column, dtype=np.int64) for column in (model_a, model_b, winner))
    pair, column = fold(a, b, won, table.num_models)
    return np.searchsorted(pair_codes(table), pair), column


def pair_codes(table: PairTable) -> Ints:
    """Return one integer (P,) for the pair of each row."""
    return table.first * table.num_models + table.second


def fold(a: Ints, b: Ints, winner: Ints, num_models: int) -> tuple[Ints, Ints]:
    """Number of each pair whichever was shown first, and the winner's column seen from its lower model."""
    column = np.where((a > b) & (winner < 2), 1 - winner, winner)
    return np.minimum(a, b) * num_models + np.maximum(a, b), column


def components(num_models: int, first: Ints, second: Ints, *, directed: bool = False) -> Ints:
    """Return the component number (M,) of each model in the graph whose edges lead from `first` to `second`.

    Two models are in one component when a chain of pairs joins them; `directed`: in both directions.
    """
    ways = [(first, second), (second, first)]
    if not directed:
        ways = [(np.concatenate(ways[0]), np.concatenate(ways[1]))]
    for sources, targets in ways:
        # Where edges lead from model 0 to all others in a few steps, there is one component.
        is_reached = np.arange(num_models) == 0
        for _ in range(_SEARCH_STEPS):
            is_reached[targets[is_reached[sources]]] = True
        if not is_reached.all():
            break
    else:
        return np.zeros(num_models, dtype=np.int64)
    # Few leaderboards have more, and loading this takes longer than to fit ten of them.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ones = np.ones(len(first), dtype=np.int8)
    graph: Any = coo_array((ones, (first, second)), shape=(num_models, num_models)).tocsr()
    _, numbers = connected_components(graph, directed=True, connection="strong" if directed else "weak")
    return np.asarray(numbers, dtype=np.int64)


# Votes of a stream, counted per group: pair tables of a whole file and of each of its groups.
#
# Shapes: N votes of a batch, U distinct (group, model a, model b, winner).
#
# Memory holds one row per distinct combination, not per vote: for one leaderboard that is O(M^2) however long the
# stream is; for personal leaderboards it is at most the number of votes, 32 bytes each.

_MODEL_BITS = 20  # a key of 62 bits: group, two models, two bits for the winner
_GROUP_SHIFT = 2 * _MODEL_BITS + 2
_GROUP_LIMIT = 1 << (62 - 2 * _MODEL_BITS)
_MAX_WAITING_VOTES = 1 << 21  # votes that wait to be sorted in together


class VoteCounter:
    """Counts of votes by group, pair and winner; add batches, then ask for tables.

    Sums (S, U) have three rows, of votes, weights and squared weights, or one while every vote weighs as one.
    """

    def __init__(self) -> None:
        self._keys: Ints = np.empty(0, dtype=np.int64)
        self._sums: Floats = np.empty((1, 0))
        self._is_own = True  # sums that were handed over are not written to
        self._waiting: list[tuple[Ints, Floats]] = []
        self._number_waiting = 0

    def add(self, group: Ints, model_a: Ints, model_b: Ints, winner: Ints, weights: Floats) -> None:
        """Count a batch of votes (N,); `group` and the models are codes of the caller's."""
        sums = np.ones((1, len(group)))
        if (weights != 1).any():
            with np.errstate(over="ignore"):  # a fit refuses weights as far out as that
                sums = np.stack([sums[0], weights, weights**2])
        self.add_cells(group, model_a, model_b, winner, sums)

    def add_cells(self, group: Ints, model_a: Ints, model_b: Ints, winner: Ints, sums: Floats) -> None:
        """Add sums (S, U) of votes, weights and squared weights that are counted already; see `cells`."""
        if len(group) and (group.max() >= _GROUP_LIMIT or max(model_a.max(), model_b.max()) >= 1 << _MODEL_BITS):
            raise VoteError(f"more than {_GROUP_LIMIT:,} groups or {1 << _MODEL_BITS:,} models")
        self.add_keys(((group << _MODEL_BITS | model_a.astype(np.int64)) << _MODEL_BITS | model_b) << 2 | winner, sums)

    def add_keys(self, keys: Ints, sums: Floats) -> None:
        """Add sums (S, U) by keys (U,) of a counter whose groups and models are numbered as these are.

        Neither array may change afterwards.
        """
        self._waiting.append((keys, sums))
        self._number_waiting += len(keys)
        if self._number_waiting > max(_MAX_WAITING_VOTES, len(self._keys)):
            self._merge()

    def _merge(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._number_waiting = self._waiting, [], 0
        if not len(self._keys) and _is_ordered([waiting[0][0]]):  # counts that were kept
            (self._keys, self._sums), *waiting = waiting
            self._is_own = False
        keys_of, sums_of = [keys for keys, _ in waiting], [sums for _, sums in waiting]
        if _is_ordered([self._keys[-1:], *keys_of]):
            # Groups that come one after the other, as days do, are put behind each other: nothing is sorted.
            if waiting:
                self._keys = np.concatenate([self._keys, *keys_of])
                self._sums = np.concatenate(_alike([self._sums, *sums_of]), axis=1)
                self._is_own = True
            return
        keys, sums = np.concatenate(keys_of), np.concatenate(_alike(sums_of), axis=1)
        if not _is_ordered([keys]):
            keys, place = np.unique(keys, return_inverse=True)
            sums = np.stack([np.bincount(place.reshape(-1), row, len(keys)) for row in sums])
        if not self._is_own:
            self._sums, self._is_own = self._sums.copy(), True
        self._sums, sums = _alike([self._sums, sums])
        place = np.searchsorted(self._keys, keys)
        is_old = np.append(self._keys, -1)[place] == keys
        self._sums[:, place[is_old]] += sums[:, is_old]
        if not is_old.all():
            is_new = ~is_old
            self._keys = np.insert(self._keys, place[is_new], keys[is_new])
            self._sums = np.insert(self._sums, place[is_new], sums[:, is_new], axis=1)

    def groups(self) -> dict[int, int]:
        """Return the groups and their number of votes."""
        self._merge()
        numbers = self._keys >> _GROUP_SHIFT
        first = np.flatnonzero(np.diff(numbers, prepend=-1))
        votes = np.add.reduceat(self._sums[0], first) if len(first) else np.empty(0)
        return {int(number): round(float(count)) for number, count in zip(numbers[first], votes, strict=True)}

    def table(self, group: int, names: Sequence[str]) -> tuple[PairTable, list[str]]:
        """Return the pair table of one group over the models it has votes of, and their names, sorted."""
        a, b, winner, sums = self.cells(group)
        is_there = np.zeros(len(names), dtype=bool)
        is_there[a] = is_there[b] = True
        seen = sorted(names[code] for code in np.flatnonzero(is_there).tolist())
        position = {name: index for index, name in enumerate(seen)}
        recode = np.array([position.get(name, -1) for name in names], dtype=np.int64)
        local = (recode[a] * len(seen) + recode[b]) * 4 + winner
        return _table_from_keys(local, *sums, num_models=len(seen)), seen

    def cells(self, group: int) -> tuple[Ints, Ints, Ints, Floats]:
        """Return models a and b (U,), winner (U,) and sums of votes, weights, squared weights (S, U) of one group."""
        self._merge()
        start, end = np.searchsorted(self._keys, [group << _GROUP_SHIFT, (group + 1) << _GROUP_SHIFT])
        return *split_keys(self._keys[start:end])[1:], self._sums[:, start:end]

    def every_cell(self) -> tuple[Ints, Floats]:
        """Return the keys (U,) of all cells in order, which `split_keys` takes apart, and their sums (S, U)."""
        self._merge()
        return self._keys, self._sums


def every_sum(sums: Floats) -> Floats:
    """Return sums (S, U) of a counter as three rows: of votes, weights and squared weights."""
    return sums if len(sums) == 3 else np.repeat(sums, 3, axis=0)


def _alike(parts: Sequence[Floats]) -> list[Floats]:
    """Return sums with as many rows each."""
    return list(parts) if len(set(map(len, parts))) == 1 else [every_sum(sums) for sums in parts]


def _is_ordered(parts: Sequence[Ints]) -> bool:
    """Whether keys rise from each to the next, and from part to part."""
    used = [keys for keys in parts if len(keys)]
    if any(before[-1] >= after[0] for before, after in itertools.pairwise(used)):
        return False
    return all(bool((keys[1:] > keys[:-1]).all()) for keys in used)


def regrouped(keys: Ints, codes: Ints) -> Ints:
    """Return keys of a counter whose groups 0, 1, ... are `codes` in another one."""
    if len(codes) and codes.max() >= _GROUP_LIMIT:
        raise VoteError(f"more than {_GROUP_LIMIT:,} groups")
    shift = codes - np.arange(len(codes))
    return keys + (shift << _GROUP_SHIFT)[keys >> _GROUP_SHIFT] if shift.any() else keys


def are_keys(keys: Ints, groups: int, models: int, scratch: Ints) -> bool:
    """Whether keys (U,) lie within these groups and models, none of which meets itself; `scratch` (2, U) is used."""
    model_a, model_b = scratch[:, : len(keys)]
    for place, out in ((_MODEL_BITS + 2, model_a), (2, model_b)):
        np.right_shift(keys, place, out=out)
        out &= (1 << _MODEL_BITS) - 1
        if out.max() >= models:
            return False
    model_a -= model_b
    return bool(model_a.all() and keys.min() >= 0 and keys.max() >> _GROUP_SHIFT < groups)


def split_keys(keys: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return group, models a and b, and winner (U,) of keys of a counter."""
    mask = (1 << _MODEL_BITS) - 1
    return keys >> _GROUP_SHIFT, keys >> (_MODEL_BITS + 2) & mask, keys >> 2 & mask, keys & 3
