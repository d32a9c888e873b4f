"""The mode of each phase at this start, and what is set up before the first."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping

from coeval.errors import RunInputError
from coeval.schema import PHASES, Config, Mode, Phase
from coeval.storage.meta import Meta, create_meta, replacing
from coeval.storage.run import Run, archive, copy_run, renewed_phases
from coeval.storage.store import Log


def keeps(config: Config, phase: Phase) -> bool:
    """Return whether the configuration itself writes `Keep` for a phase."""
    return phase in config.experiment.written_phases and config.experiment.phases[phase] == "Keep"


def continued_modes(config: Config, settled: Collection[str]) -> dict[Phase, Mode]:
    """Return the modes of a continued run: what is stored stays, what is missing is added.

    A phase with a written `Keep` stays as it is once it is `settled`: completed, or kept to its end.
    """
    stays = [phase for phase in PHASES if phase in PHASES[:2] or (keeps(config, phase) and phase in settled)]
    return {phase: "Keep" if phase in stays else "Extend" for phase in PHASES}


def start_of(config: Config, *, continue_in_place: bool) -> tuple[Run | None, dict[Phase, Mode]]:
    """Return the existing run that a start builds on, None if it creates one, and the modes of the phases."""
    run = Run(config.experiment.folder)
    if continue_in_place:
        return run, continued_modes(config, Meta(run).settled)
    modes: dict[Phase, Mode] = {phase: config.experiment.phases[phase] for phase in PHASES}
    may_stay = config.experiment.written_phases == frozenset(PHASES) and not config.experiment.resume_from
    return run if may_stay and run.meta.exists() else None, modes


def check_only(run: Run | None, modes: Mapping[Phase, Mode]) -> None:
    """Check that a process for some models archives nothing that other models, or processes, have made."""
    renewed = [phase for phase in PHASES if modes[phase] == "New"]
    if run is not None and renewed:
        raise RunInputError(
            f"--only-models: mode New of {', '.join(renewed)} would put aside what all models have made in "
            f"{run.folder}; use --continue, or write another mode"
        )


def extended_tasks(config: Config) -> list[str]:
    """Return the tasks that extend the rubric of the run resumed from."""
    if keeps(config, "rubric_mapping"):
        return []
    return [task.name for task in config.tasks if task.rubric == "extend"]


def prepare(
    config: Config, run: Run, log: Log, *, continue_in_place: bool, was_there: bool, whole: bool = True
) -> tuple[Meta, Mapping[Phase, Mode]]:
    """Open the run, or create it.

    `was_there`: its folder held a run when the configuration was checked; `whole`: all models are at work, otherwise
    the state of an existing run is left alone. Raise RunInputError if another process has just created the run, or
    appends to what would be archived.
    """
    existing, modes = start_of(config, continue_in_place=continue_in_place)
    if run.meta.exists() and not continue_in_place and not was_there:
        raise RunInputError(f"{run.folder}: another process has just made this run; use --continue to go on with it")
    if existing is not None:
        return Meta(run) if continue_in_place or not whole else _renew(run, log, modes), modes
    source, extended = config.experiment.resume_folder, extended_tasks(config)
    if source is not None:
        count = copy_run(Run(source), run, [task.name for task in config.tasks], modes, extended)
        log.info(f"{count} files copied from {source}")
        for task in config.tasks:
            if task.rubric == "extend" and task.name not in extended:
                log.warning(
                    f"rubric_mapping: mode Keep leaves the rubric of {task.name!r} as it is; write Extend to extend it"
                )
    return create_meta(run, config.experiment.id, config.experiment.resume_from), modes


def _renew(run: Run, log: Log, modes: Mapping[Phase, Mode]) -> Meta:
    """Archive what an existing run makes anew."""
    meta = Meta(run)
    renewed = [phase for phase in PHASES if modes[phase] == "New" or phase in renewed_phases(modes)]
    with replacing(run) if renewed else contextlib.nullcontext():
        folder = archive(run, renewed)
    if folder is not None:
        log.info(f"the files of {', '.join(renewed)} are now in {folder}")
    meta.update(
        phases_completed=[phase for phase in meta.completed if phase not in renewed],
        phases_in_progress=[],
        phases_kept=[],
        status="in_progress",
    )
    return meta
