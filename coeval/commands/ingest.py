"""Command: take benchmarks, prompts of any file, or answers that were made elsewhere, into a run."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coeval.cli import add_run, names
from p2l.common.cli import add_limit, counted, parser

if TYPE_CHECKING:
    from coeval.ingest.benchmarks import Benchmark
    from coeval.storage.run import Run


_DATA = Path("stdbenchmarks/data")
_BENCHMARKS = Path(__file__).parents[1] / "ingest" / "benchmarks.yaml"
_OF_BENCHMARKS = ("data_dir", "split", "task_name")
_OF_DATASET = ("task", "teacher_id", "description", "label_attributes", "metric")
_OF_ANSWERS = ("answers_format", "model")


def benchmark_names() -> list[str]:
    """Return the names of all benchmarks without parsing the table, for which `--help` would wait."""
    return re.findall(r"^(\w+):", _BENCHMARKS.read_text(encoding="utf-8"), re.MULTILINE)


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of `coeval ingest`."""
    flags = parser(
        "coeval ingest",
        "Add items of benchmarks, or of your own file, to a run as those of a virtual teacher, or answers made "
        "elsewhere as those of a student; records that are there stay. Then `coeval run --config "
        "RUN/config.yaml --continue` collects answers and scores.",
    )
    where = flags.add_mutually_exclusive_group(required=True)
    add_run(where, required=False)
    where.add_argument("--run-id", metavar="ID", help="id of the run, in --storage-folder")
    where.add_argument(
        "--config", type=Path, metavar="PATH", help="its configuration, YAML: a run that is not there yet is begun"
    )
    flags.add_argument(
        "--storage-folder",
        type=Path,
        default=Path("benchmark/runs"),
        metavar="PATH",
        help="folder that holds the run of --run-id",
    )
    what = flags.add_mutually_exclusive_group(required=True)
    what.add_argument("--benchmarks", nargs="+", metavar="NAME", help=f"some of {', '.join(benchmark_names())}")
    what.add_argument(
        "--dataset", type=Path, metavar="FILE", help="JSON lines with prompt, and maybe reference_response, for --task"
    )
    what.add_argument(
        "--answers", type=Path, metavar="FILE", help="answers that were made elsewhere, for --task, to be judged"
    )
    _add_benchmark_flags(flags)
    _add_dataset_flags(flags)
    flags.add_argument(
        "--answers-format",
        choices=("jsonl", "helm", "lm-eval", "inspect"),
        help="with --answers: rows with item, model and answer; or a log of HELM (scenario_state.json), "
        "lm-evaluation-harness (samples_*.jsonl) or Inspect (.eval, .json). By the file's name",
    )
    flags.add_argument("--model", metavar="NAME", help="with --answers: whose they are, in place of what the file says")
    add_limit(
        flags,
        "at most this many new items of each benchmark (default: all; of published data sets 620, spread evenly "
        "over attributes)",
    )
    flags.arrange(
        {
            "with --answers": ("--answers", "--answers-format", "--model"),
            "with --benchmarks": ("--data-dir", "--from-hub", "--split", "--task-name"),
            "with --dataset": ("--task", "--teacher-id", "--description", "--label-attributes", "--metric"),
        }
    )
    return flags


def _add_benchmark_flags(flags: argparse.ArgumentParser) -> None:
    flags.add_argument(
        "--data-dir",
        type=Path,
        metavar="PATH",
        help=f"with --benchmarks: where they are: NAME/SPLIT.jsonl, .parquet, or NAME of save_to_disk ({_DATA})",
    )
    flags.add_argument(
        "--from-hub", action="store_true", help="with --benchmarks: load them from the Hugging Face hub by `datasets`"
    )
    flags.add_argument("--split", metavar="SPLIT", help="with --benchmarks: in place of the benchmark's own")
    flags.add_argument("--task-name", metavar="TASK", help="with --benchmarks: in place of the benchmark's own")


def _add_dataset_flags(flags: argparse.ArgumentParser) -> None:
    flags.add_argument(
        "--task", metavar="TASK", help="with --dataset and --answers: the task, one of the run's or a new one"
    )
    flags.add_argument("--teacher-id", metavar="NAME", help="with both: the virtual teacher (the file's name)")
    flags.add_argument("--description", metavar="TEXT", help="with both: of a new task (Answer the prompt.)")
    flags.add_argument(
        "--label-attributes", type=names, metavar="A,B", help="with --dataset: attributes that are right answers"
    )
    flags.add_argument(
        "--metric", choices=("bertscore", "bleu", "exact_match"), help="with --dataset: add a judge of this metric"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Ingest; 1 where the run, the file or a row cannot be used."""
    flags = build_parser()
    arguments = flags.parse_args(argv)
    own = "--dataset" if arguments.dataset is not None else "--answers"
    is_own = arguments.dataset is not None or arguments.answers is not None
    if is_own and arguments.from_hub:
        flags.error("--from-hub goes with --benchmarks")
    if is_own and not arguments.task:
        flags.error(f"{own} needs --task")
    kinds = {"--benchmarks": _OF_BENCHMARKS, "--dataset or --answers": _OF_DATASET, "--answers": _OF_ANSWERS}
    allowed = {"--answers", "--dataset or --answers"} if arguments.answers is not None else set()
    allowed |= {"--dataset or --answers"} if is_own else {"--benchmarks"}
    for kind, of_kind in kinds.items():
        for name in of_kind if kind not in allowed else ():
            if getattr(arguments, name) is not None:
                flags.error(f"--{name.replace('_', '-')} goes with {kind}")
    from coeval.ingest.rows import hub_rows
    from coeval.ingest.writing import begin_run, ingest
    from coeval.storage.run import Run

    if arguments.config is not None:
        folder = begin_run(arguments.config).folder
    else:
        folder = arguments.run or arguments.storage_folder / arguments.run_id
    if arguments.answers is not None:
        _take_answers(Run(folder), arguments)
    else:
        for benchmark, path in list(_sources(arguments)):
            rows = hub_rows(benchmark) if arguments.from_hub else None
            counts = ingest(Run(folder), benchmark, path, arguments.limit, rows)
            text = f"{benchmark.name}: {counted(counts.written, 'item')} written for task {benchmark.task}"
            if counts.there or counts.skipped:
                text += f", {counts.there} there already, {counts.skipped} skipped"
            print(text)
    print(f"go on with: coeval run --config {folder / 'config.yaml'} --continue")
    return 0


def _take_answers(run: Run, arguments: argparse.Namespace) -> None:
    from itertools import islice

    from coeval.ingest.answers import read_answers
    from coeval.ingest.writing import ingest_answers

    answers = read_answers(arguments.answers, arguments.answers_format, arguments.model)
    counts = ingest_answers(
        run, _own(arguments, arguments.answers), list(islice(answers, arguments.limit)), arguments.answers
    )
    there = f", {counts.there} there already" if counts.there else ""
    written, items = counted(counts.written, "answer"), counted(counts.items, "new item")
    print(f"{written} of {', '.join(counts.models)} to {items}{there}")


def _own(arguments: argparse.Namespace, path: Path) -> Benchmark:
    """Return the benchmark that a file of the user's is."""
    from coeval.ingest.benchmarks import own_benchmark

    labels = arguments.label_attributes or ()
    teacher = arguments.teacher_id or path.name.partition(".")[0]
    return own_benchmark(teacher, arguments.task, arguments.description, labels, arguments.metric)


def _sources(arguments: argparse.Namespace) -> Iterator[tuple[Benchmark, Path]]:
    """Yield the benchmarks and their files."""
    from dataclasses import replace

    from coeval.errors import RunInputError
    from coeval.ingest.benchmarks import benchmark
    from coeval.ingest.rows import find_rows
    from coeval.judging.metrics import missing_package

    if arguments.dataset is not None:
        why = missing_package({"metric": arguments.metric}) if arguments.metric else None
        if why is not None:
            raise RunInputError(why)
        yield _own(arguments, arguments.dataset), arguments.dataset
        return
    for name in arguments.benchmarks:
        source = benchmark(name)
        source = replace(source, task=arguments.task_name or source.task, split=arguments.split or source.split)
        if (why := missing_package({"metric": source.metric}) if source.metric else None) is not None:
            print(f"warning: {name}: without its metric: {why}", file=sys.stderr)
            rubric = {factor: text for factor, text in source.rubric.items() if isinstance(text, str)}
            source = replace(source, metric=None, rubric=rubric)
        yield source, Path(source.hub) if arguments.from_hub else find_rows(source, arguments.data_dir or _DATA)
