"""The mock does what its script says, in this process and, in the same way, as a server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from p2l.common.errors import ConfigError
from route.providers.accounts import make_provider
from route.providers.base import JSON, Account, Fault, Provider, ProviderError
from route.providers.mock import TROUBLES, Mock, MockProvider, Script, main, running
from tests.conftest import ROOT
from tests.route.providers.servers import PATIENT, QUICK, REQUEST, collected, run

FAULTS = {
    "rate-limit:2": Fault.RATE_LIMIT,
    "status:503": Fault.SERVER,
    "reset": Fault.CONNECTION,
    "silence": Fault.TIMEOUT,
    "slow": Fault.TIMEOUT,
    "cut": Fault.CONNECTION,
    "stall": Fault.TIMEOUT,
    "malformed": Fault.MALFORMED,
    "no-done": Fault.MALFORMED,
    "context-length": Fault.CONTEXT_LENGTH,
    "content-filter": Fault.CONTENT_FILTER,
    "prefill": Fault.UNSUPPORTED,
    "credentials": Fault.CREDENTIALS,
}
WITH_USAGE = REQUEST | {"stream_options": {"include_usage": True}}


@asynccontextmanager
async def playing(script: Script, *, served: bool) -> AsyncGenerator[tuple[Provider, Mock], None]:
    if not served:
        provider = MockProvider(Account("http://mock", options={"text": "unused"}))
        provider.mock = Mock(script, remembered=10)
        yield provider, provider.mock
        return
    mock = Mock(script, remembered=10)
    async with running(mock) as url:
        client = make_provider("openai", Account(url))
        yield client, mock
        await client.close()


def text_of(chunks: list[JSON]) -> str:
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])


def test_every_trouble_is_tried() -> None:
    harmless = {"ok", "no-mark"}
    assert {name.partition(":")[0] for name in FAULTS} | harmless == set(TROUBLES)


@pytest.mark.parametrize("served", [False, True])
def test_it_says_its_text_and_counts_its_words(served: bool) -> None:
    async def test() -> None:
        async with playing(Script(text="two  words."), served=served) as (provider, mock):
            whole = await provider.chat(REQUEST, PATIENT)
            assert whole["choices"][0]["message"]["content"] == "two  words."
            assert whole["choices"][0]["finish_reason"] == "stop"
            assert whole["usage"] == {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
            assert whole["model"] == "m-1"
            got = await collected(provider, WITH_USAGE)
            assert text_of(got) == "two  words."
            assert got[-1]["usage"] == whole["usage"]
            assert [chunk["choices"][0]["finish_reason"] for chunk in got[:-1]][-1] == "stop"
            assert len(mock.bodies) == 2

    run(test())


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_it_fails_as_told_and_is_well_again(stream: bool, served: bool) -> None:
    told = [name for name in FAULTS if stream or name != "no-done"]

    async def test() -> None:
        async with playing(Script(failures=tuple(told), tokens=3), served=served) as (provider, _):
            for name in told:
                timeouts = QUICK if FAULTS[name] is Fault.TIMEOUT else PATIENT
                with pytest.raises(ProviderError) as caught:
                    await (collected(provider, REQUEST, timeouts) if stream else provider.chat(REQUEST, timeouts))
                assert caught.value.fault is FAULTS[name], name
                assert caught.value.retry_after == (2.0 if name == "rate-limit:2" else None)
            assert await provider.chat(REQUEST, PATIENT)

    run(test())


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("messages", [[{"role": "user", "content": [3]}], [{"role": "user", "content": [None]}], 3])
def test_a_malformed_request_is_the_clients_fault(messages: object, served: bool) -> None:
    async def ask() -> None:
        async with playing(Script(text="hi"), served=served) as (provider, _):
            with pytest.raises(ProviderError) as refused:
                await provider.chat(REQUEST | {"messages": messages}, PATIENT)
            assert refused.value.fault is Fault.REQUEST

    run(ask())


@pytest.mark.parametrize("served", [False, True])
def test_it_takes_its_time(served: bool) -> None:
    async def test() -> None:
        script = Script(tokens=3, latency=0.05, token_seconds=0.02, failures=("slow:0.05",))
        async with playing(script, served=served) as (provider, _):
            clock = asyncio.get_running_loop().time
            for least in (0.14, 0.09):
                begin = clock()
                await collected(provider, REQUEST, PATIENT)
                assert clock() - begin >= least - 0.005

    run(test())


def test_it_fails_at_a_rate_that_its_seed_repeats() -> None:
    def draws(seed: int) -> list[str]:
        mock = Mock(Script(failure_rate=0.3, failure="reset", seed=seed))
        return [mock.next_trouble({}).name for _ in range(500)]

    assert draws(1) == draws(1) != draws(2)
    assert 100 < draws(1).count("reset") < 200


def test_a_trouble_can_be_told_later() -> None:
    mock = Mock(Script())
    mock.fail_next("reset", "ok")
    assert [mock.next_trouble({}).name for _ in range(3)] == ["reset", "ok", "ok"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"failures": ["explosion"]}, "unknown failure 'explosion'"),
        ({"failure": "status:x"}, "not a number"),
        ({"failure": "status:999"}, "a whole number from 300 to 599"),
        ({"failures": ["slow:-1"]}, "at least 0"),
        ({"failures": "cut"}, "failures must be a list, such as"),
        ({"text": 5}, "text must be text, in quotes"),
        ({"tokens": "many"}, "tokens must be a whole number of at least 1, got 'many'"),
        ({"latency": "fast"}, "latency must be a number of seconds"),
        ({"token_seconds": -1}, "token_seconds must be a number of seconds of at least 0"),
        ({"failure_rate": 2}, "failure_rate must be a number from 0 to 1"),
        ({"seed": None}, "seed must be a whole number"),
        ({"txt": "a"}, "options are text, tokens"),
    ],
)
def test_a_script_with_a_mistake_is_refused(options: JSON, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Script.of(options)
    with pytest.raises(ConfigError):
        make_provider("mock", Account("http://mock", options=options))


def test_the_command_serves_until_it_is_told_to_stop() -> None:
    flags = "--port 0 --text hello --latency 0.001 --token-seconds 0.001 --failures status:500 ok"
    process = subprocess.Popen(
        [sys.executable, "-m", "route.providers.mock", *flags.split()],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    async def test(url: str) -> None:
        provider = make_provider("openai", Account(url))
        with pytest.raises(ProviderError):
            await provider.chat(REQUEST, PATIENT)
        whole = await provider.chat(REQUEST, PATIENT)
        assert whole["choices"][0]["message"]["content"] == "hello"
        await provider.close()

    try:
        assert process.stdout is not None
        run(test(process.stdout.readline().split()[-1]))
        process.terminate()
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.wait()


def test_the_command_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ConfigError, match="unknown failure 'fire'"):
        main(["--failures", "fire"])
