"""What goes over the wire to providers that do not speak as OpenAI does, and what comes back."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from coeval.calling.calls import CallError, Reason, Reply
from coeval.calling.limits import Retries
from tests.coeval.calling.calling_helpers import call, caller_of, model_at, replies

OPENAI = {
    "choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 11, "completion_tokens": 3},
}
ANTHROPIC = {
    "content": [{"type": "text", "text": "Hi."}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 11, "output_tokens": 3},
}
GEMINI = {
    "candidates": [{"content": {"parts": [{"text": "Hi."}]}, "finishReason": "STOP"}],
    "usageMetadata": {"promptTokenCount": 11, "candidatesTokenCount": 3},
}


class Wire:
    """A server that answers everything alike and remembers what came."""

    def __init__(self) -> None:
        self.answer: Any = OPENAI
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.url = ""


@pytest.fixture
def wire() -> Iterator[Wire]:
    found = Wire()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.asked.append((self.path, {key.lower(): value for key, value in self.headers.items()}, body))
            text = json.dumps(found.answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}"
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def test_anthropic(tmp_path: Path, wire: Wire) -> None:
    wire.answer = ANTHROPIC
    model = model_at(wire.url, interface="anthropic", system_prompt="Be brief.", device="cpu")
    reply = replies(caller_of(tmp_path), [call(model)])[0]
    assert isinstance(reply, Reply)
    assert (reply.text, reply.prompt_tokens, reply.completion_tokens) == ("Hi.", 11, 3)
    path, headers, body = wire.asked[0]
    assert (path, headers["x-api-key"]) == ("/v1/messages", "a-key-of-ours")
    assert (body["max_tokens"], body["system"], body["model"]) == (1024, "Be brief.", "ant-1")
    assert "device" not in body


def test_gemini(tmp_path: Path, wire: Wire) -> None:
    wire.answer = GEMINI
    reply = replies(caller_of(tmp_path), [call(model_at(wire.url, interface="gemini", max_output_tokens=64))])[0]
    assert isinstance(reply, Reply)
    assert (reply.text, reply.prompt_tokens, reply.completion_tokens) == ("Hi.", 11, 3)
    path, _, body = wire.asked[0]
    assert path == "/models/ant-1:generateContent"
    assert body["generationConfig"] == {"temperature": 0.7, "maxOutputTokens": 64}


def test_azure(tmp_path: Path, wire: Wire) -> None:
    options = {"api_version": "2024-08-01-preview"}
    reply = replies(caller_of(tmp_path), [call(model_at(wire.url, interface="azure_openai", account=options))])[0]
    assert isinstance(reply, Reply)
    path, headers, _ = wire.asked[0]
    assert path == "/openai/deployments/ant-1/chat/completions?api-version=2024-08-01-preview"
    assert headers["api-key"] == "a-key-of-ours"


@pytest.mark.parametrize(
    ("choice", "why"),
    [
        ({"message": {"content": None}, "finish_reason": "stop"}, "the answer is empty"),
        ({"message": {"content": ""}, "finish_reason": "length"}, "its limit of tokens is too low"),
        ({"message": {"content": "Hi"}, "finish_reason": "content_filter"}, "filter withheld the answer"),
        ({"message": {"content": "Hi"}, "finish_reason": "error"}, "the answer broke off"),
        ({}, "without a message"),
    ],
)
def test_an_answer_that_is_not_whole_is_none(tmp_path: Path, wire: Wire, choice: dict[str, Any], why: str) -> None:
    wire.answer = {**OPENAI, "choices": [choice]}
    caller = caller_of(tmp_path, cache=True, retries=Retries(attempts=1))
    failed = replies(caller, [call(model_at(wire.url))])[0]
    assert isinstance(failed, CallError)
    assert failed.reason is Reason.FAILED
    assert why in str(failed)
    assert not (tmp_path / "cache.sqlite").exists()


@pytest.mark.parametrize(
    ("content", "text"),
    [("  Hi.\n", "Hi."), ([{"type": "thinking", "thinking": []}, {"type": "text", "text": "Hi."}], "Hi.")],
)
def test_the_text_of_an_answer_is_stripped_of_all_else(tmp_path: Path, wire: Wire, content: Any, text: str) -> None:
    wire.answer = {"choices": [{"message": {"content": content}}]}
    reply = replies(caller_of(tmp_path), [call(model_at(wire.url))])[0]
    assert isinstance(reply, Reply)
    assert (reply.text, reply.counted) == (text, False)


@pytest.mark.parametrize("interface", ["answers", "benchmark"])
def test_an_interface_without_a_client_is_named(tmp_path: Path, interface: str) -> None:
    failed = replies(caller_of(tmp_path), [call(model_at("http://x", interface=interface))])[0]
    assert isinstance(failed, CallError)
    assert failed.reason is Reason.FATAL
    assert interface in str(failed)


SCHEMA = {
    "type": "object",
    "properties": {"clarity": {"type": "string", "enum": ["High", "Medium", "Low"]}},
    "required": ["clarity"],
    "additionalProperties": False,
}
VERDICT = '{"clarity": "High"}'


@pytest.mark.parametrize(
    ("interface", "answer", "place", "form"),
    [
        (
            "openai",
            {"choices": [{"message": {"content": VERDICT}, "finish_reason": "stop"}]},
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}},
        ),
        (
            "anthropic",
            {**ANTHROPIC, "content": [{"type": "text", "text": VERDICT}]},
            "output_config",
            {"format": {"type": "json_schema", "schema": SCHEMA}},
        ),
        (
            "gemini",
            {**GEMINI, "candidates": [{"content": {"parts": [{"text": VERDICT}]}, "finishReason": "STOP"}]},
            "generationConfig",
            {"temperature": 0.0, "responseMimeType": "application/json", "responseJsonSchema": SCHEMA},
        ),
        (
            "bedrock",
            {
                "output": {
                    "message": {
                        "role": "assistant",
                        "content": [{"toolUse": {"toolUseId": "t1", "name": "answer", "input": {"clarity": "High"}}}],
                    }
                },
                "stopReason": "tool_use",
                "usage": {"inputTokens": 11, "outputTokens": 3},
            },
            "toolConfig",
            {
                "tools": [
                    {
                        "toolSpec": {
                            "name": "answer",
                            "description": "Gives the answer.",
                            "inputSchema": {"json": SCHEMA},
                        }
                    }
                ],
                "toolChoice": {"tool": {"name": "answer"}},
            },
        ),
    ],
)
def test_a_verdict_is_asked_for_in_the_form_that_a_provider_has(
    tmp_path: Path, wire: Wire, interface: str, answer: dict[str, Any], place: str, form: dict[str, Any]
) -> None:
    wire.answer = answer
    model = model_at(wire.url, interface=interface)
    plain, held = replies(caller_of(tmp_path), [call(model), call(model, role="judge", schema=SCHEMA)])
    assert isinstance(plain, Reply)
    assert isinstance(held, Reply)
    assert json.loads(held.text) == {"clarity": "High"}
    (body,) = (body for _, _, body in wire.asked if "clarity" in json.dumps(body))
    assert body[place] == form


def test_a_form_that_users_ask_for_themselves_is_left_to_them(tmp_path: Path, wire: Wire) -> None:
    own = {"type": "json_object"}
    models = [model_at(wire.url, response_format=own), model_at(wire.url, name="bee", response_format=None)]
    replies(caller_of(tmp_path), [call(model, role="judge", schema=SCHEMA) for model in models])
    forms = {body["model"]: body.get("response_format") for _, _, body in wire.asked}
    assert forms == {"ant-1": own, "bee-1": None}
