"""The card of the public model as a page: sources, licences, held-out loss by source, and limits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from p2l.common.bootstrap import bootstrap_mean
from p2l.leaderboard import fit
from p2l.likelihood import get, vote_losses
from p2l.people import SourceFit
from p2l.votes.schema import WINNERS
from tools.public_votes import Frame, sources

Floats = npt.NDArray[np.float64]
_PAGE = Path(__file__).parent.parent / "docs" / "evaluate" / "public-model.md"
_FOLDS = 5


@dataclass(frozen=True)
class Overall:
    """The overall board of all models, on the scale of people's votes."""

    coefs: dict[str, float]
    """Logits of each model."""
    eta: float
    new: list[str]
    """Models that only sets without texts have."""
    joint: SourceFit
    """The joint leaderboard of all sets that are votes."""


def write_card(votes: Frame, left_out: list[str], overall: Overall, run: Path, made: str, unused: Frame) -> None:
    """Write the card into the documentation; `unused` votes of people are those that the overall board did not see."""
    models = sorted({*votes.model_a, *votes.model_b})
    losses = held_out(run, models)
    judges = {judge.judge: judge for judge in overall.joint.judges}
    rows = []
    for source in sources():
        if source.name in left_out:
            continue
        judge = judges.get(source.name)
        sharp = "1 (people)" if judge is None else f"{judge.scale:.2f}"
        sharp = "from the board" if source.name == "boards2026" else sharp
        of_source = votes[votes.dataset == source.name]
        size = (
            f"{len(of_source):,} on {of_source.prompt.map(tuple).nunique():,} prompts" if len(of_source) else "levels"
        )
        origin = f"[{source.name}]({source.address}): {source.about}"
        rows.append(f"| {origin} | {source.licence} | {source.date} | {size} | {sharp} |")
    names = {source.name: source for source in sources()}
    gone = "; ".join(f"{name} ({names[name].about}; {names[name].licence})" for name in left_out)
    text = _CARD.format(
        made=made,
        models=len(models),
        levels=len(overall.new),
        votes=f"{len(votes):,}",
        prompts=f"{votes.prompt.map(tuple).nunique():,}",
        sources="\n".join(rows),
        gone=gone,
        losses="\n".join(losses),
        of_people=loss_of_people(overall, unused),
    )
    _PAGE.write_text(text, encoding="utf-8")


def held_out(run: Path, models: list[str]) -> list[str]:
    """Return the rows of a table of losses by source: of one leaderboard of the source, and of the model.

    Each vote is forecast by a model, and by a leaderboard, that did not see its prompt.
    """
    with (run / "eval_output.jsonl").open(encoding="utf-8") as lines:
        records: Frame = pd.DataFrame([json.loads(line) for line in lines])
    effects = {}
    for row in json.loads((run / "covariates.json").read_text(encoding="utf-8"))["covariates"]:
        effects[row["value"], row["role"]] = row["effect"]
    labels, likelihood = np.array(records["labels"].tolist()), get("grk")
    place = {name: number for number, name in enumerate(models)}
    codes = np.stack([records[side].map(place).to_numpy() for side in ("model_a", "model_b")], axis=1)
    won_by_b = labels[:, 0] != codes[:, 0]
    level, ties, lean = (
        np.array([effects.get((name, role), 0.0) for name in records.dataset])
        for role in ("level", "ties", "difference")
    )
    lean = np.where(won_by_b, -lean, lean)
    coefs = np.array(records["betas"].tolist()) + level[:, None]
    rows = np.arange(len(coefs))
    coefs[rows, labels[:, 0]] += lean / 2
    coefs[rows, labels[:, 1]] -= lean / 2
    of_model = _losses(coefs, records["eta"].to_numpy() + ties, labels)
    fold = pd.factorize(records.prompt.map(tuple))[0] % _FOLDS
    winner = records.winner.map({name: number for number, name in enumerate(WINNERS)}).to_numpy()
    table = []
    for name in dict.fromkeys(records.dataset):
        inside = (records.dataset == name).to_numpy()
        of_board = np.full(len(records), np.nan)
        for number in range(_FOLDS):
            train, test = inside & (fold != number), np.flatnonzero(inside & (fold == number))
            if not len(test) or not train.any():  # votes on a single prompt forecast no other
                continue
            board = fit(
                codes[train, 0],
                codes[train, 1],
                winner[train],
                models=models,
                likelihood=likelihood.name,
                intervals=None,
            )
            eta = np.full(len(test), board.eta)
            of_board[test] = _losses(np.tile(board.coefs, (len(test), 1)), eta, labels[test])
        counts = inside & np.isfinite(of_board)
        if not counts.any():
            table.append(f"| {name} | {int(inside.sum()):,}, on one prompt | - | - | - |")
            continue
        gain = bootstrap_mean(
            (of_board - of_model)[counts], clusters=pd.factorize(records.prompt.map(tuple))[0][counts]
        )
        table.append(
            f"| {name} | {int(counts.sum()):,} | {of_board[counts].mean():.4f} | {of_model[counts].mean():.4f} "
            f"| {gain.estimate:.4f} ({gain.lower:.4f} to {gain.upper:.4f}) |"
        )
    return table


def loss_of_people(overall: Overall, unused: Frame) -> str:
    """Return a sentence on votes of people: the loss of the overall board, and of one fitted to these votes."""
    likelihood = get("grk")
    models = list(overall.coefs)
    place = {name: number for number, name in enumerate(models)}
    a, b = (unused[side].map(place).to_numpy() for side in ("model_a", "model_b"))
    winner = unused.winner.map({name: number for number, name in enumerate(WINNERS)}).to_numpy()
    labels = np.stack([np.where(winner == 1, b, a), np.where(winner == 1, a, b), np.maximum(winner - 1, 0)], axis=1)
    own = fit(a, b, winner, models=models, likelihood=likelihood.name, intervals=None)
    boards = ((np.array(list(overall.coefs.values())), overall.eta), (own.coefs, own.eta), (0 * own.coefs, own.eta))
    losses = [_losses(np.tile(coefs, (len(a), 1)), np.full(len(a), eta), labels).mean() for coefs, eta in boards]
    return (
        f"Of {len(unused):,} votes of people in the arena that it was not fitted to, the overall board has a loss of "
        f"{losses[0]:.4f}, a board fitted to these very votes {losses[1]:.4f}, no board {losses[2]:.4f}."
    )


def _losses(coefs: Floats, eta: Floats, labels: npt.NDArray[np.int64]) -> Floats:
    """Return the loss (N,) of votes under grk."""
    return np.asarray(vote_losses(get("grk"), coefs, labels, eta, None), dtype=np.float64)


_CARD = """# The public model

A small P2L of real LLMs is part of the package. `p2l leaderboard "PROMPT"` without `--model`, `p2l endpoint`,
`p2l.P2L.public()` and a router without a P2L of its own read with it, and say so in a line. It was made on {made} by
`python -m tools.public_model` from the public sets below, whose licences allow it.

It knows {models} models by {votes} votes on {prompts} prompts, and {levels} newer ones by their place on public
boards. Its encoder is the one of the extra `encoder`; the trained layers are less than five megabytes.
With the extra `light` or `cpu` it answers on a CPU without torch: OpenVINO reads, NumPy does the rest
([installation](../start/install.md)).

```python
from p2l import P2L

model = P2L.public()
print(model.leaderboard("Prove that 17 is prime.").head())
```

## Where it is from

The overall board is on the scale of people's votes in the arena. The other sets have beside it how high they mark (a
level and a share of ties), how sharply they tell models apart, and tastes of their own for models, all fitted together:
a model that only answered graded questions stands as far from the others as such a result is worth to people. A prompt
like the graded ones gets a board of its own, by right answers. What the reader says of these is divided by how much
more sharply they tell models apart than people do, so that every score is on the scale of people's votes. Names are
joined by `p2l/public/names.yaml`, sets are listed in `p2l/public/sources.yaml`.

| set | licence | date | votes | sharpness |
|---|---|---|---|---|
{sources}

Left out, because they share too few models with the others: {gone}.

## How well it forecasts

Loss in nats a vote, on prompts that neither had seen (five folds by prompt), beside one leaderboard for each set:

| set | votes | one leaderboard of the set | this model | gain (95 % interval over prompts) |
|---|---:|---:|---:|---|
{losses}

{of_people}

## What it does not know

- What people prefer in one poem, or in one piece of advice, rather than another. Requests without a right answer have
  votes on models of 2023 alone, so that the others stand where the overall board has them, and the board says so.
  `familiarity` is the share of the board that is the prompt's own, in the mean over models.
- How the {levels} models that only the arena's sets have answer graded questions: they go from prompt to prompt as
  models of their level go, with an interval as wide as that guess.
- How old and new models compare: few models have both graded answers and votes of the arena's newest years.
- The votes of the arena stand under its own rules; the public board of 2026 is a copy of published scores, not votes.

## Made from other votes

`python -m tools.public_model` reads a folder of the files that `p2l/public/sources.yaml` names; each
entry has the public address that it is from. Votes with their texts from the hub train a model of your own in one
command:

<!-- not run: it takes the votes from the hub -->
```bash
p2l train --votes lmarena-ai/arena-human-preference-140k --output outputs/arena
```
"""
