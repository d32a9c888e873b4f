"""A provider that costs nothing: scripted text, latency and troubles, for tests, benchmarks and the demo.

In the router's process it is the provider `mock`, with a `Script` as options of its account; as a server that speaks
OpenAI's protocol over the loopback interface it is

    python -m route.providers.mock --port 9000 --latency 0.2 --tokens 50 --token-seconds 0.01
"""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import AsyncGenerator, Sequence

from p2l.command import parser, positive, run
from route.providers.base import JSON, Account, Fault, ProviderError, Timeouts
from route.providers.chunks import asks_for_usage, chunk, completion
from route.providers.faults import refusal
from route.providers.mock_script import Mock, Script, Trouble, refusal_body
from route.providers.registry import protocol

__all__ = ["MockProvider", "build_parser", "main"]

_FAULTS = {
    "reset": Fault.CONNECTION,
    "cut": Fault.CONNECTION,
    "malformed": Fault.MALFORMED,
    "no-done": Fault.MALFORMED,
    "silence": Fault.TIMEOUT,
    "stall": Fault.TIMEOUT,
}
_MIDDLE = (
    "cut",
    "stall",
    "malformed",
)  # go wrong in the middle of a stream; `no-done` at its end, the others before it


@protocol("mock", *Script.__dataclass_fields__)
class MockProvider:
    """The script of an account, played in this process."""

    def __init__(self, account: Account) -> None:
        self.mock = Mock(Script.of(account.options))

    async def chat(self, request: JSON, timeouts: Timeouts) -> JSON:
        """The script's answer, or its trouble.

        Raises:
            ProviderError: the script wants it.
        """
        trouble = await self._begin(request, timeouts)
        await _pause(self.mock.script.token_seconds * len(self.mock.pieces), timeouts.total)
        if trouble.name in _FAULTS and trouble.name != "no-done":
            await _fail(trouble, timeouts.first_token)
        message = {"role": "assistant", "content": "".join(self.mock.pieces), "refusal": None}
        return completion(str(request.get("model")), message, "stop", self.mock.usage(request))

    async def stream(self, request: JSON, timeouts: Timeouts) -> AsyncGenerator[JSON, None]:
        """The script's answer, token by token.

        Raises:
            ProviderError: the script wants it, before the first chunk or after some.
        """
        trouble = await self._begin(request, timeouts)
        whole = completion(str(request.get("model")), {}, "stop", self.mock.usage(request))
        frame = {key: whole[key] for key in ("id", "created", "model")}
        yield chunk(frame, {"role": "assistant", "content": ""})
        for number, piece in enumerate(self.mock.pieces):
            if number == len(self.mock.pieces) // 2 and trouble.name in _MIDDLE:
                await _fail(trouble, timeouts.stall)
            if number:
                await _pause(self.mock.script.token_seconds, timeouts.stall)
            yield chunk(frame, {"content": piece})
        if trouble.name == "no-done":
            await _fail(trouble, timeouts.stall)
        yield chunk(frame, {}, "stop")
        if asks_for_usage(request):
            yield {**chunk(frame, {}), "choices": [], "usage": whole["usage"]}

    async def close(self) -> None:
        """There is nothing to close."""

    async def _begin(self, request: JSON, timeouts: Timeouts) -> Trouble:
        """Wait for the first token, or fail before it."""
        trouble = self.mock.next_trouble(request)
        refused = refusal_body(trouble)
        if refused is not None:
            raise refusal("mock", *refused)
        if trouble.name in ("reset", "silence"):
            await _fail(trouble, timeouts.first_token)
        slow = trouble.number or math.inf if trouble.name == "slow" else 0.0
        await _pause(self.mock.script.latency + slow, timeouts.first_token)
        return trouble


async def _pause(seconds: float, limit: float) -> None:
    await asyncio.sleep(min(seconds, limit))
    if seconds > limit:
        raise ProviderError(Fault.TIMEOUT, "mock took too long")


async def _fail(trouble: Trouble, limit: float) -> None:
    fault = _FAULTS[trouble.name]
    if fault is Fault.TIMEOUT:
        await asyncio.sleep(limit)
    raise ProviderError(fault, f"mock was told to fail ({trouble.name})")


def build_parser() -> argparse.ArgumentParser:
    """The command line of the server."""
    line = parser(
        "python -m route.providers.mock", "Serve scripted answers over OpenAI's protocol, for tests and demos."
    )
    line.add_argument("--host", default="127.0.0.1", help="address to listen on")
    line.add_argument("--port", type=int, default=9000, help="port to listen on; 0 takes a free one and prints it")
    line.add_argument("--text", help="what it answers; as many words as --tokens says if not given")
    line.add_argument("--tokens", type=positive, default=16, help="words of an answer")
    line.add_argument("--latency", type=float, default=0.0, metavar="S", help="seconds until the first token")
    line.add_argument("--token-seconds", type=float, default=0.0, metavar="S", help="seconds between two tokens")
    line.add_argument(
        "--failures",
        nargs="*",
        default=(),
        metavar="TROUBLE",
        help="troubles of the first requests, such as status:503",
    )
    line.add_argument("--failure-rate", type=float, default=0.0, help="share of the requests after them that fail")
    line.add_argument("--failure", default="status:500", metavar="TROUBLE", help="how those fail")
    line.add_argument("--seed", type=int, default=0, help="of the draws of --failure-rate")
    return line


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until interrupted."""
    flags = vars(build_parser().parse_args(argv))
    host, port = flags.pop("host"), flags.pop("port")
    script = Script.of(flags)
    from route.providers.mock_server import serve

    asyncio.run(serve(script, host, port))


if __name__ == "__main__":
    run(main)
