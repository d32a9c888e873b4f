"""How much do more votes and more parameters help? Held-out loss over both, a law fitted to it, a figure.

    python -m benchmarks.scaling --output runs/scaling [--figure docs/figures/scaling.png]

Models of several sizes are trained from scratch, by the trainer and settings of `p2l train --size tiny`, on nested sets
of simulated votes, whose best possible loss is known; each seed draws other votes, other first weights and another
order. The loss is that of 4,096 held-out prompts, expected over the outcomes of their votes. Every trained model is a
line of `points.jsonl`: a run that was stopped goes on where it was. On a GPU the shapes are those of SmolLM2 and
Qwen2.5 (with random weights and a small vocabulary) on up to 262,144 votes; on a CPU, transformers of two layers.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.scaling.arena import arena_config, held_out, write_pool
from benchmarks.scaling.points import SHAPES, Shape, read_points, train_point, write_points
from benchmarks.scaling.report import report
from p2l.common.cli import parser, positive, run
from p2l.common.errors import ConfigError, InputError
from p2l.common.files import atomic_path
from p2l.common.plots import check_figures
from p2l.simulation.config import SimulationConfig

__all__ = ["build_parser", "main"]

_HELD_OUT = 4096
_POOL = 2
"""The arena has so many times the votes of the largest set, so that seeds differ in their votes."""
_VOTES = {"cpu": (4096, 8192, 16384, 32768, 65536), "cuda": (4096, 16384, 65536, 262144)}


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.scaling", "Held-out loss over votes and parameters, with a fitted law.")
    flags.add_argument("--output", type=Path, required=True, help="folder of the votes and of points.jsonl")
    flags.add_argument("--figure", help="also draw it (.png, .svg, .pdf)")
    flags.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if there is one")
    flags.add_argument("--shapes", nargs="+", choices=SHAPES, help="default: all of the device")
    flags.add_argument("--votes", nargs="+", type=positive, help="default: the grid of the device")
    flags.add_argument("--seeds", type=positive, default=2, help="models of each cell")
    flags.add_argument("--replicates", type=positive, default=300, help="of the bootstrap")
    flags.add_argument("--report-only", action="store_true", help="train nothing; fit the points that are there")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Train what is missing, then report."""
    flags = build_parser().parse_args(argv)
    if flags.figure:
        check_figures(flags.figure)
    device = _device(flags.device)
    shapes = [SHAPES[name] for name in flags.shapes or _shapes_of(device)]
    sizes = sorted(set(flags.votes or _VOTES[device]))
    config = _config(flags.output, max(sizes))
    write_pool(flags.output, config)
    held = held_out(flags.output, config)
    file = flags.output / "points.jsonl"
    done = {(point.shape, point.votes, point.seed) for point in read_points(file)}
    cells = [] if flags.report_only else [cell for cell in _cells(shapes, sizes, flags.seeds) if _key(cell) not in done]
    started = time.monotonic()
    for number, (shape, votes, seed) in enumerate(cells, start=1):
        point = train_point(flags.output, shape, votes, seed, held, device)
        write_points(file, point)
        spent = (time.monotonic() - started) / 60
        print(
            f"{number}/{len(cells)}: {shape.name}, {votes:,} votes, seed {seed}: loss {point.loss:.4f} in "
            f"{point.seconds:.0f} s ({spent:.1f} minutes so far, load {os.getloadavg()[0]:.1f})",
            flush=True,
        )
    wanted = {_key(cell) for cell in _cells(shapes, sizes, flags.seeds)}
    points = [point for point in read_points(file) if (point.shape, point.votes, point.seed) in wanted]
    print(report(points, held.best(), replicates=flags.replicates, figure=flags.figure))


def _device(name: str) -> str:
    from p2l.training.engine import choose_device

    return choose_device(name).type


def _shapes_of(device: str) -> list[str]:
    return [shape.name for shape in SHAPES.values() if shape.gpu == (device == "cuda")]


def _cells(shapes: Sequence[Shape], sizes: Sequence[int], seeds: int) -> Iterator[tuple[Shape, int, int]]:
    """A whole grid for each seed, so that a run that is stopped has whole grids."""
    for seed in range(seeds):
        for votes in sizes:
            for shape in shapes:
                yield shape, votes, seed


def _key(cell: tuple[Shape, int, int]) -> tuple[str, int, int]:
    return cell[0].name, cell[1], cell[2]


def _config(folder: Path, most: int) -> SimulationConfig:
    """The arena of a folder, made if there is none.

    Raises:
        ConfigError: the folder holds a smaller arena.
    """
    file = folder / "arena.json"
    if not file.exists():
        with atomic_path(file) as temporary:
            temporary.write_text(json.dumps(asdict(arena_config(_POOL * most, _HELD_OUT))) + "\n", encoding="utf-8")
    try:
        config = SimulationConfig(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(f"{file}: is not an arena ({error}); choose another --output") from error
    if config.votes < most:
        raise ConfigError(f"{folder}: holds an arena of {config.votes:,} votes, {most:,} are wanted; another --output")
    return config


if __name__ == "__main__":
    run(main)
