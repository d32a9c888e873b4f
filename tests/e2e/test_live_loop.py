"""The loop closes: a router's votes train the model that routes, and a better model earns its share of the traffic."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.live_loop import Settings, live_loop


@pytest.mark.slow
def test_training_on_the_routers_votes_makes_the_routed_system_better(tmp_path: Path) -> None:
    outcome = live_loop(tmp_path, Settings(after=2000))
    text = outcome.to_text()
    assert outcome.failures == [], text
    # Over prompts, against the same system with training frozen when the better model arrived.
    assert outcome.gain > 4 * outcome.gain_error, text
    assert abs(outcome.live_share - outcome.best_share) < abs(outcome.frozen_share - outcome.best_share) / 2, text
    assert outcome.published > 3, text
