"""The interface of tokenizers: from a prompt, the list of its user turns, to an encoding for a backbone.

Tokenizers register under the `model_type` of a folder's config.json; `""` serves every other type. Whoever loads one
calls `p2l.model.tokenizer.load_tokenizer`, which stands above all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from p2l.common.errors import CheckpointError, InputError

DEFAULT_MAX_LENGTH = 8192
"""Tokens per prompt where neither the caller nor the folder sets a limit."""


Prompt: TypeAlias = "str | Sequence[str]"
"""One prompt: its text, or the user's turns in order."""


class TokenizerFailedError(CheckpointError):
    """The tokenizers library gave up on a prompt, for which the model's files are to blame and not who asks."""


@contextlib.contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise TokenizerFailedError for a panic of the tokenizers library, which no `except Exception` catches."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        # The first line says what failed, and nothing of the prompt.
        reason = (str(error).splitlines() or [""])[0][:100]
        raise TokenizerFailedError(f"the model's tokenizer failed on the prompt: {reason}") from None


class Encoding(NamedTuple):
    """One prompt: token or feature ids, weights of features (None for tokens), and whether it was truncated."""

    ids: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32] | None
    truncated: bool
    features: npt.NDArray[np.float32] | None = None
    """(F,) features of the prompt beside its tokens, for backbones that read them."""
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
        """Write the files that `load_tokenizer` reads into `directory`."""


# Loaders take the folder and the keywords of `load_tokenizer`, where None leaves the choice to the folder.
Loader: TypeAlias = Callable[..., PromptTokenizer]
_AnyLoader = TypeVar("_AnyLoader", bound=Loader)
TOKENIZERS: dict[str, Loader] = {}


def register(model_type: str) -> Callable[[_AnyLoader], _AnyLoader]:
    """Decorator: load folders of this model type with the decorated function."""

    def add(load: _AnyLoader) -> _AnyLoader:
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
