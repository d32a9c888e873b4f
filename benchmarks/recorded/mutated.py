"""Recorded requests with small faults and novelties: each passes whole or is refused in words; none is a fault of ours.

    python -m benchmarks.recorded.mutated FOLDER [--mutations N] [--seed S] [--list]

A request has one to three of these: blocks in another order, twice or gone, other identifiers, fields of the future,
unknown types, other betas, empty lists and texts, nulls, and values of a wrong type.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import itertools
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.recorded.replay import DIALECTS, NATIVE, Replay, differences, replaying
from benchmarks.recorded.telling import is_fault
from benchmarks.recorded.traffic import JSON, KINDS, Exchange, read_exchanges
from benchmarks.tables import table
from route.providers.completions import without

_LONGEST_MESSAGE = 2000
_BETAS = ("interleaved-thinking-2025-05-14", "effort-2031-01-01", "no-such-beta-2031-01-01", "", " ", "a,b", "x" * 200)
_VALUES: tuple[Any, ...] = (
    None,
    [],
    {},
    "",
    " ",
    0,
    -1,
    1.5,
    10**30,
    True,
    "text",
    "\ud83d",
    [None],
    [[]],
    {"a": None},
)


@dataclass(frozen=True)
class Mutant:
    """A changed request."""

    exchange: Exchange
    changes: tuple[str, ...]
    """What was changed, with the place."""


def _places(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every object and list within a value."""
    if isinstance(value, dict | list):
        yield path, value
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(inner, f"{path}/{name}")


def _lists(draw: random.Random, body: JSON, least: int = 1) -> tuple[str, list[Any]] | None:
    places = [(path, value) for path, value in _places(body) if isinstance(value, list) and len(value) >= least]
    return draw.choice(places) if places else None


def _reordered(draw: random.Random, body: JSON) -> str:
    place = _lists(draw, body, 2)
    if place is None:
        return ""
    draw.shuffle(place[1])
    return f"another order of {place[0]}"


def _repeated(draw: random.Random, body: JSON) -> str:
    place = _lists(draw, body)
    if place is None:
        return ""
    number = draw.randrange(len(place[1]))
    place[1].insert(number, copy.deepcopy(place[1][number]))
    return f"{place[0]}/{number} twice"


def _left_out(draw: random.Random, body: JSON) -> str:
    path, value = draw.choice(list(_places(body)))
    if not value:
        return ""
    name = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
    del value[name]
    return f"without {path}/{name}"


def _renamed(draw: random.Random, body: JSON) -> str:
    named = [
        (path, value, name)
        for path, value in _places(body)
        if isinstance(value, dict)
        for name in value
        if name == "id" or name.endswith("_id")
    ]
    if not named:
        return ""
    path, value, name = draw.choice(named)
    value[name] = draw.choice(["other", "x" * 300, "ü 1", ""])
    return f"another {path}/{name}"


def _of_the_future(draw: random.Random, body: JSON) -> str:
    path, value = draw.choice([(path, value) for path, value in _places(body) if isinstance(value, dict)])
    value["field_of_tomorrow"] = draw.choice(_VALUES)
    return f"{path}/field_of_tomorrow"


def _unknown_type(draw: random.Random, body: JSON) -> str:
    typed = [(path, value) for path, value in _places(body) if isinstance(value, dict) and "type" in value]
    if not typed:
        return ""
    path, value = draw.choice(typed)
    value["type"] = "type_of_tomorrow"
    return f"{path} of an unknown type"


def _another_value(draw: random.Random, body: JSON) -> str:
    path, value = draw.choice([(path, value) for path, value in _places(body) if value])
    name = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
    value[name] = copy.deepcopy(draw.choice(_VALUES))
    return f"{path}/{name} is {value[name]!r}"


_CHANGES: tuple[Callable[[random.Random, JSON], str], ...] = (
    *(_reordered, _repeated, _left_out, _renamed, _of_the_future, _unknown_type, _another_value, _another_value),
)


def mutants(exchanges: list[Exchange], number: int, seed: int) -> Iterator[Mutant]:
    """Yield changed requests; the same ones for the same seed."""
    draw = random.Random(seed)
    for _ in range(number):
        exchange = draw.choice(exchanges)
        body: JSON = copy.deepcopy(dict(exchange.request))
        changes = [draw.choice(_CHANGES)(draw, body) for _ in range(draw.randint(1, 3))]
        headers: Mapping[str, str] = exchange.headers
        if draw.random() < 0.1:
            headers = {**headers, "anthropic-beta": draw.choice(_BETAS)}
            changes.append(f"the beta {headers['anthropic-beta']!r:.40}")
        changed = replace(exchange, request=body, headers=headers)
        for name in ("stream", "stream_options"):  # the recorded answer is one or the other
            body.pop(name, None)
            if name in exchange.request:
                body[name] = exchange.request[name]
        yield Mutant(changed, tuple(change for change in changes if change))


async def fault_of(replay: Replay, mutant: Mutant, answer: Exchange) -> tuple[int, str]:
    """Return the status of a changed request, and what is wrong with how it was treated; nothing where all is well.

    It goes to the model of the kind of the answer, which the provider gives.
    """
    exchange = mutant.exchange
    is_native = answer.kind == exchange.kind
    if answer.kind == "bedrock":  # of its streams, which are binary, none is recorded
        exchange = replace(exchange, request=without(exchange.request, ("stream", "stream_options")))
    status, error, received, headers = await replay.passed(
        exchange, answer.kind, exchange if is_native and not exchange.is_stream else answer
    )
    if status == 200:
        dropped = headers.get("x-p2l-dropped-fields", "").split(", ")
        lost = _lost(exchange.request, received) if is_native else _unheard(exchange.request, received)
        # Parts of a field are named with its name before them.
        lost = [name for name in lost if not any(each == name or each.startswith(f"{name}.") for each in dropped)]
        return status, f"{', '.join(lost)} changed in silence" if lost else ""
    if not 400 <= status < 500:
        return status, f"{status} {error[:300]}"
    told: Any = json.loads(error).get("error")
    message = told.get("message") if isinstance(told, dict) else None
    if not isinstance(message, str) or not message.strip() or "\n" in message or len(message) > _LONGEST_MESSAGE:
        return status, f"refused in unclear words: {error[:300]}"
    if DIALECTS[NATIVE[exchange.kind]].path == "/v1/messages" and json.loads(error).get("type") != "error":
        return status, f"refused in another form: {error[:300]}"
    return status, ""


def _lost(sent: JSON, received: JSON) -> list[str]:
    """Return the fields that do not arrive as they were sent, but for what was adapted since a provider refuses it."""
    changed = differences(_adaptable(sent), _adaptable(received))
    return [name for name in changed if name in sent or name not in _LIMITS]  # those of the configuration come with it


def _adaptable(value: Any) -> Any:
    """Return a value without blank texts and what is left empty by them, and with every identifier alike."""
    if isinstance(value, dict):
        if value.get("type") == "text" and isinstance(value.get("text"), str) and not value["text"].strip():
            return None
        inner = {name: "-" if name in ("id", "tool_use_id") else _adaptable(each) for name, each in value.items()}
        return None if "role" in inner and not inner.get("content", True) else inner
    if isinstance(value, list):
        return [each for each in map(_adaptable, value) if each is not None]
    return "" if isinstance(value, str) and not value.strip() else value


_LIMITS = ("max_tokens", "max_output_tokens")
_SAID = ("messages", "input", "system", "instructions")
_THOUGHTS = ("reasoning", "thinking", "redacted_thinking")


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts of a conversation, thoughts left out."""
    if isinstance(value, dict):
        if value.get("type") in _THOUGHTS:
            return
        for name in ("text", "content", "output"):
            if isinstance(value.get(name), str):
                yield value[name]
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _strings(inner)


def _unheard(sent: JSON, received: JSON) -> list[str]:
    """Return the fields of which a text does not arrive at a provider of another protocol."""
    heard = "\n".join(_strings(received))

    def is_missing(text: str) -> bool:
        return text.strip() not in heard and not text.strip().startswith(("{", "["))  # JSON that is an object there

    said = {name: [value] if isinstance(value, str) else list(_texts(value)) for name, value in sent.items()}
    return [name for name in _SAID if any(map(is_missing, said.get(name, ())))]


def recorded(folder: Path, kind: str) -> list[Exchange]:
    """Return the recorded requests of a protocol that got an answer."""
    return [each for each in read_exchanges(folder, kind) if each.status == 200 and not is_fault(each)]


async def _main(flags: argparse.Namespace) -> None:
    logging.disable(logging.WARNING)
    rows = []
    usable = {kind: recorded(flags.folder, kind) for kind in KINDS}
    answers = {kind: next(each for each in usable[kind] if not each.is_stream) for kind in KINDS}
    async with replaying() as replay:
        for kind, answer in itertools.product(NATIVE, answers.values()):
            statuses, faults = Counter[int](), 0
            for mutant in mutants(usable[kind], flags.mutations, flags.seed):
                status, wrong = await fault_of(replay, mutant, answer)
                statuses[status] += 1
                faults += bool(wrong)
                if wrong and flags.list:
                    print(kind, answer.kind, mutant.exchange.name, mutant.changes, wrong)
            passed = statuses.pop(200, 0)
            rows.append([kind, answer.kind, str(passed), str(sum(statuses.values())), str(faults)])
    print(table(["changed requests of", "to", "passed", "refused", "not as they should"], rows))


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the recorded traffic")
    parser.add_argument("--mutations", type=int, default=200, help="changed requests of each protocol (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the changes (default: 0)")
    parser.add_argument("--list", action="store_true", help="name each that was not treated as it should be")
    return parser


def main() -> None:
    """Play changed requests."""
    asyncio.run(_main(build_parser().parse_args()))


if __name__ == "__main__":
    main()
