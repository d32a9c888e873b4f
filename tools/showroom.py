"""Everything that has a page, made from public data: a model, reports, a run of CoEval, and services with traffic.

    python -m tools.showroom shots --data DIR                # takes pictures of every page, each size and scheme
    python -m tools.showroom docs/figures --data DIR --docs  # those that the documentation shows

The endpoint serves the model of the README's votes, and the router chooses with it between real LLMs by their list
prices. Nobody asks these: their answers are scripted, and say so, and votes on them are drawn from that model. What
takes minutes is kept in `--folder`, and made again only where it is missing. It needs Chromium (`make browser`).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import math
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from tools.screenshots import SHOTS, report_shots, take

ROOT = Path(__file__).resolve().parents[1]
_BIN = Path(sys.executable).parent
_ADMIN_KEY, _KEY = "the-admin-key-of-the-showroom", "the-key-of-the-showroom"
_PATIENCE = 120.0  # seconds until a service answers
_SECONDS = 40.0  # of traffic before the first picture
_PAUSE = 0.12  # between two requests
_SCRIPTED = "This is a scripted answer: the router of these pictures asks no provider."
_COMMANDS = """
votes.parquet: p2l votes sample --output {} --scores scores.parquet
outputs/sample: p2l train --votes votes.parquet --control dataset --output {}
outputs/plain: p2l train --votes votes.parquet --output {}
pages/training.html: p2l report outputs/plain --html {}
pages/leaderboard.html: p2l leaderboard --votes arena.parquet --by topic --over month --html {} \
    --plot leaderboard-history.png
simulated.parquet: p2l simulate --votes 30000 --models 24 --languages 1 --sentences --output {} --quiet
pages/drift.html: p2l drift --votes simulated.parquet --before 2024-01-01 --after 2024-01-01 --by topic --report {}
pages/strengths.html: p2l explain --model p2l-public --prompts votes.parquet --html {} --models \
    claude-3-5-sonnet-20241022 claude-3-haiku-20240307 codegemma-7b gemma-2-9b-it gpt-4-0314 gpt-4o-2024-08-06 \
    llama-3.1-70b-instruct llama-3.1-8b-instruct mathstral-7b mixtral-8x7b-instruct-v0.1 qwen2.5-7b-instruct
pages/routing.html: p2l eval-routing --table scores.parquet --report {}
evaluation: p2l auto-evals --model outputs/sample --train-path votes.parquet --output-dir metrics --report {}
stream.parquet: p2l votes sample --made-up --output {}
held_out.parquet: p2l votes sample --made-up --output {} --votes 500 --seed 2
backbones/tiny: p2l init --votes stream.parquet --output {} --hidden-size 32
outputs/online: p2l online-train --config online.yaml --no-eval --save-steps 10
slices: p2l votes slice stream.parquet --held-out held_out.parquet --batch-size 50 --every 10 --output {}
pages/slices.html: p2l eval-chrono -m outputs/online -v slices -od chrono --report {}
benchmark/runs/local-smoke-test: coeval run --config local_smoke_test.yaml
"""
"""What each makes, `{}` in its command; it is left out where that is there."""


def build(folder: Path, data: Path) -> None:
    """Make what is missing of data, models and reports."""
    (folder / "pages").mkdir(parents=True, exist_ok=True)
    if not (folder / "arena.parquet").exists():
        _arena_votes(data).to_parquet(folder / "arena.parquet", index=False)
    shutil.copy(ROOT / "examples/local_smoke_test.yaml", folder)
    shutil.copy(ROOT / "training_configs/deepspeed/zero1.json", folder)
    online = yaml.safe_load((ROOT / "training_configs/online/tiny.yaml").read_text("utf-8"))
    online |= {"train_data_path": "stream.parquet", "val_data_path": "stream.parquet", "batch_size": 50}
    online |= {"deepspeed_config_path": "zero1.json", "proj_name": "online"}
    (folder / "online.yaml").write_text(yaml.safe_dump(online), "utf-8")
    for line in _COMMANDS.replace("\\\n", " ").strip().splitlines():
        made, _, command = line.partition(": ")
        if not (folder / made).exists():
            program, *words = command.format(made).split()
            print(" ", program, *words, flush=True)
            subprocess.run([_BIN / program, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    shutil.copy(folder / "evaluation/index.html", folder / "pages/evaluation.html")


def _arena_votes(data: Path) -> Any:
    """Return public votes of people with topics, and a month that lies within the bounds which are published."""
    import pandas as pd

    votes = pd.read_parquet(data / "arena140k_votes.parquet")
    votes = votes[votes.model_a != votes.model_b]  # a model beside itself, which ten rows have, is no battle
    topics = {"math": "tag_math", "creative writing": "tag_creative_writing", "technical": "tag_technical_accuracy"}
    named = [[topic for topic, column in topics.items() if row[column]] for row in votes.to_dict("records")]
    columns = votes[["question_id", "model_a", "model_b", "winner"]]
    return columns.assign(topic=named, tstamp=pd.to_datetime(votes.month_sim).astype("int64") // 10**9)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[dict[str, str]]:
    """Run endpoint, router and viewer; yield their addresses."""
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(_started(folder, "p2l", "endpoint", "--model", "outputs/sample"))
        config = _router_config()
        for model in config["model_configs"].values():
            model["options"]["text"] = _SCRIPTED
        config["model_configs"]["gemma-2-9b-it"]["options"]["failure_rate"] = 0.04
        config |= {
            "admin_key": _ADMIN_KEY,
            "database": "router.sqlite",
            "store_prompts": True,
            "teams": {"support": {"spend_per_day": 1.0}},
            "keys": [
                {"key": _KEY, "name": "shop", "spend_per_day": 2.0},
                {"key": f"{_KEY}-2", "name": "help desk", "team": "support", "requests_per_minute": 600},
                {"key": f"{_KEY}-3", "name": "arena", "cost": 0.01, "votes_per_day": 2000},
            ],
            "arena": {"key": "arena", "per_minute": 1000},
        }
        (folder / "router.yaml").write_text(yaml.safe_dump(config), "utf-8")
        (folder / "router.sqlite").unlink(missing_ok=True)
        words = ["serve", "--config", "router.yaml", "--router-model-endpoint", endpoint, "--router-api-key", "none"]
        router = stack.enter_context(_started(folder, "p2l-route", *words))
        words = ["view", "--run", "benchmark/runs/local-smoke-test"]
        viewer = stack.enter_context(_started(folder, "coeval", *words))
        yield {"endpoint": endpoint, "router": router, "coeval": viewer}


def _router_config() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "examples/router_llms.yaml").read_text("utf-8")))


@contextlib.contextmanager
def _started(folder: Path, *words: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [str(_BIN / words[0]), *words[1:], "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + _PATIENCE
        while process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.2)
        else:
            raise SystemExit(f"{' '.join(words)} does not answer")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def traffic(folder: Path, router: str, prompts: Sequence[str]) -> Iterator[None]:
    """Ask the router again and again, with budgets of all sizes, and vote on some answers, until the block ends."""
    stop = threading.Event()
    thread = threading.Thread(target=_ask, args=(folder, router, prompts, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _ask(folder: Path, router: str, prompts: Sequence[str], stop: threading.Event) -> None:
    chance, board = random.Random(0), _scores(folder / "outputs/sample", prompts)
    connection = http.client.HTTPConnection(router.removeprefix("http://"), timeout=60)

    def post(path: str, body: dict[str, object], key: str) -> http.client.HTTPResponse:
        connection.request("POST", path, json.dumps(body), {"authorization": f"Bearer {key}"})
        response = connection.getresponse()
        response.read()
        return response

    while not stop.wait(_PAUSE * chance.uniform(0.2, 1.8)):
        key, compare = chance.choice((_KEY, _KEY, f"{_KEY}-2")), chance.random() < 0.25
        prompt = chance.choice(prompts)
        messages = [{"role": "user", "content": prompt}]
        body = {"messages": messages, "cost": 10 ** chance.uniform(-3.7, -1.5), "compare": compare}
        answer = post("/v1/chat/completions", body, key)
        names = answer.headers.get("x-p2l-model", "").split(",")
        if answer.status == 200 and len(names) == 2:
            first, second = (board[prompt][name] for name in names)
            wins = 1 / (1 + math.exp(second - first))
            better = chance.choices((0, 1, "tie"), (0.8 * wins, 0.8 * (1 - wins), 0.2))[0]
            post("/v1/feedback", {"request_id": answer.headers["x-request-id"], "better": better}, key)


def _scores(folder: Path, prompts: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return a model's coefficients of the router's LLMs on each prompt."""
    from p2l import P2L

    model = P2L.from_pretrained(folder)
    coefs = model.predict(list(prompts)).coefs
    places = {name: model.model_list.index(name) for name in _router_config()["model_configs"]}
    return {
        prompt: {name: float(row[place]) for name, place in places.items()}
        for prompt, row in zip(prompts, coefs, strict=True)
    }


def main() -> None:
    """Build, serve and take pictures."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("output", type=Path, help="folder for the pictures")
    flags.add_argument("--data", type=Path, required=True, help="folder of the sets that p2l/public/sources.yaml names")
    flags.add_argument("--folder", type=Path, default=Path("outputs/showroom"), help="where data and models are kept")
    flags.add_argument("--docs", action="store_true", help="only those that the documentation shows")
    args = flags.parse_args()
    os.environ["ADMIN_KEY"] = _ADMIN_KEY
    folder = args.folder.resolve()
    build(folder, args.data)
    args.output.mkdir(parents=True, exist_ok=True)
    with serving(folder) as services, traffic(folder, services["router"], _prompts(folder)):
        time.sleep(_SECONDS)
        services["reports"] = (folder / "pages").as_uri()
        for path in take(services, [*SHOTS, *report_shots(folder / "pages")], args.output, args.docs):
            print(path, flush=True)
    shutil.copy(folder / "leaderboard-history.png", args.output)


def _prompts(folder: Path) -> list[str]:
    import pandas as pd

    votes = pd.read_parquet(folder / "votes.parquet")
    return list(dict.fromkeys(prompt[0] for prompt in votes["prompt"] if len(prompt) == 1))[:300]


if __name__ == "__main__":
    main()
