"""Known vulnerabilities of what is locked, by a database of advisories on the disk, where no service can be asked.

    python -m tools.audit --osv all.zip

The database is in the format of OSV (https://ossf.github.io/osv-schema): the zip of an ecosystem, a folder of its JSON
files, or one file. Every pin of the locks and of constraints.txt is looked up, whichever Python it is for.
"""

from __future__ import annotations

import argparse
import json
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from tools.lock import CONSTRAINTS, LOCK, TOOLS_LOCK, parse_pins, requirement_name

_ECOSYSTEM = "PyPI"


class Finding(NamedTuple):
    """An advisory that concerns a locked version."""

    package: str
    version: str
    advisory: str
    fixed: str
    """The first fixed version, or an empty text."""
    summary: str


class DatabaseError(Exception):
    """The database cannot be read, or holds nothing of this ecosystem."""


def advisories(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the advisories of a database; raise DatabaseError where one cannot be read."""
    try:
        if path.is_dir():
            for file in sorted(path.rglob("*.json")):
                yield _parsed(file.read_bytes(), str(file))
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if name.endswith(".json"):
                        yield _parsed(archive.read(name), f"{path}: {name}")
        else:
            content = json.loads(path.read_bytes())
            for entry in content if isinstance(content, list) else [content]:
                yield _checked(entry, str(path))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DatabaseError(f"{path}: cannot be read: {error}") from error


def _parsed(text: bytes, place: str) -> Mapping[str, Any]:
    return _checked(json.loads(text), place)


def _checked(entry: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        raise DatabaseError(f"{place}: is no advisory of OSV's format")
    return entry


def findings(pins: Mapping[str, set[str]], entries: Iterator[Mapping[str, Any]]) -> list[Finding]:
    """Return the advisories that concern a version of `pins` (versions by name); DatabaseError if none is of PyPI."""
    matches: list[Finding] = []
    is_of_pypi = False
    for entry in entries:
        for affected in entry.get("affected") or []:
            package = affected.get("package") or {}
            if package.get("ecosystem") != _ECOSYSTEM:
                continue
            is_of_pypi = True
            name = requirement_name(str(package.get("name")))
            for version in sorted(pins.get(name, ())):
                if not entry.get("withdrawn") and _concerns(affected, version):
                    summary = " ".join(str(entry.get("summary") or "").split())
                    matches.append(Finding(name, version, entry["id"], _fixed_by(affected, version), summary))
    if not is_of_pypi:
        raise DatabaseError(f"the database has no advisory of {_ECOSYSTEM}: nothing could be found in it")
    return sorted(set(matches))


def _concerns(affected: Mapping[str, Any], version: str) -> bool:
    if version in (affected.get("versions") or ()):
        return True
    return any(_is_within(each.get("events") or [], version) for each in _ranges(affected))


def _ranges(affected: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [each for each in affected.get("ranges") or [] if each.get("type") == "ECOSYSTEM"]


def _is_within(events: Sequence[Mapping[str, str]], version: str) -> bool:
    """Return whether a version lies within a range, by the algorithm of OSV's schema."""
    is_affected = False
    for kind, place in sorted(((*event.items(),)[0] for event in events), key=lambda event: _order(event[1])):
        is_past = _order(version) > _order(place)
        if is_past or _order(version) == _order(place):
            # The last affected version is affected itself, the fixed one is not.
            is_affected = kind == "introduced" or (kind == "last_affected" and not is_past and is_affected)
    return is_affected


def _order(version: str) -> Version:
    try:
        return Version(version)
    except InvalidVersion as error:
        raise DatabaseError(f"{version!r} is no version") from error


def _fixed_by(affected: Mapping[str, Any], version: str) -> str:
    fixes = [event["fixed"] for each in _ranges(affected) for event in each.get("events") or [] if "fixed" in event]
    return min((fix for fix in fixes if _order(fix) > _order(version)), key=_order, default="")


def locked() -> dict[str, set[str]]:
    """Return the locked versions by name: of both locks, and of torch, which constraints.txt has."""
    versions: dict[str, set[str]] = {}
    for file in (LOCK, TOOLS_LOCK):
        for pin in parse_pins(file.read_text(encoding="utf-8")):
            versions.setdefault(requirement_name(pin.name), set()).add(pin.version)
    for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines():
        if line.startswith("torch=="):
            versions["torch"] = {line.split(";")[0].split("==")[1].strip()}
    return versions


def main(argv: Sequence[str] | None = None) -> int:
    """Print what is found; exit code 1 if anything is, 2 where the database cannot be used."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--osv", type=Path, required=True, metavar="PATH", help="zip, folder or file of advisories")
    flags = parser.parse_args(argv)
    pins = locked()
    try:
        matches = findings(pins, advisories(flags.osv))
    except DatabaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for each in matches:
        fix = f"fixed in {each.fixed}" if each.fixed else "no fixed version"
        print(f"{each.package} {each.version}: {each.advisory} ({fix}) {each.summary}")
    print(f"{len(pins)} locked packages, {len(matches)} advisories concern them")
    return 1 if matches else 0


if __name__ == "__main__":
    sys.exit(main())
