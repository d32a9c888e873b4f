"""Command: the main job on real data: boards, training, serving, a routed request, and votes on a new LLM.

Nothing is downloaded. The LLMs and the votes on them are real; the providers behind the router are scripted, since a
real one needs a key.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from p2l.cli import dispatch
from p2l.common.cli import add_output, add_vote_count, need, parser, run
from p2l.common.program import shipped
from p2l.demo.services import UP, free_port, running, stop, wait_for

if TYPE_CHECKING:
    from p2l.client import P2LClient

_VOTES = 600
_NEW_LLM = "llama-3.1-70b-instruct"
"""Its votes are kept back from training, to arrive while the trained model is served."""
_PROMPTS = ("Prove that 17 is prime.", "Write a SQL query that finds customers without an order.")
_BUDGETS = (0.0002, 0.006)
"""Dollars of an answer: what a small and what a large model of `examples/router_llms.yaml` costs, and some more."""
_ROUTER_KEY = "demo-key"


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of `p2l demo`."""
    flags = parser("p2l demo", "Show the main job on real data: board, training, serving, routing, votes on a new LLM.")
    add_output(flags, "folder for everything that the demo makes", metavar="DIR", default="demo_output")
    add_vote_count(flags, "real votes of the sample, at most 2,500; with more it takes longer", default=_VOTES)
    return flags


@dataclass(frozen=True)
class _Shell:
    """Runs commands in the demo's folder and shows them as a user would type them."""

    folder: Path
    log: TextIO

    def run(self, *words: str | float, show: bool = False) -> None:
        """Run one command; what it prints is shown, or goes to the log; P2LError if it fails."""
        line = [str(word) for word in words]
        print(f"  $ {shlex.join(line)}", flush=True)
        here = Path.cwd()
        os.chdir(self.folder)
        try:
            # In this process: a new one would import torch again, which takes longer than most of the steps.
            with contextlib.nullcontext() if show else contextlib.redirect_stdout(self.log):
                dispatch(line[1:])
        finally:
            os.chdir(here)
            self.log.flush()


def main(argv: Sequence[str] | None = None) -> None:
    """Run the demo."""
    flags = build_parser().parse_args(argv)
    need("torch", "transformers", "deepspeed", "fastapi", "aiohttp", "httpx2")
    from p2l.training.run_folder import new_run_folder

    started = time.monotonic()
    target = Path(flags.output).resolve()
    folder = new_run_folder(target.parent, target.name)
    place = os.path.relpath(folder)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    print(f"Everything is made in {place}; run the commands there to repeat a step.\n")
    with (folder / "demo.log").open("w", encoding="utf-8") as log:
        shell = _Shell(folder, log)
        _show_public_boards(shell)
        new_votes = _train(shell, flags.votes)
        _serve(shell, new_votes)
    print(f"\nThat took {time.monotonic() - started:.0f} seconds. Ask the trained model about a prompt of yours:")
    print(f"  $ p2l leaderboard --model {place}/models/p2l 'Explain recursion to a child.'")
    print("With votes of your own (docs/votes/votes.md tells their format), start at step 2.")


def _show_public_boards(shell: _Shell) -> None:
    print("1. Boards of real LLMs for two prompts, by the public model of this package.\n")
    shell.run("p2l", "leaderboard", "--top", 3, *_PROMPTS, show=True)


def _train(shell: _Shell, votes: int) -> list[str]:
    """Train on the sample without the new LLM; return its votes, each a line of JSON."""
    print(f"\n2. Real votes between fourteen LLMs. Those on {_NEW_LLM} are kept for step 5.")
    shell.run("p2l", "votes", "sample", "--votes", votes, "--output", "sample.jsonl")
    lines = (shell.folder / "sample.jsonl").read_text("utf-8").splitlines(keepends=True)
    is_new = [_NEW_LLM in (vote["model_a"], vote["model_b"]) for vote in map(json.loads, lines)]
    known = [line for line, new in zip(lines, is_new, strict=True) if not new]
    (shell.folder / "votes.jsonl").write_text("".join(known), "utf-8")
    print("\n3. A model of these votes, beside one leaderboard for all prompts, on prompts it was not trained on.")
    print("   The votes are of four sets, of which each marks higher or lower: --control dataset.")
    shell.run(
        "p2l", "train", "--votes", "votes.jsonl", "--control", "dataset", "--output", "models/p2l", "--quiet", show=True
    )
    return [line for line, new in zip(lines, is_new, strict=True) if new]


def _serve(shell: _Shell, new_votes: list[str]) -> None:
    """Serve the trained model, route two requests by it, and let it learn the new LLM while it is served."""
    from p2l.client import P2LClient

    folder, port = shell.folder, free_port()
    (folder / "served").mkdir()
    flags = ["--model", "models/p2l", "--watch", "served", "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    print("\n4. The model as a service, and a router that asks it. Its providers are scripted: no real one is called.")
    print(f"  $ {shlex.join(['p2l', 'endpoint', *flags])} &", flush=True)
    log = folder / "endpoint.log"
    with running(folder, ["p2l.cli", "endpoint", *flags], log.name) as endpoint, P2LClient(url) as client:
        wait_for(UP, endpoint, log)
        _route(folder, url)
        print(f"\n5. {_NEW_LLM} is new; its {len(new_votes)} votes come in, and the board changes while it is served.")
        _show_board(client)
        (folder / "new_votes.jsonl").write_text("".join(new_votes), "utf-8")
        follow = ("--follow", "new_votes.jsonl", "--publish", "served", "--stop-when-idle", 1)
        shell.run("p2l", "online-train", "--checkpoint", "models/p2l", "--no-eval", *follow, "--publish-votes", 16)
        published = (folder / "served" / "published.jsonl").read_text("utf-8").splitlines()
        wait_for(f"revision {json.loads(published[-1])['revision']}", endpoint, log)
        _show_board(client)
        stop(endpoint, log)


def _show_board(client: P2LClient) -> None:
    print(f"  >>> P2LClient(...).leaderboard({_PROMPTS[0]!r}).rows[:4]")
    rows = client.leaderboard(_PROMPTS[0]).rows
    for row in rows[:4]:
        mark = "   <- the new LLM" if row.model == _NEW_LLM else ""
        print(f"  {row.rank}. {row.model}: beats the field of {len(rows)} {row.win_rate:.0%} of the time{mark}")
    for row in rows[4:]:
        if row.model == _NEW_LLM:
            print(f"  ... {row.rank}. {row.model}: {row.win_rate:.0%}   <- the new LLM")


def _route(folder: Path, endpoint: str) -> None:
    """Start a router before the endpoint, ask it at two budgets, and print what answered."""
    (folder / "router.yaml").write_bytes((shipped() / "examples" / "router_llms.yaml").read_bytes())
    port, log = free_port(), folder / "router.log"
    flags = ["--config", "router.yaml", "--router-model-endpoint", endpoint]
    flags += ["--host", "127.0.0.1", "--port", str(port), "--api-key", _ROUTER_KEY]
    print(f"  $ {shlex.join(['p2l-route', 'serve', *flags])} &", flush=True)
    with running(folder, ["route.openai_server", *flags], log.name) as router:
        wait_for(UP, router, log)
        for budget in _BUDGETS:
            print(_answer_text(f"http://127.0.0.1:{port}/v1/chat/completions", _PROMPTS[1], budget))
        stop(router, log)


def _answer_text(url: str, prompt: str, budget: float) -> str:
    """Return who answered a chat request with a budget, and why."""
    import httpx2

    body: dict[str, Any] = {"model": "-", "messages": [{"role": "user", "content": prompt}], "cost": budget}
    line = ["curl", url, "-H", f"authorization: Bearer {_ROUTER_KEY}", "--json", json.dumps(body)]
    reply = httpx2.post(url, json=body, headers={"authorization": f"Bearer {_ROUTER_KEY}"}, timeout=None)
    answer = reply.raise_for_status().json()
    decision = answer["router_decision"]
    shares = ", ".join(f"{name} {share:.0%}" for name, share in decision["probabilities"].items())
    said = answer["choices"][0]["message"]["content"]
    return f"  $ {shlex.join(line)}\n  {said!r}, by {answer['model']}: ${budget} an answer buys {shares}"


if __name__ == "__main__":
    run(main)
