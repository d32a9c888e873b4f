"""Streams of whole recorded answers, as each provider's protocol would send them: most recorded answers are whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.recorded.traffic import JSON, Exchange

_PIECES = 3
"""Pieces of each text."""


def streamed(exchange: Exchange) -> Exchange:
    """Return the same answer as a stream; raise LookupError where it has none, or none is written here."""
    events = list(_EVENTS[exchange.kind](exchange.answer))
    is_named = exchange.kind in ("anthropic", "openai-responses", "cohere")
    lines = (
        (f"event: {event['type']}\n" if is_named else "") + f"data: {json.dumps(event, ensure_ascii=False)}\n\n"
        for event in events
    )
    ending = "data: [DONE]\n\n" if exchange.kind == "openai-chat" else ""
    return replace(exchange, content_type="text/event-stream", response="".join(lines) + ending)


def pieces(text: str) -> Sequence[str]:
    """Return a text in pieces; no piece of an empty one."""
    size = -(-len(text) // _PIECES) or 1
    return [text[start : start + size] for start in range(0, len(text), size)]


def _anthropic(answer: JSON) -> Iterator[JSON]:
    usage = answer["usage"]
    message = {**answer, "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": {**message, "usage": {**usage, "output_tokens": 1}}}
    yield {"type": "ping"}
    for index, block in enumerate(answer["content"]):
        empty, deltas = _anthropic_block(block)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ending = {name: answer.get(name) for name in ("stop_reason", "stop_sequence", "container", "context_management")}
    yield {"type": "message_delta", "delta": ending, "usage": usage}
    yield {"type": "message_stop"}


def _anthropic_block(block: JSON) -> tuple[JSON, list[JSON]]:
    match block["type"]:
        case "text":
            citations = [{"type": "citations_delta", "citation": each} for each in block.get("citations") or []]
            texts = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
            return {"type": "text", "text": ""}, [*citations, *texts]
        case "thinking":
            thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
            signature = {"type": "signature_delta", "signature": block.get("signature", "")}
            return {"type": "thinking", "thinking": "", "signature": ""}, [*thoughts, signature]
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            arguments = ["", *pieces(json.dumps(block["input"]))] if block["input"] else [""]
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in arguments]
            return {**block, "input": {}}, deltas
        case _:
            return block, []


def _responses(answer: JSON) -> Iterator[JSON]:
    begun = {**answer, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(answer["output"]):
        place = {"output_index": index, "item_id": item.get("id")}
        empty = {**item, "status": "in_progress"}
        empty |= {name: [] for name in ("content", "summary") if isinstance(item.get(name), list)}
        empty |= {name: "" for name in ("arguments", "input") if isinstance(item.get(name), str)}
        yield {"type": "response.output_item.added", "output_index": index, "item": empty}
        for event in _response_item(item):
            yield {**place, **event}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    if answer.get("status") in ("queued", "in_progress"):
        raise LookupError("a response that is being made has no last event yet")
    ending = "incomplete" if answer.get("status") == "incomplete" else "completed"
    yield {"type": f"response.{ending}", "response": answer}


def _response_item(item: JSON) -> Iterator[JSON]:
    for kind, field in (("function_call_arguments", "arguments"), ("custom_tool_call_input", "input")):
        if item["type"] == kind.rpartition("_")[0] and isinstance(item.get(field), str):
            for piece in pieces(item[field]):
                yield {"type": f"response.{kind}.delta", "delta": piece}
            yield {"type": f"response.{kind}.done", field: item[field]}
    names = {"output_text": "output_text", "refusal": "refusal", "reasoning_text": "reasoning_text"}
    for index, part in enumerate(item.get("content") or []):
        name = names.get(part["type"])
        if name is None:
            continue
        text = part.get("text", part.get("refusal"))
        place = {"content_index": index}
        yield {"type": "response.content_part.added", **place, "part": {"type": part["type"], "text": ""}}
        for piece in pieces(text):
            yield {"type": f"response.{name}.delta", **place, "delta": piece}
        yield {"type": f"response.{name}.done", **place, "text": text}
        yield {"type": "response.content_part.done", **place, "part": part}
    # Of thoughts that are told in full the summary comes as well.
    for index, part in enumerate([] if item.get("content") else item.get("summary") or []):
        place = {"summary_index": index}
        yield {"type": "response.reasoning_summary_part.added", **place, "part": {**part, "text": ""}}
        for piece in pieces(part["text"]):
            yield {"type": "response.reasoning_summary_text.delta", **place, "delta": piece}
        yield {"type": "response.reasoning_summary_text.done", **place, "text": part["text"]}
        yield {"type": "response.reasoning_summary_part.done", **place, "part": part}


def _chat(answer: JSON) -> Iterator[JSON]:
    frame = {name: value for name, value in answer.items() if name not in ("choices", "usage")}
    frame["object"] = "chat.completion.chunk"

    def chunk(index: int, delta: JSON, finish: Any = None) -> JSON:
        return {**frame, "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}

    for number, choice in enumerate(answer["choices"]):
        index, message = choice.get("index", number), choice["message"]
        yield chunk(index, {"role": "assistant", "content": ""})
        for name in ("reasoning_content", "reasoning", "content", "refusal"):
            text = message.get(name)
            if name == "reasoning" and message.get("reasoning_content"):
                continue  # the same thoughts once more
            for piece in pieces(text) if isinstance(text, str) else [[part] for part in text or []]:
                yield chunk(index, {name: piece})
        for place, call in enumerate(message.get("tool_calls") or []):
            function = call["function"]
            arguments = function.get("arguments") or ""
            yield chunk(index, {"tool_calls": [{**call, "index": place, "function": {**function, "arguments": ""}}]})
            texts = pieces(arguments if isinstance(arguments, str) else json.dumps(arguments))
            for piece in texts:
                yield chunk(index, {"tool_calls": [{"index": place, "function": {"arguments": piece}}]})
        yield chunk(index, {}, choice.get("finish_reason"))
    yield {**frame, "choices": [], "usage": answer.get("usage")}


def _gemini(answer: JSON) -> Iterator[JSON]:
    [candidate, *_] = answer["candidates"]
    frame = {name: answer[name] for name in ("modelVersion", "responseId") if name in answer}
    content = candidate.get("content") or {}
    for part in content.get("parts") or []:
        for piece in pieces(part["text"]) if part.get("text") else [None]:
            told = part if piece is None else {**part, "text": piece}
            yield {**frame, "candidates": [{"content": {**content, "parts": [told]}, "index": 0}]}
    last = {**candidate, "content": {"role": "model", "parts": [{"text": ""}]}}
    yield {**answer, "candidates": [last]}


def _cohere(answer: JSON) -> Iterator[JSON]:
    message = answer["message"]
    empty = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
    yield {"type": "message-start", "id": answer["id"], "delta": {"message": empty}}
    for piece in pieces(message.get("tool_plan") or ""):
        yield {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": piece}}}
    for index, call in enumerate(message.get("tool_calls") or []):
        place = {"index": index}
        begun = {**call, "function": {**call["function"], "arguments": ""}}
        yield {"type": "tool-call-start", **place, "delta": {"message": {"tool_calls": begun}}}
        for piece in pieces(call["function"]["arguments"]):
            told = {"tool_calls": {"function": {"arguments": piece}}}
            yield {"type": "tool-call-delta", **place, "delta": {"message": told}}
        yield {"type": "tool-call-end", **place}
    for index, block in enumerate(message.get("content") or []):
        place, name = {"index": index}, block["type"]
        yield {"type": "content-start", **place, "delta": {"message": {"content": {"type": name, name: ""}}}}
        for piece in pieces(block[name]):
            yield {"type": "content-delta", **place, "delta": {"message": {"content": {name: piece}}}}
        yield {"type": "content-end", **place}
    yield {"type": "message-end", "delta": {"finish_reason": answer["finish_reason"], "usage": answer["usage"]}}


_EVENTS: Mapping[str, Callable[[JSON], Iterator[JSON]]] = {
    "anthropic": _anthropic,
    "openai-responses": _responses,
    "openai-chat": _chat,
    "gemini": _gemini,
    "cohere": _cohere,
}
