"""Command: `p2l mcp`, a server of the Model Context Protocol whose tools are those of `p2l.agents.answers`.

An agent's program starts it and speaks with it over stdin and stdout, or over HTTP with `--http`.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

from p2l.common.access import check_address, is_loopback
from p2l.common.cli import need, parser, run
from p2l.common.errors import ConfigError, P2LError
from p2l.common.version import __version__

_INSTRUCTIONS = (
    "P2L reads a prompt and returns how good each LLM is at it. leaderboard: who is good at this prompt. recommend: "
    "which model to ask, within a budget. compare: two models on some prompts. votes_check and train: your own votes. "
    "Without p2l the public model answers. Read note and familiarity: below 0.5 the board is mostly the overall one."
)
_PORT = 10260


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of `p2l mcp`."""
    flags = parser("p2l mcp", "Serve leaderboards, recommendations and training to agents, by the protocol MCP.")
    flags.add_argument("--http", action="store_true", help="over HTTP at /mcp, in place of stdin and stdout")
    flags.add_argument("--host", default="127.0.0.1", help="with --http: 127.0.0.1, ::1 or localhost; it has no keys")
    flags.add_argument("--port", type=int, default=_PORT, help="with --http")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until the client, or a signal, ends it."""
    args = build_parser().parse_args(argv)
    need("mcp", "torch")
    server = build_server()
    if not args.http:
        # Clients wait five seconds for an answer, some of them, and loading takes about as long on a busy machine.
        Thread(target=_read_ahead, daemon=True).start()
        server.run("stdio")
        return
    if not is_loopback(args.host):
        raise ConfigError(f"--host {args.host}: the server has no keys, so it listens on this machine alone")
    check_address(args.host, args.port)
    _read_ahead()
    host = f"[{args.host}]" if ":" in args.host else args.host
    print(f"tools at http://{host}:{args.port}/mcp, until Ctrl-C", file=sys.stderr, flush=True)
    server.run("streamable-http", host=args.host, port=args.port)


def _read_ahead() -> None:
    from p2l.agents.answers import read_ahead

    try:
        read_ahead()
    except P2LError as error:  # a tool that is given a model of the user's own works all the same
        print(f"no public model: {error}", file=sys.stderr, flush=True)


def build_server() -> Any:
    """Return the server with its tools."""
    from mcp.server.mcpserver import MCPServer
    from mcp.types import ToolAnnotations

    from p2l.agents.answers import TOOLS, train

    logging.getLogger("mcp").setLevel(logging.WARNING)  # its lines about each call hold prompts
    server: Any = MCPServer("p2l", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")
    for tool in TOOLS:
        reads = ToolAnnotations(read_only_hint=tool is not train, open_world_hint=False)
        server.tool(annotations=reads)(_telling_errors(tool))
    return server


def _telling_errors(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Return a tool whose user's mistakes reach the client as one line that says what to do."""
    from mcp.server.mcpserver.exceptions import ToolError

    @functools.wraps(tool)
    def answered(*args: Any, **kwargs: Any) -> Any:
        try:
            return tool(*args, **kwargs)
        except P2LError as error:
            raise ToolError(str(error)) from error

    # The types stand in another module, as texts: the library reads them from the function.
    answered.__signature__ = inspect.signature(tool, eval_str=True)  # type: ignore[attr-defined]
    answered.__annotations__ = inspect.get_annotations(tool, eval_str=True)
    return answered


if __name__ == "__main__":
    run(main)
