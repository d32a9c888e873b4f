"""Scores that people gave: a file of rows, CSV or JSON lines, which of them can be used, and which to ask for next.

A row names an answer (`response_id`, or `datapoint_id` and `student`), a `factor`, a `score` and perhaps an
`annotator`. A score is a level, a grade of the task's scale, or where the scale is that of levels a number from 0 to 1.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from coeval.analysis.panel import Mask, score_table
from coeval.analysis.records import LEVELS, Skipped, Skips
from coeval.analysis.statistics import Codes, Floats, jackknife, mid_ranks
from coeval.analysis.tables import ItemCount, Shown, StudentName, estimated
from coeval.analysis.units import ArrayTable, LoadedRun, codes_of, column
from coeval.errors import RunInputError
from coeval.parsing import MalformedAnswerError
from coeval.schema import scale_in
from coeval.storage.records import is_failed
from coeval.storage.run import entries_of, stored_config
from p2l.common.cli import counted
from p2l.common.files import bounded_lines, parse_json
from p2l.common.spreadsheets import CellReader

WHY = {
    "NO_RECORD": "is not a JSON object",
    "MISSING_FIELD": "lacks response_id (or datapoint_id and student), factor or score",
    "UNKNOWN_RESPONSE": "names an answer that the run does not have",
    "UNKNOWN_FACTOR": "names a factor that no judge scored in the task",
    "INVALID_SCORE": "has a score that is neither a level nor a number of the scale",
    "DUPLICATE": "is a second one of the same annotator, answer and factor: the last counts",
}
"""Code -> what is wrong with a row."""
_ANYBODY = "people"


@dataclass(frozen=True)
class Annotations:
    """Scores (A,)."""

    response: Codes
    factor: Codes
    annotator: Codes
    score: Floats  # in [0, 1]
    annotators: tuple[str, ...]
    rows: int  # of the file
    bad: tuple[Skipped, ...]

    def __len__(self) -> int:
        return len(self.score)


def no_annotations() -> Annotations:
    """Return none, where people have scored nothing yet."""
    none = np.zeros(0, dtype=np.int64)
    return Annotations(none, none, none, score=np.zeros(0), annotators=(), rows=0, bad=())


def read_annotations(path: Path, loaded: LoadedRun) -> Annotations:
    """Read a .csv, .jsonl or .ndjson file. Raise RunInputError if it cannot be read, or no row of it can be used."""
    reader = _Reader(loaded)
    rows = 0
    for place, row in _rows(path):
        rows += 1
        reader.read(f"{path.name}:{place}", row)
    bad = reader.skips.rows()
    if not reader.scores:
        first = f": {bad[0].count} {WHY[bad[0].code]}, such as {bad[0].example}" if bad else ""
        none = f"none of {counted(rows, 'row')} can be used" if rows else "holds no rows"
        raise RunInputError(f"{path}: {none}{first}")
    keys = sorted(reader.scores)
    annotators = tuple(sorted({annotator for _, _, annotator in keys}))
    codes = codes_of(annotators)
    return Annotations(
        response=column(response for response, _, _ in keys),
        factor=column(factor for _, factor, _ in keys),
        annotator=column(codes[name] for _, _, name in keys),
        score=np.array([reader.scores[key] for key in keys]),
        annotators=annotators,
        rows=rows,
        bad=bad,
    )


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    """Yield line and row; the row is None where the line is not a JSON object."""
    kind = path.suffix.lower()
    if kind not in (".csv", ".jsonl", ".ndjson"):
        raise RunInputError(f"--annotations {path}: must end in .csv or .jsonl")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if kind == ".csv":
                reader = CellReader(file)
                names = set(reader.names)
                missing = [name for name in ("factor", "score") if name not in names]
                if "response_id" not in names and not {"datapoint_id", "student"} <= names:
                    missing = ["response_id (or datapoint_id and student)", *missing]
                if missing:
                    lacking = f"has no column {', '.join(missing)}; its first line must name them"
                    raise RunInputError(f"--annotations {path}: {lacking}")
                yield from ((reader.line, row) for row in reader)
                return
        with path.open("rb") as lines:
            for number, (line, _) in enumerate(bounded_lines(lines), 1):
                if line and not line.strip():
                    continue
                value = None  # the line is no JSON, or too long to be read
                with contextlib.suppress(ValueError):
                    value = parse_json(line.removeprefix(codecs.BOM_UTF8))
                yield number, value if isinstance(value, dict) else None
    except UnicodeDecodeError as error:
        raise RunInputError(f"--annotations {path}: is not text in UTF-8; save it in that encoding") from error
    except (OSError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise RunInputError(f"--annotations {path}: cannot be read: {why}") from error


class _Reader:
    """Reads rows one by one."""

    def __init__(self, loaded: LoadedRun) -> None:
        self.scores: dict[tuple[int, int, str], float] = {}
        self.skips = Skips()
        self._loaded = loaded
        self._responses = codes_of(loaded.responses)
        self._factors = codes_of(loaded.factors)
        scales = {str(task.get("name")): scale_in(task) for task in entries_of(stored_config(loaded.run), "tasks")}
        self._scales = {name: scale for name, scale in scales.items() if not scale.is_default}
        scored = np.unique(np.stack([loaded.units.task, loaded.units.factor]), axis=1)
        self._scored = set(zip(*scored.tolist(), strict=True))

    def read(self, place: str, row: Mapping[str, Any] | None) -> None:
        """Keep a row's score, or note what is wrong with it."""
        if row is None:  # the line is not a JSON object
            return self.skips.note("NO_RECORD", place)
        answer, factor, score = _text(row, "response_id"), _text(row, "factor"), row.get("score")
        datapoint, student = _text(row, "datapoint_id"), _text(row, "student") or _text(row, "student_model_id")
        answer = answer or (f"{datapoint}__{student}" if datapoint and student else "")
        if not answer or not factor or score is None or str(score).strip() == "":
            return self.skips.note("MISSING_FIELD", place)
        response = self._responses.get(answer, -1)
        point = self._loaded.response_datapoint[response] if response >= 0 else -1
        if point < 0:
            return self.skips.note("UNKNOWN_RESPONSE", f"{place} ({answer})")
        task = int(self._loaded.datapoint_task[point])
        if (task, self._factors.get(factor, -1)) not in self._scored:
            return self.skips.note("UNKNOWN_FACTOR", f"{place} ({factor})")
        value = self._score(self._loaded.tasks[task], score)
        if value is None:
            return self.skips.note("INVALID_SCORE", f"{place} ({score})")
        key = (response, self._factors[factor], _text(row, "annotator") or _ANYBODY)
        if key in self.scores:
            self.skips.note("DUPLICATE", place)
        self.scores[key] = value
        return None

    def _score(self, task: str, text: Any) -> float | None:
        """Return a score in [0, 1], or None where it is not on the task's scale."""
        scale = self._scales.get(task)
        if scale is not None:
            try:
                return scale.value(scale.read(text))
            except MalformedAnswerError:
                return None
        level = LEVELS.get(str(text).strip().lower())
        if level is not None:
            return level
        try:
            # JSON's true is not a score, though Python takes it for 1.
            value = float("nan" if isinstance(text, bool) else text)
        except (TypeError, ValueError, OverflowError):
            return None
        return value if 0.0 <= value <= 1.0 else None


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return "" if value is None else str(value).strip()


# Agreement of judges with people, and of people with each other.
#
# Each row is a rater's score beside one person's score of the same (answer, factor), so that judges and people can be
# compared: no judge can be expected to agree with people more than they do with each other. Limits draw whole items;
# ranks are those of all rows. Shapes: N rows, R replicates, V distinct scores.

_PEOPLE = "people"
_MAX_GRADES = 101  # of a scale; scores with more values are measurements, of which kappa says nothing


@dataclass(frozen=True)
class PeopleAgreement:
    """A rater beside people."""

    rater: str
    kind: str  # judge, annotator (beside the others), or people: all of them among themselves, the ceiling
    dimension: Annotated[str, Shown("of")]  # all, task or factor
    value: str
    rows: Annotated[int, Shown("comparisons")]
    answers: int  # pairs of answer and factor
    datapoints: ItemCount
    equal: Annotated[float | None, estimated("equal", "share of equal scores", "equal_")]
    equal_lower: float | None
    equal_upper: float | None
    weighted: Annotated[float | None, estimated("weighted", "mean of 1 - |difference|", "weighted_")]
    weighted_lower: float | None
    weighted_upper: float | None
    # None where scores are not of a scale, or never vary.
    kappa: Annotated[float | None, estimated("kappa", "of equal scores, less what chance brings", "kappa_")]
    kappa_lower: float | None
    kappa_upper: float | None
    spearman: Annotated[float | None, estimated("spearman", "correlation of ranks", "spearman_")]
    spearman_lower: float | None
    spearman_upper: float | None
    bias: Annotated[float | None, estimated("bias", "mean of the rater's score less people's", "bias_")]
    bias_lower: float | None
    bias_upper: float | None


_FIGURES = ("equal", "weighted", "kappa", "spearman", "bias")
_LOWER_BOUNDS = np.array([0.0, 0.0, -1.0, -1.0, -1.0])  # of these


@dataclass(frozen=True)
class _Rows(ArrayTable):
    """A rater's scores (N,), people's, and of what."""

    rater: Floats
    people: Floats
    pair: Codes
    datapoint: Codes
    cluster: Codes
    task: Codes
    factor: Codes


def agreement_rows(loaded: LoadedRun, annotations: Annotations) -> tuple[PeopleAgreement, ...]:
    """Compare judges, by name, and then people with people's scores, over all and by task and factor."""
    place = loaded.pair_places(annotations.response, annotations.factor)
    rows: list[PeopleAgreement] = []
    for code, judge in enumerate(loaded.judges):
        rated = place >= 0
        rated[rated] = ~np.isnan(loaded.pairs.scores[place[rated], code])
        chosen = np.flatnonzero(rated)
        if len(chosen):
            scores = loaded.pairs.scores[place[chosen], code]
            rows += _of(loaded, judge, "judge", _agreement_rows(loaded, annotations, scores, chosen))
    return (*rows, *_people(loaded, annotations))


def _agreement_rows(loaded: LoadedRun, annotations: Annotations, rater: Floats, chosen: Codes) -> _Rows:
    """Return a rater's scores beside those of some annotations."""
    response, factor = annotations.response[chosen], annotations.factor[chosen]
    point = loaded.response_datapoint[response]
    pair = loaded.pair_keys(response, factor)
    return _Rows(
        rater=rater,
        people=annotations.score[chosen],
        pair=pair,
        datapoint=point,
        cluster=loaded.clusters[point],
        task=loaded.datapoint_task[point],
        factor=factor,
    )


def _people(loaded: LoadedRun, annotations: Annotations) -> Iterator[PeopleAgreement]:
    """Yield how far annotators agree with each other, each of them and all together."""
    # Every two annotations of one (response, factor), by which they are sorted, both ways round.
    starts = np.flatnonzero(np.diff(annotations.response, prepend=-1) | np.diff(annotations.factor, prepend=-1))
    ends = [*starts[1:].tolist(), len(annotations)]
    if not len(annotations):
        return
    places = [pair for start, end in zip(starts, ends, strict=True) for pair in permutations(range(start, end), 2)]
    if not places:
        return
    rater, person = np.array(places, dtype=np.int64).T
    rows = _agreement_rows(loaded, annotations, annotations.score[rater], person)
    for code, name in enumerate(annotations.annotators):
        mine = np.flatnonzero(annotations.annotator[rater] == code)
        if len(mine):
            yield _row(name, "annotator", ("all", ""), rows.where(mine))
    yield from _of(loaded, _PEOPLE, _PEOPLE, rows)


def _of(loaded: LoadedRun, rater: str, kind: str, rows: _Rows) -> Iterator[PeopleAgreement]:
    yield _row(rater, kind, ("all", ""), rows)
    for dimension in ("task", "factor"):
        codes, names = getattr(rows, dimension), loaded.names(dimension)
        for code in np.unique(codes).tolist():
            yield _row(rater, kind, (dimension, names[code]), rows.where(np.flatnonzero(codes == code)))


def _row(rater: str, kind: str, place: tuple[str, str], rows: _Rows) -> PeopleAgreement:
    columns = _columns(rows)
    figures = _figures(columns.sum(axis=0)[None])[0]
    drawn = jackknife(rows.cluster, columns, _figures)
    lower, upper = np.maximum(drawn.lower, _LOWER_BOUNDS), np.minimum(drawn.upper, 1.0)
    sure = len(np.unique(rows.cluster)) > 1  # one prompt says nothing of others
    numbers: dict[str, float | None] = {}
    for number, name in enumerate(_FIGURES):
        is_defined = bool(np.isfinite(figures[number]))
        numbers[name] = float(figures[number]) if is_defined else None
        numbers[f"{name}_lower"] = float(lower[number]) if is_defined and sure else None
        numbers[f"{name}_upper"] = float(upper[number]) if is_defined and sure else None
    dimension, value = place
    return PeopleAgreement(
        rater=rater,
        kind=kind,
        dimension=dimension,
        value=value,
        rows=len(rows.pair),
        answers=len(np.unique(rows.pair)),
        datapoints=len(np.unique(rows.datapoint)),
        **numbers,
    )


def _columns(rows: _Rows) -> Floats:
    """Return the columns, (N, 9 + 2 V), whose sums over rows all figures are computed from."""
    x, y = rows.rater, rows.people
    rank_x, rank_y = (mid_ranks(values) / len(x) - 0.5 for values in (x, y))
    grades = np.unique(np.round(np.concatenate([x, y]), 6))
    if len(grades) > _MAX_GRADES:
        grades = grades[:0]
    shares = [np.round(values, 6)[:, None] == grades for values in (x, y)]
    sums = [
        np.ones(len(x)),
        np.abs(x - y) < 1e-6,
        1.0 - np.abs(x - y),
        x - y,
        rank_x,
        rank_y,
        rank_x**2,
        rank_y**2,
        rank_x * rank_y,
    ]
    return np.concatenate([np.stack(sums, axis=1), *shares], axis=1).astype(np.float64)


def _figures(sums: Floats) -> Floats:
    """Compute equal, weighted, kappa, spearman and bias (R, 5) from sums (R, 9 + 2 V)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        n = sums[:, 0]
        equal, weighted, bias, rank_x, rank_y, square_x, square_y, product = (sums[:, 1:9] / n[:, None]).T
        shares = (sums[:, 9:] / n[:, None]).reshape(len(sums), 2, -1)
        chance = (shares[:, 0] * shares[:, 1]).sum(axis=1)
        varies = (chance < 1.0 - 1e-9) & (shares.shape[2] > 0)
        kappa = np.where(varies, (equal - chance) / (1.0 - chance), np.nan)
        spread = (square_x - rank_x**2) * (square_y - rank_y**2)
        covariance = product - rank_x * rank_y
        spearman = np.where(spread > 1e-12, covariance / np.sqrt(np.maximum(spread, 1e-12)), np.nan)
    return np.stack([equal, weighted, kappa, spearman, bias], axis=1)


# Which answers people should score next, with what they need to read for it.
#
# Shapes: R answers, S students.

_NEXT_ANSWERS = 20


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
    for _ in range(_NEXT_ANSWERS):
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
            prompts[record["id"]] = _shown(record.get("prompt"))
    for record in loaded.run.read("response_collection"):
        if record.get("id") in answers and not is_failed(record):
            texts[record["id"]] = (_shown(record.get("response")), str(record.get("datapoint_id")))
    for row in rows:
        response, item = texts.get(row.response_id, ("", ""))
        yield replace(row, prompt=prompts.get(item, ""), response=response)


def _shown(value: object) -> str:
    """Return a text of a record; turns of a conversation as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
