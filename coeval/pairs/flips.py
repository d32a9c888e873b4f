"""How often a judge's verdict hangs on the order in which it was shown two answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from coeval.storage.jsonl import read_records
from coeval.storage.layout import Run
from coeval.storage.records import is_failed

__all__ = ["Flips", "flip_rates"]

_OTHER = {"model_a": "model_b", "model_b": "model_a"}


@dataclass
class Flips:
    """One judge's verdicts on pairs that it saw in both orders."""

    pairs: int = 0
    flips: int = 0
    """Of these, the other model won in the other order."""
    inconsistent: int = 0
    """Of these, the two verdicts are not the same, flips included."""
    first_wins: int = 0
    """Flips in which the answer shown first won both times; in the others the second did."""

    @property
    def flip_rate(self) -> float | None:
        """Share of the pairs that flip; None without any."""
        return self.flips / self.pairs if self.pairs else None

    @property
    def inconsistency(self) -> float | None:
        """Share of the pairs with two different verdicts."""
        return self.inconsistent / self.pairs if self.pairs else None


def flip_rates(run: Run) -> dict[str, Flips]:
    """Judge -> its flips, over all tasks of a run."""
    last: dict[str, Mapping[str, Any]] = {}
    for path in run.pair_files():
        last.update({str(record.get("id")): record for record in read_records(path) if not is_failed(record)})
    return _counted(last.values())


def _counted(records: Iterable[Mapping[str, Any]]) -> dict[str, Flips]:
    found: dict[str, Flips] = {}
    for record in records:
        verdicts = record.get("verdicts") or []
        if len(verdicts) == 2:
            counts = found.setdefault(str(record.get("judge_model_id")), Flips())
            counts.pairs += 1
            counts.inconsistent += verdicts[0] != verdicts[1]
            if _OTHER.get(verdicts[0]) == verdicts[1]:
                counts.flips += 1
                counts.first_wins += verdicts[0] == "model_a"
    return dict(sorted(found.items()))
