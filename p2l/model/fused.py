"""The steps between the products of a layer, each one loop over memory, compiled by numba.

In torch such a step is five to ten operations, each of which reads and writes everything; in int8 they took half of a
pass. Kernels are compiled when they are first called and kept on disk.

What goes into a product is 8 bits, bfloat16 or float32, as `out` is made: bytes lie around 128, as oneDNN's fast
products want them, and a state is (byte - 128) times its token's scale; bfloat16 is handed over as its 16 bits; the
scales of both others are 1.

Shapes: B prompts, T tokens, D hidden, H heads, G heads of keys and values, C width of a head, N inner width of the MLP.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

# Sums in any order; but what is no number must stay none, so not all that "fast" may stand for.
_FAST = {"contract", "reassoc", "arcp", "nsz"}
compiled = njit(nogil=True, fastmath=_FAST, error_model="numpy", cache=True)
_F = np.float32
_ONE, _ZERO, _LEVELS, _LEAST = _F(1), _F(0), _F(127), _F(1e-30)
_MIDDLE = np.int32(128)
_UNSEEN = _F(-3e38)
_POSITIVE = np.int32(0x7FFFFFFF)


@compiled
def normed(x: Any, weight: Any, eps: Any, out: Any, scales: Any) -> None:
    """RMS-normed states (T, D), rounded, with the scale (T,) of each token."""
    row = np.empty(x.shape[1], np.float32)
    for t in range(x.shape[0]):
        squares = _ZERO
        for d in range(x.shape[1]):
            squares += x[t, d] * x[t, d]
        factor = _ONE / np.sqrt(squares / _F(x.shape[1]) + eps)
        for d in range(x.shape[1]):
            row[d] = x[t, d] * factor * weight[d]
        scales[t] = _round(row, out[t])


@compiled
def rounded(x: Any, out: Any, scales: Any) -> None:
    """States (T, D), rounded."""
    for t in range(x.shape[0]):
        scales[t] = _round(x[t], out[t])


@compiled
def joined(heads: Any, out: Any, scales: Any) -> None:
    """States of heads (H, T, C) beside each other (T, H C), rounded."""
    width = heads.shape[2]
    row = np.empty(out.shape[1], np.float32)
    for t in range(out.shape[0]):
        for h in range(heads.shape[0]):
            for c in range(width):
                row[h * width + c] = _number(heads[h, t, c])
        scales[t] = _round(row, out[t])


@compiled
def gated(product: Any, scales: Any, bias: Any, out: Any, new_scales: Any) -> None:
    """silu(gate) x up of a product (T, 2 N) and its scales (T,), rounded (T, N)."""
    width = out.shape[1]
    inner = np.empty(width, np.float32)
    for t in range(product.shape[0]):
        for n in range(width):
            gate = _number(product[t, n]) * scales[t] + bias[n]
            up = _number(product[t, width + n]) * scales[t] + bias[width + n]
            inner[n] = gate / (_ONE + exponential(-gate)) * up
        new_scales[t] = _round(inner, out[t])


@compiled
def add_product(x: Any, product: Any, scales: Any, bias: Any) -> None:
    """x (T, D) += a product (T, D) times its scales (T,)."""
    for t in range(x.shape[0]):
        for d in range(x.shape[1]):
            x[t, d] += _number(product[t, d]) * scales[t] + bias[d]


@compiled
def heads_of(product: Any, scales: Any, bias: Any, cos: Any, sin: Any, out: Any, turned: Any, norms: Any) -> None:
    """Queries, keys and values (H + 2 G, T, C) of a product (T, (H + 2 G) C).

    The first `turned` heads are turned by cos and sin (T, C), after an RMS norm if `norms` (turned, C + 1) holds one:
    weights, then epsilon.
    """
    width = out.shape[2]
    half = width // 2
    head = np.empty(width, np.float32)
    for t in range(product.shape[0]):
        for h in range(out.shape[0]):
            for c in range(width):
                head[c] = _number(product[t, h * width + c]) * scales[t] + bias[h * width + c]
            if h < turned:
                if norms.shape[0]:
                    _norm(head, norms[h])
                for c in range(half):
                    out[h, t, c] = _as(head[c] * cos[t, c] + head[half + c] * sin[t, c], out)
                    out[h, t, half + c] = _as(head[half + c] * cos[t, half + c] + head[c] * sin[t, half + c], out)
            else:
                for c in range(width):
                    out[h, t, c] = _as(head[c], out)


@compiled
def shares_of(scores: Any, scale: Any, start: Any, window: Any) -> None:
    """Softmax, in place, of scores (H, queries, keys); query n is the key start + n, and sees no later one.

    It sees `window` keys at most, itself among them.
    """
    keys = scores.shape[2]
    shares = np.empty(keys, np.float32)
    for h in range(scores.shape[0]):
        for n in range(scores.shape[1]):
            row = scores[h, n]
            last = start + n
            first = last - window
            # Whole vectors, and what is not seen as the least there is: faster than loops that end anywhere.
            stop = min(keys, (last + 16) // 16 * 16)
            for k in range(stop):
                shares[k] = _number(row[k]) * scale if first < k <= last else _UNSEEN
            largest = largest_of(shares[:stop])
            total = _ZERO
            for k in range(stop):
                share = exponential(shares[k] - largest) if first < k <= last else _ZERO
                shares[k] = share
                total += share
            part = _ONE / total
            for k in range(stop):
                row[k] = _as(shares[k] * part, row)
            row[stop:] = 0


def _round(row: Any, out: Any) -> Any:
    """Write a row as `out` is made; returns its scale."""


@overload(_round, strict=False)
def _round_as(row: Any, out: Any) -> Any:  # noqa: ARG001 (numba calls it with both)
    if out.dtype == types.uint8:
        return lambda row, out: _round_to_bytes(row, out)
    return (lambda row, out: _halve(row, out)) if out.dtype == types.uint16 else lambda row, out: _copy(row, out)


def _number(value: Any) -> Any:
    """A float32, or the bits of a bfloat16, as a number."""


@overload(_number, strict=False)
def _number_as(value: Any) -> Any:
    return (lambda value: _from_half(value)) if isinstance(value, types.Integer) else lambda value: value


def _as(value: Any, out: Any) -> Any:
    """A number as `out` is made."""


@overload(_as, strict=False)
def _number_for(value: Any, out: Any) -> Any:  # noqa: ARG001
    if out.dtype == types.uint16:
        return lambda value, out: _to_half(value)  # noqa: ARG005
    return lambda value, out: value  # noqa: ARG005


@compiled
def _copy(row: Any, out: Any) -> Any:
    """A row as it is."""
    for d in range(row.shape[0]):
        out[d] = row[d]
    return _ONE


@compiled
def _halve(row: Any, out: Any) -> Any:
    """A row as bfloat16."""
    for d in range(row.shape[0]):
        out[d] = _to_half(row[d])
    return _ONE


@compiled
def _round_to_bytes(row: Any, out: Any) -> Any:
    """A row as bytes; returns its scale."""
    bits = row.view(np.int32)
    largest = np.int32(0)  # the bits of positive floats are ordered as they are, and integers are compared many at once
    for d in range(row.shape[0]):
        positive = np.int32(bits[d] & _POSITIVE)
        largest = positive if positive > largest else largest
    size = np.int32(largest).view(np.float32)
    scale = (_LEAST if size < _LEAST else size) / _LEVELS
    levels = _ONE / scale
    for d in range(row.shape[0]):
        out[d] = np.uint8(np.int32(np.rint(row[d] * levels)) + _MIDDLE)
    return scale


@compiled
def largest_of(row: Any) -> Any:
    """The largest of a row."""
    bits = row.view(np.int32)
    largest = np.int32(-0x80000000)
    for k in range(row.shape[0]):
        ordered = np.int32(bits[k] ^ ((bits[k] >> 31) & _POSITIVE))
        largest = ordered if ordered > largest else largest
    return np.int32(largest ^ ((largest >> 31) & _POSITIVE)).view(np.float32)


@compiled
def _norm(head: Any, norm: Any) -> None:
    squares = _ZERO
    for c in range(head.shape[0]):
        squares += head[c] * head[c]
    factor = _ONE / np.sqrt(squares / _F(head.shape[0]) + norm[head.shape[0]])
    for c in range(head.shape[0]):
        head[c] *= factor * norm[c]


@compiled
def exponential(x: Any) -> Any:
    """e to the x to seven digits, without a branch: 2 to a whole number, by its bits, times a short series."""
    x = x if x < _F(88) else _F(88)
    x = x if x > _F(-87) else _F(-87)
    powers = x * _F(1.4426950408889634)
    whole = np.floor(powers + _F(0.5))
    rest = (powers - whole) * _F(0.6931471805599453)
    series = rest * _F(1 / 720) + _F(1 / 120)
    series = series * rest + _F(1 / 24)
    series = series * rest + _F(1 / 6)
    series = series * rest + _F(0.5)
    series = series * rest + _ONE
    series = series * rest + _ONE
    return series * np.int32((whole + _F(127)) * _F(8388608)).view(np.float32)


@compiled
def _to_half(x: Any) -> Any:
    """The bits of the nearest bfloat16."""
    bits = _F(x).view(np.uint32)
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@compiled
def _from_half(bits: Any) -> Any:
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)
