"""Messages of a chat that are kept as the JSON that they came as, where there are very many of them.

A hundred thousand messages as Python's dictionaries and texts fill many arenas of its allocator, in each of which
something small of a later request then stays, so that their memory never goes back. Here only those of one piece of the
JSON, some hundreds, exist at a time, and again whenever somebody goes through them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from json.decoder import JSONObject  # type: ignore[attr-defined]
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, overload

from p2l.common.long_texts import AT_ONCE, BLANKS, JsonText, PatientDecoder, count_bytes, count_in, scan_array

Message: TypeAlias = dict[str, Any]
BYTES_PER_TOKEN = 4
MOST_TOKENS = 100_000_000
"""A larger count is a mistake."""
_MARKS = 8
"""Quotation marks of a message that has a role and a text."""
_MOST_ROLES = 20
_VALUES = 10
"""As how many a message counts, of which 2,000 take a millisecond or two."""


class _Piece(NamedTuple):
    """Some messages in a row."""

    start: int
    """Where the first begins in the JSON."""
    end: int
    messages: int
    users: int
    """Messages of the user among them."""
    kept: list[Message] | None
    """The messages where they are long, and so few."""


class PlainMessages(JsonText):
    """Messages that have a role and a text and nothing else, as all have where there are very many."""

    def __init__(self, body: str) -> None:
        """Begin with no message of this JSON."""
        self._body = body
        self._pieces: list[_Piece] = []
        self._count = 0
        self.roles: set[str] = set()
        """All that occur."""
        self.tokens = 0
        """An estimate, of each text by itself."""

    def take(self, messages: list[Any], start: int, end: int) -> bool:
        """Add the next messages, which stand in this part of the JSON; return False if they must be read at once.

        These are messages that have other fields, and those of which another parser may read something else: of a key
        that stands twice it may take the other value, and one more key has one more pair of quotation marks.
        """
        both = _roles_and_texts(messages)
        part = self._body[start:end]
        if both is None or "\\u0022" in part:
            return False
        roles, texts = both
        inside = count_in("".join(roles), '"') + count_in("".join(texts), '"')
        self.roles.update(roles)
        if count_in(part, '"') != _MARKS * len(messages) + inside or len(self.roles) > _MOST_ROLES:
            return False
        self.tokens += sum([(len(text) if text.isascii() else count_bytes(text)) // BYTES_PER_TOKEN for text in texts])
        self._count += len(messages)
        kept = messages if end - start > AT_ONCE else None
        piece = _Piece(start, end, len(messages), roles.count("user"), kept)
        last = self._pieces[-1] if self._pieces else piece
        if piece is not last and end - last.start <= AT_ONCE:
            piece = _Piece(last.start, end, last.messages + piece.messages, last.users + piece.users, None)
            self._pieces.pop()
        self._pieces.append(piece)
        return True

    @property
    def values(self) -> int:
        """See `JsonText`: parsing takes more than looking at role and text."""
        return _VALUES * self._count

    @property
    def text(self) -> str:
        """Return the JSON of the list."""
        return f"[{self._part(self._pieces[0].start, self._pieces[-1].end)}]"

    @property
    def turns(self) -> Sequence[str]:
        """Return the texts of the user's messages; an empty one where there are none."""
        return UserTurns(self) if "user" in self.roles else ("",)

    @property
    def user_count(self) -> int:
        """Return the number of the user's messages."""
        return sum(piece.users for piece in self._pieces)

    def user_texts(self, first: int) -> Iterator[str]:
        """Return the texts of the user's messages from one of them on."""
        for piece in self._pieces:
            if first >= piece.users:
                first -= piece.users
                continue
            texts = [message["content"] for message in self._parsed(piece) if message["role"] == "user"]
            yield from texts[first:]
            first = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message]:
        for piece in self._pieces:
            yield from self._parsed(piece)

    def __reversed__(self) -> Iterator[Message]:
        for piece in reversed(self._pieces):
            yield from reversed(self._parsed(piece))

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> list[Message]: ...
    def __getitem__(self, at: int | slice) -> Message | list[Message]:
        if isinstance(at, slice):
            return list(islice(self, *at.indices(self._count)))
        left = range(self._count)[at]
        for piece in self._pieces:
            if left < piece.messages:
                return self._parsed(piece)[left]
            left -= piece.messages
        raise IndexError(at)

    def _parsed(self, piece: _Piece) -> list[Message]:
        if piece.kept is not None:
            return piece.kept
        parsed: list[Message] = json.loads(f"[{self._part(piece.start, piece.end)}]")
        return parsed

    def _part(self, start: int, end: int) -> str:
        return self._body[start:end].rstrip(BLANKS).removesuffix(",")


class UserTurns(Sequence[str]):
    """The texts of the user's messages, which are parsed whenever somebody goes through them."""

    def __init__(self, messages: PlainMessages) -> None:
        """Take the messages of all roles."""
        self._messages = messages
        self._count = messages.user_count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return self._messages.user_texts(0)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, slice):
            start, stop, step = at.indices(self._count)
            return list(islice(self._messages.user_texts(start), 0, max(0, stop - start), step))
        return next(self._messages.user_texts(range(self._count)[at]))


class MessagesDecoder(PatientDecoder):
    """A decoder of requests that keeps the field `messages` as JSON where these are many and plain."""

    def __init__(self, **options: Any) -> None:
        """Take the options of `json.JSONDecoder`."""
        super().__init__(**options)
        self._scan_any, self.scan_once = self.scan_once, self._scan_request

    def _scan_request(self, text: str, start: int) -> tuple[Any, int]:
        if not text.startswith("{", start):
            return self._scan_any(text, start)
        fields, end = JSONObject((text, start + 1), self.strict, self._scan_field, None, None)
        for name in [name for name, field in fields.items() if isinstance(field, PlainMessages)]:
            if name != "messages":
                fields[name] = list(fields[name])
        return fields, end

    def _scan_field(self, text: str, start: int) -> tuple[Any, int]:
        if not text.startswith("[", start):
            return self._scan_any(text, start)
        plain = PlainMessages(text)
        values: list[Any] = []

        def take(elements: list[Any], first: int, cut: int) -> None:
            if not values and plain.take(elements, first, cut):
                return
            if not values:
                values.extend(plain)
            values.extend(elements)

        end = scan_array(self.decode_whole, (text, start + 1), self._scan_any, take)
        return plain if not values and end - start > AT_ONCE else values or list(plain), end


def has_role(messages: Any, *roles: str) -> bool:
    """Return whether one of a request's messages has one of these roles; of very many, most conversations have none."""
    if isinstance(messages, PlainMessages):
        return not messages.roles.isdisjoint(roles)
    if not isinstance(messages, list):
        return False
    try:
        return not {*roles}.isdisjoint(map(itemgetter("role"), messages))
    except (KeyError, TypeError):  # of messages of other forms
        return any(message.get("role") in roles for message in messages if isinstance(message, dict))


def _roles_and_texts(messages: list[Any]) -> tuple[list[str], list[str]] | None:
    """Return roles and texts if all messages are plain; the loops are Python's own, which take a tenth of ours."""
    if set(map(type, messages)) != {dict} or set(map(len, messages)) != {2}:
        return None
    try:
        roles, texts = list(map(itemgetter("role"), messages)), list(map(itemgetter("content"), messages))
    except KeyError:
        return None
    return (roles, texts) if {*map(type, roles), *map(type, texts)} == {str} else None
