"""What a configuration says once it is checked: models, tasks and the experiment.

Reading and checking are `loading.py` and `checks.py`; nothing here can be wrong any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from coeval.grading.scale import DEFAULT, Scale

__all__ = [
    "BATCH_PHASES",
    "MODES",
    "PHASES",
    "ROLES",
    "ROLE_OF",
    "Attributes",
    "Config",
    "Experiment",
    "Mode",
    "Model",
    "Pairwise",
    "Phase",
    "Role",
    "Rubric",
    "Sampling",
    "Task",
]

Role: TypeAlias = Literal["teacher", "student", "judge"]
Phase: TypeAlias = Literal[
    "attribute_mapping", "rubric_mapping", "data_generation", "response_collection", "evaluation"
]
Mode: TypeAlias = Literal["New", "Keep", "Extend", "Model"]
Attributes: TypeAlias = Mapping[str, Sequence[Any]]
"""Attribute -> its values."""
Rubric: TypeAlias = Mapping[str, str | Mapping[str, Any]]
"""Factor -> description, that and its weight, or the definition of a metric."""

ROLES: tuple[Role, ...] = ("teacher", "student", "judge")
PHASES: tuple[Phase, ...] = (
    "attribute_mapping",
    "rubric_mapping",
    "data_generation",
    "response_collection",
    "evaluation",
)
BATCH_PHASES: tuple[Phase, ...] = PHASES[2:]
ROLE_OF: Mapping[Phase, Role] = {**dict.fromkeys(PHASES[:3], ROLES[0]), PHASES[3]: ROLES[1], PHASES[4]: ROLES[2]}
"""Phase -> the role of the models that it asks."""
MODES: tuple[Mode, ...] = ("New", "Keep", "Extend", "Model")


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Model:
    """A model and what it does; never printed with its key."""

    name: str
    interface: str
    roles: tuple[Role, ...]
    parameters: Mapping[str, Any] = field(default_factory=_nothing, repr=False)
    role_parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=_nothing, repr=False)
    access_key: str | None = field(default=None, repr=False)
    key_left_out: bool = False
    """Whether the file had a key of its own once, and was stored without it."""
    batch_enabled: bool | None = None

    @property
    def is_virtual(self) -> bool:
        """Whether nothing is ever called: the teacher of an ingested benchmark, a metric, the label judge."""
        return self.interface in ("benchmark", "metric", "label")

    @property
    def asked_for(self) -> dict[str, tuple[Role, ...]]:
        """What the provider calls it -> the roles in which it does; one name, unless a role has a model of its own."""
        names: dict[str, tuple[Role, ...]] = {}
        for role in self.roles:
            name = self.model_id(role)
            names[name] = (*names.get(name, ()), role)
        return names or {self.model_id(): ()}

    def model_id(self, role: Role | None = None) -> str:
        """What the provider calls it, in a role or where no role says otherwise."""
        own = self.role_parameters.get(role, {}).get("model") if role else None
        return str(own or self.parameters.get("model") or self.name)

    def parameters_for(self, role: Role) -> dict[str, Any]:
        """`parameters` with those of the role on top."""
        return {**self.parameters, **self.role_parameters.get(role, {})}


@dataclass(frozen=True)
class Sampling:
    """How items are drawn."""

    target: tuple[int, int] | Literal["all"]
    nuance: tuple[int, int]
    total: int
    """Items for each teacher."""


@dataclass(frozen=True)
class Pairwise:
    """How pairs of answers are compared where `evaluation_mode` is `pairwise`."""

    schedule: Literal["all", "active"] = "all"
    pairs: int | None = None
    """Pairs that a judge sees for each (task, teacher), at most; needed for `active`."""
    both_orders: bool = True
    reference: bool = True
    """Whether judges see the reference answer."""


@dataclass(frozen=True)
class Task:
    """One kind of work."""

    name: str
    description: str
    output_description: str
    target_attributes: Attributes | Literal["auto", "complete"]
    sampling: Sampling
    rubric: Rubric | Literal["auto", "extend"]
    nuanced_attributes: Attributes | Literal["auto", "complete"] = field(default_factory=_nothing)
    target_attributes_seed: Attributes = field(default_factory=_nothing)
    nuanced_attributes_seed: Attributes = field(default_factory=_nothing)
    evaluation_mode: Literal["single", "per_factor", "pairwise"] = "single"
    pairwise: Pairwise = Pairwise()
    store_nuanced: bool = False
    prompt_library: Mapping[str, str] = field(default_factory=_nothing)
    label_attributes: tuple[str, ...] = ()
    category: str | None = None
    scale: Scale = DEFAULT
    """Of the grades that judges give."""
    rationale: bool = False
    """Whether judges say why before they grade."""
    expected_scores: bool = False
    """Whether a score is the mean of the grades that a judge could have given, by their probabilities."""


@dataclass(frozen=True)
class Experiment:
    """One run."""

    id: str
    storage_folder: Path
    resume_from: str | None = None
    phases: Mapping[str, Mode] = field(default_factory=_nothing)
    """Of every phase; defaults filled in."""
    written_phases: frozenset[str] = frozenset()
    """Those whose mode the file names itself."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    quota: Mapping[str, int] = field(default_factory=_nothing)
    """Model -> most calls."""
    generation_retries: int = 2
    batch: Mapping[str, Mapping[str, bool]] = field(default_factory=_nothing)
    batch_poll_seconds: float | None = None
    """Between two looks at a batch job; 30 or 60 by default, as its provider wishes."""
    probe_mode: Literal["full", "resume", "disable"] = "full"
    probe_on_fail: Literal["abort", "warn"] = "abort"
    estimate_cost: bool = False
    estimate_samples: int = 2
    seed: int = 0
    concurrency: int | Mapping[str, int] = 10
    """Calls in flight for each interface."""
    rate_limit: Mapping[str, float] = field(default_factory=_nothing)
    """Interface -> most calls a minute."""
    request_timeout: float = 120.0
    """Seconds."""
    budget_usd: float | None = None
    cache: bool = True
    """Whether answers are taken from earlier runs where everything that matters is the same."""
    resume_folder: Path | None = None
    """The run that `resume_from` names."""

    @property
    def folder(self) -> Path:
        """Where the run is stored."""
        return self.storage_folder / self.id


@dataclass(frozen=True)
class Config:
    """A checked configuration."""

    models: tuple[Model, ...]
    tasks: tuple[Task, ...]
    experiment: Experiment
    raw: Mapping[str, Any] = field(default_factory=_nothing, repr=False)
    """The YAML as it was read; may hold keys, so it is never printed or stored as it is."""
    path: Path | None = None
    notes: tuple[str, ...] = ()
    """What was decided while reading, for the log: which provider each `interface: auto` became."""

    def is_batched(self, model: Model, phase: Phase) -> bool:
        """Whether a model's calls of a phase go in batches: as the model says, else as its interface's entry does."""
        if phase not in BATCH_PHASES:
            return False
        if model.batch_enabled is not None:
            return model.batch_enabled
        return bool(self.experiment.batch.get(model.interface, {}).get(phase, False))

    def with_role(self, role: Role) -> tuple[Model, ...]:
        """The models that play a role, in the order of the file."""
        return tuple(model for model in self.models if role in model.roles)
