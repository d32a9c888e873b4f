"""Small runs as somebody wrote them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coeval.analysis.units import LoadedRun, load_run

Scores = Mapping[tuple[str, str, str], Mapping[str, Any]]
"""(datapoint as `task/teacher/number`, student, judge) -> scores."""
RUBRIC = {"fit": "Does it fit?", "tone": "Is the tone right?"}


def write_lines(path: Path, records: Iterable[Mapping[str, Any] | str], mode: str = "w") -> None:
    """Records as lines; text as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode, encoding="utf-8") as file:
        for record in records:
            file.write(record if isinstance(record, str) else json.dumps(record) + "\n")


def write_run(
    folder: Path,
    scores: Scores,
    *,
    rubric: Mapping[str, Any] = RUBRIC,
    models: Iterable[Mapping[str, Any]] = (),
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
    tokens: Mapping[tuple[str, str], int] | None = None,
    status: str = "completed",
) -> Path:
    """A run with these scores; names of datapoints are `task/teacher/number`."""
    points = sorted({point for point, _, _ in scores})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").write_text(json.dumps({"experiment_id": folder.name, "status": status}))
    (folder / "config.yaml").write_text(json.dumps({"models": list(models)}))
    for task in {point.split("/")[0] for point in points}:
        (folder / "phase2_rubric").mkdir(exist_ok=True)
        (folder / "phase2_rubric" / f"{task}.rubric.json").write_text(json.dumps(rubric))
    write_lines(folder / "phase3_datapoints/t.x.datapoints.jsonl", (item(p, (attributes or {}).get(p)) for p in points))
    answered = sorted({(point, student) for point, student, _ in scores})
    answers = [response(point, student, (tokens or {}).get((point, student), 10)) for point, student in answered]
    write_lines(folder / "phase4_responses/t.x.responses.jsonl", answers)
    found = [evaluation(*key, values) for key, values in scores.items()]
    write_lines(folder / "phase5_evaluations/t.x.y.evaluations.jsonl", found)
    return folder


def item(point: str, attributes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A datapoint."""
    task, teacher, _ = point.split("/")
    return {
        "id": point.replace("/", "__"),
        "task_id": task,
        "teacher_model_id": teacher,
        "sampled_target_attributes": dict(attributes or {}),
        "prompt": f"prompt of {point}",
        "reference_response": "reference",
    }


def response(point: str, student: str, tokens: int = 10, text: str = "an answer") -> dict[str, Any]:
    """An answer."""
    task, teacher, _ = point.split("/")
    datapoint = point.replace("/", "__")
    return {
        "id": f"{datapoint}__{student}",
        "datapoint_id": datapoint,
        "task_id": task,
        "teacher_model_id": teacher,
        "student_model_id": student,
        "response": text,
        "token_count": tokens,
    }


def evaluation(point: str, student: str, judge: str, scores: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A judge's scores; the student is not named, as in earlier runs."""
    task, teacher, number = point.split("/")
    answer = f"{task}__{teacher}__{number}__{student}"
    return {
        "id": f"{answer}__{judge}",
        "response_id": answer,
        "datapoint_id": f"{task}__{teacher}__{number}",
        "task_id": task,
        "teacher_model_id": teacher,
        "judge_model_id": judge,
        "scores": dict(scores),
        "evaluated_at": f"2026-01-01T00:00:{int(number) % 60:02d}Z",
        **more,
    }


def verdict(point: str, a: str, b: str, judge: str, winner: str, *verdicts: str, **more: Any) -> dict[str, Any]:
    """A judge's verdict on the answers of two students."""
    task, teacher, _ = point.split("/")
    datapoint = point.replace("/", "__")
    return {
        "id": f"{datapoint}__{a}__vs__{b}__{judge}",
        "datapoint_id": datapoint,
        "task_id": task,
        "teacher_model_id": teacher,
        "model_a": a,
        "model_b": b,
        "response_a_id": f"{datapoint}__{a}",
        "response_b_id": f"{datapoint}__{b}",
        "winner": winner,
        "judge_model_id": judge,
        "verdicts": list(verdicts),
        "created_at": "2026-01-01T00:00:00Z",
        **more,
    }


def both(level: Any) -> dict[str, Any]:
    """One level on both factors of RUBRIC."""
    return {"fit": level, "tone": level}


def run_of(folder: Path, scores: Scores, **more: Any) -> LoadedRun:
    """The run read back."""
    return load_run(write_run(folder / "run", scores, **more))
