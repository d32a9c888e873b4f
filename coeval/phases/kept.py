"""Where what is stored of a task holds: mode `Keep`, and a configuration that says something else by now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from coeval.config.schema import Attributes, Phase, Rubric
from coeval.phases.stage import Stage
from coeval.storage.jsonl import read_records
from coeval.storage.records import is_failed

__all__ = ["any_valid", "attributes_apart", "is_kept", "rubrics_apart", "warn_of_kept"]


def is_kept(stage: Stage, files: Iterable[Path]) -> bool:
    """Whether judgements of a task stay as they are: the mode keeps them, and there are some."""
    return stage.modes["evaluation"] == "Keep" and any_valid(files)


def any_valid(files: Iterable[Path]) -> bool:
    """Whether a file has a record that has not failed."""
    return any(not is_failed(record) for path in files for record in read_records(path))


def warn_of_kept(stage: Stage, phase: Phase, task: str, apart: Iterator[str], then: Phase) -> None:
    """Say once what holds, and how it is renewed; nothing where they say the same.

    Args:
        stage: the run.
        phase: which keeps what is stored.
        task: of which.
        apart: in what they differ.
        then: the phase that has to be made anew as well.
    """
    found = "; ".join(apart)
    if found:
        stage.log.warning(
            f"{phase}: task {task!r}: what is stored holds, though the configuration says otherwise: {found}. To renew "
            f"it start without --continue, with the mode of every phase written, New for {phase} and {then}"
        )


def rubrics_apart(stored: Rubric, wanted: Rubric) -> Iterator[str]:
    """In what a stored rubric differs, but for factors that it lacks, which join it."""
    changed = [name for name in wanted if name in stored and _text(stored[name]) != _text(wanted[name])]
    if changed:
        yield f"another text of {', '.join(changed)}"
    gone = [name for name in stored if name not in wanted]
    if gone:
        yield f"no {', '.join(gone)} any more"


def attributes_apart(stored: Attributes, wanted: Attributes) -> Iterator[str]:
    """Which attributes and values are stored that are not wanted any more."""
    for name, values in stored.items():
        gone = [str(value) for value in values if value not in wanted.get(name, ())]
        if name not in wanted:
            yield f"no {name} any more"
        elif gone:
            yield f"{name} is not {' or '.join(gone)} any more"


def _text(definition: str | Mapping[str, Any]) -> dict[str, Any]:
    """What a factor says, without how much it counts."""
    said = {"description": definition} if isinstance(definition, str) else dict(definition)
    said.pop("weight", None)
    return said
