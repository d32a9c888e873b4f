"""The router in a process of its own, asked by Anthropic's official client; providers and scores on the loopback."""

from __future__ import annotations

import http.server
import json
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx2
import pydantic
import pytest

from tests.e2e.test_router import a_process, write

COEFS = {"good": 2.0, "fair": 1.0, "poor": 0.0}
COSTS = {"good": 3.0, "fair": 2.0, "poor": 1.0}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
HELLO: dict[str, Any] = {"model": "-", "max_tokens": 64, "messages": [{"role": "user", "content": "hello there"}]}
TOOL: Any = {
    "name": "weather",
    "description": "of a town",
    "input_schema": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
}
CUT = object()
"""In a list of deltas: the connection ends here."""


@dataclass
class Upstream:
    """Every provider, and the P2L endpoint: what they will say and what they were asked."""

    replies: dict[str, deque[Any]] = field(default_factory=lambda: {name: deque() for name in COEFS})
    """By model: a status, a message, or the deltas of a stream; `I am NAME` when there is none."""
    bodies: list[dict[str, Any]] = field(default_factory=list)


class Handler(http.server.BaseHTTPRequestHandler):
    """Speaks for the `Upstream` of its server."""

    def do_GET(self) -> None:
        self.answer({"likelihood": "grk", "revision": "r", "models": list(COEFS)})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/predict":
            self.answer({"coefs": list(COEFS.values()), "eta": 0.0, "truncated": False, "revision": "r"})
            return
        upstream: Upstream = self.server.upstream  # type: ignore[attr-defined]
        upstream.bodies.append(body)
        waiting = upstream.replies[body["model"]]
        default = [{"content": "I am "}, {"content": body["model"]}] if body.get("stream") else {}
        reply = waiting.popleft() if waiting else default
        if isinstance(reply, int):
            self.answer({"error": {"message": "not now", "type": "server_error"}}, reply)
        elif isinstance(reply, list):
            self.stream(reply)
        else:
            self.complete({"content": f"I am {body['model']}", **reply})

    def complete(self, message: dict[str, Any]) -> None:
        finish = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
        self.answer({"id": "c", "object": "chat.completion", "created": 1, "choices": [choice], "usage": USAGE})

    def stream(self, deltas: list[Any]) -> None:
        self.begin("text/event-stream", 200)
        finish = "tool_calls" if any("tool_calls" in delta for delta in deltas if delta is not CUT) else "stop"
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas if delta is not CUT]
        chunks: list[Any] = [{"id": "c", "choices": [choice]} for choice in choices]
        if CUT not in deltas:
            chunks.append({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
            chunks.append({"id": "c", "choices": [], "usage": USAGE})
        for chunk in chunks:
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        if CUT not in deltas:
            self.wfile.write(b"data: [DONE]\n\n")

    def answer(self, body: Any, status: int = 200) -> None:
        self.begin("application/json", status)
        self.wfile.write(json.dumps(body).encode())

    def begin(self, kind: str, status: int) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@dataclass
class Setting:
    """What a test works with."""

    url: str
    client: anthropic.Anthropic
    upstream: Upstream

    def will(self, model: str, *replies: Any) -> None:
        """Let a provider answer its next requests so."""
        self.upstream.replies[model].extend(replies)

    @property
    def sent(self) -> dict[str, Any]:
        """What came to a provider last."""
        return self.upstream.bodies[-1]

    def ask(self, **fields: Any) -> anthropic.types.Message:
        return self.client.messages.create(**HELLO | fields)

    def lines(self, **fields: Any) -> tuple[list[str], httpx2.Response]:
        """The types of a stream's events as they are on the wire, and the response."""
        body = {**HELLO, "stream": True, **fields}
        response = httpx2.post(f"{self.url}/v1/messages", json=body, headers={"x-api-key": "k"}, timeout=30)
        named = [line[7:] for line in response.text.splitlines() if line.startswith("event: ")]
        told = [json.loads(line[6:])["type"] for line in response.text.splitlines() if line.startswith("data: ")]
        assert named == told
        return named, response


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Upstream]]:
    """One router for all tests here, and what is behind it."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.upstream = Upstream()  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = f"http://127.0.0.1:{server.server_port}"
        models = {
            name: {"name": name, "type": "openai", "base_url": f"{there}/v1", "api_key": "u", "cost": cost}
            for name, cost in COSTS.items()
        }
        config = write(tmp_path_factory.mktemp("router"), models, breaker={"failures": 100}, retry_seconds=0)
        flags = ("--router-type", "grk-endpoint", "--cost-optimizer", "strict", "--router-model-endpoint", there)
        more = ("--host", "127.0.0.1", "--api-key", "k", "--max-body-mb", "0.125")
        with a_process(config, *flags, *more) as (url, _):
            yield url, server.upstream  # type: ignore[attr-defined]
        server.shutdown()


@pytest.fixture
def setting(router: tuple[str, Upstream]) -> Iterator[Setting]:
    url, upstream = router
    with anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as client:
        yield Setting(url, client, upstream)
    assert not any(upstream.replies.values()), "not all replies were asked for"


def test_a_plain_message(setting: Setting) -> None:
    answered = setting.client.messages.with_raw_response.create(**HELLO)
    message = answered.parse()
    assert (message.model, message.role, message.type) == ("good", "assistant", "message")
    assert [block.text for block in message.content if block.type == "text"] == ["I am good"]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (5, 2, 3)
    assert (answered.headers["x-p2l-model"], answered.headers["x-p2l-cost"]) == ("good", "3")
    assert message._request_id == answered.headers["x-request-id"]
    assert message.model_extra is not None
    assert set(message.model_extra["router_outputs"]) == set(COEFS)


def test_what_the_request_says_reaches_the_provider(setting: Setting) -> None:
    block = {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    setting.ask(
        system=[block],
        messages=[{"role": "user", "content": [{"type": "text", "text": "see"}, image]}],
        stop_sequences=["###"],
        metadata={"user_id": "u"},
        extra_body={"cost": 2, "seed": 4, "temperature": 0, "top_p": 0.5},
    )
    sent = setting.sent
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]
    assert sent.pop("messages") == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": parts}]
    expected = {"model": "fair", "max_tokens": 64, "temperature": 0, "top_p": 0.5, "stop": ["###"], "user": "u"}
    assert sent == {**expected, "seed": 4}


def test_a_stream(setting: Setting) -> None:
    with setting.client.messages.stream(**HELLO) as stream:
        assert "".join(stream.text_stream) == "I am good"
        message = stream.get_final_message()
    assert (message.model, message.stop_reason) == ("good", "end_turn")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 3)
    assert message.model_extra is not None
    assert message.model_extra["router_decision"]["attempts"] == ["good"]
    kinds, response = setting.lines()
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-p2l-model"] == "good"


def test_create_with_stream(setting: Setting) -> None:
    events = list(setting.client.messages.create(**HELLO, stream=True))
    assert events[0].type == "message_start"
    assert events[-1].type == "message_stop"


def called(identifier: str, town: str) -> dict[str, Any]:
    function = {"name": "weather", "arguments": json.dumps({"town": town})}
    return {"id": identifier, "type": "function", "function": function}


def test_tools_and_their_results(setting: Setting) -> None:
    setting.will("good", {"content": None, "tool_calls": [called("a", "Rome"), called("b", "Oslo")]})
    choice: Any = {"type": "any", "disable_parallel_tool_use": False}
    message = setting.ask(tools=[TOOL], tool_choice=choice)
    assert message.stop_reason == "tool_use"
    uses = [block for block in message.content if block.type == "tool_use"]
    assert [(use.id, use.name, use.input) for use in uses] == [
        ("a", "weather", {"town": "Rome"}),
        ("b", "weather", {"town": "Oslo"}),
    ]
    assert (setting.sent["tool_choice"], setting.sent["tools"][0]["function"]["name"]) == ("required", "weather")
    results: Any = [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"} for use in uses]
    turns = [
        *HELLO["messages"],
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
    assert setting.ask(tools=[TOOL], messages=turns).stop_reason == "end_turn"
    _, mine, *tools = setting.sent["messages"]
    assert [json.loads(call["function"]["arguments"])["town"] for call in mine["tool_calls"]] == ["Rome", "Oslo"]
    assert tools == [{"role": "tool", "tool_call_id": name, "content": "sunny"} for name in ("a", "b")]


def test_tools_in_a_stream(setting: Setting) -> None:
    def piece(index: int, **fields: Any) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, **fields}]}

    begun = [{"id": name, "function": {"name": "weather", "arguments": ""}} for name in ("a", "b")]
    pieces = ['{"to', 'wn": "Ro', 'me"}']
    first = [piece(0, **begun[0]), *(piece(0, function={"arguments": text}) for text in pieces)]
    second = [piece(1, **begun[1]), piece(1, function={"arguments": '{"town": "Oslo"}'})]
    setting.will("good", [{"content": "Let me see"}, *first, *second])
    with setting.client.messages.stream(**HELLO, tools=[TOOL]) as stream:
        partial = [event.partial_json for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    assert partial == [*pieces, '{"town": "Oslo"}']
    assert message.stop_reason == "tool_use"
    assert [block.to_dict().get("input") for block in message.content] == [None, {"town": "Rome"}, {"town": "Oslo"}]


class Town(pydantic.BaseModel):
    name: str


def test_an_answer_of_a_schema(setting: Setting) -> None:
    setting.will("good", {"content": '{"name": "Rome"}'})
    message = setting.client.messages.parse(**HELLO, output_format=Town)
    assert message.parsed_output == Town(name="Rome")
    assert "name" in setting.sent["response_format"]["json_schema"]["schema"]["properties"]


def test_a_budget_and_a_model_by_name(setting: Setting) -> None:
    assert setting.ask(extra_headers={"x-p2l-cost": "1"}).model == "poor"
    assert setting.ask(extra_body={"cost": 2.5}).model == "fair"
    assert setting.ask(extra_body={"direct_model": "poor"}).model == "poor"


@pytest.mark.parametrize(
    ("fields", "error", "kind", "says"),
    [
        ({"extra_body": {"cost": 0.5}}, anthropic.BadRequestError, "invalid_request_error", "cheapest model costs 1"),
        ({"extra_body": {"direct_model": "x"}}, anthropic.NotFoundError, "not_found_error", "no model 'x'"),
        ({"messages": []}, anthropic.BadRequestError, "invalid_request_error", "messages: "),
        ({"system": "x" * 200_000}, anthropic.RequestTooLargeError, "request_too_large", "larger than 0.125 MiB"),
    ],
)
def test_what_is_refused(setting: Setting, fields: Any, error: Any, kind: str, says: str) -> None:
    before = len(setting.upstream.bodies)
    with pytest.raises(error) as caught:
        setting.ask(**fields)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == kind
    assert says in caught.value.body["error"]["message"]
    assert caught.value.request_id
    assert len(setting.upstream.bodies) == before


def test_keys_come_either_way_or_not_at_all(setting: Setting) -> None:
    with anthropic.Anthropic(base_url=setting.url, auth_token="k", max_retries=0) as client:
        assert client.messages.create(**HELLO).model == "good"
    with pytest.raises(anthropic.AuthenticationError) as caught:
        setting.client.with_options(api_key="no").messages.create(**HELLO)
    assert caught.value.body["error"]["type"] == "authentication_error"  # type: ignore[index,call-overload]
    told = httpx2.post(f"{setting.url}/v1/messages", json=HELLO)
    assert (told.status_code, told.json()["error"]["type"]) == (401, "authentication_error")


def test_another_model_takes_over(setting: Setting) -> None:
    setting.will("good", 503)
    message = setting.ask()
    assert (message.model, message.content[0].to_dict()["text"]) == ("fair", "I am fair")
    setting.will("good", 503)
    setting.will("fair", 500)
    with setting.client.messages.stream(**HELLO) as stream:
        assert stream.get_final_message().model == "poor"


def test_when_nobody_answers(setting: Setting) -> None:
    for name in COEFS:
        setting.will(name, 503)
    with pytest.raises(anthropic.InternalServerError) as caught:
        setting.ask()
    assert caught.value.status_code == 502
    assert caught.value.body["error"]["type"] == "api_error"  # type: ignore[index,call-overload]


def test_a_refusal_of_the_request_is_told_before_a_stream_begins(setting: Setting) -> None:
    for model in ("good", "fair"):  # one alone may be wrong, and is not believed
        setting.will(model, 400)
    with pytest.raises(anthropic.BadRequestError), setting.client.messages.stream(**HELLO):
        pass


def test_a_stream_that_breaks_off_ends_with_an_error(setting: Setting) -> None:
    broken = [{"content": "I am"}, CUT]
    setting.will("good", broken, broken)
    heard = []
    with pytest.raises(anthropic.APIStatusError) as caught, setting.client.messages.stream(**HELLO) as stream:
        heard += stream.text_stream
    assert heard == ["I am"]
    assert caught.value.body["error"]["type"] == "api_error"  # type: ignore[index,call-overload]
    kinds, _ = setting.lines()
    assert kinds[-1] == "error"
    assert not {"message_delta", "message_stop", "content_block_stop"} & set(kinds)


def test_calls_whose_pieces_a_model_mixes_up_arrive_whole(setting: Setting) -> None:
    begun = [{"index": n, "id": f"c{n}", "function": {"name": "weather", "arguments": "{"}} for n in range(2)]
    ends = [{"index": n, "function": {"arguments": "}"}} for n in range(2)]
    setting.will("good", [{"tool_calls": [call]} for call in (*begun, *ends)])
    with setting.client.messages.stream(**HELLO, tools=[TOOL]) as stream:
        message = stream.get_final_message()
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [(call.id, call.name, call.input) for call in calls] == [("c0", "weather", {}), ("c1", "weather", {})]
    assert message.stop_reason == "tool_use"


def test_messages_are_in_the_same_books(setting: Setting) -> None:
    def answered() -> float:
        lines = httpx2.get(f"{setting.url}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith('p2l_router_cost_total{model="poor"}'))

    before = answered()
    message = setting.ask(extra_body={"cost": 1})
    assert answered() == before + 1
    vote = {"request_id": message._request_id, "thumbs": "up"}
    told = httpx2.post(f"{setting.url}/v1/feedback", json=vote, headers={"x-api-key": "k"})
    assert (told.status_code, told.json().get("models")) == (200, ["poor"])
