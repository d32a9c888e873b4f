"""A new run that starts from an earlier one: what it keeps is copied, so that the earlier run never changes."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from coeval.config.schema import Mode, Phase
from coeval.storage.layout import RECORD_FOLDERS, Run
from coeval.storage.records import now
from p2l.command import atomic_path

__all__ = ["archive", "copy_run", "renewed_phases"]

_RECORDS: Mapping[Phase, tuple[str, ...]] = {
    "data_generation": ("data_generation",),
    "response_collection": ("response_collection",),
    "evaluation": ("evaluation", "pairwise"),
}


def copy_run(
    source: Run, run: Run, tasks: Sequence[str], modes: Mapping[Phase, Mode], extended: Collection[str] = ()
) -> int:
    """Copy what the phases build on: attributes, rubrics, and the records of phases that are not made anew.

    Records of models that the new run does not have come along, for comparison; the rubrics of `extended` tasks become
    those that theirs begin with. Returns the number of files.

    Raises:
        InputError: a file cannot be read or written.
    """
    copies = {}
    for task in tasks:
        copies.update(_maps(source, run, task, modes, is_base=task in extended))
        for phase, kinds in _RECORDS.items():
            if phase not in renewed_phases(modes):
                for path in (path for kind in kinds for path in source.record_files(kind, task)):
                    copies[path] = run.folder / path.relative_to(source.folder)
    for path, copy in copies.items():
        with atomic_path(copy) as temporary:
            shutil.copyfile(path, temporary)
    return len(copies)


def _maps(source: Run, run: Run, task: str, modes: Mapping[Phase, Mode], *, is_base: bool) -> dict[Path, Path]:
    found: dict[Path, Path] = {}
    for kind in ("target", "nuanced"):
        path = source.find_attributes(task, kind)
        if path is not None and modes["attribute_mapping"] != "New":
            found[path] = run.attributes(task, kind)
    rubric = source.find_rubric(task)
    if rubric is not None and (is_base or modes["rubric_mapping"] != "New"):
        found[rubric] = run.base_rubric(task) if is_base else run.rubric(task)
    return found


def renewed_phases(modes: Mapping[Phase, Mode]) -> list[Phase]:
    """The phases with records that start empty: those in mode `New`, and all that build on them."""
    phases = list(_RECORDS)
    first = next((number for number, phase in enumerate(phases) if modes[phase] == "New"), len(phases))
    return phases[first:]


def archive(run: Run, phases: Sequence[Phase]) -> Path | None:
    """Move the files of phases aside; returns the folder they are in now, None where there were none."""
    if phases:
        shutil.rmtree(run.parts, ignore_errors=True)  # they belong to what is moved
    folder = run.folder / "archive" / now().replace(":", "")
    names: dict[Phase, list[str]] = {
        "attribute_mapping": ["phase1_attributes"],
        "rubric_mapping": ["phase2_rubric"],
        **{phase: [RECORD_FOLDERS[kind][0] for kind in kinds] for phase, kinds in _RECORDS.items()},
    }
    moved = False
    for path in (run.folder / name for phase in phases for name in names[phase]):
        if path.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            path.rename(folder / path.name)
            moved = True
    return folder if moved else None
