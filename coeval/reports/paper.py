"""Tables for a paper: students, their differences, judges and teachers, as LaTeX (booktabs) or Markdown.

The best of a column is bold. A dagger marks the students that are not told from the best one, a star a difference of
two: p below 0.05 over prompts after Holm's correction for all pairs of the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coeval.analysis.agreement import judge_rows
from coeval.analysis.judge_tests import judge_scales
from coeval.analysis.students import StudentPair, by_datapoint, student_pairs, student_rows, task_rows
from coeval.analysis.teachers import teacher_rows
from coeval.analysis.units import LoadedRun


@dataclass(frozen=True)
class Cell:
    """A figure with its interval, or a text."""

    text: str
    lower: float | None = None
    upper: float | None = None
    is_best: bool = False
    mark: str = ""
    """dagger or star."""


@dataclass(frozen=True)
class PaperTable:
    """A table with its caption."""

    name: str
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


Figure: TypeAlias = tuple[float | None, float | None, float | None]
"""A figure with its limits."""
Columns: TypeAlias = Sequence[tuple[str, Mapping[str, Figure]]]
"""Heading -> name -> figure."""
_SURE = "95 \\% confidence intervals are over prompts, near duplicates counting once"


def paper_tables(loaded: LoadedRun, digits: int = 3, names: Sequence[str] = ()) -> list[PaperTable]:
    """Return the tables of these names, by default all, without those that would be empty."""
    tables = (TABLES[name](loaded, digits) for name in names or TABLES)
    return [table for table in tables if table.rows]


def _students(loaded: LoadedRun, digits: int) -> PaperTable:
    students = student_rows(loaded)
    columns: list[tuple[str, dict[str, Figure]]] = [
        ("Score", {one.student: (one.fit, one.fit_lower, one.fit_upper) for one in students}),
        (
            "At equal length",
            {
                one.student: (one.length_controlled, one.length_controlled_lower, one.length_controlled_upper)
                for one in students
            },
        ),
    ]
    by_task = task_rows(loaded) if len(loaded.tasks) > 1 else ()
    for task in dict.fromkeys(row.task for row in by_task):
        of_task = [row for row in by_task if row.task == task]
        columns.append((task, {row.student: (row.fit, row.fit_lower, row.fit_upper) for row in of_task}))
    columns.append(("Mean", {one.student: (one.mean, one.lower, one.upper) for one in students}))
    columns = [
        (head, figures) for head, figures in columns if any(figure[0] is not None for figure in figures.values())
    ]
    equal = _equal_to_best(loaded, [one.student for one in students]) if students else set()
    caption = (
        "Students by the fit of students, judges and items (Score), at equal length of answers, by task, and by the "
        f"plain mean. {_SURE}; $\\dagger$: not told from the best (Holm, 5 \\%)."
    )
    rows = _rows([one.student for one in students], columns, digits, equal)
    return PaperTable("students", caption, ("Student", *(head for head, _ in columns)), rows)


def _rows(
    names: Sequence[str], columns: Columns, digits: int, marked: set[str] | None = None
) -> tuple[tuple[Cell, ...], ...]:
    best = {
        head: max((round(figure[0], digits) for figure in figures.values() if figure[0] is not None), default=None)
        for head, figures in columns
    }
    rows = []
    for name in names:
        cells = [Cell(name)]
        for place, (head, figures) in enumerate(columns):
            figure, lower, upper = figures.get(name, (None, None, None))
            mark = "dagger" if not place and name in (marked or ()) else ""
            is_best = figure is not None and round(figure, digits) == best[head]
            cells.append(Cell(_number(figure, digits), lower, upper, is_best, mark))
        rows.append(tuple(cells))
    return tuple(rows)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _equal_to_best(loaded: LoadedRun, order: Sequence[str]) -> set[str]:
    """Return the students other than the best that no test puts below it."""
    worse = (
        {pair.worse for pair in _pairs_of(loaded) if pair.significant and pair.better == order[0]} if order else set()
    )
    return set(order[1:]) - worse


def _pairs_of(loaded: LoadedRun) -> tuple[StudentPair, ...]:
    return student_pairs(loaded, by_datapoint(loaded))


def _differences(loaded: LoadedRun, digits: int) -> PaperTable:
    order = [one.student for one in student_rows(loaded)]
    cells: dict[tuple[str, str], Cell] = {}
    for pair in _pairs_of(loaded):
        for sign, names in ((1.0, (pair.better, pair.worse)), (-1.0, (pair.worse, pair.better))):
            cells[names] = Cell(f"{sign * pair.fit:+.{digits}f}", mark="star" if pair.significant else "")
    rows = tuple((Cell(one), *(cells.get((one, other), Cell("")) for other in order)) for one in order) if cells else ()
    caption = "Differences of scores, row less column. $*$: beyond chance (p below 0.05 after Holm's correction)."
    return PaperTable("differences", caption, ("", *order), rows)


def _judges(loaded: LoadedRun, digits: int) -> PaperTable:
    scales = {row.judge: row for row in judge_scales(loaded)}
    rows = []
    for row in judge_rows(loaded):
        scale = scales.get(row.judge)
        figures = [row.weighted_kappa, *((scale.reliability, scale.weight, scale.severity) if scale else (None,) * 3)]
        flags = scale.flags if scale else ""
        rows.append((Cell(row.judge), *(Cell(_number(figure, digits)) for figure in figures), Cell(flags or "none")))
    head = ("Judge", "Kappa", "Reliability", "Weight", "Leniency", "Biases found")
    caption = (
        "Judges: kappa with their peers, weighted by what both scored; share of the variance of scores within items "
        "that is quality; weight in the fit; score of an average answer less that of all; biases beyond chance."
    )
    return PaperTable("judges", caption, head, tuple(rows))


def _teachers(loaded: LoadedRun, digits: int) -> PaperTable:
    teachers = teacher_rows(loaded)
    columns = [
        ("Separation", {one.teacher: (one.separation, one.separation_lower, one.separation_upper) for one in teachers}),
        ("Spread", {one.teacher: (one.spread, one.spread_lower, one.spread_upper) for one in teachers}),
    ]
    rows = _rows([one.teacher for one in teachers], columns, digits)
    counted = tuple((*cells, Cell(str(one.items))) for cells, one in zip(rows, teachers, strict=True))
    caption = f"Teachers: how far students differ on their items, the noise of judges taken out. {_SURE}."
    return PaperTable("teachers", caption, ("Teacher", "Separation", "Spread", "Items"), counted)


TABLES: Mapping[str, Callable[[LoadedRun, int], PaperTable]] = {
    "students": _students,
    "differences": _differences,
    "judges": _judges,
    "teachers": _teachers,
}
"""Name -> what makes the table."""
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def latex(table: PaperTable, digits: int = 3) -> str:
    """Return a table as LaTeX, for the package booktabs."""
    aligned = "l" + "".join("l" if head == "Biases found" else "r" for head in table.head[1:])
    head = " & ".join(map(_latex_text, table.head))
    rows = [" & ".join(_latex_cell(cell, digits) for cell in cells) for cells in table.rows]
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{table.caption}}}", rf"\label{{tab:coeval-{table.name}}}"]
    lines += [rf"\begin{{tabular}}{{{aligned}}}", r"\toprule", rf"{head} \\", r"\midrule"]
    lines += [rf"{row} \\" for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _latex_cell(cell: Cell, digits: int) -> str:
    text = _latex_text(cell.text).replace("-", "$-$", 1) if re.match(r"-\d", cell.text) else _latex_text(cell.text)
    text = rf"\textbf{{{text}}}" if cell.is_best else text
    text += {"dagger": r"$^{\dagger}$", "star": "$^{*}$", "": ""}[cell.mark]
    if cell.lower is None or cell.upper is None or not cell.text:
        return text
    return rf"{text} {{\scriptsize [{cell.lower:.{digits}f}, {cell.upper:.{digits}f}]}}"


def markdown(table: PaperTable, digits: int = 3) -> str:
    """Return a table as Markdown, its caption below it."""
    lines = [_markdown_row(map(_markdown_text, table.head)), "|---|" + "---:|" * (len(table.head) - 1)]
    lines += [_markdown_row(_markdown_cell(cell, digits) for cell in cells) for cells in table.rows]
    caption = table.caption.replace("$\\dagger$", "†").replace("$*$", "\\*").replace("\\%", "%")
    return "\n".join([*lines, "", caption]) + "\n"


def _markdown_row(cells: Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_text(text: str) -> str:
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", text)


def _markdown_cell(cell: Cell, digits: int) -> str:
    text = _markdown_text(cell.text)
    text = f"**{text}**" if cell.is_best else text
    text += {"dagger": "†", "star": "\\*", "": ""}[cell.mark]
    if cell.lower is None or cell.upper is None or not cell.text:
        return text
    return f"{text} [{cell.lower:.{digits}f}, {cell.upper:.{digits}f}]"


FORMATS: Mapping[str, Callable[[PaperTable, int], str]] = {"latex": latex, "md": markdown}
"""Format -> what writes a table in it."""
