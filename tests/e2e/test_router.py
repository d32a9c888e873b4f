"""The router as a user starts it: a process with flags, asked by the official clients, stopped by a signal."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
import yaml

from tests.conftest import Command, free_port
from tests.p2l.serving.conftest import NAMES, make_model
from tests.serving_process import answers, half_open, serving

HELLO: list[Any] = [{"role": "user", "content": "hello there"}]
SMALL = {"name": "s", "type": "mock", "cost": 1, "options": {"text": "I am small"}}
SLOW = {"name": "l", "type": "mock", "cost": 5, "options": {"tokens": 20, "token_seconds": 0.05}}
RANDOM = ("--router-type", "random", "--host", "127.0.0.1")


def write(folder: Path, models: dict[str, Any], **more: Any) -> Path:
    path = folder / "router.yaml"
    path.write_text(yaml.safe_dump({"model_configs": models, **more}, sort_keys=False), encoding="utf-8")
    return path


def a_process(
    config: Path, *flags: str, module: str = "route.openai_server", **env: str
) -> contextlib.AbstractContextManager[tuple[str, subprocess.Popen[str]]]:
    """A running router: its URL and its process."""
    return serving(module, "-c", config, *flags, probe="/ready", **env)


def client(url: str, key: str = "k") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def stopped(process: subprocess.Popen[str], sign: signal.Signals = signal.SIGTERM) -> tuple[str, list[dict[str, Any]]]:
    """What a router printed and logged until it ended by a signal."""
    process.send_signal(sign)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out, [json.loads(line) for line in err.splitlines()]


@pytest.mark.parametrize("module", ["route.openai_server", "router.openai_server"])
def test_it_answers_the_official_client_and_logs_json(tmp_path: Path, module: str) -> None:
    config = write(tmp_path, {"small": SMALL})
    with a_process(config, *RANDOM, "--api-key", "k", module=module) as (url, process), client(url) as asked:
        answer = asked.chat.completions.create(model="-", messages=HELLO)
        assert answer.choices[0].message.content == "I am small"
        chunks = list(asked.chat.completions.create(model="-", messages=HELLO, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "I am small"
        out, lines = stopped(process)
    assert out == ""
    assert [line["model"] for line in lines if line["event"] == "request"] == ["small", "small"]
    assert "hello there" not in json.dumps(lines)


def test_without_a_key_a_random_one_is_printed_once(tmp_path: Path) -> None:
    with a_process(write(tmp_path, {"small": SMALL}), *RANDOM) as (url, process):
        with client(url) as asked, pytest.raises(openai.AuthenticationError):
            asked.models.list()
        line = process.stdout.readline() if process.stdout else ""
        (key,) = re.findall(r"bearer key: (\S{40,})$", line)
        with client(url, key) as asked:
            assert [model.id for model in asked.models.list()] == ["p2l-router", "auto"]
        out, lines = stopped(process)
    assert out == ""
    assert key not in json.dumps(lines)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_half_open_connections_of_one_peer_end_and_refuse_nobody_else(tmp_path: Path, workers: str) -> None:
    flags = (*RANDOM, "--header-seconds", "1", "--max-connections", "40", "--max-peer-connections", "30")
    flags += ("--workers", workers)
    with a_process(write(tmp_path, {"small": SMALL}), *flags) as (url, process):
        with half_open(url, 200, "127.0.0.2") as clients:
            assert answers(f"{url}/health")
            for client in clients:  # refused at once, or ended by its deadline
                with contextlib.suppress(ConnectionError):
                    while client.recv(4096):
                        pass
        _, lines = stopped(process)
    events = [line["event"] for line in lines]
    refused = sum("--max-peer-connections: refused a connection of 127.0.0.2" in event for event in events)
    assert 1 <= refused <= int(workers), "one line in ten seconds and process"
    assert any("--header-seconds: ended a connection of 127.0.0.2" in event for event in events)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_stream_that_began_is_finished_when_the_router_is_told_to_stop(tmp_path: Path, sign: signal.Signals) -> None:
    with a_process(write(tmp_path, {"slow": SLOW}), *RANDOM, "--api-key", "k") as (url, process), client(url) as asked:
        stream = asked.chat.completions.create(model="-", messages=HELLO, stream=True)
        first = next(stream)
        process.send_signal(sign)
        rest = list(stream)
        process.communicate(timeout=60)
    assert first.choices[0].finish_reason is None
    assert rest[-1].choices[0].finish_reason == "stop"
    assert process.returncode == 0


def test_workers_share_limits_and_counters(tmp_path: Path) -> None:
    keys = [{"key": "k", "name": "app", "requests_per_minute": 12}]
    config = write(tmp_path, {"small": SMALL}, keys=keys)
    with a_process(config, *RANDOM, "--workers", "2") as (url, process):
        served = 0
        for _ in range(40):
            with client(url) as asked, contextlib.suppress(openai.RateLimitError):  # a connection each, so both workers
                asked.chat.completions.create(model="-", messages=HELLO)
                served += 1
            time.sleep(0.06)
        # Each worker sees the other's requests within 200 ms, here at most four of them.
        assert 12 <= served <= 16
        counted = re.findall(
            r'^p2l_router_requests_total\{.*status="200"\} (\S+)$', httpx2.get(f"{url}/metrics").text, re.M
        )
        assert sum(map(float, counted)) == served
        stopped(process)


def test_workers_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    with a_process(write(tmp_path, {"small": SMALL}), *RANDOM, "--api-key", "k", "--workers", "2") as (url, process):
        process.kill()
        process.wait()
        for _ in range(200):
            try:
                httpx2.get(f"{url}/health", timeout=30)
            except httpx2.TransportError:
                break
            time.sleep(0.1)
        else:
            pytest.fail("the workers go on")
        process.communicate(timeout=60)


def test_spend_survives_a_kill(tmp_path: Path) -> None:
    keys = [{"key": "k", "name": "app", "spend_per_day": 2}]
    config = write(tmp_path, {"small": SMALL}, keys=keys, database="route.sqlite")
    with a_process(config, *RANDOM) as (url, process), client(url) as asked:
        for _ in range(2):
            asked.chat.completions.create(model="-", messages=HELLO)
        time.sleep(0.5)
        process.kill()
        process.communicate(timeout=60)
    with a_process(config, *RANDOM) as (url, _), client(url) as asked, pytest.raises(openai.RateLimitError):
        asked.chat.completions.create(model="-", messages=HELLO)


@pytest.mark.parametrize(
    ("models", "more", "flags", "says"),
    [
        (
            {"m": {**SMALL, "type": "opanai"}},
            {},
            (),
            "router.yaml:2: model_configs.m: type: there is no provider 'opanai'",
        ),
        ({"m": {**SMALL, "type": "groq"}}, {}, (), "GROQ_API_KEY"),
        ({"m": SMALL}, {}, ("--router-type", "grk-endpoint", "--cost-optimizer", "optimal-lp"), "optimal-lp"),
        ({"m": SMALL}, {}, ("--router-type", "bt-endpoints"), "error: router type 'bt-endpoints' is unknown"),
        ({"m": SMALL}, {}, ("--router-type", "bt-local"), "--router-model-name"),
        ({"m": SMALL}, {}, ("--workers", "2", "--reload"), "--reload"),
        ({"m": SMALL}, {"limits": [{"quantity": "cost", "most": 1}]}, (), "router.yaml:8: limits need"),
        ({"m": SMALL}, {"sticki": True}, (), "router.yaml:8: unknown key 'sticki' (did you mean 'sticky'?)"),
    ],
)
def test_a_mistake_ends_it_with_one_line(
    tmp_path: Path, command: Command, models: dict[str, Any], more: dict[str, Any], flags: tuple[str, ...], says: str
) -> None:
    config = write(tmp_path, models, **more)
    done = command("python", "-m", "route.openai_server", "-c", config, *RANDOM, *flags, env={"GROQ_API_KEY": ""})
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr
    assert done.stdout == ""


class Leaderboard(http.server.BaseHTTPRequestHandler):
    """A P2L endpoint that knows one model."""

    def do_GET(self) -> None:
        known = {"/info": {"likelihood": "grk", "revision": "r"}, "/models": {"models": ["ant"], "revision": "r"}}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(known[self.path]).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "P2L knows none of the configured models"),
        (("--router-type", "grk-endpoint"), "P2L knows none of the configured models"),
        (("--router-type", "grk-endpoint", "--workers", "2"), "P2L knows none of the configured models"),
        (("--router-type", "bt-endpoint"), "use router type grk-endpoint"),
    ],
)
def test_a_leaderboard_that_does_not_fit_refuses_to_start(
    tmp_path: Path, command: Command, flags: tuple[str, ...], says: str
) -> None:
    config = write(tmp_path, {"small": SMALL})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Leaderboard) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        where = ("--router-model-endpoint", endpoint, "--host", "127.0.0.1", "--port", str(free_port()))
        done = command("python", "-m", "route.openai_server", "-c", config, "--api-key", "k", *where, *flags)
        server.shutdown()
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "flags", "says"),
    [
        ({"database": "junk.sqlite"}, RANDOM, "junk.sqlite: cannot be used"),
        ({}, ("--api-key", "k", "--router-type", "grk-local", "--router-model-name", "nosuch"), "nosuch: "),
    ],
)
def test_a_start_that_fails_says_why_in_one_line(
    tmp_path: Path, command: Command, more: dict[str, Any], flags: tuple[str, ...], says: str
) -> None:
    (tmp_path / "junk.sqlite").write_text("this is text and no database, though its name says so", encoding="utf-8")
    config = write(tmp_path, {"small": SMALL}, **more)
    where = ("--host", "127.0.0.1", "--port", str(free_port()))
    done = command("python", "-m", "route.openai_server", "-c", config, *flags, *where, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_missing_package_is_named_before_anything_is_served(tmp_path: Path, command: Command) -> None:
    config, folder = write(tmp_path, {"small": SMALL}), make_model(tmp_path, seed=1)
    flags = ["-c", str(config), "--api-key", "k", "--router-type", "grk-local", "--router-model-name", str(folder)]
    flags += ["--port", str(free_port())]
    lacks_torch = (
        f"import sys; sys.modules['torch'] = None; from route.openai_server import main, run; run(main, {flags})"
    )
    done = command("python", "-c", lacks_torch)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: this needs torch")
    assert done.stderr.count("\n") == 1


def test_the_p2l_model_may_run_in_the_router(tmp_path: Path) -> None:
    folder = make_model(tmp_path, seed=1)
    config = write(tmp_path, dict.fromkeys(NAMES, SMALL))
    flags = ("--router-type", "grk-local", "--router-model-name", str(folder), "--api-key", "k", "--host", "127.0.0.1")
    with a_process(config, *flags) as (url, process), client(url) as asked:
        answer: Any = asked.chat.completions.create(model="-", messages=HELLO)
        assert answer.router_outputs.keys() == set(NAMES)
        assert answer.router_decision["static"] is False
        stopped(process)


class Messages(http.server.BaseHTTPRequestHandler):
    """Anthropic's API as far as one answer goes, whole or streamed."""

    protocol_version = "HTTP/1.1"
    bodies: list[dict[str, Any]] = []  # noqa: RUF012  (shared by all connections on purpose)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.bodies.append({"key": self.headers["x-api-key"], **body})
        usage = {"input_tokens": 7, "output_tokens": 3}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "usage": usage}
        message |= {"stop_reason": "end_turn", "stop_sequence": None}
        if not body.get("stream"):
            text = [{"type": "text", "text": "I am Claude"}]
            self.answer("application/json", json.dumps({**message, "content": text}))
            return
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        events = [
            {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
            block,
            *(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
                for text in ("I am", " Claude")
            ),
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"},
        ]
        self.answer("text/event-stream", "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events))

    def answer(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def claude() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Messages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_anthropics_protocol_behind_openais(tmp_path: Path, claude: str) -> None:
    # The official client understands this server, so it stands for the real one.
    with anthropic.Anthropic(base_url=claude, api_key="k") as official:
        said = official.messages.create(model="c", max_tokens=9, messages=HELLO)
        assert said.content[0].text == "I am Claude"
        with official.messages.stream(model="c", max_tokens=9, messages=HELLO) as stream:
            assert stream.get_final_text() == "I am Claude"
    model = {"name": "claude-x", "type": "anthropic", "base_url": claude, "api_key": "${CLAUDE_KEY}", "cost": 2}
    model["system_prompt"] = "Be brief."
    config = write(tmp_path, {"claude": model})
    with a_process(config, *RANDOM, "--api-key", "k", CLAUDE_KEY="secret") as (url, process), client(url) as asked:
        answer = asked.chat.completions.create(model="-", messages=HELLO, temperature=0)
        assert (answer.model, answer.choices[0].message.content) == ("claude", "I am Claude")
        assert (answer.choices[0].finish_reason, answer.usage and answer.usage.total_tokens) == ("stop", 10)
        options: Any = {"include_usage": True}
        chunks = list(asked.chat.completions.create(model="-", messages=HELLO, stream=True, stream_options=options))
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "I am Claude"
        assert chunks[-1].usage is not None
        _, lines = stopped(process)
    sent = Messages.bodies[-2]
    assert (sent["key"], sent["model"], sent["temperature"]) == ("secret", "claude-x", 0)
    assert "Be brief." in json.dumps(sent["system"])
    assert "secret" not in json.dumps(lines)
