"""Command: the whole story on one page: votes of a simulated arena, a model trained on them, and what it learned.

Nothing is downloaded. The truth of the arena is known, so a table shows how much of what can be learned was learned.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from p2l.cli import dispatch
from p2l.common.cli import add_output, add_vote_count, need, parser, run

if TYPE_CHECKING:
    from p2l.demo.tables import Held


SIMULATION = {"models": 12, "topics": 6, "languages": 1, "effect": 1.2, "drift": 0.0, "seed": 1}
VOTES = 30_000
HELD_OUT = 0.2
"""Held-out votes, as a share of those trained on."""
STREAM = 4 / 15
"""Votes of the stream, as a share of them."""
ZERO0 = '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 0}}\n'
"""A DeepSpeed configuration for one process on a CPU."""
_BATCH = 32
_EPOCHS = 3
_CONFIG = f"""\
# A quarter of the votes a step that `p2l train --votes --size tiny` would take, at half of its learning rate: the
# transformer has to learn word order as well as words, and what it lacks for that is steps.
pretrain_model_name: backbone
model_type: qwen2
head_type: rk
loss_type: grk
chat_template: chatml
max_length: 96

train_data_path: votes.parquet
val_data_path: held_out.parquet
output_dir: models
proj_name: p2l

batch_size: {_BATCH}
gradient_accumulation_steps: 1
num_train_epochs: {_EPOCHS}
learning_rate: 1.0e-3
lr_schedule: cosine
warmup_steps: WARM_UP
weight_decay: 0.01
adam_epsilon: 1.0e-8
deepspeed_config_path: zero0.json
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of `p2l demo`."""
    flags = parser("p2l demo", "Simulate votes, train a prompt-to-leaderboard model on them, and show what it learned.")
    add_output(flags, "folder for everything that the demo makes", metavar="DIR", default="demo_output")
    add_vote_count(flags, "training votes; with fewer it is faster and learns less", default=VOTES)
    return flags


@dataclass(frozen=True)
class Shell:
    """Runs commands in the demo's folder and shows them as a user would type them."""

    folder: Path
    log: TextIO

    def run(self, *words: str | float) -> None:
        """Run one command; its output goes to the log, its progress bar to the terminal; P2LError if it fails."""
        line = [str(word) for word in words]
        print(f"  $ {shlex.join(line)}", flush=True)
        here = Path.cwd()
        os.chdir(self.folder)
        try:
            # In this process: a new one would import torch again, which takes longer than most of the steps.
            with contextlib.redirect_stdout(self.log):
                dispatch(line[1:])
        finally:
            os.chdir(here)
            self.log.flush()


def main(argv: Sequence[str] | None = None) -> None:
    """Run the demo."""
    flags = build_parser().parse_args(argv)
    need("torch", "transformers", "deepspeed", "fastapi")
    from p2l.training.run_folder import new_run_folder

    started = time.monotonic()
    target = Path(flags.output).resolve()
    folder = new_run_folder(target.parent, target.name)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    print(f"Everything is made in {os.path.relpath(folder)}; run the commands there to repeat a step.\n")
    with (folder / "demo.log").open("w", encoding="utf-8") as log:
        shell = Shell(folder, log)
        _simulate(shell, flags.votes)
        _train(shell, flags.votes)
        _report(shell, flags.votes)
    print(f"\nThat took {(time.monotonic() - started) / 60:.1f} minutes. Ask the model about a prompt of yours:")
    print(f"  $ p2l leaderboard --model {os.path.relpath(folder)}/models/p2l 'Explain the new script and the loop.'")
    print("With votes of your own (docs/votes/votes.md tells their format), start at step 2.")


def _simulate(shell: Shell, votes: int) -> None:
    print(
        "1. Votes. People ask questions and vote for one of two answers; which model is good depends on the question."
    )
    print("   (Simulated: every question is made up of a few topics, and the truth is known.)")
    flags = [word for name, value in SIMULATION.items() for word in (f"--{name}", value)]
    files = ("--output", "votes.parquet", "--val-output", "held_out.parquet", "--truth", "truth")
    shell.run("p2l", "simulate", "--votes", votes, "--val", round(HELD_OUT * votes), *files, "--sentences", *flags)


def _train(shell: Shell, votes: int) -> None:
    print("\n2. Training a text model on them: a tiny transformer from scratch, which reads.")
    print("   Each vote pulls the coefficients of its two models apart, for prompts like that one.")
    warm_up = max(1, _EPOCHS * votes // _BATCH // 20)
    (shell.folder / "p2l.yaml").write_text(_CONFIG.replace("WARM_UP", str(warm_up)), "utf-8")
    (shell.folder / "zero0.json").write_text(ZERO0, "utf-8")
    size = ("--hidden-size", 64, "--vocab-size", 2000)
    shell.run("p2l", "init", "--votes", "votes.parquet", *size, "--output", "backbone")
    # Six looks at the held-out votes; one every 60 steps would take as long as the training.
    shell.run("p2l", "train", "--config", "p2l.yaml", "--eval-steps", _EPOCHS * votes // _BATCH // 6 + 1)
    votes_of = ("--votes", "votes.parquet", "--val", "held_out.parquet")
    print("\n3. A bag of words, which only counts, in one line that derives every setting.")
    shell.run("p2l", "init", "--model-type", "tfidf", "--votes", "votes.parquet", "--output", "tfidf")
    shell.run("p2l", "train", *votes_of, "--size", "tiny", "--backbone", "tfidf", "--output", "models/bag-of-words")


def _report(shell: Shell, votes: int) -> None:
    from p2l.demo.online import show_online
    from p2l.demo.services import show_endpoint, show_router
    from p2l.demo.tables import held_out, leaderboards, loss_table

    folder = shell.folder
    held: Held = held_out(folder)
    print(f"\n4. How well is each of {len(held.labels):,} held-out votes forecast? (nats a vote, lower is better)\n")
    print(loss_table(held))
    print(
        "\ngap closed: how far from the first line, which reads no prompt, to the last, where there is no more to learn"
    )
    print("\n5. Leaderboards of three kinds of prompt: what is true, and what the model says (higher wins more often).")
    for text in leaderboards(held):
        print(f"\n{text}")
    print("\n6. The evaluation suite on the held-out votes, as a report; and what each model is good at.")
    pages = ("--output-dir", "metrics", "--html", "report")
    shell.run("p2l", "auto-evals", "--model", "models/p2l", "--train-path", "votes.parquet", *pages)
    # Clusters of prompts are named by their words; nobody told the command the topics.
    answers = ("--answers", "models/p2l/eval_output.jsonl", "--model-list", "models/p2l/model_list.json")
    files = ("--votes", "held_out.parquet", "--output", "strengths.json", "--plot", "strengths.png")
    shell.run("p2l", "explain", *answers, "--likelihood", "grk", *files)
    place = os.path.relpath(shell.folder)
    print(f"  Open {place}/report/index.html (it works offline) and {place}/strengths.png.")
    print("\n7. The same model as a service, for programs in any language.")
    topics = held.arena.topics
    prompts = [held.arena.example_prompts(topic, 1).prompts[0] for topic in topics[:2]]
    for line in show_endpoint(folder, "models/p2l", prompts):
        print(line, flush=True)
    print("\n8. Votes as a stream, each as it comes: topics come into fashion and go, and new models arrive. Two runs,")
    print("   one with a replay buffer, are saved after every fifth of it and asked about all of it up to then.")
    for line in show_online(folder, shell.run, round(STREAM * votes)):
        print(line, flush=True)
    print("\n9. A router before twelve providers (mocks, which cost nothing), asked with the official openai client.")
    for line in show_router(folder, "models/p2l", held.arena.example_prompts(topics[0], 40).prompts):
        print(line, flush=True)


if __name__ == "__main__":
    run(main)
