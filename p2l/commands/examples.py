"""Command: `p2l examples`, the configurations and examples of the documentation, written into a folder."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from p2l.common.cli import add_output, parser, run
from p2l.common.errors import InputError
from p2l.common.files import atomic_path
from p2l.common.program import shipped

_FOLDERS = ("examples", "training_configs", "validation_sets", "benchmark")
_ROUTER = Path("route") / "example_config.yaml"


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of `p2l examples`."""
    flags = parser("p2l examples", "Write the configurations and examples that the documentation names.")
    add_output(flags, "folder to write them into", metavar="DIR", default=".")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Write the files that are not there yet; refuse to change one that is."""
    target = Path(build_parser().parse_args(argv).output)
    source = shipped()
    # Without what Python keeps of the examples that were compiled with the package.
    paths = [path for name in _FOLDERS for path in sorted((source / name).rglob("*")) if path.suffix != ".pyc"]
    files = [path for path in paths if path.is_file()]
    files.append(source / _ROUTER)
    new = [path for path in files if _is_new(path, target / path.relative_to(source))]
    for path in new:
        with atomic_path(target / path.relative_to(source)) as temporary:
            temporary.write_bytes(path.read_bytes())
    unchanged = len(files) - len(new)
    already_there = f", {unchanged} were there already" if unchanged else ""
    print(f"{len(new)} files written{already_there}, in {target}:")
    print(f"  {', '.join(f'{name}/' for name in _FOLDERS)}, {_ROUTER}")


def _is_new(path: Path, target: Path) -> bool:
    """Return whether a file has to be written; InputError for one that is there with other contents."""
    if not target.exists():
        return True
    if target.read_bytes() != path.read_bytes():
        raise InputError(f"{target}: is there and differs from the example; move it, or choose another --output")
    return False


if __name__ == "__main__":
    run(main)
