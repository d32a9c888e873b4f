"""Which second model is shown beside the first: drawn by what a vote on the pair would teach, or uniformly.

`p2l next-pairs` writes how likely each pair should be shown, from the votes so far. The first model of a comparison is
the one that serves the request; given it, the second is drawn in proportion to the shares of its pairs. A pair that the
file does not hold, of a model without votes, say, counts as much as its largest pair, so that votes come.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping
from pathlib import Path

from p2l.common.errors import ConfigError
from p2l.common.spreadsheets import of_cell

_COLUMNS = ("model_a", "model_b", "propensity")


class PairShares:
    """The share of each pair of models, in either order."""

    def __init__(self, shares: Mapping[frozenset[str], float] | None = None) -> None:
        """Take positive shares; without any, all pairs are alike."""
        self._shares = dict(shares or {})
        self._unknown = max(self._shares.values(), default=1.0)

    @staticmethod
    def read(path: Path) -> PairShares:
        """Read the CSV that `p2l next-pairs` writes; ConfigError, with the line, for another one."""
        shares: dict[frozenset[str], float] = {}
        try:
            with path.open(encoding="utf-8", newline="") as file:
                rows = csv.DictReader(file)
                if not {*_COLUMNS} <= {*(rows.fieldnames or ())}:
                    raise ConfigError(
                        f"pairs: {path} has no columns {', '.join(_COLUMNS)}; write it by p2l next-pairs as .csv"
                    )
                for row in rows:
                    pair = frozenset(of_cell(row[side]) for side in _COLUMNS[:2])
                    shares[pair] = _share(row["propensity"], f"pairs: {path}:{rows.line_num}")
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"pairs: {path} cannot be read: {why}") from error
        return PairShares(shares)

    def seconds(self, first: str, candidates: Collection[str]) -> dict[str, float]:
        """Return the probability of each candidate to be shown beside `first`; they sum to one."""
        shares = {
            name: self._shares.get(frozenset((first, name)), self._unknown)
            for name in sorted(candidates)
            if name != first
        }
        total = sum(shares.values())
        return {name: share / total for name, share in shares.items()}


def _share(text: str | None, where: str) -> float:
    """Return a positive share; ConfigError for anything else, as a pair that is never shown has no propensity."""
    try:
        share = float(text or "")
    except ValueError:
        share = 0.0
    if not 0.0 < share <= 1.0:
        raise ConfigError(f"{where}: propensity must be above 0 and at most 1, not {text!r}; raise --random-share")
    return share
