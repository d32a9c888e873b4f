"""Prompts that are the same, or nearly: found by MinHash, confirmed by comparing what they are made of.

Two prompts are near duplicates where the Jaccard similarity of their five-letter pieces, case, punctuation and spaces
aside (but not signs of sums, comparisons and code), is at least 0.8: an added word in a sentence of twenty, another
number in a long question. MinHash (Broder 1997) with bands finds such pairs without comparing all: of pairs at 0.8 it
misses one in a thousand.

Shapes: P permutations, H pieces of one text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

_SIMILAR = 0.8  # least similarity of near duplicates
_PIECE_LETTERS = 5
_MAX_PIECES_PER_TEXT = 20_000  # of one text: of longer ones the beginning counts
_BANDS, _ROWS = 10, 3
_MAX_PROMPTS_COMPARED = 32  # of one band
# Words, and the signs that make another question of the same words: `2 + 3` and `2 * 3`, C and C#; stars of lists and
# of bold words, and the # of headings, do not.
_WORD = re.compile(r"\w+|[+<>=|~^$/%&@]+|(?<=\w)#|(?<=[\w)] )\*(?= )|(?<=[\w)])\*(?=[\w(])")
_random = np.random.default_rng(20)
_FACTORS = _random.integers(0, 2**63, _BANDS * _ROWS, dtype=np.uint64) | np.uint64(1)
_OFFSETS = _random.integers(0, 2**63, _BANDS * _ROWS, dtype=np.uint64)
_PLACES = _random.integers(0, 2**63, _PIECE_LETTERS, dtype=np.uint64) | np.uint64(1)
_HALF = np.uint64(32)
_EDGE = "\0" * (_PIECE_LETTERS - 1)  # the first and the last letter are in as many pieces as others
_Pieces = npt.NDArray[np.uint32]


def normalised(prompt: str) -> str:
    """Return a prompt without case, punctuation (signs that mean something aside) and spacing."""
    return " ".join(_WORD.findall(prompt.casefold())) or prompt.strip()


class PromptIndex:
    """Prompts by number, in the order in which they came, and which earlier one each repeats."""

    def __init__(self) -> None:
        self._exact: dict[str, int] = {}
        self._pieces: dict[int, _Pieces] = {}
        self._bands: dict[bytes, list[int]] = {}
        self._count = 0

    def find(self, prompt: str) -> int | None:
        """Return the number of the first prompt that this one repeats, exactly or nearly; None if it is new."""
        text = normalised(prompt)
        return self._exact[text] if text in self._exact else self._near(*_sketch(text))

    def add(self, prompt: str) -> int:
        """Add a prompt; return its number, or that of the earlier one that it repeats."""
        number, text = self._count, normalised(prompt)
        self._count += 1
        if text in self._exact:
            return self._exact[text]
        pieces, keys = _sketch(text)
        earlier = self._near(pieces, keys)
        self._exact[text] = number if earlier is None else earlier
        if earlier is None:
            self._pieces[number] = pieces
            for key in keys:
                self._bands.setdefault(key, []).append(number)
        return self._exact[text]

    def _near(self, pieces: _Pieces, keys: list[bytes]) -> int | None:
        candidates = {number for key in keys for number in self._bands.get(key, ())[:_MAX_PROMPTS_COMPARED]}
        similar = (number for number in sorted(candidates) if _similarity(pieces, self._pieces[number]) >= _SIMILAR)
        return next(similar, None)


def text_in(prompt: object) -> str:
    """Return the text of a stored prompt, which may be a list of turns."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False, default=str)


def clusters_of(prompts: Iterable[str]) -> npt.NDArray[np.int64]:
    """Return a code for each prompt: that of the first which it repeats, exactly or nearly."""
    index = PromptIndex()
    return np.fromiter((index.add(prompt) for prompt in prompts), dtype=np.int64)


def _sketch(text: str) -> tuple[_Pieces, list[bytes]]:
    """Return a text's pieces, sorted, and its key in each band."""
    padded = f"{_EDGE}{text[:_MAX_PIECES_PER_TEXT]}{_EDGE}".encode("utf-32-le", "surrogatepass")
    letters = np.frombuffer(padded, dtype="<u4").astype(np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(letters, _PIECE_LETTERS)
    pieces: _Pieces = np.unique(((windows * _PLACES).sum(axis=1) >> _HALF).astype(np.uint32))  # modulo 2^64
    hashes = (pieces.astype(np.uint64)[:, None] * _FACTORS + _OFFSETS) >> _HALF
    signature = hashes.min(axis=0).astype(np.uint32).reshape(_BANDS, _ROWS)
    return pieces, [bytes([band]) + row.tobytes() for band, row in enumerate(signature)]


def _similarity(pieces: _Pieces, others: _Pieces) -> float:
    small, large = sorted((len(pieces), len(others)))
    if small < _SIMILAR * large:  # even a text that holds all of the other is not similar enough
        return 0.0
    shared = len(np.intersect1d(pieces, others, assume_unique=True))
    return shared / (small + large - shared)
