"""In which mode each phase runs at this start, and what is set up before the first."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping

from coeval.errors import RunInputError
from coeval.schema import PHASES, Config, Mode, Phase
from coeval.storage.meta import Meta, create_meta, replacing
from coeval.storage.run import Run, archive, copy_run, renewed_phases
from coeval.storage.store import Log


def keeps(config: Config, phase: Phase) -> bool:
    """Whether the file itself writes that a phase is kept."""
    return phase in config.experiment.written_phases and config.experiment.phases[phase] == "Keep"


def continued_modes(config: Config, settled: Collection[str]) -> dict[Phase, Mode]:
    """The modes of a run that goes on: what is stored stays, what is missing is added.

    A phase for which the file writes `Keep` stays as it is once it is `settled`: completed, or kept to its end.
    """
    modes: dict[Phase, Mode] = {}
    for phase in PHASES:
        stays = keeps(config, phase) and phase in settled
        modes[phase] = "Keep" if stays or phase in PHASES[:2] else "Extend"
    return modes


def start_of(config: Config, *, continue_in_place: bool) -> tuple[Run | None, dict[Phase, Mode]]:
    """The run that a start builds on, None where it makes a new one, and the modes of the phases.

    Raises:
        RunInputError: there is no run to go on with.
    """
    run = Run(config.experiment.folder)
    if continue_in_place:
        return run, continued_modes(config, Meta(run).settled)
    modes: dict[Phase, Mode] = {phase: config.experiment.phases[phase] for phase in PHASES}
    may_stay = config.experiment.written_phases == frozenset(PHASES) and not config.experiment.resume_from
    return run if may_stay and run.meta.exists() else None, modes


def check_only(run: Run | None, modes: Mapping[Phase, Mode]) -> None:
    """Whether a process for some models may start so.

    Raises:
        RunInputError: it would put aside what other models, and perhaps another process, have made.
    """
    renewed = [phase for phase in PHASES if modes[phase] == "New"]
    if run is not None and renewed:
        raise RunInputError(
            f"--only-models: mode New of {', '.join(renewed)} would put aside what all models have made in "
            f"{run.folder}; use --continue, or write another mode"
        )


def extended_tasks(config: Config) -> list[str]:
    """The tasks that add to the rubric of the run resumed from."""
    if keeps(config, "rubric_mapping"):
        return []
    return [task.name for task in config.tasks if task.rubric == "extend"]


def prepare(
    config: Config, run: Run, log: Log, *, continue_in_place: bool, was_there: bool, whole: bool = True
) -> tuple[Meta, Mapping[Phase, Mode]]:
    """Open the run, or make it.

    Args:
        config: the run's.
        run: its folder.
        log: hears of what is copied or put aside.
        continue_in_place: the run goes on.
        was_there: whether its folder held one when the configuration was checked.
        whole: all models are at work; otherwise the state of a run that is there is left alone.

    Raises:
        RunInputError: another process has just made it, or adds to what would be put aside.
    """
    before, modes = start_of(config, continue_in_place=continue_in_place)
    if run.meta.exists() and not continue_in_place and not was_there:
        raise RunInputError(f"{run.folder}: another process has just made this run; use --continue to go on with it")
    if before is not None:
        return Meta(run) if continue_in_place or not whole else _renew(run, log, modes), modes
    if config.experiment.resume_folder is not None:
        _copy(config, Run(config.experiment.resume_folder), run, log, modes)
    return create_meta(run, config.experiment.id, config.experiment.resume_from), modes


def _copy(config: Config, source: Run, run: Run, log: Log, modes: Mapping[Phase, Mode]) -> None:
    extended = extended_tasks(config)
    count = copy_run(source, run, [task.name for task in config.tasks], modes, extended)
    log.info(f"{count} files copied from {source.folder}")
    for task in config.tasks:
        if task.rubric == "extend" and task.name not in extended:
            log.warning(
                f"rubric_mapping: mode Keep leaves the rubric of {task.name!r} as it is; write Extend to extend it"
            )


def _renew(run: Run, log: Log, modes: Mapping[Phase, Mode]) -> Meta:
    """Put aside what a run that is there makes anew."""
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
