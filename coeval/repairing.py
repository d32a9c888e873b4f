"""What of a run's records is of no use, what is missing, and how a run is opened again for both.

An item without reference, an answer without text, an evaluation without scores, a verdict without winner is of no use,
and so is what was built on one, or on a text that is no more there. Items and answers of no use are marked as failed,
evaluations and verdicts are removed: `coeval run --continue` makes them anew.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coeval.analysis.verdicts import WINNERS
from coeval.judging.grading import is_score
from coeval.planning.gaps import Gap, find_gaps
from coeval.schema import PHASES, Phase
from coeval.storage.jsonl import as_line
from coeval.storage.meta import Meta
from coeval.storage.records import answer_mark, is_answer_to, is_failed, is_judgement_of, item_mark
from coeval.storage.run import Run
from p2l.common.files import atomic_path

KINDS = ("data_generation", "response_collection", "evaluation", "pairwise")
_UPSTREAM = {
    "response_collection": ("data_generation", ("datapoint_id",)),
    "evaluation": ("response_collection", ("response_id",)),
    "pairwise": ("response_collection", ("response_a_id", "response_b_id")),
}
"""Kind -> the kind that it is built on, and the keys that say on which records."""


@dataclass(frozen=True)
class Bad:
    """A line of no use."""

    path: Path
    line: int
    id: str | None
    why: str
    record: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass
class Found:
    """What the records of one kind are like."""

    kind: str
    valid: set[str] = field(default_factory=set)
    marks: dict[str, Any] = field(default_factory=dict, repr=False)
    """Id of a valid item or answer -> the mark of its texts."""
    bad: list[Bad] = field(default_factory=list)
    """Lines of no use whose record is nowhere else."""
    gaps: list[Gap] = field(default_factory=list)

    def reasons(self) -> Counter[str]:
        """Why -> how many lines."""
        return Counter(bad.why for bad in self.bad)

    @property
    def phase(self) -> Phase:
        """The phase that makes these records."""
        return next((phase for phase in PHASES if phase == self.kind), "evaluation")


def examine(run: Run) -> dict[str, Found]:
    """Look through all records; kind -> what was found.

    Raises:
        RunInputError: the folder holds no run.
    """
    Meta(run)
    found = {kind: Found(kind) for kind in KINDS}
    for kind in KINDS:
        lost = _lost(found, kind)
        for path in run.record_files(kind):
            _examine_file(path, found, kind, lost)
        found[kind].bad = [bad for bad in found[kind].bad if bad.id is None or bad.id not in found[kind].valid]
    for gap in find_gaps(run):
        found[gap.kind].gaps.append(gap)
    return found


def _lost(found: Mapping[str, Found], kind: str) -> set[str]:
    """Ids of what these records are built on that is of no use."""
    upstream = _UPSTREAM.get(kind)
    return set() if upstream is None else {bad.id for bad in found[upstream[0]].bad if bad.id is not None}


def _examine_file(path: Path, found: Mapping[str, Found], kind: str, lost: set[str]) -> None:
    mine = found[kind]
    for number, record in _lines(path):
        if record is None:
            mine.bad.append(Bad(path, number, None, "no JSON object"))
            continue
        why = _fault(kind, record) or _fault_of_parents(kind, record, lost) or _fault_of_texts(kind, record, found)
        identity = str(record.get("id"))
        if why is not None:
            mine.bad.append(Bad(path, number, identity, why, record))
            continue
        mine.valid.add(identity)
        if kind in _MARKS:
            mine.marks[identity] = _MARKS[kind](record)


_MARKS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "data_generation": item_mark,
    "response_collection": answer_mark,
}


def _fault_of_parents(kind: str, record: Mapping[str, Any], lost: set[str]) -> str | None:
    _, parents = _UPSTREAM.get(kind, ("", ()))
    if any(str(record.get(parent)) in lost for parent in parents):
        return f"its {'item' if kind == 'response_collection' else 'response'} is of no use"
    return None


def _fault_of_texts(kind: str, record: Mapping[str, Any], found: Mapping[str, Found]) -> str | None:
    """Why a record is not about the texts that are there, as far as they are."""
    item = found["data_generation"].marks.get(str(record.get("datapoint_id")))
    if kind == "data_generation" or item is None:
        return None
    if kind == "response_collection":
        return None if is_answer_to(record, item) else "its item has another prompt now"
    marks = found["response_collection"].marks
    answers = [marks.get(str(record.get(parent))) for parent in _UPSTREAM[kind][1]]
    if None in answers or is_judgement_of(record, item, [one for one in answers if one is not None]):
        return None
    return "its response is another now"


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Number and record of each line that is not blank; None: it holds none."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    record = json.loads(line)
                except ValueError:
                    record = None
                yield number, record if isinstance(record, dict) else None


def _fault(kind: str, record: Mapping[str, Any]) -> str | None:
    """Why a record is of no use; None where it is."""
    if is_failed(record):
        return "failed"
    if not record.get("id"):
        return "no id"
    if kind == "pairwise":
        return _fault_of_verdict(record)
    if kind == "evaluation":
        return _fault_of_scores(record.get("scores"))
    empty = [key for key in _NEEDED[kind] if not str(record.get(key) or "").strip()]
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


def mend(run: Run, found: Mapping[str, Found], kinds: tuple[str, ...] = KINDS) -> int:
    """Mark and remove what is of no use, and open the phases that lack something; returns the number of lines changed.

    Raises:
        InputError: a file cannot be written.
    """
    changed = 0
    shutil.rmtree(run.waiting, ignore_errors=True)  # they may judge what is made anew
    for kind in kinds:
        by_file: dict[Path, dict[int, Bad]] = {}
        for bad in found[kind].bad:
            if kind in ("evaluation", "pairwise") or bad.why != "failed":
                by_file.setdefault(bad.path, {})[bad.line] = bad
        for path, bad_lines in by_file.items():
            _rewrite(path, bad_lines, keep=kind not in ("evaluation", "pairwise"))
            changed += len(bad_lines)
    lacking = [phase for phase in PHASES for kind in kinds if found[kind].phase == phase and _lacks(found[kind])]
    if lacking:
        _open_again(Meta(run), lacking[0])
    return changed


def _lacks(found: Found) -> bool:
    return bool(found.gaps) or any(bad.id is not None for bad in found.bad)


def _rewrite(path: Path, bad: Mapping[int, Bad], *, keep: bool) -> None:
    """Replace a file by one whose bad records are marked as failed (`keep`), or are in `{name}.bad` instead."""
    aside = path.with_name(f"{path.name}.bad")
    with (
        atomic_path(path) as temporary,
        temporary.open("wb") as file,
        aside.open("ab") as removed,
        path.open("rb") as old,
    ):
        for number, line in enumerate(old, start=1):
            whole = line if line.endswith(b"\n") else line + b"\n"
            if number not in bad:
                file.write(whole)
            elif keep and bad[number].id is not None:
                file.write(as_line({**bad[number].record, "status": "failed"}))
            else:
                removed.write(whole)
    if not aside.stat().st_size:
        aside.unlink()


def _open_again(meta: Meta, first: Phase) -> None:
    """A phase that lacks something is not completed, nor is any after it."""
    opened = PHASES[PHASES.index(first) :]
    in_progress = [phase for phase in meta.data.get("phases_in_progress") or [] if phase not in opened]
    meta.update(
        phases_completed=[phase for phase in meta.completed if phase not in opened],
        phases_in_progress=[*in_progress, first],
        status="in_progress",
    )
