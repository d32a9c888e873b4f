"""Prompts of the simulated arena: what they say, and which topics decide who answers them well.

A prompt has one or two clauses, each full of one topic's nouns. Which topic decides is written in the structure alone:

    single     one topic, in one turn or with a follow-up turn    it decides
    order      "convert ... P ... into ... Q ..."                 Q, the clause after `into`
    negation   "with ... P ... without ... Q ..."                 P, whichever comes first; skill in Q is a handicap
    turns      one turn on P, then one on Q                       Q, the last turn, unless that refers back to the first

A fair coin says which topic goes into which clause, and everything else is drawn without looking at the coin. So the
multiset of words says nothing about who decides: the best function of it is the mean over the two sides of the coin.
`topic_weights` gives that mean apart, which makes the share of the prompt effect that no bag of words can see exact.
Bigrams hardly help: two function words stand between a marker and the first noun.

Shapes: n prompts, K topics, S = 2 clauses, W words per clause (padded).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2l.common.errors import ConfigError
from p2l.simulation.config import SimulationConfig

if TYPE_CHECKING:
    import pyarrow as pa


# The words of the simulated arena: topics with their own nouns, languages with their own function words.
#
# Word ids are laid out as `language * words_per_language + local id`, with the same local layout in every language, so
# that a prompt is drawn once as local ids and spoken in any language. Nouns of other languages are derived from the
# English ones by spelling rules: they look foreign and share no string with them, which is all that the simulation
# needs.

_WORDS_PER_TOPIC = 16
_WORDS = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))
_TOPIC_WORDS: dict[str, str] = _WORDS["topics"]

# Roles that function words play. Each has at least two words per language, so that no single string gives a role away.
_ROLES = ("filler", "demanding", "explain", "convert", "into", "including", "without", "tell", "again")
_FUNCTION_WORDS: dict[str, dict[str, str]] = _WORDS["languages"]
LANGUAGES = tuple(_FUNCTION_WORDS)
_CYRILLIC = str.maketrans("abcdefghijklmnopqrstuvwxyz", "абцдефгхийклмнопярстувжыез")
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


@dataclass(frozen=True)
class Vocabulary:
    """All words of an arena, by word id.

    words: object array of `languages * words_per_language` strings.
    role_start, role_size: first local id and number of the words of each role (see `_ROLES`).
    topic_start: local id of the first noun of the first topic; topic k begins `k * _WORDS_PER_TOPIC` later.
    """

    words: NDArray[np.object_]
    words_per_language: int
    role_start: dict[str, int]
    role_size: dict[str, int]
    topic_start: int


@lru_cache(maxsize=8)
def build_vocabulary(topics: int, languages: int) -> Vocabulary:
    """Build the words of an arena (layout: see the module's docstring); ConfigError for too many languages."""
    if not 1 <= languages <= len(LANGUAGES):
        raise ConfigError(f"languages: {languages} asked for; between 1 and {len(LANGUAGES)} are available")
    nouns: list[str] = []
    for topic in range(topics):
        if topic < len(_TOPIC_WORDS):
            nouns += list(_TOPIC_WORDS.values())[topic].split()
        else:  # invented, like the topic's name, which takes the number before them
            first = topic * (_WORDS_PER_TOPIC + 1) + 1
            nouns += [_invented(number) for number in range(first, first + _WORDS_PER_TOPIC)]
    spoken = [
        [word for role in _ROLES for word in _FUNCTION_WORDS[name][role].split()]
        + [_foreign(word, name, i) for i, word in enumerate(nouns)]
        for name in LANGUAGES
    ]
    sizes = {role: len(_FUNCTION_WORDS["English"][role].split()) for role in _ROLES}
    starts = dict(zip(_ROLES, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    return Vocabulary(
        words=np.array([word for language in spoken[:languages] for word in language], dtype=object),
        words_per_language=len(spoken[0]),
        role_start=starts,
        role_size=sizes,
        topic_start=sum(sizes.values()),
    )


def topic_names(topics: int) -> list[str]:
    """Return the names of the first `topics` topics; beyond the written ones they are invented words."""
    written = list(_TOPIC_WORDS)[:topics]
    return written + [_invented(k * (_WORDS_PER_TOPIC + 1)) for k in range(len(written), topics)]


def _invented(number: int) -> str:
    """Return the `number`-th pronounceable word, of three syllables; the first 300,000 differ."""
    base = len(_SYLLABLES)
    scattered = number * 104_729 % base**3  # neighbours in number look nothing alike
    return "".join(_SYLLABLES[scattered // base**place % base] for place in range(3))


def _foreign(noun: str, language: str, index: int) -> str:
    """Return a noun in another language: another script, or another ending."""
    if language == "Chinese":
        return chr(0x5200 + index % 4096) + chr(0x6300 + index // 4096)
    if language == "Russian":
        return noun.translate(_CYRILLIC)
    return noun + {"English": "", "German": "ung", "Spanish": "ado"}[language]


FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
STRUCTURES = ("single", "order", "negation", "turns")
SINGLE, ORDER, NEGATION, TURNS = range(4)
LENGTHS = (4, 7, 12)  # nouns and fillers in the middle of a clause: short, medium, long
_LENGTH_SHARES = (0.45, 0.35, 0.20)
_MAX_CLAUSE = 1 + 2 + LENGTHS[-1] + 1  # marker, two function words, middle, one function word
_NEGATED_WEIGHT = -0.4
_EARLIER_TURN_WEIGHT = 0.1
_REFERS_BACK = 0.2  # chance that a turn opens with a word that refers back
_FOLLOW_UP = 0.3  # chance that a prompt on a single topic has a second turn
_FAVOURITE = 0.4  # chance that a user asks about their favourite topic, while that is in fashion
_IN_USE = 0.5  # share of a topic's nouns that people use at any one time, where words go out of use
_AS_ADJECTIVE = {"some": "whole"}  # the one filler that stands in for an article
_TURN_SENTENCES = {
    "tell": "Tell me about {}.",
    "show": "Show me {}.",
    "again": "Once again, {}.",
    "previously": "As previously, {}.",
}


@dataclass(frozen=True)
class PromptBatch:
    """Contents of n prompts, before any word is chosen; all arrays have length n unless stated.

    tstamp: seconds. user: index. language: index into `LANGUAGES`. structure: index into `STRUCTURES`.
    topics: (n, 2) topic of the first and of the second clause (equal when `structure` is single).
    clauses: 1 or 2. negated: index of the negated clause (negation only). back: (n, 2) the clause opens with a word
    that refers back (turns only). difficulty: 0 to 3 demanding words. length: index into `LENGTHS`.
    replaced: how many of a topic's nouns have gone out of use by then; negative where none ever does.
    """

    tstamp: FloatArray
    user: IntArray
    language: IntArray
    structure: IntArray
    topics: IntArray
    clauses: IntArray
    negated: IntArray
    back: NDArray[np.bool_]
    difficulty: IntArray
    length: IntArray
    replaced: IntArray

    def __len__(self) -> int:
        return len(self.tstamp)

    def take(self, rows: NDArray[Any]) -> PromptBatch:
        """Return the prompts at `rows` (indices or mask)."""
        return PromptBatch(**{name: value[rows] for name, value in vars(self).items()})

    @property
    def decisive(self) -> IntArray:
        """The clause that decides (n,), 0 or 1."""
        last_turn = np.where(self.back[:, 1], 0, 1)
        choices = [np.zeros(len(self), np.int64), np.ones(len(self), np.int64), 1 - self.negated, last_turn]
        return np.choose(self.structure, choices)

    @property
    def two_turns(self) -> NDArray[np.bool_]:
        """Whether the second clause is a turn of its own."""
        return np.equal(self.clauses, 2) & np.isin(self.structure, (SINGLE, TURNS))


@dataclass(frozen=True)
class PromptSource:
    """Fixed tables of users and topics that prompts are drawn from.

    popularity: (2, K) log popularity of the topics at the start and at the end.
    structures: probability of each of `STRUCTURES`.
    user_language, user_topic: (users,) home language and favourite topic. user_cdf: (users,) cumulative activity.
    fashion: how far the log popularity of a topic swings over the arena's life, each topic with a peak of its own.
    turnover: share of each topic's nouns that are replaced by others over the arena's life.
    """

    vocabulary: Vocabulary
    popularity: FloatArray
    structures: tuple[float, ...]
    user_language: IntArray
    user_topic: IntArray
    user_cdf: FloatArray
    fashion: float = 0.0
    turnover: float = 0.0

    def draw(self, tstamp: FloatArray, age: FloatArray, rng: np.random.Generator) -> PromptBatch:
        """Draw one prompt per time; `age` is the time as a share of the arena's life."""
        n = len(tstamp)
        user = np.searchsorted(self.user_cdf, rng.random(n), side="right").clip(max=len(self.user_cdf) - 1)
        structure = rng.choice(len(STRUCTURES), size=n, p=self.structures)
        return PromptBatch(
            tstamp=tstamp,
            user=user,
            language=self.user_language[user],
            topics=self._draw_topics(user, structure, age, rng),
            **_draw_form(structure, rng),
            replaced=self.replaced(age),
        )

    def replaced(self, age: FloatArray) -> IntArray:
        """Return how many (n,) of a topic's nouns have gone out of use; -1 without turnover."""
        if not self.turnover:
            return np.full(len(age), -1)
        return np.floor(self.turnover * _WORDS_PER_TOPIC * age).astype(np.int64)

    def _draw_topics(self, user: IntArray, structure: IntArray, age: FloatArray, rng: np.random.Generator) -> IntArray:
        """Draw (n, 2): a topic that the user likes and another one, in an order that a fair coin decides."""
        # What fashion adds (n, K) to the log popularity of each topic; topic k peaks at age k / (K - 1).
        wave = self.fashion * np.cos(np.pi * (age[:, None] - np.linspace(0, 1, self.popularity.shape[1])))
        logits = self.popularity[0] + age[:, None] * (self.popularity[1] - self.popularity[0]) + wave
        # Gumbel noise: the two highest are two different draws by popularity.
        ranked = np.argsort(logits + rng.gumbel(size=logits.shape), axis=1)
        first, second = ranked[:, -1], ranked[:, -2]
        favourite = self.user_topic[user]
        keen = _FAVOURITE * np.exp(wave[np.arange(len(user)), favourite] - self.fashion)
        liked = np.where(rng.random(len(user)) < keen, favourite, first)
        beside = np.where(liked == first, second, first)
        pair = np.where(rng.random(len(user)) < 0.5, [liked, beside], [beside, liked])
        topics: IntArray = np.where(structure == SINGLE, liked, pair).T.astype(np.int64)
        return topics


def make_source(config: SimulationConfig, rng: np.random.Generator) -> PromptSource:
    """Draw the tables of an arena; ConfigError for fewer than two topics, or an unknown number of languages."""
    topics, languages, users = config.topics, config.languages, config.users
    if topics < 2:
        raise ConfigError(f"topics: {topics} asked for; at least 2 are needed, so that prompts can combine them")
    popularity = rng.normal(0, 0.4, topics) + np.array([[-0.5], [0.5]]) * rng.normal(0, config.drift, topics)
    english = 0.62 if languages > 1 else 1.0
    shares = np.append(english, (1 - english) * _decaying(languages - 1))
    activity = _decaying(users)
    return PromptSource(
        vocabulary=build_vocabulary(topics, languages),
        popularity=popularity,
        structures=config.structures,
        user_language=rng.choice(languages, size=users, p=shares),
        user_topic=rng.choice(topics, size=users),
        user_cdf=np.cumsum(activity),
        fashion=config.fashion,
        turnover=config.turnover,
    )


def example_batch(
    kind: tuple[str, int, int], tstamp: FloatArray, replaced: IntArray, rng: np.random.Generator
) -> PromptBatch:
    """Return English prompts of one kind: joining word ("", "into", "without", "then"), topics before and after it.

    Whatever does not belong to the kind (length, demanding words, which clause of a negation comes first) is drawn.
    """
    joining, before, after = kind
    n = len(tstamp)
    structure = np.full(n, ("", "into", "without", "then").index(joining))
    form = _draw_form(structure, rng)
    topics = np.tile([before, after], (n, 1))
    topics = np.where(((structure == NEGATION) & (form["negated"] == 0))[:, None], topics[:, ::-1], topics)
    form["back"] = np.zeros((n, 2), bool)
    nobody = np.zeros(n, np.int64)
    return PromptBatch(tstamp=tstamp, user=nobody, language=nobody, topics=topics, **form, replaced=replaced)


def topic_weights(prompts: PromptBatch, topics: int) -> tuple[FloatArray, FloatArray]:
    """Return each topic's weight (n, K), and the mean of it (n, K) that a bag of words can know.

    The second is the mean over the two ways to deal the prompt's topics to its clauses, which have the same words.
    """
    one_hot, rows = np.eye(topics), np.arange(len(prompts))
    deciding = one_hot[prompts.topics[rows, prompts.decisive]]
    beside = one_hot[prompts.topics[rows, 1 - prompts.decisive]]
    # By structure: single, order, negation, turns.
    deciding_weight = np.array([1.0, 1.0, 1.0, 1 - _EARLIER_TURN_WEIGHT])[prompts.structure][:, None]
    beside_weight = np.array([0.0, 0.0, _NEGATED_WEIGHT, _EARLIER_TURN_WEIGHT])[prompts.structure][:, None]
    weights = deciding_weight * deciding + beside_weight * beside
    return weights, (deciding_weight + beside_weight) / 2 * (deciding + beside)


def choose_words(prompts: PromptBatch, vocabulary: Vocabulary, rng: np.random.Generator) -> IntArray:
    """Choose the words of each clause: local ids (n, S, W), -1 where there is none."""
    words = np.stack([_clause(prompts, s, vocabulary, rng) for s in (0, 1)], axis=1)
    words[prompts.clauses == 1, 1] = -1
    return np.asarray(words)


def render(prompts: PromptBatch, words: IntArray, vocabulary: Vocabulary) -> pa.ListArray:
    """Write the words (n, S, W): a list of user turns per prompt.

    Words are joined by pyarrow in one go per batch: a million prompts take seconds.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    present = words >= 0
    ids = words + prompts.language[:, None, None] * vocabulary.words_per_language
    sizes = present.sum(axis=2)
    two = prompts.two_turns
    turn_sizes = np.where(two[:, None], sizes, np.stack([sizes.sum(axis=1), np.full(len(two), -1)], axis=1)).ravel()
    spoken = pa.array(vocabulary.words, pa.string()).take(pa.array(ids[present]))
    turns = pc.binary_join(pa.ListArray.from_arrays(_offsets(turn_sizes[turn_sizes >= 0]), spoken), " ")
    return pa.ListArray.from_arrays(_offsets(1 + two), turns)


def to_sentences(prompts: PromptBatch, words: NDArray[np.int64], vocabulary: Vocabulary) -> list[list[str]]:
    """Return the user turns of n prompts as sentences, from the ids (n, S, W) of their English words, -1 for none.

    single     "Explain the simple script, the loop and the array."
    order      "Turn the usual sonnet and the refrain into the common equation."
    negation   "Write something with the given recipe, without the new contract and the clause."
    turns      "Tell me about the little script." and then "Show me the typical sonnet and the verse."

    Nouns that a clause repeats are named once, and of its filler words one is left.
    """
    first = vocabulary.role_start["demanding"]
    demanding = range(first, first + vocabulary.role_size["demanding"])
    spelled: list[str] = vocabulary.words.tolist()
    turns = []
    for structure, clauses in zip(prompts.structure.tolist(), words.tolist(), strict=True):
        openings, contents = [], []
        for clause in clauses:
            ids = [word for word in clause if word >= 0]
            if ids:
                openings.append(spelled[ids[0]])
                contents.append(_noun_phrase(ids[1:], spelled, vocabulary.topic_start, demanding))
        turns.append(_turns_of(structure, openings, contents))
    return turns


def _noun_phrase(ids: Sequence[int], spelled: Sequence[str], first_noun: int, demanding: Sequence[int]) -> str:
    nouns = [spelled[word] for word in dict.fromkeys(ids) if word >= first_noun]
    adjectives = [spelled[word] for word in dict.fromkeys(ids) if word in demanding]
    fillers = [spelled[word] for word in ids if word < first_noun and word not in demanding][:1]
    first = " ".join([*adjectives, *(_AS_ADJECTIVE.get(word, word) for word in fillers), nouns[0]])
    listed = [f"the {noun}" for noun in (first, *nouns[1:])]
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"


def _turns_of(structure: int, openings: Sequence[str], contents: Sequence[str]) -> list[str]:
    # A clause reads the same wherever it stands, so that two clauses that change places leave the same words.
    if structure == ORDER:
        return [f"{openings[0].capitalize()} {contents[0]} {openings[1]} {contents[1]}."]
    if structure == NEGATION:
        return [f"Write something {openings[0]} {contents[0]}, {openings[1]} {contents[1]}."]
    if structure == TURNS:
        return [_TURN_SENTENCES[opening].format(content) for opening, content in zip(openings, contents, strict=True)]
    return [f"{opening.capitalize()} {content}." for opening, content in zip(openings, contents, strict=True)]


def _draw_form(structure: IntArray, rng: np.random.Generator) -> dict[str, Any]:
    """Draw the fields of a prompt that have nothing to do with its topics."""
    n = len(structure)
    follows = (structure != SINGLE) | (rng.random(n) < _FOLLOW_UP)
    return {
        "structure": structure,
        "clauses": np.where(follows, 2, 1),
        "negated": rng.integers(0, 2, n),
        "back": (rng.random((n, 2)) < _REFERS_BACK) & (structure == TURNS)[:, None],
        "difficulty": rng.binomial(3, 0.35, n),
        "length": rng.choice(len(LENGTHS), size=n, p=_LENGTH_SHARES),
    }


def _clause(prompts: PromptBatch, slot: int, vocabulary: Vocabulary, rng: np.random.Generator) -> IntArray:
    """Return word ids (n, W) of one clause: a marker, two fillers, nouns among fillers, a filler; -1 past its end."""
    n = len(prompts)
    position = np.arange(_MAX_CLAUSE)
    last = 3 + np.array(LENGTHS)[prompts.length][:, None]
    filler = _draw_role("filler", (n, _MAX_CLAUSE), vocabulary, rng)
    # Squaring a uniform number makes the first nouns of a topic the common ones.
    rank = rng.random((n, _MAX_CLAUSE)) ** 2
    used = np.where(prompts.replaced < 0, 1, _IN_USE)[:, None]
    place = (_WORDS_PER_TOPIC * used * rank).astype(np.int64) + prompts.replaced.clip(min=0)[:, None]
    noun = vocabulary.topic_start + place % _WORDS_PER_TOPIC
    noun += prompts.topics[:, slot, None] * _WORDS_PER_TOPIC
    is_noun = (rng.random((n, _MAX_CLAUSE)) < 0.5) | (position == 3)
    words = np.where(is_noun & (position >= 3) & (position < last), noun, filler)
    if slot == 0:
        demanding = _draw_role("demanding", (n, 3), vocabulary, rng)
        present = prompts.difficulty[:, None] > np.arange(3)
        words[:, 1:3] = np.where(present[:, :2], demanding[:, :2], words[:, 1:3])
        words = np.where((position == last) & present[:, 2:], demanding[:, 2:], words)
    words[:, 0] = _marker(prompts, slot, vocabulary, rng)
    return np.where(position <= last, words, -1)


def _marker(prompts: PromptBatch, slot: int, vocabulary: Vocabulary, rng: np.random.Generator) -> IntArray:
    """Return the word (n,) that opens a clause and says how it relates to the other one."""
    draw = partial(_draw_role, shape=(len(prompts),), vocabulary=vocabulary, rng=rng)
    # Words of all structures are drawn for every prompt, so that what a prompt draws depends on no other prompt.
    by_structure = {
        SINGLE: draw("explain"),
        ORDER: draw("into" if slot else "convert"),
        NEGATION: np.where(prompts.negated == slot, draw("without"), draw("including")),
        TURNS: np.where(prompts.back[:, slot], draw("again"), draw("tell")),
    }
    return np.choose(prompts.structure, list(by_structure.values()))


def _draw_role(role: str, shape: tuple[int, ...], vocabulary: Vocabulary, rng: np.random.Generator) -> IntArray:
    return vocabulary.role_start[role] + rng.integers(0, vocabulary.role_size[role], shape)


def _decaying(n: int) -> FloatArray:
    """Return n shares that fall off like one over the rank; they sum to one."""
    share: FloatArray = 1 / np.arange(2.0, n + 2)
    share /= share.sum()
    return share


def _offsets(sizes: NDArray[Any]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
