"""The demo's router: the trained model chooses among mock providers, with scripted answers, for the openai client."""

from __future__ import annotations

import importlib.util
import shlex
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import Popen
from typing import Any

from p2l.common.errors import P2LError
from p2l.demo.service import PATIENCE, free_port, running, stop

_KEY = "demo-key"
_CONFIG, _LOG = "router.yaml", "router.log"


def show_router(folder: Path, model: str, prompts: Sequence[list[str]]) -> Iterator[str]:
    """Route the first of the prompts at three budgets while one provider fails; yield lines to print."""
    if importlib.util.find_spec("openai") is None or importlib.util.find_spec("aiohttp") is None:
        yield "  (left out: it needs `pip install 'p2l[route]' openai`)"
        return
    costs, best = prices(folder / model, prompts)
    (folder / _CONFIG).write_text(_configuration(costs, best), "utf-8")
    port = free_port()
    flags = ["-c", _CONFIG, "--router-type", "grk-local", "--router-model-name", model]
    flags += ["--host", "127.0.0.1", "--port", str(port), "--api-key", _KEY]
    yield f"  $ {shlex.join(['python', '-m', 'route.openai_server', *flags])} &"
    with running(folder, ["route.openai_server", *flags], _LOG) as process:
        url = f"http://127.0.0.1:{port}"
        _wait(f"{url}/ready", process, folder / _LOG)
        yield from questions(f"{url}/v1", prompts[0], sorted(costs.values()), best)
        yield "  $ kill %1"
        stop(process, folder / _LOG)


def prices(folder: Path, prompts: Sequence[list[str]]) -> tuple[dict[str, float], str]:
    """Return a cost of each model, higher for stronger ones, and the best model for the first prompt."""
    from p2l.inference import P2L

    model = P2L.from_pretrained(folder, device="cpu")
    coefs = model.predict(prompts).coefs
    order = coefs.mean(axis=0).argsort()
    costs = {model.model_list[n]: round(1.3**rank, 2) for rank, n in enumerate(order)}
    return costs, model.model_list[int(coefs[0].argmax())]


def _configuration(costs: dict[str, float], best: str) -> str:
    import yaml

    text: str = yaml.safe_dump({"model_configs": model_configs(costs, best)}, sort_keys=False)
    return text


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


def questions(url: str, prompt: list[str], costs: list[float], best: str, key: str = _KEY) -> Iterator[str]:
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


def _wait(url: str, process: Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise P2LError(f"the router did not start; {log} says why")
