"""Hostile files and answers to the readers of the commands: how soon each is refused, and how much memory it takes.

    python -m benchmarks.attack_files [--cases csv-columns parquet-bomb ...]

Each case is a file of a kind that somebody may hand in, read in a process of its own as its command reads it. The table
has the size of the file, the seconds from the call of the reader to its refusal, what memory grew by meanwhile, and the
refusal. To add a case, add a line to `CASES`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from p2l.common.cli import parser, run
from p2l.common.errors import P2LError

__all__ = ["main"]

Write: TypeAlias = Callable[[Path], Path]
"""Writes a case into a folder and returns what is to be read."""
Read: TypeAlias = Callable[[Path], object]
_VOTE = {"model_a": "ant", "model_b": "bee", "winner": "tie", "prompt": "Why?"}
_MEGABYTE = "x" * 1_000_000
_SHOWN = 88  # characters of a refusal


def _text(name: str, make: Callable[[], str]) -> Write:
    def write(folder: Path) -> Path:
        (folder / name).write_text(make(), encoding="utf-8")
        return folder / name

    return write


def _bomb() -> pa.Table:
    """5,000 votes on a prompt of a megabyte, which is stored once."""
    repeated = pa.DictionaryArray.from_arrays(pa.array(np.zeros(5000, np.int32)), pa.array([_MEGABYTE]))
    return pa.table({name: [text] * 5000 for name, text in _VOTE.items()} | {"prompt": repeated})


def _parquet(folder: Path) -> Path:
    import pyarrow.parquet as pq

    path = folder / "votes.parquet"
    pq.write_table(_bomb(), path, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=False)
    return path


def _saved(folder: Path) -> Path:
    """What save_to_disk writes, but for its compression."""
    import datasets

    datasets.disable_progress_bars()
    path = folder / "votes"
    datasets.Dataset.from_list([_VOTE]).save_to_disk(path)
    [file] = path.glob("*.arrow")
    prompt = pa.array([_MEGABYTE]).take(pa.array(np.zeros(1200, np.int64)))
    table = pa.table({name: [text] * 1200 for name, text in _VOTE.items()} | {"prompt": prompt})
    with (
        file.open("wb") as sink,
        pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer,
    ):
        writer.write_table(table)
    return path


def _model(name: str, content: str) -> Write:
    """A model folder, one of whose files is another."""

    def write(folder: Path) -> Path:
        from benchmarks.serving.folders import write_tfidf

        path = write_tfidf(folder)
        (path / name).write_text(content, encoding="utf-8")
        return path

    return write


def _rows(header: str, row: str, count: int) -> str:
    return f"{header}\n" + "".join(f"{row.format(number)}\n" for number in range(count))


def _wide(cells: Iterable[str], more: str = "1") -> str:
    """A line of 20,000 further cells."""
    return ",".join([*cells, *(f"{more}{number}" for number in range(20_000))])


def _read_votes(path: Path) -> object:
    from p2l.votes import read_votes

    return [len(batch) for batch in read_votes(path)]


def _fit(path: Path) -> object:
    from p2l.commands.leaderboard import main as leaderboard

    return leaderboard(["--votes", str(path), "--quiet"])


def _load_router(path: Path) -> object:
    from route.config import load_config

    return load_config(path)


def _load_experiment(path: Path) -> object:
    from coeval.config.keys import Keys
    from coeval.config.loading import load_config

    return load_config(path, keys=Keys(), fresh=False)


def _load_model(path: Path) -> object:
    from p2l.inference import P2L

    return P2L.from_pretrained(path, device="cpu")


def _read_table(path: Path) -> object:
    from route.evaluation.table import read_table

    return read_table(path)


def _read_arena(path: Path) -> object:
    from p2l.evaluation.references import read_arena

    return read_arena(str(path))


def _judge(path: Path) -> object:
    from coeval.parsing import MalformedAnswerError, read_object

    try:
        return read_object(path.read_text(encoding="utf-8"))
    except MalformedAnswerError as error:
        raise P2LError(str(error)) from error


def _experiment(prompt: str) -> str:
    """A configuration that is right but for the template of a prompt."""
    models = [{"name": "ant", "interface": "mock", "roles": ["teacher", "student", "judge"]}]
    task = {
        "name": "sums",
        "description": "Sums.",
        "output_description": "A number.",
        "target_attributes": {"size": ["small"]},
        "rubric": {"fit": "It fits."},
        "sampling": {"target": [1, 1], "nuance": [0, 0], "total": 1},
        "prompt_library": {"test": prompt},
    }
    return json.dumps({"experiment": {"id": "x", "storage_folder": "runs"}, "models": models, "tasks": [task]})


_MERGES = "a: &a {k: 1}\n" + "".join(
    f"{new}: &{new} {{<<: [{', '.join([f'*{old}'] * 10)}]}}\n"
    for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)
_DEEP = json.dumps(_VOTE)[:-1] + ', "x": '
CASES: dict[str, tuple[Write, Read]] = {
    "csv-columns": (
        _text("votes.csv", lambda: f"{_wide(_VOTE, 'c')}\n" + f"{_wide(_VOTE.values())}\n" * 100),
        _read_votes,
    ),
    "csv-row": (_text("arena.csv", lambda: "model_name,rating,category\n" + "a," * 20_000_000), _read_arena),
    "parquet-bomb": (_parquet, _read_votes),
    "arrow-bomb": (_saved, _read_votes),
    "many-names": (_text("votes.csv", lambda: _rows("model_a,model_b,winner", "a{0},b{0},tie", 500_000)), _fit),
    "many-models": (_text("table.csv", lambda: _rows("prompt,model,score", "p{0},m{0},1", 100_000)), _read_table),
    "nested-json": (_text("votes.jsonl", lambda: _DEEP + "[" * 1_000_000), _read_votes),
    "long-line": (_text("votes.jsonl", lambda: json.dumps(_MEGABYTE * 200)), _read_votes),
    "yaml-merges": (_text("router.yaml", lambda: _MERGES), _load_router),
    "format-width": (_text("coeval.yaml", lambda: _experiment("{input:>99999999999}")), _load_experiment),
    "endless-thought": (_text("answer.txt", lambda: "<think>" * 1_000_000), _judge),
    "tfidf-json": (_model("tfidf.json", '{"ngrams": [1, 99999999999], "terms": ["a"], "idf": [1]}'), _load_model),
    "surrogates": (_model("model_list.json", '["ant", "b\\ud800"]'), _load_model),
}
"""By name: what writes the file, and what reads it."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command line of the benchmark."""
    flags = parser("python -m benchmarks.attack_files", "Time how soon hostile files are refused.")
    flags.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    print(f"{'':16} {'kB':>8} {'s':>7} {'MB':>6}  refusal")
    for case in flags.cases:
        with (
            tempfile.TemporaryDirectory() as name,
            ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        ):
            path = CASES[case][0](Path(name))
            files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
            size = sum(file.stat().st_size for file in files)
            seconds, megabytes, refusal = pool.submit(_measure, case, path).result()
        print(f"{case:16} {size / 1e3:8.0f} {seconds:7.2f} {megabytes:6.0f}  {refusal[:_SHOWN]}", flush=True)


def _measure(case: str, path: Path) -> tuple[float, float, str]:
    """Read a case; return seconds, megabytes by which memory grew, and the refusal without its path."""
    with contextlib.suppress(P2LError, OSError):
        CASES[case][1](path.with_name("absent"))  # imports what it needs
    before, started = _peak(), time.perf_counter()
    try:
        CASES[case][1](path)
        refusal = "READ"
    except P2LError as error:
        refusal = str(error).replace(str(path), path.name)
    return time.perf_counter() - started, _peak() - before, refusal


def _peak() -> float:
    """Return the most memory that this process has had, in MB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")  # getrusage counts the parent's before exec too
    return int(status.split("VmHWM:")[1].split()[0]) / 1000


if __name__ == "__main__":
    run(main)
