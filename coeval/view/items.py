"""An item as its page shows it: prompt, reference, answers side by side, each judge's scores and rationale, flips.

Scores are those that the reports count. Texts stay in the files of the run: memory holds where the records of each item
lie, and a page reads its own.

Shapes: R records of one kind.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coeval.analysis.records import LEVEL_WORDS
from coeval.analysis.units import LoadedRun, codes_of, factor_weights
from coeval.analysis.verdicts import Preference, evaluation_of, text_of
from coeval.duplicates import text_in
from coeval.storage.records import (
    answer_mark,
    is_answer_to,
    is_failed,
    is_judgement_of,
    item_mark,
    placed_records,
    record_at,
)
from coeval.storage.run import RECORD_FOLDERS, Run
from p2l.common.report.tables import number_text

_MAX_CHARACTERS_OF_TEXT = 100_000  # that a page shows; the rest is in the file of the run
APART = 0.5  # distance of two judges' scores that pages point at: a level


@dataclass(frozen=True)
class _GradeView:
    """A judge's score of one factor."""

    factor: str
    text: str  # High, Medium or Low, else as the judge wrote it, or the number
    score: float
    others: str = ""  # what other judges gave that lies at least `APART` away
    gap: float = 0.0  # farthest that another judge's score lies


@dataclass(frozen=True)
class _JudgeView:
    """A judge's scores of an answer, with its rationale."""

    judge: str
    score: float | None  # weighted mean over factors; None where it has no score that counts
    grades: tuple[_GradeView, ...]
    rationale: str = ""
    note: str = ""  # why nothing counts
    is_self: bool = False


@dataclass(frozen=True)
class _AnswerView:
    """A student's answer."""

    student: str
    text: str
    score: float | None  # mean over judges
    judges: tuple[_JudgeView, ...]
    tokens: int | None = None
    note: str = ""  # why there is no answer

    @property
    def key(self) -> str:
        """Anchor of the answer on its page."""
        return answer_key(self.student)

    def by_judge(self, judge: str) -> _JudgeView | None:
        """Return a judge's view of the answer; None if there is none."""
        return next((view for view in self.judges if view.judge == judge), None)


ONE_ORDER = "seen in one order"


@dataclass(frozen=True)
class _VerdictView:
    """A judge's verdict on two answers, in each order in which it saw them."""

    judge: str
    model_a: str
    model_b: str
    winner: str
    orders: str  # its verdict in each order
    is_flip: bool
    rationale: str = ""


@dataclass(frozen=True)
class ItemView:
    """An item with its answers, scores and verdicts."""

    identity: str
    key: str
    task: str
    teacher: str
    attributes: Mapping[str, str]
    turns: tuple[tuple[str, str], ...]  # of the prompt: (role, text)
    reference: str
    answers: tuple[_AnswerView, ...]  # best first
    verdicts: tuple[_VerdictView, ...]
    source: Mapping[str, str] = field(default_factory=dict)

    @property
    def judges(self) -> list[str]:
        """Judges with scores, by name."""
        return sorted({view.judge for answer in self.answers for view in answer.judges if view.score is not None})

    @property
    def is_apart(self) -> bool:
        """Return whether two judges lie at least `APART` from each other."""
        return any(grade.others for answer in self.answers for judge in answer.judges for grade in judge.grades)

    def pairs(self) -> list[tuple[tuple[str, str], list[_VerdictView]]]:
        """Return the verdicts on each pair of answers."""
        groups: dict[tuple[str, str], list[_VerdictView]] = {}
        for verdict in self.verdicts:
            groups.setdefault((verdict.model_a, verdict.model_b), []).append(verdict)
        return list(groups.items())

    @property
    def flips(self) -> int:
        """Number of verdicts that changed with the order of the answers."""
        return sum(verdict.is_flip for verdict in self.verdicts)

    @property
    def in_both_orders(self) -> int:
        """Number of verdicts of judges that saw the answers in both orders."""
        return sum(verdict.orders != ONE_ORDER for verdict in self.verdicts)

    def preferred(self) -> tuple[str, int, int] | None:
        """Return the student whose answer wins the largest share of its verdicts, its wins and verdicts."""
        wins: Counter[str] = Counter(verdict.winner for verdict in self.verdicts)
        met = Counter(name for verdict in self.verdicts for name in (verdict.model_a, verdict.model_b))
        ranked = sorted(met, key=lambda name: (-wins[name] / met[name], name))
        return (ranked[0], wins[ranked[0]], met[ranked[0]]) if ranked else None


def item_key(identity: str) -> str:
    """Return the name of an item's page: the same for the same id, whatever characters that holds."""
    return hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def answer_key(student: str) -> str:
    """Return the anchor of a student's answer."""
    return f"a-{item_key(student)[:8]}"


def judge_key(student: str, judge: str) -> str:
    """Return the anchor of what a judge says of a student's answer."""
    return f"j-{item_key(f'{student}/{judge}')[:12]}"


# Where records lie.


@dataclass(frozen=True)
class _Places:
    """Places of all records of one kind, by item."""

    kind: str
    paths: tuple[Path, ...]
    item: npt.NDArray[np.int64]  # (R,), sorted
    path: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]

    @classmethod
    def of(cls, run: Run, kind: str, code: Mapping[str, int]) -> _Places:
        """Find the records of one kind in a run; `code` is that of each item."""
        paths = tuple(run.record_files(kind))
        places = [
            (code[item], number, offset)
            for number, path in enumerate(paths)
            for offset, record in placed_records(path)
            if (item := _item_of(kind, record)) in code
        ]
        table = np.array(places, dtype=np.int64).reshape(-1, 3)
        table = table[np.argsort(table[:, 0], kind="stable")]
        return cls(kind, paths, table[:, 0], table[:, 1], table[:, 2])

    def read(self, item: int, identity: str) -> Iterator[dict[str, Any]]:
        """Yield the records of an item in the order of their files; those that were moved by now are left out."""
        first, last = np.searchsorted(self.item, [item, item + 1]).tolist()
        for path, offset in zip(self.path[first:last].tolist(), self.offset[first:last].tolist(), strict=True):
            record = record_at(self.paths[path], offset)
            if record is not None and _item_of(self.kind, record) == identity:
                yield record


def _item_of(kind: str, record: Mapping[str, Any]) -> str:
    """Return the id of the item that a record is of."""
    identity = text_of(record, "id")
    if kind == "data_generation":
        return identity
    if kind == "evaluation":
        identity, _ = evaluation_of(record)
    return text_of(record, "datapoint_id") or identity.rpartition("__")[0]


class RunItems:
    """The items of a run; reading one takes a read of each of its records."""

    def __init__(self, loaded: LoadedRun) -> None:
        """Find the records of every item."""
        self.loaded = loaded
        code = codes_of(loaded.datapoints)
        # Texts stay in the files: memory holds only where the records lie.
        self._places = {kind: _Places.of(loaded.run, kind, code) for kind in RECORD_FOLDERS}
        # Sorted by item, so that those of one item are found by bisection.
        self._units = np.argsort(loaded.units.datapoint, kind="stable")
        self._unit_items = loaded.units.datapoint[self._units]
        self._verdicts: dict[str, list[Preference]] = {}
        for verdict in loaded.verdicts:
            self._verdicts.setdefault(verdict.datapoint, []).append(verdict)

    def __len__(self) -> int:
        return len(self.loaded.datapoints)

    def prompt(self, item: int) -> str:
        """Return the text of an item's prompt; empty where it cannot be read any more."""
        return " ".join(text for _, text in _turns(self._record(item).get("prompt")))

    def verdicts(self, item: int) -> list[Preference]:
        """Return the verdicts on an item's answers that count."""
        return self._verdicts.get(self.loaded.datapoints[item], [])

    def read(self, item: int) -> ItemView:
        """Read an item with its answers, scores and verdicts."""
        loaded, record = self.loaded, self._record(item)
        identity = loaded.datapoints[item]
        rationales = {
            text_of(verdict, "id"): _cut(text_of(verdict, "rationale")) for verdict in self._records("pairwise", item)
        }
        return ItemView(
            identity=identity,
            key=item_key(identity),
            task=loaded.tasks[loaded.datapoint_task[item]],
            teacher=loaded.teachers[loaded.datapoint_teacher[item]],
            attributes=loaded.attributes[item],
            turns=tuple((role, _cut(text)) for role, text in _turns(record.get("prompt"))),
            reference=_cut(text_in(record.get("reference_response") or "")),
            answers=self._answers(item, record),
            verdicts=tuple(
                _VerdictView(
                    judge=verdict.judge,
                    model_a=verdict.model_a,
                    model_b=verdict.model_b,
                    winner=_winner(verdict, verdict.winner),
                    orders=_orders(verdict),
                    is_flip=is_flip(verdict),
                    rationale=rationales.get(
                        f"{identity}__{verdict.model_a}__vs__{verdict.model_b}__{verdict.judge}", ""
                    ),
                )
                for verdict in self.verdicts(item)
            ),
            source={key: text_in(record[key]) for key in ("source", "quotes", "benchmark_id") if record.get(key)},
        )

    def _records(self, kind: str, item: int) -> Iterator[dict[str, Any]]:
        return self._places[kind].read(item, self.loaded.datapoints[item])

    def _record(self, item: int) -> dict[str, Any]:
        """Return the last valid record of an item itself."""
        records = [record for record in self._records("data_generation", item) if not is_failed(record)]
        return records[-1] if records else {}

    def _answers(self, item: int, record: Mapping[str, Any]) -> tuple[_AnswerView, ...]:
        mark = item_mark(record)
        answers: dict[str, dict[str, Any]] = {}
        for answer in self._records("response_collection", item):
            student = text_of(answer, "student_model_id") or text_of(answer, "id").rpartition("__")[2]
            # A failure stands only where there is no answer; of several answers the last counts.
            is_better = student not in answers or is_failed(answers[student])
            if is_answer_to(answer, mark) and (is_better or not is_failed(answer)):
                answers[student] = answer
        judged = self._judged(item, record, answers)
        scores = self._scores(item)
        views = [_answer(student, answer, judged.get(student, {}), scores) for student, answer in answers.items()]
        return tuple(sorted(views, key=lambda view: (view.score is None, -(view.score or 0.0), view.student)))

    def _scores(self, item: int) -> dict[tuple[str, str], list[tuple[str, float, bool, float]]]:
        """Return (student, judge) -> (factor, score, whether it is a level, weight), of the scores that count."""
        loaded = self.loaded
        first, last = np.searchsorted(self._unit_items, [item, item + 1]).tolist()
        units = loaded.units.where(self._units[first:last])
        weights = factor_weights(loaded)
        scores: dict[tuple[str, str], list[tuple[str, float, bool, float]]] = {}
        for row in range(len(units)):
            task, student, judge, factor = (
                int(getattr(units, name)[row]) for name in ("task", "student", "judge", "factor")
            )
            score = (loaded.factors[factor], float(units.norm[row]), bool(units.is_level[row]), weights[task, factor])
            scores.setdefault((loaded.students[student], loaded.judges[judge]), []).append(score)
        return scores

    def _judged(
        self, item: int, record: Mapping[str, Any], answers: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, dict[str, Mapping[str, Any]]]:
        """Return student -> judge -> the judge's last record of the present answer, failed or not."""
        mark, judged = item_mark(record), dict[str, dict[str, Mapping[str, Any]]]()
        marks = {text_of(answer, "id"): (student, answer_mark(answer)) for student, answer in answers.items()}
        for evaluation in self._records("evaluation", item):
            response, judge = evaluation_of(evaluation)
            if response not in marks:
                continue
            student, answer = marks[response]
            by_judge = judged.setdefault(student, {})
            # A failure says why there is no score, but takes none away that came before.
            if is_failed(evaluation):
                by_judge.setdefault(judge, evaluation)
            elif is_judgement_of(evaluation, mark, [answer]):
                by_judge[judge] = evaluation
        return judged


def _orders(verdict: Preference) -> str:
    """Return the winners that a judge named in each order in which it saw two answers."""
    winners = verdict.verdicts
    if len(winners) < 2:
        return ONE_ORDER
    if winners[0] == winners[1]:
        return "in both orders"
    if is_flip(verdict):
        return f"the answer shown {'first' if winners[0] == 'model_a' else 'second'} wins"
    shown = zip((verdict.model_a, verdict.model_b), winners, strict=False)
    return "; ".join(f"{first} first: {_winner(verdict, winner)}" for first, winner in shown)


def is_flip(verdict: Preference) -> bool:
    """Return whether the other answer won once the order was turned."""
    return {*verdict.verdicts} == {"model_a", "model_b"}


def _winner(verdict: Preference, winner: str) -> str:
    """Return the name of the winner, or what a tie is called."""
    names = {"model_a": verdict.model_a, "model_b": verdict.model_b, "tie (bothbad)": "both bad"}
    return names.get(winner, winner)


def _answer(
    student: str,
    record: Mapping[str, Any],
    judged: Mapping[str, Mapping[str, Any]],
    scores: Mapping[tuple[str, str], list[tuple[str, float, bool, float]]],
) -> _AnswerView:
    mine = {judge: grades for (name, judge), grades in scores.items() if name == student}
    judges = tuple(_judge(student, judge, judged.get(judge, {}), mine) for judge in sorted({*mine, *judged}))
    tokens = record.get("token_count")
    means = [view.score for view in judges if view.score is not None]
    note = f"No answer: {text_of(record, 'error') or 'the call failed'}" if is_failed(record) else ""
    return _AnswerView(
        student=student,
        text="" if note else _cut(text_in(record.get("response") or "")),
        score=sum(means) / len(means) if means else None,
        judges=judges,
        tokens=tokens if isinstance(tokens, int) else None,
        note=_cut(note),
    )


def _judge(
    student: str, judge: str, record: Mapping[str, Any], scores: Mapping[str, list[tuple[str, float, bool, float]]]
) -> _JudgeView:
    grades = scores.get(judge, [])
    words = record.get("grades")
    words = words if isinstance(words, dict) else {}
    note = ""
    if not grades:
        failed = f"No scores: {text_of(record, 'error') or 'the call failed'}"
        note = failed if is_failed(record) else "Its scores do not count: a factor is missing, or has no grade."
    peers = [(name, *grade) for name, given in scores.items() if name != judge for grade in given]
    views = []
    for factor, score, is_level, _ in grades:
        far, gap = [], 0.0
        for name, peer_factor, peer_score, peer_is_level, _ in peers:
            if peer_factor != factor:
                continue
            gap = max(gap, abs(peer_score - score))
            if abs(peer_score - score) >= APART:
                far.append(f"{name} {_score_text(peer_score, peer_is_level)}")
        text = str(words.get(factor, _score_text(score, is_level)))
        views.append(_GradeView(factor, text, score, ", ".join(far), gap))
    total = sum(weight for *_, weight in grades)  # 0 where the rubric gives none of these factors a weight
    return _JudgeView(
        judge=judge,
        score=sum(score * weight for _, score, _, weight in grades) / total if total else None,
        grades=tuple(views),
        rationale=_cut(text_of(record, "rationale")),
        note=_cut(note),
        is_self=judge == student,
    )


def _score_text(score: float, is_level: bool) -> str:
    return LEVEL_WORDS[score] if is_level else number_text(score, 2)


def _turns(prompt: object) -> list[tuple[str, str]]:
    """Return the turns of a prompt as (role, text); the role of a prompt of one text is empty."""
    if isinstance(prompt, list):
        return [
            (text_of(turn, "role"), text_in(turn.get("content", ""))) if isinstance(turn, dict) else ("", text_in(turn))
            for turn in prompt
        ]
    return [] if prompt is None else [("", text_in(prompt))]


def _cut(text: str) -> str:
    """Return the first characters of a text, and how many more there are."""
    more = len(text) - _MAX_CHARACTERS_OF_TEXT
    if more <= 0:
        return text
    return f"{text[:_MAX_CHARACTERS_OF_TEXT]}\n\n[{more:,} more characters are in the file of the run]"
