"""A configuration that is right, to be made wrong in one place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from coeval.config.keys import Keys
from coeval.config.loading import load_config
from coeval.config.reading import ConfigErrors
from coeval.schema import Config

Raw = dict[str, Any]
Change = Callable[[Raw], object]

GOOD: Raw = {
    "models": [
        {"name": "ant", "interface": "mock", "roles": ["teacher", "student"]},
        {"name": "bee", "interface": "mock", "roles": ["student", "judge"], "parameters": {"skill": 0.5}},
    ],
    "tasks": [
        {
            "name": "sums",
            "description": "Add numbers.",
            "output_description": "A number.",
            "target_attributes": {"size": ["small", "large"], "sign": ["+", "-"]},
            "nuanced_attributes": {"tone": ["plain", "odd"]},
            "sampling": {"target": [1, 2], "nuance": [1], "total": 3},
            "rubric": {"right": "The sum is right."},
        }
    ],
    "experiment": {"id": "first", "storage_folder": "runs"},
}


def write(folder: Path, change: Change | None = None, name: str = "experiment.yaml") -> Path:
    """The configuration as a file whose runs lie in `folder`."""
    raw = copy.deepcopy(GOOD)
    raw["experiment"]["storage_folder"] = str(folder / "runs")
    if change is not None:
        change(raw)
    path = folder / name
    path.write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    return path


def load(folder: Path, change: Change | None = None, *, env: dict[str, str] | None = None, **options: Any) -> Config:
    """The configuration, changed and loaded."""
    return load_config(write(folder, change), keys=Keys(env=env or {}), **options)


def mistakes(folder: Path, change: Change | None = None, **options: Any) -> list[str]:
    """What is wrong with it, without the name of the file."""
    try:
        load(folder, change, **options)
    except ConfigErrors as errors:
        return [message.replace(f"{folder}/", "") for message in errors.messages]
    return []


def put(*where: Any) -> Change:
    """Set a value: keys and positions, then the value."""
    *path, last, value = where

    def change(raw: Any) -> None:
        for part in path:
            raw = raw[part]
        raw[last] = value

    return change


def model(**keys: Any) -> Change:
    """Set keys of the first model."""
    return lambda raw: raw["models"][0].update(keys)


def task(**keys: Any) -> Change:
    """Set keys of the task."""
    return lambda raw: raw["tasks"][0].update(keys)


def experiment(**keys: Any) -> Change:
    """Set keys of the experiment."""
    return lambda raw: raw["experiment"].update(keys)
