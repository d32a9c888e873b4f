"""Read the records of a training run from its folder: steps, validations, the comparison, publications.

Reads files alone, without torch, of runs that have ended, still run, or were killed: a line that was cut is left out,
and so is a value that is not a number.
"""

from __future__ import annotations

import contextlib
import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from p2l.common.errors import InputError
from p2l.common.files import bounded_lines, parse_json
from p2l.metrics import Interval
from p2l.model.checkpoint import COVARIATES_FILE, read_object

METRICS_FILE, RECORD_FILE, COMPARISON_FILE = "metrics.jsonl", "training_config.json", "comparison.json"
CONFIG_FILE, REQUEST_FILE = "training.yaml", "request.json"
RESULTS_FILE, FORECASTS_FILE = "eval_results.json", "eval_output.jsonl"
STATE_FILE = "trainer_state.json"
"""In each checkpoint that a run can resume from; published models have none."""
PUBLICATIONS_FILE, SERVED_FILE = "published.jsonl", "served.json"
"""Decisions on candidates, in the served folder; and the path of that folder, in the folder of the run."""


class Steps:
    """Numbers by step, one row for each line of a kind in `metrics.jsonl`."""

    def __init__(self) -> None:
        """Begin without a row."""
        self._columns: dict[str, array[float]] = {}
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a row with the numbers of a line."""
        for name, value in line.items():
            if (number := as_number(value)) is not None:
                column = self._columns.setdefault(name, array("d"))
                column.extend([math.nan] * (self._rows - len(column)))
                column.append(number)
        self._rows += 1

    def has(self, name: str) -> bool:
        """Whether any row has this number."""
        return name in self._columns

    def column(self, name: str) -> list[float]:
        """Return one number of each row, NaN where a row lacks it."""
        column = self._columns.get(name, array("d"))
        return [*column, *[math.nan] * (self._rows - len(column))]

    def last(self, name: str) -> float | None:
        """Return the newest number of this name."""
        column = self._columns.get(name)
        return column[-1] if column else None


@dataclass(frozen=True)
class Publication:
    """A line of `published.jsonl`: the decision on a candidate, or a rollback.

    Attributes:
        event: `published`, `refused` or `rolled back`.
        subject: the candidate, or the model that was taken out.
        against: the model that was served then, or the one that is served again.
        difference: nats a vote by which the candidate's loss is above that of the served model; error: its standard
            error.
    """

    event: str
    subject: str
    against: str
    reason: str
    time: float | None = None
    step: float | None = None
    votes: float | None = None
    loss: float | None = None
    served_loss: float | None = None
    difference: float | None = None
    error: float | None = None
    held_votes: float | None = None
    factor: float | None = None

    @property
    def is_judged(self) -> bool:
        """Whether held-out votes decided."""
        return self.difference is not None and self.error is not None


@dataclass(frozen=True)
class RunRecords:
    """The records of a run.

    Attributes:
        folder: of the run.
        config: the configuration, as far as it is there.
        source: the votes of the request or the configuration, as the user named them; empty where unknown.
        steps: loss, gradient norm, rate, votes, tokens, ... of each optimizer step.
        validations: metrics of held-out votes during the run; their names begin with `validation/`.
        choices: losses that the best step is chosen by; their names begin with `selection/`.
        results: metrics of the finished model on held-out votes.
        comparison: with one leaderboard for all prompts.
        publications: decisions on the run's candidates, in order.
        is_finished: whether the finished model is there.
    """

    folder: Path
    config: Mapping[str, Any]
    source: str
    steps: Steps
    validations: Steps
    choices: Steps
    results: Mapping[str, Any]
    comparison: HeldOutComparison | None
    publications: list[Publication] = field(default_factory=list)
    is_finished: bool = False

    @property
    def written(self) -> Path:
        """The file whose time is that of the records."""
        name = METRICS_FILE if (self.folder / METRICS_FILE).is_file() else PUBLICATIONS_FILE
        return self.folder / name

    @property
    def seconds(self) -> float:
        """Seconds of training; the clock of a run that was resumed starts anew, and its parts are added up."""
        total = before = 0.0
        for now in self.steps.column("seconds"):
            if math.isfinite(now):
                total += now - before if now >= before else now
                before = now
        return total


def read_run(folder: Path) -> RunRecords:
    """Read the records of a run's folder, or of a folder that models were published to; InputError for any other."""
    if not folder.is_dir():
        raise InputError(f"{folder}: is not a folder; name the folder of a training run")
    steps, validations, choices = Steps(), Steps(), Steps()
    for line in _lines(folder / METRICS_FILE):
        if as_number(line.get("step")) is None:
            continue
        if "loss" in line:
            steps.add(line)
        elif any(name.startswith("validation/") for name in line):
            validations.add(line)
        elif any(name.startswith("selection/") for name in line):
            choices.add(line)
    publications = read_publications(folder)
    served = _object(folder / SERVED_FILE).get("folder")
    if not publications and isinstance(served, str):  # a live run published there, if it is still where it was
        publications = read_publications(Path(served))
    if not steps and not publications:
        parent = folder.resolve().parent
        hint = f"; it is a checkpoint: name {parent}" if (parent / METRICS_FILE).is_file() else ""
        raise InputError(f"{folder}: is not a folder of a training run: it has no {METRICS_FILE} with a step{hint}")
    config = _read_config(folder)
    request = _object(folder / REQUEST_FILE).get("request")
    source = request.get("votes") if isinstance(request, dict) else config.get("train_data_path")
    return RunRecords(
        folder=folder,
        config=config,
        source=source if isinstance(source, str) else "",
        steps=steps,
        validations=validations,
        choices=choices,
        results=_object(folder / RESULTS_FILE),
        comparison=HeldOutComparison.read(folder),
        publications=publications,
        is_finished=(folder / "config.json").is_file(),
    )


def recorded_covariates(forecasts: Path) -> tuple[str, ...]:
    """Return the covariates of the model that wrote forecasts, as `p2l eval` or training records them beside these."""
    names = _object(forecasts.with_suffix(".info.json")).get("covariates")
    if names is None and forecasts.name == FORECASTS_FILE:
        names = _object(forecasts.with_name(COVARIATES_FILE)).get("names")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def as_number(value: object) -> float | None:
    """Return a finite number of JSON; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with contextlib.suppress(OverflowError):
        return float(value) if math.isfinite(value) else None
    return None


def read_publications(folder: Path) -> list[Publication]:
    """Return the decisions on candidates of a served folder; none where nothing was published."""
    publications = []
    names = ("time", "step", "votes", "loss", "served_loss", "difference", "error", "held_votes", "factor")
    for line in _lines(folder / PUBLICATIONS_FILE):
        event = line.get("event")
        if event not in ("published", "refused", "rolled back"):
            continue
        numbers = {name: as_number(line.get(name)) for name in names}
        step = numbers["step"]
        subject = str(line.get("taken_out") or ("" if step is None else f"checkpoint-{step:.0f}"))
        against = line.get("back_to") or line.get("against") or ""
        publications.append(
            Publication(
                event=str(event), subject=subject, against=str(against), reason=str(line.get("reason") or ""), **numbers
            )
        )
    return publications


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file of lines."""
    if not file.is_file():
        return
    try:
        with file.open("rb") as stream:
            for text, _ in bounded_lines(stream):
                with contextlib.suppress(ValueError):  # a kill cut it, or it is being written
                    line = parse_json(text)
                    if isinstance(line, dict):
                        yield line
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror or error}") from error


def _read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of the finished model, of a checkpoint or published model, or of the request."""
    places = [folder, *sorted(folder.glob("checkpoint-*"))[::-1]]
    for place in places:
        if config := _object(place / RECORD_FILE):
            return config
    from p2l.common.config import read_yaml

    with contextlib.suppress(InputError):
        return {str(key): value for key, value in read_yaml(folder / CONFIG_FILE).items()}
    return {}


def _object(file: Path) -> dict[str, Any]:
    if not file.is_file():  # a pipe would never end
        return {}
    with contextlib.suppress(InputError):
        return read_object(file, missing={})
    return {}


# Whether the trained model reads prompts: training prints it, and `p2l report` begins with it.


@dataclass(frozen=True)
class HeldOutComparison:
    """Two predictions of the same held-out votes."""

    votes: int
    prompts: int
    one_leaderboard: dict[str, float]
    """Loss and Accuracy."""
    model: dict[str, float]
    gain: Interval
    """Nats per vote that the model's loss is lower by, 95 % interval clustered by prompt."""
    factor: float | None = None
    """The model's share where it is shrunk towards one leaderboard; None where it is not."""
    folds: int | None = None
    """Folds of cross-fitting, each vote predicted by a model of other folds; None: the votes were held out."""

    @property
    def verdict(self) -> str:
        """The conclusion in words."""
        if self.factor == 0:
            return (
                "The votes do not show that the model reads prompts, so it is one leaderboard for all of them. "
                "Bring more votes, or another --size or --backbone."
            )
        if self.gain.lower > 0:
            return "The model reads prompts: it forecasts votes on new prompts better than any one leaderboard."
        if self.gain.upper < 0:
            return (
                "The model is worse than one leaderboard for all prompts: do not use it. Bring more votes, "
                "or another --size or --backbone."
            )
        return (
            "The votes do not show that the model reads prompts: the interval contains zero. "
            "Bring more votes, or another --size or --backbone."
        )

    @property
    def finding(self) -> str:
        """The conclusion in one sentence with its interval, as a report begins."""
        gain, where = self.gain, "held-out votes" if self.folds is None else f"votes in {self.folds} folds"
        ends = f"95% interval {gain.lower:.4f} to {gain.upper:.4f}"
        over = f"than that of one leaderboard on {self.votes:,} {where}"
        if self.factor == 0:
            return (
                "The votes do not show that the model reads prompts, so it is one leaderboard for all of them "
                f"({ends})."
            )
        if gain.lower > 0:
            return f"The model reads prompts: its loss is {gain.estimate:.4f} nats a vote lower {over} ({ends})."
        if gain.upper < 0:
            return (
                f"The model is worse than one leaderboard: its loss is {-gain.estimate:.4f} nats a vote higher "
                f"{over} ({ends} for the gain)."
            )
        return (
            f"The votes do not show that the model reads prompts: its loss is {abs(gain.estimate):.4f} nats a vote "
            f"{'lower' if gain.estimate >= 0 else 'higher'} {over}, and the {ends} holds zero."
        )

    @property
    def shrunk(self) -> str:
        """The shrinkage towards one leaderboard in words; empty without any."""
        if self.factor is None:
            return ""
        ends = {0.0: "coefficients are its own: prompts make no difference", 1.0: "not at all"}
        return ends.get(self.factor, f"coefficients keep {100 * self.factor:.3g} % of their distance from it")

    @classmethod
    def read(cls, folder: Path) -> HeldOutComparison | None:
        """Read the comparison of a run's folder; None where it has none or one that cannot be read."""
        try:
            return cls.from_dict(parse_json((folder / COMPARISON_FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> HeldOutComparison:
        """Return the comparison of `to_dict`; ValueError, TypeError or KeyError for anything else."""
        gain = content["gain"]
        one_leaderboard, model = (
            {name: float(content[side][name]) for name in ("Loss", "Accuracy")} for side in ("one_leaderboard", "model")
        )
        return cls(
            votes=int(content["votes"]),
            prompts=int(content["prompts"]),
            one_leaderboard=one_leaderboard,
            model=model,
            gain=Interval(float(gain["estimate"]), float(gain["lower"]), float(gain["upper"]), math.nan),
            factor=content["factor"],
            folds=content["folds"],
        )

    def to_text(self) -> str:
        """Return a short table and the verdict."""
        gain = self.gain
        interval = f"95 % interval {gain.lower:.4f} to {gain.upper:.4f}"
        rows = (("one leaderboard for all prompts", self.one_leaderboard), ("this model", self.model))
        how = "held-out votes" if self.folds is None else f"votes, in {self.folds} folds,"
        return "\n".join(
            [
                f"{f'{self.votes:,} {how} on {self.prompts:,} prompts':<46} loss     accuracy",
                *(f"{name:<46} {row['Loss']:.4f}   {row['Accuracy']:>8.1%}" for name, row in rows),
                f"{'gain in nats per vote':<46} {gain.estimate:.4f}   ({interval})",
                *([f"{'shrunk towards one leaderboard':<46} {self.shrunk}"] if self.shrunk else []),
                self.verdict,
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, for comparison.json."""
        gain = {name: float(getattr(self.gain, name)) for name in ("estimate", "lower", "upper")}
        names = ("votes", "prompts", "one_leaderboard", "model", "factor", "folds")
        return {name: getattr(self, name) for name in names} | {"gain": gain}
