"""Evaluates one or many outputs: reads, measures and writes each; one that cannot be used does not stop the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from p2l.batch_inference.json_arrays import remove_hidden
from p2l.common.cli import progress
from p2l.common.errors import InputError, P2LError
from p2l.common.files import check_can_write, write_json
from p2l.common.text_table import rows_to_print
from p2l.evaluation.categories import ALL, EmptyCategoryError, UnknownCategoryError, select
from p2l.evaluation.inputs import (
    Entry,
    EvaluationSettings,
    Inputs,
    check_model_list,
    entries,
    model_list,
    origin,
    output_path,
    recorded_likelihood,
)
from p2l.evaluation.measure import EvaluationJob, measure
from p2l.evaluation.output_tables import output_text
from p2l.evaluation.outputs import EvaluatedOutput, read_output
from p2l.evaluation.references import ArenaRatings, TrainVotes, read_arena, read_train_votes
from p2l.evaluation.results import CategoryResult, OutputResult, details_object, published_object
from p2l.likelihood import get
from p2l.training.run_records import recorded_covariates


@dataclass(frozen=True)
class Options:
    """The flags of an evaluation.

    Attributes:
        any_likelihood: whether a likelihood that is recorded beside an output precedes that of `settings`.
        params: the flags as the user wrote them, for the files.
        hf_output_dir: a data set on the hub.
        train: path or hub id of training votes.
        train_checkpoints, checkpoint_size: also evaluate marginal leaderboards of the first k * size training votes.
        remove_last_hidden_json: rewrite local checkpoint outputs without hidden states.
    """

    inputs: Inputs
    settings: EvaluationSettings
    any_likelihood: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)
    output_dir: str | None = None
    hf_output_dir: str | None = None
    train: str | None = None
    arena_path: str | None = None
    train_checkpoints: Sequence[int] = ()
    checkpoint_size: int = 0
    remove_last_hidden_json: bool = True
    report: str | None = None
    rows: int | None = None
    quiet: bool = False


def evaluate_outputs(options: Options) -> list[OutputResult]:
    """Evaluate every output and write its file.

    Raise InputError where flags, lists or the only output cannot be used, and P2LError, after all others were evaluated
    and written, where some of several outputs could not be.
    """
    todo = entries(options.inputs)
    _check(options, todo)
    names = model_list(options.inputs)
    limits = [k * options.checkpoint_size for k in dict.fromkeys(options.train_checkpoints)]
    parsed = list(dict.fromkeys((*options.settings.parsed, ALL)))
    # Training votes are read once for all outputs, and "all" is counted for the skill of categories that they lack.
    train = read_train_votes(options.train, names, parsed, limits) if options.train else None
    arena = read_arena(options.arena_path) if options.arena_path else None
    results, failures = list[OutputResult](), list[str]()
    for entry in todo:
        try:
            results.append(_evaluate(entry, options, names, train, arena))
            if not options.quiet:
                print(output_text(results[-1], top=rows_to_print(options.rows)), flush=True)
        except P2LError as error:
            if len(todo) == 1:
                raise
            failures.append(str(error) if entry.shown in str(error) else f"{entry.shown}: {error}")
    if options.report and results:
        from p2l.evaluation.output_report import write_report

        write_report(results, Path(options.report))
    if failures:
        raise P2LError(f"{len(failures)} of {len(todo)} outputs could not be evaluated: {'; '.join(failures)}")
    return results


def measure_file(path: str, names: Sequence[str], settings: EvaluationSettings) -> OutputResult:
    """Measure a model's answers in a file, whose coefficients are of `names`, and write nothing.

    Raise InputError where the file cannot be used.
    """
    output = read_output(path, names, settings.likelihood, settings.parsed, sort_models=False, need_coefs=True)
    notes = (*output.notes, *_notes_on_covariates(output, path, settings, has_train=False))
    job = EvaluationJob(dataclasses.replace(output, notes=notes), settings)
    entry = Entry(Path(path).stem, eval_path=path)
    results = dict(_measure_all(job, entry, Options(Inputs(), settings, quiet=True)))
    return _result(entry, job, list(results.values()), *origin(path))


def _check(options: Options, todo: Sequence[Entry]) -> None:
    settings = options.settings
    if not (options.output_dir or options.hf_output_dir):
        raise InputError("say where the results go: --output-dir DIR or --hf-output-dir REPO")
    if (settings.model_type == "marginal" or options.train_checkpoints) and not options.train:
        raise InputError("a marginal leaderboard is fitted on training votes; give --train-path or --hf-train-dataset")
    if options.train_checkpoints and not options.checkpoint_size:
        raise InputError("--train-checkpoints counts blocks of --checkpoint-size votes; give it too")
    if "arena" in (settings.model_type, settings.ground_truth) and not options.arena_path:
        raise InputError("arena ratings come from a leaderboard file; give --arena-path FILE.csv")
    for entry in todo if options.output_dir else ():
        if not entry.name:
            raise InputError("--output-file-name: a name is empty; give every output one")
        if Path(entry.name).name != entry.name:
            raise InputError(f"--output-file-name {entry.name}: no folders here; --output-dir says where")
        references = options.inputs.model_list_path, options.train, options.arena_path
        check_can_write(_file(options, entry), entry.eval_path, entry.checkpoint_path, *references)
    if options.report:
        from p2l.evaluation.output_report import check_report

        check_report(options.report)
    if options.hf_output_dir:
        from p2l.batch_inference.output import check_can_push

        check_can_push(options.hf_output_dir)


def _file(options: Options, entry: Entry) -> Path:
    return Path(options.output_dir or ".").expanduser() / f"{entry.name}.json"


def _evaluate(
    entry: Entry, options: Options, names: list[str], train: TrainVotes | None, arena: ArenaRatings | None
) -> OutputResult:
    path = output_path(entry, options.inputs)
    settings, recorded = options.settings, recorded_likelihood(path)
    notes: tuple[str, ...] = ()
    if recorded is not None and recorded != settings.likelihood.name:
        if options.any_likelihood:
            settings = dataclasses.replace(settings, likelihood=get(recorded))
        elif settings.model_type == "p2l":
            read_as = settings.likelihood.name
            notes = (f"The answers are of a model of likelihood {recorded}; here they are read as {read_as}.",)
    if settings.model_type == "p2l":
        check_model_list(options.inputs, names, path)
    # Hidden states make such files far larger, and nothing here reads them.
    if (
        entry.checkpoint_path
        and options.remove_last_hidden_json
        and path.lower().endswith(".json")
        and Path(path).is_file()
    ):
        remove_hidden(Path(path))
    output = read_output(
        path,
        names,
        settings.likelihood,
        settings.parsed,
        sort_models=entry.is_checkpoint,
        need_coefs=settings.model_type == "p2l",
    )
    notes += (*output.notes, *_notes_on_covariates(output, path, settings, has_train=train is not None))
    job = EvaluationJob(dataclasses.replace(output, notes=notes), settings, train, arena)
    results = dict(_measure_all(job, entry, options))
    _write(entry, options, job, results)
    # Marginal leaderboards of the first training votes are in the file alone.
    categories = [row for key, row in results.items() if key == f"{settings.model_type}-{row.name}"]
    model, data = origin(path)
    boards = {
        "marginal": f"one leaderboard of {Path(options.train or '').name}",
        "marginal-gt": "one leaderboard of the votes",
        "arena": Path(options.arena_path or "").name,
    }
    return _result(entry, job, categories, boards.get(settings.model_type, model), data)


def _notes_on_covariates(
    output: EvaluatedOutput, path: str, settings: EvaluationSettings, *, has_train: bool
) -> Iterator[str]:
    """Yield how covariates of the votes count in what is measured, where the model was trained with any."""
    names = recorded_covariates(Path(path))
    named = f" ({', '.join(names)})" if names else ""
    if output.shift is None:
        if names:
            yield (
                f"The model was trained with covariates{named}, of which these rows have no values: forecasts leave "
                "them out, and the votes' leaderboard is not controlled for them."
            )
        return
    yield (
        f"Covariates of the votes{named} are counted in forecasts, and the votes' leaderboard is fitted beside their "
        "effects in the model."
    )
    if has_train:
        yield "The leaderboard of training votes was fitted without covariates; skill leaves them out on both sides."
    if "random_subsets" in settings.metrics_to_inc:
        yield "Fits of random subsets of votes are not controlled for covariates."


def _measure_all(job: EvaluationJob, entry: Entry, options: Options) -> Iterator[tuple[str, CategoryResult]]:
    settings = options.settings
    for category in progress(settings.parsed, description=entry.name, unit=" categories", quiet=options.quiet):
        key = f"{settings.model_type}-{category.text}"
        try:
            chosen = select(category, job.output.table, job.output.source)
        except (EmptyCategoryError, UnknownCategoryError) as error:
            if isinstance(error, UnknownCategoryError) and not settings.lenient:
                raise
            yield key, CategoryResult(category.text, 0, 0, str(error))
            continue
        yield key, measure(job, category, chosen)
        for k in dict.fromkeys(options.train_checkpoints):
            limit = k * options.checkpoint_size
            yield f"marginal-{category.text}-checkpoint-{k}", measure(job, category, chosen, limit=limit)


def _write(entry: Entry, options: Options, job: EvaluationJob, results: Mapping[str, CategoryResult]) -> None:
    content = {
        "params": {
            **options.params,
            # The flags are lists for all outputs; a file holds those of its output alone.
            "eval_path": entry.eval_path,
            "checkpoint_path": entry.checkpoint_path,
            "hf_checkpoint_file": entry.hf_checkpoint_file,
            "output_file_name": entry.name,
            "loss_type": options.params.get("loss_type") or job.settings.likelihood.name,
        },
        "models": {
            key: published_object(result, job.settings) for key, result in results.items() if not result.problem
        },
        "notes": list(job.output.notes),
        "details": {key: details_object(result) for key, result in results.items()},
    }
    if options.output_dir:
        write_json(_file(options, entry), content, indent=4)
    if options.hf_output_dir:
        import tempfile

        from p2l.batch_inference.output import push

        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{entry.name}.json"
            write_json(file, content, indent=4)
            push([file], options.hf_output_dir)


def _result(
    entry: Entry, job: EvaluationJob, categories: Sequence[CategoryResult], model: str, data: str
) -> OutputResult:
    output, settings = job.output, job.settings
    return OutputResult(
        name=entry.name,
        source=entry.shown,
        model_type=settings.model_type,
        likelihood=settings.likelihood.name,
        ground_truth=settings.ground_truth,
        models=output.models,
        votes=len(output.labels),
        prompts=len(np.unique(output.prompts)),
        categories=tuple(categories),
        coefs=output.coefs,
        eta=output.eta,
        gamma=output.gamma,
        texts=None if output.texts is None else output.texts.to_pylist(),
        level=settings.level,
        notes=output.notes,
        default_categories=settings.lenient,
        model=model,
        data=data,
    )
