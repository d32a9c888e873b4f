"""Raw arena exports into votes.

An export holds the two conversations of a battle as lists of `{role, content}` messages, content being text or a list
of parts with text. The user's turns become `prompt`; the conversations go, every other column stays. `both_bad` and its
spellings become `tie (bothbad)`; a `timestamp` column becomes `tstamp` where there is none.

Of the answers stay what `p2l leaderboard --control length,format` needs: for each side characters, and Markdown's
headers, list items, bold passages and fenced blocks of code, over all of the model's turns.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from p2l.common.cli import progress
from p2l.common.errors import VoteError
from p2l.common.files import parse_json
from p2l.votes.reading import read_votes
from p2l.votes.rows import RawBatch, Source, is_text
from p2l.votes.schema import WINNERS, numbers
from p2l.votes.sources import open_source
from p2l.votes.spool import RowFile
from p2l.votes.writing import write_votes

_CONVERSATIONS = ("conversation_a", "conversation_b", "full_conversation")
_BOTH_BAD = {"both_bad", "bothbad", "both bad", "tie (both_bad)", "tie (both bad)", "tie(bothbad)", "tie (bothbad)"}
_FENCED = re.compile(r"^ {0,3}(```|~~~).*?(?:^ {0,3}\1|\Z)", re.MULTILINE | re.DOTALL)
_MARKDOWN = {
    "headers": re.compile(r"^ {0,3}#{1,6}[ \t]+\S", re.MULTILINE),
    "lists": re.compile(r"^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+\S", re.MULTILINE),
    "bold": re.compile(r"\*\*[^*\n]+\*\*|__[^_\n]+__"),
}
_MEASURES = ("length", *_MARKDOWN, "code")  # counted in the answers of each side


class Imported(NamedTuple):
    """Result of an import."""

    votes: int
    dropped: int  # rows left out because they were not votes


def import_votes(
    source: Any,
    output: str | Path,
    *,
    split: str = "train",
    drop_bad: bool = False,
    quiet: bool = True,
) -> Imported:
    """Convert a raw arena export to a file of votes, streaming; the ending of `output` names its format."""
    opened = _arena_source(open_source(source, split=split))
    rows, dropped = RowFile(), 0
    try:
        with progress(description=f"import {opened.name}", total=opened.rows, unit="votes", quiet=quiet) as bar:
            for batch in read_votes(opened, need_prompt=False, drop_bad=drop_bad):
                rows.append(batch.batch)
                dropped += batch.dropped
                bar.update(len(batch) + batch.dropped)
        with progress(rows.batches(), description=f"write {output}", unit="batches", quiet=quiet) as batches:
            return Imported(write_votes(batches, rows.schema(), output), dropped)
    finally:
        rows.close()


def _arena_source(source: Source) -> Source:
    """Return a source whose rows are those of an arena export, as votes; it is read whole."""
    names = [name for name in source.columns if name not in _CONVERSATIONS]
    if "conversation_a" in source.columns and "prompt" not in names:
        names = ["prompt", *names]
    if "timestamp" in names and "tstamp" not in names:
        names.append("tstamp")
    sides = []
    for side in "ab":
        measures = [f"{measure}_{side}" for measure in _MEASURES]
        if f"conversation_{side}" in source.columns and not {*measures} & {*names}:
            sides.append(side)
            names += measures

    def read(_: Sequence[str] | None, batch_size: int) -> Iterator[RawBatch]:
        for raw in source.stream(None, batch_size):
            yield RawBatch(_as_votes(source, raw, sides), raw.first_row)

    return replace(source, columns=names, read=read)


def _as_votes(source: Source, raw: RawBatch, sides: Sequence[str]) -> Any:
    """Return a batch as votes, with the measures of the answers of some sides."""
    columns = dict(zip(raw.batch.schema.names, raw.batch.columns, strict=True))
    places = [source.place(row) for row in range(raw.first_row, raw.first_row + len(raw.batch))]
    texts = {name: columns.pop(name) for name in _CONVERSATIONS if name in columns}
    texts.pop("full_conversation", None)
    conversations = {name: column.to_pylist() for name, column in texts.items()}
    for side in sides:
        columns |= _measures(places, conversations[f"conversation_{side}"], side)
    if "conversation_a" in conversations:
        turns = [
            _turns_of(place, conversation, "conversation_a", "user")
            for place, conversation in zip(places, conversations["conversation_a"], strict=True)
        ]
        columns = {"prompt": pa.array(turns, pa.list_(pa.string())), **columns}
    if "winner" in columns:
        # Each different spelling is looked at once.
        encoded = columns["winner"].cast(pa.string()).dictionary_encode()
        winners = []
        for text in encoded.dictionary.to_pylist():
            word = (text or "").strip().lower()
            winners.append("tie (bothbad)" if word in _BOTH_BAD else word if word in WINNERS else text)
        spelled = pa.DictionaryArray.from_arrays(encoded.indices, pa.array(winners, pa.string()))
        columns["winner"] = spelled.dictionary_decode()
    if "timestamp" in columns and "tstamp" not in columns:
        # Null where there is no time; NaN, which is refused, where a time cannot be read.
        times = columns["timestamp"]
        seconds = numbers(times)
        is_none = times.is_null().to_numpy(zero_copy_only=False) if is_text(times.type) else np.isnan(seconds)
        columns["tstamp"] = pa.array(seconds, mask=is_none)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _measures(places: Sequence[str], conversations: Sequence[Any], side: str) -> dict[str, Any]:
    """Return the columns of the measures of one side."""
    rows: list[list[int] | list[None]] = []
    for place, conversation in zip(places, conversations, strict=True):
        turns = None
        # An answer that is not text (an image, say) has no measures, but its vote counts.
        with contextlib.suppress(VoteError):
            turns = _turns_of(place, conversation, f"conversation_{side}", "assistant")
        if turns is None:
            rows.append([None] * len(_MEASURES))
            continue
        text = "\n\n".join(turns)
        prose, blocks = _FENCED.subn("", text)  # Markdown inside of fenced code does not count
        rows.append([len(text), *(len(pattern.findall(prose)) for pattern in _MARKDOWN.values()), blocks])
    return {
        f"{measure}_{side}": pa.array([counts[number] for counts in rows], pa.int64())
        for number, measure in enumerate(_MEASURES)
    }


def _turns_of(place: str, conversation: Any, name: str, role: str) -> list[str] | None:
    """Return the contents of the messages of one role; None without a conversation."""
    if isinstance(conversation, str):
        try:
            conversation = parse_json(conversation)
        except ValueError as error:
            raise VoteError(f"{place}: {name} is text that is not JSON: {error}") from error
    if conversation is None:
        return None
    if not isinstance(conversation, list) or not all(isinstance(message, dict) for message in conversation):
        raise VoteError(f"{place}: {name} must be a list of {{role, content}} messages")
    return [_content(place, message.get("content"), name) for message in conversation if message.get("role") == role]


def _content(place: str, content: Any, name: str) -> str:
    """Return the text of a message; the texts of a list of parts are joined by line feeds."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = [content]
    pieces = content if isinstance(content, list) else [None]
    texts = [
        piece if isinstance(piece, str) else piece.get("text") for piece in pieces if isinstance(piece, str | dict)
    ]
    if len(texts) < len(pieces):
        raise VoteError(f"{place}: a message of {name} holds neither text nor parts with text")
    return "\n".join(text for text in texts if text)
