"""The manifest of a model folder: the size and SHA-256 of every file that coefficients depend on.

`manifest.json` is written with the folder, and config.json says that there is one. So a copy in which files are
missing, cut short, old or half overwritten can be told from a whole one, in whichever order its files arrive. Folders
of other writers have no manifest; of them only the names of required files are checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from p2l.common.errors import CheckpointError
from p2l.model.checkpoint import MODEL_LIST_FILE, digests_of, model_files, read_object, write_json

MANIFEST_FILE = "manifest.json"
_ADVICE = "copy the folder again, or wait until it is copied"
_OWN_CHANGE = f"if you changed it on purpose, delete {MANIFEST_FILE}, and 'manifest' in the configuration"


def seal(folder: Path) -> None:
    """Write the manifest of a folder in which every file of the model is."""
    config = read_object(folder / "config.json")
    config.setdefault("p2l", {})["manifest"] = True
    write_json(folder / "config.json", config)
    sizes = {name: file.stat().st_size for name, file in model_files(folder).items()}
    files = {name: {"size": sizes[name], "sha256": digest} for name, digest in digests_of(folder).items()}
    write_json(folder / MANIFEST_FILE, {"files": files})


class Stamp(NamedTuple):
    """What the file system says of a folder's files: equal stamps, equal files."""

    files: str
    """Their names, sizes, times of writing and inodes."""
    changes: str
    """When their inodes changed: other owners and modes too, but also what was written and given an older time."""


def stamp_of(folder: Path) -> Stamp | None:
    """Return the stamp of a folder's files; None while they come and go."""
    try:
        files = model_files(folder) | {MANIFEST_FILE: folder / MANIFEST_FILE}
        states = {name: file.stat() for name, file in files.items() if name != MANIFEST_FILE or file.exists()}
    except OSError:
        return None
    of_files = [f"{name} {state.st_size} {state.st_mtime_ns} {state.st_ino}" for name, state in states.items()]
    return Stamp("\n".join(of_files), " ".join(str(state.st_ctime_ns) for state in states.values()))


def check_complete(folder: Path) -> None:
    """Raise CheckpointError unless every file is there, in the size that the manifest says where there is one."""
    if not (folder / MODEL_LIST_FILE).is_file():
        raise CheckpointError(f"{folder}: lacks {MODEL_LIST_FILE}; {_ADVICE}")
    recorded = _read(folder)
    if recorded is None:
        return
    _check_names(folder, recorded, model_files(folder))
    for name, fields in recorded.items():
        size = (folder / name).stat().st_size
        if size != fields.get("size"):
            raise CheckpointError(f"{folder / name}: has {size} bytes, not those of {MANIFEST_FILE}; {_ADVICE}")


def check_contents(folder: Path, digests: Mapping[str, str]) -> None:
    """Raise CheckpointError unless the files' SHA-256 are those of the manifest, where there is one."""
    recorded = _read(folder)
    if recorded is None:
        return
    _check_names(folder, recorded, digests)
    for name, digest in digests.items():
        if digest != recorded[name].get("sha256"):
            raise CheckpointError(
                f"{folder / name}: is not the file of which {MANIFEST_FILE} speaks; {_ADVICE}; {_OWN_CHANGE}"
            )


def _read(folder: Path) -> dict[str, dict[str, Any]] | None:
    """Return what the manifest records of each file; None for a folder that has none and names none."""
    record = read_object(folder / "config.json").get("p2l")
    is_named = isinstance(record, dict) and bool(record.get("manifest"))
    if not is_named and not (folder / MANIFEST_FILE).is_file():
        return None
    files = read_object(folder / MANIFEST_FILE).get("files")
    if not isinstance(files, dict) or not all(isinstance(fields, dict) for fields in files.values()):
        raise CheckpointError(f"{folder / MANIFEST_FILE}: records no files; {_ADVICE}")
    return files


def _check_names(folder: Path, recorded: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    if missing := sorted(recorded.keys() - files.keys()):
        raise CheckpointError(f"{folder}: lacks {missing[0]}; {_ADVICE}")
    if foreign := sorted(files.keys() - recorded.keys()):
        raise CheckpointError(
            f"{folder / foreign[0]}: is none of the files of {MANIFEST_FILE}; {_ADVICE}; {_OWN_CHANGE}"
        )
