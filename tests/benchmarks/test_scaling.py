"""What the scaling benchmark makes of its points; none is trained here."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.scaling.law import Law
from benchmarks.scaling.points import SHAPES, Point, read_points, write_points
from benchmarks.scaling.report import report
from p2l.common.errors import InputError

LAW = Law("shared", 1.1, 400.0, 0.8, 4e5, 0.7, ceiling=1.3)


def points():
    for shape, parameters in (("w8", 7_000), ("w16", 18_000), ("w64", 150_000)):
        for votes in (4096, 16384, 65536, 262144):
            loss = float(LAW.loss([votes], [parameters])[0])
            losses = (loss + 1e-4 * np.arange(-3.5, 4)).tolist()
            yield Point(shape, parameters, votes, 0, losses, [1.3] * 8, steps=10, seconds=1.0, device="cpu")


def test_points_are_kept_line_by_line_and_a_cut_line_is_trained_again(tmp_path):
    file = tmp_path / "points.jsonl"
    assert list(read_points(file)) == []
    first, second, *_ = points()
    write_points(file, first)
    write_points(file, second)
    whole = file.read_text()
    file.write_text(whole[:-40])
    assert list(read_points(file)) == [first]
    write_points(file, second)
    assert file.read_text() == whole
    file.write_text('{"shape": "w8"}\n')
    with pytest.raises(InputError, match="line 1 is not a point"):
        list(read_points(file))


def test_the_report_finds_the_law_that_made_the_losses_and_draws_it(tmp_path):
    figure = tmp_path / "scaling.svg"
    text = report(list(points()), [1.1] * 8, replicates=3, figure=str(figure))
    assert "Least error: shared, E and C known" in text
    assert "| 4,096 | 1.3000 |" in text
    assert "Twice the votes" in text
    assert "held-out loss above the best possible" in figure.read_text()
    with pytest.raises(InputError, match="no points"):
        report([], [1.1], replicates=3, figure=None)


def test_wider_shapes_learn_more_slowly():
    rates = [shape.learning_rate for shape in sorted(SHAPES.values(), key=lambda shape: shape.hidden_size)]
    assert rates == sorted(rates, reverse=True)
    assert max(rates) <= 4e-3
