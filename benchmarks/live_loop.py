"""The loop router -> votes -> online training -> endpoint -> router on one machine, while a better model arrives.

    python -m benchmarks.live_loop [--votes 4000] [--keep DIR]

Every process is the one that a user starts: `p2l train`, `p2l online-train --follow`, `p2l endpoint --watch` and the
router with `explore`. Simulated people ask, see two answers and vote as the truth of the simulated arena says. The
provider of one model, better than most and cheap, opens its doors half-way; until then it refuses connections. At the
end the same prompts are decided by the routed system as it is, and by the same system with training frozen at the
arrival. Both are judged by the truth.

Win rate of a prompt: sum_i p_i mean_j W_ij, with p the router's mixture at the budget and W_ij the true probability
that model i beats model j, ties counting half.

Shapes: n prompts, M models.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import yaml
from numpy.typing import NDArray

from p2l.common.cli import parser, positive, run
from p2l.common.errors import P2LError
from p2l.demo.services import UP, free_port, running, stop, wait_for
from p2l.likelihood import get
from p2l.simulation.arena import Arena, simulate
from p2l.simulation.config import SimulationConfig
from route.routing.decision import Coefficients, RoutedModel
from route.routing.router import Router

__all__ = ["Outcome", "Settings", "live_loop", "main"]

Floats = NDArray[np.float64]
KEY = "a-key-of-the-loop"
PATIENCE = 120.0  # seconds for a model to follow the votes
PEOPLE = 6  # who ask at the same time
ROUTER_FLAGS = ("--router-type", "grk-endpoint", "--host", "127.0.0.1", "--api-key", KEY)


@dataclass(frozen=True)
class Settings:
    """What is simulated."""

    first_votes: int = 3000
    """On the models that are there from the start; the first model is trained on them offline."""
    before: int = 400
    """Votes of people before the arrival."""
    after: int = 3000
    """And after it."""
    probes: int = 400
    """Prompts that both systems are judged on; nobody votes on them."""
    models: int = 7
    topics: int = 4
    budget: float = 1.0
    new_cost: float = 0.9
    explore: float = 0.1
    seed: int = 5


@dataclass(frozen=True)
class World:
    """The arena, its prompts and its truth."""

    settings: Settings
    arena: Arena
    newcomer: int
    prompts: list[str]
    coefs: Floats  # (n, M)
    eta: Floats  # (n,)

    @property
    def names(self) -> list[str]:
        """All models."""
        return self.arena.model_list

    def verdict(self, prompt: int, a: int, b: int, chance: float) -> int:
        """What a person who draws `chance` says of the answers of a and b: 0 first, 1 second, 2 tie, 3 both bad."""
        row = slice(prompt, prompt + 1)
        odds = get("grk").probs(self.coefs[row, a], self.coefs[row, b], self.eta[row])[0]
        return int(min((odds.cumsum() < chance).sum(), 3))

    def worth(self, prompts: NDArray[np.int64]) -> Floats:
        """(n, M) true chance of each model to win against a model drawn at random, ties counting half."""
        coefs, eta = self.coefs[prompts], self.eta[prompts]
        total = np.zeros(coefs.shape)
        for other in range(coefs.shape[1]):
            wide = np.broadcast_to(coefs[:, other : other + 1], coefs.shape)
            odds = get("grk").probs(coefs.ravel(), wide.ravel(), np.repeat(eta, coefs.shape[1]))
            total += (odds[:, 0] + 0.5 * odds[:, 2:].sum(axis=1)).reshape(coefs.shape)
        return np.asarray(total / coefs.shape[1])

    def costs(self) -> dict[str, float]:
        """The stronger a model, the dearer; but the newcomer is cheap."""
        order = self.coefs.mean(axis=0).argsort()
        costs = {self.names[model]: round(0.3 * 1.5**rank, 3) for rank, model in enumerate(order)}
        return costs | {self.names[self.newcomer]: self.settings.new_cost}


@dataclass(frozen=True)
class Outcome:
    """What the loop came to; shares and win rates are means over the probe prompts at the budget."""

    frozen_rate: float
    live_rate: float
    best_rate: float
    """Of a router that knows the truth."""
    gain: float
    gain_error: float
    """Standard error over prompts."""
    frozen_share: float
    live_share: float
    best_share: float
    """Of the newcomer."""
    shares: list[float]
    """The newcomer's share of plain requests after its arrival, in tenths of them."""
    requests: int
    failures: list[str]
    published: int
    seconds: float

    def to_text(self) -> str:
        """A table."""
        tenths = " ".join(f"{share:.0%}" for share in self.shares)
        return "\n".join(
            [
                f"{'':24}{'win rate':>10}{'newcomer':>10}",
                f"{'training frozen':24}{self.frozen_rate:>10.4f}{self.frozen_share:>10.1%}",
                f"{'as it is':24}{self.live_rate:>10.4f}{self.live_share:>10.1%}",
                f"{'with the truth':24}{self.best_rate:>10.4f}{self.best_share:>10.1%}",
                f"gain {self.gain:+.4f} +- {self.gain_error:.4f} ({self.gain / self.gain_error:.1f} standard errors)",
                f"newcomer's share of the requests after its arrival, by tenths: {tenths}",
                f"{self.requests:,} requests, {len(self.failures)} failed; {self.published} models published; "
                f"{self.seconds:.0f} s",
            ]
        )


def make_world(settings: Settings) -> World:
    """An arena whose best model is the newcomer."""
    total = settings.first_votes + 2 * (settings.before + settings.after) + settings.probes
    config = SimulationConfig(
        votes=total,
        models=settings.models,
        topics=settings.topics,
        languages=1,
        effect=1.2,
        drift=0.0,
        improvement=0.0,
        seed=settings.seed,
        structures=(1.0, 0.0, 0.0, 0.0),
    )
    arena = simulate(config)
    chunks = list(arena.chunks())
    prompts = [turns[0] for chunk in chunks for turns in arena.texts(chunk).to_pylist()]
    coefs = np.concatenate([chunk.truth.coefs for chunk in chunks])
    eta = np.concatenate([chunk.truth.eta for chunk in chunks])
    return World(settings, arena, int(coefs.mean(axis=0).argmax()), prompts, coefs, eta)


def write_first_votes(world: World, path: Path) -> None:
    """Votes on all models but the newcomer, each pair alike."""
    rng = np.random.default_rng(world.settings.seed)
    old = [model for model in range(len(world.names)) if model != world.newcomer]
    words = ["model_a", "model_b", "tie", "tie (bothbad)"]
    with path.open("w", encoding="utf-8") as file:
        for prompt in range(world.settings.first_votes):
            a, b = rng.choice(old, size=2, replace=False).tolist()
            vote = {"prompt": world.prompts[prompt], "model_a": world.names[a], "model_b": world.names[b]}
            winner = words[world.verdict(prompt, a, b, rng.random())]
            file.write(json.dumps(vote | {"winner": winner, "tstamp": float(prompt)}) + "\n")


@dataclass
class People:
    """Who ask the router and vote."""

    world: World
    url: str
    failures: list[str] = field(default_factory=list)
    requests: int = 0
    chosen: list[str] = field(default_factory=list)
    """Models that plain requests went to."""
    votes: int = 0

    def __post_init__(self) -> None:
        self._client = httpx2.Client(base_url=self.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Nobody asks any more."""
        self._client.close()

    def ask(self, first: int, count: int) -> None:
        """Let people ask about `count` prompts from number `first` on: each plainly, and once to compare."""
        with ThreadPoolExecutor(PEOPLE) as crowd:
            for _ in crowd.map(self._one, range(first, first + count)):
                pass

    def _one(self, prompt: int) -> None:
        plain = self._post("/v1/chat/completions", self._chat(prompt))
        pair = self._post("/v1/chat/completions", self._chat(prompt) | {"compare": True})
        if plain is not None:
            self.chosen.append(plain["model"])
        if pair is not None and len(pair["choices"]) == 2:
            names = [choice["message"]["model"] for choice in pair["choices"]]
            a, b = (self.world.names.index(name) for name in names)
            chance = np.random.default_rng([self.world.settings.seed, prompt]).random()
            said: Any = [0, 1, "tie", "both_bad"][self.world.verdict(prompt, a, b, chance)]
            if self._post("/v1/feedback", {"request_id": pair["id"], "better": said}) is not None:
                self.votes += 1

    def _chat(self, prompt: int) -> dict[str, Any]:
        content = self.world.prompts[prompt]
        messages = [{"role": "user", "content": content}]
        return {"model": "-", "messages": messages, "cost": self.world.settings.budget}

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        with self._lock:
            self.requests += 1
        try:
            answer = self._client.post(path, json=body)
        except httpx2.HTTPError as error:
            self.failures.append(f"{path}: {error!r}")
            return None
        if answer.status_code != 200:
            self.failures.append(f"{path}: {answer.status_code} {answer.text[:200]}")
            return None
        return answer.json()

    def mixtures(self, prompts: Sequence[int]) -> Floats:
        """(n, M) what the router would do with each prompt."""
        shares = np.zeros((len(prompts), len(self.world.names)))
        for row, prompt in enumerate(prompts):
            decided = self._post("/v1/route", self._chat(prompt)) or {"probabilities": {}}
            for name, share in decided["probabilities"].items():
                shares[row, self.world.names.index(name)] = share
        return shares


def write_router(world: World, folder: Path, new_port: int) -> None:
    """What a user writes: the router's configuration."""
    newcomer = world.names[world.newcomer]
    models: dict[str, Any] = {
        name: {"name": name, "type": "mock", "cost": cost, "options": {"text": f"This is {name}."}}
        for name, cost in world.costs().items()
    }
    models[newcomer] |= {"type": "openai", "base_url": f"http://127.0.0.1:{new_port}/v1", "api_key": "-"}
    models[newcomer] |= {"prior_coef": -2.0}  # cautious: nothing is known of it
    del models[newcomer]["options"]
    router = {
        "model_configs": models,
        "database": "router.sqlite",
        "store_prompts": True,
        "explore": world.settings.explore,
        "breaker": {"failures": 3, "seconds": 1},
    }
    (folder / "router.yaml").write_text(yaml.safe_dump(router, sort_keys=False), encoding="utf-8")


def train_first(folder: Path) -> None:
    """The model that the loop begins with.

    Raises:
        P2LError: a command failed.
    """
    votes = ["--votes", "votes.jsonl", "--quiet"]
    _finish(folder, ["p2l.cli", "init", "--model-type", "tfidf", "--output", "tfidf", *votes], "init.log")
    first = ["--size", "tiny", "--backbone", "tfidf", "--output", "outputs/first", "--no-eval"]
    _finish(folder, ["p2l.cli", "train", *first, *votes], "train.log")


def _finish(folder: Path, words: list[str], log: str) -> None:
    with running(folder, words, log) as process:
        if process.wait():
            raise P2LError(f"{' '.join(words)} failed; {folder / log} says why")


@contextlib.contextmanager
def serving(folder: Path, models: str, name: str, config: str = "router.yaml") -> Iterator[tuple[str, str]]:
    """An endpoint that watches a folder of models, and a router before it: their URLs."""
    p2l, front = free_port(), free_port()
    watch = ["p2l.cli", "endpoint", "--watch", models, "--host", "127.0.0.1", "--port", str(p2l), "--api-key", KEY]
    route = ["route.openai_server", "-c", config, "--port", str(front), *ROUTER_FLAGS]
    route += ["--router-model-endpoint", f"http://127.0.0.1:{p2l}", "--router-api-key", KEY]
    with running(folder, watch, f"{name}-endpoint.log") as endpoint:
        wait_for(UP, endpoint, folder / f"{name}-endpoint.log")
        with running(folder, route, f"{name}-router.log") as router:
            wait_for(UP, router, folder / f"{name}-router.log")
            yield f"http://127.0.0.1:{p2l}", f"http://127.0.0.1:{front}"
            stop(router, folder / f"{name}-router.log")
        stop(endpoint, folder / f"{name}-endpoint.log")


def decisions(folder: Path) -> list[dict[str, Any]]:
    """What was published, and what was not."""
    path = folder / "served" / "published.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def _until(holds: Any, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            raise P2LError(f"waited {PATIENCE:.0f} s in vain until {what}")
        time.sleep(0.1)


def settle(folder: Path, endpoint: str, votes: int) -> None:
    """Wait until the endpoint serves what the trainer made of nearly all votes."""
    _until(lambda: decisions(folder)[-1]["votes"] >= votes, f"a model of {votes} votes is published")

    def is_served() -> bool:
        newest = next(entry["revision"] for entry in reversed(decisions(folder)) if entry["event"] == "published")
        info = httpx2.get(f"{endpoint}/info", headers={"api-key": KEY}, timeout=30).json()
        return bool(info["revision"] == newest)

    _until(is_served, "the endpoint serves it")


FOLLOW = (
    *("p2l.cli", "online-train", "--checkpoint", "outputs/first", "--no-eval"),
    *("--follow", "router.sqlite", "--poll", "0.2", "--publish", "served", "--publish-votes", "200", "--gate", "0.05"),
)


def live_loop(folder: Path, settings: Settings = Settings()) -> Outcome:
    """Run the loop in an empty folder.

    Raises:
        P2LError: a process failed, or one never followed.
    """
    began = time.monotonic()
    world, new_port = make_world(settings), free_port()
    write_first_votes(world, folder / "votes.jsonl")
    write_router(world, folder, new_port)
    train_first(folder)
    (folder / "served").mkdir()
    shutil.copytree(folder / "outputs" / "first", folder / "served" / "first")
    with (
        serving(folder, "served", "live") as (endpoint, url),
        running(folder, list(FOLLOW), "online.log") as trainer,
        contextlib.closing(People(world, url)) as people,
    ):
        people.ask(settings.first_votes, settings.before)
        _until(lambda: len(decisions(folder)) > 1, "a model of live votes is published")
        freeze(folder)
        mock = ["route.providers.mock", "--port", str(new_port), "--tokens", "5"]
        with running(folder, mock, "newcomer.log"):
            arrived = len(people.chosen)
            people.ask(settings.first_votes + settings.before, settings.after)
            settle(folder, endpoint, people.votes - 400)
            outcome = judge(world, folder, people, arrived, time.monotonic() - began)
        stop(trainer, folder / "online.log")
    return outcome


def freeze(folder: Path) -> None:
    """Keep what is served now, for the system whose training is frozen, and a router without a database for it."""
    newest = max((folder / "served").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    shutil.copytree(newest, folder / "frozen" / "model")
    config = yaml.safe_load((folder / "router.yaml").read_text(encoding="utf-8"))
    config |= {"database": "frozen.sqlite"}
    (folder / "frozen.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def judge(world: World, folder: Path, people: People, arrived: int, seconds: float) -> Outcome:
    """Ask both systems, and a router that knows the truth, about the probe prompts."""
    first = len(world.prompts) - world.settings.probes
    probes = np.arange(first, len(world.prompts))
    live = people.mixtures(probes.tolist())
    with (
        serving(folder, "frozen", "frozen", "frozen.yaml") as (_, url),
        contextlib.closing(People(world, url)) as other,
    ):
        frozen = other.mixtures(probes.tolist())
    best, worth, new = best_mixtures(world, probes), world.worth(probes), world.newcomer
    frozen_rates, live_rates, best_rates = ((shares * worth).sum(axis=1) for shares in (frozen, live, best))
    gains = live_rates - frozen_rates
    after = np.array([name == world.names[new] for name in people.chosen[arrived:]])
    return Outcome(
        frozen_rate=float(frozen_rates.mean()),
        live_rate=float(live_rates.mean()),
        best_rate=float(best_rates.mean()),
        gain=float(gains.mean()),
        gain_error=float(gains.std(ddof=1) / math.sqrt(len(gains))),
        frozen_share=float(frozen[:, new].mean()),
        live_share=float(live[:, new].mean()),
        best_share=float(best[:, new].mean()),
        shares=[float(part.mean()) for part in np.array_split(after, 10)],
        requests=people.requests + other.requests,
        failures=people.failures + other.failures,
        published=sum(entry["event"] == "published" for entry in decisions(folder)),
        seconds=seconds,
    )


def best_mixtures(world: World, prompts: NDArray[np.int64]) -> Floats:
    """(n, M) what the same router would do if P2L said the truth."""
    models = [RoutedModel(name, cost) for name, cost in world.costs().items()]
    router = Router(models, kind="grk-endpoint", rng=np.random.default_rng(0))
    shares = np.zeros((len(prompts), len(world.names)))
    for row, prompt in enumerate(prompts.tolist()):
        said = Coefficients(dict(zip(world.names, world.coefs[prompt].tolist(), strict=True)))
        for name, share in router.decide(said, world.settings.budget).probabilities.items():
            shares[row, world.names.index(name)] = share
    return shares


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.live_loop", "Let a better model arrive in a loop of router and trainer.")
    flags.add_argument("--votes", type=positive, default=Settings.after, help="of people after the arrival")
    flags.add_argument("--seed", type=int, default=Settings.seed)
    flags.add_argument("--keep", metavar="DIR", type=Path, help="keep everything in this new folder")
    return flags


def main(argv: Sequence[str] | None = None) -> int | None:
    """Run the benchmark."""
    args = build_parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if args.keep is None else args.keep
        folder.mkdir(parents=True, exist_ok=True)
        outcome = live_loop(folder, Settings(after=args.votes, seed=args.seed))
    print(outcome.to_text())
    for failure in outcome.failures[:5]:
        print(failure, file=sys.stderr)
    return 1 if outcome.failures else None


if __name__ == "__main__":
    run(main)
