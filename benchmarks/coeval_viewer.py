"""How fast the viewer of a large run opens, beside reading the run's JSONL.

    python -m benchmarks.coeval_viewer [--units 100000] [--models 5 20] [--repeats 5]

Writes runs of that size with answers and rationales of ordinary length, serves them with `coeval view` and opens its
pages in Chromium (`make browser`): until the ranking stands, until an item stands, until a filter has gone through all
items, until a search has gone through all texts. Each is a new window without a cache. Beside them: from the command to
the first page, the seconds that reading every line of the run's files as JSON takes, and `--bundle`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.coeval_analysis import write_run
from benchmarks.serving.__main__ import serving
from benchmarks.tables import table
from p2l.common.cli import parser, positive, run
from tools.chromium import CHROMIUM, FLAGS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["main"]

_ANSWER, _RATIONALE = (
    "The report argues that the second option costs less. " * 12,
    "It names the cost, not the risk. " * 4,
)


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.coeval_viewer", "Time the viewer of a large run.")
    flags.add_argument("--units", type=positive, default=100_000, help="scores")
    flags.add_argument("--models", type=positive, nargs="+", default=[5, 20], help="in every role")
    flags.add_argument("--repeats", type=positive, default=5, help="of each time")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    flags = build_parser().parse_args(argv)
    cells: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory() as name:
        for models in flags.models:
            folder = Path(name) / f"run-{models}"
            write_run(folder, flags.units, models)
            _lengthen(folder)
            cells.append(_measure(folder, flags.repeats))
    header = [f"{flags.units:,} scores", *(f"{models} models" for models in flags.models)]
    print(table(header, [[what, *(column[what] for column in cells)] for what in cells[0]]))


def _lengthen(folder: Path) -> None:
    """Give answers and rationales the length that they have in real runs."""
    for kind, key, text in (("phase4_responses", "response", _ANSWER), ("phase5_evaluations", "rationale", _RATIONALE)):
        for path in (folder / kind).glob("*.jsonl"):
            records = map(json.loads, path.read_text().splitlines())
            path.write_text(
                "".join(json.dumps({**record, key: f"{record['id']}: {text}"}) + "\n" for record in records)
            )


def _measure(folder: Path, repeats: int) -> dict[str, str]:
    """Return what was measured on a run, in words, by what it is of."""
    from playwright.sync_api import sync_playwright

    size = sum(path.stat().st_size for path in folder.rglob("*.jsonl")) / 1e6
    reading = [_read(folder) for _ in range(repeats)]
    cells = {"reading every line of the run's files as JSON": f"{_text(reading)}, {size:.0f} MB"}
    start = time.perf_counter()
    with serving(["-m", "coeval", "view", "--run", str(folder), "--port"]) as port, sync_playwright() as playwright:
        url = f"http://127.0.0.1:{port}/"
        with urllib.request.urlopen(url) as answer:
            answer.read()
        cells["from the command to the first page, once"] = f"{time.perf_counter() - start:.1f} s"
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for what, path, ready in _PAGES:
            times, sizes = zip(*(_open(browser, url, path, ready) for _ in range(repeats)), strict=True)
            cells[what] = f"{_text(times)}, {np.median(sizes) / 1e3:,.0f} kB"
        browser.close()
    started_at = time.perf_counter()
    out = folder.with_name(f"{folder.name}-bundle")
    words = [sys.executable, "-m", "coeval", "view", "--run", str(folder), "--bundle", str(out)]
    subprocess.run(words, check=True, capture_output=True)
    seconds = time.perf_counter() - started_at
    files = [path for path in out.rglob("*") if path.is_file()]
    written = sum(path.stat().st_size for path in files) / 1e6
    cells["`--bundle`, once"] = f"{seconds:.0f} s, {len(files):,} files, {written:.1f} MB"
    return cells


def _read(folder: Path) -> float:
    start = time.perf_counter()
    for path in folder.rglob("*.jsonl"):
        with path.open("rb") as lines:
            for line in lines:
                json.loads(line)
    return time.perf_counter() - start


def _open(browser: Browser, url: str, path: str, ready: Callable[[Page], object]) -> tuple[float, float]:
    """Return the seconds until a page is ready in a new window, and the bytes that it took."""
    context = browser.new_context()
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    sizes: list[float] = []
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    start = time.perf_counter()
    page.goto(url + path)
    ready(page)
    seconds = time.perf_counter() - start
    page.wait_for_load_state("networkidle")
    context.close()
    return seconds, sum(sizes)


def _listed(page: Page) -> object:
    return page.wait_for_function("() => /that fit|No item fits/.test(document.getElementById('count').textContent)")


_PAGES: tuple[tuple[str, str, Callable[[Page], object]], ...] = (
    ("ranking opens", "", lambda page: page.wait_for_selector(".standings tbody tr >> nth=-1")),
    ("list of items opens", "items.html", lambda page: page.wait_for_selector("#filters:not([hidden])")),
    ("list filtered by student and judge, lowest first", "items.html#student=model-0&judge=model-1&sort=low", _listed),
    ("list searched through all texts", "items.html#search=model-4%20on", _listed),
)


def _text(times: Sequence[float]) -> str:
    return f"{np.median(times):.2f} s [{min(times):.2f}, {max(times):.2f}]"


if __name__ == "__main__":
    run(main)
