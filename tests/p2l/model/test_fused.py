import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from p2l.model import fused

F = np.float32
sizes = st.integers(1, 40)
numbers = st.floats(-1e4, 1e4, width=32)


def states(draw, rows, columns):
    return draw(arrays.arrays(np.float32, (rows, columns), elements=numbers))


def half(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bits(values):
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def read(rounded, scales):
    return (rounded.astype(np.float32) - 128) * scales[:, None]


@settings(deadline=None, max_examples=50)
@given(st.data(), sizes, sizes)
def test_bytes_are_the_states_to_half_a_step(data, rows, columns):
    x = states(data.draw, rows, columns)
    out, scales = np.empty(x.shape, np.uint8), np.empty(rows, F)
    fused.rounded(x, out, scales)
    np.testing.assert_allclose(scales, np.maximum(np.abs(x).max(1), 1e-30) / 127, rtol=1e-6)
    assert (np.abs(read(out, scales) - x) <= 0.501 * scales[:, None]).all()
    assert out.min() >= 1


@settings(deadline=None, max_examples=50)
@given(st.data(), sizes, sizes)
def test_normed_bytes_are_the_rms_norm(data, rows, columns):
    x, weight = states(data.draw, rows, columns), states(data.draw, 1, columns)[0]
    out, scales = np.empty(x.shape, np.uint8), np.empty(rows, F)
    fused.normed(x, weight, F(1e-5), out, scales)
    wide = x.astype(np.float64)
    expected = wide * weight / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5)
    assert (np.abs(read(out, scales) - expected) <= 0.51 * scales[:, None] + 1e-6).all()


def test_the_gate_is_silu_times_up_for_numbers_of_any_size():
    rng = np.random.default_rng(0)
    product = (rng.normal(size=(30, 48)) * 10.0 ** rng.integers(-3, 4, size=(30, 1))).astype(F)
    scales, bias = rng.uniform(0.5, 2, 30).astype(F), rng.normal(size=48).astype(F)
    out, found = np.empty((30, 24), np.uint8), np.empty(30, F)
    fused.gated(product, scales, bias, out, found)
    whole = product.astype(np.float64) * scales[:, None] + bias
    gate, up = whole[:, :24], whole[:, 24:]
    expected = gate / (1 + np.exp(np.clip(-gate, -700, 700))) * up
    assert (np.abs(read(out, found) - expected) <= 0.51 * found[:, None]).all()


@pytest.mark.parametrize(("start", "window"), [(0, 2**30), (5, 2**30), (5, 3), (0, 1)])
def test_shares_are_the_softmax_of_what_is_seen(start, window):
    rng = np.random.default_rng(0)
    queries = 37
    scores = bits(rng.normal(size=(3, queries, start + queries)) * 30)
    exact = half(scores) * F(0.3)
    fused.shares_of(scores, F(0.3), start, window)
    place, key = np.arange(queries)[:, None] + start, np.arange(start + queries)[None]
    seen = (key <= place) & (key > place - window)
    exact = np.where(seen, exact, -np.inf)
    expected = np.exp(exact - exact.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(half(scores), expected, atol=0.004)
    assert (half(scores)[:, ~seen] == 0).all()


def test_what_is_no_number_stays_none():
    x = np.ones((3, 40), F)
    x[1, 7] = np.nan
    out, scales = np.empty(x.shape, np.uint8), np.empty(3, F)
    fused.rounded(x, out, scales)
    assert np.isfinite(scales).tolist() == [True, False, True]
    fused.normed(x, np.ones(40, F), F(1e-5), out, scales)
    assert np.isfinite(scales).tolist() == [True, False, True]


def test_heads_in_bfloat16_come_back_as_bytes():
    rng = np.random.default_rng(0)
    heads = bits(rng.normal(size=(4, 6, 8)))
    out, scales = np.empty((6, 32), np.uint8), np.empty(6, F)
    fused.joined(heads, out, scales)
    expected = half(heads).transpose(1, 0, 2).reshape(6, 32)
    assert (np.abs(read(out, scales) - expected) <= 0.501 * scales[:, None]).all()
