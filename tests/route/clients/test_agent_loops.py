"""Agents and clients that people use, unmodified, in a loop of three tool calls: what arrives at the provider.

Each client runs against a provider of its own protocol and of others. The prompt cache of a provider holds as long as
what was sent before comes again byte for byte, so that is what is compared, with caching marks apart: clients move
those along, and they must arrive.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from route.providers.base import JSON
from tests.conftest import ROOT
from tests.route.clients.scripted_providers import DONE, ROUNDS, SIGNATURE, THOUGHT, Provider, Received
from tests.route.router_helpers import KEY, Running, a_router, served

HERE = Path(__file__).parent
NPM = ROOT / ".venv-js" / "node_modules"
"""Packages that `make js` fetches."""
PYTHON = ROOT / ".venv-clients" / "bin" / "python"
"""Of the environment that `make clients` makes."""
QUESTION = "What do the ponds look like?"
MODELS: dict[str, JSON] = {
    "chat": {"type": "deepseek", "path": "/v1"},
    "messages": {"type": "anthropic", "name": "claude-opus-4-7"},
    "responses": {"type": "openai", "path": "/v1"},
}
"""The model that answers, by the protocol in which it is asked."""
OFFLINE = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1,localhost"}
"""Only the loopback interface answers: nothing listens at the proxy."""
Client = Callable[[Running, Path], Awaitable[None]]


def asked_upstream(folder: Path, client: Client, upstream: str) -> list[Received]:
    """The requests that the provider gets while a client runs its loop."""
    provider = Provider(str(folder))
    for number in range(1, ROUNDS + 1):
        (folder / f"note{number}.txt").write_text(f"a heron at pond {number}\n", encoding="utf-8")

    async def main() -> None:
        async with served(provider.application()) as url:
            place = dict(MODELS[upstream])
            models = {"good": {"base_url": url + place.pop("path", ""), **place}}
            # The others would be first where only they have the Responses API.
            models |= {name: {"options": {"responses": False}} for name in ("fair", "poor")}
            async with a_router(folder, models, database=str(folder / "router.sqlite")) as router:
                await client(router, folder)

    asyncio.run(main())
    return provider.received


async def printed(*words: str | Path, folder: Path, **variables: str) -> str:
    """What a client's program prints; it must end well."""
    pipe = asyncio.subprocess.PIPE
    # Settings of the machine's own must not lead a client elsewhere.
    inherited = {
        name: text for name, text in os.environ.items() if not name.startswith(("ANTHROPIC", "CLAUDE", "OPENAI"))
    }
    process = await asyncio.create_subprocess_exec(
        *map(str, words),
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        env=inherited | OFFLINE | {"HOME": str(folder), "PYTHONPATH": ""} | variables,
    )
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, (output.decode()[-2000:], errors.decode()[-2000:])
    return output.decode()


async def loop_of(words: tuple[str | Path, ...], router: Running, folder: Path) -> None:
    """Run a loop of `loops.py` or `loops.mjs` to its end."""
    text = await printed(*words, folder=folder, ROUTER=router.url, ROUTER_KEY=KEY)
    assert json.loads(text) == {"text": DONE, "places": ["pond 1", "pond 2", "pond 3"]}


def of_python(name: str) -> Client:
    async def use(router: Running, folder: Path) -> None:
        if not PYTHON.exists():
            pytest.skip("no environment of Python clients here: make clients makes it")
        await loop_of((PYTHON, HERE / "loops.py", name), router, folder)

    return use


def of_npm(name: str, package: str) -> Client:
    async def use(router: Running, folder: Path) -> None:
        node = shutil.which("node")
        if node is None or not (NPM / package).is_dir():
            pytest.skip(f"no npm package {package} here: make js fetches it")
        (folder / "node_modules").symlink_to(NPM)  # node looks for packages beside the script
        shutil.copy(HERE / "loops.mjs", folder)
        await loop_of((node, folder / "loops.mjs", name), router, folder)

    return use


def program(name: str) -> Path:
    path = NPM / ".bin" / name
    if not path.exists():
        pytest.skip(f"no {name} here: make js fetches it")
    return path


async def of_claude_code(router: Running, folder: Path) -> None:
    text = await printed(
        program("claude"),
        *("--print", QUESTION, "--output-format", "json", "--allowedTools", "Read", "--model", "claude-opus-4-7"),
        folder=folder,
        ANTHROPIC_BASE_URL=router.url,
        ANTHROPIC_API_KEY=KEY,
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )
    assert json.loads(text)["result"] == DONE


async def of_codex(router: Running, folder: Path) -> None:
    provider = f'{{name="router", base_url="{router.url}/v1", env_key="ROUTER_KEY", wire_api="responses"}}'
    text = await printed(
        program("codex"),
        *("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--model", "gpt-5"),
        *("-c", "model_provider=router", "-c", f"model_providers.router={provider}", QUESTION),
        folder=folder,
        CODEX_HOME=str(folder),
        ROUTER_KEY=KEY,
    )
    assert text.strip().splitlines()[-1] == DONE


OF_CHAT: dict[str, Client] = {
    "openai": of_python("openai"),
    "pydantic-ai chat": of_python("pydantic-ai-chat"),
    "langchain-openai chat": of_python("langchain-openai-chat"),
    "npm openai": of_npm("openai", "openai"),
    "@ai-sdk/openai chat": of_npm("ai-openai-chat", "@ai-sdk/openai"),
    "@ai-sdk/openai-compatible": of_npm("ai-openai-compatible", "@ai-sdk/openai-compatible"),
}
OF_MESSAGES: dict[str, Client] = {
    "anthropic": of_python("anthropic"),
    "pydantic-ai anthropic": of_python("pydantic-ai-anthropic"),
    "langchain-anthropic": of_python("langchain-anthropic"),
    "@anthropic-ai/sdk": of_npm("anthropic", "@anthropic-ai/sdk"),
    "@ai-sdk/anthropic": of_npm("ai-anthropic", "@ai-sdk/anthropic"),
    "Claude Code": of_claude_code,
}
OF_RESPONSES: dict[str, Client] = {
    "pydantic-ai responses": of_python("pydantic-ai-responses"),
    "openai-agents": of_python("openai-agents"),
    "langchain-openai responses": of_python("langchain-openai-responses"),
    "npm openai responses": of_npm("openai-responses", "openai"),
    "@ai-sdk/openai": of_npm("ai-openai", "@ai-sdk/openai"),
    "@ai-sdk/openai stream": of_npm("ai-openai-stream", "@ai-sdk/openai"),
    "Codex": of_codex,
}
CLIENTS = OF_CHAT | OF_MESSAGES | OF_RESPONSES
# A provider that has the Responses API gets chat completions of all but its own clients, as the chat provider does.
PAIRS = [(name, upstream) for name in CLIENTS for upstream in MODELS if upstream != "responses" or name in OF_RESPONSES]
NATIVE = {"chat": OF_CHAT, "messages": OF_MESSAGES, "responses": OF_RESPONSES}
FRAMEWORKS = ("pydantic-ai", "langchain", "openai-agents", "@ai-sdk")


def with_mark(name: str, upstream: str) -> Any:
    """Across protocols a framework says what its provider's client says: among the slow tests."""
    is_slow = name.startswith(FRAMEWORKS) and name not in NATIVE[upstream]
    return pytest.param(name, upstream, marks=[pytest.mark.slow] if is_slow else [])


def unmarked(part: Any) -> Any:
    """The same without caching marks."""
    if isinstance(part, dict):
        return {name: unmarked(field) for name, field in part.items() if name != "cache_control"}
    return [unmarked(each) for each in part] if isinstance(part, list) else part


def as_cached(received: Received) -> list[str]:
    """The parts of a prompt in the order in which a provider caches them, as text."""
    head = [received.body.get(name) for name in ("tools", "system", "instructions")]
    # A turn of one text may become the one block of a list, where the mark stands.
    turns = [_in_blocks(turn) if received.protocol == "messages" else turn for turn in received.turns]
    return [json.dumps(unmarked(part)) for part in [*head, *turns]]


def _in_blocks(turn: JSON) -> JSON:
    content = turn["content"]
    return {**turn, "content": [{"type": "text", "text": content}] if isinstance(content, str) else content}


@pytest.mark.parametrize(("name", "upstream"), [with_mark(*pair) for pair in PAIRS])
def test_three_rounds_of_tools_keep_the_prompt_cache(tmp_path: Path, name: str, upstream: str) -> None:
    asked = asked_upstream(tmp_path, CLIENTS[name], upstream)
    assert [received.protocol for received in asked] == [upstream] * (ROUNDS + 1)
    assert [received.results for received in asked] == [0, 1, 2, 3]
    for before, after in pairwise(asked):
        sent = as_cached(before)
        assert as_cached(after)[: len(sent)] == sent
    if name in OF_MESSAGES and upstream == "messages":
        assert all('"cache_control"' in json.dumps(received.body) for received in asked)


@pytest.mark.parametrize("name", ["anthropic", "@anthropic-ai/sdk", "Claude Code"])
def test_signed_thoughts_come_back_to_the_model_that_had_them(tmp_path: Path, name: str) -> None:
    *_, last = asked_upstream(tmp_path, CLIENTS[name], "messages")
    blocks = [block for turn in last.turns for block in turn["content"] if isinstance(block, dict)]
    thoughts = [block for block in blocks if block["type"] == "thinking"]
    assert thoughts == [{"type": "thinking", "thinking": THOUGHT, "signature": SIGNATURE}] * ROUNDS


@pytest.mark.parametrize("name", ["npm openai responses", "Codex"])
def test_encrypted_reasoning_comes_back_to_the_model_that_had_it(tmp_path: Path, name: str) -> None:
    *_, last = asked_upstream(tmp_path, CLIENTS[name], "responses")
    thoughts = [item["encrypted_content"] for item in last.turns if item.get("type") == "reasoning"]
    assert thoughts == [SIGNATURE] * ROUNDS
    assert last.body["prompt_cache_key"]


def test_claude_codes_beta_header_arrives(tmp_path: Path) -> None:
    first, *_ = asked_upstream(tmp_path, of_claude_code, "messages")
    assert "claude-code-" in first.headers["anthropic-beta"]
