"""Command: take the items of benchmarks, or of any file of prompts with reference answers, into a run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coeval.cli import names
from p2l.common.cli import parser, positive

if TYPE_CHECKING:
    from coeval.ingest.adapters import Benchmark


_DATA = Path("stdbenchmarks/data")
_OF_BENCHMARKS = ("data_dir", "split", "task_name")
_OF_DATASET = ("task", "teacher_id", "description", "label_attributes", "metric")
_NAMES = ("mmlu", "hellaswag", "truthfulqa", "humaneval", "medqa", "gsm8k")


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of `coeval ingest`."""
    flags = parser(
        "coeval ingest",
        "Take the items of benchmarks, or of your own file, into a run as a virtual teacher's; what is there stays. "
        "Then `coeval run --config RUN/config.yaml --continue` collects answers and scores.",
    )
    where = flags.add_mutually_exclusive_group(required=True)
    where.add_argument("--run", type=Path, metavar="PATH", help="folder of the run")
    where.add_argument("--run-id", metavar="ID", help="id of the run, in --storage-folder")
    flags.add_argument(
        "--storage-folder", type=Path, default=Path("benchmark/runs"), metavar="PATH", help="where --run-id is"
    )
    what = flags.add_mutually_exclusive_group(required=True)
    what.add_argument("--benchmarks", nargs="+", metavar="NAME", help=f"some of {', '.join(_NAMES)}")
    what.add_argument(
        "--dataset", type=Path, metavar="FILE", help="JSON lines with prompt and reference_response, for --task"
    )
    _add_benchmark_flags(flags)
    _add_dataset_flags(flags)
    flags.add_argument("--limit", type=positive, metavar="N", help="new items at most, of each benchmark; all")
    flags.add_argument("--verbose", action="store_true", help="print what is read, and what was there already")
    return flags


def _add_benchmark_flags(flags: argparse.ArgumentParser) -> None:
    flags.add_argument(
        "--data-dir",
        type=Path,
        metavar="PATH",
        help=f"with --benchmarks: where they are, each as NAME/SPLIT.jsonl ({_DATA})",
    )
    flags.add_argument("--split", metavar="SPLIT", help="with --benchmarks: in place of the benchmark's own")
    flags.add_argument("--task-name", metavar="TASK", help="with --benchmarks: in place of the benchmark's own")


def _add_dataset_flags(flags: argparse.ArgumentParser) -> None:
    flags.add_argument("--task", metavar="TASK", help="with --dataset: the task, one of the run's or a new one")
    flags.add_argument("--teacher-id", metavar="NAME", help="with --dataset: the virtual teacher (the file's name)")
    flags.add_argument("--description", metavar="TEXT", help="with --dataset: of a new task (Answer the prompt.)")
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
    _check_flags(flags, arguments)
    from coeval.ingest.writing import ingest
    from coeval.storage.run import Run

    folder = arguments.run or arguments.storage_folder / arguments.run_id
    for benchmark, path in list(_sources(arguments)):
        if arguments.verbose:
            print(f"reading {path}")
        counts = ingest(Run(folder), benchmark, path, arguments.limit)
        text = f"{benchmark.name}: {counts.written} items written for task {benchmark.task}"
        if arguments.verbose or not counts.written:
            text += f", {counts.there} there already, {counts.skipped} skipped"
        print(text)
    print(f"go on with: coeval run --config {folder / 'config.yaml'} --continue")
    return 0


def _check_flags(flags: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.dataset is not None and not arguments.task:
        flags.error("--dataset needs --task")
    kind, others = ("--dataset", _OF_DATASET) if arguments.dataset is None else ("--benchmarks", _OF_BENCHMARKS)
    for name in others:
        if getattr(arguments, name) is not None:
            flags.error(f"--{name.replace('_', '-')} goes with {kind}")


def _sources(arguments: argparse.Namespace) -> Iterator[tuple[Benchmark, Path]]:
    """Yield the benchmarks and their files."""
    from dataclasses import replace

    from coeval.errors import RunInputError
    from coeval.ingest.adapters import benchmark, generic
    from coeval.judging.metrics import missing_package

    if arguments.dataset is not None:
        why = missing_package({"metric": arguments.metric}) if arguments.metric else None
        if why is not None:
            raise RunInputError(why)
        labels = arguments.label_attributes or ()
        teacher = arguments.teacher_id or arguments.dataset.name.partition(".")[0]
        yield generic(teacher, arguments.task, arguments.description, labels, arguments.metric), arguments.dataset
        return
    for name in arguments.benchmarks:
        source = benchmark(name)
        source = replace(source, task=arguments.task_name or source.task, split=arguments.split or source.split)
        yield source, (arguments.data_dir or _DATA) / name / f"{source.split}.jsonl"
