from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coeval.calling.calls import CallError, Reason
from coeval.calling.limits import Budget, MemoryLedger, most_tokens

Costs = list[tuple[float, float, int]]
COST = st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(0, 3))


def spend(limit: float | None, costs: Costs) -> tuple[MemoryLedger, int]:
    """What requests cost that set aside something, take a share of it, and some turns of the loop."""
    ledger = MemoryLedger()
    budget = Budget(limit, ledger)

    async def one(held: float, share: float, turns: int) -> None:
        await budget.hold(held)
        for _ in range(turns):
            await asyncio.sleep(0)
        budget.settle(held, held * share)

    async def all_of_them() -> int:
        found = await asyncio.gather(*(one(*cost) for cost in costs), return_exceptions=True)
        assert all(isinstance(each, CallError) and each.reason is Reason.BUDGET for each in found if each is not None)
        return sum(each is None for each in found)

    return ledger, asyncio.run(all_of_them())


@settings(max_examples=40)
@given(st.floats(0, 3), st.lists(COST, max_size=20))
def test_no_more_is_spent_than_there_is_and_nobody_waits_for_ever(limit: float, costs: Costs) -> None:
    ledger, done = spend(limit, costs)
    assert ledger.spent_usd <= limit + 1e-6
    if sum(held for held, _, _ in costs) <= limit:
        assert done == len(costs)


def test_a_request_waits_for_those_in_flight_that_may_leave_enough() -> None:
    ledger, done = spend(1.0, [(0.9, 0.1, 2)] * 5)
    assert done == 2  # 0.09 each: the third would need 0.18 + 0.9
    assert ledger.spent_usd == pytest.approx(0.18)


def test_without_a_budget_nothing_waits() -> None:
    assert spend(None, [(1e9, 1.0, 0)] * 3)[1] == 3


def test_a_request_is_set_aside_with_every_token_that_it_may_take() -> None:
    messages = [{"role": "system", "content": "x" * 30}, {"role": "user", "content": "語" * 30}]
    assert most_tokens({"messages": messages, "max_tokens": 5}) == (10 + 30 + 16, 5)
    assert most_tokens({"messages": messages})[1] == 1024
