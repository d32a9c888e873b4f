"""Answers that tell their model: its own name, its maker, or the first words of a system prompt.

A name counts where the answer speaks of itself with it, in one sentence ("I am ...", "as a model made by ..."), not
where it speaks of models. Names are those of `makers.yaml` and of the models that the votes or the configuration know,
so that the list grows with them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from p2l.common.config import read_yaml

REVEALS = "reveals"
"""Measure of an answer: one where it tells its model or maker, else zero."""
REVEALED = "identity_revealed"
"""Column of votes: whether an answer tells its model or maker."""
_MAKERS = Path(__file__).parent / "makers.yaml"
_HIDDEN = "[name hidden]"
_READ_CHARACTERS = 2_000  # of an answer: a model that says who it is says so early
_LONGEST_SENTENCE = 600  # characters that are held back while an answer streams
_SHORTEST_NAME = 3
_MOST_NAMES = 5_000
# What an answer says of itself, in the languages in which most answers are written. Texts are searched for these as
# they stand, which is much faster than for patterns.
_OF_ITSELF = (
    *("i am", "i'm", "i’m", "my name is", "call me", "you are", "this is", "ich bin", "mein name ist", "je suis"),
    *("je m'appelle", "je m’appelle", "soy", "me llamo", "sou ", "sono", "mi chiamo", "я ", "меня зовут"),
    *("我是", "我叫", "我的名字是", "你是", "私は", "저는"),
)
# Words that may stand between that and the name: "I am an AI assistant called ...", and nothing else.
_WORDS_BETWEEN = (
    r"(?:[\s,:*_\"“‘'\-—–]|an?\b|the\b|ai\b|artificial\b|intelligence\b|large\b|language\b|model\b|assistant\b|"
    r"chatbot\b|called\b|named\b|known\b|as\b|based\b|on\b|version\b|of\b|ein\w*\b|une?\b|una\b|uma\b|ki\b|ia\b|"
    r"modelo\b|modèle\b|modell\b|de\b|lenguaje\b|一个|一個|名为|基于|大?语言模型|人工智能|助手)*"
)
_FIRST_PERSON = (
    r"(?:\bi\b|\bme\b|\bmy\b|\bas\s+an?\s+(?:ai|artificial|large|language)\b|\byou\s+are\b|\bich\b|\bje\b|\bj['’]|"
    r"\byo\b|\bsoy\b|\bfui\b|\bsou\b|\bsono\b|\bя\b|\bменя\b|我|你|私は|저는)"
)
_MADE_BY = (
    *("developed by", "made by", "trained by", "created by", "built by", "designed by", "provided by", "released by"),
    *("tuned by", "model from", "assistant from", "entwickelt", "trainiert", "développé par", "créé par"),
    *("entraîné par", "desarrollado por", "creado por", "entrenado por", "desenvolvido p", "criado p", "treinado p"),
    *("sviluppato da", "creato da", "addestrato da", "由", "разработ", "создан"),
)
_SENTENCE_END = re.compile(r"[.!?。！？\n](?=\s|$|[\"'”’)])|[。！？\n]")


@dataclass(frozen=True)
class SelfNames:
    """Patterns, of text in lower case, of what an answer says of itself with a name."""

    by_name: re.Pattern[str]
    """From words of itself on, its name."""
    by_maker: re.Pattern[str]
    """In one sentence, the first person, words of being made, and a maker."""
    name: re.Pattern[str]
    """Any of the names."""

    @classmethod
    def of(cls, models: Iterable[str] = ()) -> SelfNames:
        """Return the patterns of all makers and families, and of these models."""
        return _self_names(tuple(sorted(set(models)))[:_MOST_NAMES])

    def revealed(self, text: str) -> bool:
        """Return whether an answer tells its model or maker."""
        lowered = text[:_READ_CHARACTERS].lower()
        if any(self.by_name.match(lowered, at) for clue in _OF_ITSELF for at in _places(lowered, clue)):
            return True
        return any(
            self.by_maker.search(_sentence_at(lowered, at)) for clue in _MADE_BY for at in _places(lowered, clue)
        )

    def mask(self) -> Mask:
        """Return what hides the names in an answer as it streams."""
        return Mask(self)

    def masked(self, sentence: str) -> str:
        """Return a sentence without the names, if the answer speaks of itself in it."""
        return self.name.sub(_HIDDEN, sentence) if self.revealed(sentence) else sentence


class Mask:
    """Hides names in an answer as it streams, a sentence at a time."""

    def __init__(self, names: SelfNames) -> None:
        """Hold nothing back yet."""
        self._names = names
        self._rest = ""

    def feed(self, text: str) -> str:
        """Take more of an answer; return what of it can be shown."""
        self._rest += text
        end = max((match.end() for match in _SENTENCE_END.finditer(self._rest)), default=0)
        if len(self._rest) - end > _LONGEST_SENTENCE:
            end = self._rest.rfind(" ", end) + 1 or len(self._rest)
        whole, self._rest = self._rest[:end], self._rest[end:]
        return "".join(map(self._names.masked, _sentences(whole)))

    def end(self) -> str:
        """Return what was held back."""
        rest, self._rest = self._rest, ""
        return self._names.masked(rest)


def _sentences(text: str) -> list[str]:
    ends = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(ends) if end > start]


def _places(text: str, clue: str) -> Iterator[int]:
    at = text.find(clue)
    while at >= 0:
        yield at
        at = text.find(clue, at + len(clue))


def _sentence_at(text: str, at: int) -> str:
    """Return the sentence around a place, as far as it is near."""
    start = max(text.rfind(mark, max(0, at - _LONGEST_SENTENCE), at) for mark in (". ", "! ", "? ", "\n", "。"))
    ends = [end for mark in (". ", "! ", "? ", "\n", "。") if (end := text.find(mark, at, at + _LONGEST_SENTENCE)) >= 0]
    return text[max(start + 1, at - _LONGEST_SENTENCE) : min(ends, default=at + _LONGEST_SENTENCE)]


@lru_cache(maxsize=8)
def _self_names(models: Sequence[str]) -> SelfNames:
    table = read_yaml(_MAKERS)
    makers, families = set(table), {family for families in table.values() for family in families}
    for model in models:
        maker, slash, name = model.rpartition("/")
        families |= {name, name.replace("-", " ")}
        makers |= {maker.rpartition("/")[2]} if slash else set()
    maker, family = _any_of(makers), _any_of(families)
    of_itself = "|".join(map(re.escape, _OF_ITSELF))
    made_by = "|".join(map(re.escape, _MADE_BY))
    owned = rf"{maker}(?=[\s'’]+(?:s\b|ai\b|language|assistant|model))"
    return SelfNames(
        by_name=re.compile(rf"(?<![^\W_])(?:{of_itself}){_WORDS_BETWEEN}(?:{family}|{owned})"),
        by_maker=re.compile(
            rf"{_FIRST_PERSON}.{{0,120}}?(?:{made_by})(?:\W{{0,3}}\w+){{0,6}}?\W{{0,3}}(?:{maker}|{family})", re.S
        ),
        name=re.compile(f"{family}|{maker}", re.IGNORECASE),
    )


def _any_of(names: Iterable[str]) -> str:
    """Return a pattern of any of the names, the longest first; a version may follow: GPT-4, Llama 3.1, Qwen2.5."""
    kept = sorted((name for name in names if _can_be_told(name)), key=lambda name: (-len(name), name))
    listed = "|".join(re.escape(name.lower()).replace(r"\ ", r"[\s-]+") for name in kept)
    return rf"(?<![A-Za-z0-9])(?:{listed})(?:[\s-]?v?\d(?:[\w.:-]*\w)?)?(?![A-Za-z])"


def maker_of(model: str) -> str:
    """Return who made a model, in lower case: by its family, else what stands before a slash, else its first word."""
    owner, slash, name = model.lower().rpartition("/")
    families = _makers_of_families()
    family = next((family for family in families if re.match(rf"{re.escape(family)}(?![a-z])", name)), None)
    if family is not None:
        return families[family]
    return owner.rpartition("/")[2] if slash else re.split(r"[^a-z]", name, maxsplit=1)[0]


@lru_cache(maxsize=1)
def _makers_of_families() -> dict[str, str]:
    """Return makers by family, the longest families first."""
    table = read_yaml(_MAKERS)
    pairs = [(family.lower(), maker.lower()) for maker, families in table.items() for family in families]
    return dict(sorted(pairs, key=lambda pair: -len(pair[0])))


def _can_be_told(name: str) -> bool:
    """Return whether a name is long enough to be no word of another meaning."""
    return len(name) >= _SHORTEST_NAME or not name.isascii()


def clue_pattern() -> str:
    """Return a pattern (RE2, of text in any case) without which no answer tells its model."""
    return "(?i)" + "|".join((*_OF_ITSELF, *_MADE_BY))
