"""Bodies of requests: bounded before they are parsed, parsed off the event loop where long, faults in a sentence.

Parsing makes an object of every value, so that a body of a few megabytes may take seconds and gigabytes: what a request
cannot need is refused by its bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from p2l.common.cli import listed, nearest
from p2l.common.long_texts import LONG, BusyError, PatientDecoder, count_values, decode
from p2l.common.web import ClientGoneError, within
from p2l.serving.pairs import LONGEST_NAME, MOST_COVARIATES, MOST_PAIRS
from p2l.serving.settings import Settings

_OTHER_VALUES = 1000  # that a request may have beside its turns


class BoundedRoute(APIRoute):
    """A route whose requests are parsed within the limits of the service."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler for requests that parse themselves."""
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            return await handle(_BoundedRequest(request.scope, request.receive))

        return handle_bounded


class _BoundedRequest(Request):
    async def json(self) -> Any:
        """Return the parsed body; FastAPI answers 422 to json.JSONDecodeError, and passes HTTPException on."""
        body = await self.body()
        if len(body) <= LONG:
            return json.loads(body)
        service = self.app.state.service
        settings: Settings = service.settings
        work = service.batcher.long_work.run(len(body), partial(_parse, body, settings.max_turns))
        try:
            return await within(self, settings.deadline, work)
        except BusyError as error:
            raise HTTPException(503, str(error), {"retry-after": "1"}) from None
        except TimeoutError:
            raise HTTPException(504, "the deadline passed before the request was read") from None
        except ClientGoneError:
            raise HTTPException(499, "the client left") from None


def check_prompts(prompts: Sequence[Sequence[str]], settings: Settings) -> None:
    """Raise HTTPException 413 for prompts beyond the limits of turns and characters."""
    num_turns = sum(map(len, prompts))
    if num_turns > settings.max_turns:
        raise _too_many_turns(settings.max_turns)
    for number, prompt in enumerate(prompts):
        num_chars = sum(map(len, prompt))
        if num_chars > settings.max_chars:
            raise HTTPException(
                413,
                f"prompt {number} has {num_chars} characters, more than {settings.max_chars} (--max-chars); "
                "send its newest turns",
            )


def _too_many_turns(most: int) -> HTTPException:
    return HTTPException(
        413, f"the request has more than {most} turns (--max-turns); send the newest, or fewer prompts"
    )


def _parse(body: bytes, max_turns: int) -> Any:
    most = 2 * max_turns + _OTHER_VALUES  # a turn, and a list for each
    if count_values(body, most) > most:
        raise _too_many_turns(max_turns)
    # Other encodings, which the library would guess, hide what was counted.
    return PatientDecoder().decode(decode(body, "surrogatepass"))


# What is wrong with a request whose values are not those of its model.

_TEXT, _PROMPT = "a text", "a text or a list of texts (the user's turns)"
_EXPECTED = {
    "prompt": (_PROMPT, _TEXT),
    "prompts": (f"a list of prompts, each {_PROMPT}", _PROMPT, _TEXT),
    "sd": ("true or false",),
    "pairs": (
        f"a list of at most {MOST_PAIRS:,} pairs of models",
        'two models, such as ["a", "b"]',
        "the name of a model",
    ),
    "level": ("above 0 and below 1",),
    "covariates": (
        f"an object of numbers by name: at most {MOST_COVARIATES} names of at most {LONGEST_NAME} characters",
        "a finite number",
    ),
    "model_path": ("a text of 1 to 4,096 characters",),
    "x-p2l-timeout": ("a number of seconds above 0",),
}
"""Name of a key or header: what it has to be, and what has to be within it, one level after the other."""


def describe_faults(faults: Sequence[Mapping[str, Any]], keys: Collection[str]) -> str:
    """Return a sentence of the first of pydantic's faults, and of a misspelt key before what is missing without it.

    `keys` are those that the body may have. Nothing of a prompt is shown, of whatever type it is.
    """
    fault = min(faults, key=lambda fault: fault["type"] != "extra_forbidden")  # the first of those that are equal
    kind, value, (part, *place) = fault["type"], fault["input"], fault["loc"]
    if kind == "json_invalid":
        return "the body is not valid JSON"
    if kind == "extra_forbidden":
        name = str(place[-1])
        return f"unknown key {listed([name])!r}{nearest(name, keys)}; see GET /docs"
    if not place:
        if isinstance(value, bytes):  # as it came: it is not said to be JSON
            return "the body was not read as JSON: send it with the header content-type: application/json"
        example = "is missing" if value is None else f"is {_kind_of(value)}"
        return f"the body {example}; send a JSON object, with what GET /docs says"
    if kind == "missing" and len(place) > 1:  # a pair of one name, say
        place = place[:-1]
    levels = _EXPECTED[name := str(place[0])]
    where = ".".join(listed([str(step)]) for step in place)
    expected = levels[min(len(place), len(levels)) - 1]
    if kind == "missing" and len(place) == 1:
        return f"{where}: is missing; it must be {expected}"
    is_shown = part == "header" or (isinstance(value, int | float) and not name.startswith("prompt"))
    return f"{where}: must be {expected}, got {listed([json.dumps(value)]) if is_shown else _kind_of(value)}"


def _kind_of(value: object) -> str:
    """Return what a JSON value is, without what it says."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a text" if value else "an empty text"
    if isinstance(value, list):
        return f"a list of {len(value):,}" if value else "an empty list"
    return "an object"
