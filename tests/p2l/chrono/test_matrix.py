"""Loss matrices from outputs, with info files or without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2l.chrono.matrix import read_matrix, write_matrix
from p2l.common.errors import InputError
from p2l.metrics import simple_metrics

ROWS: list[dict[str, Any]] = [
    {"coefs": [[0.5, 0.1, -0.3]], "eta": [[0.0]], "labels": "[0 1 0]", "winner": "model_a"},
    {"coefs": [[1.0, 0.2, 0.0]], "eta": [[0.2]], "labels": [2, 0, 1], "winner": "tie"},
    {"coefs": [[-0.4, 0.8, 0.3]], "eta": [[-0.3]], "labels": "[ 1 2 1]", "winner": "tie (bothbad)"},
]


def write(folder: Path, checkpoint: int, number: int, rows: Any, info: dict[str, Any] | None = None) -> Path:
    file = folder / f"checkpoint-{checkpoint}" / f"checkpoint-{checkpoint}-val-{number}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(rows), encoding="utf-8")
    if info is not None:
        file.with_suffix(".info.json").write_text(json.dumps(info), encoding="utf-8")
    return file


def info(loss: float | None, votes: int = 5, **more: Any) -> dict[str, Any]:
    return {"metrics": {"Loss": loss}, "votes": votes, "loss_type": "grk", **more}


def test_the_matrix_is_in_order_of_numbers(tmp_path: Path) -> None:
    write(tmp_path, 10, 2, [], info(1.5))
    write(tmp_path, 10, 12, [], info(1.25, later=True))
    write(tmp_path, 9, 2, [], info(None, votes=0))
    found = read_matrix(tmp_path, "Loss", run="mine")
    assert (found.checkpoints, found.slices) == ([9, 10], [2, 12])
    np.testing.assert_array_equal(found.values, [[np.nan, np.nan], [1.5, 1.25]])
    np.testing.assert_array_equal(found.votes, [[0, np.nan], [5, 5]])
    np.testing.assert_array_equal(found.later, [[False, True], [False, True]])
    files = write_matrix(found, tmp_path / "out")
    assert json.loads(files[0].read_text()) == {"9": {"2": None}, "10": {"2": 1.5, "12": 1.25}}
    assert files[1].read_text() == "checkpoint,2,12\n9,,\n10,1.5,1.25\n"


def test_aligned_by_time_a_higher_number_is_not_later(tmp_path: Path) -> None:
    write(tmp_path, 10, 12, [], info(1.0, later=False))
    assert not read_matrix(tmp_path, "Loss", run="mine").later.any()


@pytest.mark.parametrize(("loss_type", "bothbad"), [(None, 2), ("bag", 2), ("rk", 1)])
def test_outputs_of_earlier_releases_are_scored_from_their_rows(
    tmp_path: Path, loss_type: str | None, bothbad: int
) -> None:
    write(tmp_path, 4, 2, ROWS)
    coefs, eta = (np.array([np.reshape(row[name], -1) for row in ROWS]) for name in ("coefs", "eta"))
    labels = np.array([[0, 1, 0], [2, 0, 1], [1, 2, bothbad]])
    expected = simple_metrics(coefs, labels, eta, likelihood=loss_type or "grk")
    for metric in ("Loss", "Accuracy"):
        found = read_matrix(tmp_path, metric, run="old", loss_type=loss_type)
        assert found.values.tolist() == [[pytest.approx(expected[metric])]]
        assert found.votes.tolist() == [[3.0]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"coefs": [[0, 1]], "eta": [[0]]}], "need columns labels and coefs"),
        ([ROWS[0] | {"labels": "[0 1]"}], r"need columns.*are not \[winner, loser, tie\]"),
        ([ROWS[0] | {"labels": [0, 3, 0]}], "labels lie outside its 3 coefficients"),
        ([ROWS[0], {**ROWS[1], "coefs": [[1.0]]}], "need columns"),
        ({"a": 1}, "must be an array of rows"),
        (["x"], "need columns"),
    ],
)
def test_outputs_that_are_none_are_refused_in_one_line(tmp_path: Path, rows: Any, message: str) -> None:
    file = write(tmp_path, 4, 2, rows)
    with pytest.raises(InputError, match=message) as error:
        read_matrix(tmp_path, "Loss", run="old")
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_what_cannot_be_read_as_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no checkpoint-N"):
        read_matrix(tmp_path, "Loss", run="x")
    with pytest.raises(InputError, match="no such folder"):
        read_matrix(tmp_path / "nowhere", "Loss", run="x")
    with pytest.raises(InputError, match=r"unknown metric 'Los'.*did you mean 'Loss'"):
        read_matrix(tmp_path, "Los", run="x")
    write(tmp_path, 4, 2, [], info(1.0))
    with pytest.raises(InputError, match=r"was written without Brier; .*--restart"):
        read_matrix(tmp_path, "Brier", run="x")
    with pytest.raises(InputError, match="was written under grk, not rk"):
        read_matrix(tmp_path, "Loss", run="x", loss_type="rk")
