"""The cheap backbone: TF-IDF of words and word n-grams, summed through an embedding matrix.

    h = sum_f w_f E_f,    w_f = (1 + ln count_f) idf_f / norm,    idf_f = 1 + ln((1 + prompts) / (1 + prompts with f))

With a head on top this is low-rank multinomial regression on TF-IDF features; `hidden_size` is the rank. A learning
rate near 0.01 suits it. The price of cheapness: word order is invisible, or nearly so.

Words are Unicode words, folded to lower case; scripts written without spaces (Han, Kana, Thai, Lao, Burmese, Khmer)
go character by character, and pairs of neighbours count too; digits and signs are features of their own.

Shapes: B prompts, F features of all prompts together, V vocabulary, D hidden.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from p2l.common.errors import CheckpointError, InputError
from p2l.common.prompts import SPACELESS, newest_words, split_words
from p2l.model.checkpoint import read_object, write_json
from p2l.model.encoding import DEFAULT_MAX_LENGTH, Encoding, PromptTokenizer, check_turns, register

_VOCABULARY_FILE = "tfidf.json"
_MIN_DF = 3
"""Prompts that a word of the vocabulary is in, at least."""
_MAX_NGRAM_WORDS = 100  # words; the work for a prompt grows with it
_MAX_CANDIDATES = 4_000_000  # n-grams counted at once while fitting (about 500 MB); rare ones are dropped beyond


class TfidfTokenizer(PromptTokenizer):
    """Prompts to weighted features; all turns together, n-grams within a turn."""

    cls_token_id = 0
    pad_token_id = 0

    def __init__(
        self,
        terms: Sequence[str],
        idf: Sequence[float] | npt.NDArray[np.float64],
        *,
        ngrams: tuple[int, int] = (1, 1),
        max_length: int = DEFAULT_MAX_LENGTH,
    ) -> None:
        """Use a vocabulary of `terms` with their `idf`, in the order of the ids; `max_length` is in words."""
        self.ngrams = ngrams
        self.max_length = max_length
        self.vocab_size = len(terms)
        self._terms = list(terms)
        self._idf = np.asarray(idf, dtype=np.float64)
        self._rarest = float(self._idf.max(initial=1.0))
        self._ids = {term: number for number, term in enumerate(self._terms)}

    def encode(self, prompts: Sequence[Sequence[str]]) -> list[Encoding]:
        """See `PromptTokenizer.encode`; values are the weights w_f, of Euclidean norm one (or no features at all)."""
        encodings = []
        for number, prompt in enumerate(prompts):
            ids, counts, lacking, truncated = self._count(check_turns(prompt, number))
            values = self._weights(ids, counts)
            square = float(values @ values)
            rest = lacking * self._rarest**2  # as if each were another word
            known = square / (square + rest) if square + rest > 0 else 1.0
            normalised = (values / (math.sqrt(square) or 1.0)).astype(np.float32)
            encodings.append(Encoding(ids, normalised, truncated, known=known))
        return encodings

    def save_pretrained(self, directory: str | Path) -> None:
        """Write the vocabulary."""
        content = {"ngrams": list(self.ngrams), "terms": self._terms, "idf": self._idf.round(6).tolist()}
        write_json(Path(directory) / _VOCABULARY_FILE, content)

    def contents(self) -> tuple[list[str], npt.NDArray[np.float64]]:
        """Return the terms and their idf (V,)."""
        return self._terms, self._idf

    def usage(self, prompts: Sequence[Sequence[str]]) -> WordUsage:
        """Return which words these prompts use."""
        counted = [self._count(check_turns(prompt, number)) for number, prompt in enumerate(prompts)]
        ids = np.concatenate([words for words, _, _, _ in counted])
        counts = np.concatenate([times for _, times, _, _ in counted])
        return WordUsage(
            prompt=np.repeat(np.arange(len(counted)), [len(words) for words, _, _, _ in counted]),
            words=ids,
            weights=self._weights(ids, counts) ** 2,
            unknown=counts * self._rarest**2,
            lacking=np.array([lacking for _, _, lacking, _ in counted]) * self._rarest**2,
        )

    def _count(self, turns: list[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], int, bool]:
        """Return ids and counts of known n-grams, the number of unknown ones, and whether older text is left out."""
        words, truncated = _newest_words(turns, self.max_length)
        counts = Counter(map(self._ids.get, chain.from_iterable(_ngrams(turn, self.ngrams) for turn in words)))
        lacking = counts.pop(None, 0)
        ids = np.fromiter(counts.keys(), dtype=np.int64, count=len(counts))
        return ids, np.fromiter(counts.values(), dtype=np.float64, count=len(counts)), lacking, truncated

    def _weights(self, ids: npt.NDArray[np.int64], counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.asarray((1 + np.log(counts)) * self._idf[ids])


@dataclass(frozen=True)
class WordUsage:
    """The n words of the vocabulary that Q prompts use, and their weights were a prompt not read."""

    prompt: npt.NDArray[np.int64]
    """(n,) number of the prompt."""
    words: npt.NDArray[np.int64]
    """(n,)"""
    weights: npt.NDArray[np.float64]
    """(n,) w_f squared, not normalised."""
    unknown: npt.NDArray[np.float64]
    """(n,) weight of the same word outside the vocabulary."""
    lacking: npt.NDArray[np.float64]
    """(Q,) weight of a prompt's words outside the vocabulary."""

    def known_alone(self) -> npt.NDArray[np.float64]:
        """Return the share (Q,) of each prompt's words that the vocabulary of the other prompts would know."""
        known, count = np.bincount(self.words)[self.words] > _MIN_DF, len(self.lacking)
        square = np.bincount(self.prompt, self.weights * known, count)
        rest = np.bincount(self.prompt, self.unknown * ~known, count) + self.lacking
        return np.asarray(np.where(square + rest > 0, square / np.maximum(square + rest, 1e-300), 1.0))


@register("tfidf")
def load(folder: Path, *, max_length: int | None, **_: str | None) -> TfidfTokenizer:
    """Load what `TfidfTokenizer.save_pretrained` wrote; templates and special tokens do not apply."""
    file = folder / _VOCABULARY_FILE
    content = read_object(file)
    try:
        (low, high), terms, idf = content["ngrams"], content["terms"], np.asarray(content["idf"], dtype=np.float64)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(repr(error).split())
        raise CheckpointError(f"{file}: is not a TF-IDF vocabulary: {reason:.200}; copy the folder again") from error
    if not isinstance(terms, list) or not all(isinstance(term, str) for term in terms) or len(set(terms)) < len(terms):
        raise CheckpointError(f"{file}: terms must be a list of different words; copy the folder again")
    if idf.shape != (len(terms),) or not np.isfinite(idf).all():
        raise CheckpointError(f"{file}: needs one finite idf for each of its {len(terms)} terms; copy the folder again")
    if not all(type(size) is int for size in (low, high)) or not 1 <= low <= high <= _MAX_NGRAM_WORDS:
        raise CheckpointError(
            f"{file}: ngrams must be the least and the greatest number of words of a term, "
            f"from 1 to {_MAX_NGRAM_WORDS}; copy the folder again"
        )
    return TfidfTokenizer(terms, idf, ngrams=(low, high), max_length=max_length or DEFAULT_MAX_LENGTH)


def fit_vocabulary(
    prompts: Iterable[Sequence[str]],
    *,
    ngrams: tuple[int, int] = (1, 1),
    max_features: int = 50_000,
    min_df: int = _MIN_DF,
) -> TfidfTokenizer:
    """Fit the `max_features` most frequent n-grams found in at least `min_df` prompts; InputError if there are none."""
    frequencies: Counter[str] = Counter()
    total = 0
    for turns in prompts:
        total += 1
        frequencies.update({term for turn in turns for term in _ngrams(split_words(turn), ngrams)})
        if len(frequencies) > _MAX_CANDIDATES:
            # Lossy counting: the table is halved by dropping the rarest n-grams, and their counts restart from zero.
            least = 2
            while len(frequencies) > _MAX_CANDIDATES // 2:
                frequencies = Counter({term: count for term, count in frequencies.items() if count >= least})
                least += 1
    ranked = sorted((-count, term) for term, count in frequencies.items() if count >= min_df)[:max_features]
    if not ranked:
        raise InputError(f"no word is in {min_df} of the {total} prompts; lower the minimum or use more votes")
    idf = [1 + math.log((1 + total) / (1 - count)) for count, _ in ranked]
    return TfidfTokenizer([term for _, term in ranked], idf, ngrams=ngrams)


def _ngrams(words: Sequence[str], sizes: tuple[int, int]) -> Iterator[str]:
    """Yield runs of words; for scripts without spaces also pairs of characters, because one carries little."""
    if sizes[1] == 1 and SPACELESS.search("".join(words)):
        yield from (f"{a} {b}" for a, b in pairwise(words) if SPACELESS.match(a) and SPACELESS.match(b))
    for size in range(sizes[0], sizes[1] + 1):
        yield from words if size == 1 else map(" ".join, zip(*(words[start:] for start in range(size)), strict=False))


def _newest_words(turns: Sequence[str], count: int) -> tuple[list[list[str]], bool]:
    """Return the newest `count` words, by turn, and whether there are more; older text is not split."""
    newest: list[list[str]] = []
    for turn in reversed(turns):
        pieces: list[list[str]] = []
        for words in newest_words(turn):
            pieces.append(words[max(0, len(words) - count) :])
            count -= len(words)
            if count < 0:
                break
        newest.append(list(chain.from_iterable(reversed(pieces))))
        if count < 0:
            break
    return newest[::-1], count < 0
