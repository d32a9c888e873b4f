"""Clients that people use, unmodified, against a router: tools, structured output, streams and embeddings."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from pydantic import BaseModel

from tests.conftest import ROOT
from tests.route.application.test_forwarding import Upstream
from tests.route.router_helpers import KEY, Running, a_router, model, served

ASKED = [{"role": "user", "content": "Which bird?"}]


class Bird(BaseModel):
    name: str
    legs: int


def look(place: str) -> str:
    """Look at a place."""
    return f"a heron at {place}"


SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}


def with_router(folder: Path, use: Callable[[Running], Any], **config: Any) -> None:
    async def main() -> None:
        async with a_router(folder, **config) as router:
            await use(router)

    asyncio.run(main())


def test_openai_helpers_parse_and_stream(tmp_path: Path) -> None:
    async def use(router: Running) -> None:
        chat = router.client.chat.completions
        parsed = await chat.parse(model="-", messages=ASKED, response_format=Bird)
        assert parsed.choices[0].message.parsed == Bird(name="text", legs=1)
        tool = {"type": "function", "function": {"name": "look", "parameters": SCHEMA, "strict": True}}
        async with chat.stream(model="-", messages=ASKED, tools=[tool]) as stream:
            async for _ in stream:
                pass
            [call] = (await stream.get_final_completion()).choices[0].message.tool_calls
        assert json.loads(call.function.arguments) == {"place": "text"}

    with_router(tmp_path, use)


def test_anthropic_runs_tools_and_counts_tokens(tmp_path: Path) -> None:
    async def use(router: Running) -> None:
        client = AsyncAnthropic(base_url=router.url, api_key=KEY)
        tool = {"name": "look", "description": "Look.", "input_schema": SCHEMA}
        async with client.messages.stream(model="-", max_tokens=50, messages=ASKED, tools=[tool]) as stream:
            message = await stream.get_final_message()
        assert (message.stop_reason, message.content[0].input) == ("tool_use", {"place": "text"})
        done = {"type": "tool_result", "tool_use_id": message.content[0].id, "content": look("the pond")}
        turns = [
            *ASKED,
            {"role": "assistant", "content": [block.model_dump() for block in message.content]},
            {"role": "user", "content": [done]},
        ]
        answer = await client.messages.create(model="-", max_tokens=50, messages=turns, tools=[tool])
        assert answer.content[0].text == "I am good"
        count = await client.messages.count_tokens(
            model="-", system="s" * 400, messages=[{"role": "user", "content": "u" * 800}]
        )
        assert count.input_tokens == 300
        assert router.counts() == {"good": 2, "fair": 0, "poor": 0}
        status, told, _ = await router.post("/v1/messages/count_tokens", {"messages": []})
        assert (status, told["type"], told["error"]["type"]) == (400, "error", "invalid_request_error")
        await client.close()

    with_router(tmp_path, use)


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
def test_langchain_chats_calls_tools_and_parses(tmp_path: Path, responses: bool) -> None:
    langchain = pytest.importorskip("langchain_openai")

    async def use(router: Running) -> None:
        chat = langchain.ChatOpenAI(
            model="auto", base_url=f"{router.url}/v1", api_key=KEY, use_responses_api=responses, max_retries=0
        )
        answer = await chat.ainvoke("Which bird?")
        assert answer.text == "I am good"
        assert answer.usage_metadata["output_tokens"] == 3
        pieces = [piece async for piece in chat.astream("Which bird?")]
        assert "".join(piece.text for piece in pieces) == "I am good"
        tool = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": SCHEMA}}
        calling = chat.bind_tools([tool])
        asked = await calling.ainvoke("Look.")
        [call] = asked.tool_calls
        assert (call["name"], call["args"]) == ("look", {"place": "text"})
        result = {"role": "tool", "tool_call_id": call["id"], "content": look("the pond")}
        done = await calling.ainvoke([{"role": "user", "content": "Look."}, asked, result])
        assert done.text == "I am good"
        assert router.last("good")["messages"][-1]["content"] == "a heron at the pond"
        assert await chat.with_structured_output(Bird).ainvoke("Which bird?") == Bird(name="text", legs=1)
        await chat.root_async_client.close()

    with_router(tmp_path, use)


def test_langchain_embeds(tmp_path: Path) -> None:
    langchain = pytest.importorskip("langchain_openai")

    async def main() -> None:
        async with served(Upstream().application()) as url:
            vectors = {"vectors": model(f"{url}/v1", serves=["embeddings"])}
            async with a_router(tmp_path, vectors) as router:
                embeddings = langchain.OpenAIEmbeddings(
                    model="vectors",
                    base_url=f"{router.url}/v1",
                    api_key=KEY,
                    check_embedding_ctx_length=False,  # which would fetch a tokenizer
                    model_kwargs={"encoding_format": "float"},
                )
                assert await embeddings.aembed_documents(["a heron"]) == [[0.5, 0.25]]
                await embeddings.async_client._client.close()

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_instructor_extracts(tmp_path: Path, mode: str) -> None:
    instructor = pytest.importorskip("instructor")

    async def use(router: Running) -> None:
        client = instructor.from_openai(router.client, mode=instructor.Mode[mode])
        bird = await client.chat.completions.create(model="p2l-router", messages=ASKED, response_model=Bird)
        assert isinstance(bird, Bird)
        assert bird.model_dump() == {"name": "text", "legs": 1}

    with_router(tmp_path, use)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_an_agent_of_openais_sdk_runs_with_its_default_model_class(tmp_path: Path, streamed: bool) -> None:
    agents = pytest.importorskip("agents")

    async def use(router: Running) -> None:
        places: list[str] = []

        @agents.function_tool
        def watch(place: str) -> str:
            """Watch a place."""
            places.append(place)
            return look(place)

        provider = agents.OpenAIProvider(openai_client=router.client)
        config = agents.RunConfig(model_provider=provider, tracing_disabled=True)
        agent = agents.Agent(name="Watcher", instructions="Watch birds.", model="auto", tools=[watch])
        if streamed:
            run = agents.Runner.run_streamed(agent, "Which bird?", run_config=config)
            async for _ in run.stream_events():
                pass
        else:
            run = await agents.Runner.run(agent, "Which bird?", run_config=config)
        assert run.final_output == "I am good"
        assert places == ["text"]
        assert router.last("good")["messages"][-1] == {
            "role": "tool",
            "tool_call_id": router.last("good")["messages"][-2]["tool_calls"][0]["id"],
            "content": "a heron at text",
        }
        typed = agents.Agent(name="Namer", model="auto", output_type=Bird)
        named = await agents.Runner.run(typed, "Which bird?", run_config=config)
        assert named.final_output == Bird(name="text", legs=1)

    with_router(tmp_path, use)


async def output_of(*words: str, **variables: str) -> str:
    """What a command prints; it must end well."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe, env=os.environ | variables)
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()


def test_the_command_llm_asks_streams_and_keeps_to_a_schema(tmp_path: Path) -> None:
    pytest.importorskip("llm")

    async def use(router: Running) -> None:
        folder = tmp_path / "llm"
        folder.mkdir()
        place = f"api_base: '{router.url}/v1', api_key_name: p2l"
        entry = f"- {{model_id: p2l, model_name: auto, {place}, supports_schema: true}}\n"
        (folder / "extra-openai-models.yaml").write_text(entry, encoding="utf-8")
        command = (sys.executable, "-W", "ignore", "-m", "llm", "-m", "p2l", "--key", KEY, "Which bird?")
        assert (await output_of(*command, LLM_USER_PATH=str(folder))).strip() == "I am good"
        text = await output_of(*command, "--schema", "name, legs int", LLM_USER_PATH=str(folder))
        assert json.loads(text) == {"name": "text", "legs": 1}

    with_router(tmp_path, use)


SCRIPT = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.env.ROUTER + "/v1", apiKey: process.env.ROUTER_KEY, maxRetries: 0 });
const messages = [{ role: "user", content: "Which bird?" }];
const answer = await client.chat.completions.create({ model: "auto", messages });
let streamed = "";
for await (const chunk of await client.chat.completions.create({ model: "auto", messages, stream: true })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
}
const parameters = { type: "object", properties: { place: { type: "string" } }, required: ["place"] };
const tools = [{ type: "function", name: "look", parameters, strict: true }];
const called = await client.responses.create({ model: "auto", input: "Look.", tools });
const response = await client.responses.stream({ model: "auto", input: "Which bird?" }).finalResponse();
let status = 0;
try {
  await new OpenAI({ baseURL: process.env.ROUTER + "/v1", apiKey: "wrong", maxRetries: 0 }).models.list();
} catch (error) {
  status = error instanceof OpenAI.AuthenticationError ? error.status : -1;
}
const models = (await client.models.list()).data.map((card) => card.id);
console.log(JSON.stringify({
  text: answer.choices[0].message.content, streamed, call: called.output[0].arguments, response: response.output_text,
  status, models,
}));
"""


def test_the_javascript_client_chats_streams_and_responds(tmp_path: Path) -> None:
    node, packages = shutil.which("node"), ROOT / ".venv-js" / "node_modules"
    if node is None or not (packages / "openai").is_dir():
        pytest.skip("no JavaScript client here: make js fetches it")

    async def use(router: Running) -> None:
        (tmp_path / "node_modules").symlink_to(packages)
        script = tmp_path / "client.mjs"
        script.write_text(SCRIPT, encoding="utf-8")
        told = json.loads(await output_of(str(node), str(script), ROUTER=router.url, ROUTER_KEY=KEY))
        assert told == {
            **dict.fromkeys(("text", "streamed", "response"), "I am good"),
            "call": '{"place": "text"}',
            "status": 401,
            "models": ["p2l-router", "auto"],
        }

    with_router(tmp_path, use)
