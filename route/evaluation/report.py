"""What a run found, as a table in the terminal, as Markdown, as JSON and as a figure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from p2l.checkpoint import write_json
from p2l.command import atomic_path
from p2l.metrics import Interval, Reliability
from route.evaluation.drawing import draw
from route.evaluation.measuring import Line, Results, calibration_error

__all__ = ["as_json", "text", "write"]


def text(results: Results) -> str:
    """Markdown: what was measured, the policies, how much more the router has than each, calibration."""
    trained = " + ".join(f"{size:,}" for size in results.trained_on)
    head = (
        f"{results.questions:,} questions ({results.prompts:,} prompts) held out, {len(results.models)} models; "
        f"trained on {trained}"
    )
    notes = [f"- {note}" for note in results.notes]
    settings = [f"- {line.about}: {'; '.join(line.settings)}" for line in results.lines.values() if line.settings]
    calibration = (
        f"Calibration error of the expected score: {calibration_error(results.pairs):.3f} over all answers, "
        f"{calibration_error(results.chosen):.3f} over the answers chosen with the largest budget."
    )
    return "\n".join([head, *notes, "", _table(results), "", *settings, "", calibration])


def _table(results: Results) -> str:
    costs = [] if results.one_price else ["area", "at the single model's cost", "cost at its score"]
    measure = "accuracy" if results.one_price else "area"
    head = ["policy", *costs, "accuracy" if results.one_price else "largest budget", f"p2l has more {measure} by"]
    rows = [
        [
            line.about,
            *([] if results.one_price else [_shown(line.area), _shown(line.at_equal_cost), _times(line.cost_ratio)]),
            _shown(line.accuracy),
            _shown(line.less.get(measure, {}).get(name), "+.4f"),
        ]
        for name, line in results.lines.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def _shown(value: Interval | None, form: str = ".4f") -> str:
    if value is None:
        return ""
    return f"{value.estimate:{form}} [{value.lower:{form}}, {value.upper:{form}}]"


def _times(value: Interval | None) -> str:
    if value is None:
        return ""
    one, low, high = (f"{number:.0%}" if math.isfinite(number) else "never" for number in value[:3])
    return f"{one} [{low}, {high}]"


def as_json(results: Results) -> dict[str, Any]:
    """All figures; what is infinite (a score that is never reached) is null."""
    return {
        "table": results.table,
        "models": {name: {"cost": cost, "score": score} for name, (cost, score) in results.model_points.items()},
        "questions": results.questions,
        "prompts": results.prompts,
        "trained_on": list(results.trained_on),
        "notes": list(results.notes),
        "one_price": results.one_price,
        "policies": {name: _line(line) for name, line in results.lines.items()},
        "calibration": {"all": _bins(results.pairs), "chosen": _bins(results.chosen)},
    }


def _line(line: Line) -> dict[str, Any]:
    names = ("area", "accuracy", "at_equal_cost", "cost_ratio")
    return {
        "about": line.about,
        **{name: _numbers(getattr(line, name)) for name in names},
        "p2l_has_more": {measure: _numbers(next(iter(by.values()))) for measure, by in line.less.items()},
        "curve": [{"cost": cost, "score": score} for cost, score in line.curve],
        "settings": list(line.settings),
    }


def _numbers(value: Interval | None) -> dict[str, float | None] | None:
    if value is None:
        return None
    pairs = zip(("estimate", "lower", "upper", "standard_error"), value, strict=True)
    return {name: float(number) if math.isfinite(number) else None for name, number in pairs}


def _bins(found: Reliability) -> dict[str, Any]:
    rows = {"predicted": found.predicted[0], "observed": found.observed[0], "mass": found.mass[0]}
    listed = {name: [None if np.isnan(value) else float(value) for value in values] for name, values in rows.items()}
    return {"edges": found.edges.tolist(), **listed, "error": calibration_error(found)}


def write(results: Results, folder: Path, *, figure: bool) -> None:
    """results.json, results.md and, if asked for, curves.png and curves.svg in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / "results.json") as temporary:
        write_json(temporary, as_json(results))
    with atomic_path(folder / "results.md") as temporary:
        temporary.write_text(f"{text(results)}\n", encoding="utf-8")
    if figure:
        draw(results, folder / "curves.png", folder / "curves.svg")
