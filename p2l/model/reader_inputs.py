"""The configuration of a reader (`p2l.model.reader`), and its inputs: prompts to tokens and features, without torch.

Shapes: B prompts, F inputs, K directions of words, V words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p2l.common.errors import CheckpointError
from p2l.common.prompts import BETWEEN_TURNS, FORM_FEATURES, cut_marks, form_of, newest_turns, repair
from p2l.model.checkpoint import read_object
from p2l.model.encoding import Encoding, PromptTokenizer, check_turns, panics_as_errors, register
from p2l.model.tfidf import TfidfTokenizer
from p2l.model.tfidf import load as load_words

Floats = npt.NDArray[np.float32]
_WORDS_FILE = "words.safetensors"
MAX_ENCODER_TOKENS = 256
"""Tokens that the encoder reads, at most, unless it was trained with fewer."""
MAX_DEVIATIONS = 4.0  # of a feature: a prompt of another kind must not dwarf everything else
_MAX_CHARS = 20_000  # of a prompt that encoder and form read


@dataclass(frozen=True)
class ReaderConfig:
    """config.json of a reader."""

    vocab_size: int
    """Token ids of the encoder, or 1."""
    directions: int
    """Main directions of words."""
    hidden_size: int
    """H, a multiple of `members`."""
    encoder: dict[str, Any] | None = None
    """config.json of the encoder."""
    pooling: str = "mean"
    normalise: bool = False
    prefix: str = ""
    """What the encoder sees in front of each prompt."""
    frozen: bool = True
    """Whether training leaves the encoder as it is."""
    max_position_embeddings: int = MAX_ENCODER_TOKENS
    """Tokens that the encoder can read."""
    dropout: float = 0.5
    input_dropout: float = 0.3
    members: int = 1
    """K"""
    activation: str = "gelu"
    """Or "softmax": each member's units are the shares of its clusters in a prompt."""
    reads: Sequence[str] = ("all",)
    """Inputs of the members, by turns: "all", or form with "state" or "words" alone."""
    form: int = 9
    """Counts of form."""
    with_inputs: bool = False
    """Whether the inputs stand in front of the hidden units, so that the head reads them too."""
    model_type: str = "reader"

    def units(self, inputs: int) -> int:
        """Return the hidden units over F inputs; CheckpointError if the members do not share them evenly."""
        units = self.hidden_size - inputs * self.with_inputs
        if self.members < 1 or units < 1 or units % self.members:
            raise CheckpointError(
                f"config.json: hidden_size {self.hidden_size} leaves {units} units, no multiple of "
                f"{self.members} members"
            )
        return units

    def to_dict(self) -> dict[str, Any]:
        """Its JSON form."""
        return asdict(self)


class ReaderTokenizer(PromptTokenizer):
    """Prompts to the tokens of the encoder, and the features of words and form."""

    pad_token_id = 0
    cls_token_id = 0

    def __init__(
        self,
        words: TfidfTokenizer,
        scaling: Mapping[str, Floats],
        tokenizer: Any,
        *,
        vocab_size: int,
        max_length: int,
        prefix: str = "",
    ) -> None:
        """Take words, their `projection` (V, K) with `mean` and `scale` of all features, and the encoder's tokens."""
        self.words, self.scaling = words, scaling
        self.vocab_size, self.max_length = vocab_size, max_length
        self._tokenizer = tokenizer
        if tokenizer is not None:
            tokenizer.no_padding()
            tokenizer.no_truncation()
            tokenizer.encode_special_tokens = True  # a prompt cannot imitate the encoder's own tokens
            # The tokens that the encoder expects before and after a text.
            whole, body = tokenizer.encode("a").ids, tokenizer.encode("a", add_special_tokens=False).ids
            start = next((n for n in range(len(whole)) if whole[n : n + len(body)] == body), 0)
            # A prefix ends where a word does, so that its tokens and those of a text are the tokens of both.
            before = tokenizer.encode(prefix.rstrip(), add_special_tokens=False).ids
            self._first = np.array(whole[:start] + before, dtype=np.int64)
            self._last = np.array(whole[start + len(body) :], dtype=np.int64)

    def encode(self, prompts: Sequence[Sequence[str]]) -> list[Encoding]:
        """See `PromptTokenizer.encode`; without an encoder every prompt has one token that nothing reads."""
        turns = [check_turns(prompt, number) for number, prompt in enumerate(prompts)]
        projection, mean = self.scaling["projection"], self.scaling["mean"]
        words = self.words.encode(turns)
        raw = raw_features(words, projection, turns, form=len(mean) - projection.shape[1])
        features = np.clip((raw - mean) * self.scaling["scale"], -MAX_DEVIATIONS, MAX_DEVIATIONS).astype(np.float32)
        # The network does not read this share: a posterior takes it as a measure of strangeness.
        known = np.array([weighted.known for weighted in words], dtype=np.float32)[:, None]
        features = np.concatenate([features, known], axis=1)
        if self._tokenizer is None:
            return [Encoding(np.zeros(1, np.int64), None, False, row) for row in features]
        texts = [BETWEEN_TURNS.join(_newest(prompt)) for prompt in turns]
        most = self.max_length - len(self._first) - len(self._last)
        encodings = []
        with panics_as_errors():
            batch = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        for coded, row in zip(batch, features, strict=True):
            body = np.array(coded.ids, dtype=np.int64)
            ids = np.concatenate([self._first, body[max(0, len(body) - most) :], self._last])
            encodings.append(Encoding(ids, None, len(body) > most, row))
        return encodings

    def save_pretrained(self, directory: str | Path) -> None:
        """Write words, scaling and the encoder's tokens."""
        from safetensors.numpy import save_file

        folder = Path(directory)
        self.words.save_pretrained(folder)
        save_file({name: np.ascontiguousarray(part) for name, part in self.scaling.items()}, folder / _WORDS_FILE)
        if self._tokenizer is not None:
            self._tokenizer.save(str(folder / "tokenizer.json"))


def raw_features(
    words: Sequence[Encoding], projection: Floats, turns: Sequence[Sequence[str]], *, form: int = FORM_FEATURES
) -> Floats:
    """Return words along the main directions and the first `form` counts of form (B, features), as they are.

    `words` are the prompts as `TfidfTokenizer` encodes them.
    """
    features = np.zeros((len(turns), projection.shape[1] + form), dtype=np.float32)
    for row, weighted in enumerate(words):
        assert weighted.values is not None
        features[row, : projection.shape[1]] = weighted.values @ projection[weighted.ids].astype(np.float32)
        features[row, projection.shape[1] :] = newest_form(turns[row])[:form]
    return features


def newest_form(turns: Sequence[str]) -> list[float]:
    """Return the counts of form of the newest characters of a prompt."""
    return form_of(_newest(turns))


def _newest(turns: Sequence[str]) -> list[str]:
    """Return the newest turns of a prompt, repaired, the oldest of them cut."""
    newest = newest_turns(turns, max_turns=_MAX_CHARS, max_chars=_MAX_CHARS)
    return [cut_marks(repair(turn)) for turn in newest]


@register("reader")
def load(folder: Path, *, max_length: int | None, **_: str | None) -> ReaderTokenizer:
    """Load what `ReaderTokenizer.save_pretrained` wrote; templates and special tokens do not apply."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    file = folder / _WORDS_FILE
    config = read_config(folder)
    words = load_words(folder, max_length=None)
    try:
        scaling = load_file(file)
        shapes = {name: part.shape for name, part in scaling.items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: missing or damaged ({error}); copy the folder again") from error
    width = config.directions + config.form
    if shapes != {"projection": (words.vocab_size, config.directions), "mean": (width,), "scale": (width,)}:
        raise CheckpointError(f"{file}: does not belong to config.json and the words beside it; copy the folder again")
    length = min(max_length or config.max_position_embeddings, config.max_position_embeddings)
    tokenizer = None
    if config.encoder is not None:
        from tokenizers import Tokenizer

        tokens_file = folder / "tokenizer.json"
        try:
            with panics_as_errors():
                tokenizer = Tokenizer.from_file(str(tokens_file))
        except Exception as error:  # the library raises Exception itself
            raise CheckpointError(f"{tokens_file}: missing or damaged ({error}); copy the folder again") from error
    return ReaderTokenizer(
        words, scaling, tokenizer, vocab_size=config.vocab_size, max_length=length, prefix=config.prefix
    )


def read_config(folder: Path) -> ReaderConfig:
    """Return the configuration of a folder; CheckpointError unless it is a reader's."""
    file = folder / "config.json"
    content = read_object(file)
    if content.get("model_type") != "reader":
        raise CheckpointError(f"{folder}: config.json has model_type {content.get('model_type')!r}, not 'reader'")
    fields = {key: content[key] for key in ReaderConfig.__dataclass_fields__ if key in content}
    try:
        return ReaderConfig(**fields)
    except TypeError as error:
        raise CheckpointError(
            f"{file}: is not the configuration of a reader: {error}; copy the folder again"
        ) from error
