"""Results of chronological evaluations: which run ends best and what it has forgotten, its lines, its matrices.

`write_results` writes below a folder:

| file | holds |
|---|---|
| RUN.json, RUN.csv | the matrix |
| RUN-heat-map, RUN-lines | figures of one run, .png and .svg |
| comparison | figure of several runs, .png and .svg |
| summary.json, summary.csv | the measures of `p2l.chrono.matrix` |

Intervals take slices as what could have been others: those of differences between two runs are of the slices that both
were asked about, those of forgetting of the slices that a checkpoint was asked about twice.

Shapes: C checkpoints, S slices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from p2l.chrono.matrix import (
    Floats,
    Matrix,
    compare_runs,
    gains_again,
    gap_error,
    gap_to,
    is_noise,
    known_mean,
    last_gaps,
    more_is_better,
    write_matrix,
)
from p2l.common.files import write_json
from p2l.common.report.charts import Axes, Series, Text, percent, short_number
from p2l.common.report.heat import Heat
from p2l.common.report.images import save_picture
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
from p2l.common.report.tables import Cell, Column, Table, Value
from p2l.common.report.text import write_csv
from p2l.metrics import Interval, about

_MAX_LINES = 8  # that colours and dashes tell apart
_DRAWN_CHECKPOINTS = 5  # of one run in the picture
_LEVEL = 0.95
# Head and meaning of each measure, by its name in files.
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


def chrono_report(
    matrices: Sequence[Matrix], data: str, *, oracle: str | None = None, naive: str | None = None
) -> Report:
    """Return the report of runs, of which one may be that on shuffled votes and one the plainest."""
    measures = compare_runs(matrices, oracle=oracle, naive=naive)
    metric = about(matrices[0].metric)
    runs = [matrix.run for matrix in matrices]
    sections = [
        Section("Runs", [_summary(measures, metric.text)], f"{metric.title}: {metric.sentence}"),
        Section("Measures", [MetricTable(_meanings(measures, metric.text))], page_only=True),
        Section(
            "Checkpoints by slices",
            [_matrix(matrix, is_open=len(matrices) == 1) for matrix in matrices],
            _MATRIX_LEAD,
            page_only=True,
        ),
    ]
    return Report(
        kind="Online runs over time",
        subject=runs[0] if len(runs) == 1 else f"{len(runs)} runs",
        data=data,
        made=today(),
        verdict=_verdict(matrices, oracle, naive),
        picture=_picture(matrices, oracle, naive),
        sections=sections,
        facts=[
            ("metric", metric.title),
            ("runs", ", ".join(runs)),
            ("checkpoints", f"{max(len(matrix.checkpoints) for matrix in matrices):,}"),
            ("slices", f"{len({number for matrix in matrices for number in matrix.slices}):,}"),
        ],
        notes=_notes(matrices, oracle, naive),
    )


def write_results(
    matrices: Sequence[Matrix],
    folder: Path,
    *,
    oracle: str | None = None,
    naive: str | None = None,
    has_figures: bool = True,
) -> None:
    """Write matrices, measures and, for which matplotlib is needed, figures of the runs into a folder."""
    for matrix in matrices:
        write_matrix(matrix, folder)
    measures = compare_runs(matrices, oracle=oracle, naive=naive)
    names = list(next(iter(measures.values())))
    write_json(folder / "summary.json", measures, indent=2)
    columns = [Column("Run", number=False), *(Column(name) for name in names)]
    write_csv(Table(columns, [[run, *map(row.get, names)] for run, row in measures.items()]), folder / "summary.csv")
    figures = {f"{matrix.run}-heat-map": heat_figure(matrix) for matrix in matrices}
    figures |= {f"{matrix.run}-lines": _picture([matrix], None, None) for matrix in matrices}
    if len(matrices) > 1:
        figures["comparison"] = _picture(matrices, oracle, naive)
    for name, figure in figures.items() if has_figures else ():
        save_picture([folder / f"{name}{ending}" for ending in (".png", ".svg")], figure)


# The verdict.


def _verdict(matrices: Sequence[Matrix], oracle: str | None, naive: str | None) -> Verdict:
    if len(matrices) == 1:
        return _forgetting(matrices[0])
    by_name = {matrix.run: matrix for matrix in matrices}
    order = _ranked([matrix for matrix in matrices if matrix.run != oracle])
    best = order[0]
    if oracle is not None and best.run != oracle:
        return _against_oracle(by_name[oracle], best, None if naive in (None, best.run) else by_name[naive])
    return _first_and_second(best, order[1]) if len(order) > 1 else _forgetting(best)


def _ranked(matrices: Sequence[Matrix]) -> list[Matrix]:
    """Return runs by the mean of their last checkpoint, the best first."""
    sign = -1.0 if more_is_better(matrices[0].metric) else 1.0
    means = {matrix.run: known_mean(matrix.values[-1]) for matrix in matrices}
    return sorted(matrices, key=lambda matrix: (math.isnan(means[matrix.run]), sign * means[matrix.run]))


def _forgetting(run: Matrix) -> Verdict:
    """Return the gain or loss of the last checkpoint on slices that an earlier one was asked about as past."""
    gains = gains_again(run)
    last = f"checkpoint {run.checkpoints[-1]}"
    text = about(run.metric).text
    title, end = about(run.metric).title.lower(), text(known_mean(run.values[-1]))
    basis = f"The mean {title} of {last} over {len(run.slices)} slices is {end}."
    if not len(gains):
        return Verdict(f"{run.run} ends with a mean {title} of {end}.", "", "No slice was asked about twice.")
    interval = _mean_interval(gains)
    is_lower = (interval.estimate >= 0) != more_is_better(run.metric)
    change = f"{text(abs(interval.estimate))} {'lower' if is_lower else 'higher'}"
    ends = _ends(interval, text, len(gains))
    words, tone = "does not show that it forgets", ""
    if interval.lower > 0:
        words, tone = "has not forgotten", "good"
    elif interval.upper < 0:
        words, tone = "has forgotten", "bad"
    sentence = (
        f"{run.run} {words}: on earlier slices the {title} of its last checkpoint is {change} than that of the first "
        f"one that had seen their time ({ends})."
    )
    return Verdict(sentence, tone, basis)


def _against_oracle(oracle: Matrix, best: Matrix, naive: Matrix | None) -> Verdict:
    """Return the verdict on the distance of the best run from a run on shuffled votes."""
    worse, text = last_gaps(oracle, best), about(best.metric).text
    if not len(worse):
        return Verdict(f"{best.run} and {oracle.run} were asked about no slice in common.")
    estimate, error = float(worse.mean()), gap_error(oracle, best)
    width = _quantile(len(worse) - 2) * error if len(worse) > 2 else math.nan
    interval = Interval(estimate, estimate - width, estimate + width, error)
    ends = _ends(interval, text, len(worse))
    side = "worse" if estimate >= 0 else "better"
    reason = ""
    if naive is not None:
        of_naive = last_gaps(oracle, naive)
        reason = f"{naive.run} ends {text(float(of_naive.mean()))} worse." if len(of_naive) else ""
    if math.isfinite(interval.upper) and interval.lower <= 0 <= interval.upper:
        sentence = (
            f"{best.run} ends level with {oracle.run}, which saw the votes shuffled: {text(abs(estimate))} {side}"
        )
        return Verdict(f"{sentence} ({ends}).", "good", reason)
    tone = "bad" if math.isfinite(interval.lower) and interval.lower > 0 else ""
    sentence = f"{best.run} ends {text(abs(estimate))} {side} than {oracle.run}, which saw the votes shuffled"
    return Verdict(f"{sentence} ({ends}).", tone, reason)


def _first_and_second(first: Matrix, second: Matrix) -> Verdict:
    """Return by how much the best run ends better than the next, over the slices of both."""
    text = about(first.metric).text
    means = [text(known_mean(run.values[-1])) for run in (first, second)]
    gains = last_gaps(first, second)
    title = about(first.metric).title.lower()
    head = f"{first.run} ends with the best {title}, {means[0]}; {second.run} follows with {means[1]}"
    if len(gains) < 2:
        return Verdict(f"{head}.", "", "They share too few slices to say how sure that is.")
    interval = _mean_interval(gains)
    sentence = f"{head}, {text(abs(interval.estimate))} worse ({_ends(interval, text, len(gains))})."
    if interval.lower > 0:
        return Verdict(sentence, "good")
    return Verdict(sentence, "", "The interval holds zero: the order of these two may be chance.")


def _ends(interval: Interval, text: Text, slices: int) -> str:
    if not math.isfinite(interval.lower):
        return f"{slices} slices are too few for an interval"
    return f"{_LEVEL:.0%} interval over {slices} slices {span(interval, _signed(text))}"


def _signed(text: Text) -> Text:
    """Return numbers with a true minus, and without one where they round to zero."""

    def signed(value: float) -> str:
        number = text(value)
        return number.replace("-", "−") if re.search("[1-9]", number) else number.lstrip("-")

    return signed


def _mean_interval(values: Floats) -> Interval:
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


# Picture and tables.


def _picture(matrices: Sequence[Matrix], oracle: str | None, naive: str | None) -> Figure:
    """Return the last checkpoint of each run over the slices, or some checkpoints of one run."""
    metric = matrices[0].metric
    entry = about(metric)
    if len(matrices) == 1:
        run = matrices[0]
        title = "Checkpoints over the slices"
        shown = np.linspace(0, len(run.checkpoints) - 1, _DRAWN_CHECKPOINTS).tolist()
        rows = sorted({round(place) for place in shown}, reverse=True)
        series = [_line(run, f"checkpoint {run.checkpoints[row]}", row) for row in rows]
        caption = "A line is a checkpoint; where later ones lie on the worse side of earlier ones, the run forgot."
    else:
        drawn = [run for run in _ranked(matrices) if run.run not in (oracle, naive)][: _MAX_LINES - 2]
        drawn += [run for run in matrices if run.run in (oracle, naive)]
        series = [_line(run, run.run, -1, is_quiet=run.run == oracle) for run in drawn]
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


def _differences(run: Matrix) -> Floats:
    """Return by how much (C, S) each checkpoint is better on a slice than the mean there; NaN for later slices."""
    is_filled = ~np.isnan(run.values)
    means = np.where(is_filled, run.values, 0.0).sum(axis=0) / np.maximum(is_filled.sum(axis=0), 1)
    differences = run.values - means if more_is_better(run.metric) else means - run.values
    return np.where(run.later & is_filled, 0.0, differences)


def heat_figure(run: Matrix) -> Figure:
    """Return the values of a run as a heat map, each column against its own mean."""
    text = about(run.metric).text
    labels = [["" if np.isnan(value) else text(value) for value in row] for row in run.values.tolist()]
    title = f"{run.run}: {about(run.metric).title.lower()} of checkpoints (down) on slices, against the slice's mean"
    names, slices = [str(number) for number in run.checkpoints], [str(number) for number in run.slices]
    heat = Heat(
        names=names,
        values=_differences(run),
        title=title,
        middle=0.0,
        text=_signed(text),
        across=slices,
        labels=labels,
    )
    return Figure(heat, title)


def _matrix(run: Matrix, *, is_open: bool) -> Part:
    """Return the values of a run as a table with the colours of the heat map."""
    if not run.checkpoints:
        return Prose("It has no checkpoint.", "quiet")
    differences = np.nan_to_num(_differences(run))
    heats = differences / (float(np.abs(differences).max(initial=0.0)) or 1.0)
    text = about(run.metric).text
    rows: list[list[Value]] = []
    for place, checkpoint in enumerate(run.checkpoints):
        columns = (values[place].tolist() for values in (run.values, run.votes, run.later, heats))
        cells: list[Value] = [
            None
            if math.isnan(value)
            else Cell(
                text(value),
                value,
                tone="quiet" if later else "",
                note="" if math.isnan(votes) else f"{votes:,.0f} votes",
                heat=heat,
            )
            for value, votes, later, heat in zip(*columns, strict=True)
        ]
        rows.append([checkpoint, *cells])
    table = Table([Column("Checkpoint", 0), *(Column(str(number)) for number in run.slices)], rows, shown=40)
    return Fold(run.run, [table], f"{len(run.checkpoints)} checkpoints", is_open=is_open)


def data_of(folder: str | Path) -> str:
    """Return the name of a folder of slices, as a report is titled."""
    return "/".join(Path(folder).resolve().parts[-2:])


def _notes(matrices: Sequence[Matrix], oracle: str | None, naive: str | None) -> list[str]:
    """Return sentences that a reader who compares runs must know."""
    notes = []
    if len({tuple(matrix.slices) for matrix in matrices}) > 1:
        notes.append("The runs were asked about different slices; gaps are over those that two runs share.")
    votes = [dict(zip(matrix.slices, matrix.votes[-1].tolist(), strict=True)) for matrix in matrices]
    shared = set.intersection(*(set(by_slice) for by_slice in votes))
    counts = [{by_slice[number] for by_slice in votes if not np.isnan(by_slice[number])} for number in shared]
    if any(len(different) > 1 for different in counts):
        notes.append("The runs know different models, so that slices hold different votes for each of them.")
    if oracle is not None and naive not in (None, oracle):
        [of_oracle] = [matrix for matrix in matrices if matrix.run == oracle]
        [of_naive] = [matrix for matrix in matrices if matrix.run == naive]
        if is_noise(of_oracle, of_naive, of_naive):
            gap, error = gap_to(of_oracle, of_naive), gap_error(of_oracle, of_naive)
            notes.append(
                f"The gap of {naive} to {oracle}, {gap:+.4f} with a standard error of {error:.4f}, is within its "
                "noise: no share of it is stated (more votes a slice, or more slices, would tell)."
            )
    return notes
