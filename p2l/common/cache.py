"""A mapping that forgets what was used longest ago."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """A cache of bounded size; not safe for threads, which have to hold a lock around it."""

    def __init__(self, capacity: int, size_of: Callable[[V], int] = lambda _value: 1) -> None:
        """Hold at most `capacity` entries, or as many units (bytes) as `size_of` counts; 0 holds nothing."""
        self.capacity = capacity
        self._size_of = size_of
        self._size = 0
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        """Return the value, which then counts as just used, or None."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key: K, value: V) -> None:
        """Store a value, and forget others where there is no room for it."""
        if key in self._entries:
            self._size -= self._size_of(self._entries[key])
        self._entries[key] = value
        self._entries.move_to_end(key)
        self._size += self._size_of(value)
        while self._size > self.capacity:
            self._size -= self._size_of(self._entries.popitem(last=False)[1])

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._size = 0
