"""What a phase lacks that its mode does not let it make."""

from __future__ import annotations

from collections import Counter

from coeval.config.schema import PHASES, Phase
from coeval.phases.modes import keeps
from coeval.phases.stage import Stage

__all__ = ["left_out"]

_KINDS = {phase: (phase, "pairwise") if phase == "evaluation" else (phase,) for phase in PHASES[2:]}


def left_out(stage: Stage, phase: Phase) -> int:
    """How many records a phase in mode `Keep` or `Model` has left out; said in one line."""
    from coeval.gaps import find_gaps

    mode = stage.modes[phase]
    if mode not in ("Keep", "Model") or phase not in _KINDS:
        return 0
    missing: Counter[str] = Counter()
    for gap in find_gaps(stage.run, _KINDS[phase]):
        missing[gap.model] += gap.missing
    if not missing:
        return 0
    who = ", ".join(f"{count} of {model}" for model, count in missing.most_common())
    way = "write Extend" if keeps(stage.config, phase) else "use --continue"
    stage.log.warning(f"{phase}: mode {mode} leaves out {missing.total()} records ({who}); {way} for them")
    return missing.total()
