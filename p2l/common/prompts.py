"""Texts of prompts: their limits (turns, characters, combining marks in a row), words, form, and familiarity in words.

A model reads the newest tokens of a prompt, so the newest turns and characters are kept of one that is too long.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

MAX_TURNS = 10_000  # turns of a request that an endpoint takes by default, those of all its prompts together
MAX_CHARS = 1_000_000  # characters of a prompt that an endpoint takes by default
MAX_MARKS = 30  # combining marks in a row, as in Unicode's stream-safe text format; no language writes as many

_OVERALL = 0.05  # familiarity below which a board is in effect the overall one
MOSTLY_OVERALL = 0.5
"""Familiarity below which more of a prompt's board is the overall one's than its own."""
_OWN = 0.95  # familiarity from which a board is in effect the prompt's own


def familiarity_note(familiarity: float | None) -> str:
    """Return the sentence that stands beside the board of a prompt of this familiarity.

    Empty for a prompt that has its own board, and for None: a model without posterior cannot tell.
    """
    if familiarity is None or familiarity >= _OWN:
        return ""
    if familiarity < _OVERALL:
        return "This is the overall board: nothing like this prompt was voted on."
    if familiarity < MOSTLY_OVERALL:
        return "Mostly the overall board: little like this prompt was voted on."
    return "Partly the overall board: only prompts somewhat like this one were voted on."


def unfamiliar_note(familiarities: Iterable[float]) -> str:
    """Return the sentence that says of several prompts how many get mostly the overall board; empty if none does."""
    shares = list(familiarities)
    if len(shares) == 1:
        return familiarity_note(shares[0])
    strange = sum(familiarity < MOSTLY_OVERALL for familiarity in shares)
    if not strange:
        return ""
    counts = f"{strange:,} of {len(shares):,} prompts ({strange / len(shares):.1%})"
    if strange == 1:
        return f"{counts} gets mostly the overall board: little like it was voted on."
    return f"{counts} get mostly the overall board: little like them was voted on."


def newest_turns(turns: Sequence[str], *, max_turns: int, max_chars: int) -> Sequence[str]:
    """Return the newest turns and characters of a prompt, at least one turn; the prompt itself where it fits.

    The oldest turn that is kept is cut at its beginning.
    """
    if len(turns) <= max_turns and sum(map(len, turns)) <= max_chars:
        return turns
    newest: list[str] = []
    left = max_chars
    for turn in reversed(turns[-max_turns:]):
        if left <= 0 and newest:
            break
        newest.append(turn[max(0, len(turn) - max(0, left)) :])
        left -= len(turn)
    return newest[::-1]


def cut_marks(text: str) -> str:
    """Return the text with at most `MAX_MARKS` combining marks in a row; text that people write stays as it is."""
    # Normalising a run of marks takes Python a time that grows with the square of its length: 20 s for 80,000.
    if len(text) <= MAX_MARKS or text.isascii():
        return text
    coarse, exact = _long_runs()
    return coarse.sub(lambda run: exact.sub(lambda marks: marks[0][:MAX_MARKS], run[0]), text)


@lru_cache(maxsize=1)
def _long_runs() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Compile what finds too long runs of marks: a fast pattern that may find more, and an exact one."""
    # Some have no combining class of their own, only what they decompose into (U+0F73, U+FF9E).
    marks = [
        char
        for char in map(chr, range(0x300, 0x1F000))  # the planes beyond hold none
        if unicodedata.combining(unicodedata.normalize("NFKD", char)[0])
    ]
    exact = "".join(marks)
    # A set with many ranges of the second plane takes 30 times as long to look through.
    coarse = "".join(char for char in marks if char < "\U00010000") + "\U00010000-\U0001efff"
    # A set at the beginning, and not a repetition, lets the engine skip to the first mark.
    fast, slow = (re.compile(f"[{each}][{each}]{{{MAX_MARKS},}}") for each in (coarse, exact))
    return fast, slow


def repair(text: str) -> str:
    """Replace lone surrogates, which no tokenizer can encode, by U+FFFD; surrogate pairs are joined."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


_NO_SPACES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# \w leaves out combining marks, without which words of Indic, Arabic and Hebrew scripts fall apart.
_MARKS = "\u0300-\u036f\u0483-\u0489\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0dff"
SPACELESS = re.compile(f"[{_NO_SPACES}]")  # a character of a script that is written without spaces
_WORD = re.compile(rf"[{_NO_SPACES}]|\d|(?:(?![{_NO_SPACES}\d])[\w{_MARKS}'’])+|[^\w\s]")


# Words that end before such a character, and those from it on, are the same whether split apart or at once.
_START_OF_PIECE = re.compile(r"[\x00-&(-@\[-^`{-\x7f\u3400-\u4db5\u4e00-\u9fff]")
_PIECE_CHARS = 4096  # other threads wait while the library normalises or splits


def split_words(text: str) -> list[str]:
    """Return the words of one turn, in order."""
    return [word for piece in reversed(list(newest_words(text))) for word in piece]


def newest_words(text: str) -> Iterator[list[str]]:
    """Yield the words of one turn piece by piece, the last piece first."""
    text = repair(text)
    start = len(text)
    while True:
        end = start
        start = max(0, end - _PIECE_CHARS)
        # Only a word that is longer than a piece is cut.
        border = _START_OF_PIECE.search(text, start, end) if start else None
        start = border.start() if border else start
        yield _WORD.findall(unicodedata.normalize("NFKC", cut_marks(text[start:end])).casefold())
        if not start:
            return


# The form of a prompt needs no training and no vocabulary, and tells hard prompts from easy ones: on graded answers
# these counts lower the loss of a reader by 0.005 nats.

_MATH = re.compile(r"[=+*/^<>$\\{}|~%±×÷∑∫√≤≥∞-]")
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_SENTENCE = re.compile(r"[.!?。！？](?:\s|$)")
_WORD_CHARS = re.compile(r"\w+")
_MAX_DIGITS = 12.0  # digits of a number that count
_COUNTED_SIGNS = (",", "([{", "'\"", "$", "\\", "%", "=", "+-*/", "_", ":")
_SHARES = 9
BETWEEN_TURNS = "\n\n"
COUNTS_OF_TEXT = _SHARES + 12 + len(_COUNTED_SIGNS)
"""Counts of the whole prompt, which come first."""
FORM_FEATURES = 2 * COUNTS_OF_TEXT + 2
"""Counts of form; readers of older versions have only the first of them."""


def form_of(turns: Sequence[str]) -> list[float]:
    """Return counts of the whole prompt, of its turns, and the differences of its newest turn; 0 where it is alone."""
    whole = _of_text(BETWEEN_TURNS.join(turns))
    if len(turns) < 2:
        return whole + [0.0] * (FORM_FEATURES - COUNTS_OF_TEXT)
    # The question stands in the newest turn, which an encoder and words do not tell from the other turns.
    longer = math.log1p(sum(map(len, turns))) - math.log1p(len(turns[-1]))
    newest = (count - of_all for count, of_all in zip(_of_text(turns[-1]), whole, strict=True))
    return [*whole, math.log(len(turns)), longer, *newest]


def _of_text(text: str) -> list[float]:
    """Return counts of a text: of its length, its shares of signs, its numbers, its words and its lines."""
    return [*_shares(text), *_sizes(text), *(math.log1p(sum(map(text.count, signs))) for signs in _COUNTED_SIGNS)]


def _shares(text: str) -> list[float]:
    """Return characters, lines, words, and shares of digits, other scripts, signs and capitals, code, questions."""
    size = len(text) + 1
    words = len(text.split())
    digits, capitals = sum(map(str.isdigit, text)), sum(map(str.isupper, text))
    foreign = size - 1 - len(text.encode("ascii", "ignore"))
    return [
        math.log1p(len(text)),
        math.log1p(text.count("\n")),
        math.log1p(words),
        digits / size,
        foreign / size,
        len(_MATH.findall(text)) / size,
        capitals / size,
        float("```" in text),
        text.count("?") / (words + 1),
    ]


def _sizes(text: str) -> list[float]:
    """Return numbers of numbers, sentences, different words and indented lines, and their sizes."""
    words, lines = text.split(), text.split("\n")
    digits = [min(_MAX_DIGITS, math.log10(1.0 + float(number.replace(",", "")))) for number in _NUMBER.findall(text)]
    lengths, widths = [len(word) for word in words] or [0], [len(line) for line in lines]
    return [
        math.log1p(len(digits)),
        max(digits, default=0.0),
        sum(digits) / max(1, len(digits)),
        math.log1p(len(_SENTENCE.findall(text))),
        sum(lengths) / len(lengths),
        math.log1p(max(lengths)),
        len(set(words)) / (len(words) + 1),
        math.log1p(sum(line.startswith((" ", "\t")) for line in lines)),
        math.log1p(sum(widths) / len(widths)),
        math.log1p(max(widths)),
        math.log1p(sum(word[:1].isupper() for word in words)),
        math.log1p(len(set(_WORD_CHARS.findall(text.lower())))),
    ]
