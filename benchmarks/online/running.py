"""One training run with p2l's own loop, and what its model says of the held-out votes at every checkpoint.

Weights are not kept: the losses of the held-out votes at every checkpoint are. A run that is finished is read back from
its file.

Shapes: E checkpoints (17 slices, the end of the stream, the end of training), n held-out votes in slices.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.online import backbone
from benchmarks.online.strategies import Order, Strategy
from benchmarks.online.streams import Stream
from p2l.common.cli import progress
from p2l.common.files import atomic_path
from p2l.likelihood import get
from p2l.model.model import P2LModel, P2LOutput
from p2l.model.tokenizer import load_tokenizer
from p2l.newcomers.online import LargerSteps
from p2l.online_training.averaging import AveragedWeights
from p2l.training.engine import Engine, choose_device, start_processes
from p2l.training.trainer import Trainer, Windows

__all__ = ["HORIZON", "Outcome", "run_strategy"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
LEARNING_RATE = 1e-3
HORIZON = 500
"""Steps that averaged weights look back on."""
_LOSS = "grk"
_MOST_TOKENS = 1 << 14
_VOTES_AT_ONCE = 512


@dataclass(frozen=True)
class Outcome:
    """What is kept of a run."""

    losses: Floats
    """(E, n) of the weights as they are."""
    averaged: Floats | None
    """(E, n) of the averaged weights."""
    most_waiting: int
    median_lag: float
    dropped: int
    trained: int
    """Votes in all batches."""
    steps: int
    seconds: float


@dataclass(frozen=True)
class _Batches:
    """A `Schedule` of batches that are known."""

    batches: list[Ints]

    @property
    def total_steps(self) -> int:
        return len(self.batches)

    def steps(self, start: int = 0) -> Any:
        yield from self.batches[start:]


def run_strategy(stream: Stream, strategy: Strategy, seed: int, *, quiet: bool = False) -> Outcome:
    """The outcome of one run, from its file where it is finished."""
    words = "".join(letter if letter.isalnum() or letter == "." else "-" for letter in strategy.name)
    path = stream.folder / "runs" / f"{words}-{seed}.npz"
    if path.exists():
        with np.load(path) as kept:
            found = {name: kept[name] if kept[name].ndim else kept[name].item() for name in kept.files}
        return Outcome(**{"averaged": None, **found})
    outcome = _train(stream, strategy, seed, quiet=quiet)
    path.parent.mkdir(exist_ok=True)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        values: dict[str, Any] = {name: value for name, value in vars(outcome).items() if value is not None}
        np.savez(file, **values)
    return outcome


def _train(stream: Stream, strategy: Strategy, seed: int, *, quiet: bool) -> Outcome:
    order = strategy.make(stream, seed)
    run = _Run(stream, strategy, _trainer(stream, order, seed), *_known_and_arrived(order, stream))
    ends = [*order.checkpoints, len(order.batches)]
    wanted = {ends[-1]} if strategy.final_only else set(ends)
    started = time.monotonic()
    run.between_steps(0, wanted)
    with progress(
        description=f"{strategy.name}, seed {seed}", total=len(order.batches), unit="step", quiet=quiet
    ) as bar:
        for result in run.trainer.steps():
            run.between_steps(result.step, wanted)
            bar.update(1)
    return Outcome(
        losses=run.losses(ends, averaged=False),
        averaged=run.losses(ends, averaged=True) if strategy.average else None,
        most_waiting=order.most_waiting,
        median_lag=order.median_lag,
        dropped=order.dropped,
        trained=sum(map(len, order.batches)),
        steps=len(order.batches),
        seconds=time.monotonic() - started,
    )


class _Run:
    """A run between its steps: new models get their rows, the mean takes the weights in, checkpoints are read."""

    def __init__(self, stream: Stream, strategy: Strategy, trainer: Trainer, known: Ints, arrived: Ints) -> None:
        self.stream, self.trainer, self._known = stream, trainer, known
        self._rows = trainer.engine.model.row_names
        self._means = AveragedWeights(HORIZON, self._rows) if strategy.average else None
        self._larger = LargerSteps(trainer, 0, stream.batch_size) if strategy.larger_steps else None
        if self._larger is not None:
            trainer.after_update = self._larger.end
        self._arrived = arrived
        self._found: dict[tuple[int, bool], Floats] = {}

    def between_steps(self, done: int, wanted: set[int]) -> None:
        """What happens after `done` steps."""
        if self._means is not None and done:
            self._means.update(self._averaged, models=int(self._known[done]))
        if done in wanted:
            self._found[done, False] = self._read()
            if self._means is not None:
                self._found[done, True] = self._read_means() if done else self._found[done, False]
        if done + 1 < len(self._known) and 0 < self._known[done] < self._known[done + 1]:
            self._welcome(int(self._known[done]), int(self._known[done + 1]))
        if self._larger is not None and done + 1 < len(self._arrived):
            self._larger.begin(int(self._arrived[done + 1]))

    def losses(self, ends: list[int], *, averaged: bool) -> Floats:
        """(E, n); of checkpoints that were not read, those of the last one."""
        return np.stack([self._found.get((end, averaged), self._found[ends[-1], averaged]) for end in ends])

    @property
    def _weights(self) -> dict[str, Tensor]:
        return dict(self.trainer.engine.model.named_parameters())

    @property
    def _averaged(self) -> dict[str, Tensor]:
        words = self.trainer.engine.model.word_names
        return {name: own for name, own in self._weights.items() if name not in words}

    def _welcome(self, first: int, last: int) -> None:
        def mean(values: Tensor) -> None:
            values[first:last] = values[:first].mean(dim=0)

        for name in self._rows:
            self.trainer.engine.edit(name, mean)

    def _read_means(self) -> Floats:
        assert self._means is not None
        kept = {name: value.detach().clone() for name, value in self._averaged.items()}
        _assign(self._averaged, self._means.means)
        found = self._read()
        _assign(self._averaged, kept)
        return found

    def _read(self) -> Floats:
        """Losses (n,) of the held-out votes in slices."""
        stream, engine = self.stream, self.trainer.engine
        rows = np.flatnonzero(stream.slices)
        windows = replace(self.trainer.windows, votes=stream.held_out)
        losses = np.empty(len(rows), dtype=np.float32)
        for start in range(0, len(rows), _VOTES_AT_ONCE):
            places = np.arange(start, min(start + _VOTES_AT_ONCE, len(rows)))
            for part in windows.read(rows[places]):
                output = engine.predict(part.batch)
                chosen = rows[places[part.votes]]
                losses[places[part.votes]] = _expected_losses(stream, chosen, output, part.prompt)
        return losses


def _expected_losses(stream: Stream, rows: Ints, output: P2LOutput, prompt: Tensor) -> Floats:
    """(votes,) loss of the held-out votes `rows`, whose prompts are the places `prompt` of the output."""
    assert output.coefs is not None
    assert output.eta is not None
    coefs, eta = (values[prompt].double().numpy() for values in (output.coefs, output.eta))
    sides = [coefs[np.arange(len(rows)), side] for side in stream.held_pairs[rows].T]
    losses: Floats = -(stream.outcomes[rows] * get(_LOSS).log_probs(sides[0], sides[1], eta)).sum(axis=1)
    return losses


def _assign(weights: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(values[name])


def _known_and_arrived(order: Order, stream: Stream) -> tuple[Ints, Ints]:
    """Return the models, in order of first appearance, that the votes of so many steps name, and how many have come.

    (steps + 1,) both.
    """
    newest = [int(stream.pairs[batch].max()) + 1 for batch in order.batches]
    arrived = [int(batch.max()) + 1 for batch in order.batches]
    known, votes = (np.maximum.accumulate(np.array([0, *counts])) for counts in (newest, arrived))
    return known, votes


def _trainer(stream: Stream, order: Order, seed: int) -> Trainer:
    folder = stream.folder / f"backbone-{seed}"
    if not (folder / "model.safetensors").exists():
        backbone.make(folder, stream.votes.prompts(None), seed=seed)
    tokenizer = load_tokenizer(folder)
    model = P2LModel.create(
        folder,
        model_type=backbone.NAME,
        head_type="rk",
        loss_type=_LOSS,
        model_list=stream.model_list,
        tokenizer=tokenizer,
        seed=seed,
    )
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "Adam", "params": {"lr": LEARNING_RATE, "torch_adam": True, "fused": True}},
        "zero_optimization": {"stage": 0},
    }
    device = choose_device("cpu")
    start_processes(device)
    engine = Engine(model, settings, device, lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, _constant))
    windows = Windows(tokenizer, stream.votes, packed=False, max_tokens=_MOST_TOKENS)
    return Trainer(engine, windows, _Batches(order.batches), model.likelihood, seed=seed)


def _constant(_step: int) -> float:
    return 1.0
