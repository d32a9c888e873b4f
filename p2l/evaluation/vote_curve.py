"""Would more votes help, or another model? Held-out loss over growing parts of a user's own votes.

A fifth of the votes, whole prompts of them, is held out. Models are trained on nested parts of the others, each twice
as large as the one before, by the settings of `p2l train --votes`; the smaller parts are drawn several times. What each
doubling was worth is measured: no law is fitted, since a law of falling losses would say that votes help of mere noise.

Shapes: C blocks of held-out prompts.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.bootstrap import Interval, bootstrap_mean
from p2l.common.cli import counted, progress
from p2l.common.errors import InputError, VoteError
from p2l.common.files import parse_json, write_json
from p2l.common.report.charts import Axes, Series
from p2l.common.report.reports import Figure
from p2l.common.report.tables import Cell, Column, Table, Value
from p2l.common.report.text import table_text
from p2l.likelihood import get
from p2l.metrics import ScoredVotes, vote_values
from p2l.training.planning import LEAST_VOTES, Request, plan_run
from p2l.training.run_records import COMPARISON_FILE, CONFIG_FILE
from p2l.training.train_config import load_config
from p2l.votes import VoteStore, open_votes
from p2l.votes.schema import hash_turns
from p2l.votes.splitting import hash_prompts, split_by_prompt
from p2l.votes.writing import write_votes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_HELD_OUT = 0.2  # share of the votes
_MAX_HELD_OUT = 5000  # votes
_DOUBLINGS = 3  # the smallest part is an eighth of the votes
_BLOCKS = 40  # of held-out prompts: as many losses a model, which the bootstrap draws
_SEED = 42
_LEAST_VOTES_OF_CURVE = LEAST_VOTES * 2**_DOUBLINGS + LEAST_VOTES
"""Votes below which the smallest part could not be trained on."""
_POINTS_FILE = "points.jsonl"


@dataclass(frozen=True)
class Variant:
    """A model to train: flags of `p2l train --votes`, and what to call it."""

    name: str
    size: str | None = None
    encoder: str | None = None
    backbone: str | None = None


@dataclass(frozen=True)
class TrainedPart:
    """A model trained on a part of the votes, and its mean losses (C,) on blocks of held-out prompts."""

    variant: str
    draw: int
    votes: int
    prompts: int
    losses: list[float]
    one_leaderboard: float
    """Loss of the one leaderboard of the same votes."""
    factor: float | None
    seconds: float
    """Of training, with the preparation of the backbone."""

    @property
    def loss(self) -> float:
        """Mean loss of the held-out votes, blocks alike."""
        return float(np.mean(self.losses))


@dataclass(frozen=True)
class Doubling:
    """What twice as many votes were worth: nats a vote by which the loss fell, prompts drawn again."""

    votes: int
    """Votes after the doubling."""
    gain: Interval


@dataclass(frozen=True)
class VoteCurve:
    """The trained models, and what they say of more votes."""

    points: list[TrainedPart]
    held_votes: int
    held_prompts: int
    doublings: list[Doubling]
    """Of the first variant, by growing number of votes."""
    others: dict[str, Interval]
    """Nats a vote by which other models, trained on all votes, are below the first."""

    @property
    def largest(self) -> TrainedPart:
        """The first variant on all votes."""
        return max((point for point in self.points if point.variant == self.points[0].variant), key=lambda p: p.votes)

    @property
    def last(self) -> Interval:
        """What the last doubling was worth."""
        return self.doublings[-1].gain

    def to_dict(self, price: float | None = None) -> dict[str, Any]:
        """Return everything as JSON."""
        gains = {"last_doubling": self.last, **self.others}
        return {
            "points": [{**asdict(point), "loss": point.loss} for point in self.points],
            "held_votes": self.held_votes,
            "held_prompts": self.held_prompts,
            "doublings": [{"votes": doubling.votes, **_ends(doubling.gain)} for doubling in self.doublings],
            "gains": {name: list(_ends(gain).values()) for name, gain in gains.items()},
            "cost": None if price is None else price * self.largest.votes,
            "seconds": 2 * self.largest.seconds,
        }

    def points_table(self) -> Table:
        """Return a row for each trained model, for CSV."""
        names = [name for name in asdict(self.points[0]) if name != "losses"]
        columns = [Column(name, key=name, number=name != "variant") for name in (*names, "loss")]
        rows = [[*(getattr(point, name) for name in names), point.loss] for point in self.points]
        return Table(columns, rows)

    def to_text(self, price: float | None = None) -> str:
        """Return the table and what it means."""
        return "\n".join([*table_text(self._table()), "", *self._conclusions(price)])

    def figure(self) -> Figure:
        """Return losses over votes, and those of one leaderboard beside them."""
        first = [point for point in self.points if point.variant == self.points[0].variant]
        sizes = sorted({point.votes for point in first})
        boards = [np.mean([point.one_leaderboard for point in first if point.votes == size]) for size in sizes]
        series = [Series("one leaderboard", sizes, [float(loss) for loss in boards], is_quiet=True)]
        for name in dict.fromkeys(point.variant for point in self.points):
            points = sorted((point for point in self.points if point.variant == name), key=lambda point: point.votes)
            votes, losses = [point.votes for point in points], [point.loss for point in points]
            series.append(Series(name, votes, losses, has_line=False, has_dots=True))
        axes = Axes("votes trained on", f"loss of {self.held_votes:,} held-out votes, nats", is_log=True)
        return Figure.of(series, axes, "Held-out loss over votes")

    def _table(self) -> Table:
        cells: dict[tuple[str, int], list[TrainedPart]] = {}
        for point in self.points:
            cells.setdefault((point.variant, point.votes), []).append(point)
        rows: list[list[Value]] = []
        for (name, votes), points in cells.items():
            prompts, board, loss, seconds = (
                float(np.mean([getattr(point, field) for point in points]))
                for field in ("prompts", "one_leaderboard", "loss", "seconds")
            )
            spread = f" ± {np.std([point.loss for point in points], ddof=1):.4f}" if len(points) > 1 else ""
            rows.append(
                [name, votes, prompts, board, Cell(f"{loss:.4f}{spread}", loss), Cell(f"{board - loss:+.4f}"), seconds]
            )
        columns = [
            Column("model", number=False),
            Column("votes", 0),
            Column("prompts", 0),
            Column("one leaderboard", 4),
            Column("loss", 4),
            Column("lower by"),
            Column("seconds", 0),
        ]
        between = " (± between draws)" if any(len(points) > 1 for points in cells.values()) else ""
        caption = f"Loss of {self.held_votes:,} votes on {self.held_prompts:,} held-out prompts{between}"
        return Table(columns, rows, caption=caption)

    def _conclusions(self, price: float | None) -> Iterator[str]:
        votes, seconds = self.largest.votes, 2 * self.largest.seconds
        yield "Lower by each doubling of the votes, in nats a vote:"
        for doubling in self.doublings:
            yield f"  to {doubling.votes:>9,} votes  {_shown(doubling.gain)}"
        cost = "" if price is None else f", and {votes:,} more votes cost {price * votes:,.2f}"
        yield f"Twice the votes ({2 * votes:,}) would take about {seconds:.0f} s to train{cost}."
        if self.last.lower > 0:
            yield "More votes help: what the last doubling was worth is above the noise."
        else:
            yield (
                "The noise is larger than the effect: the interval of the last doubling contains zero. More held-out "
                "prompts (more votes) would tell."
            )
        for name, gain in self.others.items():
            verdict = "worse" if gain.upper < 0 else "better" if gain.lower > 0 else "no difference beyond noise"
            yield f"{name} on the same votes: lower by {_shown(gain)} ({verdict})."
        if not self.others:
            yield "Whether another model helps: --also with a size, encoder=DIR or backbone=DIR."


def _shown(interval: Interval) -> str:
    return f"{interval.estimate:.4f} [{interval.lower:.4f}, {interval.upper:.4f}]"


def _ends(gain: Interval) -> dict[str, float]:
    return {"estimate": float(gain.estimate), "lower": float(gain.lower), "upper": float(gain.upper)}


def measure(source: str, variants: Sequence[Variant], folder: Path, *, draws: int, quiet: bool) -> VoteCurve:
    """Train on growing parts of the votes and compare them; VoteError for fewer than `_LEAST_VOTES_OF_CURVE` votes.

    `folder` keeps the trained models' lines in `points.jsonl`: a run that was stopped goes on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open_votes(source, quiet=quiet) as votes:
        if len(votes) < _LEAST_VOTES_OF_CURVE:
            raise VoteError(
                f"{votes.name}: holds {counted(len(votes), 'vote')}, too few to draw parts from; "
                f"bring {_LEAST_VOTES_OF_CURVE:,} or more"
            )
        held = split_by_prompt(votes, min(round(_HELD_OUT * len(votes)), _MAX_HELD_OUT), _SEED)
        rest = np.setdiff1d(np.arange(len(votes)), held)
        plan = list(_plan(votes, rest, variants, draws))
        # Only votes between models that every part has seen, so that all parts are asked about the same ones.
        is_seen = np.ones(len(votes.model_list), dtype=bool)
        for _, _, ids in plan:
            is_seen &= np.bincount(votes.pairs(ids).ravel(), minlength=len(is_seen)) > 0
        held = held[is_seen[votes.pairs(held)].all(axis=1)]
        if not len(held):
            raise VoteError(
                f"{votes.name}: no held-out vote is between models that every part has seen; bring more votes"
            )
        record, file = {"votes": votes.fingerprint, "held_out": len(held)}, folder / "curve.json"
        if file.exists() and parse_json(file.read_text(encoding="utf-8")) != record:
            raise InputError(f"{folder}: holds the curve of other votes; remove it, or choose another --folder")
        write_json(file, record)
        _write(votes, held, folder / "held_out.parquet")
        points = _read_points(folder)
        for variant, draw, ids in progress(plan, description="train", unit="model", quiet=quiet):
            if (variant.name, draw, len(ids)) not in {(point.variant, point.draw, point.votes) for point in points}:
                points.append(_train(votes, ids, variant, draw, folder))
                with (folder / _POINTS_FILE).open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(asdict(points[-1])) + "\n")
        # The folder may hold models of an earlier run with more draws or other variants.
        planned = {(variant.name, draw, len(ids)) for variant, draw, ids in plan}
        points = [point for point in points if (point.variant, point.draw, point.votes) in planned]
        clusters = len(np.unique(hash_prompts(votes.subset(held))))
    return compare_parts(points, held_votes=len(held), held_prompts=clusters)


def compare_parts(points: Sequence[TrainedPart], *, held_votes: int, held_prompts: int) -> VoteCurve:
    """Return what each doubling was worth to the first variant, and how the others compare on all votes."""
    # Prompts are drawn again, all models on the same ones: how hard a prompt is blurs no difference.
    losses: dict[tuple[str, int], Floats] = {}
    for point in points:
        key = (point.variant, point.votes)
        losses[key] = np.mean([draw.losses for draw in points if (draw.variant, draw.votes) == key], axis=0)
    first = points[0].variant
    sizes = sorted(votes for variant, votes in losses if variant == first)
    doublings = [
        Doubling(after, bootstrap_mean(losses[first, before] - losses[first, after]))
        for before, after in itertools.pairwise(sizes)
    ]
    others = {
        point.variant: bootstrap_mean(losses[first, sizes[-1]] - np.array(point.losses))
        for point in points
        if point.variant != first
    }
    return VoteCurve(list(points), held_votes, held_prompts, doublings, others)


def _plan(votes: VoteStore, rest: Ints, variants: Sequence[Variant], draws: int) -> Iterator[tuple[Variant, int, Ints]]:
    """Yield the models to train: parts nested within a draw, of whole prompts; other variants on all votes."""
    for draw in range(draws):
        hashed = np.asarray(hash_prompts(votes, _SEED + 1 + draw))[rest]
        order = rest[np.argsort(hashed, kind="stable")]
        for doubling in range(_DOUBLINGS, 0, -1):
            # The same number of votes in every draw: the last prompt may be in a part with some of its votes.
            yield variants[0], draw, np.sort(order[: len(rest) // 2**doubling])
    for variant in variants:
        yield variant, 0, rest


def _train(votes: VoteStore, ids: Ints, variant: Variant, draw: int, folder: Path) -> TrainedPart:
    from p2l.training.loop import RunOptions
    from p2l.training.offline import train

    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    _write(votes, ids, work / "train.parquet")
    started = time.monotonic()
    request = Request(
        votes=str(work / "train.parquet"),
        size=variant.size,
        val=str(folder / "held_out.parquet"),
        backbone=variant.backbone,
        output=str(work / "run"),
        encoder=variant.encoder,
    )
    prepared = plan_run(request, quiet=True)
    path = str(prepared.folder / CONFIG_FILE)
    with contextlib.closing(prepared.lock):
        train(path, RunOptions(eval_steps=prepared.eval_steps, quiet=True, silent=True, folder=prepared.folder))
    seconds = time.monotonic() - started
    comparison = json.loads((prepared.folder / COMPARISON_FILE).read_text(encoding="utf-8"))
    return TrainedPart(
        variant=variant.name,
        draw=draw,
        votes=len(ids),
        prompts=len(np.unique(hash_prompts(votes.subset(ids)))),
        losses=_block_losses(prepared.folder),
        one_leaderboard=comparison["one_leaderboard"]["Loss"],
        factor=comparison["factor"],
        seconds=round(seconds, 2),
    )


def _block_losses(run: Path) -> list[float]:
    """Return the mean losses (C,) on blocks of held-out prompts that a finished run predicted."""
    with (run / "eval_output.jsonl").open(encoding="utf-8") as file:  # a prompt may hold other ends of lines
        rows = [json.loads(line) for line in file]
    columns = {name: np.array([row[name] for row in rows]) for name in ("eta", "gamma") if name in rows[0]}
    labels = np.array([row["labels"] for row in rows], dtype=np.int64)
    likelihood = get(load_config(run / CONFIG_FILE).loss_type)
    votes = ScoredVotes(likelihood, np.array([row["betas"] for row in rows]), labels, **columns)
    turns = [[row["prompt"]] if isinstance(row["prompt"], str) else row["prompt"] for row in rows]
    prompt = np.unique(np.array([hash_turns(prompt) for prompt in turns], dtype=np.uint64), return_inverse=True)[1]
    losses, blocks = vote_values("Loss", votes), prompt % _BLOCKS
    means = [float(losses[blocks == block].mean()) for block in range(_BLOCKS) if (blocks == block).any()]
    return [mean for mean in means if not np.isnan(mean)]


def _write(votes: VoteStore, ids: Ints, path: Path) -> None:
    write_votes([votes.take(ids)], votes.schema, path)


def _read_points(folder: Path) -> list[TrainedPart]:
    """Return the models that an earlier run has trained; a line that a kill cut is left out and taken away."""
    file = folder / _POINTS_FILE
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole, encoding="utf-8")
    try:
        return [TrainedPart(**parse_json(line)) for line in whole.splitlines()]
    except (ValueError, TypeError) as error:
        raise InputError(f"{file}: cannot be read: {error}; remove it to train again") from error
