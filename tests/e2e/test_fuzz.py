"""Both services under requests that a program makes up: each is answered as documented, and the service stays well.

P2L_FUZZ_EXAMPLES=2000 pytest -m slow tests/e2e/test_fuzz.py
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import yaml
from hypothesis import given
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.fuzz import connections, fuzzing, judged, raw_requests
from tests.p2l.serving.conftest import NAMES, make_model
from tests.serving_process import answers, serving

pytestmark = pytest.mark.slow

CHECKS: list[Any] = [status_code_conformance, content_type_conformance, response_schema_conformance]
LIMITS = ("--header-seconds", "0.5", "--idle-seconds", "0.5", "--max-body-mb", "0.1", "--host", "127.0.0.1")
HELLO = [{"role": "user", "content": "hello there"}]
TOOL = {"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}}}
PROMPT = json.dumps({"prompt": ["hello"]}).encode()
CHAT = json.dumps({"messages": HELLO, "tools": [TOOL]}).encode()
GROWTH = 96 * 2**20
"""Bytes that a service may grow by: caches fill up."""


@dataclass(frozen=True)
class Service:
    """A process under test."""

    url: str
    process: subprocess.Popen[str]
    log: Path
    header: tuple[str, str]
    bodies: dict[bytes, bytes]

    def memory(self) -> int:
        """Bytes that are resident."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text("ascii").split()[1]
        return int(pages) * 4096

    def check_health(self) -> None:
        """Assert that it runs, answers, and has met no error of its own."""
        assert self.process.poll() is None
        assert answers(f"{self.url}/health")
        log = self.log.read_text("utf-8")
        assert "Traceback" not in log
        assert '"level": "error"' not in log, "the router's own errors"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("endpoint")
    flags = ("--no-cuda", "--api-key", "k", "--admin-key", "the-admin-key", "--deadline", "2", *LIMITS)
    log = folder / "log"
    with serving("p2l.endpoint", "-m", make_model(folder, seed=1), *flags, probe="/health", log=log) as (url, process):
        bodies = {b"/predict": PROMPT, b"/leaderboard": PROMPT, b"/health": b"", b"/models": b""}
        yield Service(url, process, log, ("api-key", "k"), bodies)


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory, endpoint: Service) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("router")
    models: dict[str, Any] = {
        name: {"name": name, "type": "mock", "cost": cost + 1, "options": {"text": f"I am {name}"}}
        for cost, name in enumerate(NAMES)
    }
    models[NAMES[1]]["options"] |= {"failure_rate": 0.3}
    models[NAMES[2]] |= {"price": {"input": 1, "output": 2}, "context_window": 4000}
    config = {
        "model_configs": models,
        "keys": [{"key": "k", "name": "k", "spend_per_day": 1e9, "votes_per_day": 1000, "cost": 3}],
        "database": "router.sqlite",
        "store_prompts": True,
        "sticky": True,
        "explore": 0.1,
        "breaker": {"failures": 3, "seconds": 0.5},
        "timeouts": {"total": 2},
    }
    (folder / "router.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    flags = ("--router-type", "grk-endpoint", "--router-model-endpoint", endpoint.url, "--router-api-key", "k")
    words = ("-c", folder / "router.yaml", *flags, *LIMITS)
    with serving("route.openai_server", *words, probe="/ready", log=folder / "log") as (url, process):
        bodies = {b"/v1/chat/completions": CHAT, b"/v1/messages": CHAT, b"/v1/route": CHAT, b"/v1/feedback": b"{}"}
        bodies |= {b"/v1/models": b"", b"/v1/models/x": b"", b"/health": b"", b"/ready": b""}
        yield Service(url, process, folder / "log", ("authorization", "Bearer k"), bodies)


@pytest.fixture(params=["endpoint", "router"])
def service(request: pytest.FixtureRequest) -> Service:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_requests_made_from_the_description_are_answered_as_described(service: Service, mode: GenerationMode) -> None:
    description = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    statuses: Counter[int] = Counter()
    before = service.memory()
    for each in description.get_all_operations():
        operation = each.ok()
        if mode is GenerationMode.NEGATIVE and not (operation.body or [*operation.iter_parameters()]):
            continue  # nothing can be wrong

        @fuzzing(12)
        @given(case=operation.as_strategy(generation_mode=mode), has_key=st.sampled_from([True] * 9 + [False]))
        def check(case: Any, has_key: bool) -> None:
            # Only these faults of others are documented; a connection that breaks fails by itself.
            answer = case.call_and_validate(headers=dict([service.header] if has_key else []), checks=CHECKS)
            if answer.status_code not in (502, 503, 504):
                case.validate_response(answer, checks=[not_a_server_error])
            statuses[answer.status_code] += 1

        check()
        service.check_health()
    print(f"{service.header[0]}, {mode.value}: {dict(statuses)}")
    assert service.memory() - before < GROWTH


def test_bytes_that_resemble_requests_are_answered_or_refused(service: Service) -> None:
    key = ": ".join(service.header).encode()
    statuses: Counter[int | None] = Counter()
    before = service.memory()

    @fuzzing(4)
    @given(requests=st.lists(raw_requests(key, service.bodies), min_size=25, max_size=25))
    def check(requests: list[bytes]) -> None:
        for request, received in zip(requests, connections(service.url, requests), strict=True):
            statuses[judged(request, received)] += 1
        service.check_health()

    check()
    print(f"{service.header[0]}, bytes: {dict(statuses)}")
    assert service.memory() - before < GROWTH
