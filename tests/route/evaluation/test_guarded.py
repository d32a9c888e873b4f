"""A P2L that was trained elsewhere decides no more than graded prompts say that its departures are worth."""

from __future__ import annotations

import numpy as np

from route.evaluation.cost_curves import worth_on
from route.evaluation.training import guard_of
from tests.route.evaluation.routing_tables import known_table


def test_as_much_of_a_p2l_counts_as_its_departures_are_worth() -> None:
    table = known_table(200)
    worth = worth_on(table)
    knows = guard_of(0.1 + 0.4 * table.scores, table, worth)
    assert knows.share > 0.0
    assert (knows.guarded(0.1 + 0.4 * table.scores, table.models).argmax(axis=1) == table.scores.argmax(axis=1)).all()
    for knows_nothing in (1.0 - table.scores, np.random.default_rng(0).random(table.scores.shape)):
        guard = guard_of(knows_nothing, table, worth)
        assert guard.share == 0.0
        np.testing.assert_allclose(
            guard.guarded(knows_nothing, table.models), np.tile(table.scores.mean(axis=0), (200, 1))
        )


def test_what_a_p2l_says_of_all_prompts_alike_does_not_count() -> None:
    table = known_table(200)
    wrong_level = 0.2 * table.scores + np.array([0.7, 0.0])  # the large model seems the better one on all prompts
    guard = guard_of(wrong_level, table, worth_on(table))
    guarded = guard.guarded(wrong_level, table.models)
    assert (guarded.argmax(axis=1) == table.scores.argmax(axis=1)).mean() == 1.0
    assert (wrong_level.argmax(axis=1) == 0).all()
