"""Everything that has a page, made from nothing: a model, reports, a run of CoEval, and services with traffic.

    python -m tools.showroom shots                # takes pictures of every page, each size and scheme, into shots
    python -m tools.showroom docs/figures --docs  # those that the documentation shows

What takes minutes is kept in `--folder`, and made again only where it is missing. It needs Chromium (`make browser`).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
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
_COMMANDS = """
votes.parquet: p2l votes sample --made-up --output {} --scores scores.parquet
outputs/sample: p2l train --votes votes.parquet --output {}
pages/training.html: p2l report outputs/sample --html {}
arena.parquet: p2l simulate --votes 30000 --models 24 --languages 1 --sentences --output {} --quiet
pages/leaderboard.html: p2l leaderboard --votes arena.parquet --by topic --over month --html {}
pages/drift.html: p2l drift --votes arena.parquet --before 2024-01-01 --after 2024-01-01 --by topic --report {}
pages/strengths.html: p2l explain --model outputs/sample --prompts votes.parquet --html {}
pages/routing.html: p2l eval-routing --table scores.parquet --report {}
evaluation: p2l auto-evals --model_repo outputs/sample --train_path votes.parquet --output_dir metrics --report {}
held_out.parquet: p2l votes sample --made-up --output {} --votes 500 --seed 2
backbones/tiny: p2l init --votes votes.parquet --output {} --hidden-size 32
outputs/online: p2l online-train --config online.yaml --no-eval --save-steps 10
slices: p2l votes slice votes.parquet --held-out held_out.parquet --batch-size 50 --every 10 --output {}
pages/slices.html: p2l eval-chrono -m outputs/online -v slices -od chrono --report {}
benchmark/runs/local-smoke-test: coeval run --config local_smoke_test.yaml
"""
"""What each makes, `{}` in its command; it is left out where that is there."""


def build(folder: Path) -> None:
    """Make what is missing of data, models and reports."""
    (folder / "pages").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "examples/local_smoke_test.yaml", folder)
    shutil.copy(ROOT / "training_configs/deepspeed/zero1.json", folder)
    online = yaml.safe_load((ROOT / "training_configs/online/tiny.yaml").read_text("utf-8"))
    online |= {"train_data_path": "votes.parquet", "val_data_path": "votes.parquet", "batch_size": 50}
    online |= {"deepspeed_config_path": "zero1.json", "proj_name": "online"}
    (folder / "online.yaml").write_text(yaml.safe_dump(online), "utf-8")
    for line in _COMMANDS.strip().splitlines():
        made, _, command = line.partition(": ")
        if not (folder / made).exists():
            program, *words = command.format(made).split()
            print(" ", program, *words, flush=True)
            subprocess.run([_BIN / program, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    shutil.copy(folder / "evaluation/index.html", folder / "pages/evaluation.html")


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[dict[str, str]]:
    """Run endpoint, router and viewer; yield their addresses."""
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(_started(folder, "p2l", "endpoint", "--model", "outputs/sample"))
        config = _router_config()
        config["model_configs"]["chef-8b"]["options"]["failure_rate"] = 0.04
        config |= {
            "admin_key": _ADMIN_KEY,
            "database": "router.sqlite",
            "store_prompts": True,
            "teams": {"support": {"spend_per_day": 1.0}},
            "keys": [
                {"key": _KEY, "name": "shop", "spend_per_day": 2.0},
                {"key": f"{_KEY}-2", "name": "help desk", "team": "support", "requests_per_minute": 600},
                {"key": f"{_KEY}-3", "name": "arena", "cost": 0.002, "votes_per_day": 2000},
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
    return dict(yaml.safe_load((ROOT / "examples/router_mocks.yaml").read_text("utf-8")))


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
def traffic(router: str, prompts: Sequence[str]) -> Iterator[None]:
    """Ask the router again and again, with budgets of all sizes, and vote on some answers, until the block ends."""
    stop = threading.Event()
    thread = threading.Thread(target=_ask, args=(router, prompts, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _ask(router: str, prompts: Sequence[str], stop: threading.Event) -> None:
    chance = random.Random(0)
    costs = {name: model["cost"] for name, model in _router_config()["model_configs"].items()}
    connection = http.client.HTTPConnection(router.removeprefix("http://"), timeout=60)

    def post(path: str, body: dict[str, object], key: str) -> http.client.HTTPResponse:
        connection.request("POST", path, json.dumps(body), {"authorization": f"Bearer {key}"})
        response = connection.getresponse()
        response.read()
        return response

    while not stop.wait(_PAUSE * chance.uniform(0.2, 1.8)):
        key, compare = chance.choice((_KEY, _KEY, f"{_KEY}-2")), chance.random() < 0.25
        messages = [{"role": "user", "content": chance.choice(prompts)}]
        body = {"messages": messages, "cost": 10 ** chance.uniform(-3.7, -2), "compare": compare}
        answer = post("/v1/chat/completions", body, key)
        names = answer.headers.get("x-p2l-model", "").split(",")
        if answer.status == 200 and len(names) == 2:
            dearer = int(costs[names[1]] > costs[names[0]])
            better = chance.choices((dearer, 1 - dearer, "tie"), (6, 3, 1))[0]
            post("/v1/feedback", {"request_id": answer.headers["x-request-id"], "better": better}, key)


def main() -> None:
    """Build, serve and take pictures."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("output", type=Path, help="folder for the pictures")
    flags.add_argument("--folder", type=Path, default=Path("outputs/showroom"), help="where data and models are kept")
    flags.add_argument("--docs", action="store_true", help="only those that the documentation shows")
    args = flags.parse_args()
    os.environ["ADMIN_KEY"] = _ADMIN_KEY
    folder = args.folder.resolve()
    build(folder)
    args.output.mkdir(parents=True, exist_ok=True)
    with serving(folder) as services, traffic(services["router"], _prompts(folder)):
        time.sleep(_SECONDS)
        services["reports"] = (folder / "pages").as_uri()
        for path in take(services, [*SHOTS, *report_shots(folder / "pages")], args.output, args.docs):
            print(path, flush=True)


def _prompts(folder: Path) -> list[str]:
    import pandas as pd

    return [str(prompt) for prompt in pd.read_parquet(folder / "votes.parquet")["prompt"].unique()[:300]]


if __name__ == "__main__":
    main()
