"""How often does another form of the same prompt, such as its case, spaces or wording, change the model that is chosen?

    python -m benchmarks.prompt_forms DATA_DIR [--sets routerbench oasst] [--prompts 600] [--encoder none]

A reader is trained by `p2l train --votes` on the votes of half of the prompts of a set, and routes the other half, each
prompt once as it is and once in each form:

    lower, upper    all letters
    spaces          blanks at both ends, doubled between words, and an empty line at the end
    typos           two neighbouring letters swapped in one word of twenty, at least one
    polite          "Please" or "Could you please" before it, "Thanks!" after it
    words           contractions written out or drawn together, and common words replaced by others of the same meaning
    punctuation     the last mark dropped, or a full stop added

Printed by set and form: the share of prompts whose best model is another one (`best`), or is under a budget half way,
by logarithm, between the cheapest model and the best choice of each prompt (`budget`, with the same random draw; only
where the set has costs); how far scores move; and what the change costs: the score of the model that is best for the
prompt as it is, less that of the one that is chosen by the other form, both by the scores of the prompt as it is.
`another` is beside them: the share for a prompt of the same set drawn at random, what a change of meaning makes.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmarks.tables import share, table
from p2l.common.cli import parser, positive, run
from p2l.inference import P2L
from route.evaluation.features import votes_between
from route.routing.decision import Coefficients, RoutedModel
from route.routing.router import Router

__all__ = ["main"]

Floats = npt.NDArray[np.float64]
Form = Callable[[str, np.random.Generator], str]
_WORDS = {
    "what is": "what's", "do not": "don't", "cannot": "can't", "it is": "it's", "i am": "i'm", "you are": "you're",
    "write": "compose", "create": "make", "explain": "describe", "which": "what", "following": "given",
    "return": "give back", "function": "method", "large": "big", "small": "little", "most likely": "probably",
    "find": "determine", "begin": "start", "sentence": "statement", "choose": "pick",
}  # fmt: skip
_BOTH_WAYS = {**_WORDS, **{second: first for first, second in _WORDS.items()}}
_PHRASE = re.compile(r"\b(" + "|".join(map(re.escape, sorted(_BOTH_WAYS, key=len, reverse=True))) + r")\b", re.I)


def _spaces(text: str, _: np.random.Generator) -> str:
    return "  " + re.sub(r"(?<=\S) (?=\S)", "  ", text) + " \n\n"


def _typos(text: str, rng: np.random.Generator) -> str:
    words = re.split(r"(\s+)", text)
    long = [place for place, word in enumerate(words) if len(word) > 3 and word.isalpha()]
    for place in rng.permutation(long)[: max(1, len(long) // 20)]:
        word, at = words[place], int(rng.integers(1, len(words[place]) - 2))
        words[place] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return "".join(words)


def _polite(text: str, rng: np.random.Generator) -> str:
    begin = ("Please help me with this: ", "Could you please answer this? ")[int(rng.integers(2))]
    return f"{begin}{text} Thanks!"


def _words(text: str, _: np.random.Generator) -> str:
    def other(match: re.Match[str]) -> str:
        word = _BOTH_WAYS[match[0].lower()]
        return word.capitalize() if match[0][0].isupper() else word

    return _PHRASE.sub(other, text)


def _punctuation(text: str, _: np.random.Generator) -> str:
    bare = text.rstrip()
    return bare[:-1] if bare.endswith((".", "?", "!", ":")) else f"{bare}."


FORMS: Mapping[str, Form] = {
    "lower": lambda text, _: text.lower(),
    "upper": lambda text, _: text.upper(),
    "spaces": _spaces,
    "typos": _typos,
    "polite": _polite,
    "words": _words,
    "punctuation": _punctuation,
}


@dataclass
class Prompts:
    """A set: votes to train on, and prompts to route."""

    votes: pd.DataFrame
    tests: list[list[str]]
    """Turns; the last one takes the forms."""
    costs: Mapping[str, float] | None


def routerbench(folder: Path, rng: np.random.Generator) -> Prompts:
    """Graded answers of eleven models, with the dollars of each call."""
    rows = pd.read_parquet(folder / "routerbench_subset.parquet")
    table = rows.pivot(index="question_id", columns="model", values="score").dropna()
    texts = rows.drop_duplicates("question_id").set_index("question_id").loc[table.index, "prompt"].tolist()
    half = rng.random(len(texts)) < 0.5
    names = np.array(table.columns)
    places = np.flatnonzero(half)
    prompt, labels = votes_between(table.to_numpy()[places], rng)
    winner = np.array(["model_a", "tie", "tie (bothbad)"])[labels[:, 2]]
    votes = pd.DataFrame(
        {
            "prompt": [texts[places[row]] for row in prompt],
            "model_a": names[labels[:, 0]],
            "model_b": names[labels[:, 1]],
            "winner": winner,
        }
    )
    costs = {str(name): float(cost) for name, cost in rows.groupby("model")["cost"].mean().items()}
    return Prompts(votes, [[texts[place]] for place in np.flatnonzero(~half)], costs)


def oasst(folder: Path, rng: np.random.Generator) -> Prompts:
    """Conversations of people in many languages, with verdicts on eight models."""
    rows = pd.read_parquet(folder / "oasst_vicuna_gpt4_battles.parquet")
    names = rows["question_id"].unique()
    half = set(names[rng.random(len(names)) < 0.5])
    is_train = rows["question_id"].isin(half)
    tests = rows[~is_train].drop_duplicates("question_id")["prompt"]
    return Prompts(rows[is_train][["prompt", "model_a", "model_b", "winner"]], [list(turns) for turns in tests], None)


SETS = {"routerbench": routerbench, "oasst": oasst}


def train(votes: pd.DataFrame, folder: Path, encoder: str | None) -> P2L:
    """Train as the command does."""
    file = folder / "votes.parquet"
    votes.to_parquet(file)
    command = [sys.executable, "-m", "p2l.train", "--votes", str(file), "--size", "reader", "--quiet"]
    command += ["--output", str(folder / "model"), "--no-eval", *(["--encoder", encoder] if encoder else [])]
    subprocess.run(command, check=True, capture_output=True)
    return P2L.from_pretrained(folder / "model")


@dataclass
class Routed:
    """What a router does with prompts, N of them."""

    scores: Floats
    """(N, M)"""
    best: list[str]
    budget: list[str]


def route(model: P2L, prompts: Sequence[Sequence[str]], costs: Mapping[str, float] | None, budget: float) -> Routed:
    """Choose for each prompt without a budget, and with it by the same random numbers for every form."""
    output = model.predict([list(turns) for turns in prompts])
    kind = "grk-endpoint" if model.likelihood.grounded else "bt-endpoint"
    names = list(model.model_list)
    arms = [RoutedModel(name, 1.0 if costs is None else costs[name]) for name in names]
    scores, best, limited = [], [], []
    for number, coefs in enumerate(output.coefs):
        router = Router(arms, kind=kind, rng=np.random.default_rng(number))
        coefficients = Coefficients(dict(zip(names, coefs.tolist(), strict=True)))
        decision = router.decide(coefficients, None)
        scores.append([decision.scores[name] for name in names])
        best.append(decision.model)
        limited.append(router.decide(coefficients, budget).model if costs is not None else "")
    return Routed(np.array(scores), best, limited)


def rows_of(name: str, prompts: Prompts, model: P2L, most: int, rng: np.random.Generator) -> list[list[str]]:
    """Return the lines of a set."""
    picked = [prompts.tests[place] for place in rng.permutation(len(prompts.tests))[:most]]
    names = list(model.model_list)
    costs, budget = prompts.costs, 0.0
    if costs is not None:
        free = route(model, picked, costs, max(costs.values()))
        dearest = np.mean([costs[choice] for choice in free.best])
        budget = float(np.sqrt(min(costs.values()) * dearest))
    plain = route(model, picked, costs, budget)
    changed = {form: [[*turns[:-1], change(turns[-1], rng)] for turns in picked] for form, change in FORMS.items()}
    changed["another"] = [picked[place] for place in rng.permutation(len(picked))]
    lines = []
    for form, others in changed.items():
        now = route(model, others, costs, budget)
        moved = [first != second for first, second in zip(plain.best, now.best, strict=True)]
        limited = [first != second for first, second in zip(plain.budget, now.budget, strict=True)]
        lost = [
            row[names.index(first)] - row[names.index(second)]
            for row, first, second in zip(plain.scores, plain.best, now.best, strict=True)
        ]
        differs = np.mean([first != second for first, second in zip(picked, others, strict=True)])
        lines.append(
            [
                *(name, form, share(differs), share(np.mean(moved), 1)),
                share(np.mean(limited), 1) if costs is not None else "",
                *(f"{np.abs(now.scores - plain.scores).mean():.4f}", f"{np.mean(lost):.4f}"),
            ]
        )
    return lines


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.prompt_forms", "Route prompts in other forms, and count other choices.")
    flags.add_argument("data", metavar="DATA_DIR", type=Path, help="folder of the Parquet files")
    flags.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), help="which sets")
    flags.add_argument("--prompts", type=positive, default=600, help="prompts of each set")
    flags.add_argument("--encoder", help="of the reader: a folder or none (default: that of the extra)")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    flags = build_parser().parse_args(argv)
    lines = []
    for name in flags.sets:
        rng = np.random.default_rng(20)
        prompts = SETS[name](flags.data, rng)
        with tempfile.TemporaryDirectory() as folder:
            model = train(prompts.votes, Path(folder), flags.encoder)
            lines += rows_of(name, prompts, model, flags.prompts, rng)
    print(table(["set", "form", "prompts that differ", "best", "budget", "scores move", "score lost"], lines))


if __name__ == "__main__":
    run(main)
