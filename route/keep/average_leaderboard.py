"""The average leaderboard of this router's traffic, which decides while P2L gives no scores.

It is the mean of the coefficients of prompts, of the last thousand or so. It is written to the database once a minute,
so that a router that starts while P2L is down has it too; of several workers the last one to write is read.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from route.keep.database import Connection, Database, WriteBehind
from route.routing.decision import Coefficients

_MOST_PROMPTS = 1000
"""Prompts after which a new one weighs no less than a thousandth."""
_PROMPTS_AFTER_A_CHANGE = 20
"""The weight, in prompts, of the mean of an earlier revision of P2L's model."""
_WRITE_SECONDS = 60.0
_MOST_WAITING = 100


class _Row(NamedTuple):
    revision: str
    prompts: int
    coefs: str
    """JSON: coefficient by model."""


class Average(WriteBehind):
    """The mean of coefficients; used from one event loop."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        """Begin without any."""
        super().__init__(database, clock)
        self._waiting: list[Coefficients] = []
        """Of prompts that the mean does not count yet."""
        self._names: tuple[str, ...] = ()
        self._mean: npt.NDArray[np.float64] = np.empty(0)
        self._revision = ""
        self._prompts = 0
        self._written = -math.inf
        self._is_closing = False
        self._changed = False

    @property
    def coefficients(self) -> Coefficients | None:
        """Return the mean; None before a prompt was scored."""
        self._count()
        if not self._names:
            return None
        coefs = dict(zip(self._names, self._mean.tolist(), strict=True))
        return Coefficients(coefs, revision=self._revision, is_average=True)

    def add(self, coefficients: Coefficients) -> None:
        """Count the coefficients of one prompt."""
        # Later and together: the first call of NumPy in a request takes longer than the rest.
        self._waiting.append(coefficients)
        if len(self._waiting) >= _MOST_WAITING:
            self._count()

    def _count(self) -> None:
        waiting, self._waiting = self._waiting, []
        for coefficients in waiting:
            self._count_one(coefficients)

    def _count_one(self, coefficients: Coefficients) -> None:
        coefs = coefficients.array
        if coefficients.revision != self._revision or len(coefs) != len(self._names):
            # Another revision goes on from the mean of the last one where it knew the model.
            before = dict(zip(self._names, self._mean.tolist(), strict=True))
            self._names, self._revision = tuple(coefficients.coefs), coefficients.revision
            same = before.keys() == coefficients.coefs.keys()
            self._prompts = min(self._prompts, _PROMPTS_AFTER_A_CHANGE) if same else 0
            self._mean = np.array([before.get(name, 0.0) for name in self._names])
        if not math.isfinite(np.add.reduce(coefs)):
            return
        self._prompts = min(self._prompts + 1, _MOST_PROMPTS)
        self._mean += (coefs - self._mean) / self._prompts
        self._changed = True

    async def close(self) -> None:
        """Write it; the database stays open."""
        self._is_closing = True
        await super().close()

    def take(self) -> _Row | None:
        """See `WriteBehind`."""
        self._count()
        now = self._clock()
        if not self._changed or not (self._is_closing or abs(now - self._written) >= _WRITE_SECONDS):
            return None
        self._written, self._changed = now, False
        coefs = {name: round(coef, 6) for name, coef in zip(self._names, self._mean.tolist(), strict=True)}
        return _Row(self._revision, self._prompts, json.dumps(coefs))

    def write(self, connection: Connection, batch: _Row | None) -> None:
        """See `WriteBehind`."""
        if batch is not None:
            connection.lock("averages")
            connection.execute("DELETE FROM averages")
            connection.execute("INSERT INTO averages VALUES (?, ?, ?)", batch)

    def give_back(self, batch: _Row | None) -> None:
        """See `WriteBehind`."""
        self._changed |= batch is not None

    async def start(self) -> None:
        """Read what an earlier run wrote, and write from now on."""
        row = await self._database.read(lambda connection: connection.execute("SELECT * FROM averages").fetchone())
        if row is not None:
            revision, prompts, text = row
            coefs = json.loads(text)
            self._names, self._revision, self._prompts = tuple(coefs), revision, prompts
            self._mean = np.array(list(coefs.values()), dtype=np.float64)
        await super().start()
