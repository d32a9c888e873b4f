"""Long requests: bounded before they are parsed or tokenised, off the event loop, and in nobody's way."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from p2l.common.long_texts import LONG, BusyError, LongWork, PatientDecoder, count_values
from p2l.inference import P2L
from p2l.serving.app import BatchRequest, PromptRequest
from p2l.serving.batcher import Batcher, BatchLimits
from tests.p2l.serving.conftest import Start

pytestmark = pytest.mark.usefixtures("torch_alone")

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("route", ["/predict", "/leaderboard"])
def test_turns_beyond_the_limit_are_refused_by_its_flag(start: Start, route: str) -> None:
    client = start(max_turns=5).client
    assert client.post(route, json={"prompt": [""] * 5}).status_code == 200
    refused = client.post(route, json={"prompt": [""] * 6})
    assert refused.status_code == 413
    assert "more than 5 turns (--max-turns)" in refused.json()["detail"]


def test_the_turns_of_all_prompts_of_a_request_count(start: Start) -> None:
    client = start(max_turns=5).client
    assert client.post("/predict_batch", json={"prompts": [["a", "b"], ["c", "d"], ["e"]]}).status_code == 200
    refused = client.post("/predict_batch", json={"prompts": [["a", "b"], ["c", "d"], ["e", "f"]]})
    assert (refused.status_code, "--max-turns" in refused.text) == (413, True)


def test_a_prompt_with_characters_beyond_the_limit_is_refused_by_its_flag(start: Start) -> None:
    client = start(max_chars=10).client
    assert client.post("/predict", json={"prompt": ["12345", "67890"]}).status_code == 200
    assert client.post("/predict_batch", json={"prompts": [["1234567890"]] * 3}).status_code == 200
    for route, body in (("/predict", {"prompt": ["123456", "67890"]}), ("/leaderboard", {"prompt": ["é" * 11]})):
        refused = client.post(route, json=body)
        assert refused.status_code == 413
        assert "11 characters, more than 10 (--max-chars)" in refused.json()["detail"]
    refused = client.post("/predict_batch", json={"prompts": [["1"], ["1" * 12]]})
    assert "prompt 1 has 12 characters" in refused.json()["detail"]


def test_the_limits_can_be_asked_for(start: Start) -> None:
    about = start(max_chars=1234, max_turns=56, max_body_mb=0.5).client.get("/info").json()
    assert (about["max_chars"], about["max_turns"], about["max_body_mb"]) == (1234, 56, 0.5)


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": [' + b'"",' * 600_000 + b'""]}',
        b'{"prompt": [' + b'"a\\"[",' * 600_000 + b'""]}',
        b'{"prompts": [' + b"[]," * 2_000_000 + b"[]]}",
        b'{"prompt": ["a"], "other": [' + b"{}," * 1_000_000 + b"{}]}",
        b'{"prompt": [' + b"1," * 3_000_000 + b"1]}",
        json.dumps({"prompt": [""] * 100_000}).encode("utf-16"),
    ],
    ids=["turns", "quotes", "lists", "unknown", "numbers", "utf-16"],
)
def test_more_turns_than_the_limit_are_refused_before_any_is_made(
    start: Start, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start()
    parsed: list[Any] = []
    monkeypatch.setattr("p2l.serving.bodies.PatientDecoder", lambda: SimpleNamespace(decode=parsed.append))
    refused = running.client.post("/predict", content=body, headers=JSON)
    monkeypatch.undo()
    assert refused.status_code in {413, 422}
    assert len(refused.json()["detail"]) < 200
    assert parsed == []
    assert running.predict(["hello"]).status_code == 200


@pytest.mark.parametrize(
    "turn",
    ['"' * 900_000, "\\" * 900_000, '\\"[{,' * 180_000, "[1, 2, 3], " * 90_000, "\ud800" * 100_000, "नमस्ते " * 100_000],
    ids=["quotes", "backslashes", "escaped", "lists", "surrogates", "Hindi"],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_text_that_looks_like_json_is_a_long_prompt(start: Start, turn: str, ascii_only: bool) -> None:
    content = json.dumps({"prompt": [turn]}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert start().client.post("/predict", content=content, headers=JSON).status_code == 200


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('a"\\,[{é\ud800'), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def strings_in(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(strings_in, value.values()))
    return sum(map(strings_in, value)) if isinstance(value, list) else isinstance(value, str)


def separators_in(value: Any) -> int:
    if not isinstance(value, (dict, list)):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return max(1, len(value)) + sum(map(separators_in, inner))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=ANYTHING, indent=st.sampled_from([None, 1]), most=st.integers(0, 12), size=st.sampled_from([1, 3, 2**18]))
def test_values_are_counted_without_being_made(
    value: Any, indent: int | None, most: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2l.common.long_texts._PIECE_CHARS", size)
    body = json.dumps(value, indent=indent).encode()
    assert (count_values(body, most) > most) == (max(strings_in(value), separators_in(value)) > most)
    assert count_values(body, 10**9) == max(strings_in(value), separators_in(value))


def test_of_many_faults_one_is_described() -> None:
    for kind, body in ((PromptRequest, {"prompt": [1] * 9}), (BatchRequest, {"prompts": [[1] * 9, [2] * 9]})):
        with pytest.raises(ValidationError) as caught:
            kind.model_validate(body)
        assert caught.value.error_count() == 1


def test_long_bodies_are_parsed_and_long_prompts_logged_off_the_event_loop(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    threads: set[str] = set()
    running = start(log_prompts=True)

    def decoder() -> json.JSONDecoder:
        threads.add(threading.current_thread().name)
        return PatientDecoder()

    monkeypatch.setattr("p2l.serving.bodies.PatientDecoder", decoder)
    assert running.predict(["long " * LONG]).status_code == 200
    assert threads
    assert [name for name in threads if "p2l-long" not in name] == []
    (loop,) = {thread.name for thread in threading.enumerate() if "(run)" in thread.name}
    logged = {record.threadName for record in caplog.records if "long long" in record.getMessage()}
    assert logged
    assert loop not in logged


def test_while_long_prompts_are_read_short_ones_are_answered(model: P2L) -> None:
    async def ask() -> None:
        gate = threading.Event()
        encode = model.encode

        def held_back(prompts: Any) -> Any:
            assert len(prompts[0][0]) < LONG or gate.wait(120)
            return encode(prompts)

        model.encode = held_back  # type: ignore[method-assign]
        batcher = Batcher(model, BatchLimits(tokens=1000, prompts=16, wait=0.0))
        try:
            long = [asyncio.ensure_future(batcher.ask([[f"{n} " * LONG]])) for n in range(100, 180)]
            await asyncio.sleep(0)
            for number in range(5):
                assert len(await asyncio.wait_for(batcher.ask([[f"short {number}"]]), 60)) == 1
            assert not any(each.done() for each in long)
            gate.set()
            assert len(await asyncio.gather(*long)) == 80
        finally:
            gate.set()
            await batcher.close()

    asyncio.run(ask())


def test_too_much_long_text_at_once_is_refused_for_now() -> None:
    async def work() -> None:
        gate = threading.Event()
        threads = LongWork(threads=1, max_waiting=100)
        first = asyncio.ensure_future(threads.run(1000, gate.wait))  # alone, it may be of any size
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="try again"):
            await threads.run(1, gate.wait)
        gate.set()
        assert await first
        assert await threads.run(60, lambda: "done") == "done"
        threads.close()

    asyncio.run(work())
