"""Tables for a paper: students, their differences, judges and teachers, as LaTeX (booktabs) or Markdown."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from coeval.analysis.agreement import judge_rows
from coeval.analysis.judge_tests import judge_scales, panel_worth, verdict_scales
from coeval.analysis.students import by_datapoint, student_pairs, student_rows, task_rows
from coeval.analysis.teachers import teacher_rows
from coeval.analysis.units import LoadedRun
from coeval.pairs.board import OVERALL, pairs_report
from coeval.reports.findings import panel_sentences
from p2l.common.display import printable
from p2l.common.report.reports import Figure, Forest, ForestRow
from p2l.common.report.tables import Column as TableColumn
from p2l.common.report.tables import Table
from p2l.common.text_table import markdown_text


@dataclass(frozen=True)
class Cell:
    """A figure with its interval, or a text."""

    text: str
    lower: float | None = None
    upper: float | None = None
    is_best: bool = False  # of its column: it is set in bold
    mark: str = ""  # `dagger`: not told from the best; `star`: a difference beyond chance


@dataclass(frozen=True)
class PaperTable:
    """A table with its caption."""

    name: str
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


_Figure: TypeAlias = tuple[float | None, float | None, float | None]  # a figure with its limits
_Columns: TypeAlias = Sequence[tuple[str, Mapping[str, _Figure]]]  # heading -> name -> figure
_ABOUT_INTERVALS = "95 \\% confidence intervals are over prompts, near duplicates counting once"


def paper_tables(loaded: LoadedRun, digits: int = 3, names: Sequence[str] = ()) -> list[PaperTable]:
    """Return the tables of these names, by default all, without those that would be empty."""
    tables = (TABLES[name](loaded, digits) for name in names or TABLES)
    return [table for table in tables if table.rows]


def _students(loaded: LoadedRun, digits: int) -> PaperTable:
    students = student_rows(loaded)
    columns: list[tuple[str, dict[str, _Figure]]] = [
        ("Score", {row.student: _figure(row, "fit") for row in students}),
        ("At equal length", {row.student: _figure(row, "length_controlled") for row in students}),
    ]
    by_task = task_rows(loaded) if len(loaded.tasks) > 1 else ()
    for task in dict.fromkeys(row.task for row in by_task):
        of_task = [row for row in by_task if row.task == task]
        columns.append((task, {row.student: _figure(row, "fit") for row in of_task}))
    columns.append(("Mean", {row.student: (row.mean, row.lower, row.upper) for row in students}))
    columns = [
        (head, figures) for head, figures in columns if any(figure[0] is not None for figure in figures.values())
    ]
    # The dagger marks students that no test puts below the best: p below 0.05 over prompts, after Holm's correction for
    # all pairs of the run.
    names = [row.student for row in students]
    tests = student_pairs(loaded, by_datapoint(loaded)) if names else ()
    worse = {pair.worse for pair in tests if pair.significant and pair.better == names[0]}
    caption = (
        "Students by the fit of students, judges and items (Score), at equal length of answers, by task, and by the "
        f"plain mean. {_ABOUT_INTERVALS}; $\\dagger$: not told from the best (Holm, 5 \\%)."
    )
    rows = _rows(names, columns, digits, set(names[1:]) - worse)
    return PaperTable("students", caption, ("Student", *(head for head, _ in columns)), rows)


def _figure(row: object, name: str) -> _Figure:
    """Return an estimate of a row with its limits."""
    return getattr(row, name), getattr(row, f"{name}_lower"), getattr(row, f"{name}_upper")


def _rows(
    names: Sequence[str], columns: _Columns, digits: int, marked: Collection[str] = ()
) -> tuple[tuple[Cell, ...], ...]:
    # Of figures that are equal as they are printed each is the best.
    best = {
        head: max((round(figure[0], digits) for figure in figures.values() if figure[0] is not None), default=None)
        for head, figures in columns
    }
    rows = []
    for name in names:
        cells = [Cell(name)]
        for place, (head, figures) in enumerate(columns):
            figure, lower, upper = figures.get(name, (None, None, None))
            mark = "dagger" if not place and name in marked else ""
            is_best = figure is not None and round(figure, digits) == best[head]
            cells.append(Cell(_number(figure, digits), lower, upper, is_best, mark))
        rows.append(tuple(cells))
    return tuple(rows)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _differences(loaded: LoadedRun, digits: int) -> PaperTable:
    order = [row.student for row in student_rows(loaded)]
    cells: dict[tuple[str, str], Cell] = {}
    for pair in student_pairs(loaded, by_datapoint(loaded)):
        mark = "star" if pair.significant else ""
        cells[pair.better, pair.worse] = Cell(f"{pair.fit:+.{digits}f}", mark=mark)
        cells[pair.worse, pair.better] = Cell(f"{-pair.fit:+.{digits}f}", mark=mark)
    rows = [(Cell(name), *(cells.get((name, column), Cell("")) for column in order)) for name in order if cells]
    caption = "Differences of scores, row less column. $*$: beyond chance (p below 0.05 after Holm's correction)."
    return PaperTable("differences", caption, ("", *order), tuple(rows))


def _judges(loaded: LoadedRun, digits: int) -> PaperTable:
    scales = {row.judge: row for row in judge_scales(loaded) or verdict_scales(loaded)}
    rows = []
    for row in judge_rows(loaded):
        scale = scales.get(row.judge)
        figures = [row.weighted_kappa, *((scale.reliability, scale.weight, scale.severity) if scale else (None,) * 3)]
        if all(figure is None for figure in figures):
            continue
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
        (name.capitalize(), {row.teacher: _figure(row, name) for row in teachers}) for name in ("separation", "spread")
    ]
    rows = _rows([row.teacher for row in teachers], columns, digits)
    counted = tuple((*cells, Cell(str(row.items))) for cells, row in zip(rows, teachers, strict=True))
    caption = f"Teachers: how far students differ on their items, the noise of judges taken out. {_ABOUT_INTERVALS}."
    return PaperTable("teachers", caption, ("Teacher", "Separation", "Spread", "Items"), counted)


def _pairs(loaded: LoadedRun, digits: int) -> PaperTable:
    """Return the leaderboard of verdicts on pairs; scores are points of chess ratings, without decimals."""
    report = pairs_report(loaded)
    overall = [row for row in report.rows if row.task == OVERALL and not row.attribute]
    names = [row.student for row in overall] if loaded.verdicts else []
    apart = set(report.apart or ())
    by_task = {(row.task, row.student): row for row in report.rows if not row.attribute}
    tasks = [task for task in dict.fromkeys(row.task for row in report.rows) if task != OVERALL]
    rows = []
    for row in overall if names else ():
        mark = "dagger" if row.rank > 1 and (names[0], row.student) not in apart else ""
        ends = [None if end is None else round(end) for end in (row.lower, row.upper)]
        interval = "" if None in ends else f" [{ends[0]}, {ends[1]}]"
        shares = [by_task.get((task, row.student)) for task in (tasks if len(tasks) > 1 else [])]
        rates = [_number(None if one is None else one.win_rate, digits) for one in (row, *shares)]
        rows.append((Cell(row.student), Cell(f"{round(row.score)}{interval}", mark=mark), *map(Cell, rates)))
    caption = (
        "Students by verdicts on pairs: score as of chess ratings with the 95 \\% interval of its distance to the mean "
        "of all, and expected share of wins against others, over all and by task. $\\dagger$: not told from the best "
        "(Holm, 5 \\%)."
    )
    head = ("Student", "Score", "Wins", *(tasks if len(tasks) > 1 else []))
    return PaperTable("pairs", caption, head, tuple(rows))


# The ranking as a figure: intervals, what the panel is worth, and letters for groups that cannot be told apart.


def ranking_figure(loaded: LoadedRun) -> Figure | None:
    """Return the students' scores with intervals, best first, each with its letters; None where nothing ranks them.

    Two students that share a letter are not told apart (p below 0.05 after Holm's correction for all pairs). Where
    judges compared pairs alone, scores are those of the leaderboard of their verdicts.
    """
    places, apart, about_scores, columns = _by_scores(loaded) or _by_pairs(loaded) or ([], set(), "", ())
    if not places:
        return None
    letters = letters_of([row.name for row in places], apart)
    rows = [ForestRow(row.name, row.lower, row.score, row.upper, note=letters[row.name]) for row in places]
    worth = panel_sentences(panel_worth(loaded))
    about = "Students that share a letter are not told apart (Holm, 5 %)."
    panel = worth[0].split(";")[0].split(":")[0].rstrip(".") + ". " if worth else ""
    numbers = Table.of(
        (TableColumn("student", number=False), [row.name for row in places]),
        (TableColumn("letters", number=False), [letters[row.name] for row in places]),
        *((TableColumn(name, 6), [row[place] for row in places]) for place, name in enumerate(columns, 1)),
    )
    return Figure(
        Forest(rows, "Student", about_scores, zero=None),
        loaded.header.experiment_id,
        numbers=[numbers],
        note=f"{panel}{about}",
    )


class _Place(NamedTuple):
    """A student's score with its limits."""

    name: str
    score: float
    lower: float
    upper: float


# Best first; (better, worse) told apart; what scores are; names of score and limits in the data.
_Ranking: TypeAlias = tuple[list[_Place], set[tuple[str, str]], str, tuple[str, ...]]


def _by_scores(loaded: LoadedRun) -> _Ranking | None:
    places = [
        _Place(row.student, row.fit, row.fit_lower or 0.0, 1.0 if row.fit_upper is None else row.fit_upper)
        for row in student_rows(loaded)
        if row.fit is not None
    ]
    pairs = student_pairs(loaded, by_datapoint(loaded)) if places else ()
    apart = {(pair.better, pair.worse) for pair in pairs if pair.significant}
    about, columns = "Score with its 95 % interval over items and judges", ("fit", "fit_lower", "fit_upper")
    return (places, apart, about, columns) if places else None


def _by_pairs(loaded: LoadedRun) -> _Ranking | None:
    report = pairs_report(loaded)
    rows = [row for row in report.rows if row.task == OVERALL and not row.attribute]
    places = [
        _Place(row.student, row.score, row.lower, row.upper)
        for row in rows
        if row.lower is not None and row.upper is not None
    ]
    about = "Score, and the 95 % interval of its lead on the mean"
    if not places or report.apart is None:
        return None
    return places, set(report.apart), about, ("score", "lower", "upper")


def letters_of(names: Sequence[str], apart: Collection[tuple[str, str]]) -> dict[str, str]:
    """Return letters by name: two names share one where they are not `apart` (Piepho 2004: insert and absorb)."""
    groups = [set(names)]
    for first, second in sorted(apart):
        split = []
        for group in groups:
            split += [group - {first}, group - {second}] if {first, second} <= group else [group]
        groups = [group for group in split if not any(group < wider for wider in split)]
        groups = [group for place, group in enumerate(groups) if group not in groups[:place]]
    groups.sort(key=lambda group: sorted(map(list(names).index, group)))
    return {name: "".join(_letter(place) for place, group in enumerate(groups) if name in group) for name in names}


def _letter(place: int) -> str:
    """Return a, b, ..., z, then a1, b1, ..."""
    return string.ascii_lowercase[place % 26] + (str(place // 26) if place >= 26 else "")


TABLES: Mapping[str, Callable[[LoadedRun, int], PaperTable]] = {
    "students": _students,
    "differences": _differences,
    "judges": _judges,
    "teachers": _teachers,
    "pairs": _pairs,
}
"""Name -> what makes the table."""
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


_LATEX_FORM = (r"\textbf{%s}", {"dagger": r"$^{\dagger}$", "star": "$^{*}$", "": ""}, r" {\scriptsize [%s, %s]}")
_MARKDOWN_FORM = ("**%s**", {"dagger": "†", "star": "\\*", "": ""}, " [%s, %s]")


def _set_cell(cell: Cell, text: str, digits: int, form: tuple[str, Mapping[str, str], str]) -> str:
    """Return a cell's text in a form: that of the best, that of each mark, and that of an interval."""
    best, marks, interval = form
    text = (best % text if cell.is_best else text) + marks[cell.mark]
    if cell.text and cell.lower is not None and cell.upper is not None:
        text += interval % (_number(cell.lower, digits), _number(cell.upper, digits))
    return text


def latex(table: PaperTable, digits: int = 3) -> str:
    """Return a table as LaTeX, for the package booktabs."""
    aligned = "l" + "".join("l" if head == "Biases found" else "r" for head in table.head[1:])
    head = " & ".join(map(_latex_text, table.head))
    rows = []
    for cells in table.rows:
        texts = []
        for cell in cells:
            text = _latex_text(cell.text)
            if re.match(r"-\d", cell.text):  # a hyphen in text is no minus
                text = text.replace("-", "$-$", 1)
            texts.append(_set_cell(cell, text, digits, _LATEX_FORM))
        rows.append(" & ".join(texts))
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{table.caption}}}", rf"\label{{tab:coeval-{table.name}}}"]
    lines += [rf"\begin{{tabular}}{{{aligned}}}", r"\toprule", rf"{head} \\", r"\midrule"]
    lines += [rf"{row} \\" for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _latex_text(text: str) -> str:
    """Return a text in one line as LaTeX shows it literally."""
    line = " ".join(printable(text).split())
    # What begins like this would be an argument of the `\\` that ends the row before.
    start, rest = (f"{{{line[0]}}}", line[1:]) if line[:1] in ("[", "*") else ("", line)
    return start + "".join(_LATEX.get(letter, letter) for letter in rest)


def markdown(table: PaperTable, digits: int = 3) -> str:
    """Return a table as Markdown, its caption below it."""
    lines = [f"| {' | '.join(map(markdown_text, table.head))} |", "|---|" + "---:|" * (len(table.head) - 1)]
    for cells in table.rows:
        texts = []
        for cell in cells:
            # Figures keep their sign, which is no mark of a list within a table.
            text = cell.text if re.fullmatch(r"[-+]?[\d.]+", cell.text) else markdown_text(cell.text)
            texts.append(_set_cell(cell, text, digits, _MARKDOWN_FORM))
        lines.append(f"| {' | '.join(texts)} |")
    caption = table.caption.replace("$\\dagger$", "†").replace("$*$", "\\*").replace("\\%", "%")
    return "\n".join([*lines, "", caption]) + "\n"


# Format -> what writes a table in it.
FORMATS: Mapping[str, Callable[[PaperTable, int], str]] = {"latex": latex, "md": markdown}
