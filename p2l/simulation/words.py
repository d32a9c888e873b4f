"""The words of the simulated arena: topics with their own nouns, languages with their own function words.

Word ids are laid out as `language * words_per_language + local id`, with the same local layout in every language, so
that a prompt is drawn once as local ids and spoken in any language. Nouns of other languages are derived from the
English ones by spelling rules: they look foreign and share no string with them, which is all that the simulation needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from p2l.errors import ConfigError

__all__ = ["LANGUAGES", "ROLES", "WORDS_PER_TOPIC", "Vocabulary", "build_vocabulary", "topic_names"]

WORDS_PER_TOPIC = 16

_TOPIC_WORDS: dict[str, str] = {
    "code": (
        "script function compiler parser loop array pointer thread database server module bug class query test regex"
    ),
    "poetry": (
        "sonnet verse stanza rhyme metaphor ballad lyric haiku refrain ode elegy meter couplet muse imagery poem"
    ),
    "math": (
        "integral theorem matrix proof equation prime vector polynomial limit lemma graph angle sum ratio series tensor"
    ),
    "law": (
        "contract statute clause tenant liability court appeal treaty patent verdict lease witness tort plea bylaw deed"
    ),
    "cooking": ("recipe oven dough broth garlic pasta sauce roast butter spice pan salad pastry curry grill vinegar"),
    "medicine": (
        "symptom dose vaccine artery fever biopsy insulin allergy surgeon clinic tumor lung therapy nerve virus scan"
    ),
    "history": (
        "empire dynasty siege revolt crusade colony throne armistice "
        "parchment monarch plague legion archive guild tribe war"
    ),
    "physics": (
        "quark orbit entropy photon magnet laser plasma inertia "
        "neutron gravity momentum lens circuit wave torque isotope"
    ),
    "travel": (
        "itinerary hostel passport ferry visa luggage island museum railway harbor tour airport beach hotel map border"
    ),
    "music": (
        "chord melody tempo violin chorus octave symphony drum opera piano jazz rhythm bass harmony flute encore"
    ),
    "finance": (
        "bond dividend mortgage equity hedge inflation ledger audit pension loan tax broker futures asset credit budget"
    ),
    "gardening": (
        "compost seedling tulip hedgerow pruning orchard mulch greenhouse fern soil bulb trellis lawn rose weed shovel"
    ),
}

# Roles that function words play. Each has at least two words per language, so that no single string gives a role away.
ROLES = ("filler", "demanding", "explain", "convert", "into", "including", "without", "tell", "again")

_FUNCTION_WORDS: dict[str, dict[str, str]] = {
    "English": {
        "filler": "some nice simple other new small typical usual given certain common little",
        "demanding": "rigorous subtle advanced thorough",
        "explain": "explain describe",
        "convert": "turn convert",
        "into": "into toward",
        "including": "with including",
        "without": "without excluding",
        "tell": "tell show",
        "again": "again previously",
    },
    "Chinese": {
        "filler": "一些 漂亮 简单 其他 新的 小的 典型 通常 给定 某个 常见 少量",
        "demanding": "严格 微妙 高级 彻底",
        "explain": "解释 描述",
        "convert": "转换 改写",
        "into": "变成 成为",
        "including": "带有 包括",
        "without": "没有 不含",
        "tell": "告诉 展示",
        "again": "再次 之前",
    },
    "Russian": {
        "filler": "некий милый простой другой новый малый типичный обычный данный известный общий скромный",
        "demanding": "строгий тонкий сложный глубокий",
        "explain": "объясни опиши",
        "convert": "преврати переделай",
        "into": "превратив делая",
        "including": "включая вместе",
        "without": "без кроме",
        "tell": "скажи покажи",
        "again": "снова прежде",
    },
    "German": {
        "filler": "etwas nett einfach anderes neues kleines typisch üblich gegeben gewisse häufig wenig",
        "demanding": "streng subtil fortgeschritten gründlich",
        "explain": "erkläre beschreibe",
        "convert": "verwandle übertrage",
        "into": "hinein werdend",
        "including": "mitsamt samt",
        "without": "ohne außer",
        "tell": "sag zeig",
        "again": "nochmals vorher",
    },
    "Spanish": {
        "filler": "algún bonito sencillo otro nuevo pequeño típico usual dado cierto común poco",
        "demanding": "riguroso sutil avanzado exhaustivo",
        "explain": "explica describe",
        "convert": "convierte transforma",
        "into": "hacia hasta",
        "including": "con incluyendo",
        "without": "sin excluyendo",
        "tell": "dime muestra",
        "again": "nuevamente antes",
    },
}
LANGUAGES = tuple(_FUNCTION_WORDS)

_CYRILLIC = str.maketrans("abcdefghijklmnopqrstuvwxyz", "абцдефгхийклмнопярстувжыез")
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


@dataclass(frozen=True)
class Vocabulary:
    """All words of an arena, by word id.

    words: object array of `languages * words_per_language` strings.
    role_start, role_size: first local id and number of the words of each role (see `ROLES`).
    topic_start: local id of the first noun of the first topic; topic k begins `k * WORDS_PER_TOPIC` later.
    """

    words: NDArray[np.object_]
    words_per_language: int
    role_start: dict[str, int]
    role_size: dict[str, int]
    topic_start: int


@lru_cache(maxsize=8)
def build_vocabulary(topics: int, languages: int) -> Vocabulary:
    """The words of an arena with this many topics and languages (see the module's docstring for the layout).

    Raises:
        ConfigError: more languages than there are function words for.
    """
    if not 1 <= languages <= len(LANGUAGES):
        raise ConfigError(f"languages: {languages} asked for; between 1 and {len(LANGUAGES)} are available")
    nouns = [word for topic in range(topics) for word in _topic_words(topic)]
    spoken = [_function_words(name) + [_foreign(word, name, i) for i, word in enumerate(nouns)] for name in LANGUAGES]
    sizes = {role: len(_FUNCTION_WORDS["English"][role].split()) for role in ROLES}
    starts = dict(zip(ROLES, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    return Vocabulary(
        words=np.array([word for language in spoken[:languages] for word in language], dtype=object),
        words_per_language=len(spoken[0]),
        role_start=starts,
        role_size=sizes,
        topic_start=sum(sizes.values()),
    )


def topic_names(topics: int) -> list[str]:
    """Names of the first `topics` topics; those beyond the written ones are called by an invented word."""
    written = list(_TOPIC_WORDS)[:topics]
    return written + [_invented(k * (WORDS_PER_TOPIC + 1)) for k in range(len(written), topics)]


def _topic_words(topic: int) -> list[str]:
    """The nouns of a topic; they are invented, like its name, where none are written."""
    if topic < len(_TOPIC_WORDS):
        return list(_TOPIC_WORDS.values())[topic].split()
    return [_invented(topic * (WORDS_PER_TOPIC + 1) + 1 + i) for i in range(WORDS_PER_TOPIC)]


def _invented(number: int) -> str:
    """The `number`-th pronounceable word, of three syllables; the first 300,000 differ."""
    base = len(_SYLLABLES)
    scattered = number * 104_729 % base**3  # neighbours in number look nothing alike
    return "".join(_SYLLABLES[scattered // base**place % base] for place in range(3))


def _function_words(language: str) -> list[str]:
    return [word for role in ROLES for word in _FUNCTION_WORDS[language][role].split()]


def _foreign(noun: str, language: str, index: int) -> str:
    """A noun in another language: another script, or another ending."""
    if language == "Chinese":
        return chr(0x5200 + index % 4096) + chr(0x6300 + index // 4096)
    if language == "Russian":
        return noun.translate(_CYRILLIC)
    return noun + {"English": "", "German": "ung", "Spanish": "ado"}[language]
