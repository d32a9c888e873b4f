"""Run models over a data set of prompts: what `p2l eval` does.

Each process takes every n-th chunk of the data set, saves its predictions every few seconds, and skips what is saved
already; the first process then joins the parts in the order of the data set. So what was reported as saved survives a
kill, and the output does not depend on the number of processes.
"""

from __future__ import annotations

import gc
import re
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from p2l.batch_inference.launch import EvalOptions, Predictor, Processes, join_processes, load_model
from p2l.batch_inference.output import (
    InferenceJob,
    OutputFiles,
    PartFolder,
    as_batch,
    check_can_push,
    check_parquet,
    discard_parts,
    open_parts,
    publish_model_list,
    push,
    write_output,
)
from p2l.batch_inference.prompts import ROWS, PromptSet, Survey, open_prompts
from p2l.common.cli import progress
from p2l.common.errors import CheckpointError, InputError
from p2l.common.files import check_can_write
from p2l.inference import P2L
from p2l.model.checkpoint import MODEL_LIST_FILE, local_folder

SAVE_AFTER_SECONDS = 5.0  # work, or one chunk if that takes longer, that a kill may cost each process


def evaluate(options: EvalOptions) -> list[Path]:
    """Run one model, or every checkpoint of a training run, over the data set; return the files with the rows.

    Raise InputError where the data set, a model, a flag or the output folder cannot be used, and PeerError where
    another process of this launch ended.
    """
    with join_processes() as processes:
        models, survey = processes.on_first(lambda: _look(options))
        data = open_prompts(options.dataset, split=options.split, limit=options.limit)
        written: list[Path] = []
        for number, model in enumerate(models):
            if number:
                gc.collect()  # the memory of one model before the next is loaded
            output = _output(options, model)
            run = _InferenceRun(
                options=options,
                processes=processes,
                data=data,
                survey=survey,
                path=model,
                output=output,
            )
            _evaluate_one(run)
            written += output.files
        return written


def _look(options: EvalOptions) -> tuple[list[str], Survey]:
    """Check models, output and the whole data set, before anything expensive; return models and survey."""
    if options.model is not None:
        models = [options.model]
    else:
        root = Path(options.training_output_dir or "").expanduser()
        if not root.is_dir():
            raise CheckpointError(
                f"{root}: no such folder; --training-output-dir is the folder that holds the checkpoints"
            )
        folders = [path for path in root.iterdir() if (path / MODEL_LIST_FILE).is_file() and path.name[:1] != "."]
        if not folders:
            raise CheckpointError(
                f"{root}: holds no checkpoints (folders with {MODEL_LIST_FILE}); evaluate it by --model"
            )
        # Texts and numbers take turns, so that `checkpoint-9` comes before `checkpoint-10`.
        folders.sort(key=lambda path: [int(w) if w.isdecimal() else w for w in re.split(r"(\d+)", path.name)])
        models = [str(path) for path in folders]
    if options.output_hf_path is not None:
        check_can_push(options.output_hf_path)
    data = open_prompts(options.dataset, split=options.split, limit=options.limit)
    for model in models:
        local_folder(model)
        check_can_write(_output(options, model).info_file)
    survey = data.survey(quiet=options.quiet)
    if "parquet" in options.formats:
        check_parquet(data.source.name, survey.schema)
    return models, survey


def _output(options: EvalOptions, model: str) -> OutputFiles:
    # The last part of a path or hub id; of `.` or a link, that of the folder itself.
    path = Path(model).expanduser()
    name = path.resolve().name if path.is_dir() else path.name
    return OutputFiles(Path(options.output_dir).expanduser(), name, options.formats)


@dataclass(frozen=True)
class _InferenceRun:
    """One model over the data set, in one process of several."""

    options: EvalOptions
    processes: Processes
    data: PromptSet
    survey: Survey
    path: str
    output: OutputFiles

    def print_note(self, text: str) -> None:
        """Print a note, from one process."""
        if self.processes.is_first and not self.options.quiet:
            print(text, file=sys.stderr)


def _evaluate_one(run: _InferenceRun) -> None:
    model = load_model(run.path, run.options, run.processes)
    job = InferenceJob(
        model=run.path,
        revision=model.revision,
        head_type=model.model.record.head_type,
        dtype=str(next(model.model.parameters()).dtype).removeprefix("torch."),
        max_length=[model.tokenizer.max_length],
        hidden=run.options.hidden,
        dataset=run.options.dataset,
        fingerprint=run.survey.fingerprint,
    )
    info = asdict(job) | {
        "split": run.options.split,
        "rows": run.survey.rows,
        "loss_type": model.likelihood.name,
        "model_list": model.model_list,
    }
    if model.covariates:
        info["covariates"] = list(model.covariates)
    files = set(run.output.files)
    if run.processes.on_first(lambda: not run.options.restart and files <= set(run.output.whole_files(info))):
        run.print_note(f"{run.output.files[0]}: complete already; --restart runs the model again")
        if run.processes.is_first:
            discard_parts(run.output.parts_folder, job)
    else:
        _predict_and_join(run, model, job, info)
    if run.options.output_hf_path is not None and run.processes.is_first:
        extra = [run.output.info_file, run.output.folder / MODEL_LIST_FILE]
        push([*run.output.files, *extra], run.options.output_hf_path)


def _predict_and_join(run: _InferenceRun, model: P2L, job: InferenceJob, info: dict[str, Any]) -> None:
    folder = run.output.parts_folder
    parts = run.processes.on_first(lambda: open_parts(folder, job, restart=run.options.restart))
    if not run.processes.is_first:
        parts.lock = None  # the number of a file that is open in the first process
    with closing(parts):
        saved = parts.refresh()
        if run.options.ray:
            from p2l.batch_inference.ray_data import predict_chunks

            sizes = {chunk: min(ROWS, run.survey.rows - chunk * ROWS) for chunk in run.survey.chunks}
            missing = [chunk for chunk, size in sizes.items() if saved.get(chunk) != size]
            predicted = predict_chunks(run.path, run.options, missing)
        else:
            predictor = Predictor(model, run.print_note, run.options.batch_size)
            predicted = (
                (chunk, as_batch(predictor.predict(turns.to_pylist(), hidden=run.options.hidden)))
                for chunk, turns in enumerate(run.data.chunks())
                if chunk % run.processes.count == run.processes.rank and saved.get(chunk) != len(turns)
            )
        _save(run, parts, predicted, sum(saved.values()))
        run.processes.wait()
        if run.processes.is_first:
            _join(run, parts, info)
        run.processes.wait()


def _join(run: _InferenceRun, parts: PartFolder, info: dict[str, Any]) -> None:
    """Join all parts into the output."""
    saved = parts.refresh()
    if sum(saved.get(chunk, 0) for chunk in run.survey.chunks) < run.survey.rows:
        raise InputError(
            f"{parts.folder}: lacks what other processes wrote; --output-dir must be a folder that all machines share"
        )
    if not publish_model_list(run.output.folder, info["model_list"]):
        run.print_note(
            f"{run.output.folder / MODEL_LIST_FILE}: lists other models and stays; "
            f"those of this run are in {run.output.info_file}"
        )
    with progress(description="write", total=run.survey.rows, unit="rows", quiet=run.options.quiet) as bar:
        whole = write_output(run.output, run.data, run.survey, parts, info, bar)
    parts.remove()
    if whole["not_finite"]:
        run.print_note(
            f"warning: {whole['not_finite']} prompts have coefficients that are not finite numbers; try --dtype float32"
        )
    cut = f", {whole['truncated']} of them cut at the maximal length" if whole["truncated"] else ""
    if not run.options.quiet:
        names = ", ".join(map(str, run.output.files))
        print(f"{names}: {run.survey.rows} prompts{cut}, {len(info['model_list'])} models, revision {info['revision']}")


def _save(run: _InferenceRun, parts: PartFolder, predicted: Iterable[tuple[int, Any]], num_saved: int) -> None:
    """Save chunks as they are predicted; `num_saved` rows were there before."""
    waiting: dict[int, Any] = {}
    since = time.monotonic()
    with progress(
        description=f"{run.output.name}: prompts saved",
        total=run.survey.rows,
        unit="prompts",
        quiet=run.options.quiet or not run.processes.is_first,
    ) as bar:
        bar.update(min(num_saved, run.survey.rows))

        def save() -> None:
            if waiting:
                parts.write(waiting)
                waiting.clear()
                bar.update(min(parts.saved_rows(), run.survey.rows) - bar.n)

        for chunk, batch in predicted:
            waiting[chunk] = batch
            if time.monotonic() - since >= SAVE_AFTER_SECONDS:
                save()
                since = time.monotonic()
        save()
