"""Comparisons of two answers: the question in both orders, the verdict, and the schedule of pairs that a judge sees.

Shapes: M models, P pairs of models.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from coeval.analysis.verdicts import WINNERS
from coeval.judging.grading import grading_of, rationale_of
from coeval.judging.prompts import VERDICT_WORDS, render, reply_schema, rubric_text
from coeval.parsing import MalformedAnswerError, NoVerdictError, read_verdict, read_word, split_thoughts
from coeval.phases.asking import ATTEMPTS, drive, each_model, in_turn
from coeval.phases.mapping import is_kept
from coeval.phases.progress import Outcome, Stage
from coeval.phases.question import Kind, Question
from coeval.phases.responses import JudgedTask, judged_task
from coeval.schema import Model, Phase, Rubric, Task, description_of, required_factors
from coeval.storage.records import AnswerMark, ItemMark, OnBad, is_failed, is_judgement_of, judged, now, read_records

# One comparison. Which model is `model_a` is drawn, evenly and always alike for the same pair and item. Part `ab` shows
# its answer as A, part `ba` as B. Where the two verdicts differ it is a tie: one that depends on the order is none.

_PHASE: Phase = "evaluation"
_WORDS = dict(zip(VERDICT_WORDS, ("model_a", "model_b", "tie", "tie (bothbad)"), strict=True))
_SWAPPED = {"model_a": "model_b", "model_b": "model_a"}


def draw(*about: object) -> float:
    """Return a number in (0, 1) that depends on its arguments alone."""
    text = repr(about).encode("utf-8", "surrogatepass")
    return (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") + 0.5) / 2**64


def sides(student: str, rival: str, datapoint: str, seed: int) -> tuple[str, str]:
    """Return (model_a, model_b): the two models in an order drawn for this item."""
    first, second = sorted((student, rival))
    return (first, second) if draw(seed, datapoint, first, second) < 0.5 else (second, first)


def _pair_id(datapoint: str, model_a: str, model_b: str, judge: str) -> str:
    """Return the id of a verdict."""
    return f"{datapoint}__{model_a}__vs__{model_b}__{judge}"


def compare_question(
    task: Task,
    judge: Model,
    rubric: Mapping[str, Any],
    item: Mapping[str, Any],
    responses: tuple[Mapping[str, Any], Mapping[str, Any]],
    failures: Mapping[str, int],
    half: Mapping[str, str] | None = None,
) -> Question:
    """Return the question which of two answers to an item, of model_a and model_b, is better.

    `half` (part -> winner) is the verdict in one order that an earlier start received; that order is not asked again.
    """
    a, b = responses
    names = a["student_model_id"], b["student_model_id"]
    context = {
        "id": _pair_id(item["id"], *names, judge.name),
        "datapoint_id": item["id"],
        "task_id": task.name,
        "teacher_model_id": item["teacher_model_id"],
        "model_a": names[0],
        "model_b": names[1],
        "response_a_id": a["id"],
        "response_b_id": b["id"],
        "judge_model_id": judge.name,
        **grading_of(task),
        "judged": judged(item, a, b),
        "said": dict(half or {}),
    }
    prompts = {"ab": _prompt(task, judge, rubric, item, a["response"], b["response"])}
    if task.pairwise.both_orders:
        prompts["ba"] = _prompt(task, judge, rubric, item, b["response"], a["response"])
    prompts = {part: prompt for part, prompt in prompts.items() if part not in context["said"]} or prompts
    first = failures.get(context["id"], 0) * ATTEMPTS
    return Question(
        kind="pair",
        phase=_PHASE,
        role="judge",
        model=judge.name,
        task=task.name,
        context=context,
        prompts=prompts,
        schema=reply_schema(task, judge.name, "compare"),
        first_attempt=first,
    )


def _prompt(
    task: Task, judge: Model, rubric: Mapping[str, Any], item: Mapping[str, Any], first: str, second: str
) -> str:
    reference = str(item.get("reference_response") or "") if task.pairwise.reference else ""
    return render(
        task,
        judge.name,
        "compare",
        input=item["prompt"],
        reference_response=reference,
        response_a=first,
        response_b=second,
        rubric=rubric_text(rubric),
    )


class _Verdict(NamedTuple):
    """A judge's verdict in one order."""

    winner: str
    rationale: str
    thoughts: str


def _read(context: Mapping[str, Any], part: str, text: str) -> _Verdict:
    """Return the winner that a verdict names, with the rationale if one was asked for."""
    is_reasoned = bool(context.get("grading", {}).get("rationale"))
    words, rationale = tuple(_WORDS), ""
    verdict: object = text
    try:
        stated = read_verdict(text, ["verdict"], words, "winner")
        verdict = stated.grades["verdict"]
    except NoVerdictError:
        if is_reasoned:
            raise MalformedAnswerError('no JSON object with "rationale" and "verdict"') from None
    else:
        rationale = rationale_of(stated.whole) if is_reasoned else ""
    try:
        winner = _WORDS[read_word(str(verdict), words)]
    except MalformedAnswerError:
        if not is_reasoned:  # which must not be quoted
            raise
        raise MalformedAnswerError("the verdict is none of the four words") from None
    _, thoughts = split_thoughts(text)
    return _Verdict(_SWAPPED.get(winner, winner) if part == "ba" else winner, rationale, thoughts)


def combined(verdicts: Mapping[str, str]) -> tuple[str, bool | None]:
    """Return the winner by the verdicts in one or both orders, and whether both agree (None: there is one)."""
    winners = list(verdicts.values())
    if len(winners) == 1:
        return winners[0], None
    return (winners[0], True) if winners[0] == winners[1] else ("tie", False)


def _record(context: Mapping[str, Any], answers: Mapping[str, _Verdict], failures: Mapping[str, str]) -> dict[str, Any]:
    """Return the record of a pair; a failed one keeps a verdict in one order, which is not asked again."""
    stated = {key: entry for key, entry in context.items() if key not in ("said", "grading")}
    record: dict[str, Any] = {**stated, "winner": None, "source": "native", "margin": None, "order_consistent": None}
    winners = {**context.get("said", {}), **{part: verdict.winner for part, verdict in answers.items()}}
    if failures:
        why = "; ".join(dict.fromkeys(failures.values()))
        half = {"said": winners} if winners else {}
        return {**record, "created_at": now(), "status": "failed", "error": why, **half}
    ordered = {part: winners[part] for part in ("ab", "ba") if part in winners}
    record["winner"], record["order_consistent"] = combined(ordered)
    record |= {"verdicts": list(ordered.values()), "created_at": now()}
    for key in ("rationale", "thoughts"):
        texts = [f"{part}: {text}" for part in ordered if part in answers and (text := getattr(answers[part], key))]
        if texts:
            record[key] = "\n".join(texts)
    return record


KINDS = {"pair": Kind(_read, _record, "pairwise")}

Floats: TypeAlias = npt.NDArray[np.float64]
_Couple: TypeAlias = tuple[str, str]  # two models, by name
_MEETINGS_PER_NEW_ONE = 5  # a round has a fifth of the meetings before it, and one for each model at least
_PRIOR_SD = 2.0  # of ratings: one verdict must not make two models look far apart
_PRIOR_TIES = 0.5  # comparisons of each model with the average that count as made
_CODES = {"model_a": 0, "model_b": 1, "tie": 2, "tie (bothbad)": 3}


@dataclass(frozen=True, order=True)
class Meeting:
    """Two models, their names in order, and an item that both have answered."""

    datapoint: str
    first: str
    second: str


def meetings(answered: Mapping[str, Iterable[str]]) -> list[Meeting]:
    """Return all possible meetings, of item -> models that answered it."""
    return [
        Meeting(datapoint, first, second)
        for datapoint, models in answered.items()
        for first, second in itertools.combinations(sorted(models), 2)
    ]


class Schedule:
    """The meetings that one judge still has to see of the items of one teacher for one task."""

    def __init__(
        self, possible: Sequence[Meeting], earlier: Mapping[Meeting, str], limit: int | None, seed: int, judge: str = ""
    ) -> None:
        """Plan at most `limit` of the possible meetings in an order that depends on the seed.

        `earlier` has the winners so far, `model_a` standing for the first name. The judge's own answers come last.
        """
        self._judge = judge
        # A judge's verdicts on its own answers are worth least, so it sees them last.
        self._order = sorted(
            possible, key=lambda meeting: (judge in (meeting.first, meeting.second), draw(seed, "order", meeting))
        )
        current = set(possible)
        self._earlier = {meeting: winner for meeting, winner in earlier.items() if meeting in current}
        self._limit = len(possible) if limit is None else min(limit, len(possible))
        self.left = max(0, self._limit - len(self._earlier))  # meetings still to come

    def everything(self) -> list[Meeting]:
        """Return the meetings still to come, without regard to ratings."""
        return [meeting for meeting in self._order if meeting not in self._earlier][: self.left]

    def rounds(self) -> _Rounds:
        """Return the meetings still to come, round after round, the most informative first."""
        return _Rounds(self._order, self._earlier, self._limit, self._judge)


class _Rounds:
    """The rounds of an active schedule: `next()`, then `tell()` the verdicts."""

    def __init__(self, order: Sequence[Meeting], earlier: Mapping[Meeting, str], limit: int, judge: str) -> None:
        self._limit = limit
        self._judge = judge
        self._winners = dict(earlier)
        self._waiting: dict[_Couple, list[Meeting]] = {}
        for meeting in reversed(order):  # the next one stands last, for `pop`
            self._waiting.setdefault((meeting.first, meeting.second), []).append(meeting)
        self._models = sorted({name for couple in self._waiting for name in couple})
        self._counted: dict[Meeting, str] = {}  # of the winners, those of the rounds so far
        self._planned = 0

    def next(self) -> list[Meeting]:
        """Return the meetings of the next round without a verdict, skipping rounds that have all of theirs."""
        # A round depends on the seed and on the rounds before it alone, not on the budget: a run that is continued, or
        # has a larger budget, goes on as if it had been so from the start.
        while self._planned < self._limit:
            size = max(len(self._models), math.ceil(self._planned / _MEETINGS_PER_NEW_ONE))
            planned = self._plan(min(size, self._limit - self._planned))
            self._planned += len(planned)
            missing = [meeting for meeting in planned if meeting not in self._winners]
            self._counted.update({meeting: self._winners[meeting] for meeting in planned if meeting in self._winners})
            if missing:
                # Verdicts of an earlier configuration that no round plans count against the limit as well.
                return missing[: max(0, self._limit - len(self._winners))]
            if not planned:
                break
        return []

    def tell(self, winners: Mapping[Meeting, str]) -> None:
        """Take in the winners of the round."""
        self._winners.update(winners)
        self._counted.update(winners)

    def _plan(self, size: int) -> list[Meeting]:
        """Return the most informative meetings by the verdicts so far."""
        # A leaderboard is fitted to the verdicts of the rounds before; then pairs of models are taken one by one for
        # which another verdict tells most: p (1 - p) R, with p the chance that one beats the other and R the resistance
        # between them in the network of comparisons made and planned, so that 1/R counts comparisons of the two and
        # those by way of others. So close models meet most, and none is forgotten.
        couples = list(self._waiting)
        place = {name: number for number, name in enumerate(self._models)}
        first, second = (np.array([place[couple[side]] for couple in couples], dtype=np.int64) for side in (0, 1))
        ratings = _ratings(self._counted, self._models)
        chance = 1 / (1 + np.exp(ratings[second] - ratings[first]))
        close = np.maximum(chance * (1 - chance), 1e-6)  # even a clear pair may meet, if no other is left
        is_open = np.array([bool(self._waiting[couple]) for couple in couples], dtype=np.bool_)
        is_own = np.array([self._judge in couple for couple in couples], dtype=np.bool_)
        counts = Counter((place[meeting.first], place[meeting.second]) for meeting in self._counted)
        # The inverse (M, M) of the Laplacian of the comparisons made.
        laplacian = _PRIOR_TIES * np.eye(len(place))
        for (i, j), count in counts.items():
            laplacian[[i, j], [i, j]] += count
            laplacian[[i, j], [j, i]] -= count
        inverse = np.asarray(np.linalg.inv(laplacian))
        planned: list[Meeting] = []
        while len(planned) < size and is_open.any():
            spread = np.diag(inverse)
            worth = close * (spread[first] + spread[second] - 2 * inverse[first, second])
            others = is_open & ~is_own
            # Rounded, so that equal pairs are equal on every machine, in whatever order it adds up.
            worth = np.where(others if others.any() else is_open, worth.round(9), -1)
            best = int(np.argmax(worth))  # of equal ones the first, in an order that is drawn
            waiting = self._waiting[couples[best]]
            planned.append(waiting.pop())
            is_open[best] = bool(waiting)
            # One comparison more, by the Sherman-Morrison formula: no new inverse for each pair.
            i, j = first[best], second[best]
            column = inverse[:, i] - inverse[:, j]
            inverse -= np.outer(column, column) / (1 + column[i] - column[j])
        return planned


def _ratings(winners: Mapping[Meeting, str], models: Sequence[str]) -> Floats:
    """Fit Bradley-Terry coefficients (M,), a tie being half a win of each; zeros without verdicts."""
    from p2l.leaderboard import fit
    from p2l.leaderboard.newton import Prior

    if not winners:
        return np.zeros(len(models))
    place = {name: number for number, name in enumerate(models)}
    return fit(
        np.array([place[meeting.first] for meeting in winners]),
        np.array([place[meeting.second] for meeting in winners]),
        np.array([_CODES[winner] for winner in winners.values()]),
        models=models,
        likelihood="bt-tie",
        intervals=None,
        prior=Prior(sd=_PRIOR_SD),
    ).coefs


_IsCurrent: TypeAlias = Callable[[Mapping[str, Any]], bool]


@dataclass
class Verdicts:
    """The stored verdicts of one judge."""

    winners: dict[Meeting, str] = field(default_factory=dict)  # by meeting, `model_a` standing for the first name
    couples: set[_Couple] = field(default_factory=set)  # models that it compared on any item
    # Id of a failed verdict -> order that was answered -> winner.
    halves: dict[str, dict[str, str]] = field(default_factory=dict)


def read_verdicts(files: Iterable[Path], judge: str, is_current: _IsCurrent, on_bad: OnBad | None = None) -> Verdicts:
    """Read a judge's verdicts on the present answers (see `current_verdicts`); of several on a meeting the last."""
    verdicts = Verdicts()
    for record in (record for path in files for record in read_records(path, on_bad)):
        if record.get("judge_model_id") != judge or not is_current(record):
            continue
        if is_failed(record):
            half = record.get("said")
            if isinstance(half, dict) and all(winner in WINNERS for winner in half.values()):
                verdicts.halves[str(record.get("id"))] = half
        elif record.get("winner") in WINNERS:
            first, second = sorted(str(record.get(side)) for side in ("model_a", "model_b"))
            winner = str(record["winner"])
            is_in_order = first == str(record.get("model_a"))
            meeting = Meeting(str(record.get("datapoint_id")), first, second)
            verdicts.winners[meeting] = winner if is_in_order else _SWAPPED.get(winner, winner)
            verdicts.couples.add((first, second))
    return verdicts


def current_verdicts(items: Mapping[str, ItemMark], answers: Mapping[str, AnswerMark]) -> _IsCurrent:
    """Return a test whether a verdict is about present texts, by the marks of items and answers."""

    def is_current(record: Mapping[str, Any]) -> bool:
        datapoint = str(record.get("datapoint_id"))
        item = items.get(datapoint)
        a, b = (answers.get(f"{datapoint}__{record.get(side)}") for side in ("model_a", "model_b"))
        return item is not None and a is not None and b is not None and is_judgement_of(record, item, [a, b])

    return is_current


# Phase 5 in mode `pairwise`: every judge compares answers to the same item, as many pairs as the schedule has.


@dataclass
class _Comparison:
    """One judge's comparisons for one task."""

    stage: Stage
    judge: Model
    work: JudgedTask
    rubric: Rubric
    earlier: Verdicts

    def schedule(self, answered: Mapping[str, Iterable[str]]) -> Schedule:
        """Return the judge's schedule of the items of one teacher."""
        possible, earlier = meetings(answered), self.earlier
        if self.stage.modes[_PHASE] == "Model":
            possible = [
                meeting
                for meeting in possible
                if (meeting.first, meeting.second) not in earlier.couples or meeting in earlier.winners
            ]
        seed, limit = self.stage.config.experiment.seed, self.work.task.pairwise.pairs
        return Schedule(possible, earlier.winners, limit, seed, self.judge.name)

    async def ask_in_rounds(self, teacher: str, schedule: Schedule) -> Outcome:
        """Ask round after round, each planned by the verdicts of those before."""
        outcome, rounds, work = Outcome(), schedule.rounds(), self.work
        path = self.stage.run.records("pairwise", work.task.name, teacher, self.judge.name)
        is_current = current_verdicts(work.items.notes, work.responses.notes)
        while (planned := rounds.next()) and not outcome.stopped and not outcome.refused and self.stage.halted is None:
            outcome.add(await drive(self.stage, _PHASE, self.judge, self.questions(planned)))
            winners = read_verdicts([path], self.judge.name, is_current).winners
            rounds.tell({meeting: winners[meeting] for meeting in planned if meeting in winners})
        return outcome

    def _sides(self, meeting: Meeting) -> tuple[str, str]:
        return sides(meeting.first, meeting.second, meeting.datapoint, self.stage.config.experiment.seed)

    def has_failed(self, meeting: Meeting) -> bool:
        """Return whether this process has asked for the verdict in vain."""
        return _pair_id(meeting.datapoint, *self._sides(meeting), self.judge.name) in self.stage.failed

    def questions(self, planned: Iterable[Meeting]) -> Iterator[Question]:
        failures = self.stage.store.failures(_PHASE)
        for meeting in planned:
            datapoint = meeting.datapoint
            a, b = self._sides(meeting)
            item = self.work.items.get(datapoint)
            first, second = (self.work.responses.get(f"{datapoint}__{name}") for name in (a, b))
            if item is not None and first is not None and second is not None:
                half = self.earlier.halves.get(_pair_id(datapoint, a, b, self.judge.name))
                yield compare_question(self.work.task, self.judge, self.rubric, item, (first, second), failures, half)


async def compare_all(stage: Stage, tasks: Sequence[Task]) -> Outcome:
    """Collect the missing verdicts of tasks in mode `pairwise`. Raise RunError if a task has no rubric."""
    works = [judged_task(stage, task) for task in tasks if not is_kept(stage, "pairwise", task.name)]

    def work(judge: Model) -> Awaitable[Outcome]:
        return in_turn(_judge(stage, judge, part) for part in works if stage.halted is None)

    judges = [judge for judge in stage.models("judge") if not judge.is_virtual]
    # What is compared next depends on all verdicts so far where the schedule is active.
    by_item = all(task.pairwise.schedule == "all" for task in tasks)
    return await each_model(stage, _PHASE, judges, work, by_item=by_item)


async def _judge(stage: Stage, judge: Model, work: JudgedTask) -> Outcome:
    """Collect one judge's verdicts for one task."""
    rubric = {factor: description_of(work.rubric[factor]) for factor in required_factors(judge, work.task, work.rubric)}
    files = stage.run.record_files("pairwise", work.task.name, judge.name)
    is_current = current_verdicts(work.items.notes, work.responses.notes)
    earlier = read_verdicts(files, judge.name, is_current, stage.warn_bad_line)
    comparison = _Comparison(stage, judge, work, rubric, earlier)
    schedules = {teacher: comparison.schedule(answered) for teacher, answered in _answered(work).items()}
    if work.task.pairwise.schedule == "active":
        expected = sum(schedule.left for schedule in schedules.values())
        stage.progress.expect(expected)
        outcome = await in_turn(comparison.ask_in_rounds(teacher, schedule) for teacher, schedule in schedules.items())
    else:
        left = chain.from_iterable(schedule.everything() for schedule in schedules.values())
        planned = [meeting for meeting in left if not comparison.has_failed(meeting)]
        expected = len(planned)
        stage.progress.expect(expected)
        outcome = await drive(stage, _PHASE, judge, comparison.questions(planned))
    outcome.expected += expected
    return outcome


def _answered(work: JudgedTask) -> dict[str, dict[str, list[str]]]:
    """Return teacher -> item -> students that answered it."""
    answered: dict[str, dict[str, list[str]]] = {}
    for identity in work.responses:
        datapoint, _, student = identity.rpartition("__")
        if datapoint in work.items:
            teacher = datapoint.removeprefix(f"{work.task.name}__").partition("__")[0]
            answered.setdefault(teacher, {}).setdefault(datapoint, []).append(student)
    return answered
