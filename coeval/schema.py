"""A checked configuration: models, tasks with their scales of grades, and the experiment.

`coeval.config` reads and checks it; the rest of CoEval takes these values as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from coeval.parsing import LEVELS, MalformedAnswerError, read_word

SCALE_FORMS = "`levels`, a range of whole numbers such as `1-5`, or a list of levels from worst to best"
_WHOLE_NUMBER = re.compile(r"\s*([0-9]{1,9})\.0{1,6}\s*")
_RANGE = re.compile(r"\s*([0-9]{1,9})\s*-\s*([0-9]{1,9})\s*")
_MAX_GRADES = 101  # no judge tells more grades apart


@dataclass(frozen=True)
class Scale:
    """The grades that judges give, from worst to best: three words, a range of whole numbers, or levels by name.

    A grade at place k of n, counted from the worst, is worth k / (n - 1).
    """

    grades: tuple[str, ...]
    is_range: bool = False

    @property
    def is_default(self) -> bool:
        """Whether grades are High, Medium and Low, and stored as these words."""
        return self.grades == tuple(reversed(LEVELS))

    @property
    def text(self) -> str:
        """A grade in words, for a sentence: `a whole number from 1 (worst) to 5 (best)`."""
        if self.is_default:
            return _joined(LEVELS)
        if self.is_range:
            return f"a whole number from {self.grades[0]} (worst) to {self.grades[-1]} (best)"
        return f"one of these levels, from worst to best: {_joined(self.grades)}"

    @property
    def short(self) -> str:
        """The scale in a table: `levels`, `1-5`, `poor to good`."""
        if self.is_default:
            return "levels"
        return f"{self.grades[0]}-{self.grades[-1]}" if self.is_range else f"{self.grades[0]} to {self.grades[-1]}"

    def to_json(self) -> str | list[str]:
        """Return the scale as a configuration writes it."""
        return self.short if self.is_default or self.is_range else list(self.grades)

    def value(self, grade: str) -> float:
        """Return the worth of a grade, in [0, 1]."""
        return self.grades.index(grade) / (len(self.grades) - 1)

    def stored(self, grade: str) -> str:
        """Return a grade as records hold it: one of the three words, or its value as text."""
        return grade if self.is_default else f"{self.value(grade):.4f}"

    def read(self, answer: object) -> str:
        """Return the grade in a judge's answer, text or a JSON number; MalformedAnswerError if the scale lacks it."""
        if isinstance(answer, float) and answer.is_integer():
            answer = int(answer)
        if isinstance(answer, str) and self.is_range and (whole := _WHOLE_NUMBER.fullmatch(answer)):
            answer = whole[1]  # `4.0` is 4
        if isinstance(answer, int) and not isinstance(answer, bool) and not self.is_default:
            answer = str(answer)
        if not isinstance(answer, str):
            raise MalformedAnswerError(f"no grade: {self.text} was asked for")
        try:
            return read_word(answer, LEVELS if self.is_default else self.grades)
        except MalformedAnswerError as error:
            raise (MalformedAnswerError(f"{error}: {self.text} was asked for") if self.is_range else error) from None


DEFAULT = Scale(tuple(reversed(LEVELS)))  # High, Medium and Low


def scale_of(written: Any) -> Scale:
    """Return the scale that a configuration names; ValueError, with the rest of a sentence, if it names none."""
    if written == "levels":
        return DEFAULT
    match = _RANGE.fullmatch(written) if isinstance(written, str) else None
    if match is not None:
        return _range(int(match[1]), int(match[2]))
    if not isinstance(written, Sequence) or isinstance(written, str):
        raise ValueError(f"must be {SCALE_FORMS}")
    return _named(tuple(written))


def scale_in(task: Mapping[str, Any]) -> Scale:
    """Return the scale of a stored task; High, Medium and Low where it has none, or an unknown one."""
    try:
        return scale_of(task.get("scale") or "levels")
    except (ValueError, TypeError):
        return DEFAULT


@cache
def _range(low: int, high: int) -> Scale:
    if low >= high:
        raise ValueError(f"the worst, {low}, is not below the best, {high}; write {high}-{low}, or another range")
    if high - low >= _MAX_GRADES:
        raise ValueError(f"{high - low + 1} grades are more than the {_MAX_GRADES} that a scale may have; write fewer")
    return Scale(tuple(map(str, range(low, high + 1))), is_range=True)


@cache
def _named(levels: tuple[Any, ...]) -> Scale:
    names = tuple(str(level).strip() for level in levels)
    for level, name in zip(levels, names, strict=True):
        # Of a name that `read_word` recognizes in a judge's answer.
        is_name = bool(name) and name.isprintable() and not set(name) & set("\"'*`<>") and not name.endswith(".")
        if isinstance(level, bool | Mapping) or not isinstance(level, str | int) or not is_name:
            raise ValueError(f"level {name[:40]!r} must be text on one line, without quotes in it; write it in quotes")
    if len({name.lower() for name in names}) < max(2, len(names)):
        raise ValueError("a scale needs two levels or more, each another word; write them from worst to best")
    if len(names) > _MAX_GRADES:
        raise ValueError(f"{len(names)} levels are more than the {_MAX_GRADES} that a scale may have; write fewer")
    lowered = tuple(name.lower() for name in names)
    if lowered == tuple(level.lower() for level in LEVELS):
        raise ValueError("stands from best to worst; write the worst first")
    return DEFAULT if lowered == tuple(level.lower() for level in reversed(LEVELS)) else Scale(names)


def _joined(names: Sequence[str]) -> str:
    quoted = [f'"{name}"' for name in names]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}"


Role: TypeAlias = Literal["teacher", "student", "judge"]
Phase: TypeAlias = Literal[
    "attribute_mapping", "rubric_mapping", "data_generation", "response_collection", "evaluation"
]
Mode: TypeAlias = Literal["New", "Keep", "Extend", "Model"]
Attributes: TypeAlias = Mapping[str, Sequence[Any]]  # attribute -> its values
# Factor -> description, that and its weight, or the definition of a metric.
Rubric: TypeAlias = Mapping[str, str | Mapping[str, Any]]
ROLES: tuple[Role, ...] = get_args(Role)
PHASES: tuple[Phase, ...] = get_args(Phase)
BATCH_PHASES: tuple[Phase, ...] = PHASES[2:]
# Phase -> the role of the models that it asks.
ROLE_OF: Mapping[Phase, Role] = {**dict.fromkeys(PHASES[:3], ROLES[0]), PHASES[3]: ROLES[1], PHASES[4]: ROLES[2]}
MODES: tuple[Mode, ...] = get_args(Mode)


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Model:
    """A model and its roles; never printed with its key."""

    name: str
    interface: str
    roles: tuple[Role, ...]
    parameters: Mapping[str, Any] = field(default_factory=_nothing, repr=False)
    role_parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=_nothing, repr=False)
    access_key: str | None = field(default=None, repr=False)
    key_left_out: bool = False  # whether the file had a key of its own once, and was stored without it
    batch_enabled: bool | None = None

    @property
    def is_virtual(self) -> bool:
        """Whether it is never called: teacher or student that were ingested, a metric, the label judge."""
        return self.interface in ("benchmark", "answers", "metric", "label")

    @property
    def asked_for(self) -> dict[str, tuple[Role, ...]]:
        """The provider's name for it -> the roles with this name; one, unless a role has a model of its own."""
        names: dict[str, tuple[Role, ...]] = {}
        for role in self.roles:
            name = self.model_id(role)
            names[name] = (*names.get(name, ()), role)
        return names or {self.model_id(): ()}

    def model_id(self, role: Role | None = None) -> str:
        """Return the provider's name for it, in a role or where no role has its own."""
        own = self.role_parameters.get(role, {}).get("model") if role else None
        return str(own or self.parameters.get("model") or self.name)

    def parameters_for(self, role: Role) -> dict[str, Any]:
        """Return `parameters` with those of the role on top."""
        return {**self.parameters, **self.role_parameters.get(role, {})}


@dataclass(frozen=True)
class Sampling:
    """How items are drawn."""

    target: tuple[int, int] | Literal["all"]
    nuance: tuple[int, int]
    total: int  # items for each teacher


@dataclass(frozen=True)
class Pairwise:
    """How pairs of answers are compared where `evaluation_mode` is `pairwise`."""

    schedule: Literal["all", "active"] = "all"
    pairs: int | None = None  # most pairs that a judge sees for each (task, teacher); needed for `active`
    both_orders: bool = True
    reference: bool = True  # whether judges see the reference answer


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
    rationale: bool = False  # whether judges give reasons before they grade
    expected_scores: bool = False  # whether a score is the mean of all possible grades, by their probabilities
    documents: tuple[str, ...] = ()  # paths and patterns of the texts that items rest on


@dataclass(frozen=True)
class Experiment:
    """One run."""

    id: str
    storage_folder: Path
    resume_from: str | None = None
    phases: Mapping[str, Mode] = field(default_factory=_nothing)  # of every phase; defaults filled in
    written_phases: frozenset[str] = frozenset()  # phases whose mode the file names itself
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    quota: Mapping[str, int] = field(default_factory=_nothing)  # model -> most calls
    generation_retries: int = 2
    batch: Mapping[str, Mapping[str, bool]] = field(default_factory=_nothing)
    batch_poll_seconds: float | None = None  # pause between two looks at a batch job; by default 30 or 60, by provider
    probe_mode: Literal["full", "resume", "disable"] = "full"
    probe_on_fail: Literal["abort", "warn"] = "abort"
    estimate_cost: bool = False
    estimate_samples: int = 2
    seed: int = 0
    concurrency: int | Mapping[str, int] = 10  # calls in flight for each interface
    rate_limit: Mapping[str, float] = field(default_factory=_nothing)  # interface -> most calls a minute
    request_timeout: float = 120.0  # seconds
    max_answer_mb: float = 32.0  # MiB of one answer, decompressed
    budget_usd: float | None = None
    stop_at: float | None = None  # confidence in the first place at which judging ends
    cache: bool = True  # whether answers are taken from earlier runs where everything that matters is the same
    resume_folder: Path | None = None  # the run that `resume_from` names

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
    # The YAML as it was read; may hold keys, so it is never printed or stored as it is.
    raw: Mapping[str, Any] = field(default_factory=_nothing, repr=False)
    path: Path | None = None
    notes: tuple[str, ...] = ()  # choices of the loading, for the log: which provider each `interface: auto` became

    def is_batched(self, model: Model, phase: Phase) -> bool:
        """Whether a model's calls of a phase go in batches, by the model or else by its interface's entry."""
        if phase not in BATCH_PHASES:
            return False
        if model.batch_enabled is not None:
            return model.batch_enabled
        return bool(self.experiment.batch.get(model.interface, {}).get(phase, False))

    def with_role(self, role: Role) -> tuple[Model, ...]:
        """Return the models that play a role, in the order of the file."""
        return tuple(model for model in self.models if role in model.roles)


# The factors of a rubric: what each says, how much it counts, and which judge scores it.

LABEL_PREFIX = "label:"
_LABEL_JUDGE = Model(name="label", interface="label", roles=("judge",))


def judges_of(config: Config, task: Task) -> tuple[Model, ...]:
    """Return the judges of a task; a task with labels gets a label judge if the configuration has none."""
    judges = config.with_role("judge")
    if task.label_attributes and all(judge.interface != "label" for judge in judges):
        return (*judges, _LABEL_JUDGE)
    return judges


def required_factors(judge: Model, task: Task, rubric: Rubric) -> tuple[str, ...]:
    """Return the factors that a judge has to score."""
    return factors_for(judge.interface, judge.parameters.get("metric"), task.label_attributes, rubric)


def factors_for(
    interface: str, metric: object, label_attributes: Sequence[str], rubric: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the factors that a judge scores: metrics (only its own if it has one), labels, or else all others."""
    if interface == "label":
        return tuple(f"{LABEL_PREFIX}{name}" for name in label_attributes)
    metrics = {name: metric_of(definition) for name, definition in rubric.items()}
    if interface == "metric":
        return tuple(name for name, own in metrics.items() if own is not None and metric in (None, own))
    return tuple(name for name, own in metrics.items() if own is None)


def metric_of(definition: object) -> str | None:
    """Return the metric that computes a factor of a rubric, or None if a judge is asked."""
    return str(definition["metric"]) if isinstance(definition, Mapping) and "metric" in definition else None


def description_of(definition: object) -> str:
    """Return the text that tells a good answer from a bad one by a factor."""
    return str(definition.get("description") or "") if isinstance(definition, Mapping) else str(definition)


def weight_of(definition: object) -> float:
    """Return the weight of a factor; 1 where the rubric has none."""
    weight = definition.get("weight") if isinstance(definition, Mapping) else None
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    return float(weight) if is_number and isfinite(weight) and weight > 0 else 1.0  # type: ignore[arg-type, operator]


def weights_in(rubric: Mapping[str, Any]) -> dict[str, float]:
    """Return factor -> weight for the weights other than 1."""
    weights = {factor: weight_of(definition) for factor, definition in rubric.items()}
    return {factor: weight for factor, weight in weights.items() if weight != 1.0}
