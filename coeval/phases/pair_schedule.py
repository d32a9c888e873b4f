"""Which pairs a judge sees: all, or as many as it may, the closest first.

The active schedule works in rounds. Before each, a leaderboard is fitted to the verdicts of the rounds before; then
pairs of models are taken one by one for which another verdict tells most: p (1 - p) R, with p the chance that one beats
the other and R the resistance between them in the network of comparisons made and planned, so that 1/R counts
comparisons of the two and those by way of others. So close models meet most, and none is forgotten. A round depends on
the seed and on the rounds before it alone, not on the budget: a run that was stopped goes on as if it had not been, and
one with a larger budget as if it had been as large from the start. A judge that answers too sees its own answers last:
what it says of them is of least use.

Shapes: M models, P pairs of models.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from coeval.analysis.verdicts import WINNERS
from coeval.judging.grading import grading_of, split_rationale
from coeval.judging.prompts import render, rubric_text
from coeval.parsing import MalformedAnswerError, read_word
from coeval.phases.driving import ATTEMPTS
from coeval.phases.question import Kind, Question
from coeval.schema import Model, Phase, Task
from coeval.storage.jsonl import OnBad, read_records
from coeval.storage.records import AnswerMark, ItemMark, is_failed, is_judgement_of, judged, now
from coeval.storage.run import Run

# One comparison: the question in both orders, and what two verdicts come to.
#
# Which model is `model_a` is drawn, evenly and always alike for the same pair and item. Part `ab` shows its answer as
# A,
# part `ba` as B. Where the two verdicts are not the same it is a tie: what a judge says only because of the order is
# not
# said at all.

PHASE: Phase = "evaluation"
_WORDS = {"A": "model_a", "B": "model_b", "TIE": "tie", "BAD": "tie (bothbad)"}
_SWAPPED = {"model_a": "model_b", "model_b": "model_a"}
_AROUND = re.compile(r"^\W*(?:(?:verdict|answer|winner)\b\W*)?|\W+$", re.IGNORECASE)


def draw(*about: object) -> float:
    """A number in (0, 1) that depends on what it is about alone."""
    text = repr(about).encode("utf-8", "surrogatepass")
    return (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") + 0.5) / 2**64


def sides(one: str, other: str, datapoint: str, seed: int) -> tuple[str, str]:
    """(model_a, model_b): the two models in an order drawn for this item."""
    first, second = sorted((one, other))
    return (first, second) if draw(seed, datapoint, first, second) < 0.5 else (second, first)


def pair_id(datapoint: str, model_a: str, model_b: str, judge: str) -> str:
    """The id of a verdict."""
    return f"{datapoint}__{model_a}__vs__{model_b}__{judge}"


def compare_question(
    task: Task,
    judge: Model,
    rubric: Mapping[str, Any],
    item: Mapping[str, Any],
    responses: tuple[Mapping[str, Any], Mapping[str, Any]],
    failures: Mapping[str, int],
    said: Mapping[str, str] | None = None,
) -> Question:
    """The question which of two answers to an item is better, in the orders in which it was not answered yet.

    Args:
        task, judge, rubric, item: what is asked about, and who.
        responses: those of model_a and model_b.
        failures: id -> how often it was asked in vain.
        said: part -> winner, of an earlier start that had an answer in one order alone.
    """
    a, b = responses
    names = a["student_model_id"], b["student_model_id"]
    context = {
        "id": pair_id(item["id"], *names, judge.name),
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
        "said": dict(said or {}),
    }
    prompts = {"ab": _prompt(task, judge, rubric, item, a["response"], b["response"])}
    if task.pairwise.both_orders:
        prompts["ba"] = _prompt(task, judge, rubric, item, b["response"], a["response"])
    prompts = {part: prompt for part, prompt in prompts.items() if part not in context["said"]} or prompts
    first = failures.get(context["id"], 0) * ATTEMPTS
    return Question("pair", PHASE, "judge", judge.name, task.name, context, prompts, first)


def _prompt(
    task: Task, judge: Model, rubric: Mapping[str, Any], item: Mapping[str, Any], first: str, second: str
) -> str:
    reference = str(item.get("reference_response") or "") if task.pairwise.reference else ""
    block = f"\nReference answer:\n<reference>\n{reference}\n</reference>\n" if reference else ""
    return render(
        task,
        judge.name,
        "compare",
        input=item["prompt"],
        reference_block=block,
        reference_response=reference,
        response_a=first,
        response_b=second,
        rubric=rubric_text(rubric),
    )


class _Verdict(NamedTuple):
    """What a judge says of the answers in one order."""

    winner: str
    rationale: str


def _read(context: Mapping[str, Any], part: str, text: str) -> _Verdict:
    """The winner that one verdict names, with the rationale if one was asked for.

    Raises:
        MalformedAnswerError: it is none of the four words.
    """
    rationale, said = split_rationale(text, "verdict") if context.get("grading") else ("", text)
    try:
        winner = _winner(str(said))
    except MalformedAnswerError:
        if not rationale:
            raise
        raise MalformedAnswerError("the verdict is none of the four words") from None
    return _Verdict(_SWAPPED.get(winner, winner) if part == "ba" else winner, rationale)


def _winner(text: str) -> str:
    said = _AROUND.sub("", text.rpartition("</think>")[2].strip())
    return _WORDS[read_word(said or text, tuple(_WORDS))]


def combined(verdicts: Mapping[str, str]) -> tuple[str, bool | None]:
    """The winner by the verdicts of one or both orders, and whether both say the same (None: there is one)."""
    said = list(verdicts.values())
    if len(said) == 1:
        return said[0], None
    return (said[0], True) if said[0] == said[1] else ("tie", False)


def _record(context: Mapping[str, Any], values: Mapping[str, _Verdict], failures: Mapping[str, str]) -> dict[str, Any]:
    """A verdict; failed where an order has none, but with what was said in the other, so that it is not asked again."""
    stated = {key: value for key, value in context.items() if key not in ("said", "grading")}
    record: dict[str, Any] = {**stated, "winner": None, "source": "native", "margin": None, "order_consistent": None}
    found = {**context.get("said", {}), **{part: verdict.winner for part, verdict in values.items()}}
    if failures:
        why = "; ".join(dict.fromkeys(failures.values()))
        half = {"said": found} if found else {}
        return {**record, "created_at": now(), "status": "failed", "error": why, **half}
    ordered = {part: found[part] for part in ("ab", "ba") if part in found}
    record["winner"], record["order_consistent"] = combined(ordered)
    whys = [f"{part}: {values[part].rationale}" for part in ordered if part in values and values[part].rationale]
    rationale = {"rationale": "\n".join(whys)} if whys else {}
    return {**record, "verdicts": list(ordered.values()), "created_at": now(), **rationale}


def _path(run: Run, context: Mapping[str, Any]) -> Path:
    return run.pairs(context["task_id"], context["teacher_model_id"], context["judge_model_id"])


KINDS = {"pair": Kind(_read, _record, _path)}

Floats: TypeAlias = npt.NDArray[np.float64]
Couple: TypeAlias = tuple[str, str]
"""Two models, by name."""
_GROWTH = 5  # a round is as large as all before it by this, and of one meeting for each model at least
_PRIOR_SD = 2.0  # of ratings: one verdict must not make two models look far apart
_PRIOR_TIES = 0.5  # comparisons of each model with the average that count as made
_CODES = {"model_a": 0, "model_b": 1, "tie": 2, "tie (bothbad)": 3}


@dataclass(frozen=True, order=True)
class Meeting:
    """Two models and an item that both have answered; their names are in order."""

    datapoint: str
    first: str
    second: str


def meetings(answered: Mapping[str, Iterable[str]]) -> list[Meeting]:
    """All there can be, of item -> models that answered it."""
    return [
        Meeting(datapoint, first, second)
        for datapoint, models in answered.items()
        for first, second in itertools.combinations(sorted(models), 2)
    ]


class Schedule:
    """What one judge is still to see of the items of one teacher for one task."""

    def __init__(
        self, possible: Sequence[Meeting], known: Mapping[Meeting, str], limit: int | None, seed: int, judge: str = ""
    ) -> None:
        """Begin, or go on.

        Args:
            possible: all meetings that there can be.
            known: winner by meeting, `model_a` standing for the first name; of earlier starts of the run.
            limit: meetings that the judge may see in all.
            seed: of the order.
            judge: whose own answers come last.
        """
        self._judge = judge
        self._order = sorted(possible, key=lambda one: (judge in (one.first, one.second), draw(seed, "order", one)))
        there = set(possible)
        self.known = {one: winner for one, winner in known.items() if one in there}
        self._limit = len(possible) if limit is None else min(limit, len(possible))
        self.left = max(0, self._limit - len(self.known))
        """Meetings still to come."""

    def everything(self) -> list[Meeting]:
        """The meetings still to come, without regard to ratings."""
        return [one for one in self._order if one not in self.known][: self.left]

    def rounds(self) -> _Rounds:
        """The meetings still to come, round after round."""
        return _Rounds(self._order, self.known, self._limit, self._judge)


class _Rounds:
    """The rounds of an active schedule: `next()`, then `tell()` what came of them."""

    def __init__(self, order: Sequence[Meeting], known: Mapping[Meeting, str], limit: int, judge: str) -> None:
        self._limit = limit
        self._judge = judge
        self._known = dict(known)
        self._waiting: dict[Couple, list[Meeting]] = {}
        for one in reversed(order):
            self._waiting.setdefault((one.first, one.second), []).append(one)
        self._models = sorted({name for couple in self._waiting for name in couple})
        self._told: dict[Meeting, str] = {}
        self._planned = 0

    def next(self) -> list[Meeting]:
        """The meetings of the next round that are not known yet; rounds that are known whole are passed over."""
        while self._planned < self._limit:
            size = max(len(self._models), math.ceil(self._planned / _GROWTH))
            planned = self._plan(min(size, self._limit - self._planned))
            self._planned += len(planned)
            missing = [one for one in planned if one not in self._known]
            self._told.update({one: self._known[one] for one in planned if one in self._known})
            if missing:
                return self._within_limit(missing)
            if not planned:
                break
        return []

    def tell(self, found: Mapping[Meeting, str]) -> None:
        """The winners of the round, as in `known`."""
        self._known.update(found)
        self._told.update(found)

    def _within_limit(self, missing: list[Meeting]) -> list[Meeting]:
        """Verdicts that an earlier configuration brought, and no round asks for, count as well."""
        return missing[: max(0, self._limit - len(self._known))]

    def _plan(self, size: int) -> list[Meeting]:
        """The most telling meetings by what was told."""
        couples = list(self._waiting)
        place = {name: number for number, name in enumerate(self._models)}
        first, second = (np.array([place[couple[side]] for couple in couples], dtype=np.int64) for side in (0, 1))
        close = _closeness(_ratings(self._told, self._models), first, second)
        is_open = np.array([bool(self._waiting[couple]) for couple in couples], dtype=np.bool_)
        is_own = np.array([self._judge in couple for couple in couples], dtype=np.bool_)
        inverse = _inverse(Counter((place[one.first], place[one.second]) for one in self._told), len(place))
        planned: list[Meeting] = []
        while len(planned) < size and is_open.any():
            spread = np.diag(inverse)
            worth = close * (spread[first] + spread[second] - 2 * inverse[first, second])
            others = is_open & ~is_own
            worth = np.where(others if others.any() else is_open, worth.round(9), -1)
            best = int(np.argmax(worth))  # of equal ones the first, in an order that is drawn
            waiting = self._waiting[couples[best]]
            planned.append(waiting.pop())
            is_open[best] = bool(waiting)
            _count(inverse, first[best], second[best])
        return planned


def _closeness(ratings: Floats, first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> Floats:
    """p (1 - p) of each pair of models, (P,)."""
    chance = 1 / (1 + np.exp(ratings[second] - ratings[first]))
    close: Floats = np.maximum(chance * (1 - chance), 1e-6)
    return close


def _inverse(counts: Mapping[tuple[int, int], int], models: int) -> Floats:
    """The inverse (M, M) of the Laplacian of comparisons made."""
    laplacian = _PRIOR_TIES * np.eye(models)
    for (one, other), count in counts.items():
        laplacian[[one, other], [one, other]] += count
        laplacian[[one, other], [other, one]] -= count
    return np.asarray(np.linalg.inv(laplacian))


def _count(inverse: Floats, one: int, other: int) -> None:
    """Add one comparison to what `_inverse` gives, by the formula of Sherman and Morrison."""
    column = inverse[:, one] - inverse[:, other]
    inverse -= np.outer(column, column) / (1 + column[one] - column[other])


def _ratings(told: Mapping[Meeting, str], models: Sequence[str]) -> Floats:
    """Coefficients (M,) of Bradley and Terry, a tie being half a win of each; zeros where nothing was told."""
    from p2l.leaderboard import fit
    from p2l.leaderboard.newton import Prior

    if not told:
        return np.zeros(len(models))
    place = {name: number for number, name in enumerate(models)}
    codes = np.array([(place[one.first], place[one.second], _CODES[winner]) for one, winner in told.items()])
    prior = Prior(sd=_PRIOR_SD)
    columns = (codes[:, column] for column in range(3))
    return fit(*columns, models=models, likelihood="bt-tie", intervals=None, prior=prior).coefs


# What a judge has compared so far, as the next start of a run counts it.

Counts: TypeAlias = Callable[[Mapping[str, Any]], bool]


@dataclass
class Seen:
    """The verdicts of one judge."""

    verdicts: dict[Meeting, str] = field(default_factory=dict)
    """Winner by meeting, `model_a` standing for the first name."""
    couples: set[tuple[str, str]] = field(default_factory=set)
    """Models that it compared on any item."""
    halves: dict[str, dict[str, str]] = field(default_factory=dict)
    """Id of a verdict that failed -> order that was answered -> winner."""


def files_of(run: Run, task: str, judge: str) -> list[Path]:
    """The files of a task that may hold verdicts of a judge, on the items of every teacher."""
    return [path for path in run.pair_files(task) if path.name.endswith(f".{judge}.pairwise.jsonl")]


def read_seen(files: Iterable[Path], judge: str, counts: Counts, on_bad: OnBad | None = None) -> Seen:
    """The verdicts of a judge on the answers as they are now; of several on the same the last.

    Args:
        files: where they are.
        judge: whose.
        counts: whether a record is about texts that are there; see `counts_of`.
        on_bad: hears of lines that are no record.
    """
    found = Seen()
    for record in (record for path in files for record in read_records(path, on_bad)):
        if record.get("judge_model_id") == judge and counts(record):
            _take(found, record)
    return found


def counts_of(items: Mapping[str, ItemMark], answers: Mapping[str, AnswerMark]) -> Counts:
    """Whether a verdict is about texts that are there, by the marks of items and answers."""

    def counts(record: Mapping[str, Any]) -> bool:
        datapoint = str(record.get("datapoint_id"))
        item = items.get(datapoint)
        found = [answers.get(f"{datapoint}__{record.get(side)}") for side in ("model_a", "model_b")]
        there = [one for one in found if one is not None]
        return item is not None and len(there) == len(found) and is_judgement_of(record, item, there)

    return counts


def _take(found: Seen, record: Mapping[str, Any]) -> None:
    if is_failed(record):
        said = record.get("said")
        if isinstance(said, dict) and all(winner in WINNERS for winner in said.values()):
            found.halves[str(record.get("id"))] = said
    elif record.get("winner") in WINNERS:
        meeting, winner = _meeting(record)
        found.verdicts[meeting] = winner
        found.couples.add((meeting.first, meeting.second))


def _meeting(record: Mapping[str, Any]) -> tuple[Meeting, str]:
    a, b, winner = str(record.get("model_a")), str(record.get("model_b")), str(record["winner"])
    datapoint = str(record.get("datapoint_id"))
    return (Meeting(datapoint, a, b), winner) if a < b else (Meeting(datapoint, b, a), _SWAPPED.get(winner, winner))
