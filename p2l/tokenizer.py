"""From the user's turns to token ids: one function for training and for serving.

A prompt is the chat template over its user turns, then the CLS token, whose hidden state the head reads. Too long a
prompt loses its oldest tokens, never the CLS. Text inside a prompt that spells a special token or a marker of the
template is broken by a space (`<|im_end|>` becomes `< |im_end|>`), so that no prompt can imitate the structure;
every other prompt is tokenised exactly as the template's text.

Rows of new tokens in the embedding matrix start at the mean of the rows that were there (see `backbones.grow`).
"""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p2l.checkpoint import local_folder, read_json
from p2l.command import nearest
from p2l.errors import CheckpointError, ConfigError, InputError

__all__ = [
    "DEFAULT_MAX_LENGTH",
    "ChatTokenizer",
    "Encoding",
    "PromptTokenizer",
    "packaged_templates",
    "resolve_template",
]

DEFAULT_MAX_LENGTH = 8192
"""Tokens per prompt where neither the caller nor the folder says."""

_VOCABULARY_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)
_TEMPLATE_MARKER = re.compile(r"<\|[^|<>\s]+\|>")
# Templates that print today's date would give other coefficients tomorrow; this is Llama 3.1's own default.
_DATE = "26 Jul 2024"


class Encoding(NamedTuple):
    """One prompt: token or feature ids, weights of features (None for tokens), and whether it was cut."""

    ids: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32] | None
    truncated: bool


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
        """The tokenizer of a model folder or hub id.

        Args:
            path: a local folder or hub id.
            chat_template: Jinja text or the name of a packaged template; by default the tokenizer's own, and
                `plain` for a tokenizer that has none.
            max_length: tokens per prompt, the CLS included; by default what the folder was trained with.
            cls_token_if_none: added when the tokenizer has no CLS token; None makes that an error.
            pad_token_if_none: added when the tokenizer has no padding token; None takes the CLS token for it.

        Raises:
            InputError: no such folder or hub id, no tokenizer in it, unknown template.
        """
        folder = local_folder(path)
        if max_length is not None and max_length < 2:
            raise ConfigError(f"max_length must be at least 2 (one token and the CLS), not {max_length}")
        length = max_length or _recorded_max_length(folder)
        if read_json(folder / "config.json", missing={}).get("model_type") == "tfidf":
            from p2l.tfidf import TfidfTokenizer

            return TfidfTokenizer.load(folder, max_length=length or DEFAULT_MAX_LENGTH)
        tokenizer = _load_tokenizer(folder)
        known = len(tokenizer)
        _add_missing_tokens(tokenizer, cls_token_if_none, pad_token_if_none, folder)
        tokenizer.chat_template = (
            resolve_template(chat_template) or tokenizer.chat_template or resolve_template("plain")
        )
        tokenizer.model_max_length = length or min(tokenizer.model_max_length, DEFAULT_MAX_LENGTH)
        return ChatTokenizer(tokenizer, added_ids=tuple(range(known, len(tokenizer))))

    @abstractmethod
    def encode(self, prompts: Sequence[Sequence[str]]) -> list[Encoding]:
        """One encoding for each prompt, a prompt being the user's turns in order.

        Raises:
            InputError: a prompt without turns.
        """

    @abstractmethod
    def save_pretrained(self, directory: str | Path) -> None:
        """Write everything that `from_pretrained` needs into `directory`."""


class ChatTokenizer(PromptTokenizer):
    """A transformers tokenizer with a chat template and a CLS token at the end."""

    def __init__(self, tokenizer: Any, *, added_ids: tuple[int, ...] = ()) -> None:
        """Wrap a transformers tokenizer that has a CLS token and a chat template."""
        self.tokenizer = tokenizer
        self.added_ids = added_ids
        self.max_length = int(tokenizer.model_max_length)
        self.cls_token_id = int(tokenizer.cls_token_id)
        self.vocab_size = len(tokenizer)
        pad = tokenizer.pad_token_id
        self.pad_token_id = self.cls_token_id if pad is None else int(pad)
        special = [token for token in tokenizer.added_tokens_decoder.values() if token.special]
        texts = {token.content for token in special} | set(tokenizer.all_special_tokens)
        markers = texts | set(_TEMPLATE_MARKER.findall(str(tokenizer.chat_template)))
        self._markers = sorted((marker for marker in markers if len(marker) > 1), key=lambda text: (-len(text), text))
        self._special_ids = np.unique(np.array(tokenizer.convert_tokens_to_ids(sorted(texts)), dtype=np.int64))
        self._matches_normalised = any(token.normalized for token in special)
        self._blank_specials: dict[int, int] = {}

    def encode(self, prompts: Sequence[Sequence[str]]) -> list[Encoding]:
        """See `PromptTokenizer.encode`."""
        turns = [check_turns(prompt, number) for number, prompt in enumerate(prompts)]
        bodies = self._bodies([[self._neutralise(turn) for turn in prompt] for prompt in turns])
        if self._matches_normalised:
            self._reclean(turns, bodies)
        return [self._finish(body) for body in bodies]

    def save_pretrained(self, directory: str | Path) -> None:
        """Write the tokenizer with its template and maximal length."""
        self.tokenizer.save_pretrained(str(directory))

    def text(self, prompt: Sequence[str]) -> str:
        """What is tokenised for one prompt, CLS text included."""
        return self._render([[self._neutralise(turn) for turn in prompt]])[0]

    def _render(self, prompts: list[list[str]]) -> list[str]:
        chats = [[{"role": "user", "content": turn} for turn in prompt] for prompt in prompts]
        try:
            texts = self.tokenizer.apply_chat_template(chats, tokenize=False, date_string=_DATE)
        except Exception as error:  # whatever a template raises is the template's fault, and it is the user's file
            raise ConfigError(f"chat_template cannot format user turns: {error}; choose another template") from error
        return [text + self.tokenizer.cls_token for text in texts]

    def _bodies(self, prompts: list[list[str]]) -> list[npt.NDArray[np.int64]]:
        """Token ids without the CLS at the end."""
        if not prompts:
            return []
        encoded = self.tokenizer(
            self._render(prompts),
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        arrays = [np.array(ids, dtype=np.int64) for ids in encoded["input_ids"]]
        return [ids[:-1] if len(ids) and ids[-1] == self.cls_token_id else ids for ids in arrays]

    def _finish(self, body: npt.NDArray[np.int64]) -> Encoding:
        # The last guard: whatever a tokenizer makes of a prompt, it holds one CLS, and that is the last token.
        body = body[body != self.cls_token_id]
        truncated = len(body) > self.max_length - 1
        if truncated:
            body = body[len(body) - (self.max_length - 1) :]
        return Encoding(np.append(body, self.cls_token_id), None, truncated)

    def _neutralise(self, turn: str) -> str:
        turn = repair(turn)
        for marker in self._markers:
            if marker in turn:
                turn = turn.replace(marker, f"{marker[0]} {marker[1:]}")
        return turn

    def _reclean(self, prompts: list[list[str]], bodies: list[npt.NDArray[np.int64]]) -> None:
        """Encode again, more strictly, the prompts whose text became a special token only after normalisation."""
        for row, prompt in enumerate(prompts):
            if np.isin(bodies[row], self._special_ids).sum() > self._specials_of_blank(len(prompt)):
                bodies[row] = self._bodies([[self._neutralise_strictly(turn) for turn in prompt]])[0]

    def _neutralise_strictly(self, turn: str) -> str:
        decomposed = unicodedata.normalize("NFKD", repair(turn))
        plain = "".join(char for char in decomposed if unicodedata.category(char) not in ("Mn", "Cc", "Cf"))
        pattern = "|".join(re.escape(marker) for marker in self._markers)
        return re.sub(pattern, lambda found: f"{found[0][0]} {found[0][1:]}", plain, flags=re.IGNORECASE)

    def _specials_of_blank(self, num_turns: int) -> int:
        """How many special tokens the template itself writes for so many turns."""
        if num_turns not in self._blank_specials:
            body = self._bodies([["x"] * num_turns])[0]
            self._blank_specials[num_turns] = int(np.isin(body, self._special_ids).sum())
        return self._blank_specials[num_turns]


def repair(text: str) -> str:
    """`text` with lone surrogates, which no tokenizer can encode, replaced by U+FFFD; surrogate pairs are joined."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


@lru_cache(maxsize=1)
def packaged_templates() -> dict[str, str]:
    """Names and Jinja texts of the chat templates that come with the package."""
    folder = files("p2l") / "templates"
    found = [part for part in folder.iterdir() if part.name.endswith(".jinja")]
    return {part.name.removesuffix(".jinja"): part.read_text("utf-8") for part in sorted(found, key=lambda p: p.name)}


def resolve_template(template: str | None) -> str | None:
    """Jinja text of a packaged name; Jinja text (anything with `{`) is returned as it is.

    Raises:
        ConfigError: neither Jinja text nor a packaged name.
    """
    if template is None or "{" in template:
        return template
    known = packaged_templates()
    if template not in known:
        raise ConfigError(
            f"chat_template {template!r} is unknown{nearest(template, known)}; use {', '.join(known)}, or Jinja text"
        )
    return known[template]


def check_turns(prompt: Sequence[str], number: int) -> list[str]:
    turns = [prompt] if isinstance(prompt, str) else list(prompt)
    if not turns:
        raise InputError(f"prompt {number} has no turns; give at least one (it may be an empty string)")
    for turn in turns:
        if not isinstance(turn, str):
            raise InputError(f"prompt {number} has a turn that is no text: {type(turn).__name__}")
    return turns


def _load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    # Without any of these transformers makes an empty tokenizer of the model's family.
    if not any((folder / name).is_file() for name in _VOCABULARY_FILES):
        raise CheckpointError(f"{folder}: no tokenizer in it (tokenizer.json); copy the model's tokenizer files there")
    try:
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # transformers raises OSError, ValueError, KeyError, ... for a broken tokenizer
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(f"{folder}: no tokenizer can be loaded from it: {reason}") from error


def _add_missing_tokens(tokenizer: Any, cls_token: str | None, pad_token: str | None, folder: Path) -> None:
    if tokenizer.cls_token is None:
        if cls_token is None:
            raise CheckpointError(f"{folder}: its tokenizer has no CLS token; it is no folder of a trained P2L model")
        tokenizer.add_special_tokens({"cls_token": cls_token})
    if tokenizer.pad_token is None and pad_token is not None:
        tokenizer.add_special_tokens({"pad_token": pad_token})


def _recorded_max_length(folder: Path) -> int | None:
    """The length that the model of this folder was trained with, where the folder says so."""
    record = read_json(folder / "config.json", missing={}).get("p2l") or {}
    training = read_json(folder / "training_config.json", missing={})
    length = record.get("max_length") or training.get("max_length")
    return int(length) if length else None
