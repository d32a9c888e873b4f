"""The documentation site: every page is in its navigation, the reference is whole, and the tutorial runs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from coeval.cli import COMMANDS as COEVAL
from p2l.cli import COMMANDS
from p2l.training.train_config import TrainConfig
from route.cli import COMMANDS as ROUTE
from tests.conftest import ROOT, Command
from tools.site import DOCS, gather

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "pages"
    gather(folder)
    return folder


def names(entry: object) -> list[str]:
    """The pages of a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [name for part in parts for name in names(part)]  # type: ignore[attr-defined]


def test_the_navigation_names_pages_once(pages: Path) -> None:
    """A page that it does not name is built all the same, and found by search."""
    named = names(tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"])
    assert len(named) == len(set(named))
    assert set(named) <= {str(page.relative_to(pages)) for page in pages.rglob("*.md")}


def test_links_of_the_site_lead_somewhere(pages: Path) -> None:
    for page in pages.rglob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize(
    ("old", "target"),
    [
        ("training", "train/training"),
        ("coeval", "coeval/coeval"),
        ("coeval-config", "coeval/config"),
        ("tutorial", "start/tutorial"),
        ("experiments", "benchmarks/LOG"),
    ],
)
def test_addresses_of_pages_that_moved_lead_on(pages: Path, old: str, target: str) -> None:
    assert f'url={target}.html"' in (pages / f"{old}.html").read_text(encoding="utf-8")
    assert (pages / f"{target}.md").is_file()


def test_the_reference_has_every_command_and_key(pages: Path) -> None:
    commands = (pages / "reference-commands.md").read_text(encoding="utf-8")
    for program, table in (("p2l", COMMANDS), ("p2l-route", ROUTE), ("coeval", COEVAL)):
        assert all(f"### {program} {name}\n" in commands for name in table)
    keys = (pages / "reference-configuration.md").read_text(encoding="utf-8")
    for key in TrainConfig.model_fields:
        row = next(line for line in keys.splitlines() if line.startswith(f"| `{key}` |"))
        assert row.split("|")[-2].strip(), f"no page explains {key}"
    assert "### p2l.inference.P2L\n" in (pages / "reference-python.md").read_text(encoding="utf-8")
    assert not any(" at 0x" in page.read_text(encoding="utf-8") for page in pages.glob("reference-*.md"))


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path: Path, command: Command) -> None:
    cells = json.loads((DOCS / "start" / "tutorial.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    done = command("python", "-c", code, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert "one leaderboard for all prompts" in done.stdout
    sql, poem = done.stdout.split("Write a SQL query that finds customers")[-1].split("Write a poem about the first")
    assert sql.index("coder-32b") < sql.index("poet-8b")
    assert poem.index("poet-8b") < poem.index("coder-32b")
