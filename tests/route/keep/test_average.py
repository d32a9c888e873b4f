"""The average leaderboard: the mean of what was scored, across changes of the model and of the process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from route.keep.average_leaderboard import Average
from route.routing.decision import Coefficients
from tests.route.keep.ledger_helpers import Clock, new_database
from tests.route.keep.stores import every_database


def scored(a: float, b: float, revision: str = "r1") -> Coefficients:
    return Coefficients({"a": a, "b": b}, revision=revision)


def average() -> Average:
    return Average(new_database(), clock=Clock())


def coefs(mean: Average) -> dict[str, float]:
    assert mean.coefficients is not None
    assert mean.coefficients.is_average
    return dict(mean.coefficients.coefs)


def test_it_is_the_mean_of_all_prompts() -> None:
    async def main() -> None:
        mean = average()
        assert mean.coefficients is None
        for number in range(100):
            mean.add(scored(number, -2.0 * number))
        assert coefs(mean) == pytest.approx({"a": 49.5, "b": -99.0})

    asyncio.run(main())


def test_the_newest_thousand_prompts_count_most() -> None:
    async def main() -> None:
        mean = average()
        for _ in range(5000):
            mean.add(scored(0.0, 0.0))
        for _ in range(5000):
            mean.add(scored(1.0, 2.0))
        assert coefs(mean) == pytest.approx({"a": 1.0, "b": 2.0}, abs=0.02)

    asyncio.run(main())


def test_another_revision_soon_takes_over_and_other_models_at_once() -> None:
    async def main() -> None:
        mean = average()
        for _ in range(1000):
            mean.add(scored(0.0, 0.0))
        for _ in range(80):
            mean.add(scored(1.0, 1.0, "r2"))
        assert coefs(mean)["a"] == pytest.approx(0.8)
        mean.add(Coefficients({"b": 3.0, "c": 4.0}, revision="r3"))
        assert coefs(mean) == {"b": 3.0, "c": 4.0}

    asyncio.run(main())


def test_a_coefficient_that_is_no_number_counts_nothing() -> None:
    async def main() -> None:
        mean = average()
        mean.add(scored(1.0, 2.0))
        mean.add(scored(float("nan"), 2.0))
        assert coefs(mean) == {"a": 1.0, "b": 2.0}

    asyncio.run(main())


@every_database
def test_it_outlives_the_process(tmp_path: Path) -> None:
    async def main() -> None:
        for expected in (None, {"a": 1.5, "b": 2.0}):
            database = new_database(tmp_path / "router.sqlite")
            await database.start()
            mean = Average(database, clock=Clock())
            await mean.start()
            assert (mean.coefficients and dict(mean.coefficients.coefs)) == expected
            mean.add(scored(1.5, 2.0))
            await mean.close()
            await database.close()

    asyncio.run(main())
