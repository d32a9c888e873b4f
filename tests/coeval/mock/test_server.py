from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest

from coeval.mock.server import MockServer
from tests.conftest import ROOT
from tests.warm import warm_python


def post(url: str, body: dict[str, Any], key: str | None = None) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def ask(text: str, **parameters: Any) -> dict[str, Any]:
    return {"model": "ant", "messages": [{"role": "user", "content": text}], **parameters}


def test_it_answers_as_the_request_says_and_counts() -> None:
    with MockServer(models={"bee": {"text": "Buzz."}}) as server:
        answer = post(server.url, ask("Hello", skill=0.25, noise=0))
        assert "quality 0.25" in answer["choices"][0]["message"]["content"]
        assert answer["usage"]["prompt_tokens"] == 1
        assert post(server.url, {**ask("Hello"), "model": "bee"})["choices"][0]["message"]["content"] == "Buzz."
        post(server.url, ask("Say High, Medium or Low."))
        with urllib.request.urlopen(f"{server.url}/models") as response:
            assert [model["id"] for model in json.load(response)["data"]] == ["bee"]
    assert server.calls == {("ant", "test"): 1, ("bee", "test"): 1, ("ant", "evaluate_per_factor"): 1}
    assert server.phases["ant", "evaluation"] == 1
    assert (server.requests, server.peak) == (3, 1)


@pytest.mark.parametrize(
    ("options", "body", "status"),
    [
        ({"failures": [503]}, {}, 503),
        ({"failure_rate": 1.0}, {}, 500),
        ({"api_key": "a-key-of-ours"}, {}, 401),
        ({}, {"skill": "high"}, 400),
        ({"models": {"bee": {}}, "only_these": True}, {}, 404),
    ],
)
def test_it_refuses_as_it_is_told(options: dict[str, Any], body: dict[str, Any], status: int) -> None:
    with MockServer(**options) as server:
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(server.url, ask("Hello", **body))
        caught.value.close()
        assert caught.value.code == status
        assert not server.calls


def test_a_full_provider_says_when_to_come_again() -> None:
    with MockServer(failures=[429], retry_after=2, api_key="a-key-of-ours") as server:
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(server.url, ask("Hello"), "a-key-of-ours")
        caught.value.close()
        assert caught.value.headers["Retry-After"] == "2"
        assert post(server.url, ask("Hello"), "a-key-of-ours")["object"] == "chat.completion"


def test_a_port_that_is_taken_is_an_error() -> None:
    with MockServer() as server:
        port = int(server.url.split(":")[2].split("/")[0])
        with pytest.raises(OSError, match="in use"):
            MockServer(port=port).__enter__()
        words = [sys.executable, "-m", "coeval.mock.server", "--port", str(port)]
        told = subprocess.run(words, capture_output=True, text=True, cwd=ROOT).stderr
        assert told == "error: --host, --port: cannot listen there: Address already in use\n"


def test_it_is_a_command_as_well() -> None:
    words = [warm_python(), "-m", "coeval.mock.server", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            assert "quality 1.00" in post(url, ask("Hello", skill=1, noise=0))["choices"][0]["message"]["content"]
        finally:
            process.terminate()
