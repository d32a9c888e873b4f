"""What `p2l auto-evals` finds, as objects: all that a report shows, with nothing left to compute from votes.

Shapes: N votes, M models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.leaderboard import Leaderboard
from p2l.metrics import Interval, Reliability

__all__ = ["CategoryResult", "ModelScore", "OutputResult", "SubsetScore"]

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class SubsetScore:
    """Leaderboard metrics averaged over random subsets of one size.

    Attributes:
        size: prompts (votes) of each subset.
        samples: how many subsets were drawn.
        values: mean of each metric; a dictionary by k for top-k metrics, a dictionary by side for two-sided ones; None
            where it does not apply.
        intervals: of the means, for metrics that are one number: normal, over the subsets drawn; absent with fewer than
            two samples.
    """

    size: int
    samples: int
    values: Mapping[str, Any]
    intervals: Mapping[str, Interval]


@dataclass(frozen=True)
class ModelScore:
    """How well the votes of one model were forecast.

    Attributes:
        model: its name.
        votes: of the category, that it took part in.
        loss, accuracy: of those votes, with intervals clustered by prompt; None where no vote counts.
    """

    model: str
    votes: int
    loss: Interval | None
    accuracy: Interval | None


@dataclass(frozen=True)
class CategoryResult:
    """One category of one output.

    Attributes:
        name: as the user wrote it, `language=Chinese`.
        votes, prompts: how many there are; prompts are counted once.
        problem: why there is nothing here (no vote of this category, say), else None; then the rest is empty.
        notes: sentences a reader needs (a smaller k, models left out).
        truth: leaderboard of the ground truth, of the models that it knows (those with a vote here).
        model: leaderboard of the evaluated model on these prompts.
        simple: simple metrics, None where they do not apply.
        intervals: of the simple metrics that are means over votes, clustered by prompt.
        skill: 1 - loss / loss of the marginal leaderboard, or None; `skill_over` names the reference.
        skill_over: what the marginal leaderboard was fitted on: `train`, training votes of the category; `train, all
            votes`, where none is known to be of it; `validation`, these very votes (which it then knows); or None.
        reliability: data of the reliability diagram.
        comparison: leaderboard metrics of `model` against `truth`.
        subsets: comparison on random subsets against a fit of the same votes, by size.
        scale: comparison of subsets of prompts against the whole truth, by size.
        by_model: in the order of the ground truth, the best first.
    """

    name: str
    votes: int
    prompts: int
    problem: str | None = None
    notes: tuple[str, ...] = ()
    truth: Leaderboard | None = None
    model: Leaderboard | None = None
    simple: Mapping[str, float | None] | None = None
    intervals: Mapping[str, Interval] | None = None
    skill: Interval | None = None
    skill_over: str | None = None
    reliability: Reliability | None = None
    comparison: Mapping[str, Any] | None = None
    subsets: tuple[SubsetScore, ...] = ()
    scale: tuple[SubsetScore, ...] = ()
    by_model: tuple[ModelScore, ...] = ()


@dataclass(frozen=True)
class OutputResult:
    """One evaluated output (a checkpoint's answers, or a leaderboard in the place of one).

    Attributes:
        name: of the output file.
        source: the file or repository it was read from.
        model_type: p2l, marginal, marginal-gt or arena.
        likelihood: canonical name.
        ground_truth: marginal-gt or arena.
        models: M names, in the order of coefficients.
        votes, prompts: how many there are.
        categories: in the order asked for.
        coefs: (N, M), or (1, M) for one leaderboard; eta and gamma (N,) or None: what strengths and weaknesses need.
        texts: the N prompts as lists of turns, or None where the file has none.
        level: coverage of all intervals.
        notes: sentences a reader needs (votes left out).
    """

    name: str
    source: str
    model_type: str
    likelihood: str
    ground_truth: str
    models: tuple[str, ...]
    votes: int
    prompts: int
    categories: tuple[CategoryResult, ...]
    coefs: Floats
    eta: Floats | None = None
    gamma: Floats | None = None
    texts: Sequence[Sequence[str]] | None = None
    level: float = 0.95
    notes: tuple[str, ...] = ()
