"""What a run will do, in words: models, tasks, modes and calls. Nothing is asked and nothing is written."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from coeval.config.schema import PHASES, ROLE_OF, Config, Mode, Model, Phase, Sampling, Task
from coeval.grading.reply import grading_text
from coeval.phases.modes import continued_modes
from coeval.pricing.counting import work_of
from coeval.pricing.stored import Stored, stored_before
from coeval.pricing.text import grid
from coeval.storage.layout import Run

__all__ = ["batched_in", "calls_per_task", "phases_left", "plan_text", "sampling_text"]

_SHORT = {
    "attribute_mapping": "attributes",
    "rubric_mapping": "rubric",
    "data_generation": "items",
    "response_collection": "answers",
    "evaluation": "judgements",
}


def plan_text(
    config: Config,
    run: Run | None = None,
    modes: Mapping[Any, Mode] | None = None,
    only: Collection[str] | None = None,
) -> str:
    """The plan of a run; with `run`, of what is left of it.

    Args:
        config: the run's.
        run: one that is there.
        modes: of the phases; those of a run that goes on where there is `run`, else the configuration's.
        only: the models that phases 3 to 5 are confined to.
    """
    stored = stored_before(config, run)
    chosen = modes or (continued_modes(config, stored.settled) if run else config.experiment.phases)
    counts = calls_per_task(config, stored, chosen, only)
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
            _phases(config, chosen),
            _calls(counts),
        ]
    )


def phases_left(
    config: Config, run: Run | None, modes: Mapping[Any, Mode], only: Collection[str] | None = None
) -> list[Phase]:
    """The phases of which a run, or a new one, has something to do: not done with yet, or with something to ask."""
    stored = stored_before(config, run)
    settled = stored.settled if run is not None else ()
    asking = {work.phase for work in work_of(config, stored, modes, only)}
    return [phase for phase in PHASES if phase not in settled or phase in asking]


def calls_per_task(
    config: Config, stored: Stored, modes: Mapping[Any, Mode], only: Collection[str] | None = None
) -> dict[str, Counter[str]]:
    """Task -> phase -> calls."""
    counts: dict[str, Counter[str]] = defaultdict(Counter, {task.name: Counter() for task in config.tasks})
    for work in work_of(config, stored, modes, only):
        counts[work.task][work.phase] += work.calls
    return counts


def batched_in(config: Config, phase: Phase) -> list[str]:
    """The models whose calls of a phase go in batches."""
    return [model.name for model in config.with_role(ROLE_OF[phase]) if config.is_batched(model, phase)]


def sampling_text(sampling: Sampling) -> tuple[str, str, str]:
    """How many target attributes, nuanced attributes and items."""
    target = sampling.target if isinstance(sampling.target, str) else _range(sampling.target)
    return target, _range(sampling.nuance), f"{sampling.total} a teacher"


def _range(ends: tuple[int, int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _asked_for(model: Model) -> str:
    """What its provider calls it, with the roles where they have models of their own."""
    names = model.asked_for
    if len(names) == 1:
        return next(iter(names))
    return ", ".join(f"{name} ({' and '.join(roles)})" for name, roles in names.items())


def _rubric(task: Task) -> str:
    if isinstance(task.rubric, str):
        return task.rubric
    return f"{len(task.rubric)} factor" + ("s" if len(task.rubric) != 1 else "")


def _phases(config: Config, modes: Mapping[Any, Mode]) -> str:
    """Modes, and where there are any the models that are asked in batches."""
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
    """Columns of words, each to the left."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    lines = [line.rstrip() for line in lines]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
