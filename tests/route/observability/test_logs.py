"""Logs are JSON lines, and neither prompts nor keys get into them."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from route.observability.logs import LOGGER, RequestRecord, log_request, set_up_logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level, access = root.handlers[:], root.level, logging.getLogger("uvicorn.access").level
    stream = io.StringIO()
    set_up_logs(stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)
    logging.getLogger("uvicorn.access").setLevel(access)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_request_is_one_line_of_what_there_is_to_say(stream: io.StringIO) -> None:
    record = RequestRecord(
        "r1", "ops", 200, 0.123456789, model="ant", tried=("bee", "ant"), faults=("timeout",), prompt_tokens=0,
        cost=0.25, probabilities={"ant": 1 / 3, "bee": 2 / 3}, propensity=0.5,
    )  # fmt: skip
    log_request(record)
    [line] = lines(stream)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info", "event": "request", "request_id": "r1", "key": "ops", "status": 200, "seconds": 0.123457,
        "model": "ant", "tried": ["bee", "ant"], "faults": ["timeout"], "prompt_tokens": 0, "cost": 0.25,
        "probabilities": {"ant": 0.333333, "bee": 0.666667}, "propensity": 0.5,
    }  # fmt: skip


def test_a_record_has_no_place_for_prompts_and_keys() -> None:
    assert {field.name for field in fields(RequestRecord)} & {
        "prompt",
        "messages",
        "turns",
        "answer",
        "api_key",
    } == set()


def test_an_unexpected_error_is_logged_without_its_text(stream: io.StringIO) -> None:
    try:
        raise RuntimeError("could not parse: my secret prompt")
    except RuntimeError:
        LOGGER.exception("request failed", extra={"fields": {"request_id": "r1"}})
    [line] = lines(stream)
    assert (line["event"], line["error"], line["request_id"]) == ("request failed", "RuntimeError", "r1")
    assert line["at"][0].endswith("test_an_unexpected_error_is_logged_without_its_text")
    assert "secret" not in stream.getvalue()


def test_other_libraries_log_in_the_same_form_and_requests_are_not_logged_twice(stream: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").warning("two\nlines")
    logging.getLogger("uvicorn.access").info("GET / 200")
    [line] = lines(stream)
    assert (line["logger"], line["level"], line["event"]) == ("uvicorn.error", "warning", "two\nlines")


def test_what_json_cannot_hold_is_written_as_text(stream: io.StringIO) -> None:
    LOGGER.warning("odd", extra={"fields": {"value": {1, 2} - {2}, "half": "\ud800"}})
    assert "half" in stream.getvalue()
    stream.getvalue().encode()


def test_requests_of_a_moment_are_written_together_and_a_warning_at_once_after_them(stream: io.StringIO) -> None:
    async def serve() -> None:
        for number in range(3):
            log_request(RequestRecord(f"r{number}", "ops", 200, 0.1))
        assert lines(stream) == []
        LOGGER.warning("trouble")
        assert [line.get("request_id", line["event"]) for line in lines(stream)] == ["r0", "r1", "r2", "trouble"]
        log_request(RequestRecord("r3", "ops", 200, 0.1))
        while len(lines(stream)) < 5:
            await asyncio.sleep(0.01)
        log_request(RequestRecord("r4", "ops", 200, 0.1))

    asyncio.run(serve())
    logging.getLogger().handlers[0].flush()  # as at the end of the process
    assert [line.get("request_id", line["event"]) for line in lines(stream)][3:] == ["trouble", "r3", "r4"]


def test_nothing_is_made_where_nothing_is_logged(stream: io.StringIO) -> None:
    LOGGER.setLevel(logging.WARNING)
    log_request(RequestRecord("r1", "ops", 200, 0.1))
    LOGGER.setLevel(logging.NOTSET)
    assert stream.getvalue() == ""
