"""Votes of arenas: Kaggle's two contests, public chats with a judge, FastChat's battle logs, ComparIA."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from p2l.votes.kinds.flat import Columns, FlatBatch, OddBatchError
from p2l.votes.kinds.kind import Kind, Row, Sample
from p2l.votes.kinds.texts import RowError, prompt_turns, turns, unquoted
from p2l.votes.kinds.values import (
    NoVerdictError,
    answer_text,
    first_of,
    identifier,
    measures,
    name_of,
    seconds,
    voter_and_source,
    whole_number,
    winner_of,
)

_KAGGLE_WINNERS = {"winner_model_a": "model_a", "winner_model_b": "model_b", "winner_tie": "tie"}
_TURN_CHOICES = {"a_better": "model_a", "b_better": "model_b", "both_good": "tie", "both_bad": "tie (bothbad)"}
_SECRET = secrets.token_bytes(16)
_FASTCHAT_VOTES = ("leftvote", "rightvote", "tievote", "bothbad_vote")


def _answered_prompt(row: Row) -> Row:
    """Return the fields that tables with a prompt and two answers share."""
    vote: Row = {
        "prompt": prompt_turns(row.get("prompt")),
        "model_a": name_of(row.get("model_a"), "model_a"),
        "model_b": name_of(row.get("model_b"), "model_b"),
        "question_id": identifier(first_of(row, ("id", "question_id"))),
    }
    for side in "ab":
        vote |= measures(answer_text(row.get(f"response_{side}")), side)
    return vote


def _is_marked(value: Any) -> bool:
    return str(value).strip().lower() in {"1", "1.0", "true"}


def _kaggle(row: Row) -> Iterator[Row]:
    prompt = unquoted(row.get("prompt"))
    if prompt == []:
        raise RowError("prompt has no turns")
    if isinstance(prompt, str) and prompt.lstrip().startswith('["'):
        raise RowError("prompt begins like a list of turns, and is not JSON; was it cut?")
    marked = [outcome for column, outcome in _KAGGLE_WINNERS.items() if _is_marked(row.get(column))]
    if len(marked) != 1:
        shown = ", ".join(f"{column} {row.get(column)!r}" for column in _KAGGLE_WINNERS)
        raise RowError(f"exactly one outcome must be 1: {shown}")
    yield {**_answered_prompt(row), "winner": marked[0]}


def _answered_prompts(table: FlatBatch) -> Columns:
    """Return the columns that `_answered_prompt` gives of each row."""
    columns = {
        "prompt": table.turns("prompt"),
        "model_a": table.names("model_a"),
        "model_b": table.names("model_b"),
        "question_id": table.texts("id", "question_id"),
    }
    for side in "ab":
        columns |= table.measures(f"response_{side}", side)
    return columns


def _kaggle_batch(table: FlatBatch) -> Sequence[Columns]:
    marks = [
        table.each(_is_marked, pa.bool_(), column, needed=False).fill_null(False).to_numpy(zero_copy_only=False)
        for column in _KAGGLE_WINNERS
    ]
    marked = np.stack(marks)  # (3, N)
    table.leave(marked.sum(axis=0) != 1)
    winner = pa.array([*_KAGGLE_WINNERS.values()]).take(pa.array(marked.argmax(axis=0)))
    return [{**_answered_prompts(table), "winner": winner}]


def _wsdm(row: Row) -> Iterator[Row]:
    vote = {**_answered_prompt(row), "winner": winner_of(row.get("winner"))}
    if isinstance(row.get("language"), str):
        vote["language"] = row["language"]
    yield vote


def _wsdm_batch(table: FlatBatch) -> Sequence[Columns]:
    language = table.first("language")
    if not pa.types.is_string(language.type):
        raise OddBatchError
    return [{**_answered_prompts(table), "winner": table.each(winner_of, pa.string(), "winner"), "language": language}]


def _judged_chat(row: Row) -> Iterator[Row]:
    """Yield the vote of a row of MT-bench's judgements: turn 1 judges the first answers, turn 2 the conversations."""
    turn = whole_number(row.get("turn"))
    conversations = {side: row.get(f"conversation_{side}") for side in "ab"}
    prompt = turns(conversations["a"], "user", "conversation_a")
    judged = int(turn) if turn is not None and 1 <= turn <= len(prompt) else len(prompt)
    word = str(row.get("winner")).strip().lower()
    if word in {"error", "none"}:
        raise NoVerdictError(f"winner {word}")
    vote: Row = {
        "prompt": prompt[:judged],
        "model_a": name_of(row.get("model_a"), "model_a"),
        "model_b": name_of(row.get("model_b"), "model_b"),
        "winner": winner_of(row.get("winner")),
        "question_id": identifier(row.get("question_id")),
        "turn": judged,
        **voter_and_source(row.get("judge")),
    }
    for side, conversation in conversations.items():
        answers = turns(conversation, "assistant", f"conversation_{side}")
        vote |= measures("\n\n".join(answers[:judged]), side)
    yield vote


def _public_chat(row: Row) -> Iterator[Row]:
    """Yield the vote of a row of chatbot_arena_conversations: `turn` counts turns there, and `judge` is a voter."""
    vote: Row = {
        "prompt": turns(row.get("conversation_a"), "user", "conversation_a"),
        "model_a": name_of(row.get("model_a"), "model_a"),
        "model_b": name_of(row.get("model_b"), "model_b"),
        "winner": winner_of(row.get("winner")),
        "question_id": identifier(row.get("question_id")),
        "voter": identifier(row.get("judge")),
        "tstamp": seconds(row.get("tstamp")),
        "language": identifier(row.get("language")),
    }
    is_blind = row.get("anony")
    if isinstance(is_blind, bool):
        vote["battle"] = "blind" if is_blind else "direct"
    for side in "ab":
        answers = turns(row.get(f"conversation_{side}"), "assistant", f"conversation_{side}")
        vote |= measures("\n\n".join(answers), side)
    yield vote


def _battle_log(row: Row) -> Iterator[Row]:
    """Yield the vote of a line of FastChat's log; lines of chats and of votes on one answer hold none."""
    if row.get("type") not in _FASTCHAT_VOTES:
        raise NoVerdictError(f"event {row.get('type')}")
    states = row.get("states") or []
    if len(states) != 2:
        raise NoVerdictError("vote on one answer")
    names: list[Any] = list(row.get("models") or [])
    vote: Row = {
        "winner": winner_of(row["type"]),
        "tstamp": seconds(row.get("tstamp")),
        "voter": _pseudonym(row.get("ip")),
        "battle": "direct" if any(names) else "blind",  # names are told before a vote where the voter chose the models
    }
    for side, number in (("a", 0), ("b", 1)):
        state = states[number]
        chosen = names[number] if len(names) == 2 and names[number] else state.get("model_name")
        vote[f"model_{side}"] = name_of(chosen, f"model {number + 1}")
        messages = [message for message in state.get("messages") or [] if message and message[1] is not None]
        # FastChat alternates the user's and the model's messages from `offset` on, by names that models choose.
        spoken = [message[1] for message in messages[int(state.get("offset") or 0) :]]
        if side == "a":
            vote["prompt"] = [text if isinstance(text, str) else str(text[0]) for text in spoken[::2]]
            vote["question_id"] = identifier(state.get("conv_id"))
        vote |= measures("\n\n".join(str(text) for text in spoken[1::2]), side)
    yield vote


def _pseudonym(address: Any) -> str | None:
    """Return a name for who has a network address, another in each process: addresses are few enough to be tried."""
    if not isinstance(address, str) or not address:
        return None
    return "arena_user_" + hashlib.blake2b(address.encode("utf-8", "replace"), key=_SECRET, digest_size=6).hexdigest()


def _comparia(row: Row) -> Iterator[Row]:
    first = name_of(row.get("model_a_name"), "model_a_name")
    second = name_of(row.get("model_b_name"), "model_b_name")
    chosen = row.get("chosen_model_name")
    if row.get("both_equal") in (True, 1, "true", "True"):
        winner = "tie"
    elif chosen in (first, second):
        winner = "model_a" if chosen == first else "model_b"
    elif not chosen:
        raise NoVerdictError("no chosen model")
    else:
        raise RowError(f"chosen_model_name {str(chosen)[:40]!r} is neither model_a_name nor model_b_name")
    prompt = (
        turns(row["conversation_a"], "user", "conversation_a")
        if row.get("conversation_a") is not None
        else prompt_turns(row.get("opening_msg"), "opening_msg")
    )
    vote: Row = {
        "prompt": prompt,
        "model_a": first,
        "model_b": second,
        "winner": winner,
        "question_id": identifier(row.get("conversation_pair_id")),
        "voter": identifier(row.get("visitor_id") or row.get("session_hash")),
        "tstamp": seconds(row.get("timestamp")),
    }
    for side in "ab":
        if row.get(f"conversation_{side}") is not None:
            vote |= measures(answer_text(row[f"conversation_{side}"]), side)
    yield vote


def _turn_choice(row: Row) -> Iterator[Row]:
    """Yield the choice of a turn of ComparIA's published arena, of the answers in that turn; turns count from 0."""
    choice = row.get("choice")
    if choice in (None, "idk"):
        raise NoVerdictError("no choice")
    if choice not in _TURN_CHOICES:
        raise RowError(f"choice {str(choice)[:40]!r} is none of {', '.join(_TURN_CHOICES)}")
    last = whole_number(row.get("turn"))
    talk = turns(row.get("full_conversation_a") or row.get("response_a"), "user", "full_conversation_a")
    languages = (row.get("metadata") or {}).get("languages") or []
    vote: Row = {
        "prompt": talk if last is None else talk[: last + 1],
        "model_a": name_of(row.get("model_a"), "model_a"),
        "model_b": name_of(row.get("model_b"), "model_b"),
        "winner": _TURN_CHOICES[choice],
        "question_id": identifier(row.get("comparison_id")),
        "tstamp": seconds(row.get("timestamp")),
        "turn": None if last is None else last + 1,
        "language": languages[0] if languages else None,
        "source": "human",
    }
    for side in "ab":
        vote |= measures(answer_text(row.get(f"response_{side}")), side)
    yield vote


def _is_judged_chat(sample: Sample) -> bool:
    return sample.has("model_a", "model_b", "winner", "judge", "turn", "conversation_a", "conversation_b")


KINDS = (
    Kind(
        name="lmsys-kaggle",
        about="Kaggle's LMSYS table of votes",
        gives="votes",
        recognise=lambda sample: sample.has("model_a", "model_b", "prompt", *_KAGGLE_WINNERS),
        marks=("winner_model_a", "winner_model_b"),
        needs=("model_a", "model_b", "prompt", *_KAGGLE_WINNERS),
        reads="prompt -> turns, winner_model_a, winner_model_b, winner_tie -> winner, response_a, response_b -> "
        "lengths",
        convert=_kaggle,
        convert_batch=_kaggle_batch,
        sample="id,model_a,model_b,prompt,response_a,response_b,winner_model_a,winner_model_b,winner_tie\n"
        '1,ant,bee,"[""Name a colour""]","[""Blue""]","[""Red is a colour""]",1,0,0',
    ),
    Kind(
        name="wsdm-kaggle",
        about="Kaggle's WSDM table of votes",
        gives="votes",
        recognise=lambda sample: sample.has("model_a", "model_b", "prompt", "response_a", "response_b", "winner"),
        marks=("response_a", "response_b", "winner"),
        needs=("model_a", "model_b", "prompt"),
        reads="prompt -> turns, response_a, response_b -> lengths",
        convert=_wsdm,
        convert_batch=_wsdm_batch,
        sample="id,prompt,response_a,response_b,winner,model_a,model_b,language\n1,Name a "
        "colour,Blue,Red,model_a,ant,bee,English",
    ),
    Kind(
        name="arena-conversations",
        about="public arena conversations (chatbot_arena_conversations)",
        gives="votes",
        recognise=lambda sample: _is_judged_chat(sample) and bool({"tstamp", "anony"} & sample.columns),
        reads="conversation_a -> prompt and length_a, conversation_b -> length_b, judge -> voter",
        convert=_public_chat,
        sample='{"question_id": "1", "model_a": "ant", "model_b": "bee", "winner": "tie (bothbad)", "judge": '
        '"arena_user_1", '
        '"conversation_a": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}], '
        '"conversation_b": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hey"}], '
        '"turn": 1, "anony": true, "language": "English", "tstamp": 1682351591.1}\n...',
    ),
    Kind(
        name="mt-bench",
        about="MT-bench judgements",
        gives="votes",
        recognise=lambda sample: _is_judged_chat(sample) and not {"tstamp", "anony"} & sample.columns,
        marks=("judge", "turn", "conversation_a"),
        needs=("model_a", "model_b", "winner", "conversation_b"),
        reads="judge -> voter for people, else source, turn 1 -> first turn, turn 2 -> both",
        convert=_judged_chat,
        sample='{"question_id": 81, "model_a": "ant", "model_b": "bee", "winner": "model_a", "judge": "author_2", '
        '"conversation_a": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}], '
        '"conversation_b": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hey"}], "turn": '
        "1}\n...",
    ),
    Kind(
        name="fastchat-log",
        about="FastChat's log of battles",
        gives="votes",
        recognise=lambda sample: sample.has("type", "tstamp", "states"),
        marks=("type", "tstamp", "models"),
        needs=("states",),
        reads="leftvote, rightvote, tievote, bothbad_vote -> winner, messages -> prompt and lengths, ip -> voter, by a "
        "name drawn for this import",
        convert=_battle_log,
        sample='{"tstamp": 1682351591.1, "type": "leftvote", "models": ["", ""], "states": [{"model_name": "ant", '
        '"messages": [["USER", "Hi"], ["ASSISTANT", "Yo"]], "offset": 0, "conv_id": "1"}, {"model_name": "bee", '
        '"messages": [["USER", "Hi"], ["ASSISTANT", "Hey"]], "offset": 0, "conv_id": "2"}], "ip": ""}\n...',
    ),
    Kind(
        name="comparia-turns",
        about="ComparIA's arena, a row for each turn",
        gives="votes",
        recognise=lambda sample: sample.has("model_a", "model_b", "choice", "response_a", "comparison_id"),
        marks=("comparison_id", "response_a"),
        needs=("model_a", "model_b", "choice"),
        reads="choice -> winner, full_conversation_a -> prompt, response_a, response_b -> lengths",
        convert=_turn_choice,
        sample='{"response_id": "r1", "choice": "a_better", "turn": 0, "comparison_id": "c1", "model_a": "ant",\n'
        '"model_b": "bee", "timestamp": "2026-01-05T10:00:00", "response_a": [{"role": "user", "content": '
        '"Bonjour"}, {"role": "assistant", "content": "Salut"}], "response_b": [{"role": "user", "content": '
        '"Bonjour"}, {"role": "assistant", "content": "Bonjour."}], "metadata": {"languages": ["fr"]}}',
    ),
    Kind(
        name="comparia",
        about="ComparIA votes",
        gives="votes",
        recognise=lambda sample: (
            sample.has("model_a_name", "model_b_name", "chosen_model_name")
            and bool({"conversation_a", "opening_msg"} & sample.columns)
        ),
        marks=("model_a_name", "model_b_name"),
        needs=("chosen_model_name", "conversation_a"),
        reads="chosen_model_name, both_equal -> winner, visitor_id -> voter, timestamp -> tstamp",
        convert=_comparia,
        sample='{"timestamp": "2025-01-05 10:00:00", "model_a_name": "ant", "model_b_name": "bee", '
        '"chosen_model_name": '
        '"ant", "both_equal": false, "opening_msg": "Bonjour", "conversation_pair_id": "1", "visitor_id": "v1"}\n...',
    ),
)
