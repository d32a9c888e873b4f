"""Bodies of requests: bounded before they are parsed, and parsed off the event loop where they are long.

Parsing makes an object of every value, so that a body of a few megabytes may take seconds and gigabytes: what a request
cannot need is refused by its bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from p2l.common.long_texts import LONG, BusyError, PatientDecoder, count_values, decode
from p2l.common.web import ClientGoneError, within
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
