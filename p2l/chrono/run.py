"""Evaluate every checkpoint of a run on the slices of its time: what `p2l eval-chrono` does.

Each checkpoint reads a prompt once, in however many slices it occurs. A cell (checkpoint, slice) that exists already
for the same checkpoint and slice is not computed again. Of several processes, each takes every n-th checkpoint.

Shapes: N votes of a slice, U different prompts of the slices of a checkpoint, M models.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from p2l.batch_inference.launch import ModelOptions, Predictor, Processes, join_processes, load_model
from p2l.chrono.cells import CellFiles, CellInputs, claimed, remove_others, write_cell
from p2l.chrono.matrix import Plan, by_number, by_time, read_matrix, read_times
from p2l.chrono.slices import Checkpoint, ValidationSlice, find_checkpoints, find_slices, open_checkpoint, open_slices
from p2l.common.cli import counted, progress
from p2l.common.errors import ConfigError, InputError, P2LError
from p2l.common.files import write_json
from p2l.inference import Prediction
from p2l.leaderboard.board import several
from p2l.model.checkpoint import MODEL_LIST_FILE, revision_of
from p2l.votes import translate_labels
from p2l.votes.schema import IntArray

_PROMPTS_PER_CALL = 512  # between two looks at the progress bar


@dataclass(frozen=True, kw_only=True)
class ChronoOptions(ModelOptions):
    """The flags of the evaluation."""

    model_repo: str
    val_dir: str
    checkpoint_prefix: str = "checkpoint-"
    output_dir: str = "outputs"
    time_align: bool = False
    train_time: str | None = None
    val_time: str | None = None
    all_slices: bool = False
    label_list: str | None = None
    restart: bool = False
    html: str | None = None  # a page to write when all is done
    quiet: bool = False


def evaluate_chrono(options: ChronoOptions) -> None:
    """Write every cell of the plan that does not exist yet.

    Raise InputError, with nothing written, where flags, slices, the output folder or all checkpoints cannot be used;
    raise P2LError where some checkpoints cannot be, once all others are done.
    """
    with join_processes() as processes:
        checkpoints, plan, files = processes.on_first(lambda: _look(options))
        numbers_used = sorted({number for numbers in plan.values() for number in numbers})
        with open_slices({number: files[number] for number in numbers_used}, options.label_list) as slices:
            mine = [checkpoint for checkpoint in checkpoints if plan[checkpoint.number]]
            mine = mine[processes.rank :: processes.count]
            run = _ChronoRun(options, processes, slices)
            for checkpoint in mine:
                run.evaluate(checkpoint, [slices[number] for number in plan[checkpoint.number]])
        processes.wait()
        if options.html is not None and processes.is_first and len(run.broken) < len(mine):
            from p2l.chrono.results import chrono_report, data_of
            from p2l.common.report.reports import save_report

            # Of all cells that are there, those of earlier runs too.
            folder = Path(options.output_dir).expanduser()
            matrix = read_matrix(folder, "Loss", run=data_of(options.model_repo))
            path = save_report(chrono_report([matrix], data_of(options.val_dir)), Path(options.html).expanduser())
            run.say(f"wrote {path}")
        if run.broken:
            names = ", ".join(run.broken)
            reason = next(iter(run.broken.values()))
            if len(run.broken) == len(mine) and isinstance(reason, InputError):
                raise InputError(f"no checkpoint can be used; the first: {reason}")
            raise P2LError(
                f"{len(run.broken)} of {len(mine)} checkpoints cannot be used and are left out: {names}; "
                f"the first: {reason}"
            )


def _look(options: ChronoOptions) -> tuple[list[Checkpoint], Plan, dict[int, Path]]:
    """Return checkpoints, plan and slices, before anything expensive."""
    _check_flags(options)
    checkpoints = find_checkpoints(options.model_repo, options.checkpoint_prefix)
    files = find_slices(options.val_dir)
    numbers, slices = [checkpoint.number for checkpoint in checkpoints], list(files)
    if options.train_time is None or options.val_time is None:
        plan = by_number(numbers, slices, all_slices=options.all_slices)
    else:
        train = read_times(options.train_time)
        plan = by_time(numbers, slices, train, read_times(options.val_time))
        if max(train) >= numbers[-1] + numbers[0] and not options.quiet:
            print(
                f"note: {options.train_time} goes on to batch {max(train)}, but the last checkpoint was made after "
                f"{numbers[-1]}; unless the run was stopped early, its batches are larger than those of the file",
                file=sys.stderr,
            )
    return checkpoints, plan, files


def _check_flags(options: ChronoOptions) -> None:
    times = (options.train_time, options.val_time)
    if options.time_align and None in times:
        raise ConfigError("--time-align needs both --train-time and --val-time (`p2l timestamps` writes the former)")
    if not options.time_align and times != (None, None):
        raise ConfigError("--train-time and --val-time go with --time-align")
    if options.html is not None:
        from p2l.common.report.reports import check_page

        check_page(options.html)
    if options.time_align and options.all_slices:
        raise ConfigError("--all-slices and --time-align exclude each other: one asks about all slices, one about some")


class _NotFiniteError(P2LError):
    """A checkpoint predicts NaN or infinity."""


@dataclass
class _ChronoRun:
    """The checkpoints of one process."""

    options: ChronoOptions
    processes: Processes
    slices: dict[int, ValidationSlice]
    broken: dict[str, P2LError] = field(default_factory=dict)
    loaded: weakref.ref[Any] | None = None  # the model that was loaded last, as long as it is in memory

    def evaluate(self, checkpoint: Checkpoint, slices: Sequence[ValidationSlice]) -> None:
        """Write the cells of one checkpoint; one that cannot be used is noted and left out."""
        folder = Path(self.options.output_dir).expanduser() / checkpoint.name
        try:
            with open_checkpoint(checkpoint) as place:
                revision = revision_of(place)
                sources = {
                    votes.number: CellInputs(
                        revision=revision,
                        fingerprint=votes.fingerprint,
                        model_type=self.options.model_type,
                        head_type=self.options.head_type,
                        loss_type=self.options.loss_type,
                        max_length=self.options.max_length,
                        dtype=self.options.dtype,
                    )
                    for votes in slices
                }
                numbers = [votes.number for votes in slices]
                cells = {number: CellFiles(folder, checkpoint.name, number) for number in numbers}
                old = (
                    {}
                    if self.options.restart
                    else {number: cell.info(sources[number]) for number, cell in cells.items()}
                )
                infos = {number: info for number, info in old.items() if info is not None}
                predictor = self._load(place) if len(infos) < len(slices) else None
        except InputError as error:
            self._leave_out(checkpoint, error)
            return
        done = len(infos)
        try:
            if predictor is not None:
                with claimed(folder):
                    remove_others(folder, checkpoint.name, revision)
                    write_json(folder / MODEL_LIST_FILE, predictor.model.model_list, indent=2)
                    todo = [votes for votes in slices if votes.number not in infos]
                    infos |= self._fill(predictor, checkpoint.number, todo, cells, sources)
        except _NotFiniteError as error:
            self._leave_out(checkpoint, error)
        else:
            self.say(_summary(checkpoint.name, infos, there=done))

    def _leave_out(self, checkpoint: Checkpoint, error: P2LError) -> None:
        self.broken[checkpoint.name] = error
        self.say(f"{checkpoint.name}: left out: {error}")

    def _load(self, place: Path) -> Predictor:
        if self.loaded is not None and self.loaded() is not None:
            gc.collect()  # the memory of one model before the next is loaded
        model = load_model(place, self.options, self.processes)
        self.loaded = weakref.ref(model.model)
        return Predictor(model, self.say, self.options.batch_size)

    def _fill(
        self,
        predictor: Predictor,
        number: int,
        todo: Sequence[ValidationSlice],
        cells: dict[int, CellFiles],
        sources: dict[int, CellInputs],
    ) -> dict[int, dict[str, Any]]:
        """Compute cells, oldest slice first, and write each when its prompts are read; return their descriptions."""
        infos = {}
        names = predictor.model.model_list
        listed = {votes.number: _known(votes, names) for votes in todo}
        hashes = np.unique(np.concatenate([votes.prompts[listed[votes.number][0]] for votes in todo]))
        answers = _Answers(predictor, hashes)
        name = cells[todo[0].number].checkpoint
        hidden = self.options.quiet or not self.processes.is_first
        with progress(description=name, total=len(hashes), unit="prompts", quiet=hidden) as bar:
            for votes in todo:
                ids, labels, unknown = listed[votes.number]
                predictions = answers.of(votes, ids, bar)
                about = {
                    "loss_type": predictor.model.likelihood.name,
                    "models": len(names),
                    "unknown_models": unknown,
                    "later": self.options.all_slices and votes.number > number,
                }
                cell, source = cells[votes.number], sources[votes.number]
                infos[votes.number] = write_cell(cell, source, votes, ids, labels, predictions, about)
        return infos

    def say(self, text: str) -> None:
        """Print a note for the user."""
        if not self.options.quiet:
            print(text, file=sys.stderr)


def _known(votes: ValidationSlice, names: Sequence[str]) -> tuple[IntArray, IntArray, list[str]]:
    """Return ids (N,) of votes between two models of the list, labels (N, 3) in it, and models that it lacks."""
    labels = translate_labels(votes.votes.labels(), votes.votes.model_list, names)
    ids = np.flatnonzero((labels[:, :2] >= 0).all(axis=1))
    return ids, labels[ids], sorted(set(votes.votes.model_list) - set(names))


class _Answers:
    """Predictions of one model, for each prompt once."""

    def __init__(self, predictor: Predictor, hashes: IntArray) -> None:
        self._predictor, self._hashes = predictor, hashes  # (U,) sorted
        self._done = np.zeros(len(hashes), dtype=bool)
        self._columns: dict[str, Any] = {}  # name: (U, ...) or None

    def of(self, votes: ValidationSlice, ids: IntArray, bar: Any) -> Prediction:
        """Return the prediction of each of a slice's votes; _NotFiniteError if one is NaN or infinite."""
        places = np.searchsorted(self._hashes, votes.prompts[ids])
        first = np.unique(places, return_index=True)[1]
        new = first[~self._done[places[first]]]
        for start in range(0, len(new), _PROMPTS_PER_CALL):
            rows = new[start : start + _PROMPTS_PER_CALL]
            self._keep(places[rows], self._predictor.predict(votes.votes.prompts(ids[rows]), hidden=False))
            bar.update(len(rows))
        if not self._columns:
            return self._predictor.predict([], hidden=False)
        columns: dict[str, Any] = {
            name: None if values is None else values[places] for name, values in self._columns.items()
        }
        return Prediction(**columns)

    def _keep(self, places: IntArray, predictions: Prediction) -> None:
        if not np.isfinite(predictions.coefs).all():
            raise _NotFiniteError("gives coefficients that are not finite numbers; try --dtype float32")
        for name in ("coefs", "eta", "gamma", "truncated"):
            values = getattr(predictions, name)
            if name not in self._columns:
                shape = None if values is None else (len(self._hashes), *values.shape[1:])
                self._columns[name] = None if shape is None else np.zeros(shape, dtype=values.dtype)
            if values is not None:
                self._columns[name][places] = values
        self._done[places] = True


def _summary(name: str, infos: dict[int, dict[str, Any]], *, there: int) -> str:
    """Return one line on a checkpoint."""
    losses = [info["metrics"]["Loss"] for info in infos.values() if info["metrics"]["Loss"] is not None]
    votes, left = (sum(info[key] for info in infos.values()) for key in ("votes", "left_out"))
    unknown = sorted({model for info in infos.values() for model in info["unknown_models"]})
    words = [f"{name}: {counted(len(infos), 'slice')}, {votes:,} votes"]
    words += [f"{left:,} left out, with models that it does not know ({several(unknown, 5)})"] if left else []
    words += [f"mean loss {np.mean(losses):.4f}"] if losses else []
    words += [f"{there} of the slices were there already"] if there else []
    return ", ".join(words)
