"""The interface of tokenizers: from a prompt, the list of its user turns, to an encoding for a backbone.

Tokenizers register under the `model_type` of a folder's config.json; `""` serves every other type. The
implementations are in `p2l.model.tokenizer`, `p2l.model.tfidf` and `p2l.model.reader`, and are imported when the first
one is loaded.
"""

from __future__ import annotations

import hashlib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from p2l.common.errors import CheckpointError, ConfigError, InputError
from p2l.model.checkpoint import local_folder, read_object

DEFAULT_MAX_LENGTH = 8192
"""Tokens per prompt where neither the caller nor the folder sets a limit."""


Prompt: TypeAlias = "str | Sequence[str]"
"""One prompt: its text, or the user's turns in order."""


class Encoding(NamedTuple):
    """One prompt: token or feature ids, weights of features (None for tokens), and whether it was truncated."""

    ids: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32] | None
    truncated: bool
    features: npt.NDArray[np.float32] | None = None
    """(F,) what is known of the prompt beside its tokens, for backbones that ask for it."""
    known: float = 1.0
    """Share of the prompt's weighted words that are in the vocabulary; 1 where words are not features."""

    @property
    def key(self) -> bytes:
        """A fingerprint of the model's input: prompts with equal keys have equal coefficients."""
        digest = hashlib.blake2b(digest_size=20)
        digest.update(len(self.ids).to_bytes(8, "little") + self.ids.tobytes())
        for numbers in (self.values, self.features):
            digest.update(b"" if numbers is None else numbers.tobytes())
        return digest.digest() + bytes([self.truncated])


class PromptTokenizer(ABC):
    """Turns prompts (lists of user turns) into encodings."""

    max_length: int
    """Most tokens per prompt, the CLS included."""
    cls_token_id: int
    pad_token_id: int
    vocab_size: int
    """Every id is below it."""
    added_ids: tuple[int, ...] = ()
    """Ids of tokens that were added at loading, for which the backbone has no trained row."""

    @staticmethod
    def from_pretrained(
        path: str | Path,
        *,
        chat_template: str | None = None,
        max_length: int | None = None,
        cls_token_if_none: str | None = "<|cls|>",
        pad_token_if_none: str | None = "<|pad|>",
    ) -> PromptTokenizer:
        """Load the tokenizer of a model folder or hub id; InputError if there is none, or the template is unknown.

        `chat_template` is Jinja text or the name of a packaged template, by default the tokenizer's own, else `plain`;
        `max_length` counts tokens with the CLS, by default as in training. A missing CLS token is added, or an error
        if `cls_token_if_none` is None; a missing padding token is added, or the CLS if `pad_token_if_none` is None.
        """
        folder = local_folder(path)
        if max_length is not None and max_length < 2:
            raise ConfigError(f"max_length must be at least 2 (one token and the CLS), not {max_length}")
        model_type = read_object(folder / "config.json", missing={}).get("model_type")
        if "" not in TOKENIZERS:
            # Registers both tokenizers, whichever module a caller imported; they import this one.
            importlib.import_module("p2l.model.tokenizer")
        load = TOKENIZERS.get(str(model_type)) or TOKENIZERS[""]
        return load(
            folder,
            chat_template=chat_template,
            max_length=max_length or _recorded_max_length(folder),
            cls_token_if_none=cls_token_if_none,
            pad_token_if_none=pad_token_if_none,
        )

    def limit(self, rows: int, folder: str | Path) -> None:
        """Use no id beyond the `rows` of the model in `folder`; CheckpointError if it lacks more than added tokens."""
        if self.cls_token_id >= rows:
            raise CheckpointError(f"{folder}: the CLS token has id {self.cls_token_id}, the model only {rows} ids")
        if self.vocab_size > rows:
            raise CheckpointError(
                f"{folder}: the tokenizer has {self.vocab_size} tokens, the model only {rows}; "
                "copy tokenizer and model from one folder"
            )

    def forget_words(self) -> None:  # noqa: B027 - most have nothing to forget
        """Keep nothing of the texts that were encoded."""

    @abstractmethod
    def encode(self, prompts: Sequence[Sequence[str]]) -> list[Encoding]:
        """Encode each prompt, given as the list of its user turns; InputError for a prompt without turns or text."""

    @abstractmethod
    def save_pretrained(self, directory: str | Path) -> None:
        """Write the files that `from_pretrained` reads into `directory`."""


# Loaders take the folder and the keywords of `from_pretrained`, where None leaves the choice to the folder.
Loader: TypeAlias = Callable[..., PromptTokenizer]
AnyLoader = TypeVar("AnyLoader", bound=Loader)
TOKENIZERS: dict[str, Loader] = {}


def register(model_type: str) -> Callable[[AnyLoader], AnyLoader]:
    """Decorator: load folders of this model type with the decorated function."""

    def add(load: AnyLoader) -> AnyLoader:
        TOKENIZERS[model_type] = load
        return load

    return add


def check_turns(prompt: Any, number: int) -> list[str]:
    """Return the turns of a prompt, which is their list or one text; InputError, with `number`, for anything else."""
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, Iterable) or isinstance(prompt, bytes | Mapping):
        raise InputError(f"prompt {number} is neither a text nor a list of turns: {type(prompt).__name__}")
    turns = list(prompt)
    if not turns:
        raise InputError(f"prompt {number} has no turns; give at least one (it may be an empty string)")
    for turn in turns:
        if not isinstance(turn, str):
            raise InputError(f"prompt {number} has a turn that is not a text: {type(turn).__name__}")
    return turns


def _recorded_max_length(folder: Path) -> int | None:
    """Return the length that the model of this folder was trained with, if the folder records it."""
    record = read_object(folder / "config.json", missing={}).get("p2l")
    training = read_object(folder / "training_config.json", missing={})
    length = (record.get("max_length") if isinstance(record, dict) else None) or training.get("max_length")
    if length is None:
        return None
    if isinstance(length, bool) or not isinstance(length, int) or length < 2:
        raise CheckpointError(f"{folder}: max_length {length!r} in its configuration is invalid; pass max_length")
    return length
