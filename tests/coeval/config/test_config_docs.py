"""The page about the configuration says what the code does."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from coeval.config.keys import Keys
from coeval.config.loading import load_config
from coeval.config.models import ExperimentEntry, ModelEntry
from coeval.config.reading import Entry
from coeval.config.tasks import TaskEntry
from coeval.interfaces import INTERFACES
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "coeval" / "config.md").read_text(encoding="utf-8")


def rows(heading: str) -> dict[str, str]:
    """First cell -> second, of the table in a section."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n##")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| ([^|]*?) \|", section, re.MULTILINE))


@pytest.mark.parametrize(
    ("heading", "entry"), [("Models", ModelEntry), ("Tasks", TaskEntry), ("Experiment", ExperimentEntry)]
)
def test_every_key_is_documented(heading: str, entry: type[Entry]) -> None:
    assert tuple(rows(heading)) == tuple(entry.model_fields)


@pytest.fixture
def config(tmp_path: Path) -> Any:
    path = tmp_path / "example.yaml"
    path.write_text(re.findall(r"^```yml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0], encoding="utf-8")
    return load_config(path, keys=Keys(env={"GROQ_API_KEY": "k"}))


def test_the_example_is_sound(config: Any) -> None:
    assert config.models[1].interface == "groq"


@pytest.mark.parametrize(
    "key", [key for key in ExperimentEntry.model_fields if key not in ("id", "storage_folder", "phases")]
)
def test_documented_defaults_are_those_of_the_code(config: Any, key: str) -> None:
    said = yaml.safe_load(rows("Experiment")[key].strip("`"))
    found = getattr(config.experiment, key)
    assert (None if said == "none" else said) == (dict(found) if said == {} else found)


def test_the_variables_of_every_interface_are_documented() -> None:
    table = rows("Keys")
    for interface, spec in INTERFACES.items():
        if spec.protocol and spec.protocol != "mock":
            assert all(name in table[interface] for name in spec.key_variables), interface
