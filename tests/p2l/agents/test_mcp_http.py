"""`p2l mcp --http`, with the protocol's official client and with that of an agents' library."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from p2l.demo.services import free_port, running, wait_for
from p2l.model.sentence import packaged_encoder
from tests.conftest import vote_rows, write_votes
from tests.warm import warm_python

pytest.importorskip("mcp")
pytestmark = pytest.mark.usefixtures("warm_children")  # the server, and in it each training
needs_encoder = pytest.mark.skipif(packaged_encoder() is None, reason="the extra `encoder` is not installed")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that is up."""
    folder, port = tmp_path_factory.mktemp("mcp"), free_port()
    with running(folder, ["p2l.cli", "mcp", "--http", "--port", str(port)], "mcp.log") as process:
        wait_for(f"tools at http://127.0.0.1:{port}/mcp", process, folder / "mcp.log")
        while process.poll() is None:  # the library starts to listen a moment later, and says nothing then
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"


def call(address: str, name: str, arguments: dict[str, object]) -> Any:
    """Call one tool with the official client."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async def conversation() -> object:
        async with streamable_http_client(address) as streams, ClientSession(*streams[:2]) as session:
            await session.initialize()
            return await session.call_tool(name, arguments)

    return asyncio.run(conversation())


@pytest.mark.slow
@needs_encoder
def test_train_over_http_says_whether_the_votes_help(address: str, tmp_path: Path) -> None:
    votes = write_votes(tmp_path / "votes.jsonl", vote_rows(160))
    target = tmp_path / "model"
    trained = call(address, "train", {"votes": str(votes), "output": str(target)})
    assert not trained.is_error, trained.content
    result = trained.structured_content
    assert (target / "model_list.json").is_file()
    assert result["folder"] == str(target)
    assert result["gain"] == pytest.approx(result["loss_of_one_leaderboard"] - result["loss"], abs=1e-4)
    assert result["gain_lower"] <= result["gain"] <= result["gain_upper"]
    assert result["helps"] is (result["gain_lower"] > 0)
    board = call(address, "leaderboard", {"prompt": "what is 3 plus 4", "p2l": str(target)}).structured_content
    assert len(board["rows"]) == 4
    assert board["by"] == str(target)
    again = call(address, "train", {"votes": str(votes), "output": str(target)})
    assert again.is_error
    assert "give a new folder" in again.content[0].text
    absent = call(address, "train", {"votes": str(tmp_path / "none.csv"), "output": str(tmp_path / "other")})
    assert absent.is_error
    assert "none.csv" in absent.content[0].text


@needs_encoder
def test_an_agents_library_finds_the_tools_and_their_results(address: str) -> None:
    library = pytest.importorskip("agents.mcp")

    async def conversation() -> tuple[Any, Any]:
        async with library.MCPServerStreamableHttp({"url": address}) as server:
            tools = await server.list_tools()
            arguments = {"prompt": "Solve x^2 = 4.", "models": ["gpt-4o", "vicuna-13b"]}
            return tools, await server.call_tool("leaderboard", arguments)

    tools, board = asyncio.run(conversation())
    assert {tool.name for tool in tools} == {"leaderboard", "recommend", "compare", "train", "votes_check"}
    assert "gpt-4o" in board.content[0].text


def test_a_server_without_keys_listens_on_this_machine_alone() -> None:
    line = [warm_python(), "-m", "p2l.cli", "mcp", "--http", "--host", "0.0.0.0"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --host 0.0.0.0: the server has no keys")
