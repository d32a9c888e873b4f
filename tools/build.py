"""Build the wheel and the sdist of what is committed, or check a release: `python -m tools.build [--tag v1.2.3] DIR`.

They are built from the files of HEAD alone, with the time of its commit on all of them, so that the same commit gives
the same wheel, byte for byte. Nothing is fetched: hatchling is that of this environment. With `--tag` the version of
the package must be the tag's, and CHANGELOG.md must have a section of it, the newest one.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from p2l.common.version import __version__

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("wheel", "sdist")
_BUILD = "import sys; from hatchling import build as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"


def build(output: Path) -> list[Path]:
    """Build HEAD; return the wheel and the sdist."""
    output = output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct").decode().strip()}
    files = []
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-x", "-C", folder], input=_git("archive", "HEAD"), check=True)
        for kind in KINDS:
            command = [sys.executable, "-c", _BUILD, kind, str(output)]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
            files.append(output / done.stdout.splitlines()[-1])
    return files


def release_problem(tag: str, version: str, changelog: str) -> str | None:
    """Return why a tag is not a release of this version, or None."""
    if tag != f"v{version}":
        return f"the tag is {tag}, the version {version}: set p2l/common/version.py or name the tag v{version}"
    sections = re.findall(r"^## \[([^\]]+)\]", changelog, re.MULTILINE)
    if sections[:1] != ["Unreleased"]:
        return "CHANGELOG.md: must begin with the section [Unreleased]"
    if sections[1:2] != [version]:
        return f"CHANGELOG.md: the newest release must be [{version}]; rename [Unreleased] and begin it anew"
    return None


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout


def main() -> None:
    """Build into the folder named."""
    flags = argparse.ArgumentParser(prog="python -m tools.build", description=__doc__.split("\n")[0])
    flags.add_argument("output", nargs="?", type=Path, default=ROOT / "dist", help="folder for both files")
    flags.add_argument("--tag", help="refuse to build unless this tag, the version and the changelog agree")
    arguments = flags.parse_args()
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if arguments.tag and (problem := release_problem(arguments.tag, __version__, changelog)):
        sys.exit(f"error: {problem}")
    for path in build(arguments.output):
        print(path)


if __name__ == "__main__":
    main()
