"""Where everything of a run lies, in the form that the manual names, and how the other form is found.

Of responses the manual has `{task}.{student}`, earlier runs have `{task}.{teacher}.{student}`; of attributes
`{task}_target_attrs.json` and `{task}.target_attrs.json`. We write the first and read both. A task's name has no dot, a
model's may: so a file's name tells the task, and who wrote a record is asked of the record.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["RECORD_FOLDERS", "AttributeKind", "Run"]

AttributeKind = Literal["target", "nuanced"]
RECORD_FOLDERS = {
    "data_generation": ("phase3_datapoints", "datapoints"),
    "response_collection": ("phase4_responses", "responses"),
    "evaluation": ("phase5_evaluations", "evaluations"),
    "pairwise": ("phase5_pairwise", "pairwise"),
}
"""Kind of record -> its folder and the word in its files' names."""
_LONGEST_NAMES = 40


@dataclass(frozen=True)
class Run:
    """The folder of a run."""

    folder: Path

    @property
    def meta(self) -> Path:
        """What the run knows of itself."""
        return self.folder / "meta.json"

    @property
    def config(self) -> Path:
        """The configuration as it was last run, without keys."""
        return self.folder / "config.yaml"

    @property
    def probe(self) -> Path:
        """Which models answered before the phases."""
        return self.folder / "probe_results.json"

    @property
    def estimate(self) -> Path:
        """What the run was expected to cost."""
        return self.folder / "cost_estimate.json"

    @property
    def pending(self) -> Path:
        """Batch jobs whose answers are not stored yet."""
        return self.folder / "pending_batches.json"

    @property
    def errors(self) -> Path:
        """One line for each piece of work that failed."""
        return self.folder / "run_errors.jsonl"

    @property
    def parts(self) -> Path:
        """Answers that wait for others before they make a record."""
        return self.folder / ".parts"

    @property
    def locks(self) -> Path:
        """Which process works on what."""
        return self.folder / ".locks"

    def log(self, only: Collection[str] | None = None) -> Path:
        """The log, with its own name where only some models are at work."""
        name = "run" if only is None else f"run_{'_'.join(sorted(only))[:_LONGEST_NAMES]}"
        return self.folder / f"{name}.log"

    def attributes(self, task: str, kind: AttributeKind) -> Path:
        """Where the attributes of a task are written."""
        return self.folder / "phase1_attributes" / f"{task}_{kind}_attrs.json"

    def rubric(self, task: str) -> Path:
        """The rubric of a task."""
        return self.folder / "phase2_rubric" / f"{task}.rubric.json"

    def base_rubric(self, task: str) -> Path:
        """The rubric of the run resumed from, which `rubric: extend` starts with."""
        return self.folder / "phase2_rubric" / f".{task}.base.json"

    def datapoints(self, task: str, teacher: str) -> Path:
        """The items of a teacher."""
        return self._records("data_generation", task, teacher)

    def responses(self, task: str, student: str) -> Path:
        """The answers of a student."""
        return self._records("response_collection", task, student)

    def evaluations(self, task: str, teacher: str, judge: str) -> Path:
        """The scores by a judge of the answers to a teacher's items."""
        return self._records("evaluation", task, teacher, judge)

    def pairs(self, task: str, teacher: str, judge: str) -> Path:
        """The verdicts of a judge on pairs of answers to a teacher's items."""
        return self._records("pairwise", task, teacher, judge)

    def find_attributes(self, task: str, kind: AttributeKind) -> Path | None:
        """The attributes of a task in either form; None where there are none."""
        written = self.attributes(task, kind)
        return _first(written, written.with_name(f"{task}.{kind}_attrs.json"))

    def find_rubric(self, task: str) -> Path | None:
        """The rubric of a task; None where there is none."""
        return _first(self.rubric(task))

    def datapoint_files(self, task: str | None = None) -> list[Path]:
        """Every file of items, of one task or all."""
        return self.record_files("data_generation", task)

    def response_files(self, task: str | None = None) -> list[Path]:
        """Every file of answers, of one task or all."""
        return self.record_files("response_collection", task)

    def evaluation_files(self, task: str | None = None) -> list[Path]:
        """Every file of scores, of one task or all."""
        return self.record_files("evaluation", task)

    def pair_files(self, task: str | None = None) -> list[Path]:
        """Every file of verdicts on pairs, of one task or all."""
        return self.record_files("pairwise", task)

    def record_files(self, kind: str, task: str | None = None) -> list[Path]:
        """Every file of one kind of record, in the order of their names."""
        folder, word = RECORD_FOLDERS[kind]
        found = sorted((self.folder / folder).glob(f"*.{word}.jsonl"))
        return [path for path in found if task is None or path.name.partition(".")[0] == task]

    def _records(self, kind: str, *names: str) -> Path:
        folder, word = RECORD_FOLDERS[kind]
        return self.folder / folder / f"{'.'.join(names)}.{word}.jsonl"


def _first(*paths: Path) -> Path | None:
    return next((path for path in paths if path.is_file()), None)
