"""What an evaluation of routing reports: a summary for the terminal, the text, the JSON file and the figure."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from p2l.common.cli import counted
from p2l.common.files import atomic_path, write_json
from p2l.common.report.images import save_picture
from p2l.common.text_table import formatted, text_table
from p2l.metrics import Interval, Reliability
from route.evaluation.measuring import PolicyReport, Results, calibration_error
from route.evaluation.page import calibration_figures, routing_verdict, saving, score_figure, simpler


def summary(results: Results, folder: Path | None) -> str:
    """Return what the command prints: each policy at equal cost, and what choosing by prompt is worth.

    `folder` is that of the whole report; None where none is written.
    """
    measure = "accuracy" if results.one_price else "at_equal_cost"
    score = "score" if results.one_price else "score at equal cost"
    rows = [
        [
            policy.about,
            _ends(getattr(policy, measure), ".1%"),
            "" if measure not in policy.gains else _ends(policy.gains[measure], "+.1f", times=100),
        ]
        for policy in results.policies.values()
    ]
    table = text_table(["policy", f"{score}, with 95% interval", "router better by, points"], rows)
    costs = [] if results.one_price else ["Equal cost: what the best single model costs on average."]
    sentences = [routing_verdict(results).sentence, saving(results), simpler(results)]
    where = "--output DIR writes all columns" if folder is None else f"{folder / 'results.md'} has all columns"
    notes = [f"note: {note}" for note in results.notes]
    lines = [
        _data(results),
        *notes,
        "",
        *table,
        *costs,
        "",
        *filter(None, sentences),
        f"{where}, settings and calibration.",
    ]
    return "\n".join(lines).replace("−", "-")


def _ends(interval: Interval, form: str, *, times: float = 1.0) -> str:
    estimate, lower, upper = (formatted(times * end, form) for end in interval[:3])
    return f"{estimate} ({lower} to {upper})"


def _data(results: Results) -> str:
    trained = " + ".join(f"{size:,}" for size in results.trained_on)
    return (
        f"{counted(results.questions, 'question')} ({counted(results.prompts, 'prompt')}) held out, "
        f"{len(results.models)} models; "
        f"trained on {trained}{'; budgets are averages over all requests' if results.on_average else ''}"
    )


def text(results: Results) -> str:
    """Return the report in Markdown: the data, the policies with the router's gain on each, the calibration."""
    notes = [f"- {note}" for note in results.notes]
    settings = [f"- {one.about}: {'; '.join(one.settings)}" for one in results.policies.values() if one.settings]
    calibration = (
        f"Calibration error of the expected score: {calibration_error(results.pairs):.3f} over all answers, "
        f"{calibration_error(results.chosen):.3f} over the answers chosen with the largest budget."
    )
    table = _report_table(results)
    return "\n".join([_data(results), *notes, "", table, "", _bound(results), "", *settings, "", calibration])


def _bound(results: Results) -> str:
    """Return what the last column means: what the choice between models can rest on, and the most that is foreseen."""
    shares = {policy.about: policy.explained for policy in results.policies.values() if policy.explained is not None}
    best, share = max(shares.items(), key=lambda pair: pair[1].estimate)
    return (
        "Differences foreseen: the share that a policy foresees of how scores differ, once it is known how good each "
        "model is and how hard each prompt (share of the variance of scores less the means of model and prompt). Only "
        f"this can tell it to choose another model for this prompt than for the next. The most is {_percent(share)}, "
        f"of {best}; the rest is not in the prompts, or luck of a single answer."
    )


def _percent(share: Interval | None) -> str:
    return _cell(share, ".1%")


def _report_table(results: Results) -> str:
    costs = [] if results.one_price else ["area", "at the single model's cost", "cost at its score"]
    measure = "accuracy" if results.one_price else "area"
    head = ["policy", *costs, "accuracy" if results.one_price else "largest budget", f"router's {measure} less this"]
    head.append("differences foreseen")
    rows = [
        [
            policy.about,
            *(
                []
                if results.one_price
                else [_cell(policy.area), _cell(policy.at_equal_cost), _times(policy.cost_ratio)]
            ),
            _cell(policy.accuracy),
            _cell(policy.gains.get(measure), "+.4f"),
            _percent(policy.explained),
        ]
        for policy in results.policies.values()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def _cell(interval: Interval | None, form: str = ".4f") -> str:
    if interval is None:
        return ""
    return f"{interval.estimate:{form}} [{interval.lower:{form}}, {interval.upper:{form}}]"


def _times(interval: Interval | None) -> str:
    if interval is None:
        return ""
    ratio, low, high = (f"{number:.0%}" if math.isfinite(number) else "never" for number in interval[:3])
    return f"{ratio} [{low}, {high}]"


def _plain(report: str) -> str:
    """Return a report without negative zeros and without the interval of a score that is never reached.

    `text` leaves both as they are, since tables that a benchmark has printed are published as they were measured.
    """
    return re.sub(r"-(0\.0+)(?=[%,\] ])", r"\1", report.replace("never [never, never]", "never"))


def as_json(results: Results) -> dict[str, Any]:
    """Return all figures; what is infinite (the cost of a score that is never reached) is written as null."""
    return {
        "table": results.table,
        "models": {name: {"cost": cost, "score": score} for name, (cost, score) in results.model_points.items()},
        "questions": results.questions,
        "prompts": results.prompts,
        "trained_on": list(results.trained_on),
        "notes": list(results.notes),
        "one_price": results.one_price,
        "budget": None if results.one_price else "average" if results.on_average else "request",
        "policies": {name: _policy(policy) for name, policy in results.policies.items()},
        "calibration": {"all": _bins(results.pairs), "chosen": _bins(results.chosen)},
    }


def _policy(policy: PolicyReport) -> dict[str, Any]:
    names = ("area", "accuracy", "at_equal_cost", "cost_ratio")
    return {
        "about": policy.about,
        **{name: _numbers(getattr(policy, name)) for name in names},
        "explained": _numbers(policy.explained),
        "p2l_has_more": {measure: _numbers(gain) for measure, gain in policy.gains.items()},
        "curve": [{"cost": cost, "score": score} for cost, score in policy.curve],
        "settings": list(policy.settings),
    }


def _numbers(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else interval._asdict()


def _bins(bins: Reliability) -> dict[str, Any]:
    rows = {name: getattr(bins, name)[0].tolist() for name in ("predicted", "observed", "mass")}
    return {"edges": bins.edges.tolist(), **rows, "error": calibration_error(bins)}


def write(results: Results, folder: Path, *, figure: bool) -> None:
    """Write results.json, results.md and, with `figure`, curves.png and curves.svg to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", as_json(results))
    with atomic_path(folder / "results.md") as temporary:
        temporary.write_text(f"{_plain(text(results))}\n", encoding="utf-8")
    if figure:
        draw(results, folder / "curves.png", folder / "curves.svg")


def draw(results: Results, *paths: Path) -> None:
    """Draw what the page draws: the cost-quality curves beside the reliability of expected scores."""
    save_picture(paths, score_figure(results), *calibration_figures(results), width=11.0)
