"""Prompts of the simulated arena as English sentences, for people who look at them: `p2l simulate --sentences`.

    single     "Explain the simple script, the loop and the array."
    order      "Turn the usual sonnet and the refrain into the common equation."
    negation   "Write something with the given recipe, without the new contract and the clause."
    turns      "Tell me about the little script." and then "Show me the typical sonnet and the verse."

What decides is what decides in the plain words (see `p2l.simulation.prompts`), and shows in the order alone: a clause
reads the same wherever it stands, so that two clauses that change places leave the same words. Nouns that a clause
repeats are named once, and of its filler words one is left.

Shapes: n prompts, S = 2 clauses, W words per clause (padded).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from p2l.simulation.prompts import NEGATION, ORDER, TURNS, PromptBatch, Vocabulary

_AS_ADJECTIVE = {"some": "whole"}  # of the fillers the one that stands in for an article
_TURNS = {
    "tell": "Tell me about {}.",
    "show": "Show me {}.",
    "again": "Once again, {}.",
    "previously": "As previously, {}.",
}


def to_sentences(prompts: PromptBatch, words: NDArray[np.int64], vocabulary: Vocabulary) -> list[list[str]]:
    """Return the user turns of n prompts, from the ids (n, S, W) of their English words, -1 where there is none."""
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
        turns.append(_turns(structure, openings, contents))
    return turns


def _noun_phrase(ids: Sequence[int], spelled: Sequence[str], first_noun: int, demanding: Sequence[int]) -> str:
    things = [spelled[word] for word in dict.fromkeys(ids) if word >= first_noun]
    adjectives = [spelled[word] for word in dict.fromkeys(ids) if word in demanding]
    fillers = [spelled[word] for word in ids if word < first_noun and word not in demanding][:1]
    first = " ".join([*adjectives, *(_AS_ADJECTIVE.get(word, word) for word in fillers), things[0]])
    listed = [f"the {thing}" for thing in (first, *things[1:])]
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"


def _turns(structure: int, openings: Sequence[str], contents: Sequence[str]) -> list[str]:
    if structure == ORDER:
        return [f"{openings[0].capitalize()} {contents[0]} {openings[1]} {contents[1]}."]
    if structure == NEGATION:
        return [f"Write something {openings[0]} {contents[0]}, {openings[1]} {contents[1]}."]
    if structure == TURNS:
        return [_TURNS[opening].format(content) for opening, content in zip(openings, contents, strict=True)]
    return [f"{opening.capitalize()} {content}." for opening, content in zip(openings, contents, strict=True)]
