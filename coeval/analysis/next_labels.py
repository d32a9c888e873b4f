"""Which answers people should score next, with what they need to read for it.

Shapes: R answers, S students.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from coeval.analysis.annotations import Annotations
from coeval.analysis.panel import Mask, score_table
from coeval.analysis.statistics import Codes, Floats
from coeval.analysis.tables import Shown, StudentName
from coeval.analysis.units import LoadedRun
from coeval.storage.records import is_failed

_ANSWERS = 20


@dataclass(frozen=True)
class NextLabel:
    """An answer, and a factor, that people should score next."""

    response_id: Annotated[str, Shown("answer")]
    student: StudentName
    factor: Annotated[str, Shown("factor")]
    score: str = ""  # to be filled in
    prompt: str = ""
    response: str = ""


def next_labels(
    loaded: LoadedRun, annotations: Annotations, panel: Floats, labels: Codes, is_open: Mask
) -> tuple[NextLabel, ...]:
    """Return the answers that people should score next: of students who are told from others least by labels.

    `panel` (R,) are the panel's scores, `labels` (S,) how many answers of each student people have scored, `is_open`
    (S,) whether it is not told from another. Of a student answers are drawn evenly over the panel's scores, so that
    they stay a sample of its answers. Nobody is asked for what judges compute, such as labels.
    """
    table = score_table(loaded)
    responses = np.unique(loaded.pairs.response)
    free = np.asarray(~np.isin(responses, annotations.response) & np.isfinite(panel))
    left = np.bincount(table.student[free], minlength=table.students)
    chosen, known = np.zeros(table.students, dtype=np.int64), labels.astype(np.float64)
    for _ in range(_ANSWERS):
        # The next label of a student takes the most from the variance of its gap where it has few.
        gain = np.where(chosen < left, 1.0 / (known + 1.0) - 1.0 / (known + 2.0), -1.0) * np.where(is_open, 1.0, 0.1)
        student = int(gain.argmax())
        if gain[student] <= 0:
            break
        chosen[student] += 1
        known[student] += 1.0
    models = np.array([kind == "model" for kind in loaded.kinds], dtype=bool)
    by_model = np.asarray(np.isfinite(loaded.pairs.scores[:, models]).any(axis=1))
    rows = []
    for student in np.flatnonzero(chosen).tolist():
        mine = np.flatnonzero(free & (table.student == student))
        mine = mine[np.argsort(panel[mine], kind="stable")]
        start = np.random.default_rng(student).random()
        places = ((np.arange(chosen[student]) + start) * len(mine) / chosen[student]).astype(np.int64)
        for row in mine[places].tolist():
            scored: Mask = loaded.pairs.response == responses[row]
            if by_model[scored].any():
                scored = scored & by_model
            rows += [
                NextLabel(loaded.responses[responses[row]], loaded.students[student], loaded.factors[factor])
                for factor in np.unique(loaded.pairs.factor[scored]).tolist()
            ]
    return tuple(_with_texts(loaded, rows))


def _with_texts(loaded: LoadedRun, rows: list[NextLabel]) -> Iterator[NextLabel]:
    """Yield rows with the prompts and answers of the run's records."""
    items = {loaded.datapoints[loaded.response_datapoint[loaded.responses.index(row.response_id)]] for row in rows}
    answers = {row.response_id for row in rows}
    prompts: dict[str, str] = {}
    texts: dict[str, tuple[str, str]] = {}
    for record in loaded.run.read("data_generation"):
        if record.get("id") in items and not is_failed(record):
            prompts[record["id"]] = _text(record.get("prompt"))
    for record in loaded.run.read("response_collection"):
        if record.get("id") in answers and not is_failed(record):
            texts[record["id"]] = (_text(record.get("response")), str(record.get("datapoint_id")))
    for row in rows:
        response, item = texts.get(row.response_id, ("", ""))
        yield replace(row, prompt=prompts.get(item, ""), response=response)


def _text(value: object) -> str:
    """Return a text of a record; turns of a conversation as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
