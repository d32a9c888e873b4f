"""Answers that wait for others before they make a record: kept in a journal, so that a kill does not lose them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from coeval.calling.call import Reply
from coeval.storage.jsonl import read_records
from coeval.storage.layout import Run
from coeval.storage.store import Store

__all__ = ["Parts"]


class Parts:
    """The waiting answers of one model in one phase."""

    def __init__(self, store: Store, phase: str, model: str) -> None:
        self._store = store
        self._path = _journal(store.run, phase, model)
        self._waiting: dict[str, dict[str, Reply]] = {}
        for line in read_records(self._path):
            if "reply" in line:
                self._waiting.setdefault(line["id"], {})[line["part"]] = Reply(**line["reply"])
            else:
                self._waiting.pop(line["id"], None)

    def take(self, question: str) -> dict[str, Reply]:
        """Part -> answer that an earlier process got."""
        return self._waiting.pop(question, {})

    def keep(self, question: str, part: str, reply: Reply) -> None:
        """Write an answer down."""
        self._store.append(self._path, {"id": question, "part": part, "reply": asdict(reply)})

    def forget(self, question: str) -> None:
        """The record is made."""
        self._store.append(self._path, {"id": question})

    def clear(self) -> None:
        """Nothing of this work waits any more; the journal stays where answers of another task do."""
        if not self._waiting:
            self._store.forget_file(self._path)


def _journal(run: Run, phase: str, model: str) -> Path:
    return run.parts / f"{phase}.{model}.jsonl"
