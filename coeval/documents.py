"""Items that rest on the user's documents: passages of them, and whether what a teacher quotes is there.

Documents are files of text. A passage is whole paragraphs of about 2,000 characters; longer paragraphs are cut between
sentences, and longer sentences, tables and the like, between words or anywhere. Each teacher goes through all
passages in an order of its own before one comes again.
"""

from __future__ import annotations

import glob
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coeval.errors import RunError
from coeval.parsing import MalformedAnswerError

LONGEST = 64 << 20  # bytes of all documents of a task
_PASSAGE_LETTERS = 2000
_MIN_QUOTE_LETTERS = 20  # less stands in any text
_PARAGRAPH = re.compile(r"\n\s*\n")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*")  # the latter end sentences without a space
_MARKS = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "-"})


@dataclass(frozen=True)
class Passage:
    """A part of a document."""

    document: str
    start: int  # offset of its first character
    text: str


def files_of(patterns: Iterable[str]) -> list[Path]:
    """Return the files that paths and patterns such as `docs/*.md` name, each once, in order."""
    paths = (Path(name) for pattern in patterns for name in sorted(glob.glob(pattern, recursive=True)))  # noqa: PTH207
    return list(dict.fromkeys(path for path in paths if path.is_file()))


def read_passages(patterns: Sequence[str]) -> list[Passage]:
    """Return the passages of documents. Raise RunError if there is none, or one cannot be read."""
    files, passages = files_of(patterns), list[Passage]()
    if sum(path.stat().st_size for path in files) > LONGEST:
        raise RunError(f"documents: {len(files)} files have more than {LONGEST >> 20} MiB; name fewer")
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "no text in UTF-8; convert it to text"
            raise RunError(f"{path}: cannot be read: {why}") from None
        passages += _passages(str(path), text)
    if not passages:
        raise RunError(f"documents: {', '.join(patterns)}: no text is there; name files of text")
    return passages


def _passages(document: str, text: str) -> Iterator[Passage]:
    start = end = 0
    for first, last in _pieces(text):
        if last - start > _PASSAGE_LETTERS and end > start:
            yield Passage(document, start, text[start:end])
            start = first
        end = last
    if text[start:end].strip():
        yield Passage(document, start, text[start:end])


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Yield where paragraphs begin and end, or the sentences of long ones."""
    for first, last in _parts(text, _PARAGRAPH, 0, len(text)):
        if last - first <= _PASSAGE_LETTERS:
            yield first, last
            continue
        for sentence in _parts(text, _SENTENCE, first, last):
            yield from _cut(text, *sentence)


def _cut(text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a sentence that each fit a passage, cut at the last space of each if there is one."""
    while last - first > _PASSAGE_LETTERS:
        end = (
            max(text.rfind(" ", first + _PASSAGE_LETTERS // 2, first + _PASSAGE_LETTERS), 0) or first + _PASSAGE_LETTERS
        )
        if text[first:end].strip():
            yield first, end
        first = end
    if text[first:last].strip():
        yield first, last


def _parts(text: str, gap: re.Pattern[str], first: int, last: int) -> Iterator[tuple[int, int]]:
    for match in gap.finditer(text, first, last):
        if text[first : match.start()].strip():
            yield first, match.start()
        first = match.end()
    if text[first:last].strip():
        yield first, last


def passage_of(passages: Sequence[Passage], number: int, rng: random.Random) -> Passage:
    """Return the passage of the item with a number from 1; `rng` shuffles them, the same way for each item."""
    order = list(range(len(passages)))
    rng.shuffle(order)
    return passages[order[(number - 1) % len(order)]]


def check_quotes(quotes: object, passage: str) -> list[str]:
    """Return the quotes of a reply, each a part of the passage but for spaces and kinds of quotation marks.

    Raise MalformedAnswerError if there is none, or one is not there.
    """
    texts = [quotes] if isinstance(quotes, str) else quotes
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise MalformedAnswerError("the item quotes nothing")
    plain = _plain(passage)
    for text in texts:
        if len(_plain(text)) < min(_MIN_QUOTE_LETTERS, len(plain)):
            raise MalformedAnswerError(f"the quote {text!r} is too short to rest on")
        if _plain(text) not in plain:
            shown = text if len(text) <= 60 else f"{text[:60]}..."
            raise MalformedAnswerError(f"the quote {shown!r} is not in the passage")
    return [text.strip() for text in texts]


def _plain(text: str) -> str:
    return " ".join(text.translate(_MARKS).split()).strip("\"' ").casefold()
