"""In which mode each phase runs at this start, and what is set up before the first."""

from __future__ import annotations

from collections.abc import Mapping

from coeval.config.schema import PHASES, Config, Mode, Phase
from coeval.errors import RunInputError
from coeval.storage.copying import archive, copy_run, renewed_phases
from coeval.storage.layout import Run
from coeval.storage.log import Log
from coeval.storage.meta import Meta, create_meta

__all__ = ["continued_modes", "prepare"]


def continued_modes(config: Config, completed: list[str]) -> dict[Phase, Mode]:
    """The modes of a run that goes on: what is stored stays, what is missing is added.

    A phase that was kept as it was and is completed stays so, whatever it lacks.
    """
    modes: dict[Phase, Mode] = {}
    for phase in PHASES:
        was_kept = config.experiment.phases[phase] == "Keep" and phase in completed
        modes[phase] = "Keep" if was_kept or phase in PHASES[:2] else "Extend"
    return modes


def prepare(
    config: Config, run: Run, log: Log, *, continue_in_place: bool, was_there: bool
) -> tuple[Meta, Mapping[Phase, Mode]]:
    """Open the run, or make it; `was_there` says whether its folder held one when the configuration was checked.

    Raises:
        RunInputError: another process has just made it.
    """
    if continue_in_place:
        meta = Meta(run)
        return meta, continued_modes(config, meta.completed)
    modes: dict[Phase, Mode] = {phase: config.experiment.phases[phase] for phase in PHASES}
    if run.meta.exists() and not was_there:
        raise RunInputError(f"{run.folder}: another process has just made this run; use --continue to go on with it")
    if run.meta.exists():
        return _renew(run, log, modes), modes
    source = config.experiment.resume_folder
    if source is not None:
        count = copy_run(Run(source), run, [task.name for task in config.tasks], modes)
        log.info(f"{count} files copied from {source}")
    return create_meta(run, config.experiment.id, config.experiment.resume_from), modes


def _renew(run: Run, log: Log, modes: Mapping[Phase, Mode]) -> Meta:
    """Put aside what a run that is there makes anew."""
    meta = Meta(run)
    renewed = [phase for phase in PHASES if modes[phase] == "New" or phase in renewed_phases(modes)]
    folder = archive(run, renewed)
    if folder is not None:
        log.info(f"the files of {', '.join(renewed)} are now in {folder}")
    meta.update(
        phases_completed=[phase for phase in meta.completed if phase not in renewed],
        phases_in_progress=[],
        status="in_progress",
    )
    return meta
