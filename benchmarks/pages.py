"""What pages cost: the time from a keystroke to its leaderboard, and what an open console takes of a router.

    python -m benchmarks.pages [--keys 200] [--rounds 10] [--viewers 1] [--models tfidf tiny]

Ten characters a second are typed in Chromium (`make browser`) on the page of an endpoint with 12 or more models. A
keystroke counts as answered when its leaderboard stands in the page; one that the next overtakes counts as late. Beside
it stands the same prompt asked as JSON from the same page.

The console's cost is the processor time that the router's process takes of a second while the console is open, beyond
what the same requests take without it, in turns; as a share of what 1,000 requests take. Throughput stands beside it:
it also holds what the console's readers take, which have these cores to share with the router.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.route_overhead import Ports, body, routing
from benchmarks.serving.__main__ import Server, serving
from benchmarks.serving.folders import write_folders, write_tfidf
from benchmarks.serving.load import drive
from benchmarks.shapes import SHAPES
from benchmarks.tables import share, table
from p2l.common.cli import parser, positive, run
from tools.chromium import CHROMIUM, FLAGS

__all__ = ["main"]

_TEXT = "Write a SQL query that finds customers without an order in the last year, and explain why an index helps. "
_LIMIT, _LIMIT_OF_TRANSFORMERS = 50, 80  # milliseconds
_SECONDS_A_KEY = 0.1
_CLIENTS = 32
_KEYSTROKES = [
    "keystrokes answered in the page",
    "models",
    "in time",
    "median",
    "95th percentile",
    "overtaken",
    "as JSON alone",
]
_ADMIN = "the-admin-key-of-the-benchmark"
_WATCH = """
window.times = []; window.pressed = 0;
let last = 0; const begun = new WeakMap();
document.addEventListener("input", () => { last = performance.now(); window.pressed++; }, true);
document.addEventListener("htmx:beforeSend", (event) => begun.set(event.detail.xhr, last));
document.addEventListener("htmx:afterSwap", (event) => {
  document.body.getBoundingClientRect();
  window.times.push(performance.now() - begun.get(event.detail.xhr));
});
"""
_ASK = """async (prompt) => {
  const started = performance.now();
  await (await fetch("/leaderboard", {method: "POST", body: JSON.stringify({prompt: [prompt]}),
    headers: {"content-type": "application/json"}})).json();
  return performance.now() - started;
}"""


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.pages", "Time the endpoint's page and the router's console.")
    flags.add_argument("--keys", type=positive, default=200, help="characters typed")
    flags.add_argument(
        "--rounds", type=positive, default=10, help="of load on the router, with the console and without"
    )
    flags.add_argument("--requests", type=positive, default=5000, help="in each half of a round")
    flags.add_argument("--viewers", type=positive, default=1, help="of the console")
    flags.add_argument("--models", nargs="*", default=["tfidf", "tiny"], help=f"tfidf, {', '.join(SHAPES)}, or folders")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for model in flags.models:
            root = Path(name) / Path(model).name
            root.mkdir()
            folder = (
                Path(model)
                if Path(model).is_dir()
                else write_tfidf(root)
                if model == "tfidf"
                else write_folders(root, model)[0]
            )
            with serving(["-m", "p2l.endpoint", "-m", str(folder), "--host", "127.0.0.1", "--port"]) as port:
                rows.append(_keystrokes(model, port, flags.keys))
                print("  ".join(rows[-1]), file=sys.stderr, flush=True)
        print(f"{table(_KEYSTROKES, rows)}\n", flush=True)
        _console(Path(name), flags)


def _keystrokes(model: str, port: int, keys: int) -> list[str]:
    """Return the row of a model."""
    from playwright.sync_api import sync_playwright

    text = (_TEXT * (keys // len(_TEXT) + 1))[:keys]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.add_init_script(_WATCH)
        page.goto(f"http://127.0.0.1:{port}/")
        models = page.locator("#board tbody tr").count()
        page.keyboard.type("warm up", delay=1000 * _SECONDS_A_KEY)
        page.wait_for_timeout(500)
        page.evaluate("() => { window.times = []; window.pressed = 0; }")
        page.keyboard.type(text, delay=1000 * _SECONDS_A_KEY)
        page.wait_for_timeout(500)
        times, pressed = np.array(page.evaluate("window.times")), page.evaluate("window.pressed")
        plain = [page.evaluate(_ASK, f"{text} {number}") for number in range(50)]
        browser.close()
    limit = _LIMIT_OF_TRANSFORMERS if model in SHAPES else _LIMIT
    within = float((times <= limit).sum()) / pressed
    return [
        *(f"{model}, within {limit} ms", f"{models}", share(within, 1), f"{np.median(times):.1f} ms"),
        *(f"{np.quantile(times, 0.95):.1f} ms", f"{pressed - len(times)}"),
        f"{np.median(plain):.1f} and {np.quantile(plain, 0.95):.1f} ms",
    ]


@dataclass(frozen=True)
class _Half:
    """Requests with the console open or without."""

    seconds: float
    requests: int
    cpu: float
    """Seconds of the router's process."""
    readers: float
    """Seconds of processor time of the console's readers."""


def _console(root: Path, flags: argparse.Namespace) -> None:
    """Print what an open console takes of a router, in turns with none."""
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
        mock = stack.enter_context(serving(["-m", "route.providers.mock", "--port"]))
        ports = stack.enter_context(routing(root, "tfidf", Ports(mock, mock, mock, mock), admin_key=_ADMIN))
        router = next(iter(ports.routers.values()))
        _half(pool, router, 500, flags.viewers)  # which compiles the templates
        rounds = []
        for number in range(flags.rounds):
            viewers = (flags.viewers, 0) if number % 2 else (0, flags.viewers)
            halves = {each: _half(pool, router, flags.requests, each) for each in viewers}
            rounds.append((halves[flags.viewers], halves[0]))
    each = float(np.median([without.cpu / without.requests for _, without in rounds]))
    added = [(with_.cpu - without.cpu) / with_.seconds for with_, without in rounds]
    rates = [with_.requests / with_.seconds / (without.requests / without.seconds) for with_, without in rounds]
    rate = np.median([without.requests / without.seconds for _, without in rounds])
    readers = np.median([with_.readers / with_.seconds for with_, _ in rounds]) * 1e3
    rows = [
        ["requests a second with the console closed", f"{rate:,.0f}"],
        ["throughput with it open", f"{_range(rates, 100, ' %')} of that"],
        ["processor time of the router that it takes, a second", _range(added, 1000, " ms")],
        [f"the same, of what 1,000 requests take ({each * 1e3:.2f} ms each)", _range(added, 0.1 / each, " %")],
        ["processor time of its readers, a second", f"{readers:.1f} ms"],
    ]
    print(table([f"a console open, {flags.viewers} looking", "median [quartiles]"], rows), flush=True)


def _range(values: Sequence[float], by: float, unit: str) -> str:
    """Median and quartiles."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]) * by
    return f"{middle:.1f}{unit} [{low:.1f}, {high:.1f}]"


def _half(pool: Executor, router: Server, number: int, viewers: int) -> _Half:
    requests = [body("fast", "hello")] * number
    readers = [0.0] * viewers
    with contextlib.ExitStack() as stack:
        for place in range(viewers):
            stack.enter_context(_looking(router.port, readers, place))
        started, before = time.perf_counter(), router.seconds
        measured = pool.submit(drive, router.port, requests, _CLIENTS).result()
        seconds, cpu = time.perf_counter() - started, router.seconds - before
    if measured.failures:
        raise SystemExit(f"{measured.failures} of {number} requests failed")
    return _Half(seconds, number, cpu, sum(readers))


@contextlib.contextmanager
def _looking(port: int, seconds: list[float], place: int) -> Iterator[None]:
    """Read the console's events in a thread, as its page does; note the processor time of that."""
    url = f"http://127.0.0.1:{port}/console"
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    form = urllib.parse.urlencode({"key": _ADMIN}).encode()
    opener.open(urllib.request.Request(f"{url}/session", form, {"sec-fetch-site": "same-origin"})).read()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            with opener.open(f"{url}/events") as events:
                while not stop.is_set() and events.readline():
                    pass
        seconds[place] = time.thread_time()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    run(main)
