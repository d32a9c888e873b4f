"""`p2l-route verify`: a swap behind the same name shows, and the same model does not look like one."""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from p2l.common.errors import ConfigError, InputError
from route.evaluation.same_model import PROMPTS, Reply, differences
from route.verify import main

WORDS = ("the", "river", "carries", "small", "boats", "under", "old", "bridges", "while", "light")


class Model:
    """A model at temperature 0: the same words for a prompt but for a slip here and there."""

    def __init__(self, name: str, *, seed: int = 0, length: int = 30, has_logprobs: bool = True) -> None:
        self.name, self.seed, self.length, self.has_logprobs = name, seed, length, has_logprobs
        self.noise = random.Random(seed + 99)
        self.bodies: list[dict[str, Any]] = []

    def answer(self, prompt: str) -> dict[str, Any]:
        draw = random.Random(f"{self.seed} {prompt}")
        words = draw.choices(WORDS, k=self.length + draw.randint(0, 10))
        if self.noise.random() < 0.3:  # from some place on it says something else
            place = self.noise.randrange(len(words))
            words[place:] = self.noise.choices(WORDS, k=len(words) - place)
        share = 0.5 + 0.4 * draw.random() + 0.01 * self.noise.random()
        top = [{"token": words[0], "logprob": math.log(share)}, {"token": "other", "logprob": math.log(1 - share)}]
        message = {"role": "assistant", "content": " ".join(words)}
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "stop"}
        if self.has_logprobs:
            choice["logprobs"] = {"content": [{**top[0], "top_logprobs": top}]}
        usage = {"prompt_tokens": len(prompt) // 4 + 5, "completion_tokens": len(words)}
        return {"id": "c", "model": self.name, "choices": [choice], "usage": usage}


@contextmanager
def serving(models: list[Model]) -> Iterator[str]:
    """A provider that answers as the last of some models."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            model = models[-1]
            model.bodies.append(body)
            status, told = 200, model.answer(body["messages"][0]["content"])
            if body.get("logprobs") and not model.has_logprobs:
                status, told = 400, {"error": {"message": "logprobs is not supported", "param": "logprobs"}}
            text = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def flags(folder: Path, url: str, **changes: Any) -> list[str]:
    model = {"name": "m-1", "type": "openai", "base_url": url, "api_key": "k", "cost": 1, **changes}
    path = folder / "router.yaml"
    path.write_text(yaml.safe_dump({"model_configs": {"frontier": model}}), encoding="utf-8")
    return ["-c", str(path), "--model", "frontier", "--record", str(folder / "days.jsonl")]


@pytest.mark.parametrize("has_logprobs", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_swap_behind_the_same_name_shows(
    tmp_path: Path, has_logprobs: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [Model("m-1", seed=1, has_logprobs=has_logprobs)]
    with serving(models) as url:
        args = flags(tmp_path, url)
        assert main(args) is None
        assert "first day is recorded" in capsys.readouterr().out
        body = models[0].bodies[-1]
        assert (body["temperature"], body["model"]) == (0, "m-1")
        assert main(args) is None
        told = capsys.readouterr().out
        assert "no change shows" in told
        assert ("first-token probabilities" in told) == has_logprobs
        models.append(Model("m-1", seed=2, has_logprobs=has_logprobs))
        assert main(args) == 1
        assert "ANOTHER MODEL answers" in capsys.readouterr().out
    days = [json.loads(line) for line in (tmp_path / "days.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(days) == 3
    assert days[0]["served"] == ["m-1"]
    assert len(days[0]["replies"]) == len(PROMPTS)


def test_mistakes_end_in_one_line(tmp_path: Path) -> None:
    with serving([Model("m-1")]) as url:
        args = flags(tmp_path, url)
        with pytest.raises(ConfigError, match="no model 'frontir'"):
            main([*args, "--model", "frontir"])
        with pytest.raises(ConfigError, match="no deployment 'west'"):
            main([*args, "--deployment", "west"])
        with pytest.raises(InputError, match="has no 2020-01-01"):
            main([*args, "--against", "2020-01-01"])
        (tmp_path / "days.jsonl").write_text('{"date": 1}\n', encoding="utf-8")
        with pytest.raises(InputError, match=r"days.jsonl:1: is no line"):
            main(args)


def replies(model: Model, repeats: int = 3) -> list[list[Reply]]:
    return [[Reply.of(model.answer(prompt)) for _ in range(repeats)] for prompt in PROMPTS]


@pytest.mark.slow
def test_the_same_model_is_seldom_taken_for_another() -> None:
    model = Model("m-1", seed=3)
    alarms = [any(each.is_change for each in differences(replies(model, 2), replies(model, 2))) for _ in range(5)]
    assert not any(alarms)


def test_a_model_with_longer_answers_or_another_tokenizer_shows_by_that_alone() -> None:
    before = replies(Model("m-1", seed=3, length=60))
    changed = {each.of for each in differences(before, replies(Model("m-1", seed=3, length=90))) if each.is_change}
    assert "lengths" in changed
    counted = [[Reply(r.text, (r.prompt_tokens or 0) + 1, r.tokens, r.first) for r in group] for group in before]
    changed = {each.of for each in differences(before, counted) if each.is_change}
    assert changed == {"tokens of the prompts"}
