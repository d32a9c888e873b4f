"""Lock what every extra needs, with hashes: write the locks and constraints.txt, or print the part of an extra."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
TOOLS_LOCK = ROOT / "tools" / "requirements.lock"
CONSTRAINTS = ROOT / "constraints.txt"
OLDEST_PYTHON = "3.10"
# Which build of torch is right differs by machine and index, and so do its hashes and the libraries that it brings.
TORCH_BUILDS = re.compile(r"torch|triton|(nvidia|cuda)-.*")

LOCK_HEADER = """\
# Written by `make lock`, never by hand: every package of every extra, and of what builds it, for Python 3.10 and newer
# on every platform, with the hashes of all files of the release.
#   pip install --require-hashes --no-deps --no-build-isolation --requirement requirements.lock
# torch is not here, because its builds differ by index: constraints.txt has its version. See SECURITY.md.
"""
TOOLS_HEADER = """\
# Written by `make lock`, never by hand: what `make lock`, `make sbom` and `make audit` run (the group `tools` of
# pyproject.toml), with hashes. They get an environment of their own.
"""
CONSTRAINTS_HEADER = """\
# Written by `make lock`, never by hand: exact versions that work together, those of requirements.lock and torch, for
# installing what you choose: `pip install -c constraints.txt ...`. requirements.lock adds hashes.
"""


class Pin(NamedTuple):
    """A package at the one version that is locked for the environments of its marker."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    parents: tuple[str, ...]
    """Names of the packages that require it; `p2l` is this project."""

    @property
    def requirement(self) -> str:
        """Return the line of a requirements file that names this version."""
        return f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")


def parse_pins(text: str) -> list[Pin]:
    """Read a requirements file with hashes and `# via` comments, as uv and `format_lock` write it."""
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    return [_parse_pin(block) for block in re.split(r"\n(?=\S)", text.strip())]


def _parse_pin(block: str) -> Pin:
    requirement, _, rest = block.partition("\n")
    match = re.fullmatch(r"([a-z0-9.-]+)==(\S+?)(?: ; (.+?))?(?: \\)?", requirement.strip())
    if match is None:
        raise ValueError(f"not a pinned package: {requirement}")
    name, version, marker = match.groups()
    comments = re.sub(r"# via\b", "#", rest)
    lists = re.findall(r"^ +# +(\S.*)$", comments, re.MULTILINE)
    parents = [re.sub(r" \(.*\)$", "", parent) for names in lists for parent in names.split(", ")]
    hashes = re.findall(r"--hash=(sha256:[0-9a-f]{64})", rest)
    return Pin(name, version, marker or "", tuple(hashes), tuple(parents))


def format_lock(pins: Iterable[Pin]) -> str:
    """Write pins as pip reads them with `--require-hashes`, each with the packages that require it."""
    blocks = []
    for pin in pins:
        lines = [pin.requirement, *(f"    --hash={digest}" for digest in pin.hashes)]
        blocks.append(" \\\n".join(lines) + f"\n    # via {', '.join(pin.parents)}\n")
    return "".join(blocks)


def format_constraints(pins: Iterable[Pin]) -> str:
    """Write the versions alone."""
    return "".join(f"{pin.requirement}\n" for pin in pins)


def read_project() -> dict[str, Any]:
    """Read pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return project


def requirement_name(requirement: str) -> str:
    """Return the name that a requirement begins with, as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~\[;]", requirement)[0]).lower()


def extra_requirements(project: dict[str, Any], extra: str) -> list[str]:
    """Return what an extra requires, the extras that it includes laid open."""
    requirements = []
    for requirement in project["optional-dependencies"][extra]:
        if requirement_name(requirement) == project["name"]:
            inner = re.findall(r"[\w-]+", requirement.partition("[")[2])
            requirements += [line for name in inner for line in extra_requirements(project, name)]
        else:
            requirements.append(requirement)
    return requirements


def select_pins(pins: Sequence[Pin], names: Iterable[str]) -> list[Pin]:
    """Keep the packages named and all that these require."""
    reached, size = set(names), 0
    while size != len(reached):
        size = len(reached)
        reached |= {pin.name for pin in pins if reached & set(pin.parents)}
    return [pin for pin in pins if pin.name in reached]


def resolve(arguments: Sequence[str], preferred: str, stdin: str = "") -> list[Pin]:
    """Ask uv for versions and hashes; versions of `preferred` stay where they satisfy."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "resolved.txt"
        output.write_text(preferred, encoding="utf-8")
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes"]
        command += ["--python-version", OLDEST_PYTHON, "--no-header", "--output-file", str(output), *arguments]
        subprocess.run(command, cwd=ROOT, input=stdin, text=True, stdout=subprocess.DEVNULL, check=True)
        return parse_pins(output.read_text(encoding="utf-8"))


def write_locks(upgrade: bool) -> None:
    """Resolve the extras and the tools anew and write the three files."""
    options = ["--upgrade"] if upgrade else []
    build = "\n".join(read_project()["build-system"]["requires"])
    preferred = {path: path.read_text(encoding="utf-8") if path.exists() else "" for path in (CONSTRAINTS, TOOLS_LOCK)}
    pins = resolve(["pyproject.toml", "-", "--all-extras", *options], preferred[CONSTRAINTS], build)
    locked = [pin for pin in pins if not TORCH_BUILDS.fullmatch(pin.name)]
    torch = [pin for pin in pins if pin.name == "torch"]
    tools = resolve(["--group", "pyproject.toml:tools", *options], preferred[TOOLS_LOCK])
    LOCK.write_text(LOCK_HEADER + format_lock(locked), encoding="utf-8")
    CONSTRAINTS.write_text(CONSTRAINTS_HEADER + format_constraints([*torch, *locked]), encoding="utf-8")
    TOOLS_LOCK.write_text(TOOLS_HEADER + format_lock(tools), encoding="utf-8")


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.lock", description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions instead of those locked now")
    extras = sorted(read_project()["project"]["optional-dependencies"])
    extra_help = "print the part of the lock that an extra needs, and write nothing; may be repeated"
    parser.add_argument("--extra", action="append", choices=extras, help=extra_help)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = build_parser().parse_args(argv)
    if not arguments.extra:
        write_locks(arguments.upgrade)
        return 0
    project = read_project()
    requirements = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in arguments.extra:
        requirements += extra_requirements(project["project"], extra)
    pins = parse_pins(LOCK.read_text(encoding="utf-8"))
    print(format_lock(select_pins(pins, map(requirement_name, requirements))), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
