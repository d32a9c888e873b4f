"""Prompts that are asked when a service starts: how far do the coefficients of a faster model lie from the exact ones?

Shapes: B prompts, M models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from p2l import backbones
from p2l.batching import Batch, collate
from p2l.encoding import Encoding, PromptTokenizer
from p2l.model import P2LModel

__all__ = ["PROBES", "Agreement", "agreement", "batch_of", "coefficients", "of_length", "probes"]

PROBES: tuple[tuple[str, ...], ...] = (
    ("hi",),
    ("What is 17 times 23?",),
    ("Write a Python function that returns the longest palindrome in a string, and explain how long it takes.",),
    ("Translate into French: the cat that my neighbour found has come home.", "And now into Japanese."),
    ("Schreibe ein kurzes Gedicht über den Herbst in Berlin, ohne das Wort Blatt zu benutzen.",),
    ("Prove that the square root of two is irrational.",),
    ("请用三句话解释量子纠缠。",),
    ("SELECT name FROM users WHERE id = 3; -- why is this slow on ten million rows?",),
    ("I have had a headache for two days and light hurts. Should I see a doctor?",),
    ("Summarise the plot of Hamlet for a ten-year-old.", "Shorter, please.", "Now as a limerick."),
    ("¿Cuáles son las diferencias entre el pretérito perfecto y el indefinido? Da cinco ejemplos de cada uno.",),
    ("A train leaves at 9:40 and travels 210 km at 84 km/h. When does it arrive?\n\nShow every step.",),
    ("def f(x):\n    return x if x < 2 else f(x - 1) + f(x - 2)\n\nprint(f(40))\n\nMake this faster.",),
    ("You are a dragon who sells insurance. A knight comes in. Play both parts, and let the knight win." * 3,),
    ("{'a': [1, 2, {'b': null}]} is not valid JSON. Say why, correct it, and write a schema that accepts it.",),
    ("Compare the economic policies of two countries of your choice between 1950 and 2000. " * 5,),
)
"""Turns of prompts of several kinds, languages and lengths."""


@dataclass(frozen=True)
class Agreement:
    """How the coefficients of two models for the same prompts agree."""

    spearman: float
    """Rank correlation over the models, mean over the prompts."""
    lowest: float
    """The least of any prompt."""
    error: float
    """Mean absolute difference, over the spread: the standard deviation of a prompt's coefficients, on average."""

    def __str__(self) -> str:
        ranks = f"rank correlation {self.spearman:.4f} (lowest {self.lowest:.4f})"
        return f"{ranks}, mean error {self.error:.2%} of the coefficients' spread"


def agreement(exact: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> Agreement:
    """Compare coefficients (B, M)."""
    ranks = np.array([_spearman(a, b) for a, b in zip(exact, other, strict=True)])
    spread = float(exact.std(axis=1, dtype=np.float64).mean())
    error = float(np.abs(exact - other).mean(dtype=np.float64))
    relative = error / spread if spread > 0 else (0.0 if error == 0 else float("inf"))
    return Agreement(float(ranks.mean()), float(ranks.min()), relative)


def probes(tokenizer: PromptTokenizer) -> list[Encoding]:
    """The probes as this model reads them."""
    return tokenizer.encode(PROBES)


def of_length(tokenizer: PromptTokenizer, tokens: int) -> Encoding:
    """A prompt of so many tokens (fewer where the model reads no more), made of the probes."""
    ids = np.concatenate([encoding.ids[:-1] for encoding in probes(tokenizer)])
    body = np.resize(ids, min(tokens, tokenizer.max_length) - 1)
    return Encoding(np.append(body, tokenizer.cls_token_id), None, False)


def batch_of(model: P2LModel, prompt: Encoding) -> Batch:
    """One prompt, packed where the backbone can read that."""
    return collate([prompt], 0, packed=backbones.get(model.record.model_type).packs)


def coefficients(model: P2LModel, prompts: Sequence[Encoding]) -> npt.NDArray[np.float32]:
    """Coefficients (B, M) of prompts that are asked one by one."""
    with torch.inference_mode():
        rows = [model(batch_of(model, prompt)).coefs for prompt in prompts]
    found: npt.NDArray[np.float32] = torch.cat(rows).float().numpy()
    return found


def _spearman(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    """Rank correlation, ties sharing their mean rank; 1 where there is nothing to rank."""
    from scipy.stats import rankdata

    if not np.isfinite(b).all():
        return -1.0
    x, y = (rankdata(values) - (len(values) + 1) / 2 for values in (a, b))
    size = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum() / size) if size else float(np.array_equal(x, y))
