"""A provider that asks its client for a tool three times, in each of three protocols, and keeps what it received.

It speaks chat completions, Anthropic's messages and OpenAI's responses, whole and as streams. Each round asks for the
tool of the client's own that `_CALLS` has the arguments of; after three results the answer is `DONE`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from route.providers.base import JSON

DONE = "All three notes are read."
ROUNDS = 3
THOUGHT = "The next note may say more."
SIGNATURE = "c2lnbmVkLWJ5LXRoZS1wcm92aWRlcg=="
"""Of Anthropic's thoughts, and the encrypted ones of OpenAI's reasoning."""


@dataclass
class Received:
    """One request for an answer."""

    protocol: str
    """`chat`, `messages` or `responses`."""
    body: JSON
    headers: Mapping[str, str]

    @property
    def turns(self) -> list[JSON]:
        """Its conversation, in the protocol's own form."""
        return list(self.body["input" if self.protocol == "responses" else "messages"])

    @property
    def results(self) -> int:
        """How many results of tools it holds."""
        return json.dumps(self.turns).count(_MARK_OF_RESULT[self.protocol])


_MARK_OF_RESULT = {"chat": '"role": "tool"', "messages": '"type": "tool_result"', "responses": '_output"'}


@dataclass
class Provider:
    """What came, and what the client's tools are asked for."""

    folder: str = ""
    """Where the notes are that clients with tools of their own shall read."""
    received: list[Received] = field(default_factory=list)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/messages", self._messages)
        app.router.add_post("/v1/responses", self._responses)
        app.router.add_post("/v1/messages/count_tokens", self._count)
        return app

    async def _take(self, request: web.Request, protocol: str) -> tuple[Received, JSON | None]:
        received = Received(protocol, await request.json(), dict(request.headers))
        if received.body.get("tools"):  # without tools it is a title or a summary, beside the conversation
            self.received.append(received)
        return received, self._call(received)

    def _call(self, received: Received) -> JSON | None:
        """Return the next call of a tool; None for the last answer."""
        number = received.results + 1
        if number > ROUNDS:
            return None
        names = _tool_names(received.body.get("tools") or [])
        note = f"{self.folder}/note{number}.txt"
        arguments: dict[str, JSON] = {
            "look": {"place": f"pond {number}"},
            "Read": {"file_path": note},
            "exec_command": {"cmd": f"cat {note}"},
            "shell": {"command": ["cat", note]},
            "shell_command": {"command": f"cat {note}"},
        }
        name = next((name for name in arguments if name in names), None)
        return None if name is None else {"id": f"call_{number}", "name": name, "arguments": arguments[name]}

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        received, call = await self._take(request, "chat")
        message: JSON = {"role": "assistant", "reasoning_content": THOUGHT, "content": None if call else DONE}
        if call:
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
            message["tool_calls"] = [{"id": call["id"], "type": "function", "function": function}]
        finish = "tool_calls" if call else "stop"
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        frame: JSON = {"id": f"chatcmpl-{received.results}", "created": 1, "model": received.body["model"]}
        if not received.body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": finish}
            return web.json_response({**frame, "object": "chat.completion", "choices": [choice], "usage": usage})
        deltas: list[JSON] = [{"role": "assistant", "reasoning_content": THOUGHT}]
        for piece in message.get("tool_calls") or []:
            deltas.append({"tool_calls": [{"index": 0, **piece}]})
        if not call:
            deltas.append({"content": DONE})
        frame["object"] = "chat.completion.chunk"
        choices: list[JSON] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": finish})
        chunks = [{**frame, "choices": [choice]} for choice in choices] + [{**frame, "choices": [], "usage": usage}]
        return await _streamed(request, [(None, chunk) for chunk in chunks], ending=b"data: [DONE]\n\n")

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        received, call = await self._take(request, "messages")
        blocks: list[JSON] = []
        if (received.body.get("thinking") or {}).get("type") in ("enabled", "adaptive"):
            blocks.append({"type": "thinking", "thinking": THOUGHT, "signature": SIGNATURE})
        if call:
            blocks.append({"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["arguments"]})
        else:
            blocks.append({"type": "text", "text": DONE})
        usage = {"input_tokens": 9, "output_tokens": 3}
        message: JSON = {
            "id": f"msg_{received.results}",
            "type": "message",
            "role": "assistant",
            "model": received.body["model"],
        }
        message |= {"content": blocks, "stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
        message |= {"usage": usage}
        if not received.body.get("stream"):
            return web.json_response(message)
        events: list[JSON] = [{"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}]
        for index, block in enumerate(blocks):
            events += _events_of(index, block)
        ending = {"stop_reason": message["stop_reason"], "stop_sequence": None}
        events += [{"type": "message_delta", "delta": ending, "usage": usage}, {"type": "message_stop"}]
        return await _streamed(request, [(event["type"], event) for event in events])

    async def _count(self, _: web.Request) -> web.Response:
        return web.json_response({"input_tokens": 9})

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        received, call = await self._take(request, "responses")
        number = received.results + 1
        reasoning: JSON = {"type": "reasoning", "id": f"rs_{number}", "encrypted_content": SIGNATURE}
        reasoning["summary"] = [{"type": "summary_text", "text": THOUGHT}]
        if call:
            item: JSON = {"type": "function_call", "id": f"fc_{number}", "call_id": call["id"], "name": call["name"]}
            item |= {"arguments": json.dumps(call["arguments"]), "status": "completed"}
        else:
            text = {"type": "output_text", "text": DONE, "annotations": []}
            item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
        response: JSON = {"id": f"resp_{number}", "object": "response", "created_at": 1, "status": "completed"}
        response |= {"model": received.body["model"], "output": [reasoning, item], "parallel_tool_calls": True}
        response |= {"tool_choice": "auto", "tools": [], "error": None, "incomplete_details": None}
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 1}}
        response["usage"] = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12, **details}
        if not received.body.get("stream"):
            return web.json_response(response)
        begun = {**response, "status": "in_progress", "output": [], "usage": None}
        events: list[JSON] = [{"type": "response.created", "response": begun}]
        for index, each in enumerate(response["output"]):
            events += _response_events_of(index, each)
        events.append({"type": "response.completed", "response": response})
        numbered = [{**event, "sequence_number": place} for place, event in enumerate(events)]
        return await _streamed(request, [(event["type"], event) for event in numbered])


def _tool_names(tools: list[JSON]) -> set[str]:
    names = {str((tool.get("function") or tool).get("name")) for tool in tools}
    for tool in tools:
        names |= _tool_names(tool.get("tools") or [])  # of a namespace
    return names


def _events_of(index: int, block: JSON) -> list[JSON]:
    """Return the events of one block of a message."""
    deltas: list[JSON]
    match block["type"]:
        case "thinking":
            empty = {**block, "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        case "tool_use":
            empty = {**block, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        case _:
            empty = {**block, "text": ""}
            deltas = [{"type": "text_delta", "text": block["text"]}]
    begin = {"type": "content_block_start", "index": index, "content_block": empty}
    pieces = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [begin, *pieces, {"type": "content_block_stop", "index": index}]


def _response_events_of(index: int, item: JSON) -> list[JSON]:
    """Return the events of one item of a response."""
    place = {"item_id": item["id"], "output_index": index}
    pieces: list[JSON] = []
    empty = dict(item)
    match item["type"]:
        case "function_call":
            empty["arguments"] = ""
            begin = "response.function_call_arguments"
            pieces.append({"type": f"{begin}.delta", **place, "delta": item["arguments"]})
            done = {"arguments": item["arguments"], "name": item["name"]}
            pieces.append({"type": f"{begin}.done", **place, **done})
        case "message":
            empty["content"] = []
            [part] = item["content"]
            place |= {"content_index": 0}
            pieces.append({"type": "response.content_part.added", **place, "part": {**part, "text": ""}})
            pieces.append({"type": "response.output_text.delta", **place, "delta": part["text"], "logprobs": []})
            pieces.append({"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []})
            pieces.append({"type": "response.content_part.done", **place, "part": part})
        case "reasoning":
            empty["summary"] = []
            [part] = item["summary"]
            place |= {"summary_index": 0}
            begin = "response.reasoning_summary"
            pieces.append({"type": f"{begin}_part.added", **place, "part": {**part, "text": ""}})
            pieces.append({"type": f"{begin}_text.delta", **place, "delta": part["text"]})
            pieces.append({"type": f"{begin}_text.done", **place, "text": part["text"]})
            pieces.append({"type": f"{begin}_part.done", **place, "part": part})
    added = {"type": "response.output_item.added", "output_index": index, "item": empty}
    return [added, *pieces, {"type": "response.output_item.done", "output_index": index, "item": item}]


async def _streamed(
    request: web.Request, events: list[tuple[str | None, Any]], *, ending: bytes = b""
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for name, event in events:
        head = "" if name is None else f"event: {name}\n"
        await response.write(f"{head}data: {json.dumps(event)}\n\n".encode())
    await response.write(ending)
    return response
