"""`models[]` and `experiment` of the file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    Strict,
    TypeAdapter,
    ValidationInfo,
)

from coeval.config.keys import REDACTED
from coeval.config.reading import (
    AboveZero,
    Bool,
    Count,
    Entry,
    Positive,
    Problems,
    Secret,
    Text,
    empty_as,
    expanded,
    hint,
    number,
    one_of,
    read,
    shown,
)
from coeval.interfaces import BATCHING, INTERFACES, VIRTUAL
from coeval.judging.metrics import METRICS
from coeval.schema import BATCH_PHASES, PHASES, ROLES, Experiment, Mode, Model, Phase, Role
from p2l.common.config import Where, kind_of

_ONLY_ROLE: Mapping[str, Role] = {"benchmark": "teacher", "answers": "student", "metric": "judge", "label": "judge"}
_SITE = ("api_key", "base_url", "azure_endpoint", "api_version", "site_url", "site_name")
_CLOUD = ("region", "project", "location", "service_account_key")
_SESSION = ("access_key_id", "secret_access_key", "session_token")
_LONGEST_NAME = 72  # the name of a file has three of them, and 255 characters in all
_LONGEST_ID = 200  # of the 255 that a folder's name may have


def name_of(letters: str, pattern: str, longest: int = _LONGEST_NAME, forbidden: str = "__") -> AfterValidator:
    """Accept the characters that files and ids may have."""

    def check(name: str) -> str:
        if not re.fullmatch(pattern, name) or set(name) == {"."}:
            raise ValueError(f"{name[:60]!r} may hold {letters} alone (V-04)")
        if len(name) > longest:
            raise ValueError(f"may have {longest} characters, and has {len(name)} (V-04)")
        if forbidden and forbidden in name:
            raise ValueError(f"{name[:60]!r} must not hold {forbidden!r}, which parts the ids of records (V-04)")
        return name

    return AfterValidator(check)


def _interface(interface: str) -> str:
    if interface != "auto" and interface not in INTERFACES:
        raise ValueError(f"there is no {interface[:60]!r}{hint(interface, [*INTERFACES, 'auto'], or_all=True)} (V-06)")
    return interface


def _roles(roles: tuple[Role, ...], info: ValidationInfo) -> tuple[Role, ...]:
    interface = info.data.get("interface", "")
    only = _ONLY_ROLE.get(interface)
    if not roles:
        raise ValueError(f"name at least one of {', '.join(ROLES)} (V-05)")
    if only and set(roles) != {only}:
        raise ValueError(f"a model with `interface: {interface}` is a {only} and nothing else (V-19)")
    return tuple(role for role in ROLES if role in roles)


def _address(address: str) -> str:
    if "@" in address.partition("://")[2].partition("/")[0]:  # the message must not repeat it
        raise ValueError("holds a name or password; take it out, and write the key as access_key")
    return address


def _not_both(load_in_8bit: bool, info: ValidationInfo) -> bool:
    if load_in_8bit and info.data.get("load_in_4bit"):
        raise ValueError("does not go with load_in_4bit; remove one of the two")
    return load_in_8bit


def _json(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise ValueError("must be what JSON can say; put dates in quotes") from None
    return value


class _Parameters(Entry):
    """The parameters that are checked; others go to the provider as they are."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[Any, AfterValidator(_json)]]

    model: Text = ""
    system_prompt: Text = ""
    device: Text = ""
    base_url: Annotated[Text, AfterValidator(_address)] = ""
    azure_endpoint: Annotated[Text, AfterValidator(_address)] = ""
    api_version: Text = ""
    site_url: Text = ""
    site_name: Text = ""
    metric: Annotated[Text, one_of(METRICS, "there is no {value}; choose from {all} (V-18)")] = ""
    max_tokens: Positive = 1
    max_new_tokens: Positive = 1
    max_output_tokens: Positive = 1
    load_in_4bit: Bool = False
    load_in_8bit: Annotated[Bool, AfterValidator(_not_both)] = False
    api_key: Secret = ""
    session_token: Secret = ""
    secret_access_key: Secret = ""
    access_key_id: Secret = ""
    temperature: Annotated[float, number("a number from 0 to 2", lambda value: 0 <= value <= 2)] = 1.0


def _parameters(raw: Any) -> dict[str, Any]:
    """Return the parameters as they are written, once they are checked."""
    parameters = {key: value for key, value in raw.items() if value != REDACTED} if isinstance(raw, Mapping) else raw
    _Parameters.model_validate(parameters)
    return dict(parameters)


def _batches(batch_enabled: bool, info: ValidationInfo) -> bool:
    interface = info.data.get("interface", "")
    if batch_enabled and interface in INTERFACES and interface not in BATCHING:
        raise ValueError(f"{interface} has no batches here; remove it (V-13)")
    return batch_enabled


def _resolved(value: Any, info: ValidationInfo) -> Any:
    if info.data.get("interface", "") not in ("auto", ""):
        raise ValueError("goes with `interface: auto` alone; remove it")
    return value


_Parameter = Annotated[dict[str, Any], PlainValidator(_parameters)]
_Role = Annotated[Role, one_of(ROLES, "there is no role {value}{near}; choose from {all} (V-05)")]
_SPACED = "letters (a-z, A-Z), digits, '.', '_' and '-'"


class ModelEntry(Entry):
    """One of `models`."""

    name: Annotated[Text, name_of(_SPACED, "[A-Za-z0-9._-]+")] = Field(default="", description="a name that is its own")
    interface: Annotated[Text, AfterValidator(_interface)] = Field(
        default="", description="the provider, such as `interface: openai`, or `auto`"
    )
    parameters: _Parameter = Field(default_factory=dict)
    roles: Annotated[
        tuple[_Role, ...],
        BeforeValidator(lambda roles: (roles,) if isinstance(roles, str) else roles),
        AfterValidator(_roles),
    ] = Field(default=(), description=f"at least one of {', '.join(ROLES)}")
    role_parameters: dict[Role, _Parameter] = Field(default_factory=dict)
    access_key: Secret | None = None
    batch_enabled: Annotated[Bool | None, AfterValidator(_batches)] = None
    resolved: Annotated[Any, AfterValidator(_resolved)] = None  # what `auto` became, in a run's own configuration


def read_models(entries: list[Any], problems: Problems) -> tuple[Model, ...]:
    """Return every model; those with `interface: auto` still have it."""
    models: list[Model] = []
    for position, raw in enumerate(entries):
        where = ("models", position)
        problems.name(where, raw)
        model = _model(read(ModelEntry, raw, where, problems), raw, where, problems)
        if model.name and any(model.name == other.name for other in models):
            problems.add((*where, "name"), f"{model.name!r} is the name of two models; rename one", "V-02")
        models.append(model)
    return tuple(models)


def _model(entry: ModelEntry, raw: Any, where: Where, problems: Problems) -> Model:
    for role, own in entry.role_parameters.items():
        for key in (*_SITE, *_CLOUD, *_SESSION):
            if own.get(key) is not None:
                message = "is the same in every role: move it to `parameters`, or add a second model"
                problems.add((*where, "role_parameters", role, key), message)
    written = raw if isinstance(raw, Mapping) else {}
    # A name with a mistake still counts, so that what refers to it is checked at once.
    name = written["name"] if isinstance(written.get("name"), str) and written["name"].strip() else ""
    inner = written.get("parameters")
    parameters: Mapping[str, Any] = inner if isinstance(inner, Mapping) else {}
    own_names = [entry.role_parameters.get(role, {}).get("model") for role in entry.roles]
    is_called = entry.interface in INTERFACES and entry.interface not in (*VIRTUAL, "mock")
    if is_called and not parameters.get("model") and not (own_names and all(own_names)):
        message = f"is missing; add what {entry.interface} calls the model, such as `model: {name or 'NAME'}`"
        problems.add((*where, "parameters", "model"), message)
    keys = (entry.access_key, entry.parameters.get("api_key"))
    return Model(
        name=name,
        interface=entry.interface,
        roles=entry.roles,
        parameters={key: value for key, value in entry.parameters.items() if key != "api_key"},
        role_parameters=dict(entry.role_parameters.items()),
        access_key=next((key for key in keys if key and key != REDACTED), None),
        key_left_out=REDACTED in (written.get("access_key"), parameters.get("api_key")),
        batch_enabled=entry.batch_enabled,
    )


def _filled(value: Any) -> Any:
    """Return a mapping without its empty values."""
    return {k: inner for k, inner in value.items() if inner is not None} if isinstance(value, Mapping) else value


def _batching(name: str) -> str:
    if name not in BATCHING:
        why = "has no batches here" if name in INTERFACES else f"is not an interface{hint(name, BATCHING)}"
        raise ValueError(f"{why}; those with batches are {', '.join(BATCHING)} (V-13)")
    return name


def _model_name(name: str, info: ValidationInfo) -> str:
    names = (info.context or {}).get("models")  # None where a mistake leaves them open
    if names and name not in names:
        raise ValueError(f"there is no model of this name{hint(name, names)}")
    return name


def _quota(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be `{{max_calls: N}}`, and is {kind_of(value)}")
    return value


def _concurrency(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _LIMITS.validate_python(value)
    if not isinstance(value, int):
        raise ValueError(f"must be a whole number, or a map of interfaces to numbers; is {shown(value)}")
    return _ONE_LIMIT.validate_python(value)


_Key = Annotated[str, Strict()]
_InterfaceName = Annotated[_Key, one_of(INTERFACES, "is not an interface{near}")]
_LIMITS = TypeAdapter[dict[str, int]](Annotated[dict[_InterfaceName, Positive], BeforeValidator(_filled)])
_ONE_LIMIT = TypeAdapter[int](Positive)
_BatchPhase = Annotated[_Key, one_of(BATCH_PHASES, "is not a phase with batches{near}; those are {all} (V-13)")]
_InBatches = Annotated[dict[_BatchPhase, Annotated[Bool, empty_as(False)]], empty_as({})]


class _Quota(Entry):
    max_calls: Count = Field(description="`max_calls: N`")


class ExperimentEntry(Entry):
    """`experiment`."""

    id: Annotated[Text, name_of(_SPACED, "[A-Za-z0-9._-]+", _LONGEST_ID, "")] = Field(
        default="", description="the name of the run's folder"
    )
    storage_folder: Text = Field(default="", description="the folder that runs are kept in")
    resume_from: Text | None = None
    phases: dict[Phase, Mode] = Field(default_factory=dict)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    quota: dict[Annotated[_Key, AfterValidator(_model_name)], Annotated[_Quota, BeforeValidator(_quota)]] = Field(
        default_factory=dict
    )
    generation_retries: Count = Field(default=2, title="V-12")
    batch: dict[Annotated[_Key, AfterValidator(_batching)], _InBatches] = Field(default_factory=dict)
    batch_poll_seconds: AboveZero | None = None
    probe_mode: Literal["full", "resume", "disable"] = Field(default="full", title="V-15")
    probe_on_fail: Literal["abort", "warn"] = Field(default="abort", title="V-16")
    estimate_cost: Bool = False
    estimate_samples: Count = 2
    seed: Count = 0
    concurrency: Annotated[int | dict[str, int], PlainValidator(_concurrency)] = 10
    rate_limit: Annotated[dict[_InterfaceName, AboveZero], BeforeValidator(_filled)] = Field(default_factory=dict)
    request_timeout: AboveZero = 120.0
    max_answer_mb: AboveZero = 32.0
    budget_usd: AboveZero | None = None
    stop_at: (
        Annotated[float, number("a confidence between 0.5 and 1, such as 0.95", lambda at: 0.5 < at < 1)] | None
    ) = None
    cache: Bool = True


def read_experiment(raw: object, problems: Problems, resume: str | None, names: set[str] | None) -> Experiment:
    """Return the experiment, resumed from `resume` if it is one; `names` are the models', None where one is wrong."""
    where = ("experiment",)
    entry = ExperimentEntry() if raw is None else read(ExperimentEntry, raw, where, problems, models=names)
    if raw is None and not problems.at(*where):
        problems.add(where, "is missing; add it with an id and a storage_folder", "V-01")
    for phase in PHASES[:2]:
        if entry.phases.get(phase) == "Model":
            message = "`Model` is for the last three phases; choose New, Keep or Extend"
            problems.add((*where, "phases", phase), message, "V-08")
    resume_from = resume or entry.resume_from
    default: Mode = "Keep" if resume_from else "New"
    return Experiment(
        **entry.model_dump(exclude={"quota", "phases", "resume_from", "storage_folder"}),
        storage_folder=expanded(entry.storage_folder),
        resume_from=resume_from,
        phases={phase: entry.phases.get(phase, default) for phase in PHASES},
        written_phases=frozenset(entry.phases),
        quota={model: quota.max_calls for model, quota in entry.quota.items()},
    )
