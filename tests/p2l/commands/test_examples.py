"""`p2l examples`: what the pages name is written, once, and what a user has changed stays."""

import py_compile
import sys
from pathlib import Path

import pytest

from p2l.cli import dispatch
from p2l.common.errors import InputError
from tests.conftest import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_what_the_pages_name_is_written_and_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    py_compile.compile(str(ROOT / "examples/drift.py"))  # as an installer does with all of a wheel
    dispatch(["examples", "--output", str(tmp_path)])
    assert list(tmp_path.rglob("*.pyc")) == []
    printed = capsys.readouterr().out
    assert " were there already" not in printed
    assert "  examples/, " in printed
    for name in ("examples/to_p2l.yaml", "training_configs/deepspeed/zero1.json", "route/example_config.yaml"):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()
    dispatch(["examples", "--output", str(tmp_path)])
    assert capsys.readouterr().out.startswith("0 files written")
    mine = tmp_path / "examples/to_p2l.yaml"
    mine.write_text("changed", encoding="utf-8")
    with pytest.raises(InputError, match=r"to_p2l\.yaml: is there and differs from the example"):
        dispatch(["examples", "--output", str(tmp_path)])
    assert mine.read_text(encoding="utf-8") == "changed"


def test_every_folder_of_examples_is_part_of_the_wheel() -> None:
    """Data files of a wheel are listed; a new folder must not be forgotten."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    assert {"examples", "training_configs", "validation_sets", "benchmark"} <= set(wheel["shared-data"])
    assert all(target == f"share/p2l/{source}" for source, target in wheel["shared-data"].items())
