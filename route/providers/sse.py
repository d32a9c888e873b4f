"""Server-sent events out of the bytes of a stream, whatever way the network has cut them.

Lines may end in LF, CRLF or CR; comments (`: keep-alive`) and fields that nobody needs (`id`, `retry`) are skipped; the
data lines of one event are joined by LF.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Event", "EventParser"]

_LONGEST = 32 * 2**20  # bytes of one event: above it a provider fills our memory, not an answer


class Event(NamedTuple):
    """One event of a stream."""

    name: str
    """Of the field `event`; empty where there is none."""
    data: bytes


class EventParser:
    """Takes bytes as they come and gives the events that are whole."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[Event]:
        """The events that end within `received`.

        Raises:
            ValueError: an event is longer than any answer.
        """
        lines = (self._rest + received).splitlines(keepends=True)
        # A line that ends in CR may be one that ends in CRLF, cut in the middle.
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        if len(self._rest) > _LONGEST or sum(map(len, self._data)) > _LONGEST:
            raise ValueError("an event of more than 32 MiB")
        return self._events(lines)

    def end(self) -> list[Event]:
        """What came last, where the stream ends without the empty line that closes an event."""
        lines, self._rest = [self._rest, b""], b""
        return self._events(lines)

    def _events(self, lines: list[bytes]) -> list[Event]:
        events = []
        for line in lines:
            text = line.rstrip(b"\r\n")
            if text.startswith(b"data:"):
                self._data.append(_value(text[5:]))
            elif text.startswith(b"event:"):
                self._name = _value(text[6:])
            elif not text:
                if self._data:
                    events.append(Event(self._name.decode("utf-8", "replace"), b"\n".join(self._data)))
                self._name, self._data = b"", []
        return events


def _value(text: bytes) -> bytes:
    return text[1:] if text[:1] == b" " else text
