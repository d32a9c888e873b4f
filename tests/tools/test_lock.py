"""The lock: it agrees with pyproject.toml, every line has hashes, and pip obeys them. No network is asked."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from packaging.markers import Marker, default_environment
from packaging.requirements import Requirement

from tests.conftest import ROOT
from tools.lock import (
    CONSTRAINTS,
    LOCK,
    OLDEST_PYTHON,
    TOOLS_LOCK,
    Pin,
    extra_requirements,
    format_constraints,
    format_lock,
    main,
    parse_pins,
    read_project,
    requirement_name,
)

PROJECT = read_project()["project"]
EXTRAS = sorted(PROJECT["optional-dependencies"])
PINS, TOOLS = (parse_pins(path.read_text(encoding="utf-8")) for path in (LOCK, TOOLS_LOCK))
VERSIONS = [line for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
TORCH = [Pin("torch", line.removeprefix("torch=="), "", (), ()) for line in VERSIONS if line.startswith("torch==")]
SYSTEMS = {"linux": "Linux", "darwin": "Darwin", "win32": "Windows"}
ENVIRONMENTS = [
    {
        **default_environment(),
        "python_version": python,
        "python_full_version": f"{python}.1",
        "sys_platform": platform,
        "platform_system": system,
        "platform_machine": "x86_64",
        "extra": "",
    }
    for python in ("3.10", "3.11", "3.12", "3.13")
    for platform, system in SYSTEMS.items()
]


def applies(marker: str | Marker | None, environment: dict[str, str]) -> bool:
    return not marker or Marker(str(marker)).evaluate(environment)


def pinned(pins: list[Pin], environment: dict[str, str]) -> dict[str, str]:
    """Versions by name in one environment, where no name may come twice."""
    names = [(pin.name, pin.version) for pin in pins if applies(pin.marker, environment)]
    assert [name for name, count in Counter(name for name, _ in names).items() if count > 1] == []
    return dict(names)


def assert_locked(requirements: list[str], pins: list[Pin]) -> None:
    for environment in ENVIRONMENTS:
        versions = pinned(pins, environment)
        for requirement in map(Requirement, requirements):
            if applies(requirement.marker, environment):
                version = versions.get(requirement_name(requirement.name))
                assert version is not None, f"{requirement} is not locked; run `make lock`"
                assert requirement.specifier.contains(version, prereleases=True), f"{requirement}: run `make lock`"


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_an_extra_requires_is_locked(extra: str) -> None:
    assert_locked([*PROJECT["dependencies"], *extra_requirements(PROJECT, extra)], [*PINS, *TORCH])


def test_what_builds_and_what_locks_is_locked() -> None:
    assert_locked(read_project()["build-system"]["requires"], PINS)
    assert_locked(read_project()["dependency-groups"]["tools"], TOOLS)


def test_what_a_locked_package_requires_is_locked() -> None:
    """As far as it is installed here at the version that is locked."""
    environment = {**default_environment(), "extra": ""}
    versions = pinned([*PINS, *TORCH], environment)
    compared = 0
    for pin in PINS:
        try:
            installed = importlib.metadata.distribution(pin.name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if installed.version == versions.get(pin.name) == pin.version:
            compared += 1
            for requirement in map(Requirement, installed.requires or ()):
                if applies(requirement.marker, environment):
                    version = versions.get(requirement_name(requirement.name))
                    assert version is not None, f"{pin.name} requires {requirement}"
                    assert requirement.specifier.contains(version, prereleases=True), f"{pin.name}: {requirement}"
    assert compared > 50


def test_every_locked_package_has_a_hash() -> None:
    assert [pin.requirement for pin in [*PINS, *TOOLS] if not pin.hashes] == []
    # A package with code for machines has a file for each of them: all must be there, not those of one machine.
    assert min(len(pin.hashes) for pin in PINS if pin.name in {"numpy", "pyarrow", "pydantic-core"}) > 20


def test_builds_of_torch_are_left_out() -> None:
    assert len(TORCH) == 1
    assert [pin.name for pin in PINS if re.match(r"torch$|triton|nvidia|cuda", pin.name)] == []


def test_constraints_are_the_versions_of_the_lock() -> None:
    assert format_constraints([*TORCH, *PINS]).splitlines() == VERSIONS


def test_a_lock_names_neither_host_nor_folder() -> None:
    for path in (LOCK, TOOLS_LOCK, CONSTRAINTS):
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"\w+:/|--index|--find|--trusted", text) == []
        assert [line for line in text.splitlines() if not line.startswith("#") and "/" in line] == []


def test_a_lock_is_read_as_it_is_written() -> None:
    assert parse_pins(format_lock(PINS)) == PINS
    assert PROJECT["requires-python"] == f">={OLDEST_PYTHON}"


def test_a_lock_of_uv_is_read() -> None:
    digest = "sha256:" + "a" * 64
    text = f"# head\na-b==1.0 ; python_full_version < '3.11' \\\n    --hash={digest} \\\n    --hash={digest}\n"
    text += f"    # via\n    #   c\n    #   p2l (pyproject.toml)\nc==2 \\\n    --hash={digest}\n    # via a-b\n"
    assert parse_pins(text) == [
        Pin("a-b", "1.0", "python_full_version < '3.11'", (digest, digest), ("c", "p2l")),
        Pin("c", "2", "", (digest,), ("a-b",)),
    ]


def test_an_extra_has_its_part_of_the_lock(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--extra", "route", "--extra", "lp"]) == 0
    part = parse_pins(capsys.readouterr().out)
    assert set(part) < set(PINS)
    assert_locked([*PROJECT["dependencies"], *extra_requirements(PROJECT, "route")], part)
    names = {pin.name for pin in part}
    assert {"yarl", "multidict", "clarabel", "hatchling"} <= names  # of aiohttp, of cvxpy, and what builds
    assert names & {"transformers", "pytest", "pandas", "deepspeed"} == set()


@pytest.mark.parametrize("right", [True, False])
def test_pip_refuses_a_file_of_another_hash(tmp_path: Path, right: bool) -> None:
    wheel = tmp_path / "tiny_wheel-1.0-py3-none-any.whl"
    info = "tiny_wheel-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("tiny_wheel.py", "")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-wheel\nVersion: 1.0\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", f"tiny_wheel.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    digest = hashlib.sha256(wheel.read_bytes() if right else b"another file").hexdigest()
    lock = tmp_path / "lock.txt"
    lock.write_text(format_lock([Pin("tiny-wheel", "1.0", "", (f"sha256:{digest}",), ("p2l",))]), encoding="utf-8")
    command = [sys.executable, "-m", "pip", "--isolated", "install", "--no-index", "--find-links", str(tmp_path)]
    command += ["--require-hashes", "--no-deps", "--target", str(tmp_path / "target"), "--requirement", str(lock)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == right, done.stderr
    assert (tmp_path / "target" / "tiny_wheel.py").exists() == right
    assert ("DO NOT MATCH THE HASHES" in done.stderr) != right
