"""Battles of a file of votes on which people voted, with what judges say of them and of others.

A battle is a question (`question_id`, else the prompt) and two models. Votes on it by several judges make one forecast:
the mean of their verdicts. Votes of people on battles without a verdict count as they are: what the forecasts take away
is shared among those that have one.

Shapes: N votes, n votes of people, B battles, K outcomes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p2l.common.errors import InputError
from p2l.leaderboard.fitting import suited
from p2l.leaderboard.newton import winner_targets
from p2l.likelihood import get
from p2l.people.powered import Battles, Powered, fit_powered
from p2l.people.sources import by_people, find_people, sources_of
from p2l.votes import VoteStore, open_votes
from p2l.votes.splitting import hash_prompts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_QUESTION = "question_id"


class JudgedBattles(NamedTuple):
    """Votes of people, forecasts (n, K) of their battles, and battles on which judges alone voted."""

    votes: Battles
    forecasts: Floats
    others: Battles
    paired: int
    """Votes of people on battles of which judges say something."""


def judged_battles(votes: VoteStore, people: str, likelihood: str) -> JudgedBattles:
    """Return the battles of a store; the models are numbered as in its list."""
    model, is_person = get(likelihood), by_people(votes, people)
    pairs, labels = votes.pairs().astype(np.int64), votes.labels()
    b_won = labels[:, 0] != pairs[:, 0]
    winner = np.where(labels[:, 2] > 0, labels[:, 2] + 1, b_won)
    outcomes = np.asarray(winner_targets(model)[winner], dtype=np.float64)
    swapped = pairs[:, 0] > pairs[:, 1]
    names = [{"win": "loss", "loss": "win"}.get(name, name) for name in model.outcomes]
    outcomes[swapped] = outcomes[swapped][:, [model.outcomes.index(name) for name in names]]
    low, high = pairs.min(axis=1), pairs.max(axis=1)
    _, at, battle = np.unique(
        np.stack([_questions(votes), low, high], axis=1), axis=0, return_index=True, return_inverse=True
    )
    battle = battle.reshape(-1)
    verdicts = np.bincount(battle[~is_person], minlength=len(at))
    sums = np.stack([np.bincount(battle[~is_person], column, len(at)) for column in outcomes[~is_person].T], axis=1)
    means: Floats = np.asarray(sums / np.maximum(verdicts, 1)[:, None], dtype=np.float64)
    own = battle[is_person]
    paired = verdicts[own] > 0
    share = len(own) / max(1, int(paired.sum()))
    alone = np.flatnonzero((verdicts > 0) & (np.bincount(own, minlength=len(at)) == 0))
    return JudgedBattles(
        Battles(low[is_person], high[is_person], outcomes[is_person]),
        np.where(paired[:, None], means[own] * share, 0.0),
        Battles(low[at[alone]], high[at[alone]], means[alone]),
        int(paired.sum()),
    )


def powered_board(source: Any, people: str | None, *, likelihood: str | None = None, **options: Any) -> Powered:
    """Return the leaderboard of people's votes in a file, narrowed by the verdicts of judges in it.

    `people` is what the column `source` calls people (None: human, or people), `likelihood` by default the one with the
    outcomes that occur in people's votes, `options` those of `fit_powered`. InputError without verdicts of judges.
    """
    with open_votes(source, need_prompt=False) as votes:
        name = find_people(sources_of(votes), people, votes.name)
        if name is None:
            raise InputError(f"{votes.name}: has no verdicts of judges (column 'source', of people and of others)")
        if likelihood is None:
            ties = votes.labels(np.flatnonzero(by_people(votes, name)))[:, 2]
            decided, tied, both_bad = np.bincount(ties, minlength=3).tolist()
            likelihood = suited(np.array([decided, 0.0, tied, both_bad]))
        judged = judged_battles(votes, name, likelihood)
        if judged.paired < 2:
            raise InputError(f"{votes.name}: judges say nothing of battles that people voted on")
        if not len(judged.others):
            raise InputError(
                f"{votes.name}: every verdict of a judge is on a battle that people voted on, and only those on "
                "further battles narrow intervals; add these, or fit people's votes alone"
            )
        parts = (judged.votes, judged.forecasts, judged.others)
        return fit_powered(*parts, models=votes.model_list, likelihood=likelihood, **options)


def _questions(votes: VoteStore) -> Ints:
    """Return a number (N,) for each vote's question."""
    if _QUESTION not in votes.columns:
        return np.unique(np.asarray(hash_prompts(votes)), return_inverse=True)[1].astype(np.int64)
    numbers: dict[Any, int] = {}
    codes = np.empty(len(votes), dtype=np.int64)
    for ids, batch in votes.batches():
        codes[ids] = [numbers.setdefault(value, len(numbers)) for value in batch.column(_QUESTION).to_pylist()]
    return codes
