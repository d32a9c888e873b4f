"""The answers of recent prompts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from p2l.serving.answer import Answer

__all__ = ["AnswerCache"]

_Key = tuple[str, bytes]


class AnswerCache:
    """Answers by model revision and fingerprint of what the model reads; forgets the least recently used."""

    def __init__(self, capacity: int) -> None:
        """`capacity` 0 keeps nothing."""
        self.capacity = capacity
        self._answers: OrderedDict[_Key, Answer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: _Key) -> Answer | None:
        """The answer, if it is still known."""
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def put_all(self, answers: Mapping[_Key, Answer]) -> None:
        """Remember answers."""
        for key, answer in answers.items():
            self._answers[key] = answer
            self._answers.move_to_end(key)
        while len(self._answers) > self.capacity:
            self._answers.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._answers.clear()
