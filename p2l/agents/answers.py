"""The tools of `p2l mcp` as functions: a board, a recommendation, a comparison, a training run, a check of votes.

Each returns a model of pydantic, which is what a client gets as structured content, and raises InputError with a line
that says what to do. Without a model the public one answers, and the result says so.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import BaseModel, Field

from p2l.common.errors import InputError
from p2l.common.prompts import MAX_CHARS, familiarity_note, unfamiliar_note
from p2l.leaderboard import to_score
from p2l.leaderboard.newton import shift_invariant
from p2l.likelihood import win_rates, win_rates_if
from p2l.people.vote_file import examine_file
from p2l.public import PUBLIC, Names

if TYPE_CHECKING:
    from p2l.inference import P2L

_MOST_PROMPTS = 1000
_Z = 1.6449
"""Standard deviations of a 90 % interval."""
_LOADING = Lock()
"""Who asks while a model is loaded waits for it, and does not load another."""


class BoardRow(BaseModel):
    """A model's place on the board of a prompt."""

    rank: int
    model: str
    score: float = Field(description="400 points more are odds of 10 to 1")
    win_rate: float = Field(description="chance of winning a vote against another model of the board, ties half")
    lower: float | None = Field(description="end of the 90 % interval of win_rate; null where the model tells none")
    upper: float | None


class PromptBoard(BaseModel):
    """The leaderboard of a prompt."""

    by: str = Field(description="which P2L made it")
    familiarity: float | None = Field(description="1: the prompt's own board; 0: the overall one")
    note: str = Field(description="what a reader of the board needs to know; may be empty")
    unknown: list[str] = Field(description="models that were asked for and that the P2L does not know")
    rows: list[BoardRow]


class Recommendation(BaseModel):
    """The model to ask."""

    model: str
    reason: str
    cost: float | None = Field(description="dollars of an answer, as they were given")
    board: PromptBoard


class ComparedPrompt(BaseModel):
    """Two models on one prompt."""

    prompt: int = Field(description="its place among the prompts that were given, from 0")
    win_rate: float = Field(description="chance that a wins a vote against b, ties half")
    surely: str | None = Field(description="the model on whose side the 90 % interval of the difference is; or null")
    familiarity: float | None


class ComparedModels(BaseModel):
    """Two models on some prompts."""

    by: str
    a: str
    b: str
    prompts: int
    win_rate: float = Field(description="mean chance that a wins a vote against b on these prompts, ties half")
    better_on: int = Field(description="prompts on which a is likelier to win")
    surely_a: int = Field(description="prompts on which the 90 % interval of the difference is on the side of a")
    surely_b: int
    note: str
    rows: list[ComparedPrompt] = Field(description="each prompt, that where a is likeliest to win first")


class TrainedModel(BaseModel):
    """What a training run ended with."""

    folder: str
    helps: bool = Field(description="whether it forecasts votes on unseen prompts better, beyond chance")
    verdict: str
    loss: float = Field(description="nats a vote, on prompts that were not trained on")
    loss_of_one_leaderboard: float
    gain: float = Field(description="nats a vote that the loss is lower by, with its 95 % interval")
    gain_lower: float
    gain_upper: float


class CheckedVotes(BaseModel):
    """Whether a file of votes can be used."""

    usable: bool
    votes: int
    models: int
    prompts: int | None
    problems: list[str] = Field(description="rows that are not votes; empty where all can be used")
    shown: list[str] = Field(description="what decides the votes beside the models, repeats, and who has most of them")
    voters: list[str] = Field(description="voters who do not vote like people; p2l leaderboard --weigh-voters weighs")
    report: str


Prompt = Annotated[str, Field(description="what a user would ask an LLM", min_length=1, max_length=MAX_CHARS)]
ModelFolder = Annotated[str | None, Field(description="a trained P2L: folder or hub id; null: the public one")]


def leaderboard(prompt: Prompt, models: list[str] | None = None, p2l: ModelFolder = None, top: int = 20) -> PromptBoard:
    """Return how good LLMs are expected to be at one prompt, best first, with intervals.

    `models` names those of interest; without it the best `top` of all that are known.
    """
    p2l_model = _loaded(p2l)
    chosen = _chosen(p2l_model, models)
    return _board(p2l_model, _by(p2l), prompt, chosen, top)


def recommend(
    prompt: Prompt,
    budget: Annotated[float | None, Field(description="most dollars that an answer may cost", ge=0)] = None,
    models: Annotated[
        dict[str, float] | list[str] | None,
        Field(description="the models to choose from: names, or names with the dollars that an answer costs"),
    ] = None,
    p2l: ModelFolder = None,
) -> Recommendation:
    """Return which model to ask: the one that is expected to answer best within the budget."""
    costs = dict(models) if isinstance(models, Mapping) else {}
    if budget is not None and not costs:
        raise InputError(
            "a budget needs the cost of an answer for each model: models={'NAME': DOLLARS, ...}; "
            "tokens of the prompt and of a usual answer times the provider's prices give it"
        )
    wrong = next((name for name, cost in costs.items() if not 0 <= cost < float("inf")), None)
    if wrong is not None:
        raise InputError(f"models: {wrong}: the cost of an answer must be dollars from 0 on, not {costs[wrong]}")
    names = [name for name in (models or []) if budget is None or costs[name] <= budget]
    if budget is not None and not names:
        cheapest = min(costs, key=costs.__getitem__)
        raise InputError(f"budget {budget:g}: the cheapest, {cheapest}, costs {costs[cheapest]:g}; raise the budget")
    p2l_model = _loaded(p2l)
    chosen = _chosen(p2l_model, names if models else None)
    board = _board(p2l_model, _by(p2l), prompt, chosen, len(chosen.names))
    best = board.rows[0]
    too_dear = [name for name in costs if budget is not None and costs[name] > budget]
    reason = f"expected to win {best.win_rate:.0%} of votes against the other models asked for on this prompt"
    if len(board.rows) == 1:
        reason = "the only one of them that this P2L knows and that the budget buys"
    reason += f"; unknown: {', '.join(board.unknown)}" if board.unknown else ""
    reason += f"; over the budget: {', '.join(too_dear)}" if too_dear else ""
    return Recommendation(model=best.model, reason=reason, cost=costs.get(best.model), board=board)


def compare(
    a: str,
    b: str,
    prompts: Annotated[list[Prompt], Field(min_length=1, max_length=_MOST_PROMPTS)],
    p2l: ModelFolder = None,
) -> ComparedModels:
    """Return how often model `a` is expected to beat model `b` on some prompts, on which, and where that is sure."""
    p2l_model = _loaded(p2l)
    chosen = _chosen(p2l_model, [a, b])
    if chosen.unknown or len(chosen.places) != 2:
        raise InputError(_unknown_text(p2l_model, chosen.unknown or [b]))
    first, second = chosen.places
    prediction = p2l_model.predict(prompts)
    pairs = prediction.coefs[:, [first, second]].astype(float)
    rates = win_rates(pairs, p2l_model.likelihood, prediction.eta, prediction.gamma)[:, 0]
    gaps = pairs[:, 0] - pairs[:, 1]
    sure = np.zeros(len(gaps))
    if prediction.variances is not None:
        reach = _Z * prediction.difference_sd([first], [second])[:, 0]
        sure = np.where(np.abs(gaps) > reach, np.sign(gaps), 0.0)
    familiarity = [None] * len(gaps) if prediction.familiarity is None else prediction.familiarity.tolist()
    rows = [
        ComparedPrompt(
            prompt=place,
            win_rate=round(float(rates[place]), 4),
            surely={1.0: a, -1.0: b}.get(float(sure[place])),
            familiarity=familiarity[place],
        )
        for place in np.argsort(-rates, kind="stable")
    ]
    return ComparedModels(
        by=_by(p2l),
        a=a,
        b=b,
        prompts=len(gaps),
        win_rate=float(rates.mean()),
        better_on=int((gaps > 0).sum()),
        surely_a=int((sure > 0).sum()),
        surely_b=int((sure < 0).sum()),
        note=unfamiliar_note([share for share in familiarity if share is not None]),
        rows=rows,
    )


def train(
    votes: Annotated[str, Field(description="a file of votes with prompt, model_a, model_b and winner")],
    output: Annotated[str, Field(description="folder for the trained P2L; must be new")],
) -> TrainedModel:
    """Train a P2L on votes and return whether it forecasts unseen votes better than one leaderboard; takes minutes."""
    if Path(output).exists():
        raise InputError(f"{output}: exists; give a new folder")
    command = [sys.executable, "-m", "p2l.train", "--votes", votes, "--output", output, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")] or done.stderr.splitlines()
        raise InputError(lines[-1].removeprefix("error: ") if lines else f"training ended with {done.returncode}")
    from p2l.training.run_records import HeldOutComparison

    measured = HeldOutComparison.read(Path(output))
    if measured is None:
        raise InputError(
            f"{output}: was trained, but holds no comparison with one leaderboard; run p2l report {output}"
        )
    gain = measured.gain
    return TrainedModel(
        folder=output,
        helps=bool(measured.factor != 0 and gain.lower > 0),
        verdict=measured.verdict,
        loss=measured.model["Loss"],
        loss_of_one_leaderboard=measured.one_leaderboard["Loss"],
        gain=float(gain.estimate),
        gain_lower=float(gain.lower),
        gain_upper=float(gain.upper),
    )


def votes_check(path: Annotated[str, Field(description="a file of votes")]) -> CheckedVotes:
    """Return whether a file of votes can be trained on, each problem with its row, and what the votes show."""
    examined = examine_file(path)
    report = examined.report
    return CheckedVotes(
        usable=report.is_fit,
        votes=report.votes,
        models=len(report.models),
        prompts=report.prompts,
        problems=list(report.problems),
        shown=examined.shown,
        voters=examined.voters,
        report=examined.text(),
    )


TOOLS = (leaderboard, recommend, compare, train, votes_check)


@dataclass(frozen=True)
class _Chosen:
    """Models that were asked for, by their names there and their places in the P2L's list."""

    names: list[str]
    places: list[int]
    unknown: list[str] = field(default_factory=list)


def read_ahead() -> None:
    """Load the public model, so that the first board comes as fast as the next; P2LError where it cannot be loaded."""
    _loaded(None).predict("hello")


def _loaded(name: str | None) -> P2L:
    with _LOADING:
        return _load(name)


@lru_cache(maxsize=2)
def _load(name: str | None) -> P2L:
    from p2l.inference import P2L

    return P2L.public() if name is None else P2L.from_pretrained(name)


def _by(name: str | None) -> str:
    if name is not None and name != PUBLIC:
        return name
    from p2l.public.model import public_note

    return public_note()


def _chosen(p2l_model: P2L, names: Sequence[str] | None) -> _Chosen:
    """Return the places of models; InputError where the P2L knows none of them."""
    known = {name: place for place, name in enumerate(p2l_model.model_list)}
    if names is None:
        return _Chosen(list(known), list(known.values()))
    matched = Names.load().matched(names, known)
    unknown = [name for name in names if name not in matched]
    if not matched:
        raise InputError(_unknown_text(p2l_model, unknown))
    return _Chosen(list(matched), [known[model] for model in matched.values()], unknown)


def _unknown_text(p2l_model: P2L, unknown: Sequence[str]) -> str:
    return f"this P2L knows no {', '.join(unknown)}; it knows {', '.join(p2l_model.model_list)}"


def _board(p2l_model: P2L, by: str, prompt: str, chosen: _Chosen, top: int) -> PromptBoard:
    """Return the board of the chosen models alone: win rates are against one another."""
    prediction = p2l_model.predict([prompt])
    coefs = prediction.coefs[:1, chosen.places]
    sides = [None if values is None else float(values[0]) for values in (prediction.eta, prediction.gamma)]
    rates = win_rates(coefs[0], p2l_model.likelihood, *sides)
    lower = upper = None
    if prediction.variances is not None and prediction.basis is not None and len(chosen.places) > 1:
        basis = prediction.basis[chosen.places]
        contrasts = (basis - basis.mean(axis=0)) * (len(basis) / (len(basis) - 1))
        reach = _Z * np.sqrt(prediction.variances[0] @ (contrasts**2).T)
        lower, upper = (
            win_rates_if(coefs[0] + sign * reach, coefs[0], p2l_model.likelihood, *sides) for sign in (-1, 1)
        )
    familiarity = None if prediction.familiarity is None else float(prediction.familiarity[0])
    scores = to_score(coefs[0] - coefs[0].mean() if shift_invariant(p2l_model.likelihood) else coefs[0])
    rows = [
        BoardRow(
            rank=rank,
            model=chosen.names[place],
            score=round(float(scores[place]), 1),
            win_rate=round(float(rates[place]), 4),
            lower=None if lower is None else round(float(lower[place]), 4),
            upper=None if upper is None else round(float(upper[place]), 4),
        )
        for rank, place in enumerate(np.argsort(-coefs[0], kind="stable")[: max(1, top)], 1)
    ]
    return PromptBoard(
        by=by,
        familiarity=familiarity,
        note=familiarity_note(familiarity),
        unknown=chosen.unknown,
        rows=rows,
    )
