"""The trainer: votes become steps and micro-batches, steps change the weights, and each step is reported.

The loss of a step is  sum_i w_i * loss_i / sum_i w_i  over the votes i of the step on all ranks (w = 1 without
weights), however they are split into micro-batches or ranks; votes that the likelihood leaves out (ties under `bt`)
count nowhere.

A window is a step's votes. Its distinct prompts are dealt to the ranks so that each gets about as much text, tokenised
there, and packed into micro-batches; a vote goes where its prompt is.

Shapes: N votes of the window, n votes and B prompts of a micro-batch.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2l.common.cache import LRUCache
from p2l.common.cli import progress
from p2l.common.errors import InputError, TrainingError
from p2l.common.files import atomic_path, parse_json
from p2l.likelihood import Likelihood, counted, vote_losses
from p2l.model.batching import Batch, collate, plan_batches
from p2l.model.encoding import Encoding, PromptTokenizer
from p2l.people.runs import VoteAdjuster, VoteAdjustments
from p2l.training.engine import Engine
from p2l.training.forecasts import Forecast, Votes, chunks
from p2l.training.run_records import METRICS_FILE
from p2l.training.train_config import TrainConfig
from p2l.votes import VoteStore
from p2l.votes.schema import hash_turns

Ids = NDArray[np.int64]
_CACHED_ENCODING_BYTES = 256_000_000
"""Encodings that are kept for later epochs."""
_FORECAST_BLOCK = 1024
"""Votes that are forecast at a time."""


def _bytes_of(encoding: Encoding) -> int:
    """Return the approximate memory of an encoding."""
    arrays = (encoding.ids, encoding.values, encoding.features)
    return 300 + sum(array.nbytes for array in arrays if array is not None)


@dataclass(frozen=True)
class MicroBatch:
    """Prompts of one forward pass and the votes on them."""

    batch: Batch
    votes: Ids
    """(n,) positions of the votes in their window."""
    prompt: Tensor
    """(n,) which of the B prompts each vote is about."""
    tokens: int


@dataclass(frozen=True)
class Windows:
    """Reads windows of votes for one rank of a run."""

    tokenizer: PromptTokenizer
    votes: Votes
    packed: bool
    max_tokens: int
    """Most tokens of a micro-batch, padding included; a longer prompt goes alone."""
    rank: int = 0
    world_size: int = 1
    ahead: bool = True
    """Read the next window while the caller computes; off where asking for it may mean waiting for votes."""
    covariates: Callable[[Ids], Tensor] | None = None
    """The scaled covariates (n, C) of votes, turned as their labels are; None: none are trained."""
    local_rank: int = 0
    local_size: int = 1
    """Processes of this node, among which its prompts are dealt where votes are spread over nodes."""
    _recent: LRUCache[int, Encoding] = field(default_factory=lambda: LRUCache(_CACHED_ENCODING_BYTES, _bytes_of))
    """Encodings by the hash of their prompt."""

    def read(self, ids: Ids) -> list[MicroBatch]:
        """Return this rank's micro-batches for the votes `ids` (N,); empty if it has none of their prompts."""
        # `about` is the prompt of each vote (N,); -1 for those on prompts that this node does not hold.
        held = self.votes.held(ids) if isinstance(self.votes, VoteStore) else None
        here = np.arange(len(ids)) if held is None else np.flatnonzero(held)
        prompts, about_here = distinct(self.votes.prompts(ids[here]))
        about = np.full(len(ids), -1)
        about[here] = about_here
        # In characters: all ranks have to deal alike, and each tokenises its own prompts alone.
        sizes = [sum(map(len, prompt)) for prompt in prompts]
        hands, hand = (self.world_size, self.rank) if held is None else (self.local_size, self.local_rank)
        mine = deal(sizes, hands)[hand]
        encodings = self._encode([prompts[number] for number in mine])
        lengths = [len(encoding.ids) for encoding in encodings]
        plan = plan_batches(lengths, max_tokens=self.max_tokens, packed=self.packed)
        micro_batches = []
        for rows in plan:
            place = np.full(len(prompts), -1)
            place[[mine[row] for row in rows]] = np.arange(len(rows))
            votes = np.flatnonzero((about >= 0) & (place[about] >= 0))
            batch = collate([encodings[row] for row in rows], self.tokenizer.pad_token_id, packed=self.packed)
            if self.covariates is not None:
                batch["covariates"] = self.covariates(ids[votes])
            tokens = sum(lengths[row] for row in rows)
            micro_batches.append(MicroBatch(batch, votes, torch.from_numpy(place[about[votes]]), tokens))
        return micro_batches

    def _encode(self, prompts: Sequence[Sequence[str]]) -> list[Encoding]:
        """Encode prompts that are not among the recent ones: a later epoch reads the same ones again."""
        keys = [hash_turns(list(prompt)) for prompt in prompts]
        encodings = [self._recent.get(key) for key in keys]
        missing = [place for place, encoding in enumerate(encodings) if encoding is None]
        for place, encoding in zip(missing, self.tokenizer.encode([prompts[n] for n in missing]), strict=True):
            encodings[place] = encoding
            self._recent.put(keys[place], encoding)
        return [encoding for encoding in encodings if encoding is not None]

    def read_ahead(self, windows: Iterable[Ids]) -> Generator[tuple[Ids, list[MicroBatch]], None, None]:
        """Yield every window with its micro-batches, and read the next one while the caller computes."""
        if not self.ahead:
            yield from ((ids, self.read(ids)) for ids in windows)
            return
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="p2l-windows") as reader:
            earlier: tuple[Ids, Future[list[MicroBatch]]] | None = None
            for ids in windows:
                latest = (ids, reader.submit(self.read, ids))
                if earlier is not None:
                    yield earlier[0], earlier[1].result()
                earlier = latest
            if earlier is not None:
                yield earlier[0], earlier[1].result()

    def filler(self) -> MicroBatch:
        """Return a micro-batch without votes: under ZeRO every rank runs as many forward passes as the busiest one."""
        batch = collate(self.tokenizer.encode([[""]]), self.tokenizer.pad_token_id, packed=self.packed)
        none = np.zeros(0, dtype=np.int64)
        if self.covariates is not None:  # so that every parameter has a gradient
            batch["covariates"] = self.covariates(none)
        return MicroBatch(batch, none, torch.zeros(0, dtype=torch.int64), 0)


def deal(sizes: Sequence[int], hands: int) -> list[list[int]]:
    """Deal items of these `sizes`, largest first, each to the hand with the smallest sum; return item numbers."""
    if hands == 1:
        return [list(range(len(sizes)))]
    held = [0] * hands
    dealt: list[list[int]] = [[] for _ in range(hands)]
    for item in sorted(range(len(sizes)), key=lambda item: -sizes[item]):
        least = held.index(min(held))
        dealt[least].append(item)
        held[least] += sizes[item] + 1  # its CLS, so that empty prompts are shared out too
    return [sorted(hand) for hand in dealt]


def distinct(prompts: Sequence[Sequence[str]]) -> tuple[list[Sequence[str]], Ids]:
    """Return the different prompts in order of appearance, and which of them each prompt is."""
    numbers: dict[tuple[str, ...], int] = {}
    about = [numbers.setdefault(tuple(prompt), len(numbers)) for prompt in prompts]
    return list(numbers), np.array(about, dtype=np.int64)


@dataclass(frozen=True)
class OfflineSchedule:
    """Votes in their stored order, or shuffled by seed and epoch, in steps of `global_batch`, for `epochs` passes.

    Step `s` depends on nothing but these fields, so a resumed run needs only the number of the step.
    """

    num_votes: int
    global_batch: int
    epochs: int = 1
    shuffle: bool = False
    seed: int = 42
    prompts: NDArray[np.int64] | None = field(default=None, compare=False)
    """(num_votes,) the number of each vote's prompt, from 0; None: a shuffle moves single votes."""
    stop: int | None = None
    """The last step; None: that of the last epoch."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps per pass over the votes."""
        return -(-self.num_votes // self.global_batch)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        whole = self.steps_per_epoch * self.epochs
        return whole if self.stop is None else min(self.stop, whole)

    def steps(self, start: int = 0) -> Iterator[NDArray[np.int64]]:
        """Yield row ids of each step, from step `start` on."""
        order = np.empty(0, dtype=np.int64)
        for number in range(start, self.total_steps):
            epoch, step = divmod(number, self.steps_per_epoch)
            if number == start or step == 0:
                order = self._order(epoch)
            yield order[step * self.global_batch : (step + 1) * self.global_batch]

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if not self.shuffle:
            return np.arange(self.num_votes)
        rng = np.random.default_rng([self.seed, epoch])
        votes = rng.permutation(self.num_votes)
        if self.prompts is None:
            return votes
        # Votes on one prompt follow each other, so that nearly all of them fall into one step, which encodes it once.
        places = rng.permutation(int(self.prompts.max()) + 1)
        return votes[np.argsort(places[self.prompts[votes]], kind="stable")]


class Schedule(Protocol):
    """The votes of each optimizer step."""

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps of the whole run; None while unknown."""

    def steps(self, start: int = 0) -> Iterator[Ids]:
        """Return row ids of each step, from step `start` on; the same on every rank."""


class Published(Protocol):
    """Weights that folders and validation use instead of the newest ones; every rank calls each method."""

    def update(self) -> None:
        """Called after each step."""

    def weights(self) -> dict[str, Tensor]:
        """Return all weights on the CPU of rank 0; an empty dictionary elsewhere."""

    def in_place(self) -> AbstractContextManager[None]:
        """Make the engine's model answer with them until the block ends."""


@dataclass(frozen=True)
class StepResult:
    """The outcome of one optimizer step, over all ranks."""

    step: int
    """Steps done, this one included."""
    loss: float
    gradient_norm: float
    learning_rate: float
    votes: int
    tokens: int


@dataclass
class Trainer:
    """The parts of a training run; `steps` runs it."""

    engine: Engine
    windows: Windows
    schedule: Schedule
    likelihood: Likelihood
    weighted: bool = False
    reweight_scale: float = 1.0
    seed: int = 42
    before_step: Callable[[int], None] = lambda _: None
    """Called with the number of steps done, before the next."""
    after_update: Callable[[], None] = lambda: None
    """Called when a step has changed the weights, before anything reads them."""
    adjustments: VoteAdjuster | None = None
    """Scale, shift and weight of each vote by its source; None: all are people's, and count as they are."""
    published: Published | None = None
    """None: the newest weights are."""

    @property
    def votes(self) -> Votes:
        """The votes to train on."""
        return self.windows.votes

    def steps(self, start: int = 0) -> Iterator[StepResult]:
        """Train step by step, from step `start` on; TrainingError if loss or gradient are not finite."""
        with closing(self.windows.read_ahead(self.schedule.steps(start))) as windows:
            for number, (ids, parts) in enumerate(windows, start=start):
                self.before_step(number)
                # Dropout depends on the step alone, so that a resumed run repeats an uninterrupted one.
                seeds = np.random.SeedSequence([self.seed, number, self.engine.rank])
                torch.manual_seed(int(seeds.generate_state(1)[0]))
                result = self._step(number, ids, self.engine.even_out(parts, self.windows.filler))
                self.after_update()
                if self.published is not None:
                    self.published.update()
                yield result

    def forecast(self, votes: Votes, covariates: Callable[[Ids], Tensor] | None = None) -> Forecast | None:
        """Predict the prompt of every vote on rank 0; None elsewhere (every rank calls this).

        With the scaled `covariates` (n, C) of the votes the forecast has their shift.
        """
        windows = replace(self.windows, votes=votes, ahead=True, covariates=covariates)
        ids, columns = [], []
        for rows, micro_batches in windows.read_ahead(chunks(len(votes), _FORECAST_BLOCK)):
            for micro_batch in self.engine.even_out(micro_batches, windows.filler):
                output = self.engine.predict(micro_batch.batch)
                outputs = [
                    values.cpu().numpy() for values in (output.coefs, output.eta, output.gamma) if values is not None
                ]
                ids.append(rows[micro_batch.votes])
                of_votes = np.column_stack(outputs)[micro_batch.prompt.numpy()]
                if output.shift is not None:
                    of_votes = np.column_stack([of_votes, output.shift.cpu().numpy()])
                columns.append(of_votes)
        gathered = self.engine.gather((np.concatenate(ids), np.concatenate(columns)))
        if gathered is None:
            return None
        all_ids, all_columns = (np.concatenate(arrays) for arrays in zip(*gathered, strict=True))
        table = all_columns[np.argsort(all_ids)]  # batches and ranks took the votes in an order of their own
        shift = None
        if covariates is not None:
            table, shift = table[:, :-3], table[:, -3:].astype(np.float64)
        # Eta and gamma are the columns behind the coefficients, as far as the head has them.
        num_models = len(self.engine.model.model_list)
        eta, gamma = [*table[:, num_models:].T, None, None][:2]
        return Forecast(table[:, :num_models], eta, gamma, shift)

    def published_weights(self) -> dict[str, Tensor]:
        """Return the weights for folders on rank 0's CPU; an empty dictionary elsewhere (every rank calls this)."""
        return self.engine.state_dict() if self.published is None else self.published.weights()

    def _step(self, number: int, ids: Ids, parts: Sequence[MicroBatch]) -> StepResult:
        labels = self.votes.labels(ids)
        weights = self.votes.weights(ids) if self.weighted else np.ones(len(ids))
        adjustments = None if self.adjustments is None else self.adjustments.take(ids)
        weights = weights if adjustments is None else weights * adjustments.weight
        learning_rate = self.engine.learning_rate
        denominator = float((weights * counted(self.likelihood, labels)).sum())
        if not denominator:
            self.engine.skip_step()
            return StepResult(number + 1, 0.0, 0.0, learning_rate, len(ids), 0)
        shares = weights * (self.reweight_scale / denominator)  # in the numerator alone, or the scale would cancel
        losses = [self._micro_step(part, labels, shares, adjustments, last=part is parts[-1]) for part in parts]
        # Read once a step: a GPU would have to finish each micro-batch before the next one is queued.
        loss, tokens = self.engine.sum_over_ranks(
            float(torch.stack(losses).double().sum()), sum(part.tokens for part in parts)
        )
        if not math.isfinite(loss):
            raise TrainingError(f"step {number + 1}: the loss is {loss}; train again with a lower 'learning_rate'")
        norm = self.engine.step()
        if not math.isfinite(norm):
            raise TrainingError(f"step {number + 1}: the gradient is {norm}; train again with a lower 'learning_rate'")
        return StepResult(number + 1, loss, norm, learning_rate, len(ids), int(tokens))

    def _micro_step(
        self,
        part: MicroBatch,
        labels: NDArray[np.int32],
        shares: NDArray[np.float64],
        adjustments: VoteAdjustments | None,
        *,
        last: bool,
    ) -> Tensor:
        """Run forward and backward for one micro-batch; return its share of the step's loss, on the device."""
        output = self.engine.forward(part.batch)
        assert output.coefs is not None
        device, members = self.engine.device, self.engine.model.members
        # Each member predicts each vote by itself, and counts alike.
        first_rows = torch.arange(members)[:, None] * (len(output.coefs) // members)
        chosen = (first_rows + part.prompt).flatten().to(device)
        coefs, eta, gamma = (
            None if values is None else values[chosen] for values in (output.coefs, output.eta, output.gamma)
        )
        of_votes = torch.as_tensor(labels[part.votes], device=device).repeat(members, 1)
        shift = None if output.shift is None else output.shift.repeat(members, 1)
        if adjustments is not None:
            by_source = adjustments.take(part.votes).repeated(members, device)
            assert coefs is not None
            coefs = by_source.scaled(coefs, gamma)
            shift = by_source.shift if shift is None else shift + by_source.shift
        losses = vote_losses(self.likelihood, coefs, of_votes, eta, gamma, shift)
        losses = losses.view(members, len(part.votes)).mean(0)
        loss: Tensor = (losses * torch.as_tensor(shares[part.votes], dtype=losses.dtype, device=device)).sum()
        self.engine.backward(loss, last=last)
        return loss.detach()


# Progress: the bar with its time estimate, and `metrics.jsonl`.

ESTIMATE_AFTER_SECONDS = 60.0
"""Training after which the estimate of the remaining time is good enough to print."""
_SHORTEST_ESTIMATE_SECONDS = 10.0
"""Remaining time that is worth a line."""


@dataclass
class TimeLeft:
    """An estimate of the remaining time, updated after every step."""

    votes: int
    """Remaining when this run, or its resumption, starts; a vote counts once an epoch."""
    clock: Callable[[], float] = time.monotonic
    _started: float = field(init=False)
    _after_first: float | None = None
    _first_tokens: int = 0
    _tokens: int = 0
    _votes_done: int = 0
    _announced: bool = False

    def __post_init__(self) -> None:
        self._started = self.clock()

    def step(self, votes: int, tokens: int) -> None:
        """Record an optimizer step over this many votes and tokens."""
        self._votes_done += votes
        self._tokens += tokens
        if self._after_first is None:
            self._after_first, self._first_tokens = self.clock(), tokens

    @property
    def tokens_per_second(self) -> float | None:
        """Speed over all steps but the first, which does one-time work; None before the second."""
        if self._after_first is None or self._tokens == self._first_tokens:
            return None
        return (self._tokens - self._first_tokens) / max(self.clock() - self._after_first, 1e-9)

    @property
    def seconds(self) -> float | None:
        """Estimated remaining seconds; None before the second step."""
        # The remaining tokens are the remaining votes times the tokens per vote so far.
        rate = self.tokens_per_second
        return None if rate is None else (self.votes - self._votes_done) * (self._tokens / self._votes_done) / rate

    def announcement(self) -> str | None:
        """Return the estimate as a line, once: after the first minute, if enough time is left."""
        left, rate = self.seconds, self.tokens_per_second
        if self._announced or left is None or rate is None:
            return None
        if self.clock() - self._started < ESTIMATE_AFTER_SECONDS or left < _SHORTEST_ESTIMATE_SECONDS:
            return None
        self._announced = True
        done = self._votes_done / self.votes
        return f"training will take about {in_words(left)} more ({done:.0%} done, {rate:,.0f} tokens/s)"


def in_words(seconds: float) -> str:
    """Format a duration with the precision of an estimate: `40 seconds`, `12 minutes`, `3.5 hours`, `2.1 days`."""
    if seconds < 90:
        whole = max(1, round(seconds))
        return f"{whole} second" + ("s" if whole > 1 else "")
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} minutes"
    if seconds < 36 * 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 86400:.1f} days"


class StepReport:
    """Reports each step; on every rank but the first it reports nothing."""

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        *,
        total: int | None,
        first: int,
        num_votes: int | None,
        quiet: bool,
        is_main: bool,
    ) -> None:
        """Open the bar and the log, at step `first` of `total` (None: no end is known) with `num_votes` in all."""
        self.silent, self.started = quiet or not is_main, time.monotonic()
        self.bar = progress(description="train", total=total, unit="step", quiet=self.silent)
        # Without tqdm's own estimate, which ignores the tokens of a step.
        counts = "{l_bar}{bar}| {n_fmt}/{total_fmt}" if total else "{desc}: {n_fmt} steps"
        self.bar.bar_format = counts + " [{elapsed}{postfix}]"
        self.bar.update(first)
        self.log = MetricsLog(folder / METRICS_FILE, resume_step=first) if is_main else None
        self.time_left = TimeLeft(round(num_votes * (total - first) / total)) if total and num_votes else None
        self.wandb = _start_wandb(config, folder) if is_main else None

    def step(self, result: StepResult, seconds: float, more: Mapping[str, float] | None = None) -> None:
        """Report one optimizer step that took `seconds`; `more` columns are logged beside its own."""
        speed = round(result.tokens / seconds, 1) if seconds > 0 else 0.0
        left = None
        line = None
        if self.time_left is not None:
            self.time_left.step(result.votes, result.tokens)
            left, line = self.time_left.seconds, self.time_left.announcement()
        estimate = "" if left is None else f", {in_words(left)} left"
        self.bar.set_postfix_str(f"loss {result.loss:.4f}, {speed:,.0f} tokens/s{estimate}", refresh=False)
        self.bar.update()
        if line is not None and not self.silent:
            self.bar.write(line, file=sys.stderr)
        elapsed = round(time.monotonic() - self.started, 3)
        self._write({**asdict(result), "tokens_per_second": speed, "seconds": elapsed, **(more or {})})

    def evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """Report validation metrics after `step` steps."""
        if not self.silent:
            self.bar.write(f"step {step}: validation loss {metrics['Loss']:.4f}", file=sys.stderr)
        self._write({"step": step, **{f"validation/{name}": value for name, value in metrics.items()}})

    def columns(self, step: int, values: Mapping[str, float]) -> None:
        """Log further values after `step` steps."""
        self._write({"step": step, **values})

    def close(self) -> None:
        """Close the bar and Weights & Biases."""
        self.bar.close()
        if self.wandb is not None:
            self.wandb.finish()

    def _write(self, values: dict[str, float]) -> None:
        if self.log is not None:
            self.log.write(**values)
        if self.wandb is not None:
            self.wandb.log(values, step=int(values["step"]))


def _start_wandb(config: TrainConfig, folder: Path) -> Any:
    """Begin a run of Weights & Biases, where the configuration asks for it and the package is installed."""
    if config.wandb_entity is None:
        return None
    try:
        import wandb
    except ImportError:
        print("warning: wandb_entity is set but the package wandb is not installed; not logging there", file=sys.stderr)
        return None
    settings = config.model_dump(mode="json")
    try:
        return wandb.init(entity=config.wandb_entity, project="p2l", name=folder.name, config=settings)
    except Exception as error:  # its own errors, and those of its HTTP client
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"key 'wandb_entity': Weights & Biases fails ({reason}); log in or remove the key") from error


class MetricsLog:
    """`metrics.jsonl`: one line for each optimizer step or evaluation."""

    def __init__(self, path: Path, resume_step: int = 0) -> None:
        self._path = path
        with self._disk_errors():
            if not path.exists():
                return
            # Lines that a killed run wrote after the checkpoint that this run resumes from are dropped.
            lines = []
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    if parse_json(line)["step"] <= resume_step:
                        lines.append(line)
                except (ValueError, KeyError, TypeError):
                    break  # the kill cut this line
            with atomic_path(path) as temporary:
                temporary.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    def write(self, **values: float | int | str) -> None:
        """Append one line."""
        with self._disk_errors(), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(f"{self._path}: cannot be written: {error.strerror}; checkpoints are complete") from error
