from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coeval.phases.items import Draw, draws
from coeval.schema import Sampling

ATTRIBUTES = st.dictionaries(
    st.text("abc", min_size=1), st.lists(st.integers(0, 9), max_size=3, unique=True), max_size=4
)
BOUNDS = st.tuples(st.integers(0, 3), st.integers(0, 3)).map(lambda pair: (min(pair), max(pair)))


def drawn(sampling: Sampling, target: Any, nuanced: Any = None, *, count: int = 0, **key: Any) -> list[Draw]:
    key = {"seed": 0, "task": "t", "teacher": "a", **key}
    return list(draws(sampling, target, nuanced or {}, range(1, (count or sampling.total) + 1), **key))


@given(ATTRIBUTES, BOUNDS, BOUNDS)
def test_draws_keep_to_their_bounds(attributes: Any, target: Any, nuance: Any) -> None:
    usable = {name: values for name, values in attributes.items() if values}
    for draw in drawn(Sampling(target, nuance, 5), attributes, attributes):
        for chosen, (least, most) in ((draw.target, target), (draw.nuanced, nuance)):
            assert min(least, len(usable)) <= len(chosen) <= min(most, len(usable))
            assert all(value in attributes[name] for name, value in chosen.items())


@given(st.integers(1, 30), st.integers(1, 30))
def test_a_larger_total_begins_with_the_same_items(small: int, more: int) -> None:
    attributes = {"a": list(range(6)), "b": list(range(9))}
    for target in ((1, 2), "all"):
        first = drawn(Sampling(target, (0, 1), small), attributes, attributes)  # type: ignore[arg-type]
        longer = drawn(Sampling(target, (0, 1), small + more), attributes, attributes)  # type: ignore[arg-type]
        assert longer[:small] == first or (target == "all" and small + more >= 54)


def test_all_goes_through_the_product_in_its_order_and_again() -> None:
    attributes = {"a": ["x", "y"], "none": [], "b": [1, 2, 3]}
    found = [tuple(draw.target.values()) for draw in drawn(Sampling("all", (0, 0), 8), attributes)]
    assert found == [*product(["x", "y"], [1, 2, 3]), ("x", 1), ("x", 2)]


def test_all_of_more_than_there_are_items_never_repeats() -> None:
    attributes = {str(number): list(range(50)) for number in range(8)}
    found = [tuple(draw.target.values()) for draw in drawn(Sampling("all", (0, 0), 200), attributes)]
    assert len(set(found)) == 200


@given(st.integers(1, 12), st.integers(1, 20), st.data())
def test_a_total_that_grows_leaves_no_combination_out(small: int, more: int, data: st.DataObject) -> None:
    attributes = {"a": [1, 2], "b": [1, 2, 3]}
    first, larger = Sampling("all", (0, 0), small), Sampling("all", (0, 0), small + more)
    found = {number: draw.target for number, draw in enumerate(drawn(first, attributes), start=1)}
    while len(found) < small + more:  # as starts that are killed at any time make them
        missing = [number for number in range(1, small + more + 1) if number not in found]
        new = draws(larger, attributes, {}, missing, seed=0, task="t", teacher="a", used=found)
        drawn_now = dict(zip(missing, new, strict=True))
        chosen = data.draw(st.sets(st.sampled_from(missing), min_size=1))
        found.update({number: drawn_now[number].target for number in chosen})
    counts = Counter(tuple(target.values()) for target in found.values())
    assert max(counts.values()) - min((*counts.values(), 0) if len(counts) < 6 else counts.values()) <= 1


def test_an_interrupted_cycle_goes_on_as_if_it_had_not_been() -> None:
    attributes, sampling = {"a": [1, 2, 3]}, Sampling("all", (0, 0), 8)
    whole = {number: draw.target for number, draw in enumerate(drawn(sampling, attributes), start=1)}
    there = {number: whole[number] for number in (1, 4, 8)}
    missing = [2, 3, 5, 6, 7]
    found = draws(sampling, attributes, {}, missing, seed=0, task="t", teacher="a", used=there)
    assert [draw.target for draw in found] == [whole[number] for number in missing]


def test_seed_task_and_teacher_each_change_the_draw() -> None:
    attributes = {"a": list(range(1000))}
    one = Sampling((1, 1), (0, 0), 3)
    keys: list[dict[str, Any]] = [{}, {"seed": 1}, {"task": "u"}, {"teacher": "b"}]
    found = [drawn(one, attributes, **key) for key in keys]
    assert all(found[0] != other for other in found[1:])
    assert found[0] == drawn(one, attributes)


@given(st.integers(0, 3), st.integers(0, 2))
def test_labels_are_always_drawn_and_count(most: int, labels: int) -> None:
    attributes = {name: [1, 2, 3] for name in "abcd"}
    always = tuple("db"[:labels])
    for draw in drawn(Sampling((min(1, most), most), (0, 0), 20), attributes, always=always):
        assert {*always} <= {*draw.target}
        assert len(draw.target) <= max(most, labels)


def test_a_value_may_be_anything() -> None:
    assert drawn(Sampling((1, 1), (0, 0), 1), {"a": [True]}) == [Draw({"a": True}, {})]
