"""Results of a run on a terminal: two runs beside each other, judges beside people, leaderboards of pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coeval.analysis.bias import FlipRow
from coeval.analysis.compare import RunComparison
from coeval.analysis.people import Calibration
from p2l.common.cli import counted
from p2l.common.report.tables import Column, Table
from p2l.common.report.text import table_text


def comparison_text(comparison: RunComparison) -> str:
    """Return how each student's figures changed between two runs, and what makes the comparison doubtful."""
    changes = comparison.changes
    tasks = []
    for change in changes:
        task = change.task or "all tasks"
        # Shares of wins stand beside means of scores, with which they cannot be compared.
        tasks.append(task if change.basis == "scores" else f"{task} (wins)")
    table = Table.of(
        (Column("Student", number=False), [change.student for change in changes]),
        (Column("Task", number=False), tasks),
        (Column("Before -> after"), [f"{change.before:.3f} -> {change.after:.3f}" for change in changes]),
        (Column("Change"), [f"{change.difference:+.3f}" for change in changes]),
        (Column("95 % interval"), [f"[{change.lower:+.3f}, {change.upper:+.3f}]" for change in changes]),
        (Column("Items", number=False), ["paired" if change.paired else "unpaired" for change in changes]),
        (Column("Verdict", number=False), [change.verdict for change in changes]),
    )
    title = f"{comparison.before} -> {comparison.after}, threshold {comparison.threshold:g}"
    return "\n".join([title, *table_text(table), *_doubts(comparison)])


def _doubts(comparison: RunComparison) -> Iterator[str]:
    """Yield a line for each part that was not compared, and for each judge that is another model."""
    for run, students in (("before", comparison.only_before), ("after", comparison.only_after)):
        if students:
            yield f"only {run}: {', '.join(students)}"
    for row in comparison.left_out:
        scores_of = "scores of " if row.kind == "student" else ""
        number = counted(row.count, row.basis.removesuffix("s"))
        yield f"left out: {scores_of}{row.kind} {row.name}, {number} that only {row.run} has"
    for judge in comparison.changed_judges:
        yield f"warning: judge {judge}: another model judges, and a change may be the judge's"
    for run, skipped in (("before", comparison.skipped_before), ("after", comparison.skipped_after)):
        yield from (f"skipped {run}: {row.count} {row.code} ({row.example})" for row in skipped)


def calibration_text(report: Calibration) -> str:
    """Return how far judges agree with people, and the students' scores on people's scale."""
    raters = [row for row in report.agreement if row.dimension == "all" and row.kind != "annotator"]
    names = [row.rater if row.kind == "judge" else "people among themselves" for row in raters]
    agreement = Table.of(
        (Column("Rater", number=False), names),
        (Column("Equal", 3), [row.equal for row in raters]),
        (Column("Weighted", 3), [row.weighted for row in raters]),
        (Column("Kappa", 3), [row.kappa for row in raters]),
        (Column("Rows", 0), [row.rows for row in raters]),
    )
    rows = report.students
    students = Table.of(
        (Column("Rank", 0), [row.rank for row in rows]),
        (Column("Student", number=False), [row.student for row in rows]),
        (Column("As judged", 3), [row.raw for row in rows]),
        (Column("Corrected", 3), [row.calibrated for row in rows]),
        (Column("95 % interval"), [f"[{row.lower:.3f}, {row.upper:.3f}]" for row in rows]),
    )
    lines = [f"{counted(report.annotations, 'score')} of {counted(len(report.annotators), 'annotator')}"]
    for table in (agreement, students):
        lines += ["", *table_text(table)] if table.rows else []
    if report.without_map:
        lines.append(f"no map: {', '.join(report.without_map)}")
    if report.next:
        answers = len({row.response_id for row in report.next})
        lines.append(f"next.csv has the {counted(answers, 'answer')} that people should score next")
    return "\n".join(lines)


def boards_text(rows: Sequence[Mapping[str, Any]], flips: Sequence[FlipRow]) -> str:
    """Return the leaderboards of pairs, `rows_of` all of them, and how often verdicts flip with the order."""
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        board = [row for row in rows if row["task"] == task]
        intervals = ["" if row["lower"] is None else f"[{row['lower']:.0f}, {row['upper']:.0f}]" for row in board]
        table = Table.of(
            (Column("Rank", 0), [row["rank"] for row in board]),
            (Column("Model", number=False), [row["model"] for row in board]),
            (Column("Score"), [f"{row['score']:.1f}" for row in board]),
            (Column("95 % interval"), intervals),
            (Column("Votes", 0), [row["votes"] for row in board]),
            caption=task,
        )
        lines += [*table_text(table), ""]
    if flips:
        table = Table.of(
            (Column("Judge", number=False), [row.judge for row in flips]),
            (Column("Flips with the order"), [f"{row.flip_rate:.1%}" for row in flips]),
            (Column("Flips", 0), [row.flips for row in flips]),
            (Column("Pairs", 0), [row.pairs for row in flips]),
        )
        lines += [*table_text(table), ""]
    return "\n".join(lines)
