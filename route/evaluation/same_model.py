"""Whether the model behind a name is still that of an earlier day, by its answers to the same prompts.

Answers at temperature 0 still differ a little from one call to the next, so that each prompt is asked several times a
day. What is tested is whether answers of two days differ more than answers of one day do: for each prompt the mean
distance between the days less that within them (the energy distance), summed over prompts, against the same sum after
the days of each prompt's answers were exchanged at random.

Distances are those of lengths (absolute difference of the logarithms), of tokens (share of the first ones that differ),
of the probabilities of the first token (half the sum of absolute differences), and of the number of tokens that the
prompt was counted as, which depends on the tokenizer and the template alone.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

PROMPTS: tuple[str, ...] = (
    "Name the capital of Australia.",
    "List the first eight prime numbers, with commas.",
    "Write one sentence about a lighthouse in winter.",
    "Translate into French: The train leaves at noon.",
    "What is 47 times 86? Show the steps.",
    "Explain in two sentences why the sky is blue.",
    "Write a haiku about a river.",
    "Give a Python function that reverses a list in place.",
    "Which is heavier, a kilogram of feathers or a kilogram of iron? Why?",
    "Continue the story: The door had not been opened for forty years.",
    "Summarise the plot of Romeo and Juliet in one sentence.",
    "Write the SQL for the three customers with the most orders.",
    "Nenne drei Flüsse in Deutschland.",
    "用一句话解释什么是光合作用。",
    "Répondez par un mot : quelle est la couleur d'un citron ?",
    "Give a polite reply that declines an invitation to a dinner.",
    "How many letters r are there in strawberry?",
    "Name a city, an animal and a metal that begin with the letter B.",
    "Who are you, and which company made you?",
    "Write a regular expression for dates such as 2024-08-06.",
    "What would you check first when a web server answers slowly?",
    "Describe the taste of a lemon to somebody who has never had one.",
    "Give a JSON object with a name, an age and a list of two hobbies.",
    "Is the sentence 'This sentence is false' true or false?",
)
"""What is asked; a change makes earlier records useless."""
_TOKENS_COMPARED = 24
_PERMUTATIONS = 4000
LEVEL = 0.001
"""Of all tests together: as often a model that has not changed is taken for another one."""
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Reply:
    """One answer to one of the prompts."""

    text: str
    prompt_tokens: int | None = None
    tokens: int | None = None
    first: Mapping[str, float] | None = None
    """Probabilities of the likeliest first tokens, where the provider tells them."""

    @classmethod
    def of(cls, completion: Mapping[str, Any]) -> Reply:
        """Read a chat completion."""
        choice, usage = completion["choices"][0], completion.get("usage") or {}
        content = ((choice.get("logprobs") or {}).get("content") or [None])[0]
        first = None
        if content:
            first = {each["token"]: math.exp(each["logprob"]) for each in content.get("top_logprobs") or [content]}
        text = choice["message"].get("content") or ""
        return cls(text, usage.get("prompt_tokens"), usage.get("completion_tokens"), first)

    @property
    def words(self) -> list[str]:
        """Return the beginning of the text as words and signs."""
        return _WORD.findall(self.text)[:_TOKENS_COMPARED]


def _length_apart(a: Reply, b: Reply) -> float | None:
    sizes = (len(a.text), len(b.text)) if None in (a.tokens, b.tokens) else (a.tokens or 0, b.tokens or 0)
    return abs(math.log1p(sizes[0]) - math.log1p(sizes[1]))


def _tokens_apart(a: Reply, b: Reply) -> float | None:
    first, second = a.words, b.words
    longest = max(len(first), len(second))
    if not longest:
        return 0.0
    return 1.0 - sum(left == right for left, right in zip(first, second, strict=False)) / longest


def _first_token_apart(a: Reply, b: Reply) -> float | None:
    if a.first is None or b.first is None:
        return None
    return sum(abs(a.first.get(token, 0.0) - b.first.get(token, 0.0)) for token in {*a.first, *b.first}) / 2


def _prompt_apart(a: Reply, b: Reply) -> float | None:
    return None if None in (a.prompt_tokens, b.prompt_tokens) else float(a.prompt_tokens != b.prompt_tokens)


Distance = Callable[[Reply, Reply], "float | None"]
_DISTANCES: Mapping[str, Distance] = {
    "tokens of the prompts": _prompt_apart,
    "lengths": _length_apart,
    "tokens": _tokens_apart,
    "first-token probabilities": _first_token_apart,
}


class Difference(NamedTuple):
    """One test of two days."""

    of: str
    apart: float
    """Mean distance between the days, over prompts."""
    within: float
    """Mean distance within a day."""
    p_value: float
    """Share of the exchanges that are as far apart; smaller than `LEVEL` over the number of tests: another model."""
    is_change: bool


def differences(
    before: Sequence[Sequence[Reply]], now: Sequence[Sequence[Reply]], *, seed: int = 0
) -> list[Difference]:
    """Test answers of two days, by prompt; what a provider does not tell is not tested."""
    tests = {name: _tables(distance, before, now) for name, distance in _DISTANCES.items()}
    tested = {name: tables for name, tables in tests.items() if tables}
    level = LEVEL / max(1, len(tested))
    return [_tested(name, tables, level, seed) for name, tables in tested.items()]


class _Distances(NamedTuple):
    """Distances between all answers to one prompt, those of the first day first."""

    distances: list[list[float]]
    number: int
    """Answers of the first day."""

    def energy(self, order: Sequence[int]) -> tuple[float, float]:
        """Return the mean distance between two groups of answers, and that within them."""
        first, second = order[: self.number], order[self.number :]
        between = [self.distances[a][b] for a, b in product(first, second)]
        inside = [self.distances[a][b] for group in (first, second) for a, b in product(group, group) if a < b]
        return sum(between) / len(between), sum(inside) / len(inside) if inside else 0.0


def _tables(distance: Distance, before: Sequence[Sequence[Reply]], now: Sequence[Sequence[Reply]]) -> list[_Distances]:
    tables = []
    for earlier, later in zip(before, now, strict=True):
        replies = [*earlier, *later]
        rows = [[distance(a, b) for b in replies] for a in replies]
        if earlier and later and all(value is not None for row in rows for value in row):
            tables.append(_Distances([[value or 0.0 for value in row] for row in rows], len(earlier)))
    return tables


def _tested(name: str, tables: Sequence[_Distances], level: float, seed: int) -> Difference:
    draw = random.Random(seed)
    orders = [list(range(len(table.distances))) for table in tables]

    def sums() -> tuple[float, float]:
        energies = [table.energy(order) for table, order in zip(tables, orders, strict=True)]
        return sum(apart for apart, _ in energies), sum(inside for _, inside in energies)

    apart, within = sums()
    as_far = 0
    for _ in range(_PERMUTATIONS):
        for order in orders:
            draw.shuffle(order)
        other_apart, other_within = sums()
        # 1e-9: answers that are all the same are as far apart in any order.
        as_far += other_apart - other_within >= apart - within - 1e-9
    p_value = (1 + as_far) / (1 + _PERMUTATIONS)
    return Difference(name, apart / len(tables), within / len(tables), p_value, p_value <= level)
