"""Training on a stream whose topics change: plain training forgets, a replay buffer keeps what was learned.

    python examples/online_buffers.py

Topics come into fashion one after the other, and half of a topic's words go out of use. Two runs see the same votes in
the same order. Each is saved after every fifth of the stream and asked about held-out votes of all periods.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from p2l.cli import dispatch

VOTES = 8000
BATCH = 50
"""Votes of a step."""
PERIODS = 5
ARENA = "--models 12 --topics 6 --languages 1 --sentences"
CHANGE = "--effect 1.8 --fashion 3 --turnover 0.5 --drift 0 --growth 1.5 --seed 1"
# Plain: each vote once, as it comes. Replay: of each batch three tenths are votes of the past. With half, all of the
# past is replayed as soon as it is past (a vote is replayed once), and the run forgets like a plain one.
BUFFERS = {"plain": {"type": "none"}, "replay": {"type": "replay", "epsilon": 0.3}}
SETTINGS = {
    "model_type": "qwen2",
    "head_type": "rk",
    "loss_type": "grk",
    "chat_template": "chatml",
    "max_length": 192,
    "learning_rate": 1.0e-3,
    "head_learning_rate": 1.0e-2,
    "weight_decay": 1.0,
    "adam_epsilon": 1.0e-8,
    "warmup_steps": 20,
    "batch_size": BATCH,
    "gradient_accumulation_steps": 1,
}


@dataclass(frozen=True)
class Forgetting:
    """Losses of a run on each period of its stream: of the checkpoint at the period's end, and of the last one."""

    when_newest: list[float]
    at_the_end: list[float]

    @property
    def change(self) -> float:
        """Mean change of the loss on all periods but the last, in nats a vote: above zero, the run forgot."""
        pairs = list(zip(self.when_newest, self.at_the_end, strict=True))[:-1]
        return sum(end - then for then, end in pairs) / len(pairs)


def main(votes: int = VOTES) -> dict[str, Forgetting]:
    """Train both runs, print and return what each forgot."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        _make_stream(folder, votes)
        runs = {run: _run(folder, run, votes) for run in BUFFERS}
    print(f"{'loss on held-out votes of period':<36}" + "".join(f"{period + 1:>8}" for period in range(PERIODS)))
    for run, losses in runs.items():
        _print_line(f"{run}, when it was the newest", losses.when_newest)
        _print_line(f"{run}, at the end", losses.at_the_end)
    for run, losses in runs.items():
        print(f"{run}: {losses.change:+.3f} nats a vote on periods that are past (above 0: forgotten)")
    return runs


def _make_stream(folder: Path, votes: int) -> None:
    """Write the stream, held-out votes in periods, a backbone and DeepSpeed's settings."""
    stream, later = folder / "stream.parquet", folder / "later.parquet"
    files = f"--output {stream} --val {votes // 5} --val-output {later}"
    dispatch(f"simulate --votes {votes} {files} {ARENA} {CHANGE} --quiet".split())
    every = f"--batch-size {BATCH} --every {_steps_of_period(votes)}"
    dispatch(f"votes slice {stream} --held-out {later} {every} --output {folder}/periods".split())
    dispatch(f"init --votes {stream} --hidden-size 64 --output {folder}/backbone --quiet".split())
    (folder / "zero0.json").write_text(json.dumps({"zero_optimization": {"stage": 0}}), "utf-8")


def _run(folder: Path, run: str, votes: int) -> Forgetting:
    """Train one run, and read its losses on all periods."""
    settings = SETTINGS | {
        "pretrain_model_name": str(folder / "backbone"),
        "train_data_path": str(folder / "stream.parquet"),
        "output_dir": str(folder / "models"),
        "proj_name": run,
        "buffer": BUFFERS[run],
        "deepspeed_config_path": str(folder / "zero0.json"),
    }
    config = folder / f"{run}.yaml"
    config.write_text(json.dumps(settings), "utf-8")  # JSON is YAML
    dispatch(f"online-train --config {config} --no-eval --save-steps {_steps_of_period(votes)} --quiet".split())
    dispatch(
        f"eval-chrono --model {folder}/models/{run} --val-dir {folder}/periods --output-dir {folder}/on/{run}".split()
    )
    dispatch(f"visualize --eval-folder {folder}/on/{run} --output-file {folder}/figures".split())
    table = json.loads((folder / "figures" / "loss" / f"{run}.json").read_text("utf-8"))
    # Steps and periods are keys of JSON, and "10" sorts before "9".
    rows = [[table[step][period] for period in sorted(table[step], key=int)] for step in sorted(table, key=int)]
    last = rows[-1]
    return Forgetting(when_newest=[rows[number][number] for number in range(len(last))], at_the_end=last)


def _steps_of_period(votes: int) -> int:
    return max(1, votes // BATCH // PERIODS)


def _print_line(title: str, losses: list[float]) -> None:
    print(f"{title:<36}" + "".join(f"{loss:>8.3f}" for loss in losses))


if __name__ == "__main__":
    main()
