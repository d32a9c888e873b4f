"""Whether a committee of a finished run and earlier ones beside it would forecast their held-out votes better.

Runs that were trained on the same votes hold the same ones out (or deal them into the same folds), and each has written
its forecasts into `eval_output.jsonl`. So the mean of their coefficients is known without computing anything: starting
with the run itself, models are added as long as the loss falls, and the committee is offered where it is better than
the best of its members by an interval. It was chosen on the votes that it is measured on, of which the interval knows
nothing; the choice is one of a few.

Shapes: N votes, M models.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2l.common.errors import P2LError
from p2l.common.files import parse_json
from p2l.likelihood import counted, get, vote_losses
from p2l.metrics import Interval, bootstrap_mean
from p2l.model.checkpoint import read_model_list, read_object
from p2l.model.committee import COMMITTEE_FILE
from p2l.training.run_folder import candidates

FORECASTS = "eval_output.jsonl"
MOST_RUNS, MOST_BYTES = 20, 1 << 28
_PARAMETERS = ("betas", "eta", "gamma")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Run:
    """A finished run and its forecasts."""

    folder: Path
    likelihood: str
    model_list: list[str]
    votes: list[tuple[Any, Any]]
    """(N,) prompt and labels."""
    forecasts: dict[str, Floats]
    """betas (N, M), and eta and gamma (N,) where the likelihood has them."""

    def matches(self, other: _Run) -> bool:
        """Whether both can be members of one committee, and were measured on the same votes."""
        kinds = (self.likelihood, self.model_list, self.forecasts.keys(), self.votes)
        return kinds == (other.likelihood, other.model_list, other.forecasts.keys(), other.votes)


@dataclass(frozen=True)
class Offer:
    """A committee that is better than each of its members."""

    members: tuple[Path, ...]
    output: Path
    gain: Interval
    """Nats per vote over the best member, 95 % interval clustered by prompt."""

    @property
    def command(self) -> str:
        """The command that builds it."""
        return shlex.join(["p2l", "committee", *map(str, self.members), "--output", str(self.output)])

    def to_text(self) -> str:
        """Return one line."""
        gain = self.gain
        return (
            f"A committee is better than the best of its members by {gain.estimate:.4f} nats per vote (95 % interval "
            f"{gain.lower:.4f} to {gain.upper:.4f}): {self.command}"
        )


def offer(folder: Path) -> Offer | None:
    """Return the committee of the run in `folder` and runs beside it that wins on their held-out votes, if one does."""
    own = _read(folder)
    if own is None:
        return None
    others = [run for path in _beside(folder) if (run := _read(path)) is not None and run.matches(own)]
    chosen, left = [own], others
    while left:
        best = min(left, key=lambda run: float(_losses([*chosen, run]).mean()))
        if _losses([*chosen, best]).mean() >= _losses(chosen).mean():
            break
        chosen, left = [*chosen, best], [run for run in left if run is not best]
    if len(chosen) == 1:
        return None
    alone = min((_losses([run]) for run in chosen), key=lambda losses: float(losses.mean()))
    prompts = np.unique([json.dumps(prompt) for prompt, _ in own.votes], return_inverse=True)[1]
    gain = bootstrap_mean(alone - _losses(chosen), clusters=prompts[_counted(own)])
    if not gain.lower > 0:
        return None
    output = next(path for path in candidates(folder.with_name(f"{folder.name}-committee")) if not path.exists())
    return Offer(tuple(run.folder for run in chosen), output, gain)


def _beside(folder: Path) -> list[Path]:
    """Return the folders beside this one that hold forecasts, the newest first."""
    try:
        paths = [path for path in folder.parent.iterdir() if path.name != folder.name and (path / FORECASTS).is_file()]
        return sorted(paths, key=lambda path: -(path / FORECASTS).stat().st_mtime_ns)[:MOST_RUNS]
    except OSError:
        return []


def _read(folder: Path) -> _Run | None:
    """Return a run, None for a folder that holds no finished one, or forecasts of something else."""
    try:
        record = read_object(folder / "config.json")["p2l"]
        if (folder / COMMITTEE_FILE).exists() or (folder / FORECASTS).stat().st_size > MOST_BYTES:
            return None
        with (folder / FORECASTS).open("rb") as file:
            rows = [parse_json(line) for line in file]
        names = [name for name in _PARAMETERS if name in rows[0]]
        forecasts = {name: np.array([row[name] for row in rows], dtype=np.float64) for name in names}
        models = read_model_list(folder)
        votes = [(row["prompt"], row["labels"]) for row in rows]
        if forecasts["betas"].shape != (len(rows), len(models)):
            return None
        return _Run(folder, str(record["loss_type"]), models, votes, forecasts)
    except (P2LError, OSError, ValueError, LookupError, TypeError):
        return None


def _counted(run: _Run) -> NDArray[np.bool_]:
    return np.asarray(counted(get(run.likelihood), _labels(run)) > 0)


def _labels(run: _Run) -> NDArray[np.int32]:
    return np.array([labels for _, labels in run.votes], dtype=np.int32)


def _losses(runs: list[_Run]) -> Floats:
    """Return the loss of each vote that counts when the runs' coefficients are averaged."""
    first, likelihood = runs[0], get(runs[0].likelihood)
    mean = {name: np.mean([run.forecasts[name] for run in runs], axis=0) for name in first.forecasts}
    losses = vote_losses(likelihood, mean["betas"], _labels(first), mean.get("eta"), mean.get("gamma"))
    return np.asarray(losses, dtype=np.float64)[_counted(first)]
