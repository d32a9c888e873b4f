"""How well do models trained here predict votes that are no simulation? Held-out prompts, beside their baselines.

    python -m benchmarks.real_votes DATA_DIR [--output DIR]

DATA_DIR holds `mmlu_pro_scores.parquet` (which of 29 LLMs answered which question rightly) and
`arena140k_votes.parquet` (human votes with tags of their prompts). Two answers to one question make one vote: right
beats wrong, both right is a tie, both wrong is both-bad. No held-out prompt occurs among the training votes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from p2l.baselines import Forecast, Labels, marginal, per_category
from p2l.command import parser, run
from p2l.errors import InputError
from p2l.likelihood import get
from p2l.metrics import ScoredVotes, vote_values
from p2l.metrics.bootstrap import bootstrap_mean
from p2l.votes import open_votes

LIKELIHOOD = "grk"
SEED = 0
TRANSFORMER = {"vocab-size": 6000, "hidden-size": 64, "layers": 2, "heads": 4, "max-positions": 256}
P2L_RUN = {"model_type": "qwen2", "pretrain_model_name": "backbone", "learning_rate": 1e-3, "warmup_steps": 40}
# One epoch: each question has several votes, and from the second epoch on its answers are learned by heart.
P2L_RUN |= {"batch_size": 128, "num_train_epochs": 1, "max_length": 256, "weight_decay": 0.1}
TFIDF_RUN = {"model_type": "tfidf", "pretrain_model_name": "tfidf", "learning_rate": 1e-3, "max_length": 512}
TFIDF_RUN |= {"batch_size": 256, "num_train_epochs": 3}
COMMON = {
    "head_type": "rk",
    "loss_type": LIKELIHOOD,
    "train_data_path": "train.parquet",
    "output_dir": "models",
    "chat_template": "chatml",
    "adam_epsilon": 1e-8,
    "gradient_accumulation_steps": 1,
    "lr_schedule": "cosine",
    "shuffle": True,
    "seed": SEED,
    "deepspeed_config_path": "deepspeed.json",
}


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.real_votes", "Train on real votes and compare with baselines.")
    flags.add_argument("data", metavar="DATA_DIR", type=Path, help="folder with the Parquet files")
    flags.add_argument("--output", type=Path, default=Path("outputs/real_votes"), help="work folder; models are kept")
    flags.add_argument("--pairs-per-prompt", type=int, default=6, help="votes made of each question")
    flags.add_argument("--val", type=int, default=12_000, help="held-out votes")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    folder = flags.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    scores = _read(flags.data / "mmlu_pro_scores.parquet")
    votes = votes_from_scores(scores, flags.pairs_per_prompt, np.random.default_rng(SEED))
    votes.to_parquet(folder / "votes.parquet")
    questions, models = votes["question_id"].nunique(), scores["model"].nunique()
    print(f"mmlu_pro: {len(votes):,} votes on {questions:,} questions, {models} LLMs")
    split = (
        f"votes split votes.parquet --by prompt --val {flags.val} --train-output train.parquet --val-output val.parquet"
    )
    _command(folder, *split.split())
    print(compare(folder, _trained(folder)))
    print("\nHuman votes of arena140k: one leaderboard for prompts tagged math, one for the others")
    arena = (flags.data / "arena140k_votes.parquet").resolve()
    by_tag = ["--by", "tag_math", "--drop-bad", "--top", 10]
    _command(folder, "leaderboard", "--votes", arena, "--likelihood", LIKELIHOOD, *by_tag, show=True)


def votes_from_scores(scores: pd.DataFrame, per_prompt: int, rng: np.random.Generator) -> pd.DataFrame:
    """Four-way votes (question_id, prompt, category, model_a, model_b, winner) from 0/1 scores, in random order."""
    table = scores.pivot(index="question_id", columns="model", values="score")
    about = scores.drop_duplicates("question_id").set_index("question_id")[["prompt", "category"]]
    models, right = np.array(table.columns), table.to_numpy()
    rows, a, b = _pairs(right, per_prompt, rng)
    right_a, right_b = right[rows, a] > 0.5, right[rows, b] > 0.5
    winner = np.select([right_a & right_b, right_a, right_b], ["tie", "model_a", "model_b"], default="tie (bothbad)")
    ids = np.array(table.index)[rows]
    votes = pd.DataFrame({"question_id": ids, "model_a": models[a], "model_b": models[b], "winner": winner})
    votes = votes.join(about, on="question_id")
    return votes.sample(frac=1, random_state=int(rng.integers(2**31))).reset_index(drop=True)


def _pairs(right: NDArray[np.float64], per_prompt: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Rows and two different columns, `per_prompt` times a row, among the columns that have a score."""
    found = []
    for row, scores in enumerate(right):
        known = np.flatnonzero(~np.isnan(scores))
        order = np.argsort(rng.random((per_prompt, len(known))), axis=1)
        found.append(np.column_stack([np.full(per_prompt, row), known[order[:, :2]]]))
    return list(np.concatenate(found).T)


def _trained(folder: Path) -> dict[str, Path]:
    """Train both models by the commands that a user types; what is there already is not trained again."""
    (folder / "deepspeed.json").write_text('{"zero_optimization": {"stage": 0}}\n', encoding="utf-8")
    found = {}
    for name, settings in (("tfidf", TFIDF_RUN), ("p2l", P2L_RUN)):
        found[name] = folder / "models" / name
        if (found[name] / "config.json").exists():
            continue
        backbone = folder / str(settings["pretrain_model_name"])
        if not backbone.exists():
            sizes = TRANSFORMER if name == "p2l" else {}
            shape = [word for flag, size in sizes.items() for word in (f"--{flag}", size)]
            kind = ["--model-type", str(settings["model_type"])]
            _command(folder, "init", *kind, "--votes", "train.parquet", "--output", backbone.name, *shape)
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"proj_name": name, **COMMON, **settings}), "utf-8")
        started = time.monotonic()
        _command(folder, "train", "--config", f"{name}.yaml", "--no-eval")
        print(f"    trained in {(time.monotonic() - started) / 60:.1f} minutes")
    return found


def compare(folder: Path, trained: dict[str, Path]) -> str:
    """The table: losses on held-out prompts, gain over the marginal model with intervals clustered by prompt."""
    with open_votes(str(folder / "train.parquet")) as train:
        models, labels, categories = train.model_list, train.labels(), train.column("category")
    with open_votes(str(folder / "val.parquet"), model_list=models) as held:
        held_labels, prompts = held.labels(), held.prompts()
        held_categories, clusters = (
            held.column("category"),
            np.unique(held.column("question_id"), return_inverse=True)[1],
        )
    forecasts = {
        "marginal": marginal(labels, len(held_labels), models, LIKELIHOOD),
        "marginal per category": per_category(labels, categories, held_categories, models, LIKELIHOOD),
        **{name: _forecast(path, prompts) for name, path in trained.items()},
    }
    lines = [
        _Line.of(name, forecast, forecasts["marginal"], held_labels, clusters) for name, forecast in forecasts.items()
    ]
    header = f"{'forecast':<22} {'loss':>7}   {'less than marginal':<26} {'accuracy':>8} {'Brier':>7}"
    return "\n".join(
        [f"\n{len(held_labels):,} held-out votes on {clusters.max() + 1:,} questions", header, *map(str, lines)]
    )


@dataclass(frozen=True)
class _Line:
    name: str
    loss: float
    gain: tuple[float, float, float]
    accuracy: float
    brier: float

    @staticmethod
    def of(name: str, forecast: Forecast, reference: Forecast, labels: Labels, clusters: NDArray[np.int64]) -> _Line:
        losses, accuracy, brier = (_values(metric, forecast, labels) for metric in ("Loss", "Accuracy", "Brier"))
        gain = bootstrap_mean(_values("Loss", reference, labels) - losses, clusters=clusters, seed=SEED)
        interval = (float(gain.estimate), float(gain.lower), float(gain.upper))
        return _Line(name, float(losses.mean()), interval, float(accuracy.mean()), float(brier.mean()))

    def __str__(self) -> str:
        gain, low, high = self.gain
        interval = f"{gain:+.4f} [{low:+.4f}, {high:+.4f}]"
        return f"{self.name:<22} {self.loss:7.4f}   {interval:<26} {self.accuracy:8.1%} {self.brier:7.4f}"


def _values(metric: str, forecast: Forecast, labels: Labels) -> NDArray[np.float64]:
    scored = ScoredVotes(get(LIKELIHOOD), forecast.coefs, labels, forecast.eta, forecast.gamma)
    return vote_values(metric, scored)


def _forecast(path: Path, prompts: list[list[str]]) -> Forecast:
    from p2l import P2L

    said = P2L.from_pretrained(path, device="cpu").predict(prompts)
    return Forecast(said.coefs.astype(np.float64), said.eta, said.gamma)


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise InputError(f"{path}: no such file; give the folder that holds it")
    return pd.read_parquet(path)


def _command(folder: Path, *words: object, show: bool = False) -> None:
    line = [str(word) for word in words]
    print(f"  $ p2l {' '.join(line)}", flush=True)
    output = None if show else subprocess.DEVNULL
    subprocess.run([sys.executable, "-m", "p2l.cli", *line], cwd=folder, check=True, stdout=output)


if __name__ == "__main__":
    run(main)
