"""Gemini at Google Cloud: addresses and tokens, as Google's own client has them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from p2l.common.errors import ConfigError
from route.providers.accounts import account_for, make_provider
from route.providers.base import JSON, Account, Fault, ProviderError
from tests.route.providers.servers import KEY, PATIENT, REQUEST, answering, asking, collected, run, streaming

pytest.importorskip("google.auth")
OPTIONS = {"project": "p-1", "location": "europe-west1"}
ANSWER: JSON = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": "Grey herons."}]}, "finishReason": "STOP"}],
    "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 3},
    "modelVersion": "gemini-2.5-pro",
}
PATH = "/v1/projects/p-1/locations/europe-west1/publishers/google/models/gemini-2.5-pro"


def service_account(folder: Path, url: str) -> Path:
    """A key file whose tokens the server issues."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = folder / "account.json"
    info = {"type": "service_account", "client_email": "me@p-1", "token_uri": f"{url}/token", "private_key_id": "1"}
    path.write_text(json.dumps({**info, "private_key": key.private_bytes(*form).decode()}))
    return path


class Cloud:
    """A server that issues tokens, and answers who has one."""

    def __init__(self) -> None:
        self.tokens, self.asked = 0, list[tuple[str, JSON]]()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/token":
            self.tokens += 1
            return web.json_response({"access_token": f"t-{self.tokens}", "expires_in": 3600, "token_type": "Bearer"})
        if request.headers.get("Authorization") not in (f"Bearer t-{self.tokens}", "Bearer official"):
            return web.json_response(
                {"error": {"code": 401, "message": "no token", "status": "UNAUTHENTICATED"}}, status=401
            )
        self.asked.append((request.path_qs, await request.json()))
        if ":stream" in request.path:
            return await streaming(b"data: " + json.dumps(ANSWER).encode() + b"\n\n")(request)
        return web.json_response(ANSWER)


async def cloud_at(cloud: Cloud) -> tuple[web.AppRunner, str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", cloud.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


def test_tokens_are_fetched_once_and_requests_are_those_of_the_official_client(tmp_path: Path) -> None:
    genai = pytest.importorskip("google.genai")

    def official(url: str) -> Any:
        from google.oauth2.credentials import Credentials

        client = genai.Client(
            vertexai=True,
            project="p-1",
            location="europe-west1",
            credentials=Credentials("official"),
            http_options={"base_url": url, "api_version": "v1"},
        )
        prompt = REQUEST["messages"][0]["content"]
        return client.models.generate_content(model="gemini-2.5-pro", contents=prompt, config={"temperature": 0.5})

    async def test() -> None:
        cloud = Cloud()
        runner, url = await cloud_at(cloud)
        try:
            answer = await asyncio.to_thread(official, url)
            assert answer.text == "Grey herons."
            file = await asyncio.to_thread(service_account, tmp_path, url)
            provider = make_provider("vertex", Account(url, options={**OPTIONS, "service_account_key": str(file)}))
            request = {**REQUEST, "model": "gemini-2.5-pro", "temperature": 0.5}
            both = await asyncio.gather(provider.chat(request, PATIENT), provider.chat(request, PATIENT))
            assert both[0]["choices"][0]["message"]["content"] == "Grey herons."
            chunks = await collected(provider, request)
            assert chunks[1]["choices"][0]["delta"]["content"] == "Grey herons."
            await provider.close()
        finally:
            await runner.cleanup()
        assert cloud.tokens == 1
        (their_path, theirs), (our_path, ours), _, (stream_path, _) = cloud.asked
        assert our_path == their_path == f"{PATH}:generateContent"
        assert stream_path == f"{PATH}:streamGenerateContent?alt=sse"
        assert ours["contents"] == theirs["contents"]
        assert ours["generationConfig"] == theirs["generationConfig"]

    run(test())


def test_a_key_needs_neither_project_nor_token() -> None:
    async def test() -> None:
        async with asking(answering(ANSWER), "vertex") as (provider, server):
            await provider.chat({**REQUEST, "model": "gemini-2.5-flash"}, PATIENT)
            assert server.asked[0].path == "/v1/publishers/google/models/gemini-2.5-flash:generateContent"
            assert server.asked[0].headers["x-goog-api-key"] == KEY

    run(test())


def test_a_token_of_this_machine_goes_to_google_alone() -> None:
    async def test() -> ProviderError:
        async with asking(answering(ANSWER), "vertex") as (_, server):
            provider = make_provider("vertex", Account(server.url, options=OPTIONS))
            with pytest.raises(ProviderError) as caught:
                await provider.chat(REQUEST, PATIENT)
            await provider.close()
            assert not server.asked
            return caught.value

    error = run(test())
    assert error.fault is Fault.CREDENTIALS
    assert "service_account_key, or api_key" in str(error)


def test_a_key_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    async def test() -> ProviderError:
        options = {**OPTIONS, "service_account_key": str(tmp_path / "no.json")}
        provider = make_provider("vertex", Account("http://127.0.0.1:1", options=options))
        with pytest.raises(ProviderError) as caught:
            await provider.chat(REQUEST, PATIENT)
        await provider.close()
        return caught.value

    assert run(test()).fault is Fault.CREDENTIALS


def test_project_and_location_come_from_the_environment() -> None:
    with pytest.raises(ConfigError, match="no project"):
        make_provider("vertex", account_for("vertex", None, None, {}))
    account = account_for("vertex", None, None, {"GOOGLE_CLOUD_PROJECT": "p", "GOOGLE_CLOUD_LOCATION": "global"})
    assert account.base_url == "https://aiplatform.googleapis.com"
    assert account.options["project"] == "p"
    assert account_for("vertex", None, None, {}).base_url == "https://us-central1-aiplatform.googleapis.com"
