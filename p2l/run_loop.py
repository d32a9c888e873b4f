"""The steps of a run with all that is done between them: progress, checkpoints, validation, the finished model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from p2l.config import TrainConfig
from p2l.publish import push
from p2l.run_folder import TrainerState, keep_newest, read_state
from p2l.run_progress import RunProgress
from p2l.run_setup import global_batch, note
from p2l.saving import save_checkpoint, save_final
from p2l.trainer import StepResult, Trainer
from p2l.validation import Predictions, summarise, validate, write_results
from p2l.votes import VoteStore

__all__ = ["Hooks", "RunOptions", "finish_run", "resume_run", "run_loop", "save_step", "trainer_state"]


@dataclass(frozen=True)
class RunOptions:
    """The flags of a run, beside its configuration."""

    checkpoint: str | None = None
    push_to_hf: bool = False
    eval_steps: int | None = None
    """Validate after every so many steps and at the end; None: never."""
    save_steps: int | None = None
    """Save after every so many steps; None: only at the end."""
    quiet: bool = False
    folder: Path | None = None
    """A folder made for this run; None: a new one, named as the configuration says."""
    keep_checkpoints: int | None = None
    """The newest so many stay, earlier ones are removed; None: all stay."""


@dataclass(frozen=True)
class Hooks:
    """What one kind of run does in its own way; a step is named by how many steps are done."""

    state: Callable[[int], TrainerState]
    """What the checkpoint of a step records."""
    validation: Callable[[], VoteStore | None]
    """The votes to validate on now; None: none."""
    files: Callable[[int, Path], None] = lambda _, __: None
    """Writes what a checkpoint holds besides, into its folder (on the main process)."""
    values: Callable[[StepResult], Mapping[str, float]] = lambda _: {}
    """What `metrics.jsonl` says of a step besides."""
    after_step: Callable[[StepResult], None] = lambda _: None
    """Called after each step and its checkpoint."""


def trainer_state(trainer: Trainer, config: TrainConfig, step: int, num_votes: int, votes: str) -> TrainerState:
    """What decides whether another run would be this one going on; `votes` is their fingerprint."""
    return TrainerState(
        step=step,
        num_votes=num_votes,
        votes=votes,
        global_batch=global_batch(config),
        zero_stage=trainer.engine.zero_stage,
        precision=trainer.engine.precision,
        update_rule=trainer.engine.update_rule,
        world_size=trainer.engine.world_size,
        shuffle=config.shuffle,
        seed=config.seed,
    )


def resume_run(trainer: Trainer, hooks: Hooks, checkpoint: Path, *, quiet: bool) -> int:
    """Take up a checkpoint's state; returns the steps that are done.

    Raises:
        CheckpointError: the checkpoint is damaged, or another run's.
    """
    state = read_state(checkpoint)
    state.check_continues(hooks.state(state.step), checkpoint)
    trainer.engine.load(checkpoint)
    if not quiet:
        note(f"resuming from {checkpoint} after step {state.step}")
    return state.step


def run_loop(
    config: TrainConfig,
    options: RunOptions,
    trainer: Trainer,
    folder: Path,
    hooks: Hooks,
    *,
    first: int,
    num_votes: int | None,
) -> int:
    """Train from step `first` to the end; returns the steps that are done then.

    `num_votes` are those of the whole run, every epoch counted; None: not known yet.
    """
    total, done = trainer.schedule.total_steps, first
    shown = RunProgress.start(
        config,
        folder,
        total=total,
        first=first,
        num_votes=num_votes,
        quiet=options.quiet,
        is_main=trainer.engine.is_main,
    )
    before = time.monotonic()
    for result in trainer.steps(first):
        shown.step(result, time.monotonic() - before, hooks.values(result))
        done = result.step
        if options.save_steps and done % options.save_steps == 0:
            save_step(config, options, trainer, folder, hooks, done)
        if options.eval_steps and done % options.eval_steps == 0 and done != total:
            _evaluate(trainer, hooks, shown, done)
        hooks.after_step(result)
        before = time.monotonic()
    shown.close()
    return done


def save_step(
    config: TrainConfig, options: RunOptions, trainer: Trainer, folder: Path, hooks: Hooks, step: int
) -> None:
    """Write `checkpoint-<step>` and remove those that are too many (every rank must call this)."""
    target = folder / f"checkpoint-{step}"
    save_checkpoint(trainer, config, target, hooks.state(step), lambda unfinished: hooks.files(step, unfinished))
    if options.keep_checkpoints and trainer.engine.is_main:
        keep_newest(folder, options.keep_checkpoints)


def _evaluate(trainer: Trainer, hooks: Hooks, shown: RunProgress, step: int) -> None:
    validation = hooks.validation()
    if validation is None:
        return
    predictions = _predictions(trainer, validation)
    if predictions is not None:
        shown.evaluation(step, summarise(predictions, validation, trainer.likelihood))


def _predictions(trainer: Trainer, validation: VoteStore) -> Predictions | None:
    with trainer.as_published():
        return validate(trainer.engine, replace(trainer.windows, votes=validation, ahead=True))


def finish_run(
    config: TrainConfig, options: RunOptions, trainer: Trainer, folder: Path, validation: VoteStore | None
) -> None:
    """Write the trained model and its validation, say where it is, push it when asked to."""
    save_final(trainer, config, folder)
    if validation is not None:
        predictions = _predictions(trainer, validation)
        if predictions is not None:
            write_results(folder, predictions, validation, trainer.likelihood)
    if trainer.engine.is_main:
        print(f"trained model: {folder}")
        if options.push_to_hf:
            push(folder, config.repo_id)
    trainer.engine.barrier()
