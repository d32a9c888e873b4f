"""Attention of short prompts as one loop, compiled by numba: scores, softmax and sums of four queries at a time.

Shapes: T tokens of all prompts together, H heads, G heads of keys and values, C width of a head, R rows of a tile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from p2l.model.fused import compiled, exponential, heads_of, largest_of, rounded
from p2l.model.tiles import LANES, ROWS, multiply_rows

_UNSEEN = np.float32(-1e30)


@compiled
def answered(
    product: Any,
    scales: Any,
    bias: Any,
    cos: Any,
    sin: Any,
    norms: Any,
    groups: Any,
    lengths: Any,
    scale: Any,
    window: Any,
    out: Any,
    new_scales: Any,
) -> None:
    """What each token gathers, rounded (T, H C), of a product (T, (H + 2 G) C): `heads_of`, attention, rounding."""
    width = cos.shape[1]
    heads = np.empty((product.shape[1] // width, product.shape[0] + ROWS, width), np.float32)
    heads_of(product, scales, bias, cos, sin, heads, heads.shape[0] - groups, norms)
    rounded(attended(heads, groups, lengths, scale, window, False), out, new_scales)


@compiled
def attended(heads: Any, groups: Any, lengths: Any, scale: Any, window: Any, last_only: Any) -> Any:
    """Causal attention of heads (H + 2 G, T + R, C), whose last R tokens are room, to (T, H C).

    C is a multiple of `LANES`. `lengths` are those of prompts end to end; tokens after them get zeros. A query sees
    `window` keys at most, itself among them. With `last_only` no more than the last token of each prompt is answered.
    """
    count, room, width = heads.shape[0] - 2 * groups, heads.shape[1], heads.shape[2]
    out = np.empty((room, count * width), np.float32)
    padded = (lengths.max() + LANES - 1) // LANES * LANES
    turned, scores = np.zeros(width * padded, np.float32), np.empty(ROWS * padded, np.float32)
    first = 0
    for length in lengths:
        for group in range(groups):
            _turn(heads[count + group], first, length, turned, padded)
            values = ((count + groups + group) * room + first) * width
            for head in range(group * (count // groups), (group + 1) * (count // groups)):
                for start in range(length - 1 if last_only else 0, length, ROWS):
                    # Rows beyond the prompt's end are computed too, and then overwritten.
                    seen = min(start + ROWS, length)
                    stop = (seen + LANES - 1) // LANES * LANES
                    asked = (head * room + first + start) * width
                    multiply_rows(heads, asked, width, turned, 0, padded, scores, 0, stop, width, stop)
                    _share(scores, start, seen, stop, scale, window)
                    place = (first + start) * count * width + head * width
                    multiply_rows(scores, 0, stop, heads, values, width, out, place, count * width, seen, width)
        first += length
    out[first:] = 0
    return out[: room - ROWS]


@compiled
def _turn(keys: Any, first: Any, length: Any, turned: Any, step: Any) -> None:
    """The keys (T, C) of one prompt as columns."""
    for c in range(keys.shape[1]):
        for t in range(length):
            turned[c * step + t] = keys[first + t, c]


@compiled
def _share(scores: Any, start: Any, seen: Any, stop: Any, scale: Any, window: Any) -> None:
    """Softmax, in place, of the scores of queries `start`, `start` + 1, ... of as many keys as `stop` says.

    What is not seen is the least there is: faster than loops that ask.
    """
    for number in range(ROWS):
        row = scores[number * stop : (number + 1) * stop]
        last = min(start + number, seen - 1)
        _set(row, last, stop, window, _UNSEEN)
        largest = largest_of(row)
        total = np.float32(0)
        for k in range(stop):
            part = exponential((row[k] - largest) * scale)
            row[k] = part
            total += part
        factor = np.float32(1) / total
        for k in range(stop):
            row[k] *= factor
        _set(row, last, seen, window, np.float32(0))


@compiled
def _set(row: Any, last: Any, stop: Any, window: Any, value: Any) -> None:
    """Write a value where the query whose own key is `last` sees none, up to `stop`."""
    for k in range(last + 1, stop):
        row[k] = value
    for k in range(last + 1 - window):
        row[k] = value
