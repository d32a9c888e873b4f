"""Heat maps: the image has a pixel for each value, in the colour of its side and the strength of its distance."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from p2l.common.report.heat import Heat


def pixels(heat: Heat) -> np.ndarray:
    kind, data = heat.address.split(",", 1)
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA"), dtype=np.int64)


def test_each_side_has_its_colour_and_what_is_unknown_none() -> None:
    image = pixels(Heat(["a", "b"], np.array([[0.5, 0.9], [0.4, np.nan]]), "t"))
    assert image.shape == (2, 2, 4)
    assert image[0, 0, 3] == image[1, 1, 3] == 0
    assert list(image[0, 1]) == [0, 114, 178, 235]
    assert list(image[1, 0, :3]) == [213, 94, 0]
    assert 0 < image[1, 0, 3] < 235


@given(arrays(np.float64, (4, 4), elements=st.floats(0, 1) | st.just(np.nan)))
def test_a_larger_distance_is_never_fainter(values: np.ndarray) -> None:
    opacity = pixels(Heat(list("abcd"), values, "t"))[..., 3].ravel()
    distance = np.abs(values - 0.5).ravel()
    order = np.argsort(np.where(np.isnan(distance), -1.0, distance), kind="stable")
    assert (np.diff(opacity[order]) >= 0).all()


def test_the_key_has_both_ends_and_the_middle() -> None:
    heat = Heat(["a", "b"], np.array([[0.5, 0.8], [0.2, 0.5]]), "t")
    assert [name for _, name in heat.legend()] == ["20%", "50%", "80%"]


@pytest.mark.parametrize("number", [1, 8, 9, 49, 130, 2000])
def test_numbers_of_columns_are_few_and_within(number: int) -> None:
    heat = Heat([str(place) for place in range(number)], np.full((number, number), 0.5), "t")
    assert heat.ticks[0][1] == 1
    assert len(heat.ticks) <= 11
    assert all(0 < place < 100 for place, _ in heat.ticks)
    assert heat.row_height >= 12


def test_an_image_of_130_models_is_small() -> None:
    coefs = np.random.default_rng(0).normal(size=130)
    rates = 1 / (1 + np.exp(coefs[None, :] - coefs[:, None]))
    assert len(Heat([str(number) for number in range(130)], rates, "t").address) < 20_000
