"""One agent loop of a Python client: `python loops.py CLIENT`, with ROUTER and ROUTER_KEY in the environment.

It prints the last text and the places that the tool was asked about, as JSON. It imports nothing of this project, since
clients have an environment of their own (`make clients`).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

URL, KEY = os.environ["ROUTER"], os.environ["ROUTER_KEY"]
CLAUDE = "claude-opus-4-7"
SYSTEM = "You watch birds. " + "Say where each of them stands. " * 100
QUESTION = "What do the ponds look like?"
SCHEMA: Any = {
    "type": "object",
    "properties": {"place": {"type": "string"}},
    "required": ["place"],
    "additionalProperties": False,
}
MARK = {"type": "ephemeral"}
places: list[str] = []


def look(place: str) -> str:
    """Look at a place."""
    places.append(place)
    return f"a heron at {place}"


async def with_openai() -> str:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    tools: Any = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    while True:
        answer = await client.chat.completions.create(model="auto", messages=messages, tools=tools)
        message = answer.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message)
        for call in message.tool_calls:
            result = look(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


async def with_anthropic() -> str:
    from anthropic import AsyncAnthropic

    client = AsyncAnthropic(base_url=URL, api_key=KEY, max_retries=0)
    request: Any = {"model": "auto", "max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    request["system"] = [{"type": "text", "text": SYSTEM, "cache_control": MARK}]
    request["tools"] = [{"name": "look", "input_schema": SCHEMA}]
    turns: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        message = await client.messages.create(messages=turns, **request)
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            return str(message.content[-1].text)
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": look(**call.input)} for call in calls]
        turns += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]


async def _with_pydantic_ai(model: Any) -> str:
    from pydantic_ai import Agent

    agent = Agent(model, instructions=SYSTEM)
    agent.tool_plain(look)
    return str((await agent.run(QUESTION)).output)


async def with_pydantic_ai_chat() -> str:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return await _with_pydantic_ai(OpenAIChatModel("auto", provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)))


async def with_pydantic_ai_responses() -> str:
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return await _with_pydantic_ai(
        OpenAIResponsesModel("auto", provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY))
    )


async def with_pydantic_ai_anthropic() -> str:
    from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
    from pydantic_ai.providers.anthropic import AnthropicProvider

    settings = AnthropicModelSettings(anthropic_cache_instructions=True, anthropic_cache_messages=True)
    provider = AnthropicProvider(api_key=KEY, base_url=URL)
    return await _with_pydantic_ai(AnthropicModel(CLAUDE, provider=provider, settings=settings))


async def with_openai_agents() -> str:
    from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool

    provider = OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)
    config = RunConfig(model_provider=provider, tracing_disabled=True)
    agent = Agent(name="Watcher", instructions=SYSTEM, model="auto", tools=[function_tool(look)])
    run = Runner.run_streamed(agent, QUESTION, run_config=config)
    async for _ in run.stream_events():
        pass
    return str(run.final_output)


async def _with_langchain(chat: Any, system: Any) -> str:
    function = {"name": "look", "description": "Look at a place.", "parameters": SCHEMA}
    calling = chat.bind_tools([{"type": "function", "function": function}])
    turns: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": QUESTION}]
    while True:
        message = await calling.ainvoke(turns)
        if not message.tool_calls:
            return str(message.text)
        turns.append(message)
        for call in message.tool_calls:
            turns.append({"role": "tool", "tool_call_id": call["id"], "content": look(**call["args"])})


async def with_langchain_chat() -> str:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(model="auto", base_url=f"{URL}/v1", api_key=KEY, max_retries=0)  # type: ignore[arg-type]
    return await _with_langchain(chat, SYSTEM)


async def with_langchain_responses() -> str:
    from langchain_openai import ChatOpenAI

    place: Any = {"base_url": f"{URL}/v1", "api_key": KEY}
    return await _with_langchain(ChatOpenAI(model="auto", use_responses_api=True, max_retries=0, **place), SYSTEM)


async def with_langchain_anthropic() -> str:
    from langchain_anthropic import ChatAnthropic

    chat: Any = ChatAnthropic(model=CLAUDE, base_url=URL, api_key=KEY, max_retries=0)
    return await _with_langchain(chat, [{"type": "text", "text": SYSTEM, "cache_control": MARK}])


CLIENTS: dict[str, Callable[[], Awaitable[str]]] = {
    "openai": with_openai,
    "anthropic": with_anthropic,
    "pydantic-ai-chat": with_pydantic_ai_chat,
    "pydantic-ai-responses": with_pydantic_ai_responses,
    "pydantic-ai-anthropic": with_pydantic_ai_anthropic,
    "openai-agents": with_openai_agents,
    "langchain-openai-chat": with_langchain_chat,
    "langchain-openai-responses": with_langchain_responses,
    "langchain-anthropic": with_langchain_anthropic,
}

if __name__ == "__main__":
    text = asyncio.run(CLIENTS[sys.argv[1]]())
    print(json.dumps({"text": text, "places": places}))
