"""The services of the demo: the trained model behind HTTP, and a router before mock providers.

The model is called with curl and with the client, the router with the openai client; both are stopped again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from p2l.client import P2LClient
from p2l.common.errors import P2LError

_PATIENCE_SECONDS = 600.0  # on a machine that does much else; a service that ends is not waited for
_ROUTER_KEY = "demo-key"


def show_endpoint(folder: Path, model: str, prompts: list[list[str]]) -> Iterator[str]:
    """Serve `folder / model`, get the leaderboards of two prompts, and stop it; yield lines to print."""
    port = free_port()
    flags = ["--model", model, "--host", "127.0.0.1", "--port", str(port)]
    yield f"  $ {shlex.join(['p2l', 'endpoint', *flags])} &"
    with running(folder, ["p2l.cli", "endpoint", *flags], "endpoint.log") as process:
        url = f"http://127.0.0.1:{port}"
        _wait(f"{url}/health", process, folder / "endpoint.log")
        with P2LClient(url) as client:
            yield from _by_curl(url, prompts[0])
            yield f"  >>> P2LClient({url!r}).leaderboard({prompts[1]!r}).rows[:3]"
            for row in client.leaderboard(prompts[1]).rows[:3]:
                rate = f"{row.win_rate:.0%}"
                yield f"  {row.rank}. {row.model}: score {row.score:.0f}, beats the field {rate} of the time"
        yield "  $ kill %1"
        stop(process, folder / "endpoint.log")
    yield "  stopped, after every request was answered"


@contextlib.contextmanager
def running(folder: Path, words: list[str], log_name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python -m WORDS` in the folder until the block ends; its output goes to a file there."""
    # Keys and settings of the user's own services are not those of the demo.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("P2L_")}
    with (folder / log_name).open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", *words], cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def stop(process: subprocess.Popen[bytes], log: Path) -> None:
    """Stop a service and wait until it has ended; P2LError if it ended with an error."""
    process.send_signal(signal.SIGTERM)
    code = process.wait(_PATIENCE_SECONDS)
    if code:
        raise P2LError(f"the service ended with exit code {code}; {log} says why")


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a service answers a GET of `url`; P2LError if it ends first, or takes too long."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while process.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise P2LError(f"the service did not start; {log} says why")


def _by_curl(url: str, prompt: list[str]) -> Iterator[str]:
    """Yield a prompt's leaderboard as any HTTP client gets it."""
    body = json.dumps({"prompt": prompt})
    line = ["curl", "-s", f"{url}/leaderboard", "-H", "content-type: application/json", "-d", body]
    yield f"  $ {shlex.join(line)}"
    if shutil.which("curl") is None:
        yield "  (curl is not installed here)"
        return
    answer = json.loads(subprocess.run(line, check=True, capture_output=True).stdout)
    first, *rest = answer["leaderboard"]
    yield f'  {{"leaderboard": [{json.dumps(first)}, ... {len(rest)} more], "revision": "{answer["revision"]}"}}'


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def show_router(folder: Path, model: str, prompts: Sequence[list[str]]) -> Iterator[str]:
    """Route the first of the prompts at three budgets while one provider fails; yield lines to print."""
    if importlib.util.find_spec("openai") is None or importlib.util.find_spec("aiohttp") is None:
        yield "  (left out: it needs `pip install 'p2l[route]' openai`)"
        return
    import yaml

    costs, best = prices(folder / model, prompts)
    text = yaml.safe_dump({"model_configs": model_configs(costs, best)}, sort_keys=False)
    (folder / "router.yaml").write_text(text, "utf-8")
    port = free_port()
    flags = ["-c", "router.yaml", "--router-type", "grk-local", "--router-model-name", model]
    flags += ["--host", "127.0.0.1", "--port", str(port), "--api-key", _ROUTER_KEY]
    yield f"  $ {shlex.join(['python', '-m', 'route.openai_server', *flags])} &"
    with running(folder, ["route.openai_server", *flags], "router.log") as process:
        url = f"http://127.0.0.1:{port}"
        _wait(f"{url}/ready", process, folder / "router.log")
        yield from questions(f"{url}/v1", prompts[0], sorted(costs.values()), best)
        yield "  $ kill %1"
        stop(process, folder / "router.log")


def prices(folder: Path, prompts: Sequence[list[str]]) -> tuple[dict[str, float], str]:
    """Return a cost of each model, higher for stronger ones, and the best model for the first prompt."""
    from p2l.inference import P2L

    model = P2L.from_pretrained(folder, device="cpu")
    coefs = model.predict(prompts).coefs
    order = coefs.mean(axis=0).argsort()
    costs = {model.model_list[n]: round(1.3**rank, 2) for rank, n in enumerate(order)}
    return costs, model.model_list[int(coefs[0].argmax())]


def model_configs(costs: dict[str, float], best: str) -> dict[str, Any]:
    """Return the models of a router's configuration, in which the provider of the best one for the prompt is down."""
    down: dict[str, Any] = {"failure_rate": 1.0, "failure": "status:503"}
    return {
        name: {
            "name": name,
            "type": "mock",
            "cost": cost,
            "options": {"text": f"This is {name} speaking.", **(down if name == best else {})},
        }
        for name, cost in sorted(costs.items(), key=lambda item: item[1])
    }


def questions(url: str, prompt: list[str], costs: list[float], best: str, key: str = _ROUTER_KEY) -> Iterator[str]:
    """Send the prompt at three budgets, and once more as a stream; yield lines to print."""
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key=key)
    chat = client.chat.completions
    ask: dict[str, Any] = {"model": "-", "messages": [{"role": "user", "content": prompt[0]}]}
    yield f"  >>> chat = OpenAI(base_url={url!r}, api_key=...).chat.completions"
    budgets = (costs[0], costs[len(costs) // 2], costs[-1])
    yield f"  ({best}, the best model for this prompt, is down: its provider answers 503.)"
    for budget in budgets:
        yield from _answered(chat.create(**ask, extra_body={"cost": budget}).to_dict(), budget)
    yield f"  >>> for chunk in chat.create(..., stream=True, extra_body={{'cost': {budgets[-1]}}}):"
    chunks = list(chat.create(**ask, stream=True, extra_body={"cost": budgets[-1]}))
    words = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    yield f"  {' | '.join(word.strip() for word in words)}"


def _answered(answer: dict[str, Any], budget: float) -> Iterator[str]:
    decision = answer["router_decision"]
    mixture = ", ".join(f"{name} {share:.0%}" for name, share in decision["probabilities"].items())
    yield f"  >>> chat.create(..., extra_body={{'cost': {budget}}})"
    yield f"  {answer['choices'][0]['message']['content']!r}"
    yield f"    the budget buys {mixture}: score {decision['expected_score']:.3f} at {decision['expected_cost']:.2f}"
    if len(decision["attempts"]) > 1:
        yield f"    tried {' -> '.join(decision['attempts'])}"
