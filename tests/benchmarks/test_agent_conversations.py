"""The benchmark of conversations of agents, on a small table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.agent_conversations import main


def test_at_no_rate_does_the_router_do_worse_than_one_that_knows_no_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    models = (
        *("claude-3-5-sonnet-20240620", "claude-3-opus-20240229", "claude-3-haiku-20240307"),
        *("gpt-4o-2024-08-06-FC", "gpt-4o-mini-2024-07-18"),
    )
    rows = [
        {"category": f"kind {kind}", "model": model, "score": float(rng.random() < 0.4 + 0.1 * (kind == place))}
        for kind in range(5)
        for place, model in enumerate(models)
        for _ in range(40)
    ]
    pd.DataFrame(rows).to_parquet(tmp_path / "bfcl_scores.parquet")
    main([str(tmp_path), "--conversations", "20"])
    printed = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[1] for row in printed[:5]] == [
        *("best constant", "sticking", "moving freely", "the router", "clairvoyant")
    ]
    gains = {(row[0], row[1]): float(row[5].split(" ")[0]) for row in printed if row[1] != "the router"}
    for (rate, policy), gain in gains.items():
        if policy == "clairvoyant":
            assert gain <= 1e-9, rate
        if policy == "moving freely":
            assert gain >= -0.01, rate
