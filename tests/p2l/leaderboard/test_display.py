"""What leaderboards, predictions and models show of themselves in Python and in notebooks."""

from __future__ import annotations

import html
from pathlib import Path

import numpy as np
import pytest

from p2l.common.errors import InputError
from p2l.inference import P2L, Prediction
from p2l.leaderboard import Leaderboard
from tests.p2l.serving.conftest import NAMES, make_model
from tests.p2l.serving.test_uncertainty import with_posterior

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> P2L:
    root = tmp_path_factory.mktemp("display")
    return P2L.from_pretrained(with_posterior(make_model(root, seed=1), root / "sure"), device="cpu")


def board(intervals: bool) -> Leaderboard:
    nothing = np.full(3, np.nan)
    coefs = np.array([0.5, -0.5, 0.0])
    ends = (coefs - 0.4, coefs + 0.4) if intervals else (nothing, nothing)
    return Leaderboard(["ant", HOSTILE, "cat"], coefs, *ends, None, None, "bt", 0.6, None, np.zeros(3, dtype=np.int64))


def test_a_leaderboard_shows_its_models_best_first() -> None:
    lines = repr(board(intervals=True)).splitlines()
    assert lines[0] == "Leaderboard of 3 models, bt"
    assert [line.split()[1] for line in lines[-3:]] == ["ant", "cat", HOSTILE]
    assert " to " in lines[-1]
    assert " to " not in repr(board(intervals=False))


def test_html_escapes_names_and_draws_intervals() -> None:
    page = board(intervals=True)._repr_html_()
    assert HOSTILE not in page
    assert page.count("<line") == 3
    assert "<line" not in board(intervals=False)._repr_html_()


def test_figures_are_drawn(model: P2L) -> None:
    for figure in (board(True).plot(), board(False).plot(), model.plot("what is 12"), model.predict(["a"]).plot()):
        labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
        assert len(labels) in (3, len(NAMES))


def test_a_prediction_of_one_prompt_shows_its_leaderboard(model: P2L) -> None:
    one = model.predict("what is 12 plus 34")
    table = model.leaderboard("what is 12 plus 34")
    assert [line.split()[1] for line in repr(one).splitlines()[-len(NAMES) :]] == list(table["model"])
    rates = one.rates()
    np.testing.assert_allclose(rates.rates, table["win_rate"], atol=1e-6)
    assert (rates.lower < rates.rates).all()
    assert (rates.rates < rates.upper).all()
    assert "<svg" in one._repr_html_()


def test_a_prediction_of_several_prompts_shows_the_best_models_of_each(model: P2L) -> None:
    two = model.predict(["one", "what is 12 plus 34"])
    title, _, *rows = repr(two).splitlines()
    assert title == "Prediction of 2 prompts, 4 models, eta, posterior"
    for row, line in enumerate(rows[-2:]):
        rates = two.rates(row)
        expected = [f"{name} {rate:.1%}" for name, rate in zip(rates.models[:3], rates.rates[:3], strict=True)]
        assert line.split() == [str(row), *" ".join(expected).split()]
        assert all(html.escape(cell) in two._repr_html_() for cell in expected)
    many = model.predict([f"prompt {number}" for number in range(12)])
    assert repr(many).endswith("... and 2 more")
    with pytest.raises(InputError, match="count from 0"):
        two.rates(2)


def test_a_prediction_without_names_says_its_sizes() -> None:
    bare = Prediction(np.zeros((1, 3), np.float32), None, None, np.zeros(1, np.bool_))
    assert repr(bare) == "Prediction of 1 prompt, 3 models"
    with pytest.raises(InputError, match="predict with a P2L model"):
        bare.plot()


def test_a_model_says_what_it_is(model: P2L) -> None:
    assert "qwen2, grk, 4 models, on cpu)" in repr(model)
    assert str(Path("sure")) in repr(model)
    assert "ant, bee" in model._repr_html_()
