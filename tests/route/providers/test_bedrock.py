"""Bedrock's Converse API both ways, signed by us and by AWS's own client."""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import zlib
from typing import Any

import pytest
from aiohttp import web
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from p2l.common.errors import ConfigError
from route.providers.accounts import account_for, make_provider
from route.providers.base import JSON, Account, Fault, ProviderError
from route.providers.bedrock import converse_request
from tests.route.providers.servers import (
    KEY,
    PATIENT,
    QUICK,
    REQUEST,
    answering,
    asking,
    collected,
    failure,
    run,
    serving,
    streaming,
)

pytest.importorskip("botocore")
REGION, OPTIONS = (
    "eu-west-1",
    {"region": "eu-west-1", "access_key_id": "AKIDEXAMPLE", "secret_access_key": "hidden-secret"},
)
MODEL = "anthropic.claude-3-5-sonnet-20240620-v1:0"
BINARY = "application/vnd.amazon.eventstream"
USAGE = {"inputTokens": 5, "outputTokens": 3, "totalTokens": 8}
ANSWER: JSON = {
    "output": {"message": {"role": "assistant", "content": [{"text": "Grey "}, {"text": "herons."}]}},
    "stopReason": "end_turn",
    "usage": USAGE,
    "metrics": {"latencyMs": 3},
}


def event(name: str, content: JSON, kind: str = "event") -> bytes:
    """A message of AWS's binary streams."""
    named = {":event-type": name} if kind == "event" else {":exception-type": name}
    texts = {**named, ":content-type": "application/json", ":message-type": kind}
    headers = b"".join(
        struct.pack("!B", len(key)) + key.encode() + struct.pack("!BH", 7, len(text)) + text.encode()
        for key, text in texts.items()
    )
    payload = json.dumps(content).encode()
    start = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    whole = start + struct.pack("!I", zlib.crc32(start)) + headers + payload
    return whole + struct.pack("!I", zlib.crc32(whole))


STREAM = [
    event("messageStart", {"role": "assistant"}),
    event("contentBlockDelta", {"delta": {"reasoningContent": {"text": "Hm."}}, "contentBlockIndex": 0}),
    event("contentBlockDelta", {"delta": {"text": "Grey "}, "contentBlockIndex": 1}),
    event("contentBlockDelta", {"delta": {"text": "herons."}, "contentBlockIndex": 1}),
    event("contentBlockStop", {"contentBlockIndex": 1}),
    event(
        "contentBlockStart",
        {"start": {"toolUse": {"toolUseId": "t1", "name": "look"}}, "contentBlockIndex": 2},
    ),
    event("contentBlockDelta", {"delta": {"toolUse": {"input": '{"at"'}}, "contentBlockIndex": 2}),
    event("contentBlockDelta", {"delta": {"toolUse": {"input": ': "sky"}'}}, "contentBlockIndex": 2}),
    event("messageStop", {"stopReason": "tool_use"}),
    event("metadata", {"usage": USAGE, "metrics": {"latencyMs": 3}}),
]


def test_a_request_is_translated() -> None:
    call = {"id": "call 1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, image("data:image/png;base64,QUJD")]},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call 1", "content": "A heron."},
    ]
    tool = {"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}}
    body = converse_request(
        {
            "model": MODEL,
            "messages": messages,
            "temperature": 0,
            "max_tokens": 9,
            "stop": "END",
            "tools": [tool],
            "tool_choice": "required",
            "top_k": 3,
            "seed": 1,
        }
    )
    use = {"toolUseId": "call_1", "name": "look", "input": {"at": "sky"}}
    assert body == {
        "system": [{"text": "Be brief."}],
        "messages": [
            {
                "role": "user",
                "content": [{"text": "What is it?"}, {"image": {"format": "png", "source": {"bytes": "QUJD"}}}],
            },
            {"role": "assistant", "content": [{"text": "Let me see."}, {"toolUse": use}]},
            {"role": "user", "content": [{"toolResult": {"toolUseId": "call_1", "content": [{"text": "A heron."}]}}]},
        ],
        "inferenceConfig": {"temperature": 0, "maxTokens": 9, "stopSequences": ["END"]},
        "toolConfig": {
            "tools": [{"toolSpec": {"name": "look", "description": "d", "inputSchema": {"json": {"type": "object"}}}}],
            "toolChoice": {"any": {}},
        },
        "additionalModelRequestFields": {"top_k": 3},
    }


def image(url: str) -> JSON:
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"logprobs": True},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        {"messages": [{"role": "user", "content": [image("https://x/y.png")]}]},
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        {"tools": [{"type": "web_search"}]},
    ],
)
def test_what_has_no_counterpart_is_left_to_another_model(fields: JSON) -> None:
    with pytest.raises(ProviderError) as caught:
        converse_request({**REQUEST, **fields})
    assert caught.value.fault is Fault.UNSUPPORTED


def expected_signature(request: web.Request, url: str, body: bytes) -> str:
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    auth = SigV4Auth(Credentials(OPTIONS["access_key_id"], OPTIONS["secret_access_key"]), "bedrock", REGION)
    signed = request.headers["Authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    headers = {name: request.headers[name] for name in signed if name != "host"}
    again = AWSRequest(request.method, url, data=body, headers=headers)
    again.context["timestamp"] = request.headers["X-Amz-Date"]
    return str(auth.signature(auth.string_to_sign(again, auth.canonical_request(again)), again))


def test_requests_are_signed_and_translated_as_by_the_official_client() -> None:
    """One server, which checks signatures, for AWS's client and ours."""
    boto3 = pytest.importorskip("boto3")

    async def handle(request: web.Request) -> web.StreamResponse:
        url = f"http://{request.headers['Host']}{request.raw_path}"
        right = expected_signature(request, url, await request.read())
        if not request.headers["Authorization"].endswith(f"Signature={right}"):
            return web.json_response({"message": "The security token is invalid."}, status=403)
        if request.path.endswith("-stream"):
            return await streaming(*STREAM, content_type=BINARY)(request)
        return web.json_response(ANSWER)

    def official(url: str) -> tuple[Any, list[Any]]:
        from botocore.config import Config

        client = boto3.client(
            "bedrock-runtime",
            endpoint_url=url,
            region_name=REGION,
            aws_access_key_id=OPTIONS["access_key_id"],
            aws_secret_access_key=OPTIONS["secret_access_key"],
            config=Config(retries={"total_max_attempts": 1}),
        )
        more: Any = {"modelId": MODEL, "messages": [{"role": "user", "content": [{"text": "a prompt about herons"}]}]}
        more["inferenceConfig"] = {"temperature": 0.5}
        return client.converse(**more), list(client.converse_stream(**more)["stream"])

    async def test() -> None:
        async with serving(handle) as server:
            whole, events = await asyncio.to_thread(official, server.url)
            assert whole["output"] == ANSWER["output"]
            assert "".join(
                one["contentBlockDelta"]["delta"].get("text", "") for one in events if "contentBlockDelta" in one
            )
            provider = make_provider("bedrock", Account(server.url, options=OPTIONS))
            request = {**REQUEST, "model": MODEL, "temperature": 0.5}
            completion = ChatCompletion.model_validate(await provider.chat(request, PATIENT))
            assert completion.choices[0].message.content == "Grey herons."
            assert completion.usage is not None
            assert (completion.usage.prompt_tokens, completion.model) == (5, MODEL)
            chunks = await collected(provider, {**request, "stream_options": {"include_usage": True}})
            deltas = [ChatCompletionChunk.model_validate(chunk) for chunk in chunks]
            await provider.close()
        assert "".join(one.choices[0].delta.content or "" for one in deltas if one.choices) == "Grey herons."
        calls = [
            one.choices[0].delta.tool_calls[0] for one in deltas if one.choices and one.choices[0].delta.tool_calls
        ]
        assert "".join(call.function.arguments or "" for call in calls if call.function) == '{"at": "sky"}'
        assert deltas[-2].choices[0].finish_reason == "tool_calls"
        assert deltas[-1].usage is not None
        theirs, ours = server.asked[:2], server.asked[2:]
        assert [one.path for one in ours] == [one.path for one in theirs]
        assert [one.body for one in ours] == [one.body for one in theirs]

    run(test())


def test_a_key_of_bedrock_itself_needs_no_signature() -> None:
    async def test() -> None:
        async with asking(answering(ANSWER), "bedrock") as (provider, server):
            await provider.chat(REQUEST, PATIENT)
            assert server.asked[0].headers["Authorization"] == f"Bearer {KEY}"
            assert "X-Amz-Date" not in server.asked[0].headers

    run(test())


def test_wrong_credentials_are_told_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(options: JSON) -> ProviderError:
        async with serving(answering({"message": "for hidden-secret: no"}, 403)) as server:
            provider = make_provider("bedrock", Account(server.url, options=options))
            with pytest.raises(ProviderError) as caught:
                await provider.chat(REQUEST, PATIENT)
            await provider.close()
            return caught.value

    error = run(ask(OPTIONS))
    assert error.fault is Fault.CREDENTIALS
    assert "hidden-secret" not in str(error) + error.detail
    assert "hidden-secret" not in repr(Account("http://x", options=OPTIONS))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    missing = run(ask({"region": REGION}))
    assert missing.fault is Fault.CREDENTIALS
    assert "no credentials of AWS" in str(missing)


@pytest.mark.parametrize(
    ("pieces", "fault"),
    [
        (STREAM[:3], Fault.MALFORMED),
        ([STREAM[0], event("throttlingException", {"message": "slow"}, "exception")], Fault.RATE_LIMIT),
        ([STREAM[0], event("modelStreamErrorException", {"message": "broke"}, "exception")], Fault.SERVER),
        ([STREAM[0][:-1] + b"x"], Fault.MALFORMED),
        ([*STREAM[:3], "cut"], Fault.CONNECTION),
        ([*STREAM[:3], "hang"], Fault.TIMEOUT),
    ],
)
def test_streams_that_break_off_say_so(pieces: list[Any], fault: Fault) -> None:
    handler = streaming(*pieces, content_type=BINARY)
    assert failure(handler, "bedrock", stream=True, timeouts=QUICK if "hang" in pieces else PATIENT).fault is fault


@pytest.mark.parametrize(
    ("status", "message", "fault"),
    [
        (429, "Too many requests, please wait before trying again.", Fault.RATE_LIMIT),
        (400, "The provided model identifier is invalid.", Fault.REQUEST),
        (503, "Service unavailable", Fault.SERVER),
    ],
)
def test_refusals_are_told_apart(status: int, message: str, fault: Fault) -> None:
    error = failure(answering({"message": message}, status), "bedrock", stream=False)
    assert (error.status, error.fault) == (status, fault)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, kind in (("botocore.auth", "bedrock"), ("google.auth.exceptions", "vertex")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigError, match=f"pip install 'p2l\\[{kind}\\]'"):
            make_provider(kind, Account("http://x", options={"project": "p"} if kind == "vertex" else OPTIONS))


def test_the_region_is_part_of_the_address() -> None:
    assert account_for("bedrock", None, None, {}).base_url == "https://bedrock-runtime.us-east-1.amazonaws.com"
    env = {"AWS_DEFAULT_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    account = account_for("bedrock", None, None, env)
    assert account.base_url == "https://bedrock-runtime.eu-west-1.amazonaws.com"
    assert (account.options["access_key_id"], account.api_key) == ("a", None)
    with pytest.raises(Exception, match="is not a name of a region"):
        account_for("bedrock", None, None, {"AWS_REGION": "evil.example/"})
