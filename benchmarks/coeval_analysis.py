"""How long the reports of a large run take, beside loops over all pairs of scores.

python -m benchmarks.coeval_analysis [--units 100000]

Writes a run of that size to a temporary folder, reads it, and builds every report with its JSON and CSV. The baseline
is the plain way to the share of equal scores: for each two judges, a loop over both judges' scores that looks for the
same response and factor; it is run on a part that can be waited for, and its time grows with the square of the units.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

from coeval.analysis.reporting import FOLDERS, REPORTS, build
from coeval.analysis.tables import write_tables
from coeval.analysis.units import Loaded, load_run

FACTORS = ("accuracy", "clarity", "style", "tone")
MODELS, TASKS, BASELINE = 5, 4, 4000
LEVELS = ("Low", "Medium", "High")


def write_run(folder: Path, units: int, seed: int = 0) -> None:
    """A run of five models in all roles and four tasks, with so many scores."""
    rng, models = random.Random(seed), [f"model-{number}" for number in range(MODELS)]
    items = max(1, units // (len(FACTORS) * TASKS * MODELS**3))
    for part in ("phase2_rubric", "phase3_datapoints", "phase4_responses", "phase5_evaluations"):
        (folder / part).mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"experiment_id": "large", "status": "completed"}))
    for task in (f"task-{number}" for number in range(TASKS)):
        (folder / "phase2_rubric" / f"{task}.rubric.json").write_text(json.dumps(dict.fromkeys(FACTORS, "text")))
        for teacher in models:
            _write_items(folder, task, teacher, models, items, rng)


def _write_items(folder: Path, task: str, teacher: str, models: list[str], items: int, rng: random.Random) -> None:
    datapoints, responses, evaluations = [], [], []
    for number in range(items):
        point = {"id": f"{task}__{teacher}__{number:05d}", "task_id": task, "teacher_model_id": teacher}
        attributes = {"tone": rng.choice(("warm", "cold")), "length": rng.choice(("short", "long"))}
        text = {"prompt": f"prompt {number}", "reference_response": "reference"}
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


def _write(path: Path, records: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def baseline(loaded: Loaded, most: int) -> tuple[int, float]:
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


def main(argv: Sequence[str] | None = None) -> None:
    """Print the seconds of each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=100_000)
    units = parser.parse_args(argv).units
    with tempfile.TemporaryDirectory() as temporary:
        write_run(Path(temporary) / "run", units)
        begun = start = time.perf_counter()
        used = time.process_time()
        loaded = load_run(Path(temporary) / "run")
        print(f"{'read ' + format(len(loaded.units), ',') + ' scores':28s} {time.perf_counter() - start:7.2f} s")
        for name in REPORTS:
            start = time.perf_counter()
            write_tables(build(name, loaded), Path(temporary) / FOLDERS[name])
            print(f"{name:28s} {time.perf_counter() - start:7.2f} s")
        total = time.perf_counter() - begun
        print(f"{'all':28s} {total:7.2f} s, {time.process_time() - used:.2f} s of it on the processor")
    looked_at, seconds = baseline(loaded, BASELINE)
    scaled = seconds * (len(loaded.units) / looked_at) ** 2
    print(f"loops over pairs, equal share only: {seconds:.2f} s for {looked_at:,}, so {scaled:,.0f} s for all")


if __name__ == "__main__":
    main()
