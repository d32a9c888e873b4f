"""The outcome models once more, written down naively in 320 decimal digits: what the tests compare with."""

from __future__ import annotations

from typing import Any

import mpmath as mp

STEP = mp.mpf(10) ** -100


def exact_probs(name: str, a: Any, b: Any, eta: Any = 0, gamma: Any = 0) -> list[Any]:
    """Probabilities of the outcomes, the tie as one minus the rest."""
    with mp.workdps(320):
        a, b, eta, gamma = (mp.mpf(value) for value in (a, b, eta, gamma))
        if name in ("bt", "bt-tie"):
            return [1 / (1 + mp.exp(b - a)), 1 / (1 + mp.exp(a - b))]
        if name == "rk":
            h = max(10 * mp.log(1 + mp.exp((eta - mp.mpf("22.5")) / 10)), mp.mpf("0.02"))
            win, loss = 1 / (1 + mp.exp(h - a + b)), 1 / (1 + mp.exp(h + a - b))
            return [win, loss, 1 - win - loss]
        excess, g = (mp.mpf("1.02"), mp.exp(gamma)) if name == "ba" else (mp.mpf("1.000001"), mp.mpf(1))
        t, x, y = mp.exp(eta) + excess, mp.exp(a), mp.exp(b)
        win, loss, bothbad = x / (x + t * y + g), y / (y + t * x + g), g / (x + y + g)
        if name == "rk-reparam":
            return [win, loss, 1 - win - loss]
        return [win, loss, 1 - win - loss - bothbad, bothbad]


def exact_slopes(name: str, point: list[float], parameters: int) -> list[list[float]]:
    """Derivatives [k][p] of the log-probability of outcome k in parameter p."""
    with mp.workdps(320):
        columns = [_slopes_in(name, [mp.mpf(float(value)) for value in point], place) for place in range(parameters)]
        return [list(row) for row in zip(*columns, strict=True)]


def _slopes_in(name: str, point: list[Any], place: int) -> list[float]:
    above, below = list(point), list(point)
    above[place] += STEP
    below[place] -= STEP
    pairs = zip(exact_probs(name, *above), exact_probs(name, *below), strict=True)
    return [float((mp.log(high) - mp.log(low)) / (2 * STEP)) for high, low in pairs]
