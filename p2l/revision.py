"""Which model this is: a fingerprint of what its folder holds, the same on every machine that holds a copy."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from p2l.errors import CheckpointError

__all__ = ["revision_of"]

_LENGTH = 12  # hexadecimal digits: among a million models two are alike by chance once in 500
_CHUNK = 1 << 22
# What an answer depends on. Reports, optimizer states and notes may come and go beside it.
_OF_THE_MODEL = re.compile(
    r"(config|model_list|training_config|committee|tfidf|added_tokens|vocab)\.json"
    r"|(tokenizer|special_tokens|model\.safetensors)[\w.-]*\.json"
    r"|(chat_template|additional_chat_templates)[\w.-]*|merges\.txt|vocab\.txt|[\w.-]+\.(safetensors|model)"
)


def revision_of(folder: Path) -> str:
    """12 hexadecimal digits of the SHA-256 of a model folder's files, those of a committee's members among them.

    Raises:
        CheckpointError: a file cannot be read.
    """
    files = sorted(
        (file.relative_to(folder).as_posix(), file)
        for file in [*folder.glob("*"), *folder.glob("member-*/*")]
        if file.is_file() and _OF_THE_MODEL.fullmatch(file.name)
    )
    whole = hashlib.sha256()
    for name, file in files:
        whole.update(f"{name}\0{_digest(file)}\n".encode())
    return whole.hexdigest()[:_LENGTH]


def _digest(file: Path) -> str:
    found = hashlib.sha256()
    try:
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                found.update(chunk)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from error
    return found.hexdigest()
