"""Votes that a model was trained on, kept in its folder: from them changes and strengths are told, and how surely.

A model's coefficients are shrunk by all that its votes leave open, so that they say too little of a change and nothing
of its error. Of each vote the outcome is kept; of its prompt a hash, which recognises the same prompt, and a place
among other prompts (the inputs of the posterior along their main directions). The text is not kept. Columns of few
values (topic, language) are kept as they are: they tell the category of a prompt where places cannot.

Shapes: N votes, Q prompts, F inputs, D directions, M models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from p2l.common.errors import CheckpointError

VOTES_FILE = "votes.safetensors"
_MOST_DIRECTIONS = 64
MOST_VALUES = 64
"""Different values that a column may have to be kept."""
_COLUMN = "column "
_SHIFT = "shift"
_AXES = {
    "hashes": "Q", "places": "QD", "centre": "F", "directions": "FD", "prompt": "N", "labels": "NC", "weights": "N",
}  # fmt: skip
"""Axes of the tensors of a file, by their names."""
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class KeptVotes:
    """N votes on Q prompts, of `total` that a model was trained on."""

    models: list[str]
    """M names, which labels number."""
    hashes: NDArray[np.uint64]
    """(Q,) `hash_turns` of each prompt."""
    places: Floats
    """(Q, D) of the prompts, as `place` gives them."""
    centre: Floats
    """(F,) of the inputs."""
    directions: Floats
    """(F, D)"""
    prompt: NDArray[np.int64]
    """(N,) of each vote."""
    labels: NDArray[np.int64]
    """(N, 3) `[winner, loser, tie]`."""
    weights: NDArray[np.float64]
    """(N,)"""
    total: int
    values: Mapping[str, list[str]] = field(default_factory=dict)
    """The values of each column that is kept."""
    codes: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """(Q,) of each such column: which value a prompt has, -1 without one."""
    shift: NDArray[np.float64] | None = None
    """(N, 3) what the model's covariates add to winner, loser and eta; None where the votes have no values of any."""

    @classmethod
    def of(
        cls,
        models: Sequence[str],
        hashes: npt.ArrayLike,
        inputs: NDArray[np.floating[Any]],
        prompt: NDArray[np.int64],
        labels: NDArray[Any],
        weights: NDArray[np.floating[Any]],
        total: int,
        columns: Mapping[str, Sequence[str | None]] | None = None,
        shift: NDArray[np.float64] | None = None,
    ) -> KeptVotes:
        """Find the main directions of the prompts' inputs (Q, F), and keep the votes by these.

        `columns` have a value for each prompt (Q,), which they keep where there are few different ones; `shift` (N, 3)
        is that of the votes' covariates.
        """
        centre = inputs.mean(axis=0)
        apart = (inputs - centre).astype(np.float64)
        _, vectors = np.linalg.eigh(apart.T @ apart)
        directions = vectors[:, ::-1][:, :_MOST_DIRECTIONS]
        values = {name: sorted({text for text in column if text}) for name, column in (columns or {}).items()}
        values = {name: texts for name, texts in values.items() if 1 < len(texts) <= MOST_VALUES}
        numbers = {
            name: dict[str | None, int](zip(texts, range(len(texts)), strict=True)) for name, texts in values.items()
        }
        return cls(
            models=list(models),
            hashes=np.asarray(hashes, dtype=np.uint64),
            places=(apart @ directions).astype(np.float32),
            centre=centre.astype(np.float32),
            directions=directions.astype(np.float32),
            prompt=prompt.astype(np.int64),
            labels=labels.astype(np.int64),
            weights=weights.astype(np.float64),
            total=total,
            values=values,
            codes={
                name: np.array([number.get(text, -1) for text in (columns or {})[name]], dtype=np.int64)
                for name, number in numbers.items()
            },
            shift=shift,
        )

    def __len__(self) -> int:
        return len(self.prompt)

    def of_category(self, column: str, value: str) -> NDArray[np.bool_] | None:
        """Return which prompts (Q,) have this value of a column, None where the column is not kept of all prompts."""
        codes = self.codes.get(column)
        if codes is None or (codes < 0).any():
            return None
        texts = self.values[column]
        return np.asarray(codes == (texts.index(value) if value in texts else -1))

    def some(self, votes: NDArray[np.bool_]) -> KeptVotes:
        """Return some of the votes (N,), and the prompts that these are on."""
        prompts, prompt = np.unique(self.prompt[votes], return_inverse=True)
        return replace(
            self,
            hashes=self.hashes[prompts],
            places=self.places[prompts],
            prompt=prompt,
            labels=self.labels[votes],
            weights=self.weights[votes],
            codes={name: codes[prompts] for name, codes in self.codes.items()},
            shift=None if self.shift is None else self.shift[votes],
        )

    def with_models(self, names: Sequence[str]) -> KeptVotes:
        """Return the same votes, with these models among those that labels could name."""
        return replace(self, models=list(dict.fromkeys([*self.models, *names])))

    def place(self, inputs: NDArray[np.floating[Any]]) -> Floats:
        """Return the places (n, D) of prompts by their inputs (n, F)."""
        return np.asarray((inputs - self.centre) @ self.directions, dtype=np.float32)

    def save(self, folder: Path) -> None:
        """Write the file; places, directions and shifts in float16."""
        from safetensors.numpy import save_file

        tensors = {
            "hashes": self.hashes,
            "places": self.places.astype(np.float16),
            "centre": self.centre,
            "directions": self.directions.astype(np.float16),
            "prompt": self.prompt.astype(np.int32),
            "labels": self.labels.astype(np.int16),
            "weights": self.weights.astype(np.float32),
        }
        tensors |= {f"{_COLUMN}{name}": codes.astype(np.int16) for name, codes in self.codes.items()}
        if self.shift is not None:
            tensors[_SHIFT] = self.shift.astype(np.float16)
        metadata = {
            "models": json.dumps(self.models),
            "total": str(self.total),
            "values": json.dumps(dict(self.values)),
        }
        save_file(
            {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, folder / VOTES_FILE, metadata
        )

    @classmethod
    def load(cls, folder: Path) -> KeptVotes | None:
        """Read the votes of a model folder, None where there are none; CheckpointError if the file is damaged."""
        from safetensors import SafetensorError, safe_open

        file = folder / VOTES_FILE
        if not file.is_file():
            return None
        damaged = f"{file}: damaged or cut short; copy it again, or write it anew with p2l posterior"
        try:
            with safe_open(file, framework="numpy") as handle:
                tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
                metadata = handle.metadata() or {}
                models, values = (json.loads(metadata[name]) for name in ("models", "values"))
                total = int(metadata["total"])
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise CheckpointError(f"{damaged} ({error})") from error
        codes = {name.removeprefix(_COLUMN): tensors[name] for name in tensors if name.startswith(_COLUMN)}
        if not _fits(tensors, models) or not _columns_fit(codes, values, len(tensors["hashes"])):
            raise CheckpointError(damaged)
        return cls(
            models=models,
            hashes=tensors["hashes"],
            places=tensors["places"].astype(np.float32),
            centre=tensors["centre"],
            directions=tensors["directions"].astype(np.float32),
            prompt=tensors["prompt"].astype(np.int64),
            labels=tensors["labels"].astype(np.int64),
            weights=tensors["weights"].astype(np.float64),
            total=total,
            values=values,
            codes={name: numbers.astype(np.int64) for name, numbers in codes.items()},
            shift=tensors[_SHIFT].astype(np.float64) if _SHIFT in tensors else None,
        )


def _columns_fit(codes: Mapping[str, NDArray[Any]], values: Any, prompts: int) -> bool:
    """Return whether each column has a code for each prompt, of one of its values."""
    if not isinstance(values, dict) or values.keys() != codes.keys():
        return False
    return all(
        isinstance(values[name], list)
        and numbers.shape == (prompts,)
        and np.issubdtype(numbers.dtype, np.integer)
        and numbers.min(initial=0) >= -1
        and numbers.max(initial=-1) < len(values[name])
        for name, numbers in codes.items()
    )


def _fits(tensors: dict[str, NDArray[Any]], models: Any) -> bool:
    """Return whether the tensors are there, finite, and refer to models and prompts that are there."""
    sizes: dict[str, int] = {"C": 3}
    for name, letters in _AXES.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.ndim != len(letters) or not np.isfinite(tensor).all():
            return False
        if any(sizes.setdefault(letter, size) != size for letter, size in zip(letters, tensor.shape, strict=True)):
            return False
    shift = tensors.get(_SHIFT, np.zeros((sizes["N"], 3)))
    if shift.shape != (sizes["N"], 3) or not np.isfinite(shift).all():
        return False
    names = isinstance(models, list) and all(isinstance(name, str) for name in models)
    prompt, labels = tensors["prompt"], tensors["labels"]
    within = prompt.min(initial=0) >= 0 and prompt.max(initial=-1) < sizes["Q"]
    return names and within and labels[:, :2].min(initial=0) >= 0 and labels[:, :2].max(initial=-1) < len(models)
