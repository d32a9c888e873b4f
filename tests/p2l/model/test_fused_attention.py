import numpy as np
import pytest

from p2l.model.fused_attention import attended
from p2l.model.tiles import ROWS

HEADS, GROUPS, WIDTH, SCALE = 4, 2, 16, np.float32(0.25)


def expected(heads, lengths, window):
    found = []
    for first, length in zip(np.cumsum([0, *lengths[:-1]]), lengths, strict=True):
        states = heads[:, first : first + length].astype(np.float64)
        keys, values = (np.repeat(part, HEADS // GROUPS, axis=0) for part in np.split(states[HEADS:], 2))
        distance = np.subtract.outer(np.arange(length), np.arange(length))
        scores = states[:HEADS] @ keys.transpose(0, 2, 1) * SCALE
        scores = np.where((distance >= 0) & (distance < window), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = shares / shares.sum(-1, keepdims=True) @ values
        found.append(mixed.transpose(1, 0, 2).reshape(length, -1))
    return np.concatenate(found)


def states(tokens, size=1.0):
    shape = (HEADS + 2 * GROUPS, tokens + ROWS, WIDTH)
    return np.random.default_rng(tokens).normal(size=shape).astype(np.float32) * np.float32(size)


@pytest.mark.parametrize("lengths", [[1], [3, 1, 2], [16], [20, 1, 130, 64]])
@pytest.mark.parametrize("window", [1, 7, 2**30])
@pytest.mark.parametrize("size", [1, 30])
def test_it_is_causal_attention_of_each_prompt(lengths, window, size):
    heads = states(sum(lengths) + 5, size)
    found = attended(heads, GROUPS, np.array(lengths), SCALE, window, False)
    np.testing.assert_allclose(found[: sum(lengths)], expected(heads, lengths, window), rtol=1e-3, atol=1e-4 * size)
    assert found.shape == (sum(lengths) + 5, HEADS * WIDTH)
    assert not found[sum(lengths) :].any()


def test_last_tokens_alone_are_the_same():
    lengths = np.array([5, 1, 2, 40])
    heads, last = states(48), np.cumsum([5, 1, 2, 40]) - 1
    every = attended(heads, GROUPS, lengths, SCALE, 2**30, False)
    np.testing.assert_array_equal(attended(heads, GROUPS, lengths, SCALE, 2**30, True)[last], every[last])


def test_what_is_no_number_stays_in_its_prompt():
    heads = states(12)
    heads[:, 5:] = np.nan
    found = attended(heads, GROUPS, np.array([5, 7]), SCALE, 2**30, False)
    assert np.isfinite(found[:5]).all()
    assert np.isnan(found[5:]).all()
