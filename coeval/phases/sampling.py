"""Which attributes an item has: drawn anew for each item, and always the same for an item of the same experiment.

The draw depends on (seed, task, teacher, number of the item), so a run that goes on after a stop, or with a larger
total, draws what it would have drawn undisturbed. Combinations of `all` that items have already are not drawn again
before the others, whatever the total was when those were made.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coeval.config.schema import Attributes, Sampling

__all__ = ["Draw", "combinations_of", "draws"]


@dataclass(frozen=True)
class Draw:
    """The attributes of one item."""

    target: Mapping[str, Any]
    nuanced: Mapping[str, Any]


def draws(
    sampling: Sampling,
    target: Attributes,
    nuanced: Attributes,
    numbers: Iterable[int],
    *,
    seed: int,
    task: str,
    teacher: str,
    always: Sequence[str] = (),
    used: Mapping[int, Mapping[str, Any]] | None = None,
) -> Iterator[Draw]:
    """The attributes of items.

    Args:
        sampling: how many.
        target, nuanced: of which.
        numbers: of the items, rising from 1.
        seed, task, teacher: what the draw depends on.
        always: target attributes that every item has.
        used: number -> target attributes of the items that are there, which `all` does not draw again.
    """
    combinations = _left(lambda: _combinations(sampling, target, _random(seed, task, teacher, "all")), used or {})
    for number in numbers:
        chance = _random(seed, task, teacher, number)
        chosen = next(combinations) if sampling.target == "all" else _some(target, sampling.target, chance, always)
        yield Draw(chosen, _some(nuanced, sampling.nuance, chance))


def _some(
    attributes: Attributes, bounds: tuple[int, int], chance: random.Random, always: Sequence[str] = ()
) -> dict[str, Any]:
    """Between the bounds as many attributes as there are, each with one of its values, in their own order.

    Those of `always` are among them, be they more than the bounds allow.
    """
    names = [name for name, values in attributes.items() if values]
    least, most = (min(bound, len(names)) for bound in bounds)
    fixed = {name for name in names if name in always}
    free = [name for name in names if name not in fixed]
    chosen = fixed.union(chance.sample(free, max(chance.randint(least, most) - len(fixed), 0)))
    return {name: chance.choice(list(attributes[name])) for name in names if name in chosen}


def combinations_of(attributes: Attributes) -> int:
    """How many combinations of values there are."""
    return math.prod(len(values) for values in attributes.values() if values)


def _left(
    combinations: Callable[[], Iterator[dict[str, Any]]], used: Mapping[int, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The combinations without those used, each left out as often as it is; that of an item at the item's place."""
    strangers = Counter(map(_key, used.values()))
    in_place = set()
    for place, one in zip(range(1, max(used, default=0) + 1), combinations(), strict=False):
        if place in used and _key(used[place]) == _key(one):
            in_place.add(place)
            strangers[_key(one)] -= 1
    strangers = +strangers
    for place, one in enumerate(combinations(), start=1):
        if place in in_place:
            continue
        if strangers and strangers[_key(one)] > 0:
            strangers[_key(one)] -= 1
        else:
            yield one


def _key(combination: Mapping[str, Any]) -> str:
    return json.dumps(combination, sort_keys=True, default=str)


def _combinations(sampling: Sampling, attributes: Attributes, chance: random.Random) -> Iterator[dict[str, Any]]:
    """All combinations of values over and over, in their order; where there are more than items, in a random one."""
    names = [name for name, values in attributes.items() if values]
    values = [list(attributes[name]) for name in names]
    count = combinations_of(attributes)
    while True:
        for index in range(count) if sampling.total >= count else _shuffled(count, chance):
            yield dict(zip(names, _decoded(index, values), strict=True))


def _decoded(index: int, values: Sequence[Sequence[Any]]) -> list[Any]:
    """The combination at a place of the product, whose last attribute changes fastest."""
    found = []
    for some in reversed(values):
        index, at = divmod(index, len(some))
        found.append(some[at])
    return found[::-1]


def _shuffled(count: int, chance: random.Random) -> Iterator[int]:
    """0 to count - 1 in a random order, made as far as it is read."""
    moved: dict[int, int] = {}
    for place in range(count):
        other = chance.randrange(place, count)
        yield moved.get(other, other)
        moved[other] = moved.get(place, place)


def _random(*key: object) -> random.Random:
    digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))
