"""Recorded requests with faults and novelties: passed whole or refused in words, and no error of the router."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.recorded.mutated import fault_of, mutants
from benchmarks.recorded.replay import NATIVE, replaying
from tests.route.test_recorded import exchanges, usable

MUTATIONS = 40
SEED = 11


@pytest.mark.parametrize("kind", NATIVE)
def test_changed_requests_pass_whole_or_are_refused_in_words(kind: str) -> None:
    played = {name: [each for each in exchanges(name) if usable(each)] for name in (*NATIVE, "gemini")}
    answers = {name: next((each for each in some if not each.is_stream), None) for name, some in played.items()}

    async def main() -> None:
        async with replaying() as replay:
            for mutant in mutants(played[kind], MUTATIONS, SEED):
                for answer in answers.values():
                    if answer is not None:
                        _, wrong = await fault_of(replay, mutant, answer)
                        assert not wrong, (mutant.exchange.name, answer.kind, mutant.changes, wrong)

    asyncio.run(main())
