"""P2L on Ray Serve beside the plain endpoint, in one run: requests a second, two replicas beside one, faults.

    python -m benchmarks.ray_serve [--shapes tfidf 135m] [--clients 1 8] [--requests 400] [--rounds 3]
    python -m benchmarks.ray_serve --parts overhead --shapes 135m --forms haproxy --rounds 1    # one form alone

In each round every server is started, warmed up, asked and ended, one after the other, so that none runs beside
another: the plain endpoint; `p2l endpoint --ray`; and the Serve application behind Ray Serve's own HTTP, in Python and
by HAProxy, whose replicas answer themselves (`direct`). Prompts are all different, caches off. Then two replicas beside
one, each with one thread; then replicas are killed, and models published, while clients ask that try nothing twice.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.serving.__main__ import serving
from benchmarks.serving.folders import prompts, write_folders, write_tfidf
from benchmarks.serving.load import Measured, bodies, drive
from benchmarks.tables import table
from p2l.common.cli import parser, positive, run

__all__ = ["main"]

_HAPROXY = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # Predictions may be asked for twice: a replica that ends costs a request another one, not its client an error.
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",
}
_FORMS = {
    "plain": "plain endpoint",
    "ray": "endpoint --ray",
    "serve": "Serve, Python proxy",
    "haproxy": "Serve, HAProxy",
}
_PARTS = ("overhead", "scaling", "faults", "autoscaling")
_BAR = 1.6


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.ray_serve", "Time P2L on Ray Serve beside the plain endpoint.")
    flags.add_argument("--shapes", choices=["tfidf", "135m", "tiny"], nargs="+", default=["tfidf", "135m"])
    flags.add_argument("--forms", choices=list(_FORMS), nargs="+", default=list(_FORMS), help="timed as overhead")
    flags.add_argument("--clients", type=positive, nargs="+", default=[1, 8])
    flags.add_argument("--requests", type=positive, default=400, help="of each server in a round, half of it for 135m")
    flags.add_argument("--rounds", type=positive, default=3)
    flags.add_argument("--fault-seconds", type=positive, default=30)
    flags.add_argument("--parts", choices=_PARTS, nargs="+", default=_PARTS)
    flags.add_argument("--serve", nargs=3, metavar=("MODEL", "DIRECT", "PORT"), help=argparse.SUPPRESS)
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a bar is missed."""
    flags = build_parser().parse_args(argv)
    if flags.serve:
        _serve(*flags.serve)
        return 0
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        models = {shape: _model(Path(name), shape) for shape in flags.shapes}
        first, last = flags.shapes[0], flags.shapes[-1]
        bars: dict[str, bool] = {}
        if "overhead" in flags.parts:
            for shape, model in models.items():
                _overhead(flags, pool, shape, model)
        if "scaling" in flags.parts:
            bars[f"two replicas at least {_BAR:g} times one"] = _scaling(flags, pool, models[last], last) >= _BAR
        if "faults" in flags.parts:
            bars["no request failed"] = not _faults(flags, pool, Path(name), models[first])
        if "autoscaling" in flags.parts:
            _autoscaling(pool, models[first])
    print("; ".join(f"{bar}: {'yes' if met else 'NO'}" for bar, met in bars.items()))
    return 0 if all(bars.values()) else 1


def _model(root: Path, shape: str) -> Path:
    return write_tfidf(root) if shape == "tfidf" else write_folders(root, shape)[0]


@contextlib.contextmanager
def _started(mode: str, model: Path, *more: str) -> Iterator[int]:
    endpoint = ["-m", "p2l.endpoint", "-m", str(model), "--host", "127.0.0.1", "--cache-size", "0", *more]
    if mode == "plain endpoint":
        words = [*endpoint, "--port"]
    elif mode == "endpoint --ray":
        words = [*endpoint, "--ray", "--port"]
    else:
        direct = "true" if mode == "Serve, HAProxy" else "false"
        words = ["-m", "benchmarks.ray_serve", "--serve", str(model), direct]
    with _environment(_HAPROXY if mode == "Serve, HAProxy" else {}), serving(words) as port:
        _until_answered(port)
        yield port


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    os.environ |= variables
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def _until_answered(port: int) -> None:
    request = bodies(["ready?"])
    while True:
        with contextlib.suppress(Exception):
            if not drive(port, request, 1).failures:
                return
        time.sleep(0.2)


def _serve(model: str, direct: str, port: str) -> None:
    """Serve the application with Ray Serve's own HTTP, on loopback as far as it lets itself be told."""
    from p2l.serving.ray_cluster import local_cluster

    folder = Path(tempfile.mkdtemp(prefix="p2l-bench-"))
    places = {"CONFIG_FILE_LOC": "haproxy.cfg", "SOCKET_PATH": "admin.sock", "METRICS_SOCKET_PATH": "metrics.sock"}
    places |= {"SERVER_STATE_BASE": "", "SERVER_STATE_FILE": "state"}
    os.environ |= {f"RAY_SERVE_HAPROXY_{name}": str(folder / place) for name, place in places.items()}
    os.environ["RAY_SERVE_HAPROXY_METRICS_PORT"] = str(_free_port())
    with local_cluster(folder, 4):
        from ray import serve

        from p2l.serving.ray_app import build

        options = {"host": "127.0.0.1", "port": int(port)}
        serve.start(proxy_location="HeadOnly", http_options=options, logging_config={"log_level": "WARNING"})
        serve.run(build({"model_path": model, "open": "true", "direct": direct, "cache_size": "0"}))
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
        serve.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _overhead(flags: argparse.Namespace, pool: ProcessPoolExecutor, shape: str, model: Path) -> None:
    count = flags.requests if shape == "tfidf" else flags.requests // 2
    cells: dict[tuple[str, int], list[Measured]] = {}
    modes = [_FORMS[form] for form in flags.forms]
    for round_number in range(flags.rounds):
        for mode in modes:
            with _started(mode, model) as port:
                _warm_up(pool, port)
                for clients in flags.clients:
                    requests = bodies(prompts(count, 0.8, round_number))
                    cells.setdefault((mode, clients), []).append(pool.submit(drive, port, requests, clients).result())
    rows = [[mode, *(text for clients in flags.clients for text in _figures(cells[mode, clients]))] for mode in modes]
    if {"plain", "ray"} <= set(flags.forms):
        added = [(_median(cells[_FORMS["ray"], one]) - _median(cells[_FORMS["plain"], one])) for one in flags.clients]
        rows.append(["added by --ray", *(text for ms in added for text in ("", f"{ms:.1f}", "", ""))])
    header = [text for clients in flags.clients for text in (f"{clients} clients", "p50, ms", "p99, ms", "failures")]
    print(f"\n{table([shape, *header], rows)}\n", flush=True)


def _median(rounds: Sequence[Measured]) -> float:
    return float(np.median([one.median for one in rounds])) * 1e3


def _warm_up(pool: ProcessPoolExecutor, port: int) -> None:
    """Ask until nobody is cut off: HAProxy is started anew when replicas come, and ends connections that wait."""
    for _ in range(10):
        time.sleep(1.0)
        with contextlib.suppress(OSError, EOFError):
            pool.submit(drive, port, bodies(prompts(50, 0.8, 99)), 4).result()
            return
    raise SystemExit("a server does not stay up")


def _figures(rounds: Sequence[Measured]) -> list[str]:
    rates = sorted(one.requests_per_second for one in rounds)
    p50, p99 = (float(np.median([getattr(one, name) for one in rounds])) * 1e3 for name in ("median", "p99"))
    failures = sum(one.failures for one in rounds)
    return [f"{np.median(rates):,.1f}/s [{rates[0]:,.1f}, {rates[-1]:,.1f}]", f"{p50:.1f}", f"{p99:.1f}", f"{failures}"]


def _scaling(flags: argparse.Namespace, pool: ProcessPoolExecutor, model: Path, shape: str) -> float:
    """How many times the requests of one replica two replicas answer, each with one thread."""
    rates: dict[int, list[Measured]] = {1: [], 2: []}
    with _environment({"OMP_NUM_THREADS": "1"}):
        for round_number in range(flags.rounds):
            for replicas, measured in rates.items():
                with _started("endpoint --ray", model, "--workers", str(replicas), "--streams", "1") as port:
                    _warm_up(pool, port)
                    requests = bodies(prompts(flags.requests // 2, 0.8, round_number))
                    measured.append(pool.submit(drive, port, requests, 8).result())
    ratios = [two.requests_per_second / one.requests_per_second for one, two in zip(*rates.values(), strict=True)]
    ratio = float(np.median(ratios))
    times = ["1", f"{ratio:.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"]
    names = ("one replica of one thread", "two of them")
    rows = [[name, *_figures(rates[n + 1]), times[n]] for n, name in enumerate(names)]
    header = [f"{shape}, 8 clients", "requests/s", "p50, ms", "p99, ms", "failures", f"times (aim {_BAR:g})"]
    print(f"\n{table(header, rows)}\n", flush=True)
    return ratio


def _faults(flags: argparse.Namespace, pool: ProcessPoolExecutor, root: Path, model: Path) -> int:
    """How many requests of clients failed while replicas were killed and models published."""
    published = root / "published"
    shutil.copytree(model, published / "model-0")
    more = ("--watch", str(published), "--workers", "2")
    with _started("endpoint --ray", published / "model-0", *more) as port:
        requests = bodies(prompts(50_000, 0.2, 5, longest=100))
        until = time.monotonic() + flags.fault_seconds
        driving = pool.submit(_drive_until, port, requests, 8, float(flags.fault_seconds))
        kills = updates = 0
        while time.monotonic() < until - 5:
            time.sleep(2.5)
            for pid in _replicas(os.getpid())[:1]:
                os.kill(pid, signal.SIGKILL)
                kills += 1
            time.sleep(2.5)
            updates += 1
            _publish(model, published / f"model-{updates}")
        answered, failures = driving.result()
        reloads = _metric(port, 'p2l_reloads_total{result="done"}')
    header = ["8 clients", "replicas killed", "models published", "taken over by a replica", "requests", "failed"]
    row = [f"{flags.fault_seconds} s", *(f"{count:,.0f}" for count in (kills, updates, reloads, answered, failures))]
    print(f"\n{table(header, [row])}\n", flush=True)
    return failures


def _metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def _autoscaling(pool: ProcessPoolExecutor, model: Path) -> None:
    """Print how soon a second replica is there while requests queue, and how soon it is gone when they do not."""
    more = ("--max-workers", "2", "--queue-per-worker", "2")
    with _started("endpoint --ray", model, *more) as port:
        before = len(_replicas(os.getpid()))
        started = time.monotonic()
        driving = pool.submit(_drive_until, port, bodies(prompts(50_000, 0.2, 6, longest=100)), 8, 90.0)
        while len(_replicas(os.getpid())) < 2 and not driving.done():
            time.sleep(0.2)
        came, most = time.monotonic() - started, len(_replicas(os.getpid()))
        answered, failures = driving.result()
        ended = time.monotonic()
        while len(_replicas(os.getpid())) > before:
            time.sleep(0.2)
        gone = time.monotonic() - ended
    header = ["8 clients", "replicas", "grown after", "shrunk again after", "requests", "failed"]
    row = ["autoscaling", f"{before} to {most}", f"{came:.0f} s", f"{gone:.0f} s", f"{answered:,}", f"{failures}"]
    print(f"\n{table(header, [row])}\n", flush=True)


def _replicas(parent: int) -> list[int]:
    """Process ids of the replicas that this process has started."""
    pids = []
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in map(int, path.read_text(encoding="ascii").split()):
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{pid}/cmdline").read_bytes()
                    pids += [pid] if b"ServeReplica:p2l-:" in words else _replicas(pid)
    return pids


def _drive_until(port: int, requests: Sequence[bytes], clients: int, seconds: float) -> tuple[int, int]:
    answered = failures = 0
    end, step = time.monotonic() + seconds, 200
    for start in range(0, len(requests) - step, step):
        measured = drive(port, requests[start : start + step], clients)
        answered, failures = answered + step, failures + measured.failures
        if time.monotonic() > end:
            break
    return answered, failures


def _publish(model: Path, target: Path) -> None:
    from p2l.model.checkpoint import seal

    temporary = target.with_name(f".{target.name}")
    shutil.copytree(model, temporary)
    config = temporary / "training_config.json"
    if config.is_file():
        config.write_text(config.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    seal(temporary)
    temporary.rename(target)


if __name__ == "__main__":
    sys.exit(run(main))
