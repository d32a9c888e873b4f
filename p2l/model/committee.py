"""The folder of a committee: several models whose coefficients are averaged.

`committee.json` names the members' folders beside it; `model_list.json` is common to all members.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from p2l.common.errors import CheckpointError, InputError
from p2l.common.files import atomic_path
from p2l.model.checkpoint import MODEL_LIST_FILE, local_folder, read_model_list, read_object, write_json
from p2l.model.manifest import seal
from p2l.model.model import P2LModel

COMMITTEE_FILE = "committee.json"
_OF_A_MODEL = (".json", ".safetensors", ".jinja", ".txt", ".model")


def join(models: Sequence[str | Path], output: Path) -> None:
    """Write the committee of `models` into a new folder; InputError unless their names and likelihood are equal."""
    if len(models) < 2:
        raise InputError("a committee needs at least two members; add another model")
    if output.exists():
        raise InputError(f"{output}: exists; choose another --output or remove it")
    folders = [local_folder(model) for model in models]
    model_list = _common_model_list(folders)
    with atomic_path(output, directory=True) as unfinished:
        names = [f"member-{number}" for number in range(1, len(folders) + 1)]
        for name, folder in zip(names, folders, strict=True):
            (unfinished / name).mkdir()
            for file in sorted(folder.iterdir()):
                if file.is_file() and file.suffix in _OF_A_MODEL:
                    shutil.copyfile(file, unfinished / name / file.name)
        write_json(unfinished / MODEL_LIST_FILE, model_list)
        write_json(unfinished / COMMITTEE_FILE, {"members": names})
        seal(unfinished)


def _common_model_list(folders: Sequence[Path]) -> list[str]:
    """Return the members' common model list, and refuse members that cannot be averaged."""
    for folder in folders:
        if (folder / COMMITTEE_FILE).exists():
            raise InputError(f"{folder}: is itself a committee; name its members instead")
    first, *others = [P2LModel.from_pretrained(folder) for folder in folders]
    for folder, model in zip(folders[1:], others, strict=True):
        if model.model_list != first.model_list:
            raise InputError(f"{folder}: was trained on other models than {folders[0]}; train both on the same votes")
        if model.likelihood != first.likelihood:
            raise InputError(
                f"{folder}: has the likelihood {model.likelihood.name}, {folders[0]} {first.likelihood.name}; "
                "their coefficients cannot be averaged"
            )
    return first.model_list


def member_folders(folder: Path) -> list[Path]:
    """Return the model folders of a committee (CheckpointError if it is incomplete); of any other folder itself."""
    if not (folder / COMMITTEE_FILE).is_file():
        return [folder]
    names = read_object(folder / COMMITTEE_FILE).get("members")
    if not isinstance(names, list) or not names or not all(_is_plain_name(name) for name in names):
        raise CheckpointError(f"{folder / COMMITTEE_FILE}: 'members' must be a list of folder names; make it again")
    members = [folder / name for name in names]
    expected = read_model_list(folder)
    for member in members:
        if read_model_list(member) != expected:
            raise CheckpointError(f"{member}: its {MODEL_LIST_FILE} is not the committee's; make the committee again")
    return members


def _is_plain_name(name: object) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and Path(name).name == name
