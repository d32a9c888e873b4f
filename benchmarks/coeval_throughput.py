"""Calls a second of the response phase at a provider of 200 ms, records stored, and its memory over 100,000 records.

    python -m benchmarks.coeval_throughput [--calls 3000] [--rounds 3] [--records 100000]

The provider is a mock server in a process of its own on this machine. Each rate stands beside that of a pool of ten
threads with the official client of OpenAI, writing the same records, in the same round; medians over rounds, least and
greatest in brackets. Memory is measured at a provider that answers at once, in a run of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import share, table
from coeval.calling.caller import make_caller
from coeval.config.keys import Keys
from coeval.phases.progress import Stage
from coeval.phases.responses import collect_responses
from coeval.schema import PHASES, Config, Experiment, Mode, Model, Phase, Sampling, Task
from coeval.storage.meta import create_meta
from coeval.storage.records import now
from coeval.storage.run import Run
from coeval.storage.store import Log, Store
from p2l.common.cli import parser, positive, run

__all__ = ["build_parser", "main"]

_THREADS = 10
_SHARES = (0.1, 0.5, 1.0)
"""Of the records, after which memory is told."""
_PROMPT = "Write a letter about the bridge over the river, and say who may cross it and when. " * 4
_KEY = "a-key-of-the-benchmark"


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.coeval_throughput", "Time the response phase at a slow provider.")
    flags.add_argument("--calls", type=positive, default=3000, help="in each round")
    flags.add_argument("--baseline-calls", type=positive, default=300, help="of the pool of threads, in each round")
    flags.add_argument("--rounds", type=positive, default=3)
    flags.add_argument("--latency", type=float, default=0.2, help="seconds that the provider takes")
    flags.add_argument("--concurrency", type=positive, default=64)
    flags.add_argument("--records", type=int, default=100_000, help="of the run whose memory is measured; 0 for none")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as name, _provider(flags.latency) as url:
        ours, theirs = [], []
        for number in range(flags.rounds):
            seconds, _ = _respond(Path(name) / f"round-{number}" / "run", url, flags.calls, flags.concurrency)
            ours.append(flags.calls / seconds)
            theirs.append(flags.baseline_calls / _pool_of_threads(Path(name), url, flags.baseline_calls))
    ratios = np.array(ours) / np.array(theirs)
    rows = [
        [f"response phase, `concurrency: {flags.concurrency}`", _spread(ours), _spread(ratios, 1)],
        [f"{_THREADS} threads with OpenAI's client", _spread(theirs), "1"],
    ]
    print(f"{table(['', 'calls a second', 'times'], rows)}\n", flush=True)
    if flags.records:
        with tempfile.TemporaryDirectory() as name, _provider(0.0) as url:
            seconds, memory = _respond(Path(name) / "long", url, flags.records, flags.concurrency)
        cells = [f"{memory[int(one * flags.records)]:.0f} MB" for one in _SHARES]
        header = ["records, no latency", "calls a second", *(f"memory after {share(one)}" for one in _SHARES)]
        print(table(header, [[f"{flags.records:,}", f"{flags.records / seconds:,.0f}", *cells]]))


def _spread(values: Sequence[float] | NDArray[np.float64], digits: int = 0) -> str:
    return f"{np.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


@contextlib.contextmanager
def _provider(latency: float) -> Iterator[str]:
    """A mock server of its own process; gives its base URL."""
    words = [sys.executable, "-m", "coeval.mock.server", "--port", "0", "--latency", str(latency)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def _respond(folder: Path, url: str, calls: int, concurrency: int) -> tuple[float, dict[int, float]]:
    """Seconds of the response phase of a new run, and megabytes in memory after some of its records."""
    config = _config(folder, url, calls, concurrency)
    run_folder = _with_items(config, calls)
    meta = create_meta(run_folder, config.experiment.id)
    modes: dict[Phase, Mode] = dict.fromkeys(PHASES, "New")

    async def all_of_it() -> tuple[float, dict[int, float]]:
        with Store(run_folder) as store:
            async with make_caller(config, Keys(), run_folder, meta) as caller:
                stage = Stage(config, run_folder, store, caller, Log(None, "ERROR"), modes)
                started = time.perf_counter()
                with _memory(store, [int(share * calls) for share in _SHARES]) as memory:
                    outcome = await collect_responses(stage)
                assert outcome.stored == calls, outcome
            return time.perf_counter() - started, memory

    return asyncio.run(all_of_it())


@contextlib.contextmanager
def _memory(store: Store, marks: Sequence[int]) -> Iterator[dict[int, float]]:
    """Megabytes in memory when so many records were appended."""
    found: dict[int, float] = {}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            found.update({mark: _megabytes() for mark in marks if store.appended >= mark and mark not in found})

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
        found.update({mark: _megabytes() for mark in marks if mark not in found})


def _megabytes() -> float:
    resident = Path("/proc/self/statm").read_text().split()[1]
    return int(resident) * 4096 / 1e6


def _config(folder: Path, url: str, calls: int, concurrency: int) -> Config:
    student = Model("ant", "openai", ("student",), {"base_url": url, "model": "ant", "max_tokens": 64}, access_key=_KEY)
    task = Task(
        "letters", "Write letters.", "Text", {"tone": ["warm"]}, Sampling((1, 1), (0, 0), calls), {"style": "is good"}
    )
    experiment = Experiment(folder.name, folder.parent, concurrency=concurrency)
    return Config((student,), (task,), experiment)


def _with_items(config: Config, calls: int) -> Run:
    """The folder of a run that has its items."""
    found = Run(config.experiment.folder)
    path = found.records("data_generation", "letters", "owl")
    path.parent.mkdir(parents=True)
    shared = {"task_id": "letters", "teacher_model_id": "owl", "sampled_target_attributes": {}, "generated_at": now()}
    with path.open("w") as file:
        for number in range(1, calls + 1):
            item = {"id": f"letters__owl__{number:05d}", "prompt": f"{number}: {_PROMPT}", "reference_response": "x"}
            file.write(json.dumps({**item, **shared}) + "\n")
    return found


def _pool_of_threads(folder: Path, url: str, calls: int) -> float:
    """Seconds that ten threads with the official client take for as many records, appended one by one."""
    from openai import OpenAI

    lock = threading.Lock()
    with OpenAI(base_url=url, api_key=_KEY) as client, (folder / "baseline.jsonl").open("a") as file:

        def ask(number: int) -> None:
            messages = [{"role": "user", "content": f"{number}: {_PROMPT}"}]
            answer = client.chat.completions.create(model="ant", messages=messages, max_tokens=64)  # type: ignore[arg-type]
            record = {"id": number, "response": answer.choices[0].message.content, "generated_at": now()}
            with lock:
                file.write(json.dumps(record) + "\n")

        started = time.perf_counter()
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(ask, range(calls)))
        return time.perf_counter() - started


if __name__ == "__main__":
    run(main)
