"""What a loss matrix says of a run."""

from __future__ import annotations

import numpy as np
import pytest

from p2l.chrono.matrix import Matrix, compare_runs, measure_run

NAN = float("nan")
# The published losses of the last checkpoint on 17 slices.
ORACLE = [1.134, 1.150, 1.159, 1.177, 1.175, 1.143, 1.204, 1.191, 1.185, 1.201, 1.181, 1.182, 1.195, 1.194, 1.185]
NAIVE = [1.336, 1.313, 1.291, 1.305, 1.302, 1.254, 1.293, 1.254, 1.247, 1.256, 1.228, 1.231, 1.235, 1.224, 1.214]
REPLAY = [1.204, 1.186, 1.198, 1.208, 1.207, 1.170, 1.233, 1.216, 1.214, 1.224, 1.205, 1.209, 1.217, 1.212, 1.208]
BUFFER = [1.189, 1.189, 1.196, 1.210, 1.198, 1.163, 1.224, 1.200, 1.196, 1.207, 1.187, 1.182, 1.197, 1.191, 1.194]
LATE = {"oracle": [1.166, 1.172], "naive": [1.185, 1.177], "replay": [1.181, 1.174], "buffer": [1.171, 1.189]}


def matrix(values: list[list[float]], *, run: str = "run", metric: str = "Loss") -> Matrix:
    """Checkpoints and slices 1, 2, ...; a slice is later than the checkpoints before it."""
    table = np.array(values)
    checkpoints, slices = (list(range(1, size + 1)) for size in table.shape)
    later = np.array([[number > checkpoint for number in slices] for checkpoint in checkpoints])
    return Matrix(run, metric, checkpoints, slices, table, np.where(np.isnan(table), NAN, 9.0), later)


def test_each_measure_on_a_worked_example() -> None:
    found = measure_run(matrix([[1.0, 1.5, 1.6], [1.1, 1.2, 1.4], [1.3, 1.0, 0.9]]))
    assert found == pytest.approx(
        {
            "final": (1.3 + 1.0 + 0.9) / 3,
            "newest": 0.9,
            "so_far": (1.0 + (1.1 + 1.2) / 2 + (1.3 + 1.0 + 0.9) / 3) / 3,
            "next": (1.5 + 1.4) / 2,
            "backward": ((1.0 - 1.3) + (1.2 - 1.0)) / 2,
            "forward": 1.6 - 1.4,
        }
    )


def test_differences_of_accuracies_read_the_other_way_round() -> None:
    found = measure_run(matrix([[0.5, 0.3, 0.2], [0.6, 0.5, 0.3], [0.4, 0.5, 0.5]], metric="Accuracy"))
    assert found["backward"] == pytest.approx((-0.1 + 0.0) / 2)
    assert found["forward"] == pytest.approx(0.1)


def test_what_was_not_asked_is_none() -> None:
    found = measure_run(matrix([[1.0, NAN], [1.1, 1.2]]))
    assert found["next"] is None
    assert found["forward"] is None
    assert found["backward"] == pytest.approx(-0.1)
    assert measure_run(matrix([[1.0]])) == {
        "final": 1.0, "newest": 1.0, "so_far": 1.0, "next": None, "backward": None, "forward": None
    }  # fmt: skip


def test_a_share_of_the_gap_is_over_the_slices_of_all_three_runs() -> None:
    oracle, naive = matrix([[1.0, 1.0, 1.0]], run="oracle"), matrix([[1.4, 1.2, 1.0]], run="naive")
    part = matrix([[NAN, 1.1, 1.0]], run="part")
    table = compare_runs([oracle, naive, part], oracle="oracle", naive="naive")
    assert table["naive"]["gap"] == pytest.approx(0.2)
    assert table["part"]["gap"] == pytest.approx(0.05)
    assert table["part"]["closed"] == table["part"]["closed_absolute"] == pytest.approx(0.5)


def test_the_gaps_that_published_runs_closed() -> None:
    parts = {"oracle": ORACLE, "naive": NAIVE, "replay": REPLAY, "buffer": BUFFER}
    runs = [matrix([early + LATE[run]], run=run) for run, early in parts.items()]
    table = compare_runs(runs, oracle="oracle", naive="naive")
    assert table["replay"]["closed"] == pytest.approx(0.651, abs=0.001)
    assert table["buffer"]["closed"] == pytest.approx(0.785, abs=0.002)
    assert table["buffer"]["closed_absolute"] == pytest.approx(0.781, abs=0.002)
    assert (table["oracle"]["closed"], table["naive"]["closed"]) == (1.0, 0.0)
    assert table["naive"]["gap"] == pytest.approx(0.0793, abs=0.0005)


def test_of_a_gap_within_its_noise_no_share_is_stated() -> None:
    oracle, naive = [1.0, 1.1, 1.0, 1.2, 1.1], [1.03, 1.08, 1.02, 1.19, 1.12]
    runs = [matrix([oracle], run="oracle"), matrix([naive], run="naive"), matrix([[0.9] * 5], run="best")]
    table = compare_runs(runs, oracle="oracle", naive="naive")
    assert table["naive"]["gap"] == pytest.approx(0.008)
    assert (table["naive"]["gap_error"] or 0.0) > 0.004
    assert table["best"]["closed"] is table["best"]["closed_absolute"] is None
    # A gap that forgetting makes grow steadily is not noise.
    steady = [matrix([oracle], run="oracle"), matrix([[a + n / 50 for n, a in enumerate(oracle)]], run="naive")]
    assert compare_runs(steady, oracle="oracle", naive="naive")["oracle"]["closed"] == 1.0


def test_gaps_are_over_the_slices_of_both_and_none_without_any() -> None:
    oracle, run = matrix([[1.0, 9.0]], run="oracle"), matrix([[1.5, NAN]], run="run")
    table = compare_runs([oracle, run], oracle="oracle", naive="oracle")
    assert table["run"]["gap"] == 0.5
    assert table["run"]["closed"] is None  # the naive run is as good as the oracle
    assert "gap" not in compare_runs([run])["run"]
