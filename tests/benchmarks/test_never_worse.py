"""How the sets of small trainings are drawn, and what the report makes of finished ones; none is trained here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.never_worse import HUMAN, Finished, draw, report


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [
        {"question_id": number, "prompt": [f"prompt {number % 300}"], "source": "some", "winner": "model_a"}
        | dict(zip(("model_a", "model_b"), rng.choice(list("abcd"), 2, replace=False), strict=True))
        for number in range(3000)
    ]
    pd.DataFrame(rows).to_parquet(tmp_path / f"{HUMAN}.parquet")
    return tmp_path


@pytest.mark.parametrize("number", [0, 1, 2])
def test_no_prompt_is_on_both_sides(data: Path, number: int) -> None:
    train, held = draw(data, HUMAN, number)
    assert not set(train["text"]) & set(held["text"])
    assert len(train) == (100, 300, 1000)[number]
    assert train["text"].nunique() == (100, 50, 210)[number]
    again, _ = draw(data, HUMAN, number)
    pd.testing.assert_frame_equal(train, again)


def test_the_report_counts_what_the_promises_are_about() -> None:
    def finished(votes: int, *gain: float) -> Finished:
        return Finished(
            "file", votes, votes, votes, 500, 500, 0.7, 0.7 - gain[0], (gain[0], gain[1], gain[2]), 0.5, 1.0
        )

    sets = [finished(100, -0.02, -0.03, -0.01), finished(1000, 0.02, 0.01, 0.03), finished(2000, -0.01, -0.02, 0.01)]
    text = "\n".join(report(sets))
    assert "3 sets; worse by more than 0.003 nats beyond noise: 1" in text
    assert "as measured: 2" in text
    assert "better by an interval on 1 of 2 sets of 1,000 votes or more" in text
