"""What is released: the same wheel from the same commit, with all that the pages name; the README runs from it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from p2l.common.version import __version__
from tests.conftest import ROOT
from tools.build import build, release_problem

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="needs a checkout")
CARRIED = ("examples", "training_configs", "validation_sets", "benchmark")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist."""
    wheel, sdist = build(tmp_path_factory.mktemp("dist"))
    return wheel, sdist


def committed(*folders: str) -> set[str]:
    """The files of these folders that are committed."""
    done = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", "HEAD", *folders], cwd=ROOT, capture_output=True, text=True
    )
    return set(done.stdout.splitlines())


@pytest.mark.slow
def test_the_same_commit_gives_the_same_wheel(built: tuple[Path, Path], tmp_path: Path) -> None:
    assert build(tmp_path)[0].read_bytes() == built[0].read_bytes()


def test_the_wheel_with_the_public_model_stays_small(built: tuple[Path, Path]) -> None:
    assert built[0].stat().st_size < 12e6


def test_wheel_and_sdist_hold_what_the_pages_name(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(f"p2l-{__version__}.dist-info/METADATA").decode()
    shared = f"p2l-{__version__}.data/data/share/p2l/"
    assert {f"{shared}{name}" for name in committed(*CARRIED)} <= names
    assert f"{shared}route/example_config.yaml" in names
    files = committed("p2l", "route", "coeval", "router")
    assert files <= names
    for field in ("License-Expression: Apache-2.0", "License-File: LICENSE", "Requires-Python: >=3.10", "Keywords: "):
        assert field in metadata
    with tarfile.open(built[1]) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    workflows = committed(".github/workflows")
    assert committed() - held <= {".gitignore", ".ci/run", "zensical.toml"} | workflows


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_targets_that_exist_and_states_its_rights(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert "write" not in workflow["permissions"].values()
    lines = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    for line in lines:
        words = shlex.split(line)
        if words[0] == "helm":  # which another step sets up
            assert (ROOT / "deploy" / "chart" / "Chart.yaml").is_file()
            assert "deploy/chart" in words
        elif words[0] == "make":
            subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True)
        else:
            assert words[0].startswith(".venv/") or (ROOT / words[0]).is_file(), line


def test_a_release_is_audited_and_attested() -> None:
    build = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))["jobs"][
        "build"
    ]
    steps = [step.get("run") or step["uses"].partition("@")[0] for step in build["steps"]]
    attested = ["actions/attest-build-provenance", "actions/attest-sbom"]
    order = [steps.index(name) for name in ("make audit", "make sbom", *attested)]
    assert order == sorted(order)
    assert build["permissions"] == {"contents": "read", "id-token": "write", "attestations": "write"}
    for step in build["steps"]:
        if step.get("uses", "").startswith("actions/attest"):
            assert step["with"]["subject-path"] == "dist/*"


def test_a_tag_the_version_and_the_changelog_follow_each_other() -> None:
    released = "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-01-01\n"
    assert release_problem("v1.2.0", "1.2.0", released) is None
    assert "the tag is v1.3.0, the version 1.2.0" in str(release_problem("v1.3.0", "1.2.0", released))
    assert "the newest release must be [1.3.0]" in str(release_problem("v1.3.0", "1.3.0", released))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    problem = release_problem(f"v{__version__}", __version__, changelog)
    assert problem is None or "the newest release must be" in problem


@pytest.mark.slow
def test_the_readme_runs_from_an_installed_wheel_in_an_empty_folder(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Nothing of the checkout is there but the page and the tool that runs its blocks."""
    place = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", place, built[0]]
    subprocess.run(install, check=True)
    for name in ("README.md", "tools/run_docs.py"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "tests/p2l/votes/logs/lm_eval", tmp_path / "empty" / "eval_logs")
    environment = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{place / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    line = [sys.executable, tmp_path / "run_docs.py", "--keep", tmp_path / "empty", tmp_path / "README.md"]
    done = subprocess.run(line, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
