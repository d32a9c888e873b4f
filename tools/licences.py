"""The licences of what is locked, by what the installed packages say of themselves: docs/operate/licences.md.

    python -m tools.licences        # writes the page anew, after a change of the lock

Packages that are not installed here (of other systems or Pythons) keep the licence that the page has for them.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections import defaultdict
from collections.abc import Mapping

from tools.lock import LOCK, ROOT, parse_pins, requirement_name

PAGE = ROOT / "docs" / "operate" / "licences.md"
_BEGIN = "| licence | packages |\n|---|---|\n"
_FILE = "licenses/LICENSE"  # of packages whose metadata are silent
# Licences that packages write in words, or as a classifier, by their identifiers in SPDX.
_SPDX = {
    "MIT License": "MIT",
    "BSD License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "Apache Software License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache License": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache": "Apache-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "ISC License (ISCL)": "ISC",
    "Academic Free License (AFL)": "AFL-2.1",
    "GPLv2": "GPL-2.0",
}


def licence_of(name: str) -> str | None:
    """Return the licence of an installed package as an expression of SPDX; None where it is not installed."""
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    if "License-Expression" in metadata:
        return str(metadata["License-Expression"])
    marks = [
        text.split("::")[-1].strip() for text in metadata.get_all("Classifier") or () if text.startswith("License ::")
    ]
    names = sorted({_SPDX.get(mark, mark) for mark in marks if mark != "OSI Approved"})
    if names:
        return " OR ".join(names)
    text = "".join(metadata.get_all("License") or ()) or importlib.metadata.distribution(name).read_text(_FILE) or ""
    first = text.strip().split("\n")[0].strip()
    return _SPDX.get(first, first) or "unknown"


def listed() -> dict[str, str]:
    """Return the licence of each package on the page."""
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8").partition(_BEGIN)[2], re.MULTILINE
    )
    return {name.strip(): licence for licence, names in rows for name in names.split(",")}


def table(licences: Mapping[str, str]) -> str:
    """Return the rows of the page: each licence and its packages."""
    packages: dict[str, list[str]] = defaultdict(list)
    for name in sorted(licences):
        packages[licences[name]].append(name)
    rows = sorted(packages.items(), key=lambda row: (-len(row[1]), row[0]))
    return "".join(f"| {licence} | {', '.join(names)} |\n" for licence, names in rows)


def main() -> int:
    """Write the page; exit code 1 for a package whose licence nobody says."""
    known = listed()
    names = {requirement_name(pin.name) for pin in parse_pins(LOCK.read_text(encoding="utf-8"))} | {"torch"}
    licences = {name: licence_of(name) or known.get(name, "unknown") for name in names}
    text = PAGE.read_text(encoding="utf-8").partition(_BEGIN)[0]
    PAGE.write_text(text + _BEGIN + table(licences), encoding="utf-8")
    unknown = [name for name, licence in licences.items() if licence == "unknown"]
    print(
        f"{len(licences)} packages; the licence of none is unknown" if not unknown else f"unknown: {', '.join(unknown)}"
    )
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
