"""The page of a training run: whether the model reads prompts, how its loss fell, and how well it forecasts votes.

It is made of what the run has recorded (`p2l.training.run_records`), and of its forecasts of held-out votes, which are
measured as `p2l auto-evals` does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from p2l.common.errors import P2LError
from p2l.common.report.charts import Axes, Chart, Series, percent, short_number, smoothed, thinned
from p2l.common.report.reports import (
    Figure,
    Fold,
    Measure,
    MetricTable,
    Part,
    Prose,
    Report,
    Section,
    Verdict,
    day_of,
    span,
)
from p2l.common.report.tables import Cell, Column, Table, Value, number_text
from p2l.evaluation.inputs import EvaluationSettings, recorded_likelihood, short_name
from p2l.evaluation.output_report import calibration_section, leaderboard_section, metrics_section, output_verdict
from p2l.evaluation.publications_report import publications_figure, publications_section, publications_verdict
from p2l.evaluation.results import OutputResult
from p2l.evaluation.suite import measure_file
from p2l.likelihood import get
from p2l.metrics import Interval, about
from p2l.model.checkpoint import read_model_list
from p2l.training.run_records import FORECASTS_FILE, HeldOutComparison, RunRecords, Steps, as_number

_METRICS = ("Loss", "BCELoss", "MSELoss", "Accuracy", "Tie_Loss", "Tie_Accuracy", "Tie_bb_Loss", "Tie_bb_Accuracy")
_LEADERBOARD_METRICS = ("L1-Dist-Prob", "Spearman-lbs", "Kendall-lbs")
_ROWS_OF_NUMBERS = 20  # of the numbers behind the picture
_LONGEST_VALUE = 300  # characters of a setting
_WINDOW = 100  # steps, the most that a mean is over
_HEADS = {
    "loss_type": "likelihood",
    "model_type": "backbone",
    "head_type": "head",
    "num_train_epochs": "epochs",
    "learning_rate": "learning rate",
}


def training_report(run: RunRecords) -> Report:
    """Return the report of a run; its held-out votes are measured here."""
    result, problem = _held_out(run)
    loss, gains = _loss_figure(run), publications_figure(run.publications)
    sections = [
        _leaderboard(run, result, problem),
        *_held_out_sections(run, result),
        *([_course(run)] if len(run.steps) else []),
        *([publications_section(run.publications, gains if loss else None)] if run.publications else []),
        _configuration(run),
    ]
    facts = [(name, str(run.config[key])) for key, name in _HEADS.items() if run.config.get(key) not in (None, "")]
    models = run.steps.last("models")
    if result is not None:
        facts.append(("models", f"{len(result.models):,}"))
    elif models is not None:
        facts.append(("models", f"{models:,.0f}"))
    if len(run.steps):
        facts.append(("state", "finished" if run.is_finished else "not finished"))
    notes = () if result is None else result.notes
    if len(run.steps) and not run.is_finished:
        notes = (*notes, "The run has not written a finished model (yet).")
    return Report(
        kind="Training run" if len(run.steps) else "Published models",
        subject=short_name(run.folder.resolve()),
        data=short_name(run.source) if run.source else "votes that it does not record",
        made=day_of(run.written),
        verdict=_verdict(run, result),
        picture=loss or gains,
        sections=sections,
        facts=[*facts, ("folder", str(run.folder))],
        notes=notes,
    )


def _held_out(run: RunRecords) -> tuple[OutputResult | None, str]:
    """Measure the run's forecasts of held-out votes; return why that cannot be done where it cannot."""
    file = run.folder / FORECASTS_FILE
    if not file.is_file():
        return None, "the run has written no forecasts of held-out votes"
    try:
        likelihood = get(recorded_likelihood(str(file)) or str(run.config.get("loss_type")))
        settings = EvaluationSettings(
            likelihood=likelihood,
            model_type="p2l",
            ground_truth="marginal-gt",
            categories=("all",),
            lenient=True,
            metrics_to_inc=("simple", "category"),
            simple_metrics=_METRICS,
            category_metrics=_LEADERBOARD_METRICS,
            rand_subset_metrics=(),
            rand_subset_sizes=(),
            rand_num_samples=(),
            aggr_scale_metrics=(),
            aggr_scale_subset_sizes=(),
            aggr_scale_num_samples=(),
            seed=0,
            bootstrap=1000,
            level=0.95,
        )
        result = measure_file(str(file), read_model_list(run.folder), settings)
    except P2LError as error:
        return None, str(error)
    main = result.categories[0]
    # One sentence says what the model is worth: not a second one, over another leaderboard.
    skill = main.skill if run.comparison is None else None
    return replace(result, categories=(replace(main, skill=skill),), source=FORECASTS_FILE), main.problem or ""


# The verdict.


def _verdict(run: RunRecords, result: OutputResult | None) -> Verdict:
    """Return the held-out loss against one leaderboard, or as much as the run has recorded."""
    if run.comparison is not None:
        return _comparison_verdict(run.comparison)
    if result is not None and result.categories[0].problem is None:
        return output_verdict(result, result.categories[0])
    if run.publications and (verdict := publications_verdict(run.publications)) is not None:
        return verdict
    return _unmeasured(run)


def _comparison_verdict(comparison: HeldOutComparison) -> Verdict:
    # A model that was shrunk all the way is the one leaderboard: its gain says nothing of prompts.
    is_model = comparison.factor != 0
    gain, tone = comparison.gain, ""
    if is_model and (gain.lower > 0 or gain.upper < 0):
        tone = "good" if gain.lower > 0 else "bad"
    words = []
    for name in ("Loss", "Accuracy"):
        text = about(name).text
        words.append(f"{name.lower()} {text(comparison.model[name])} against {text(comparison.one_leaderboard[name])}")
    advice = "" if tone == "good" else " More votes on more prompts, or another size or backbone, may help."
    if tone == "bad":
        advice = f" Do not use it.{advice}"
    return Verdict(comparison.finding, tone, f"On {comparison.prompts:,} prompts: {', '.join(words)}.{advice}")


def _unmeasured(run: RunRecords) -> Verdict:
    """Return how far the loss of the votes that are trained on fell, with the interval of the difference."""
    losses = [value for value in run.steps.column("loss") if math.isfinite(value)]
    # A quarter at least on either side, so that the beginning is not compared with itself.
    size = min(_WINDOW, len(losses) // 4)
    reason = (
        "No votes were held out, so nothing shows whether it reads prompts."
        if run.is_finished
        else f"The run has not written a finished model: {len(run.steps):,} steps so far."
    )
    if size < 2:
        return Verdict(f"The run has done {len(run.steps):,} steps, too few to say anything of its loss.", "", reason)
    first, last = np.array(losses[:size]), np.array(losses[-size:])
    fall = float(first.mean() - last.mean())
    half = 1.96 * math.sqrt(float(first.var(ddof=1) + last.var(ddof=1)) / size)
    ends = span(Interval(fall, fall - half, fall + half, half / 1.96), _nats)
    sentence = (
        f"The loss of the votes trained on {'fell' if fall >= 0 else 'rose'} by {abs(fall):.4f} nats from the first "
        f"{size} steps to the last {size} (95% interval of the fall {ends})."
    )
    return Verdict(sentence, "bad" if fall + half < 0 else "", reason)


def _nats(value: float) -> str:
    return number_text(value, 4)


# Pictures.


def _loss_figure(run: RunRecords) -> Figure | None:
    """Return the loss of the steps, of the votes that choose, and of those held out, beside one leaderboard."""
    steps = run.steps
    x, y = steps.column("step"), steps.column("loss")
    if not x:
        return None
    # Single steps are too noisy to see a course in; a twentieth of the run hides none of it.
    window = max(1, min(_WINDOW, len(x) // 20))
    over = f", mean and range of {window} steps" if window > 1 else ""
    series = [replace(smoothed(x, y, window), name=f"votes trained on{over}")]
    for table, name, text in (
        (run.choices, "selection/Loss", "votes that choose the step"),
        (run.validations, "validation/Loss", "held-out votes"),
    ):
        if table.has(name):
            series.append(Series(text, table.column("step"), table.column(name), has_dots=True))
    captions = ["The lower, the better."]
    if run.comparison is not None:
        losses, where = run.comparison.one_leaderboard["Loss"], "held-out votes"
        if run.comparison.folds is not None:
            where = "votes left out"
        series.append(Series(f"one leaderboard, {where}", [x[0], x[-1]], [losses, losses], is_quiet=True))
        end = Series(f"finished model, {where}", [x[-1]], [run.comparison.model["Loss"]], has_line=False, has_dots=True)
        series.append(end)
        captions.append("Below the dotted line a model forecasts better than one leaderboard for all prompts.")
    axes = Axes("optimizer step", "loss, nats a vote")
    return Figure.of(series, axes, "Loss over the run", " ".join(captions), numbers=[_numbers(run)])


_NUMBERS: dict[str, tuple[str, Callable[[float], str]]] = {
    "loss": ("Loss of votes trained on", _nats),
    "gradient_norm": ("Gradient norm", _nats),
    "learning_rate": ("Learning rate", lambda rate: f"{rate:.3g}"),
    "tokens_per_second": ("Tokens a second", lambda speed: number_text(speed, 0)),
}


def _numbers(run: RunRecords) -> Table:
    """Return means of the steps between about twenty places of the run."""
    steps = run.steps
    edges = sorted({round(len(steps) * place / _ROWS_OF_NUMBERS) for place in range(_ROWS_OF_NUMBERS + 1)})
    names = [name for name in _NUMBERS if steps.has(name)]
    rows: list[list[Value]] = []
    for start, end in pairwise(edges):
        row: list[Value] = [int(steps.column("step")[end - 1])]
        for name in names:
            mean = _mean(steps.column(name)[start:end])
            row.append(Cell(_NUMBERS[name][1](mean), mean) if math.isfinite(mean) else None)
        rows.append(row)
    heads = [Column("To step", 0), *(Column(_NUMBERS[name][0]) for name in names)]
    return Table(heads, rows, caption="Means of the steps since the row before.")


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan


_PANELS = (
    ("learning_rate", "Learning rate", "rate"),
    ("gradient_norm", "Gradient norm", "length before clipping"),
    ("tokens_per_second", "Speed", "tokens a second"),
    ("votes_per_second", "Speed", "votes a second"),
    ("waiting", "Votes that wait in the buffer", "votes"),
    ("models", "Models known", "models"),
    ("lag/median_batches", "How long votes waited, median", "batches"),
)
_OF_STREAM = ("waiting", "models", "lag/median_batches")


def _course(run: RunRecords) -> Section:
    """Return rate, gradient, speed and the stream over the run, with what each number means."""
    panels = []
    x = run.steps.column("step")
    for name, title, unit in _PANELS:
        values = _panel_values(run.steps, name)
        if values is not None:
            panels.append((title, Chart([thinned(x, values)], Axes("step", unit, y_text=_tick_text))))
    caption = "Lines are means over neighbouring steps, bands their range." if len(x) > 200 else ""
    figure = Figure("", "Rate, gradient and speed by step", caption, panels=panels) if panels else None
    return Section("Course of the training", [figure, MetricTable(_course_measures(run))])


def _tick_text(value: float) -> str:
    return short_number(value) if not value or abs(value) >= 1e-3 else f"{value:.0e}".replace("e-0", "e−")


def _panel_values(steps: Steps, name: str) -> list[float] | None:
    """Return the values of a panel; None where there are none, all are zero, or a stream's facts never change."""
    if name == "votes_per_second":
        # Tokens a second say the same more exactly: votes differ in length.
        if any(value > 0 for value in steps.column("tokens_per_second")):
            return None
        seconds, votes = steps.column("seconds"), steps.column("votes")
        gaps = [now - before for before, now in zip([0.0, *seconds], seconds, strict=False)]
        # Where a run went on, the clock starts anew and the gap is negative.
        values = [number / gap if gap > 0 else math.nan for number, gap in zip(votes, gaps, strict=True)]
    elif steps.has(name):
        values = steps.column(name)
    else:
        return None
    different = {value for value in values if math.isfinite(value)}
    if not different - {0.0} or (name in _OF_STREAM and len(different) < 2):
        return None
    return values


def _course_measures(run: RunRecords) -> list[Measure]:
    steps = run.steps
    rows = [Measure("Steps", f"{len(steps):,}", "", "Optimizer steps, each over many votes at once.")]
    votes = math.fsum(value for value in steps.column("votes") if math.isfinite(value))
    tokens = math.fsum(value for value in steps.column("tokens") if math.isfinite(value))
    if votes:
        meaning = "All that the steps took; a vote counts each time that it was trained on."
        rows.append(Measure("Votes", f"{votes:,.0f}", "", meaning))
    window = max(1, min(_WINDOW, len(steps) // 20))
    last = _mean(steps.column("loss")[-window:])
    if math.isfinite(last):
        meaning = (
            f"Of the votes of the last {window} steps, which the model was trained on. Far below the held-out loss, it "
            "has learned votes by heart."
        )
        rows.append(Measure("Training loss at the end", f"{last:.4f}", "", meaning))
    rows += _chosen_step(run)
    if steps.has("gradient_norm"):
        low, middle, high = np.nanquantile(steps.column("gradient_norm"), (0.05, 0.5, 0.95)).tolist()
        meaning = (
            "Its length before clipping: the median, and what nine steps in ten lie within. Jumps upwards announce a "
            "run that diverges."
        )
        rows.append(
            Measure("Gradient norm", _three_digits(middle), f"{_three_digits(low)} to {_three_digits(high)}", meaning)
        )
    if run.seconds:
        speed = f", {tokens / run.seconds:,.0f} tokens a second" if tokens else ""
        pace = f"{votes / run.seconds:,.0f} votes a second{speed}"
        meaning = f"Time in training, validations and checkpoints included: {pace}."
        minutes = round(run.seconds / 60)
        time = f"{minutes} min" if minutes < 120 else f"{minutes // 60:,} h {minutes % 60} min"
        if run.seconds < 90:
            time = f"{run.seconds:.0f} s" if run.seconds >= 10 else f"{run.seconds:.1f} s"
        rows.append(Measure("Time", time, "", meaning))
    return rows


def _three_digits(value: float) -> str:
    """Return a number with three significant digits."""
    return f"{value:.3g}".replace("-", "−")


def _chosen_step(run: RunRecords) -> list[Measure]:
    """Return which step was saved, and how far it was shrunk."""
    rows = []
    losses = run.choices.column("selection/Loss")
    if any(math.isfinite(loss) for loss in losses):
        best = int(np.nanargmin(losses))
        meaning = "The one whose model forecasts the votes kept for this choice best; it is saved instead of the last."
        rows.append(Measure("Chosen step", f"{run.choices.column('step')[best]:,.0f}", "", meaning))
    factor = None if run.comparison is None else run.comparison.factor
    if factor is not None:
        meaning = (
            "How much of the model is left where it is moved towards one leaderboard for all prompts: at 100% it is "
            "not moved, at 0% it is that leaderboard."
        )
        rows.append(Measure("Shrinkage", percent(factor, 0), "", meaning))
    return rows


# What was measured on held-out votes.


def _leaderboard(run: RunRecords, result: OutputResult | None, problem: str) -> Section:
    if result is not None and not problem:
        return leaderboard_section(result, result.categories[0])
    kind = "quiet" if not (run.folder / FORECASTS_FILE).is_file() else "problem"
    text = f"There is none: {problem}. `p2l leaderboard --model` shows what a finished model says of a prompt."
    return Section("Leaderboard", [Prose(text.replace("`", ""), kind)])


def _held_out_sections(run: RunRecords, result: OutputResult | None) -> list[Section]:
    main = None if result is None or result.categories[0].problem else result.categories[0]
    parts: list[Part] = []
    lead = ""
    if run.comparison is not None:
        heads = [Column(about(metric).title, note=about(metric).sentence) for metric in ("Loss", "Accuracy")]
        rows: list[list[Value]] = [
            [name, *(Cell(about(metric).text(side[metric]), side[metric]) for metric in ("Loss", "Accuracy"))]
            for name, side in (
                ("this model", run.comparison.model),
                ("one leaderboard for all prompts", run.comparison.one_leaderboard),
            )
        ]
        table = Table([Column("Forecast by", number=False), *heads], rows)
        parts += [table, MetricTable(_comparison_measures(run.comparison, run.results.get("covariates")))]
        sizes = f"{run.comparison.votes:,} votes on {run.comparison.prompts:,} prompts"
        lead = f"{sizes}, which nothing was trained on."
        if run.comparison.folds is not None:
            folds = f"{run.comparison.folds} folds"
            lead = f"{sizes} in {folds}, each predicted by a model that was trained on the others."
    if main is not None and result is not None:
        parts += list(metrics_section(result, main).parts)
        lead = lead or metrics_section(result, main).lead
    elif run.results:
        # The metrics of eval_results.json have no intervals.
        numbers = {name: as_number(value) for name, value in run.results.items() if name != "votes"}
        entries = [(about(name), number) for name, number in numbers.items() if number is not None]
        parts.append(
            MetricTable(
                [
                    Measure(entry.title, entry.text(number), "", entry.sentence)
                    for entry, number in entries
                    if entry.meaning
                ]
            )
        )
    if not parts:
        return []
    sections = [Section("Held-out votes", parts, lead)]
    return sections if main is None else [*sections, calibration_section([main])]


def _comparison_measures(comparison: HeldOutComparison, covariates: Any) -> list[Measure]:
    gain = comparison.gain
    meaning = "Nats a vote by which the model's loss is below that of one leaderboard; above zero it reads prompts."
    rows = [Measure("Gain", _nats(gain.estimate), span(gain, _nats), meaning)]
    ends = covariates.get("gain") if isinstance(covariates, dict) else None
    if isinstance(ends, dict):
        estimate, lower, upper = (as_number(ends.get(name)) for name in ("estimate", "lower", "upper"))
        if estimate is not None and lower is not None and upper is not None:
            more = Interval(estimate, lower, upper, math.nan)
            meaning = (
                "Nats a vote by which the model's loss is lower than where covariates, such as the side, are left out."
            )
            rows.append(Measure("Gain of covariates", _nats(more.estimate), span(more, _nats), meaning))
    return rows


# Settings.


def _configuration(run: RunRecords) -> Section:
    if not run.config:
        return Section("Configuration", [Prose("The run has not recorded its configuration yet.", "quiet")])
    rows = []
    for key, value in run.config.items():
        if value not in (None, [], {}):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            # A chat template is a page long.
            rows.append([key, text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"])
    table = Table([Column("Key", number=False), Column("Value", number=False, wide=True)], rows, shown=len(rows))
    return Section("Configuration", [Fold("All keys", [table], f"{len(rows)} that are set", "configuration")])
