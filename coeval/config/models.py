"""`models[]` of the file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from coeval.config.interfaces import INTERFACES, LATER, Interface
from coeval.config.problems import Problems, Where
from coeval.config.reading import Fields, kind_of, shown
from coeval.config.redact import REDACTED
from coeval.config.schema import ROLES, Model, Role
from coeval.judges.metric import METRICS
from p2l.command import nearest

__all__ = ["MODEL_KEYS", "NAME_OF_MODEL", "check_name", "read_models"]

MODEL_KEYS = (
    "name",
    "interface",
    "parameters",
    "roles",
    "role_parameters",
    "access_key",
    "batch_enabled",
    "resolved",
)
NAME_OF_MODEL = re.compile(r"[A-Za-z0-9._-]+")
_ONLY_ROLE: Mapping[str, Role] = {"benchmark": "teacher", "metric": "judge", "label": "judge"}
_NO_MODEL = Interface()
_TEXTS = ("system_prompt", "device", "base_url", "azure_endpoint", "api_version", "site_url", "site_name", "metric")
_OF_EVERY_ROLE = (
    "api_key",
    "base_url",
    "azure_endpoint",
    "api_version",
    "region",
    "project",
    "location",
    "service_account_key",
    "access_key_id",
    "secret_access_key",
    "session_token",
    "site_url",
    "site_name",
)
_TRUTHS = ("load_in_4bit", "load_in_8bit")
_LONGEST_NAME = 72  # the name of a file has three of them, and 255 characters in all


def check_name(fields: Fields, pattern: re.Pattern[str], letters: str) -> str:
    """The name of a model or task, of the characters that files and ids may have."""
    name = fields.text("name", needed="a name that is its own")
    if len(name) > _LONGEST_NAME:
        fields.wrong("name", f"may have {_LONGEST_NAME} characters, and has {len(name)}", "V-04")
    if name and not pattern.fullmatch(name):
        fields.wrong("name", f"{name[:60]!r} may hold {letters} alone", "V-04")
    if "__" in name:
        fields.wrong("name", f"{name[:60]!r} must not hold '__', which parts the ids of records", "V-04")
    return name


def read_models(entries: list[Any], problems: Problems) -> tuple[Model, ...]:
    """Every model; those with `interface: auto` still have it."""
    models: list[Model] = []
    for number, entry in enumerate(entries):
        where = ("models", number)
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str) and entry["name"].strip():
            problems.name(where, entry["name"])
        model = _read_model(Fields(entry, where, problems, MODEL_KEYS), where, problems)
        if model.name and any(model.name == other.name for other in models):
            problems.add((*where, "name"), f"{model.name!r} is the name of two models; rename one", "V-02")
        models.append(model)
    return tuple(models)


def _read_model(fields: Fields, where: Where, problems: Problems) -> Model:
    name = check_name(fields, NAME_OF_MODEL, "letters, digits, '.', '_' and '-'")
    interface = _interface(fields)
    parameters = fields.fields("parameters")
    given = parameters.values
    _check_parameters(parameters)
    roles, by_role = _roles(fields, interface), _role_parameters(fields, where, problems)
    is_asked = INTERFACES.get(interface, _NO_MODEL).provider not in (None, "mock") or interface == "huggingface"
    if is_asked and not (roles and all(by_role.get(role, {}).get("model") for role in roles)):
        parameters.required("model", f"what {interface} calls the model, such as `model: {name or 'NAME'}`")
    model = Model(
        name=name,
        interface=interface,
        roles=roles,
        parameters={key: value for key, value in parameters.values.items() if key != "api_key"},
        role_parameters=by_role,
        access_key=_access_key(fields) or parameters.secret("api_key"),
        key_left_out=REDACTED in (fields.values.get("access_key"), given.get("api_key")),
        batch_enabled=fields.truth("batch_enabled", False) if fields.has("batch_enabled") else None,
    )
    if model.batch_enabled and interface in INTERFACES and not INTERFACES[interface].batches:
        fields.wrong("batch_enabled", f"{interface} has no batches here; remove it", "V-13")
    return model


def _access_key(fields: Fields) -> str | None:
    key = fields.secret("access_key")
    return None if key == REDACTED else key


def _interface(fields: Fields) -> str:
    interface = fields.text("interface", needed="the provider, such as `interface: openai`, or `auto`")
    if interface in LATER:
        fields.wrong("interface", f"{interface} is not supported yet; reach the model through another provider", "V-06")
    elif interface and interface != "auto" and interface not in INTERFACES:
        known = [*INTERFACES, "auto"]
        hint = nearest(interface, known) or f"; there are {', '.join(known)}"
        fields.wrong("interface", f"there is no {interface[:60]!r}{hint}", "V-06")
    if fields.has("resolved") and interface != "auto":
        fields.wrong("resolved", "goes with `interface: auto` alone; remove it")
    return interface


def _roles(fields: Fields, interface: str) -> tuple[Role, ...]:
    given = [fields.values["roles"]] if isinstance(fields.values.get("roles"), str) else fields.entries("roles")
    for number, role in enumerate(given):
        if role not in ROLES:
            hint = nearest(role, ROLES) if isinstance(role, str) else ""
            message = f"there is no role {shown(role)}{hint}; choose from {', '.join(ROLES)}"
            fields.problems.add((*fields.where, "roles", number), message, "V-05")
    roles = tuple(role for role in ROLES if role in given)
    if not given and fields.is_mapping and not fields.problems.at(*fields.where, "roles"):
        fields.wrong("roles", f"name at least one of {', '.join(ROLES)}", "V-05")
    only = _ONLY_ROLE.get(interface)
    if only and roles and roles != (only,):
        fields.wrong("roles", f"a model with `interface: {interface}` is a {only} and nothing else", "V-19")
    return roles


def _role_parameters(fields: Fields, where: Where, problems: Problems) -> dict[str, Mapping[str, Any]]:
    by_role: dict[str, Mapping[str, Any]] = {}
    for role, inner in fields.fields("role_parameters", ROLES).values.items():
        parameters = Fields(inner, (*where, "role_parameters", role), problems, None)
        _check_parameters(parameters)
        for key in _OF_EVERY_ROLE:
            if parameters.has(key):
                parameters.wrong(key, "is the same in every role: move it to `parameters`, or add a second model")
        by_role[role] = parameters.values
    return by_role


def _check_parameters(parameters: Fields) -> None:
    """The parameters that are known; others go to the provider as they are."""
    values = parameters.values
    parameters.values = {key: value for key, value in values.items() if value != REDACTED}
    parameters.text("model")
    for key in _TEXTS:
        parameters.text(key)
    _check_addresses(parameters)
    for key in ("max_tokens", "max_new_tokens", "max_output_tokens"):
        parameters.whole(key, 1, least=1)
    for key in _TRUTHS:
        parameters.truth(key, False)
    for key in ("api_key", "session_token", "secret_access_key", "access_key_id"):
        parameters.secret(key)
    temperature = values.get("temperature")
    if temperature is not None and (
        isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 <= temperature <= 2
    ):
        parameters.wrong("temperature", f"must be a number from 0 to 2, and is {kind_of(temperature)}")
    if all(values.get(key) is True for key in _TRUTHS):
        parameters.wrong("load_in_8bit", "does not go with load_in_4bit; remove one of the two")
    metric = values.get("metric")
    if isinstance(metric, str) and metric.strip() and metric not in METRICS:
        parameters.wrong("metric", f"there is no {metric[:60]!r}; choose from {', '.join(METRICS)}", "V-18")
    for key, value in values.items():
        if not _is_json(value) and not parameters.problems.at(*parameters.where, key):
            parameters.wrong(key, "must be what JSON can say; put dates in quotes")


def _check_addresses(parameters: Fields) -> None:
    """Whether an address holds a name or a password; the message does not repeat it."""
    for key in ("base_url", "azure_endpoint"):
        address = parameters.values.get(key)
        if isinstance(address, str) and "@" in address.partition("://")[2].partition("/")[0]:
            parameters.wrong(key, "holds a name or password; take it out, and write the key as access_key")


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
