"""What a trained P2L expects, in the meaning that the router gives its coefficients.

Shapes: Q questions, M models, L models of the P2L.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.command import nearest
from p2l.errors import InputError
from route.evaluation.table import ScoreTable
from route.strength import Opponents, grounded_scores, scores_against

__all__ = ["expected_by", "known_models"]

Floats: TypeAlias = npt.NDArray[np.float64]


def known_models(folder: Path, table: ScoreTable) -> tuple[str, ...]:
    """The models of the table that the P2L has coefficients of.

    Raises:
        InputError: it has fewer than two.
    """
    from p2l.checkpoint import local_folder, read_model_list

    names = read_model_list(local_folder(folder))
    known = tuple(model for model in table.models if model in names)
    if len(known) < 2:
        missing = next(model for model in table.models if model not in names)
        raise InputError(
            f"{folder}: knows {len(known)} of the table's {len(table.models)} models; "
            f"{missing!r} is not in its list{nearest(missing, names)}"
        )
    return known


def expected_by(folder: Path, table: ScoreTable) -> Floats:
    """Expected scores (Q, M): the chance of a usable answer where coefficients are grounded, else of beating the rest.

    Raises:
        InputError: the folder holds no P2L, or one that lacks a model of the table.
    """
    from p2l.inference import P2L

    model = P2L.from_pretrained(folder)
    coefs = model.predict(list(table.prompts)).coefs.astype(np.float64)
    columns = [model.model_list.index(name) for name in known_models(folder, table)]
    if model.likelihood.grounded:
        return grounded_scores(coefs[:, columns])
    weights = np.full(coefs.shape[1], 1.0 / coefs.shape[1])
    return np.stack([scores_against(row[columns], Opponents(row, weights)) for row in coefs])
