"""The page of chronological evaluations: which run ends best and what it has forgotten, its lines, its matrices.

Intervals take slices as what could have been others: those of differences between two runs are of the slices that both
were asked about, those of forgetting of the slices that a checkpoint was asked about twice.

Shapes: C checkpoints, S slices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from p2l.chrono.matrix import (
    Floats,
    Matrix,
    compare_runs,
    gains_again,
    gap_error,
    last_gaps,
    more_is_better,
)
from p2l.chrono.report import notes_on
from p2l.common.report.charts import Axes, Series, Text, percent, short_number
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
    percents,
    span,
    today,
)
from p2l.common.report.tables import Cell, Column, Table, Value, number_text
from p2l.metrics import Interval, about

_LINES = 8  # that colours and dashes tell apart
_CHECKPOINTS = 5  # of one run in the picture
_LEVEL = 0.95
_MEASURES = {
    "final": ("At the end", "Mean over the slices of the last checkpoint."),
    "newest": ("Newest slice", "The last checkpoint on the newest slice."),
    "so_far": ("On the way", "Mean over the checkpoints of the mean over the slices behind each."),
    "next": ("Next slice", "Mean over the checkpoints of the first slice that was still to come."),
    "backward": (
        "Kept",
        "What the last checkpoint gained on a slice since the first one that had its time behind it; below zero it has "
        "forgotten.",
    ),
    "forward": ("Foreseen", "What the last checkpoint before a slice gained on it over the first checkpoint."),
    "gap": ("Gap", "Mean difference of the last checkpoint to that of the oracle; above zero it is worse."),
    "gap_error": ("Error of the gap", "Its standard error, from the scatter of the slices around a straight line."),
    "gap_absolute": ("Absolute gap", "The same, of absolute differences."),
    "closed": ("Closed", "The share of the naive run's gap that is closed."),
    "closed_absolute": ("Closed, absolute", "The same, of absolute differences."),
}
"""Head and meaning of each measure, by the name that files have."""


def chrono_report(
    matrices: Sequence[Matrix], data: str, *, oracle: str | None = None, naive: str | None = None
) -> Report:
    """Return the report of runs, of which one may be that on shuffled votes and one the plainest."""
    measures = compare_runs(matrices, oracle=oracle, naive=naive)
    metric = about(matrices[0].metric)
    runs = [one.run for one in matrices]
    sections = [
        Section("Runs", [_summary(measures, metric.text)], f"{metric.title}: {metric.sentence}"),
        Section("Measures", [MetricTable(_meanings(measures, metric.text))]),
        Section("Checkpoints by slices", [_matrix(one, is_open=len(matrices) == 1) for one in matrices], _MATRIX_LEAD),
    ]
    return Report(
        "Online runs over time",
        runs[0] if len(runs) == 1 else f"{len(runs)} runs",
        data,
        today(),
        _verdict(matrices, oracle, naive),
        _picture(matrices, oracle, naive),
        sections,
        [
            ("metric", metric.title),
            ("runs", ", ".join(runs)),
            ("checkpoints", f"{max(len(one.checkpoints) for one in matrices):,}"),
            ("slices", f"{len({number for one in matrices for number in one.slices}):,}"),
        ],
        [note.removeprefix("note: ") for note in notes_on(matrices, oracle, naive)],
    )


# The verdict.


def _verdict(matrices: Sequence[Matrix], oracle: str | None, naive: str | None) -> Verdict:
    if len(matrices) == 1:
        return _forgetting(matrices[0])
    by_name = {one.run: one for one in matrices}
    order = _ranked([one for one in matrices if one.run != oracle])
    best = order[0]
    if oracle is not None and best.run != oracle:
        return _against_oracle(by_name[oracle], best, None if naive in (None, best.run) else by_name[naive])
    return _first_and_second(best, order[1]) if len(order) > 1 else _forgetting(best)


def _ranked(matrices: Sequence[Matrix]) -> list[Matrix]:
    """Return runs by the mean of their last checkpoint, the best first."""
    sign = -1.0 if more_is_better(matrices[0].metric) else 1.0
    means = {one.run: _mean(one.values[-1]) for one in matrices}
    return sorted(matrices, key=lambda one: (math.isnan(means[one.run]), sign * means[one.run]))


def _forgetting(run: Matrix) -> Verdict:
    """Return what the last checkpoint has gained or lost on slices whose time an earlier one had behind it."""
    gains = gains_again(run)
    last, text = f"checkpoint {run.checkpoints[-1]}", about(run.metric).text
    title, end = about(run.metric).title.lower(), text(_mean(run.values[-1]))
    basis = f"The mean {title} of {last} over {len(run.slices)} slices is {end}."
    if not len(gains):
        return Verdict(f"{run.run} ends with a mean {title} of {end}.", "", "No slice was asked about twice.")
    found = mean_interval(gains)
    change = f"{text(abs(found.estimate))} {_better(run.metric, found.estimate)}"
    ends = _ends(found, text, len(gains))
    words, tone = "does not show that it forgets", ""
    if found.lower > 0:
        words, tone = "has not forgotten", "good"
    elif found.upper < 0:
        words, tone = "has forgotten", "bad"
    sentence = (
        f"{run.run} {words}: on earlier slices the {title} of its last checkpoint is {change} than that of the first "
        f"one that had seen their time ({ends})."
    )
    return Verdict(sentence, tone, basis)


def _better(metric: str, gain: float) -> str:
    lower = (gain >= 0) != more_is_better(metric)
    return "lower" if lower else "higher"


def _against_oracle(oracle: Matrix, best: Matrix, naive: Matrix | None) -> Verdict:
    """Return how far the best run is from one on shuffled votes."""
    worse, text = last_gaps(oracle, best), about(best.metric).text
    if not len(worse):
        return Verdict(f"{best.run} and {oracle.run} were asked about no slice in common.")
    estimate, error = float(worse.mean()), gap_error(oracle, best)
    width = _quantile(len(worse) - 2) * error if len(worse) > 2 else math.nan
    found = Interval(estimate, estimate - width, estimate + width, error)
    ends = _ends(found, text, len(worse))
    side = "worse" if estimate >= 0 else "better"
    reason = ""
    if naive is not None:
        of_naive = last_gaps(oracle, naive)
        reason = f"{naive.run} ends {text(float(of_naive.mean()))} worse." if len(of_naive) else ""
    if math.isfinite(found.upper) and found.lower <= 0 <= found.upper:
        sentence = (
            f"{best.run} ends level with {oracle.run}, which saw the votes shuffled: {text(abs(estimate))} {side}"
        )
        return Verdict(f"{sentence} ({ends}).", "good", reason)
    tone = "bad" if math.isfinite(found.lower) and found.lower > 0 else ""
    sentence = f"{best.run} ends {text(abs(estimate))} {side} than {oracle.run}, which saw the votes shuffled"
    return Verdict(f"{sentence} ({ends}).", tone, reason)


def _first_and_second(first: Matrix, second: Matrix) -> Verdict:
    """Return by how much the best run ends better than the next, over the slices of both."""
    text = about(first.metric).text
    means = [text(_mean(one.values[-1])) for one in (first, second)]
    gains = last_gaps(first, second)
    title = about(first.metric).title.lower()
    head = f"{first.run} ends with the best {title}, {means[0]}; {second.run} follows with {means[1]}"
    if len(gains) < 2:
        return Verdict(f"{head}.", "", "They share too few slices to say how sure that is.")
    found = mean_interval(gains)
    sentence = f"{head}, {text(abs(found.estimate))} worse ({_ends(found, text, len(gains))})."
    if found.lower > 0:
        return Verdict(sentence, "good")
    return Verdict(sentence, "", "The interval holds zero: the order of these two may be chance.")


def _ends(found: Interval, text: Text, slices: int) -> str:
    if not math.isfinite(found.lower):
        return f"{slices} slices are too few for an interval"
    return f"{_LEVEL:.0%} interval over {slices} slices {span(found, _signed(text))}"


def _signed(text: Text) -> Text:
    return lambda value: text(value).replace("-", "−")


def mean_interval(values: Floats) -> Interval:
    """Return the mean of values (S,) with its interval by the t distribution; NaN ends for fewer than two."""
    mean = float(values.mean())
    if len(values) < 2:
        return Interval(mean, math.nan, math.nan, math.nan)
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    width = _quantile(len(values) - 1) * error
    return Interval(mean, mean - width, mean + width, error)


def _quantile(freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + _LEVEL / 2))


def _mean(values: Floats) -> float:
    numbers = values[~np.isnan(values)]
    return float(numbers.mean()) if len(numbers) else math.nan


# Picture and tables.


def _picture(matrices: Sequence[Matrix], oracle: str | None, naive: str | None) -> Figure:
    """Return the last checkpoint of each run over the slices, or some checkpoints of one run."""
    metric = matrices[0].metric
    entry = about(metric)
    if len(matrices) == 1:
        series, title = _checkpoint_lines(matrices[0]), "Checkpoints over the slices"
        caption = "A line is a checkpoint; where later ones lie on the worse side of earlier ones, the run forgot."
    else:
        drawn = [one for one in _ranked(matrices) if one.run not in (oracle, naive)][: _LINES - 2]
        named = [one for one in matrices if one.run in (oracle, naive)]
        series = [_line(one, one.run, -1, is_quiet=one.run == oracle) for one in [*drawn, *named]]
        title = "Last checkpoint of each run over the slices"
        left = len(matrices) - len(series)
        caption = f"The best come first{f'; {left} more runs are in the tables' if left else ''}."
        if oracle is not None:
            caption += f" The dotted line is {oracle}, which saw the votes shuffled."
    text = percent if entry.unit == "share" else short_number
    unit = f"{entry.title.lower()}, nats a vote" if entry.unit == "nats" else entry.title.lower()
    axes = Axes("slice, by the batch of the stream at its end", unit, y_text=text)
    caption = f"{entry.better.capitalize()} is better. {caption}" if entry.better else caption
    return Figure.of(series, axes, f"{entry.title}: {title[0].lower()}{title[1:]}", caption)


def _checkpoint_lines(run: Matrix) -> list[Series]:
    places = sorted({round(part) for part in np.linspace(0, len(run.checkpoints) - 1, _CHECKPOINTS).tolist()})
    return [_line(run, f"checkpoint {run.checkpoints[place]}", place) for place in reversed(places)]


def _line(run: Matrix, name: str, row: int, *, is_quiet: bool = False) -> Series:
    values = run.values[row].tolist()
    return Series(name, [float(number) for number in run.slices], values, has_dots=True, is_quiet=is_quiet)


def _summary(measures: Mapping[str, Mapping[str, float | None]], text: Text) -> Table:
    """Return a row for each run, a column for each measure that any has."""
    names = [name for name in _MEASURES if any(row.get(name) is not None for row in measures.values())]
    rows: list[list[Value]] = []
    for run, row in measures.items():
        rows.append([run, *(_value(name, row.get(name), text) for name in names)])
    heads = [Column(_MEASURES[name][0], note=_MEASURES[name][1]) for name in names]
    return Table([Column("Run", number=False), *heads], rows)


def _value(name: str, value: float | None, text: Text) -> Cell | None:
    if value is None:
        return None
    return Cell(percents(value) if name.startswith("closed") else _signed(text)(value), value)


def _meanings(measures: Mapping[str, Mapping[str, float | None]], text: Text) -> list[Measure]:
    """Return each measure with the best value of any run, and what it says."""
    rows = []
    for name, (title, meaning) in _MEASURES.items():
        values = {run: value for run, row in measures.items() if (value := row.get(name)) is not None}
        if values:
            shown = [_value(name, value, text) for value in (min(values.values()), max(values.values()))]
            texts = list(dict.fromkeys(cell.text for cell in shown if cell is not None))
            rows.append(Measure(title, " to ".join(texts), "", meaning))
    return rows


_MATRIX_LEAD = (
    "A row is a checkpoint, a column a slice. Colours compare the checkpoints on one slice, since some slices are "
    "harder: blue is better than their mean there, orange worse. Slices that a checkpoint had not reached are grey."
)


def _matrix(run: Matrix, *, is_open: bool) -> Part:
    """Return the values of a run as a heat map, each column against its own mean."""
    with np.errstate(invalid="ignore"):
        filled = ~np.isnan(run.values)
        counts = np.maximum(filled.sum(axis=0), 1)
        away = run.values - np.where(filled, run.values, 0.0).sum(axis=0) / counts
    away = np.where(filled, away if more_is_better(run.metric) else -away, 0.0)
    most = float(np.abs(away).max(initial=0.0)) or 1.0
    text = about(run.metric).text
    rows: list[list[Value]] = []
    for place, checkpoint in enumerate(run.checkpoints):
        cells: list[Value] = [
            None
            if np.isnan(value)
            else Cell(
                text(value),
                float(value),
                "quiet" if later else "",
                _votes(votes),
                heat=0.0 if later else float(heat / most),
            )
            for value, votes, later, heat in zip(
                run.values[place], run.votes[place], run.later[place], away[place], strict=True
            )
        ]
        rows.append([checkpoint, *cells])
    if not rows:
        return Prose("It has no checkpoint.", "quiet")
    table = Table([Column("Checkpoint", 0), *(Column(str(number)) for number in run.slices)], rows, shown=40)
    return Fold(run.run, [table], f"{len(run.checkpoints)} checkpoints", is_open=is_open)


def _votes(votes: float) -> str:
    return "" if math.isnan(votes) else f"{number_text(votes, 0)} votes"


def data_of(folder: str | Path) -> str:
    """Return the name of a folder of slices, as a report is titled."""
    return "/".join(Path(folder).resolve().parts[-2:])
