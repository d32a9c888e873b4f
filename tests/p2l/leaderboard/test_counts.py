"""Counts of votes add up, whatever they are split into, and are kept as they are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2l.common.errors import VoteError
from p2l.leaderboard.controls import Controls, CountedVotes, rounded
from p2l.leaderboard.counts import Counts, Group, read_counts, write_counts
from p2l.leaderboard.lake_counts import Spec, lake_counts
from p2l.leaderboard.pair_tables import VoteCounter, components, distinct, every_sum
from p2l.votes.lake import DAY, NO_DAY, Lake
from p2l.votes.schema import WINNERS

MODELS = ["ant", "bee", "cat", "dog", "eel"]
GROUPS = [Group(), Group("", "", 3), Group("", "", 4), Group("kind", "a"), Group("kind", "b")]

vote = st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3), st.integers(0, 4)).filter(
    lambda parts: parts[0] != parts[1]
)
votes = st.lists(vote, max_size=40)


def counted(rows: list[tuple[int, int, int, int]], names: list[str], groups: list[Group]) -> Counts:
    counts = Counts()
    for a, b, winner, group in rows:
        code = np.array([counts.code(groups[group])])
        models = [counts.codes_of([names[model]]) for model in (a, b)]
        counts.counter.add(code, models[0], models[1], np.array([winner]), np.array([0.5]))
    return counts


def cells(counts: Counts) -> dict[Any, Any]:
    columns = [column.to_pylist() for column in counts.table().columns]
    return {row[:6]: row[6:] for row in zip(*columns, strict=True)}


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(votes, min_size=1, max_size=4), order=st.permutations(range(5)))
def test_counts_of_parts_add_up_whatever_their_codes(parts: list[list[Any]], order: list[int]) -> None:
    whole = counted([row for part in parts for row in part], MODELS, GROUPS)
    shuffled = [MODELS[place] for place in order]
    total = Counts()
    for number, part in enumerate(parts):
        # Every other machine numbers its models and groups in an order of its own.
        names = shuffled if number % 2 else MODELS
        recoded = [(names.index(MODELS[a]), names.index(MODELS[b]), winner, group) for a, b, winner, group in part]
        total.add_table(counted(recoded, names, GROUPS).table(), "part")
    assert cells(total) == cells(whole)
    same_models = Counts(names=dict(whole.names))
    same_models.absorb(whole)
    assert cells(same_models) == cells(whole)
    before = cells(whole)
    same_models.absorb(whole)  # what was handed over is not written to
    assert cells(whole) == before
    assert cells(same_models) == {key: tuple(2 * part for part in sums) for key, sums in before.items()}


@settings(max_examples=200, deadline=None)
@given(
    edges=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=20),
    size=st.integers(9, 12),
    directed=st.booleans(),
)
def test_components_are_models_that_reach_each_other(edges: list[tuple[int, int]], size: int, directed: bool) -> None:
    reach = np.eye(size, dtype=bool)
    for one, other in edges:
        reach[one, other] = True
        reach[other, one] |= not directed
    for middle in range(size):
        reach |= reach[:, middle, None] & reach[middle]
    first, second = (np.array([edge[side] for edge in edges], dtype=np.int64) for side in (0, 1))
    used = np.unique(np.concatenate([first, second, [0]]))
    place = {int(model): number for number, model in enumerate(used)}
    codes = [np.array([place[int(model)] for model in side], dtype=np.int64) for side in (first, second)]
    for numbers, there in [
        (components(size, first, second, directed=directed), reach),
        # Without the models that no edge touches, so that all may be one.
        (components(len(used), *codes, directed=directed), reach[np.ix_(used, used)]),
    ]:
        np.testing.assert_array_equal(numbers[:, None] == numbers[None, :], there & there.T)


@settings(max_examples=60, deadline=None)
@given(batches=st.lists(st.tuples(votes, st.sampled_from([1.0, 2.0])), max_size=6))
def test_a_counter_counts(batches: list[tuple[list[Any], float]]) -> None:
    counter, expected = VoteCounter(), [Counter[Any]() for _ in range(3)]
    for rows, weight in batches:
        if rows:
            a, b, winner, group = np.array(rows, dtype=np.int64).T
            counter.add(group, a, b, winner, np.full(len(rows), weight))
        for power, sums_of in enumerate(expected):
            for a, b, winner, group in rows:
                sums_of[group, a, b, winner] += weight**power
        for number in range(5):  # asked in between, so that what comes meets what was counted
            a, b, winner, sums = counter.cells(number)
            for row, sums_of in zip(every_sum(sums), expected, strict=True):
                there = {(number, *key): total for *key, total in zip(a, b, winner, row, strict=True)}
                assert there == {key: total for key, total in sums_of.items() if key[0] == number}
    assert counter.groups() == dict(Counter(group for rows, _ in batches for *_, group in rows))


@settings(max_examples=60, deadline=None)
@given(codes=st.lists(st.integers(0, 30)), size=st.sampled_from([31, 1 << 40]))
def test_distinct_codes_are_those_of_numpy(codes: list[int], size: int) -> None:
    array = np.array(codes, dtype=np.int64)
    unique, place = distinct(array, size)
    np.testing.assert_array_equal(unique, np.unique(array))
    np.testing.assert_array_equal(unique[place], array)


def batch(rows: list[tuple[int, int, int, int]], day: int) -> Any:
    kinds = ["a", "b", None, "c", "d"]
    columns: dict[str, Any] = {
        "model_a": [MODELS[row[0]] for row in rows],
        "model_b": [MODELS[row[1]] for row in rows],
        "winner": [WINNERS[row[2]] for row in rows],
        "kind": pa.array([kinds[row[3]] for row in rows], pa.string()),
        "weight": [1.0 + row[3] for row in rows],
    }
    if day != NO_DAY:
        columns["tstamp"] = [day * float(DAY)] * len(rows)
    return pa.RecordBatch.from_pydict(columns)


def expected_of(spec: Spec, commits: list[tuple[int, list[Any]]]) -> Counter[Any]:
    total = Counter[Any]()
    for day, rows in commits:
        for a, b, winner, kind in rows:
            value = ["a", "b", None, "c", "d"][kind]
            if (spec.by and value is None) or (spec.over and day == NO_DAY):
                continue
            group = Group(spec.by, value or "", (day + 3) // 7) if spec.over else Group(spec.by, value or "")
            group = group if spec.over else Group(spec.by, (value or "") if spec.by else "")
            if not spec.by:
                group = group._replace(value="")
            total[(*group, MODELS[a], MODELS[b], winner)] += 1 + kind if spec.weighted else 1
    return total


@pytest.mark.parametrize("few", [0, 4, 1_000_000], ids=["kept apart", "usual", "kept together"])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    commits=st.lists(st.tuples(st.sampled_from([NO_DAY, 20_000, 20_001, 20_010]), votes), min_size=1, max_size=5),
    asked=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_a_lake_that_grows_is_counted_as_it_stands(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    few: int,
    commits: list[tuple[int, list[Any]]],
    asked: list[bool],
) -> None:
    monkeypatch.setattr("p2l.leaderboard.lake_counts._OLD_CELLS_PER_NEW", few)
    lake = Lake(tmp_path_factory.mktemp("lake") / "lake", create=True)
    specs = [Spec(), Spec("kind"), Spec("", "week"), Spec("kind", None, True), Spec("", None, True)]
    for number, (day, rows) in enumerate(commits):
        lake.add([batch(rows, day)] if rows else [], name=f"{number}", source="-", identity=str(number))
        # Some counts are kept more often than others, with models that came in another order.
        some = specs if number == len(commits) - 1 else specs[number % 3 :][: 2 + number % 2]
        if asked[number] or number == len(commits) - 1:
            for spec, counts in zip(some, lake_counts(lake, some), strict=True):
                ours = {key: sums[1] for key, sums in cells(counts).items()}
                assert ours == dict(expected_of(spec, commits[: number + 1]))


def test_damaged_counts_are_made_anew(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake", create=True)
    rows = [(0, 1, 0, 0), (1, 2, 1, 1), (0, 1, 0, 3)]
    lake.add([batch(rows, 20_000)], name="one", source="-", identity="1")
    [first] = lake_counts(lake, [Spec("kind")])
    path = tmp_path / "lake" / Spec("kind").file
    whole = path.read_bytes()
    for damaged in (b"", whole[:50], whole[:-200] + bytes(200)):
        path.write_bytes(damaged)
        [again] = lake_counts(lake, [Spec("kind")])
        assert cells(again) == cells(first)
        assert path.read_bytes() == whole


def test_counts_of_a_file_are_read_as_they_were_written(tmp_path: Path) -> None:
    counts = counted([(0, 1, 0, 0), (2, 1, 3, 4), (0, 1, 0, 0)], MODELS, GROUPS)
    write_counts(counts, tmp_path / "counts.parquet")
    assert cells(read_counts([tmp_path / "counts.parquet"])) == cells(counts)
    twice = read_counts([tmp_path / "counts.parquet"] * 2)
    assert {key: 2 * votes for key, (votes, *_) in cells(counts).items()} == {
        key: votes for key, (votes, *_) in cells(twice).items()
    }


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1), steps=st.integers(1, 64))
def test_rounded_values_are_near_and_stay(values: list[float], steps: int) -> None:
    array = np.array(values)
    for is_difference in (True, False):
        once = rounded(array, steps, is_difference=is_difference)
        np.testing.assert_array_equal(rounded(once, steps, is_difference=is_difference), once)
        np.testing.assert_array_equal(rounded(-array, steps, is_difference=is_difference), -once)
        room = 0.5 / steps if is_difference else np.abs(array) / (2 * steps)
        assert (np.abs(once - array) <= room * (1 + 1e-9)).all()


def test_controls_that_differ_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2l.leaderboard.controls._MAX_COUNTED_ROWS", 10)
    controls = Controls(["size"], ["size"], "votes", steps=8)
    held = CountedVotes(controls)
    rows = pa.RecordBatch.from_pydict({"size": np.exp(np.arange(20.0))})
    zeros, ones = np.zeros(20, dtype=np.int64), np.ones(20, dtype=np.int64)
    held.add(rows, [zeros, ones, zeros, np.ones(20)], [(zeros, np.arange(20))])
    with pytest.raises(VoteError, match="fewer --control-steps"):
        held.table(0, np.arange(2), 2)
