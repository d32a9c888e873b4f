"""Find the unusable records of a run and what is missing, and open the run again for both.

An item without reference, an answer without text, an evaluation without scores, a verdict without winner is unusable,
and so is what was built on one, or on a text that has changed since. Unusable items and answers are marked as failed,
evaluations and verdicts are removed: `coeval run --continue` makes them anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coeval.analysis.verdicts import WINNERS
from coeval.judging.grading import is_score
from coeval.planning.gaps import Gap, find_gaps
from coeval.schema import PHASES, Phase
from coeval.storage.jsonl import LONGEST_RECORD, as_line
from coeval.storage.meta import Meta
from coeval.storage.records import answer_mark, is_answer_to, is_failed, is_judgement_of, item_mark
from coeval.storage.run import Run
from p2l.common.files import atomic_path, bounded_lines, parse_json

_PIECE = 1 << 20  # bytes of a line that are copied at once
KINDS = ("data_generation", "response_collection", "evaluation", "pairwise")
_UPSTREAM = {
    "response_collection": ("data_generation", ("datapoint_id",)),
    "evaluation": ("response_collection", ("response_id",)),
    "pairwise": ("response_collection", ("response_a_id", "response_b_id")),
}
"""Kind -> the kind that it is built on, and the keys that say on which records."""


@dataclass(frozen=True)
class BadLine:
    """An unusable line."""

    path: Path
    number: int
    id: str | None
    reason: str
    record: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass
class Inspection:
    """The state of the records of one kind."""

    kind: str
    valid: set[str] = field(default_factory=set)
    marks: dict[str, Any] = field(default_factory=dict, repr=False)
    """Id of a valid item or answer -> the mark of its texts."""
    bad: list[BadLine] = field(default_factory=list)
    """Unusable lines whose record is nowhere else."""
    gaps: list[Gap] = field(default_factory=list)

    @property
    def phase(self) -> Phase:
        """The phase that makes these records."""
        return next((phase for phase in PHASES if phase == self.kind), "evaluation")

    @property
    def is_lacking(self) -> bool:
        """Whether something is to be made anew."""
        return bool(self.gaps) or any(bad.id is not None for bad in self.bad)


def examine(run: Run) -> dict[str, Inspection]:
    """Look through all records, by kind; RunInputError if the folder holds no run."""
    Meta(run)
    inspections = {kind: Inspection(kind) for kind in KINDS}
    for kind, inspection in inspections.items():
        upstream, parents = _UPSTREAM.get(kind, (kind, ()))
        lost = {bad.id for bad in inspections[upstream].bad if bad.id is not None}
        for path in run.record_files(kind):
            for number, record in _lines(path):
                if record is None:
                    inspection.bad.append(BadLine(path, number, None, "no JSON object"))
                    continue
                reason = _fault(kind, record)
                if reason is None and any(str(record.get(parent)) in lost for parent in parents):
                    reason = f"its {'item' if kind == 'response_collection' else 'response'} is unusable"
                reason = reason or _fault_of_texts(kind, record, inspections)
                if reason is not None:
                    inspection.bad.append(BadLine(path, number, str(record.get("id")), reason, record))
                    continue
                inspection.valid.add(str(record.get("id")))
                if kind in _MARKS:
                    inspection.marks[str(record.get("id"))] = _MARKS[kind](record)
        inspection.bad = [bad for bad in inspection.bad if bad.id is None or bad.id not in inspection.valid]
    for gap in find_gaps(run):
        inspections[gap.kind].gaps.append(gap)
    return inspections


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield number and record of each line that is not blank; None where it holds no JSON object."""
    with path.open("rb") as lines:
        for number, (line, _) in enumerate(bounded_lines(lines, LONGEST_RECORD), start=1):
            if not line:
                yield number, None
            elif line.strip():
                try:
                    record = parse_json(line)
                except ValueError:
                    record = None
                yield number, record if isinstance(record, dict) else None


_MARKS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "data_generation": item_mark,
    "response_collection": answer_mark,
}


def _fault_of_texts(kind: str, record: Mapping[str, Any], inspections: Mapping[str, Inspection]) -> str | None:
    """Return why a record is not about the texts that are there, as far as they are."""
    item = inspections["data_generation"].marks.get(str(record.get("datapoint_id")))
    if kind == "data_generation" or item is None:
        return None
    if kind == "response_collection":
        return None if is_answer_to(record, item) else "its item has another prompt now"
    marks = inspections["response_collection"].marks
    answers = [marks.get(str(record.get(parent))) for parent in _UPSTREAM[kind][1]]
    if None in answers or is_judgement_of(record, item, [answer for answer in answers if answer is not None]):
        return None
    return "its response is another now"


def _fault(kind: str, record: Mapping[str, Any]) -> str | None:
    """Return why a record is unusable; None for a usable one."""
    if is_failed(record):
        return "failed"
    if not record.get("id"):
        return "no id"
    if kind == "pairwise":
        return _fault_of_verdict(record)
    if kind == "evaluation":
        return _fault_of_scores(record.get("scores"))
    needed = ("prompt",) if record.get("benchmark_id") else _NEEDED[kind]  # prompts may be ingested without reference
    empty = [key for key in needed if not str(record.get(key) or "").strip()]
    return f"empty {empty[0]}" if empty else None


_NEEDED = {"data_generation": ("prompt", "reference_response"), "response_collection": ("response",)}


def _fault_of_scores(scores: object) -> str | None:
    if not isinstance(scores, dict) or not scores:
        return "empty scores"
    return None if all(is_score(score) for score in scores.values()) else "a score that is none"


def _fault_of_verdict(record: Mapping[str, Any]) -> str | None:
    for key in ("datapoint_id", "model_a", "model_b", "judge_model_id"):
        if not isinstance(record.get(key), str):
            return f"no {key}"
    if record["model_a"] == record["model_b"]:
        return "one model twice"
    return None if record.get("winner") in WINNERS else "no winner"


def mend(run: Run, inspections: Mapping[str, Inspection], kinds: tuple[str, ...] = KINDS) -> int:
    """Mark and remove useless records, open their phases; return the changed lines; InputError if unwritable."""
    changed = 0
    shutil.rmtree(run.waiting, ignore_errors=True)  # they may judge what is made anew
    for kind in kinds:
        is_judged = kind in ("evaluation", "pairwise")
        by_file: dict[Path, dict[int, BadLine]] = {}
        for bad in inspections[kind].bad:
            if is_judged or bad.reason != "failed":
                by_file.setdefault(bad.path, {})[bad.number] = bad
        for path, bad_lines in by_file.items():
            _rewrite(path, bad_lines, keep=not is_judged)
            changed += len(bad_lines)
    lacking = {inspections[kind].phase for kind in kinds if inspections[kind].is_lacking}
    if lacking:
        _open_again(Meta(run), min(lacking, key=PHASES.index))
    return changed


def _rewrite(path: Path, bad: Mapping[int, BadLine], *, keep: bool) -> None:
    """Replace a file by one whose bad records are marked as failed (`keep`), or are in `{name}.bad` instead."""
    aside = path.with_name(f"{path.name}.bad")
    with (
        atomic_path(path) as temporary,
        temporary.open("wb") as file,
        aside.open("ab") as removed,
        path.open("rb") as old,
    ):
        number, is_begin = 0, True
        while piece := old.readline(_PIECE):
            number += is_begin
            is_marked = keep and number in bad and bad[number].id is not None
            if is_marked:
                file.write(as_line({**bad[number].record, "status": "failed"}) if is_begin else b"")
            else:
                (removed if number in bad else file).write(piece)
            is_begin = piece.endswith(b"\n")
            if not is_begin and len(piece) < _PIECE and not is_marked:  # the last line has no end
                (removed if number in bad else file).write(b"\n")
    if not aside.stat().st_size:
        aside.unlink()


def _open_again(meta: Meta, first: Phase) -> None:
    """Take a phase that lacks something, and all after it, from the completed ones."""
    opened = PHASES[PHASES.index(first) :]
    in_progress = [phase for phase in meta.data.get("phases_in_progress") or [] if phase not in opened]
    meta.update(
        phases_completed=[phase for phase in meta.completed if phase not in opened],
        phases_in_progress=[*in_progress, first],
        status="in_progress",
    )
