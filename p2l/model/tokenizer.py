"""From the user's turns to token ids: one function for training and for serving.

A prompt is the chat template over its user turns, then the CLS token, whose hidden state the head reads. A prompt that
is too long loses its oldest tokens, never the CLS. Text inside a prompt that spells a special token or a marker of the
template is broken by a space (`<|im_end|>` becomes `< |im_end|>`), so that no prompt can imitate the structure. Every
other prompt is tokenised exactly as the template's text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import p2l.model.reader_inputs
import p2l.model.tfidf  # noqa: F401 (they register their tokenizers)
from p2l.common.cli import nearest
from p2l.common.errors import CheckpointError, ConfigError
from p2l.common.prompts import cut_marks, newest_turns, repair
from p2l.model.checkpoint import local_folder, read_object
from p2l.model.encoding import (
    DEFAULT_MAX_LENGTH,
    TOKENIZERS,
    Encoding,
    PromptTokenizer,
    check_turns,
    panics_as_errors,
    register,
)

_VOCABULARY_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)
_TEMPLATE_MARKER = re.compile(r"<\|[^|<>\s]+\|>")
# A template that prints today's date would change coefficients from day to day; this is Llama 3.1's own default.
# Templates get the date from a variable or from a function, which ignores the format.
_DATE = "26 Jul 2024"
_DATE_FUNCTION = f"{{%- macro strftime_now(format) -%}}{_DATE}{{%- endmacro -%}}"
_MOST_PROBED_TURNS = 50
_CHARS_PER_BATCH = 1_000_000  # tokenising takes some 400 bytes a token
# Of a longer prompt only the newest characters are read, and four times as many where they are too few tokens.
_CHARS_PER_TOKEN = 6
_MARGIN_TOKENS = 64  # tokens beyond those kept, so that where the text was cut changes none of them


class ChatTokenizer(PromptTokenizer):
    """A transformers tokenizer with a chat template and a CLS token at the end."""

    def __init__(self, tokenizer: Any, *, added_ids: tuple[int, ...] = ()) -> None:
        """Wrap a transformers tokenizer with CLS token and chat template; ConfigError if the template is unusable."""
        self.tokenizer = tokenizer
        self.added_ids = added_ids
        self.max_length = int(tokenizer.model_max_length)
        self.cls_token_id = int(tokenizer.cls_token_id)
        # Ids of added tokens may lie behind a gap, beyond the number of tokens.
        self.vocab_size = max([len(tokenizer) - 1, *tokenizer.added_tokens_decoder]) + 1
        pad = tokenizer.pad_token_id
        self.pad_token_id = self.cls_token_id if pad is None else int(pad)
        template = str(tokenizer.chat_template)
        self._template = _DATE_FUNCTION + template if "strftime_now" in template else template
        # The tokenizers library's own object, which can omit offsets; None for a slow tokenizer.
        self._fast = getattr(tokenizer, "backend_tokenizer", None)
        if self._fast is not None:
            self._fast.no_truncation()
            self._fast.no_padding()
            self._fast.encode_special_tokens = bool(tokenizer.split_special_tokens)
        first, second = self._render([["0"], ["1"]])
        # The user's turns follow each other, without answers between them: a template that wants both in turn, or
        # reads the last turn alone, is found here and not at the first prompt that has two.
        one, other, another = self._render([["0", "2"], ["1", "2"], ["0", "3"]])
        self._render([["0"] * _MOST_PROBED_TURNS])
        if first == second or len({one, other, another}) < 3:
            raise ConfigError("chat_template leaves out the user's text; use message['content'] in it")
        # Structure are special tokens, and the template's own tokens.
        added = tokenizer.added_tokens_decoder.values()
        markers = {token.content for token in added if token.special or token.content in first}
        self._set_structure(markers | {*tokenizer.all_special_tokens, *_TEMPLATE_MARKER.findall(self._template)})

    def _set_structure(self, markers: Iterable[str]) -> None:
        """Take these texts, and the ids of those that are tokens, for structure, which no prompt may imitate."""
        # A special token of a single character cannot be broken by a space; it stays, except the CLS.
        self._markers = sorted((marker for marker in markers if len(marker) > 1), key=lambda text: (-len(text), text))
        # Except the unknown token, which ordinary text may become.
        ids = {token.content: number for number, token in self.tokenizer.added_tokens_decoder.items()}
        unknown = {self.tokenizer.unk_token} - {self.tokenizer.eos_token, self.tokenizer.bos_token}
        in_vocabulary = [ids[text] for text in self._markers if text in ids and text not in unknown]
        structure_ids = np.array(in_vocabulary, dtype=np.int64)
        self._is_structure = np.zeros(max(structure_ids, default=-1) + 1, dtype=np.bool_)
        self._is_structure[structure_ids] = True
        self._structure_of_blank: dict[int, int] = {}

    def encode(self, prompts: Sequence[Sequence[str]]) -> list[Encoding]:
        """See `PromptTokenizer.encode`."""
        turns = [check_turns(prompt, number) for number, prompt in enumerate(prompts)]
        return self._encode(turns, _CHARS_PER_TOKEN * (self.max_length + _MARGIN_TOKENS))

    def save_pretrained(self, directory: str | Path) -> None:
        """Write the tokenizer with its template and maximal length."""
        self.tokenizer.save_pretrained(str(directory))

    def text(self, prompt: Sequence[str]) -> str:
        """Return the text that is tokenised for one prompt, CLS included."""
        return self._render([[self._neutralise(turn) for turn in prompt]])[0]

    def limit(self, rows: int, folder: str | Path) -> None:
        """See `PromptTokenizer.limit`: added tokens without a row are broken like markers, or else dropped."""
        added = {number: token.content for number, token in self.tokenizer.added_tokens_decoder.items()}
        if self.vocab_size > rows and all(
            number < rows or number in added for number in self.tokenizer.get_vocab().values()
        ):
            self.vocab_size = rows
            self.pad_token_id = self.pad_token_id if self.pad_token_id < rows else self.cls_token_id
            self._set_structure({*self._markers, *(text for number, text in added.items() if number >= rows)})
        super().limit(rows, folder)

    def forget_words(self) -> None:
        """Disable the cache of words: a quarter slower, but nothing stays in memory when the tokenizer is deleted."""
        # The library keeps up to 10,000 words for each model and thread until the thread ends: some hundred kilobytes
        # for each model that a service loads.
        resize = getattr(getattr(self._fast, "model", None), "_resize_cache", None)
        if resize is not None:
            resize(0)

    def _encode(self, prompts: Sequence[Sequence[str]], max_chars: int) -> list[Encoding]:
        """Encode prompts, reading at most `max_chars` characters and turns where they have enough tokens."""
        newest = [newest_turns(prompt, max_turns=max_chars, max_chars=max_chars) for prompt in prompts]
        bodies = self._bodies([[self._neutralise(turn) for turn in prompt] for prompt in newest])
        encodings = []
        for prompt, read, body in zip(prompts, newest, bodies, strict=True):
            # Unicode normalisation, or two turns side by side, may form a special token that neither spells.
            if self._count_structure(body) > self._count_structure_of_blank(len(read)):
                body = next(self._bodies([[self._neutralise_strictly(turn) for turn in read]]))
            # The last guard: whatever the tokenizer returns, there is exactly one CLS, at the end.
            body = body[(body != self.cls_token_id) & (body < self.vocab_size)]
            if read is not prompt and len(body) < self.max_length + self._preamble + _MARGIN_TOKENS:
                encodings += self._encode([prompt], 4 * max_chars)
            else:
                kept = body[max(0, len(body) - (self.max_length - 1)) :]
                encodings.append(Encoding(np.append(kept, self.cls_token_id), None, len(kept) < len(body)))
        return encodings

    @cached_property
    def _preamble(self) -> int:
        """The number of tokens that the template writes around a turn."""
        return len(next(self._bodies([["x"]])))

    def _render(self, prompts: list[list[str]]) -> list[str]:
        chats = [[{"role": "user", "content": turn} for turn in prompt] for prompt in prompts]
        try:
            texts = self.tokenizer.apply_chat_template(
                chats, chat_template=self._template, tokenize=False, date_string=_DATE
            )
        except Exception as error:  # a template is the user's file, and may raise anything
            reason = " ".join(str(error).split())
            turns = max(map(len, prompts))
            which = "user turns" if turns == 1 else f"{turns} user turns in a row"
            raise ConfigError(
                f"chat_template cannot format {which}: {reason:.300}; choose another template, such as plain"
            ) from error
        return [text + self.tokenizer.cls_token for text in texts]

    def _bodies(self, prompts: list[list[str]]) -> Iterator[npt.NDArray[np.int64]]:
        """Yield token ids without the CLS at the end."""
        for texts in _by_size(self._render(prompts) if prompts else []):
            if self._fast is not None:
                with panics_as_errors():
                    rows = (encoded.ids for encoded in self._fast.encode_batch_fast(texts, add_special_tokens=False))
            else:
                options = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
                rows = iter(self.tokenizer(texts, add_special_tokens=False, **options)["input_ids"])
            for row in rows:
                ids = np.array(row, dtype=np.int64)
                yield ids[:-1] if len(ids) and ids[-1] == self.cls_token_id else ids

    def _neutralise(self, turn: str) -> str:
        turn = repair(turn)
        for marker in self._markers:
            if marker in turn:
                turn = turn.replace(marker, f"{marker[0]} {marker[1:]}")
        return turn

    def _neutralise_strictly(self, turn: str) -> str:
        """Drop what normalisation removes, and put blanks around the punctuation that markers have."""
        plain = "".join(
            char
            for char in unicodedata.normalize("NFKD", cut_marks(repair(turn)))
            if char in "\t\n\r" or unicodedata.category(char) not in ("Mn", "Cc", "Cf")
        )
        signs = "".join(sorted({char for marker in self._markers for char in marker if not char.isalnum()}))
        spaced = re.sub(f"[{re.escape(signs)}]", lambda found: f" {found[0]} ", plain) if signs else plain
        pattern = "|".join(re.escape(marker) for marker in self._markers)
        broken = re.sub(pattern, lambda found: f"{found[0][0]} {found[0][1:]}", spaced, flags=re.IGNORECASE)
        return f" {broken} "  # the template's adjacent text may be half a marker

    def _count_structure(self, body: npt.NDArray[np.int64]) -> int:
        return int(self._is_structure[body[body < len(self._is_structure)]].sum())

    def _count_structure_of_blank(self, num_turns: int) -> int:
        """Count the structure tokens that the template itself writes for this number of turns."""
        if num_turns not in self._structure_of_blank:
            body = next(self._bodies([["x"] * num_turns]))
            self._structure_of_blank[num_turns] = self._count_structure(body)
        return self._structure_of_blank[num_turns]


def load_tokenizer(
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
    config = read_object(folder / "config.json", missing={})
    if max_length is None:  # as in training: in the model's record, or beside published models
        record = config.get("p2l")
        training = read_object(folder / "training_config.json", missing={})
        length = (record.get("max_length") if isinstance(record, dict) else None) or training.get("max_length")
        if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 2):
            raise CheckpointError(f"{folder}: max_length {length!r} in its configuration is invalid; pass max_length")
        max_length = length
    load = TOKENIZERS.get(str(config.get("model_type"))) or TOKENIZERS[""]
    return load(
        folder,
        chat_template=chat_template,
        max_length=max_length,
        cls_token_if_none=cls_token_if_none,
        pad_token_if_none=pad_token_if_none,
    )


@register("")
def _load_chat_tokenizer(
    folder: Path,
    *,
    chat_template: str | None,
    max_length: int | None,
    cls_token_if_none: str | None,
    pad_token_if_none: str | None,
) -> ChatTokenizer:
    """Load the tokenizer of a transformer's folder, and add a CLS token and a template where they are missing."""
    tokenizer = _load_tokenizer(folder)
    old_size = len(tokenizer)
    if tokenizer.cls_token is None:
        if cls_token_if_none is None:
            raise CheckpointError(f"{folder}: its tokenizer has no CLS token; it is not a trained P2L model")
        tokenizer.add_special_tokens({"cls_token": cls_token_if_none})
    if tokenizer.pad_token is None and pad_token_if_none is not None:
        tokenizer.add_special_tokens({"pad_token": pad_token_if_none})
    template = tokenizer.chat_template
    template = template.get("default") if isinstance(template, dict) else template  # some have one for each task
    tokenizer.chat_template = resolve_template(chat_template) or template or resolve_template("plain")
    tokenizer.model_max_length = max_length or min(tokenizer.model_max_length, DEFAULT_MAX_LENGTH)
    return ChatTokenizer(tokenizer, added_ids=tuple(range(old_size, len(tokenizer))))


@lru_cache(maxsize=1)
def packaged_templates() -> dict[str, str]:
    """Return names and Jinja texts of the packaged chat templates."""
    folder = files("p2l.model") / "templates"
    templates = sorted(folder.iterdir(), key=lambda file: file.name)
    return {
        file.name.removesuffix(".jinja"): file.read_text("utf-8") for file in templates if file.name.endswith(".jinja")
    }


def resolve_template(template: str | None) -> str | None:
    """Return the Jinja text of a packaged name, or Jinja text (with a `{`) itself; ConfigError for anything else."""
    if template is None or "{" in template:
        return template
    packaged = packaged_templates()
    if template not in packaged:
        raise ConfigError(
            f"chat_template {template!r} is unknown{nearest(template, packaged)}; "
            f"use {', '.join(packaged)}, or Jinja text"
        )
    return packaged[template]


def _load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    # Without any of these files transformers builds an empty tokenizer of the model's family.
    if not any((folder / name).is_file() for name in _VOCABULARY_FILES):
        raise CheckpointError(f"{folder}: no tokenizer in it (tokenizer.json); copy the model's tokenizer files there")
    try:
        with panics_as_errors():
            return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # transformers raises OSError, ValueError, KeyError, ... for a broken tokenizer
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(f"{folder}: no tokenizer can be loaded from it: {reason}") from error


def _by_size(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield the texts in groups of bounded size (one long text is a group of its own)."""
    group: list[str] = []
    size = 0
    for text in texts:
        if group and size + len(text) > _CHARS_PER_BATCH:
            yield group
            group, size = [], 0
        group.append(text)
        size += len(text)
    if group:
        yield group
