"""What a run says of itself, for whoever needs no checked configuration and no open `Meta`: damage is nothing said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coeval.storage.jsonl import read_json
from coeval.storage.layout import Run

__all__ = ["entries_of", "stored_config", "stored_meta"]


def stored_config(run: Run) -> dict[str, Any]:
    """The configuration that a run keeps; empty where it cannot be read."""
    import yaml

    try:
        found = yaml.safe_load(run.config.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):  # UnicodeDecodeError too, and a date that is none
        return {}
    return found if isinstance(found, dict) else {}


def entries_of(config: Mapping[str, Any], part: str) -> list[dict[str, Any]]:
    """The `models` or `tasks` of a configuration, those that are maps."""
    found = config.get(part)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def stored_meta(run: Run) -> dict[str, Any] | None:
    """What `meta.json` holds; None where it cannot be read."""
    found = read_json(run.meta)
    return found if isinstance(found, dict) else None
