"""The viewer of a run as files, each made when it is asked for, so that a run of any size opens at once.

    site = Site(load_run("runs/my-experiment"))
    site.read("index.html")         # what `coeval view --run` sends
    site.write("public/viewer")     # what `coeval view --bundle` writes: the same files, all of them

`index.html` is the ranking, `items.html`, `items-2.html` and so on list the items, `item/KEY.html` is one of them. For
filters and search a script reads `data/run.json` (names), `data/items-N.json` (scores by student and judge) and
`data/texts-N.json` (what search looks through); all else can be read without it.

The score of an answer is the mean over its judges of each judge's mean, weighted by factor.

Shapes: P pairs (response, factor), J judges, S students, C cells (item, student, judge) with scores.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coeval.analysis.agreement import judge_rows
from coeval.analysis.statistics import Codes, Floats
from coeval.analysis.students import StudentCell, StudentReport, student_report
from coeval.analysis.units import LoadedRun, codes_of, score_weights
from coeval.pairs.board import OVERALL, PairsReport, pairs_report
from coeval.reports.findings import agreement_sentences, pairs, panel_sentences, ranking_sentences
from coeval.reports.pieces import frame
from coeval.view.items import APART, ItemView, RunItems, answer_key, is_flip, item_key, judge_key
from p2l.common.errors import InputError
from p2l.common.files import claimed
from p2l.common.pages import asset_content, asset_url, interval_svg, meta_policy
from p2l.common.report.tables import number_text, render

_LISTED = 50  # items of a page of the list
PART, TEXTS = 500, 50  # items of a file of scores, and of a file of texts
_SNIPPET_LETTERS = 240  # characters of a prompt in a list
_STUDENTS_LISTED = 8  # students whose scores a list shows where none is chosen: the first of the ranking
_ASSETS = ("page.css", "view.css", "view.js", "icon.svg", "LICENCES.txt")
_HTML, _JSON = "text/html; charset=utf-8", "application/json"


class File(NamedTuple):
    """A file of the site."""

    content: bytes
    media_type: str


@dataclass(frozen=True)
class Standing:
    """A line of the ranking."""

    rank: int
    student: str
    share: float
    lower: float | None
    upper: float | None
    text: str
    count: int


def _moved(rate: float, points: float) -> float:
    """Return a win rate whose odds are those of a score that is higher by so many points."""
    odds = max(rate, 1e-9) / max(1.0 - rate, 1e-9) * math.pow(10.0, points / 400.0)
    return odds / (1.0 + odds)


@dataclass(frozen=True)
class _Cells:
    """Scores by (item, student, judge), sorted by item; (C,) each."""

    item: Codes
    student: Codes
    judge: Codes
    mean: Floats
    gap: Floats  # farthest that another judge's score of one factor lies from this judge's


@dataclass(frozen=True)
class Row:
    """An item in a list; scores and gaps are in thousandths."""

    number: int
    key: str
    identity: str
    task: str
    teacher: str
    attributes: tuple[str, ...]
    prompt: str
    cells: tuple[tuple[int, int, int, int], ...]  # student, judge, score, gap
    verdicts: tuple[tuple[int, int, int, int], ...]  # student, student, judge, whether it flips

    @property
    def flips(self) -> int:
        """Verdicts that flip with the order of the answers."""
        return sum(flip for *_, flip in self.verdicts)

    @property
    def gap(self) -> float:
        """Largest distance of two judges."""
        return max((gap for *_, gap in self.cells), default=0) / 1000

    def scores(self) -> dict[int, float]:
        """Return the score of each student's answer."""
        by_student: dict[int, list[int]] = {}
        for student, _, score, _ in self.cells:
            by_student.setdefault(student, []).append(score)
        return {student: sum(scores) / len(scores) / 1000 for student, scores in by_student.items()}


class Site:
    """The files of the viewer of one run."""

    def __init__(self, loaded: LoadedRun) -> None:
        """Find the records of every item, and compute the ranking."""
        self.loaded = loaded
        self.items = RunItems(loaded)
        self._keys = [item_key(identity) for identity in loaded.datapoints]
        self._numbers = {key: number for number, key in enumerate(self._keys)}
        # Patterns, not paths: each page is made when it is asked for, and a run may have a hundred thousand items.
        self._pages: dict[re.Pattern[str], Callable[..., File | None]] = {
            re.compile(r"index\.html"): self._ranking_page,
            re.compile(r"items()\.html|items-(\d{1,9})\.html"): self._list_page,
            re.compile(r"item/([0-9a-f]{16})\.html"): self._item_page,
            re.compile(r"data/run\.json"): self._names,
            re.compile(r"data/items-(\d{1,9})\.json"): self._scores,
            re.compile(r"data/texts-(\d{1,9})\.json"): self._texts,
        }
        self._assets = {asset_url(name).removeprefix("/"): name for name in _ASSETS}

    def paths(self) -> Iterator[str]:
        """Yield the path of every file."""
        yield "index.html"
        yield from (_list_path(page) for page in range(1, self._list_pages + 1))
        yield from (f"item/{key}.html" for key in self._keys)
        yield "data/run.json"
        yield from (f"data/items-{part}.json" for part in range(_parts(len(self.items), PART)))
        yield from (f"data/texts-{part}.json" for part in range(_parts(len(self.items), TEXTS)))
        yield from self._assets

    def read(self, path: str) -> File | None:
        """Return the file at a path; None where there is none."""
        if path in self._assets:
            content, media_type = asset_content(self._assets[path])
            return File(content, media_type)
        for pattern, make in self._pages.items():
            match = pattern.fullmatch(path)
            if match:
                return make(*(part for part in match.groups() if part is not None))
        return None

    def write(self, folder: str | Path) -> int:
        """Write every file into a new folder, whole or not at all; return their bytes.

        Raise InputError if the folder is there already, or cannot be written.
        """
        size = 0
        with claimed(Path(folder)) as home:
            if home is None:
                raise InputError(f"{folder}: is there already; choose another folder, or remove it")
            for path in self.paths():
                file = self.read(path)
                assert file is not None
                target = home / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.content)
                size += len(file.content)
        return size

    def summary(self) -> str:
        """Return the run's id and what it holds, as one line."""
        header = self.loaded.header
        counts = ((header.units, "scores"), (header.verdicts, "verdicts on pairs"), (header.datapoints, "items"))
        return f"{header.experiment_id}: {', '.join(f'{count:,} {kind}' for count, kind in counts if count) or 'empty'}"

    # The ranking.

    @cached_property
    def report(self) -> StudentReport:
        """The report on students."""
        return student_report(self.loaded)

    @cached_property
    def _pairs(self) -> PairsReport | None:
        return pairs_report(self.loaded) if self.loaded.verdicts else None

    @cached_property
    def standings(self) -> list[Standing]:
        """The ranking by scores, else by verdicts on pairs; empty where there are neither."""
        if self.report.students:
            return [
                Standing(
                    rank=row.rank,
                    student=row.student,
                    share=row.mean if row.fit is None else row.fit,
                    lower=row.lower if row.fit is None else row.fit_lower,
                    upper=row.upper if row.fit is None else row.fit_upper,
                    text=number_text(row.mean if row.fit is None else row.fit, 3),
                    count=row.responses,
                )
                for row in self.report.students
            ]
        rows = self._pairs.rows if self._pairs is not None else ()
        return [
            Standing(
                rank=row.rank,
                student=row.student,
                share=row.win_rate,
                lower=None if row.lower is None else _moved(row.win_rate, row.lower - row.score),
                upper=None if row.upper is None else _moved(row.win_rate, row.upper - row.score),
                text=f"{row.win_rate:.0%}",
                count=row.votes,
            )
            for row in rows
            if row.task == OVERALL and not row.attribute
        ]

    def _shares(self) -> list[StudentCell]:
        """Return the share of pairs that each student wins by task, where verdicts on pairs make the ranking."""
        rows = () if self.report.students or self._pairs is None else self._pairs.rows
        return [
            StudentCell(
                student=row.student,
                dimension="task",
                value=row.task,
                mean=row.win_rate,
                lower=row.win_rate if row.lower is None else _moved(row.win_rate, row.lower - row.score),
                upper=row.win_rate if row.upper is None else _moved(row.win_rate, row.upper - row.score),
                units=row.votes,
            )
            for row in rows
            if row.task != OVERALL and not row.attribute
        ]

    def _ranking_page(self) -> File:
        header = self.loaded.header
        finding = [
            *ranking_sentences(self.report.students, self.report.pairs),
            *(panel_sentences(self.report.panel) if self.report.students else []),
            *agreement_sentences(self.report.reliability),
            *(pairs(self._pairs) if self._pairs is not None else []),
        ]
        grids = []
        for across in ("task", "judge", "attribute"):
            cells = [cell for cell in (*self.report.cells, *self._shares()) if cell.dimension == across]
            values = sorted({cell.value for cell in cells})
            if len(values) > 1:  # one value alone says no more than the ranking
                grids.append((across, values, {(cell.student, cell.value): cell for cell in cells}))
        return self._page(
            "coeval.view/index.html",
            ".",
            **frame(header, "Ranking", ""),
            finding=list(dict.fromkeys(finding))
            or ["No score and no verdict can be used yet: there is nothing to rank."],
            standings=self.standings,
            by_scores=bool(self.report.students),
            grids=grids,
            left_out=header.skipped,
            judges=[row for row in judge_rows(self.loaded) if row.units],
            interval_svg=interval_svg,
        )

    # The list of items, and the files of its script.

    @cached_property
    def _cells(self) -> _Cells:
        """Scores by item, student and judge."""
        loaded, units = self.loaded, self.loaded.units
        students, judges = max(len(loaded.students), 1), max(len(loaded.judges), 1)
        # One number for each (item, student, judge); sorted, these are sorted by item, as `rows` needs.
        code = (units.datapoint * students + units.student) * judges + units.judge
        codes, place = np.unique(code, return_inverse=True)
        weights = score_weights(loaded, units)
        weights = np.ones(len(units)) if weights is None else weights
        total = np.bincount(place, weights, minlength=len(codes))
        mean = np.bincount(place, weights * units.norm, minlength=len(codes)) / np.where(total > 0, total, 1.0)
        pairs = loaded.pairs
        scored = ~np.isnan(pairs.scores)
        low = np.where(scored, pairs.scores, np.inf).min(axis=1, initial=np.inf)[:, None]
        high = np.where(scored, pairs.scores, -np.inf).max(axis=1, initial=-np.inf)[:, None]
        row, judge = np.nonzero(scored)
        distance = np.maximum(pairs.scores - low, high - pairs.scores)[row, judge]
        gap = np.zeros(len(codes))
        owner = (pairs.datapoint[row] * students + pairs.student[row]) * judges + judge
        np.maximum.at(gap, np.searchsorted(codes, owner), distance)
        answer, judge = np.divmod(codes, judges)
        item, student = np.divmod(answer, students)
        return _Cells(item=item, student=student, judge=judge, mean=mean, gap=gap)

    def rows(self, first: int, last: int) -> list[Row]:
        """Return the items of these numbers, from `first` up to `last`, for a list."""
        loaded, cells = self.loaded, self._cells
        student, judge = self._codes["student"], self._codes["judge"]
        rows = []
        for number in range(first, min(last, len(self.items))):
            begin, end = np.searchsorted(cells.item, [number, number + 1]).tolist()
            # In thousandths, which take fewer bytes of a page than fractions.
            figures = (np.rint(1000 * column[begin:end]).astype(int) for column in (cells.mean, cells.gap))
            columns = (cells.student[begin:end], cells.judge[begin:end], *figures)
            prompt = " ".join(self.items.prompt(number)[: 4 * _SNIPPET_LETTERS].split())
            rows.append(
                Row(
                    number=number,
                    key=self._keys[number],
                    identity=loaded.datapoints[number],
                    task=loaded.tasks[loaded.datapoint_task[number]],
                    teacher=loaded.teachers[loaded.datapoint_teacher[number]],
                    attributes=tuple(f"{name}={value}" for name, value in sorted(loaded.attributes[number].items())),
                    prompt=prompt if len(prompt) <= _SNIPPET_LETTERS else f"{prompt[:_SNIPPET_LETTERS].rstrip()}…",
                    cells=tuple(zip(*(column.tolist() for column in columns), strict=True)),
                    verdicts=tuple(
                        (student[v.model_a], student[v.model_b], judge[v.judge], int(is_flip(v)))
                        for v in self.items.verdicts(number)
                    ),
                )
            )
        return rows

    @cached_property
    def _codes(self) -> Mapping[str, Mapping[str, int]]:
        """Dimension -> name -> its place."""
        return {name: codes_of(self.loaded.names(name)) for name in _CODED}

    @property
    def _list_pages(self) -> int:
        return max(1, _parts(len(self.items), _LISTED))

    def _list_page(self, page: str = "") -> File | None:
        number = int(page or 1)
        if not 1 <= number <= self._list_pages:
            return None
        first = _LISTED * (number - 1)
        return self._page(
            "coeval.view/items.html",
            ".",
            title=f"Items: {self.loaded.header.experiment_id}",
            finding=self._list_findings,
            rows=self.rows(first, first + _LISTED),
            first=first + 1,
            total=len(self.items),
            students=self._listed_students,
            student_names=self.loaded.students,
            page=number,
            pages=self._list_pages,
            path=_list_path,
            names={name: names for name in _CODED if len(names := self.loaded.names(name)) > 1},
        )

    @cached_property
    def _list_findings(self) -> list[str]:
        """Return on how many items the best student is first, judges are apart, and verdicts flip."""
        items, cells, loaded = len(self.items), self._cells, self.loaded
        best = self.standings[0].student if self.standings else None
        scored = len(np.unique(cells.item))
        sentences = []
        if scored and best is not None:
            students = len(loaded.students)
            answer, place = np.unique(cells.item * students + cells.student, return_inverse=True)
            score = np.bincount(place, cells.mean) / np.bincount(place)
            most = np.full(items, -np.inf)
            np.maximum.at(most, answer // students, score)
            # Sums of scores that are equal may differ by rounding: a tie counts as first.
            is_first = (answer % students == loaded.students.index(best)) & (score > most[answer // students] - 1e-9)
            apart = len(np.unique(cells.item[cells.gap >= APART]))
            sentences += [
                f"{best} has the best answer, alone or with others, to {is_first.sum():,} of {scored:,} items.",
                f"On {apart:,} of them two judges lie a level or more apart.",
            ]
        if loaded.verdicts:
            items_of_pairs, in_both, flips = (
                len({verdict.datapoint for verdict in loaded.verdicts if counts(verdict)})
                for counts in (lambda _: True, lambda verdict: len(verdict.verdicts) > 1, is_flip)
            )
            sentences.append(f"{items_of_pairs:,} items have verdicts on pairs.")
            if in_both:
                sentences.append(f"On {flips:,} of {in_both:,} items that were seen in both orders a verdict flips.")
        return sentences or [f"{items:,} items, none of which has been judged yet."]

    @property
    def _listed_students(self) -> list[int]:
        """The students that a list shows, in the order of the ranking."""
        return [self._codes["student"][line.student] for line in self.standings[:_STUDENTS_LISTED]]

    def _names(self) -> File:
        return _json(
            {
                "run": self.loaded.header.experiment_id,
                "items": len(self.items),
                "part": PART,
                "texts": TEXTS,
                "listed": _LISTED,
                "names": {name: self.loaded.names(name) for name in _CODED},
                "shown": self._listed_students,
                "anchors": [answer_key(student) for student in self.loaded.students],
            }
        )

    def _scores(self, part: str) -> File | None:
        """Return a file of items: key, task, teacher, attributes, prompt, scores and verdicts in runs of four."""
        first = PART * int(part)
        if first >= len(self.items):
            return None
        code = self._codes
        return _json(
            [
                [
                    row.key,
                    code["task"][row.task],
                    code["teacher"][row.teacher],
                    [code["attribute"][name] for name in row.attributes],
                    row.prompt,
                    [figure for cell in row.cells for figure in cell],
                    [figure for verdict in row.verdicts for figure in verdict],
                ]
                for row in self.rows(first, first + PART)
            ]
        )

    def _texts(self, part: str) -> File | None:
        """Return a file of texts: of each item its (anchor, what it is, text)."""
        first = TEXTS * int(part)
        if first >= len(self.items):
            return None
        return _json([list(_texts_of(self.items.read(n))) for n in range(first, min(first + TEXTS, len(self.items)))])

    # An item.

    def _item_page(self, key: str) -> File | None:
        number = self._numbers.get(key)
        if number is None:
            return None
        item = self.items.read(number)
        descriptions = self.loaded.header.factor_descriptions
        return self._page(
            "coeval.view/item.html",
            "..",
            title=f"{item.identity}: {self.loaded.header.experiment_id}",
            item=item,
            finding=_item_findings(item),
            around=[self._keys[n] if 0 <= n < len(self._keys) else None for n in (number - 1, number + 1)],
            place=f"{number + 1:,} of {len(self.items):,}",
            list_page=_list_path(number // _LISTED + 1),
            describe=lambda factor: descriptions.get(f"{item.task}/{factor}", ""),
        )

    def _page(self, template: str, up: str, **context: Any) -> File:
        text = render(
            template,
            asset=lambda name: up + asset_url(name),
            policy=meta_policy(),
            run=self.loaded.header.experiment_id,
            up=up,
            answer_key=answer_key,
            judge_key=judge_key,
            shade=shade,
            number=number_text,
            **context,
        )
        # Replies may hold a lone surrogate, which no file can hold.
        return File(text.encode("utf-8", "replace"), _HTML)


_CODED = ("task", "teacher", "attribute", "student", "judge")


def shade(score: float) -> str:
    """Return the class of a score's background, s0 to s10."""
    return f"s{round(10 * min(1.0, max(0.0, score)))}"


def _item_findings(item: ItemView) -> list[str]:
    """Return who answers best, where judges are farthest apart, and how many verdicts flip."""
    scored = [answer for answer in item.answers if answer.score is not None]
    sentences = []
    if scored:
        best, worst = scored[0], scored[-1]
        assert best.score is not None
        assert worst.score is not None
        text = f"{best.student} answers best, with {best.score:.2f}"
        sentences.append(f"{text}; {worst.student} scores {worst.score:.2f}." if len(scored) > 1 else f"{text}.")
    grades = [(answer, judge, grade) for answer in scored for judge in answer.judges for grade in judge.grades]
    answer, judge, grade = max(grades, key=lambda entry: entry[2].gap, default=(None, None, None))
    if answer is not None and judge is not None and grade is not None and grade.others:
        sentences.append(
            f"Judges are apart, most on {grade.factor} of the answer of {answer.student}: "
            f"{judge.judge} says {grade.text}, {grade.others}."
        )
    elif len(item.judges) > 1:
        sentences.append("No two judges are a level apart.")
    if (preferred := item.preferred()) is not None:
        name, wins, met = preferred
        sentences.append(f"{name} is preferred most, in {wins} of {met} verdicts on its answer.")
    if item.in_both_orders:
        sentences.append(f"{item.flips} of {item.in_both_orders} verdicts flip with the order of the answers.")
    return sentences or ["Nobody has judged the answers yet."]


def _texts_of(item: ItemView) -> Iterator[tuple[str, str, str]]:
    """Yield (anchor, what it is, text) of everything that is written on an item's page."""
    yield "prompt", "prompt", "\n".join(text for _, text in item.turns)
    if item.reference:
        yield "reference", "reference", item.reference
    for answer in item.answers:
        yield answer.key, f"answer of {answer.student}", answer.text or answer.note
        for judge in answer.judges:
            if judge.rationale:
                yield answer.key, f"{judge.judge} on {answer.student}", judge.rationale
    for verdict in item.verdicts:
        if verdict.rationale:
            yield "verdicts", f"{verdict.judge} on {verdict.model_a} and {verdict.model_b}", verdict.rationale


def _list_path(page: int) -> str:
    return "items.html" if page == 1 else f"items-{page}.html"


def _parts(items: int, size: int) -> int:
    return -(-items // size)


def _json(content: Any) -> File:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return File(text.encode("utf-8", "replace"), _JSON)
