"""Progress of a training run: the bar with its time estimate, `metrics.jsonl`, optional Weights & Biases."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from p2l.common.cli import progress
from p2l.common.errors import InputError
from p2l.training.config import TrainConfig
from p2l.training.run_folder import MetricsLog
from p2l.training.run_records import METRICS_FILE
from p2l.training.trainer import StepResult

FIRST_WORD = 60.0  # seconds of training after which the estimate is good enough to print
LEAST = 10.0  # remaining seconds that are worth a line


@dataclass
class TimeLeft:
    """An estimate of the remaining time, updated after every step.

    The remaining tokens are the remaining votes times the tokens per vote so far. The rate includes the time between
    steps, for saving and validating, but not the first step, which does one-time work.
    """

    votes: int
    """Remaining when this run, or its resumption, starts; a vote counts once an epoch."""
    clock: Callable[[], float] = time.monotonic
    _started: float = field(init=False)
    _after_first: float | None = None
    _first_tokens: int = 0
    _tokens: int = 0
    _seen: int = 0
    _announced: bool = False

    def __post_init__(self) -> None:
        self._started = self.clock()

    def step(self, votes: int, tokens: int) -> None:
        """Record an optimizer step over this many votes and tokens."""
        self._seen += votes
        self._tokens += tokens
        if self._after_first is None:
            self._after_first, self._first_tokens = self.clock(), tokens

    @property
    def tokens_per_second(self) -> float | None:
        """Of all steps but the first; None before the second."""
        if self._after_first is None or self._tokens == self._first_tokens:
            return None
        return (self._tokens - self._first_tokens) / max(self.clock() - self._after_first, 1e-9)

    @property
    def seconds(self) -> float | None:
        """Estimated remaining seconds; None before the second step."""
        rate = self.tokens_per_second
        return None if rate is None else (self.votes - self._seen) * (self._tokens / self._seen) / rate

    def first_word(self) -> str | None:
        """Return the estimate as a line, once: after the first minute, if enough time is left."""
        left, rate = self.seconds, self.tokens_per_second
        if self._announced or left is None or rate is None or self.clock() - self._started < FIRST_WORD or left < LEAST:
            return None
        self._announced = True
        done = self._seen / self.votes
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


_BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
_OPEN_BAR = "{desc}: {n_fmt} steps [{elapsed}{postfix}]"


class RunProgress:
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
        # without tqdm's estimate, which ignores the tokens of a step
        self.bar.bar_format = _BAR if total else _OPEN_BAR
        self.bar.update(first)
        self.log = MetricsLog(folder / METRICS_FILE, resume_step=first) if is_main else None
        self.time_left = TimeLeft(round(num_votes * (total - first) / total)) if total and num_votes else None
        self.wandb = _start_wandb(config, folder) if is_main else None

    def step(self, result: StepResult, seconds: float, more: Mapping[str, float] | None = None) -> None:
        """Report one optimizer step that took `seconds`; `more` values are logged beside its own."""
        speed = round(result.tokens / seconds, 1) if seconds > 0 else 0.0
        left = line = None
        if self.time_left is not None:
            self.time_left.step(result.votes, result.tokens)
            left, line = self.time_left.seconds, self.time_left.first_word()
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
