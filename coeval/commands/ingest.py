"""Command: take the items of benchmarks, or of any file of prompts with reference answers, into a run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coeval.cli import run
from p2l.common.cli import parser, positive

if TYPE_CHECKING:
    from coeval.ingest.adapters import Benchmark


_DATA = Path("stdbenchmarks/data")
_OF_BENCHMARKS = ("data_dir", "split", "task_name")
_OF_DATASET = ("task", "teacher_id", "description", "label_attributes", "metric")
_NAMES = ("mmlu", "hellaswag", "truthfulqa", "humaneval", "medqa", "gsm8k")


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
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
    flags.add_argument("--verbose", action="store_true", help="say what is read, and what was there already")
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
    flags.add_argument("--label-attributes", metavar="A,B", help="with --dataset: attributes that are right answers")
    flags.add_argument(
        "--metric", choices=("bertscore", "bleu", "exact_match"), help="with --dataset: add a judge of this metric"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; it ends with 1 where the run, the file or a row cannot be used."""
    flags = build_parser()
    given = flags.parse_args(argv)
    _check_flags(flags, given)
    from coeval.ingest.writing import ingest
    from coeval.storage.run import Run

    folder = given.run or given.storage_folder / given.run_id
    for benchmark, path in list(_sources(given)):
        if given.verbose:
            print(f"reading {path}")
        counts = ingest(Run(folder), benchmark, path, given.limit)
        more = (
            f", {counts.there} there already, {counts.skipped} skipped" if given.verbose or not counts.written else ""
        )
        print(f"{benchmark.name}: {counts.written} items written for task {benchmark.task}{more}")
    print(f"go on with: coeval run --config {folder / 'config.yaml'} --continue")
    return 0


def _check_flags(flags: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    if given.dataset is not None and not given.task:
        flags.error("--dataset needs --task")
    kind, others = ("--dataset", _OF_DATASET) if given.dataset is None else ("--benchmarks", _OF_BENCHMARKS)
    for name in others:
        if getattr(given, name) is not None:
            flags.error(f"--{name.replace('_', '-')} goes with {kind}")


def _sources(given: argparse.Namespace) -> Iterator[tuple[Benchmark, Path]]:
    """Benchmarks and their files."""
    from dataclasses import replace

    from coeval.errors import RunInputError
    from coeval.ingest.adapters import benchmark, generic
    from coeval.judging.metrics import missing_package

    if given.dataset is not None:
        why = missing_package({"metric": given.metric}) if given.metric else None
        if why is not None:
            raise RunInputError(why)
        labels = tuple(name.strip() for name in (given.label_attributes or "").split(",") if name.strip())
        teacher = given.teacher_id or given.dataset.name.partition(".")[0]
        yield generic(teacher, given.task, given.description, labels, given.metric), given.dataset
        return
    for name in given.benchmarks:
        found = benchmark(name)
        found = replace(found, task=given.task_name or found.task, split=given.split or found.split)
        yield found, (given.data_dir or _DATA) / name / f"{found.split}.jsonl"


if __name__ == "__main__":
    run(main)
