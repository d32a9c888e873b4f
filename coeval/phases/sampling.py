"""Which attributes an item has: drawn anew for each item, and always the same for an item of the same experiment.

The draw depends on (seed, task, teacher, number of the item) alone, so a run that goes on after a stop, or with a
larger total, draws what it would have drawn undisturbed.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coeval.config.schema import Attributes, Sampling

__all__ = ["Draw", "draws"]


@dataclass(frozen=True)
class Draw:
    """The attributes of one item."""

    target: Mapping[str, Any]
    nuanced: Mapping[str, Any]


def draws(
    sampling: Sampling,
    target: Attributes,
    nuanced: Attributes,
    *,
    seed: int,
    task: str,
    teacher: str,
    always: Sequence[str] = (),
) -> Iterator[Draw]:
    """The attributes of items 1, 2, 3, ... without an end; `always` are target attributes that every item has."""
    combinations = _combinations(sampling, target, _random(seed, task, teacher, "all"))
    number = 0
    while True:
        number += 1
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


def _combinations(sampling: Sampling, attributes: Attributes, chance: random.Random) -> Iterator[dict[str, Any]]:
    """All combinations of values over and over, in their order; where there are more than items, in a random one."""
    names = [name for name, values in attributes.items() if values]
    values = [list(attributes[name]) for name in names]
    count = math.prod(len(some) for some in values)
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
