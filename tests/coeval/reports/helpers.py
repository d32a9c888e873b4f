"""A run written by hand: four students, three teachers, four judges, three tasks, whose scores are planted."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

HOSTILE = "</script><script>alert(\"1\")</script> & 'quotes'"
"""What a page must show as text."""
STUDENTS = ("ant", "bee-7b.1", "a-model-with-a-very-long-name-that-nobody-shortened-2026-11-22", "dog")
TEACHERS = ("ant", "owl", "fox.2")
JUDGES = ("ant", "owl", "hen-large", "jay")
TASKS = ("summaries", "mail", "code_review")
FACTORS = {"clarity": "Is it clear at first reading?", "accuracy": f"Is it right? {HOSTILE}", "tone": "Does it fit?"}
ATTRIBUTES = {"length": ["short", "long"], "audience": ["children", "experts", HOSTILE]}


def write_run(
    folder: Path,
    *,
    students: Sequence[str] = STUDENTS,
    teachers: Sequence[str] = TEACHERS,
    judges: Sequence[str] = JUDGES,
    tasks: Sequence[str] = TASKS,
    items: int = 5,
    status: str = "completed",
    failures: float = 0.02,
    pairs: bool = False,
    seed: int = 0,
) -> Path:
    """Write every file of a run; `len(tasks) * len(teachers) * items * len(students) * len(judges) * 3` scores."""
    rng = random.Random(seed)
    _write_settings(folder, students, teachers, judges, tasks, items, status)
    for task in tasks:
        _write_json(folder / "phase1_attributes" / f"{task}_target_attrs.json", ATTRIBUTES)
        _write_json(folder / "phase1_attributes" / f"{task}_nuanced_attrs.json", {})
        _write_json(folder / "phase2_rubric" / f"{task}.rubric.json", FACTORS)
        for teacher in teachers:
            _write_items(folder, task, teacher, students, judges, items, failures, rng)
            if pairs:
                _write_pairs(folder, task, teacher, students, judges, items, rng)
    return folder


def _write_settings(
    folder: Path,
    students: Sequence[str],
    teachers: Sequence[str],
    judges: Sequence[str],
    tasks: Sequence[str],
    items: int,
    status: str,
) -> None:
    done = ["attribute_mapping", "rubric_mapping", "data_generation", "response_collection", "evaluation"]
    meta = {
        "experiment_id": folder.name,
        "status": status,
        "created_at": _time(0),
        "updated_at": _time(9000),
        "phases_completed": done if status == "completed" else done[:4],
        "phases_in_progress": [] if status == "completed" else done[4:],
        "resume_from": None,
    }
    roles = {"student": students, "teacher": teachers, "judge": judges}
    names = dict.fromkeys(name for group in (students, teachers, judges) for name in group)
    config = {
        "models": [
            {
                "name": name,
                "interface": "mock",
                "parameters": {"model": name},
                "roles": [role for role, group in roles.items() if name in group],
            }
            for name in names
        ],
        "tasks": [
            {
                "name": task,
                "description": f"The task {task}. {HOSTILE}",
                "output_description": "Three sentences.",
                "target_attributes": ATTRIBUTES,
                "nuanced_attributes": {},
                "sampling": {"target": [1, 2], "nuance": [0, 0], "total": items},
                "rubric": FACTORS,
            }
            for task in tasks
        ],
        "experiment": {"id": folder.name, "storage_folder": "runs"},
    }
    _write_json(folder / "meta.json", meta)
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")


def _write_items(
    folder: Path,
    task: str,
    teacher: str,
    students: Sequence[str],
    judges: Sequence[str],
    items: int,
    failures: float,
    rng: random.Random,
) -> None:
    datapoints: list[Any] = []
    evaluations: dict[str, list[Any]] = {judge: [] for judge in judges}
    responses: dict[str, list[Any]] = {student: [] for student in students}
    for number in range(1, items + 1):
        item = f"{task}__{teacher}__{number:05d}"
        owner = {"task_id": task, "teacher_model_id": teacher}
        drawn = {key: rng.choice(values) for key, values in ATTRIBUTES.items()}
        texts = {"prompt": f"Prompt {number}. {HOSTILE}", "reference_response": "As it should be."}
        datapoints.append({"id": item, **owner, "sampled_target_attributes": drawn, **texts, "generated_at": _time(0)})
        for student in students:
            answer = {"id": f"{item}__{student}", "datapoint_id": item, **owner, "student_model_id": student}
            said = {"input": texts["prompt"], "response": "An answer. " * rng.randint(3, 30)}
            count = {"token_count": len(said["response"]) // 4, "generated_at": _time(number)}
            responses[student].append({**answer, **said, **count})
            quality = _quality(students, student, task, rng)
            for place, judge in enumerate(judges):
                scores = {factor: _level(quality + 0.1 * place - 0.15, rng) for factor in FACTORS}
                failed = {"scores": {}, "status": "failed", "error": "no answer"} if rng.random() < failures else {}
                evaluations[judge].append(
                    {
                        "id": f"{item}__{student}__{judge}",
                        "response_id": f"{item}__{student}",
                        "datapoint_id": item,
                        **owner,
                        "judge_model_id": judge,
                        "student_model_id": student,
                        "scores": scores,
                        "evaluated_at": _time(60 * number + place),
                        **failed,
                    }
                )
    _write_lines(folder / "phase3_datapoints" / f"{task}.{teacher}.datapoints.jsonl", datapoints)
    for student, lines in responses.items():
        _write_lines(folder / "phase4_responses" / f"{task}.{student}.responses.jsonl", lines)
    for judge, lines in evaluations.items():
        _write_lines(folder / "phase5_evaluations" / f"{task}.{teacher}.{judge}.evaluations.jsonl", lines)


def _write_pairs(
    folder: Path,
    task: str,
    teacher: str,
    students: Sequence[str],
    judges: Sequence[str],
    items: int,
    rng: random.Random,
) -> None:
    for judge in judges:
        lines = []
        for number in range(1, items + 1):
            item = f"{task}__{teacher}__{number:05d}"
            for a, b in pairwise(students):
                better = _quality(students, a, task, rng) > _quality(students, b, task, rng)
                first = "model_a" if better else "model_b"
                second = first if rng.random() < 0.8 else {"model_a": "model_b", "model_b": "model_a"}[first]
                lines.append(
                    {
                        "id": f"{item}__{a}__vs__{b}__{judge}",
                        "datapoint_id": item,
                        "task_id": task,
                        "teacher_model_id": teacher,
                        "model_a": a,
                        "model_b": b,
                        "response_a_id": f"{item}__{a}",
                        "response_b_id": f"{item}__{b}",
                        "winner": first if first == second else "tie",
                        "judge_model_id": judge,
                        "source": "native",
                        "margin": None,
                        "order_consistent": first == second,
                        "verdicts": [first, second],
                        "created_at": _time(number),
                    }
                )
        _write_lines(folder / "phase5_pairwise" / f"{task}.{teacher}.{judge}.pairwise.jsonl", lines)


def _quality(students: Sequence[str], student: str, task: str, rng: random.Random) -> float:
    """The first student is the best; tasks shift everyone alike."""
    return 0.85 - 0.6 * students.index(student) / max(1, len(students) - 1) - 0.05 * len(task) / 8 + rng.gauss(0, 0.15)


def _level(quality: float, rng: random.Random) -> str:
    noisy = quality + rng.gauss(0, 0.12)
    return "High" if noisy > 0.62 else "Medium" if noisy > 0.34 else "Low"


def _time(seconds: int) -> str:
    return f"2026-01-02T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}Z"


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def _write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
