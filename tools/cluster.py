"""A whole deployment on one Debian machine, tried and torn down again: `make cluster`, or `python -m tools.cluster`.

Three routers behind HAProxy share a PostgreSQL and a Redis and ask a P2L endpoint on Ray Serve (a plain one where Ray
is not installed). A small model is trained on simulated votes; requests at three budgets go through HAProxy, a router
is killed meanwhile, and votes are counted in the database. Everything listens on loopback and is in one folder.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import yaml

from p2l.common.errors import P2LError
from tools.services import Servers, ServiceError, environment, free_port, program

ROUTERS = 3
KEY, ADMIN_KEY = "a-key-of-the-cluster", "the-admin-key-of-the-cluster"
_HAPROXY = ("haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")
_PATIENCE = 180.0
_SIMULATION = "--models 8 --topics 4 --languages 1 --effect 1.2 --drift 0 --seed 1 --sentences"


class Cluster:
    """The processes, in the order of their start."""

    def __init__(self, folder: Path) -> None:
        """Start nothing yet."""
        self.folder = folder
        self.servers = Servers(folder / "servers")
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = {name: free_port() for name in ("endpoint", "haproxy", *router_names())}

    def run(self, name: str, words: Sequence[str | Path], env: dict[str, str] | None = None) -> None:
        """Start a process; its log is NAME.log."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.programs[name] = subprocess.Popen(
                [str(word) for word in words], cwd=self.folder, env=env, stdout=log, stderr=log
            )

    def python(self, name: str, module: str, *flags: str | Path) -> None:
        """Start a module of this project, without keys of this environment."""
        env = {key: text for key, text in os.environ.items() if not key.startswith("P2L_")}
        self.run(name, [sys.executable, "-m", module, *flags], env)

    def wait(self, name: str, path: str) -> None:
        """Wait until a program answers; P2LError if it does not."""
        late = time.monotonic() + _PATIENCE
        while time.monotonic() < late and self.programs[name].poll() is None:
            with contextlib.suppress(OSError):  # also what urllib raises
                urllib.request.urlopen(f"http://127.0.0.1:{self.ports[name]}{path}", timeout=10).close()
                return
            time.sleep(0.1)
        raise P2LError(f"{name} did not start; {self.folder / f'{name}.log'} says why")

    def stop(self) -> None:
        """End everything, the last first."""
        for process in reversed(self.programs.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(60)
            process.kill()
            process.wait()
        self.servers.stop()


def router_names() -> list[str]:
    """Return the names of the routers."""
    return [f"router-{number}" for number in range(ROUTERS)]


def main(argv: Sequence[str] | None = None) -> int:
    """Build the cluster, use it, and tear it down; return 0 if every request was answered."""
    flags = argparse.ArgumentParser(prog="python -m tools.cluster", description=__doc__)
    flags.add_argument("--requests", type=int, default=60, help="besides those at three budgets")
    flags.add_argument("--plain", action="store_true", help="a plain endpoint, even where Ray is installed")
    args = flags.parse_args(argv)
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="p2l-cluster-"))
    cluster = Cluster(folder)
    try:
        for line in _story(cluster, args.requests, plain=args.plain):
            print(line, flush=True)
    except (P2LError, ServiceError) as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        cluster.stop()
    shutil.rmtree(folder)
    print(f"torn down; that took {time.monotonic() - started:.0f} s")
    return 0


def _story(cluster: Cluster, requests: int, *, plain: bool) -> Iterator[str]:
    cluster.servers.start()
    yield f"PostgreSQL on 127.0.0.1:{cluster.servers.postgres_port}, Redis on 127.0.0.1:{cluster.servers.redis_port}"
    _train(cluster.folder)
    yield "a model, trained on 4,000 simulated votes"
    kind = "plain" if plain or importlib.util.find_spec("ray") is None else "on Ray Serve, two replicas"
    flags = ["--workers", "2", "--score-cache", cluster.servers.redis_url, *(["--ray"] if "Ray" in kind else [])]
    place = ["--host", "127.0.0.1", "--port", str(cluster.ports["endpoint"])]
    cluster.python("endpoint", "p2l.endpoint", "-m", "model", "--no-cuda", "--api-key", KEY, *place, *flags)
    cluster.wait("endpoint", "/health")
    yield f"a P2L endpoint ({kind}) on 127.0.0.1:{cluster.ports['endpoint']}"
    asked = json.loads((cluster.folder / "prompts.json").read_text(encoding="utf-8"))
    costs, best = _costs_of(cluster.folder / "model", asked)
    for name in router_names():
        _start_router(cluster, name, _scripted_models(costs, best))
    for name in router_names():
        cluster.wait(name, "/ready")
    _start_haproxy(cluster)
    cluster.wait("haproxy", "/ready")
    yield f"{ROUTERS} routers behind HAProxy on 127.0.0.1:{cluster.ports['haproxy']}"
    url = f"http://127.0.0.1:{cluster.ports['haproxy']}/v1"
    yield from _ask(url, asked[0][0], sorted(costs.values()))
    yield from _load(cluster, url, [prompt[0] for prompt in asked], requests)


def _costs_of(folder: Path, prompts: Sequence[list[str]]) -> tuple[dict[str, float], str]:
    """Return a cost of each model, higher for stronger ones, and the best model for the first prompt."""
    from p2l.inference import P2L

    model = P2L.from_pretrained(folder, device="cpu")
    coefs = model.predict(prompts).coefs
    order = coefs.mean(axis=0).argsort()
    costs = {model.model_list[n]: round(1.3**rank, 2) for rank, n in enumerate(order)}
    return costs, model.model_list[int(coefs[0].argmax())]


def _scripted_models(costs: dict[str, float], best: str) -> dict[str, Any]:
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


def _ask(url: str, prompt: str, costs: list[float]) -> Iterator[str]:
    """Send the prompt at three budgets, and once more as a stream; yield lines to print."""
    from openai import OpenAI

    chat = OpenAI(base_url=url, api_key=KEY).chat.completions
    request: dict[str, Any] = {"model": "-", "messages": [{"role": "user", "content": prompt}]}
    for budget in (costs[0], costs[len(costs) // 2], costs[-1]):
        answer = chat.create(**request, extra_body={"cost": budget}).to_dict()
        yield f"  at {budget}: {answer['choices'][0]['message']['content']!r}"
        attempts = answer["router_decision"]["attempts"]
        if len(attempts) > 1:
            yield f"    tried {' -> '.join(attempts)}"
    chunks = chat.create(**request, stream=True, extra_body={"cost": costs[-1]})
    words = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    yield f"  as a stream: {'|'.join(words)}"


def _train(folder: Path) -> None:
    """Write the folder `model`, and some of the prompts that it was not trained on."""
    import pandas as pd

    for line in (
        f"simulate --votes 4000 --output votes.parquet --val 200 --val-output others.parquet {_SIMULATION} --quiet",
        "init --model-type tfidf --votes votes.parquet --output words --quiet",
        "train --votes votes.parquet --val others.parquet --size tiny --backbone words --output model",
    ):
        with (folder / "train.log").open("ab") as log:
            words = [sys.executable, "-m", "p2l.cli", *line.split()]
            done = subprocess.run(words, cwd=folder, stdout=log, stderr=log, check=False)
        if done.returncode:
            raise P2LError(f"p2l {line.split()[0]} failed; {folder / 'train.log'} says why")
    prompts = [
        list(turns) if not isinstance(turns, str) else [turns]
        for turns in pd.read_parquet(folder / "others.parquet", columns=["prompt"])["prompt"]
    ]
    (folder / "prompts.json").write_text(json.dumps(prompts), encoding="utf-8")


def _start_router(cluster: Cluster, name: str, models: dict[str, Any]) -> None:
    config = {
        "model_configs": models,
        "keys": [{"key": KEY, "name": "demo", "spend_per_day": 1000}],
        "admin_key": ADMIN_KEY,
        "database": cluster.servers.postgres_url,
        "limits": cluster.servers.redis_url,
        "journal": f"{name}.journal.sqlite",
    }
    path = cluster.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    endpoint = f"http://127.0.0.1:{cluster.ports['endpoint']}"
    flags = ["--router-type", "grk-endpoint", "--router-model-endpoint", endpoint, "--router-api-key", KEY]
    place = ["--host", "127.0.0.1", "--port", str(cluster.ports[name])]
    cluster.python(name, "route.openai_server", "-c", path, *flags, *place)


def _start_haproxy(cluster: Cluster) -> None:
    """Start the balancer: a router that is gone or not ready gets nothing, and no request is lost with it."""
    servers = "\n".join(
        f"  server {name} 127.0.0.1:{cluster.ports[name]} check inter 500ms fall 2 rise 1" for name in router_names()
    )
    text = f"""global
  maxconn 256
defaults
  mode http
  timeout connect 2s
  timeout client 60s
  timeout server 610s
  option redispatch
  retries 2
  retry-on conn-failure empty-response
frontend clients
  bind 127.0.0.1:{cluster.ports["haproxy"]}
  default_backend routers
backend routers
  balance roundrobin
  option httpchk GET /ready
  http-response set-header x-router %s
{servers}
"""
    path = cluster.folder / "haproxy.cfg"
    path.write_text(text, encoding="utf-8")
    place = cluster.folder / "haproxy"
    cluster.run("haproxy", [program("haproxy", place, _HAPROXY), "-db", "-f", path], environment(place))


def _load(cluster: Cluster, url: str, prompts: Sequence[str], requests: int) -> Iterator[str]:
    """Send requests and votes on them, one router being killed on the way, and count them in the database."""
    victim = router_names()[0]
    by_router: Counter[str] = Counter()
    votes = 0
    for number in range(requests):
        if number == requests // 2:
            cluster.programs[victim].kill()
        body = {"model": "-", "messages": [{"role": "user", "content": prompts[number % len(prompts)]}]}
        headers, _ = _post(f"{url}/chat/completions", body)
        by_router[headers["x-router"]] += 1
        if number % 3 == 0:
            _post(f"{url}/feedback", {"request_id": headers["x-request-id"], "thumbs": "up"})
            votes += 1
    with psycopg.connect(cluster.servers.postgres_url) as session:
        row = session.execute("SELECT count(*) FROM votes").fetchone()
    stored = 0 if row is None else row[0]
    answered = ", ".join(f"{count} by {name}" for name, count in sorted(by_router.items()))
    yield f"{requests} requests answered ({answered}; {victim} was killed half-way), {stored} of {votes} votes stored"
    if stored != votes:
        raise P2LError(f"{votes - stored} votes were lost")


def _post(url: str, body: dict[str, Any]) -> tuple[Any, bytes]:
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.headers, response.read()
    except urllib.error.HTTPError as error:
        raise P2LError(f"{url}: {error.code} {error.read().decode(errors='replace')[:200]}") from error


if __name__ == "__main__":
    sys.exit(main())
