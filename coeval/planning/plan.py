"""The plan and the status of a run as text: models, tasks, modes and calls, and how far it is."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from coeval.judging.prompts import grading_text
from coeval.phases.progress import time_text
from coeval.planning.counting import Remaining, Work, remaining
from coeval.planning.estimate import grid
from coeval.planning.gaps import WORDS, progress_of
from coeval.schema import PHASES, ROLE_OF, Config, Mode, Model, Phase, Sampling, Task
from coeval.storage.jsonl import read_json, read_records
from coeval.storage.meta import Meta
from coeval.storage.records import is_failed
from coeval.storage.run import KINDS_OF, Run
from p2l.common.text_table import text_table

_SHORT = {
    "attribute_mapping": "attributes",
    "rubric_mapping": "rubric",
    "data_generation": "items",
    "response_collection": "answers",
    "evaluation": "judgements",
}


def plan_text(config: Config, left: Remaining, only: Collection[str] | None = None) -> str:
    """Describe a run by what is left of it."""
    experiment = config.experiment
    head = f"{experiment.id}, in {experiment.folder}"
    if experiment.resume_from:
        head += f", from {experiment.resume_from}"
    if only is not None:
        head += f"; phases 3 to 5 for {', '.join(sorted(only))} alone"
    models = [(model.name, model.interface, _asked_for(model), ", ".join(model.roles)) for model in config.models]
    tasks = [(task.name, *sampling_text(task.sampling), grading_text(task), _rubric(task)) for task in config.tasks]
    return "\n\n".join(
        [
            head,
            _left(("model", "interface", "asked for", "roles"), models),
            _left(("task", "target", "nuance", "items", "evaluation", "rubric"), tasks),
            _phases(config, left.modes),
            _calls(calls_per_task(config, left.work)),
        ]
    )


def phases_left(
    config: Config, run: Run | None, modes: Mapping[Any, Mode], only: Collection[str] | None = None
) -> list[Phase]:
    """Return the phases that are unsettled or have calls left."""
    left = remaining(config, run, modes, only)
    settled = left.stored.settled if run is not None else ()
    asking = {work.phase for work in left.work}
    return [phase for phase in PHASES if phase not in settled or phase in asking]


def calls_per_task(config: Config, work: Iterable[Work]) -> dict[str, Counter[str]]:
    """Return task -> phase -> calls."""
    counts = {task.name: Counter[str]() for task in config.tasks}
    for one in work:
        counts[one.task][one.phase] += one.calls
    return counts


def batched_in(config: Config, phase: Phase) -> list[str]:
    """Return the models whose calls of a phase go into batch jobs."""
    return [model.name for model in config.with_role(ROLE_OF[phase]) if config.is_batched(model, phase)]


def sampling_text(sampling: Sampling) -> tuple[str, str, str]:
    """Return the numbers of target attributes, nuanced attributes and items, as text."""
    target = sampling.target if isinstance(sampling.target, str) else _range(sampling.target)
    return target, _range(sampling.nuance), f"{sampling.total} a teacher"


def _range(ends: tuple[int, int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _asked_for(model: Model) -> str:
    """Return a model's name at its provider, or its names with their roles."""
    names = model.asked_for
    if len(names) == 1:
        return next(iter(names))
    return ", ".join(f"{name} ({' and '.join(roles)})" for name, roles in names.items())


def _rubric(task: Task) -> str:
    if isinstance(task.rubric, str):
        return task.rubric
    return f"{len(task.rubric)} factor" + ("s" if len(task.rubric) != 1 else "")


def _phases(config: Config, modes: Mapping[Any, Mode]) -> str:
    """Return the modes, and the models in batches if there are any."""
    rows = [(phase, str(modes[phase]), ", ".join(batched_in(config, phase))) for phase in PHASES]
    if not any(batched for *_, batched in rows):
        return _left(("phase", "mode"), [(phase, mode) for phase, mode, _ in rows])
    return _left(("phase", "mode", "in batches"), rows)


def _calls(counts: Mapping[str, Counter[str]]) -> str:
    rows = [(task, *(f"{of[phase]:,}" for phase in PHASES), f"{sum(of.values()):,}") for task, of in counts.items()]
    totals = [sum(of[phase] for of in counts.values()) for phase in PHASES]
    rows.append(("total", *(f"{number:,}" for number in totals), f"{sum(totals):,}"))
    return grid(("calls", *(_SHORT[phase] for phase in PHASES), "total"), rows)


def _left(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Format a table of text."""
    return "\n".join(text_table(head, rows, left=range(len(head)), joined_rule=True))


_LAST_ERRORS = 10
_RECENT = 600  # seconds whose records tell the speed
_TIMES = ("generated_at", "evaluated_at", "created_at")


def status_text(run: Run) -> str:
    """Return the text of `coeval status`. Raise RunInputError if the folder holds no run."""
    meta = Meta(run)
    parts = [_about(meta), _phase_lines(run, meta), _batches(run), _errors(run)]
    return "\n\n".join(part for part in parts if part)


def _about(meta: Meta) -> str:
    data = meta.data
    lines = [f"{data.get('experiment_id')}: {data.get('status')}"]
    lines.append(f"  created {data.get('created_at')}, updated {data.get('updated_at')}")
    if data.get("resume_from"):
        lines.append(f"  started from {data['resume_from']}")
    used = ", ".join(f"{model} {count}" for model, count in sorted(meta.quota_used.items()))
    if used:
        lines.append(f"  calls: {used}; ${meta.spent_usd:.4f}")
    return "\n".join(lines)


def _phase_lines(run: Run, meta: Meta) -> str:
    lines, progress = [], progress_of(run)
    since = (datetime.now(timezone.utc) - timedelta(seconds=_RECENT)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for phase in PHASES:
        counted = [line for kind in KINDS_OF.get(phase, ()) if (line := _counted(run, kind, *progress[kind], since))]
        folder = {"attribute_mapping": "phase1_attributes", "rubric_mapping": "phase2_rubric"}.get(phase)
        maps = None if folder is None else len(list((run.folder / folder).glob("[!.]*.json")))
        state = _state(
            meta, phase, has_files=any(run.record_files(kind) for kind in KINDS_OF.get(phase, ())) or bool(maps)
        )
        lines += [f"  {phase:<20} {state}" + ("" if maps is None else f", {maps} files"), *counted]
    return "\n".join(["phases", *lines])


def _state(meta: Meta, phase: str, *, has_files: bool) -> str:
    if phase in meta.completed:
        return "completed"
    if phase in meta.settled:
        return "kept as it is"
    if phase in (meta.data.get("phases_in_progress") or []):
        return "in progress"
    return "not completed" if has_files else "not begun"


def _counted(run: Run, kind: str, missing: int, expected: int, since: str) -> str:
    """Return a line about the records of one kind: those that are there, expected, and failed alone; bad lines."""
    files, bad = run.record_files(kind), list[int]()
    if not files and not expected:
        return ""
    ids: dict[bool, set[str]] = {True: set(), False: set()}
    recent: list[str] = []
    for path in files:
        for record in read_records(path, lambda _path, number, _why: bad.append(number)):
            ids[is_failed(record)].add(str(record.get("id")))
            at = next((record[key] for key in _TIMES if isinstance(record.get(key), str)), "")
            if at >= since:
                recent.append(at)
    valid, failed = len(ids[False]), len(ids[True] - ids[False])
    done, expected = (expected - missing, expected) if expected else (valid, valid)  # of a task nobody knows any more
    repeats = sum(1 for _ in read_records(run.repeats)) if kind == "data_generation" else 0
    line = f"    {done} of {expected} {WORDS[kind]} in {len(files)} files" + (f", {failed} failed" if failed else "")
    line += _speed(recent, missing)
    line += f", {repeats} refused as they repeat others" if repeats else ""
    return line + (f", {len(bad)} lines that are not records" if bad else "")


def _speed(recent: Sequence[str], missing: int) -> str:
    """Return how fast records with these times came, and when the missing ones will be there at that speed."""
    if len(recent) < 2 or not missing:
        return ""
    try:
        first, last = (datetime.fromisoformat(at.replace("Z", "+00:00")) for at in (min(recent), max(recent)))
    except (TypeError, ValueError):  # of a record that somebody else wrote
        return ""
    seconds = max((last - first).total_seconds(), 1.0)
    a_minute = 60 * (len(recent) - 1) / seconds
    return f", {a_minute:,.0f} a minute, {time_text(60 * missing / a_minute)} left"


def _batches(run: Run) -> str:
    jobs = read_json(run.pending)
    lines = ["pending batch jobs"]
    for name, job in jobs.items() if isinstance(jobs, dict) else ():
        what = f"{job.get('interface')}, {job.get('phase')}, {job.get('n_requests')} requests"
        lines.append(f"  {name}: {job.get('status')}, {what}, submitted {job.get('submitted_at')}")
    return "\n".join(lines) if len(lines) > 1 else ""


def _errors(run: Run) -> str:
    lines = ["last errors"]
    for error in deque(read_records(run.errors), maxlen=_LAST_ERRORS):
        where = " ".join(str(error[key]) for key in ("phase", "task", "model", "id") if error.get(key))
        lines.append(f"  {error.get('timestamp')} {where}: {error.get('error')}")
    return "\n".join(lines) if len(lines) > 1 else ""
