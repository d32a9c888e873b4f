"""A run of 54 items whose every text may be hostile, with scores, rationales, verdicts that flip, and failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.coeval.reports.helpers import write_run

PLANT = '"><img src=x onerror="window.planted=1"><script>window.planted=1</script>'
STUDENTS = ("ant", "bee-7b.1", "dog", "a-model-with-a-very-long-name-that-nobody-shortened-2026-11-22")
JUDGES = ("ant", "owl", "hen-large")


def write_hostile_run(folder: Path, *, items: int = 9) -> Path:
    """Write it: 3 tasks of 2 teachers with `items` items each."""
    run = write_run(
        folder, students=STUDENTS, teachers=("ant", "owl"), judges=JUDGES, items=items, pairs=True, failures=0.02
    )
    rewrite(run, "phase3_datapoints", _as_own)
    rewrite(run, "phase4_responses", _as_own)
    rewrite(run, "phase5_evaluations", _with_rationale)
    return run


def rewrite(run: Path, folder: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change every record of a folder."""
    for path in sorted((run / folder).glob("*.jsonl")):
        records = [change(json.loads(line)) for line in path.read_text("utf-8").splitlines()]
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")


def prompt_of(identity: str) -> str:
    """The prompt of an item or of its answer: no two are alike."""
    task, teacher, number = identity.split("__")[:3]
    words = " ".join(f"{task[::-1]}{teacher}{int(number) * place}" for place in range(3, 12))
    return f"Question {number} of {teacher} on {task}: {words} {PLANT}"


def _as_own(record: dict[str, Any]) -> dict[str, Any]:
    changes = {key: prompt_of(record["id"]) for key in ("prompt", "input") if key in record}
    return {**record, **changes, **({"response": f"{record['response']} {PLANT}"} if "response" in record else {})}


def _with_rationale(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "rationale": f"Because of {record['id'][::-1]}. {PLANT}"}
