"""The configuration as a run keeps it: what was asked for and how it was resolved, without anything secret.

A secret is known by its key (`api_key`, `session_token`, ...), by its look (`sk-...`), or because it is one of the keys
in use.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coeval.config.schema import Config, Model

__all__ = ["REDACTED", "redacted", "snapshot", "snapshot_text"]

REDACTED = "<redacted>"
"""Stands for a secret; where a configuration with it is read again, the key comes from the key file or environment."""

_SECRET_KEY = re.compile(
    r"(?:^|[_-])(?:api|access|secret|private|account|auth|subscription|service)[_-]?(?:access[_-]?)?key(?:[_-]?id)?$"
    r"|^(?:key|token)$|(?:session|auth|access|api|bearer|hf|refresh|id)[_-]token$|apikey|passw|secret|credential"
    r"|authorization",
    re.IGNORECASE,
)
_SECRET_LOOK = re.compile(
    r"\b(?:sk-[\w-]{12,}|AIza[\w-]{20,}|hf_\w{16,}|gsk_\w{16,}|gh[pousr]_\w{16,}|xai-\w{16,}|AKIA[A-Z0-9]{12,})"
)
_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)|(?<=[?&]key=)[^&\s]+|(?<=[?&]api[_-]key=)[^&\s]+")
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")


def redacted(value: Any, secrets: Collection[str] = (), key: str = "", *, by_key: bool = True) -> Any:
    """A copy of what YAML or JSON holds, each secret in it replaced; names of variables, `${NAME}`, may stay.

    Args:
        value: the whole, or a part.
        secrets: texts that must not show anywhere.
        key: whose value it is.
        by_key: whether names of keys tell secrets; not in tasks, whose attributes and factors may have any name.
    """
    if isinstance(value, Mapping):
        return {name: redacted(inner, secrets, str(name), by_key=by_key) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(inner, secrets, key, by_key=by_key) for inner in value]
    if value is None or isinstance(value, bool):
        return value
    if by_key and _SECRET_KEY.search(key):
        return value if isinstance(value, str) and _REFERENCE.fullmatch(value) else REDACTED
    return _masked(value, secrets) if isinstance(value, str) else value


def _masked(text: str, secrets: Collection[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 6:
            text = text.replace(secret, REDACTED)
    return _IN_URL.sub(REDACTED, _SECRET_LOOK.sub(REDACTED, text))


def snapshot(config: Config, secrets: Collection[str] = ()) -> dict[str, Any]:
    """What the run's `config.yaml` says: the file, and for each `interface: auto` what it became (`resolved`).

    Args:
        config: as it was loaded.
        secrets: the keys in use, `Keys.secrets()`.
    """
    kept = {part: redacted(value, secrets, by_key=part != "tasks") for part, value in config.raw.items()}
    models = {model.name: model for model in config.models}
    for entry in kept.get("models", []):
        if entry.get("interface") == "auto":
            model = models[entry["name"]]
            entry["resolved"] = {"interface": model.interface, **_names_of(model)}
    return kept


def _names_of(model: Model) -> dict[str, Any]:
    """What its provider calls it; by role where that differs."""
    if len(model.asked_for) == 1:
        return {"model": next(iter(model.asked_for))}
    return {"models": {role: model.model_id(role) for role in model.roles}}


def snapshot_text(config: Config, secrets: Collection[str] = ()) -> str:
    """The same as YAML."""
    import yaml

    return yaml.safe_dump(snapshot(config, secrets), sort_keys=True, allow_unicode=True, width=120)
