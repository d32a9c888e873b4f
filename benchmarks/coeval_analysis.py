"""How long the reports of a large run take, beside loops over all pairs of scores.

python -m benchmarks.coeval_analysis [--units 100000] [--models 5 20] [--repeats 5] [--pairwise]

Writes runs of that size to a temporary folder, one of few models with many items and one of many models with few, and
times `coeval analyze all` as a user would start it: pages, JSON, CSV, workbook, index. Then the steps of the last run.
With `--pairwise` judges compare answers, and units are verdicts.
The baseline is the plain way to the share of equal scores: for each two judges, a loop over both judges' scores that
looks for the same response and factor; it is run on a part that can be waited for, and its time grows with the square
of the units.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from benchmarks.tables import table
from coeval.analysis.tables import write_tables
from coeval.analysis.units import LoadedRun, load_run
from coeval.reports.registry import REPORTS, build

FACTORS = ("accuracy", "clarity", "style", "tone")
TASKS, BASELINE = 4, 4000
LEVELS = ("Low", "Medium", "High")


def write_run(folder: Path, units: int, models: int = 5, seed: int = 0, *, pairwise: bool = False) -> None:
    """A run of so many models in all roles and up to four tasks, with about so many scores, or verdicts on pairs."""
    rng, names = random.Random(seed), [f"model-{number}" for number in range(models)]
    units_of_item = models**2 * (models - 1) // 2 if pairwise else len(FACTORS) * models**2
    tasks = min(TASKS, max(1, units // (units_of_item * models)))
    items = max(1, units // (units_of_item * models * tasks))
    write_items = _write_compared if pairwise else _write_items
    for part in ("phase2_rubric", "phase3_datapoints", "phase4_responses", "phase5_evaluations", "phase5_pairwise"):
        (folder / part).mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"experiment_id": "large", "status": "completed"}))
    for task in (f"task-{number}" for number in range(tasks)):
        (folder / "phase2_rubric" / f"{task}.rubric.json").write_text(json.dumps(dict.fromkeys(FACTORS, "text")))
        for teacher in names:
            write_items(folder, task, teacher, names, items, rng)


def _write_items(folder: Path, task: str, teacher: str, models: list[str], items: int, rng: random.Random) -> None:
    datapoints, responses, evaluations = [], [], []
    for number in range(items):
        point = {"id": f"{task}__{teacher}__{number:05d}", "task_id": task, "teacher_model_id": teacher}
        attributes = {"tone": rng.choice(("warm", "cold")), "length": rng.choice(("short", "long"))}
        words = " ".join(f"{rng.getrandbits(24):06x}" for _ in range(12))  # no prompt is nearly another
        text = {"prompt": words, "reference_response": "reference"}
        datapoints.append({**point, **text, "sampled_target_attributes": attributes})
        for skill, student in enumerate(models):
            response = {**point, "id": f"{point['id']}__{student}", "datapoint_id": point["id"]}
            length = rng.randint(20, 200)
            responses.append({**response, "student_model_id": student, "response": "words", "token_count": length})
            truth = rng.gauss(skill / 2, 0.7)
            for judge in models:
                scores = {name: LEVELS[min(2, max(0, round(truth + rng.gauss(0, 0.5))))] for name in FACTORS}
                key = {"id": f"{response['id']}__{judge}", "response_id": response["id"], "judge_model_id": judge}
                at = f"2026-01-01T{number % 24:02d}:00:00Z"
                evaluations.append({**response, **key, "scores": scores, "evaluated_at": at})
    _write(folder / "phase3_datapoints" / f"{task}.{teacher}.datapoints.jsonl", datapoints)
    _write(folder / "phase4_responses" / f"{task}.{teacher}.all.responses.jsonl", responses)
    _write(folder / "phase5_evaluations" / f"{task}.{teacher}.all.evaluations.jsonl", evaluations)


def _write_compared(folder: Path, task: str, teacher: str, models: list[str], items: int, rng: random.Random) -> None:
    datapoints, responses, verdicts = [], [], []
    for number in range(items):
        point = {"id": f"{task}__{teacher}__{number:05d}", "task_id": task, "teacher_model_id": teacher}
        words = " ".join(f"{rng.getrandbits(24):06x}" for _ in range(12))
        datapoints.append({**point, "prompt": words, "reference_response": "reference"})
        about = {**point, "datapoint_id": point["id"]}
        for student in models:
            answer = {"id": f"{point['id']}__{student}", "student_model_id": student, "response": "words"}
            responses.append({**about, **answer, "token_count": rng.randint(20, 200)})
        truth = [rng.gauss(skill / 2, 0.7) for skill in range(len(models))]
        for (a, first), (b, second) in combinations(enumerate(models), 2):
            for judge in models:
                ahead = truth[a] - truth[b] + rng.gauss(0, 0.5)
                winner = "tie" if abs(ahead) < 0.3 else "model_a" if ahead > 0 else "model_b"
                key = {"id": f"{point['id']}__{first}__vs__{second}__{judge}", "judge_model_id": judge}
                at = f"2026-01-01T{number % 24:02d}:00:00Z"
                verdict = {"winner": winner, "verdicts": [winner, winner], "order_consistent": True, "created_at": at}
                verdicts.append({**about, **key, "model_a": first, "model_b": second, **verdict})
    _write(folder / "phase3_datapoints" / f"{task}.{teacher}.datapoints.jsonl", datapoints)
    _write(folder / "phase4_responses" / f"{task}.{teacher}.all.responses.jsonl", responses)
    _write(folder / "phase5_pairwise" / f"{task}.{teacher}.all.pairwise.jsonl", verdicts)


def _write(path: Path, records: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def baseline(loaded: LoadedRun, most: int) -> tuple[int, float]:
    """Units looked at, and seconds that the loop over all pairs takes on them."""
    units = loaded.units
    columns = (column[:most].tolist() for column in (units.judge, units.response, units.factor, units.norm))
    rows = list(zip(*columns, strict=True))
    start = time.perf_counter()
    for a, b in combinations(range(len(loaded.judges)), 2):
        ours, theirs = [row for row in rows if row[0] == a], [row for row in rows if row[0] == b]
        equal = [one[3] == two[3] for one in ours for two in theirs if one[1] == two[1] and one[2] == two[2]]
        _ = sum(equal) / max(len(equal), 1)
    return len(rows), time.perf_counter() - start


class Usage(NamedTuple):
    """What the command took."""

    seconds: float
    gigabytes: float  # of memory, at most


def analyze_all(run: Path, out: Path) -> Usage:
    """Run the command."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "coeval", "analyze", "all", "--run", str(run), "--out", str(out)]
    command += ["--agreement-threshold", "0"]  # scores at random leave no robust set, which ends with 1
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"coeval analyze all ended with {process.returncode}")
    return Usage(time.perf_counter() - start, usage.ru_maxrss / 1e6)


def steps(loaded: LoadedRun, folder: Path) -> None:
    """Tell the seconds of each report with its JSON and CSV."""
    for name in REPORTS:
        start = time.perf_counter()
        write_tables(build(name, loaded), folder / REPORTS[name].folder)
        print(f"{name:26s} {time.perf_counter() - start:7.2f} s", file=sys.stderr)


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--units", type=int, default=100_000, help="scores; the bar of 25 s and 1.0 GB is of 1,000,000")
    flags.add_argument("--models", type=int, nargs="+", default=[5, 20])
    flags.add_argument("--repeats", type=int, default=5)
    flags.add_argument("--pairwise", action="store_true", help="verdicts on pairs in place of scores")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print the seconds of the command and of its steps."""
    args = build_parser().parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for models in args.models:
            run, out = Path(temporary) / f"run-{models}", Path(temporary) / f"out-{models}"
            write_run(run, args.units, models, pairwise=args.pairwise)
            taken = [analyze_all(run, out) for _ in range(args.repeats)]
            size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e6
            seconds = [usage.seconds for usage in taken]
            times = f"{statistics.median(seconds):.1f} s [{min(seconds):.1f}, {max(seconds):.1f}]"
            memory = f"{max(usage.gigabytes for usage in taken):.2f} GB"
            start = time.perf_counter()
            loaded = load_run(run)
            reading = f"{time.perf_counter() - start:.1f} s"
            units = f"{len(loaded.verdicts):,} verdicts" if args.pairwise else f"{len(loaded.units):,} scores"
            rows.append([f"{models} models, {units}", times, reading, memory, f"{size:.1f} MB"])
        print(table(["`coeval analyze all`", "seconds", "of which reading", "memory", "written"], rows))
        steps(loaded, Path(temporary))
    if args.pairwise:
        return
    looked_at, loops = baseline(loaded, BASELINE)
    scaled = loops * (len(loaded.units) / looked_at) ** 2
    row = [f"{loops:.2f} s", f"{looked_at:,}", f"{scaled:,.0f} s"]
    print(f"\n{table(['one measure by loops over pairs', 'scores', 'so for all'], [row])}")


if __name__ == "__main__":
    main()
