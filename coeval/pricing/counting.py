"""How many calls a run makes, phase by phase, and of how many tokens.

With T teachers, S students, J judges and N items for each teacher, of one task: T calls for each map or rubric that is
left to teachers, T N items, T S N answers, J T S N judgements (times the factors, where each is asked for alone), and
J T N S (S - 1) / 2 comparisons in each order, where answers are compared in pairs. What is stored is not asked again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from coeval.config.schema import PHASES, Config, Mode, Model, Phase, Task
from coeval.phases.factors import required_factors
from coeval.pricing.stored import Stored

__all__ = ["CONTINUED", "TOKENS", "UNKNOWN_FACTORS", "Tokens", "Work", "work_of"]


class Tokens(NamedTuple):
    """Of an average call."""

    input: int
    output: int


TOKENS: Mapping[str, Tokens] = {
    "attribute_mapping": Tokens(250, 200),
    "rubric_mapping": Tokens(300, 200),
    "data_generation": Tokens(350, 250),
    "response_collection": Tokens(200, 180),
    "evaluation": Tokens(600, 100),
    "pairwise": Tokens(780, 10),
}
"""What a call of each phase takes, before anything was measured."""
UNKNOWN_FACTORS = 4
"""Of a rubric that teachers have yet to write."""
CONTINUED: Mapping[Phase, Mode] = {phase: "Keep" if phase in PHASES[:2] else "Extend" for phase in PHASES}
"""The modes of a run that goes on, whatever its configuration says."""


@dataclass(frozen=True)
class Work:
    """Calls of one model in one phase of one task."""

    phase: Phase
    task: str
    model: Model
    calls: int
    tokens: Tokens


def work_of(config: Config, stored: Stored | None = None, modes: Mapping[Any, Mode] | None = None) -> list[Work]:
    """Everything that is left to be asked.

    Args:
        config: the run's.
        stored: what there is already; nothing by default.
        modes: of the phases; the configuration's by default.
    """
    count = _Count(config, stored or Stored(), dict(modes or config.experiment.phases))
    return [work for task in config.tasks for work in count.of(task) if work.calls]


@dataclass(frozen=True)
class _Count:
    """The counts of one run."""

    config: Config
    stored: Stored
    modes: dict[Any, Mode]

    def of(self, task: Task) -> Iterator[Work]:
        """All work of a task, phase by phase."""
        teachers = self.config.with_role("teacher")
        items = {teacher.name: self._items(task, teacher) for teacher in teachers}
        maps, rubrics = self._maps(task), self._rubrics(task)
        for teacher in teachers:
            if teacher.is_virtual:
                continue
            yield Work(PHASES[0], task.name, teacher, maps, TOKENS[PHASES[0]])
            yield Work(PHASES[1], task.name, teacher, rubrics, TOKENS[PHASES[1]])
            yield Work(PHASES[2], task.name, teacher, items[teacher.name][0], TOKENS[PHASES[2]])
        whole = {name: total for name, (_, total) in items.items()}
        for student in self.config.with_role("student"):
            yield Work(PHASES[3], task.name, student, self._answers(task, student, whole), TOKENS[PHASES[3]])
        for judge in self.config.with_role("judge"):
            if judge.is_virtual:
                continue
            pairwise = task.evaluation_mode == "pairwise"
            calls = self._pairs(task, judge, whole) if pairwise else self._scores(task, judge, whole)
            yield Work(PHASES[4], task.name, judge, calls, TOKENS["pairwise" if pairwise else PHASES[4]])

    def _maps(self, task: Task) -> int:
        """Calls to each teacher for attributes."""
        kinds = {"target": task.target_attributes, "nuanced": task.nuanced_attributes}
        wanted = [kind for kind, given in kinds.items() if isinstance(given, str)]
        is_new = self.modes[PHASES[0]] == "New"
        return sum(is_new or (task.name, kind) not in self.stored.attributes for kind in wanted)

    def _rubrics(self, task: Task) -> int:
        is_new = self.modes[PHASES[1]] == "New"
        return int(isinstance(task.rubric, str) and (is_new or task.name not in self.stored.rubrics))

    def _items(self, task: Task, teacher: Model) -> tuple[int, int]:
        """Items that a teacher has to write, and those that there are then."""
        wanted, there = task.sampling.total, self.stored.items[task.name, teacher.name]
        if teacher.is_virtual:
            return 0, there
        if self.modes[PHASES[2]] == "New":
            return wanted, wanted
        missing = max(0, wanted - there) if self.modes[PHASES[2]] == "Extend" or not there else 0
        return missing, there + missing

    def _answers(self, task: Task, student: Model, items: Mapping[str, int]) -> int:
        there = {name: self.stored.responses[task.name, name, student.name] for name in items}
        return self._left(PHASES[3], items, there)

    def _left(self, phase: Phase, wanted: Mapping[Any, int], there: Mapping[Any, int]) -> int:
        """What is missing of some groups: all, none where there is anything, or the rest."""
        mode = self.modes[phase]
        if mode == "New":
            return sum(wanted.values())
        if mode == "Model" and any(there.values()):
            return 0
        if mode == "Keep":
            return sum(number for name, number in wanted.items() if not there[name])
        return sum(max(0, number - there[name]) for name, number in wanted.items())

    def _scores(self, task: Task, judge: Model, items: Mapping[str, int]) -> int:
        factors = self._factors(task, judge)
        if not factors:
            return 0
        total = 0
        for student in self.config.with_role("student"):
            scores = {name: self._scored(task.name, name, student.name, judge.name) for name in items}
            if task.evaluation_mode == "single":
                there = {name: min((scores[name].get(factor, 0) for factor in factors), default=0) for name in items}
                total += self._left(PHASES[4], items, there)
            else:
                wanted = {(name, factor): number for name, number in items.items() for factor in factors}
                by_factor = {(name, factor): scores[name].get(factor, 0) for name, factor in wanted}
                total += self._left(PHASES[4], wanted, by_factor)
        return total

    def _scored(self, *names: str) -> Mapping[str, int]:
        """Factor -> answers, of (task, teacher, student, judge)."""
        task, teacher, student, judge = names
        return self.stored.scores.get((task, teacher, student, judge), {})

    def _factors(self, task: Task, judge: Model) -> tuple[str, ...]:
        """What a judge scores, as far as it is known."""
        rubric = task.rubric if not isinstance(task.rubric, str) else self.stored.rubrics.get(task.name)
        if rubric is None or (isinstance(task.rubric, str) and self.modes[PHASES[1]] == "New"):
            return tuple(f"factor {number}" for number in range(1, UNKNOWN_FACTORS + 1))
        return required_factors(judge, task, rubric)

    def _pairs(self, task: Task, judge: Model, items: Mapping[str, int]) -> int:
        students = len(self.config.with_role("student"))
        most = task.pairwise.pairs
        pairs = {name: students * (students - 1) // 2 * number for name, number in items.items()}
        wanted = {name: number if most is None else min(number, most) for name, number in pairs.items()}
        there = {name: self.stored.pairs[task.name, name, judge.name] for name in items}
        return self._left(PHASES[4], wanted, there) * (2 if task.pairwise.both_orders else 1)
