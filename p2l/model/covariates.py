"""Effects of covariates on votes (who was shown first, length, the judge): trained with the head, left out of coefs.

    a vote's parameters (coef_a, coef_b, eta) = those of its prompt + sum_c value_c effect_c role_c

`covariates.json` in a model folder has each covariate's columns, its scale and its effect with its interval;
model.safetensors holds `covariates.effects`, the effects times their scales.

Shapes: C covariates, n votes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from p2l.common.config import Number
from p2l.common.errors import CheckpointError
from p2l.leaderboard.controls import Design, Term
from p2l.leaderboard.covariates import Effect
from p2l.leaderboard.pair_tables import ROLES
from p2l.model.checkpoint import COVARIATES_FILE, read_object, write_json

LEVEL = 0.95  # of the intervals in the file
WEIGHT = "covariates.effects"
Floats = npt.NDArray[np.float64]


class Estimate(NamedTuple):
    """Effects (C,) per unit of their covariates with their standard errors, and the number of votes they rest on."""

    effects: Floats
    errors: Floats
    votes: int


class CovariateEffects(nn.Module):
    """The effects of C covariates; a parameter of one is the effect of a typical value of its covariate."""

    def __init__(self, names: Sequence[str], design: Design, scales: npt.ArrayLike) -> None:
        """Start with effects of zero; `names` are the user's, `scales` (C,) typical values."""
        super().__init__()
        self.names, self.design = tuple(names), design
        self.scales: Floats = np.asarray(scales, dtype=np.float64)
        self.estimate: Estimate | None = None
        """Fitted after training; without it the parameters stand for the effects, with no interval."""
        self.missing: dict[str, int] = {}
        """Votes without a value, by column."""
        self.effects = nn.Parameter(torch.zeros(len(design.terms)))
        self._roles: Floats = np.array([ROLES[term.role] for term in design.terms]).reshape(-1, 3)

    def forward(self, values: Tensor) -> Tensor:
        """Scaled values (n, C) -> float32 shifts (n, 3) of both coefficients and of eta."""
        roles = torch.as_tensor(self._roles, dtype=torch.float32, device=values.device)
        return (values.float() * self.effects.float()) @ roles

    def scaled(self, values: Floats, swapped: npt.NDArray[np.bool_] | bool = False) -> npt.NDArray[np.float32]:
        """Return values (n, C) as `forward` takes them; where `swapped` (n,), model_b stands first."""
        turned = np.where(np.logical_and(np.reshape(swapped, (-1, 1)), self._roles[:, 0] != self._roles[:, 1]), -1, 1)
        return np.asarray(values * turned / self.scales, dtype=np.float32)

    def start(self, effects: Mapping[tuple[str, str], float]) -> None:
        """Set the effects, by name and role, that training starts from."""
        per_unit = np.array([effects.get((term.name, term.role), 0.0) for term in self.design.terms])
        with torch.no_grad():
            self.effects.copy_(torch.as_tensor(per_unit * self.scales))

    def shift(self, scaled: npt.ArrayLike, effects: Iterable[Effect] | None = None) -> Floats:
        """Return the shifts (n, 3) of votes with these scaled values (n, C) by effects, by default the model's."""
        sizes = {(effect.name, effect.role): effect.coef for effect in (self.table() if effects is None else effects)}
        per_scale = np.array([sizes.get((term.name, term.role), 0.0) for term in self.design.terms]) * self.scales
        return np.asarray((np.asarray(scaled, dtype=np.float64) * per_scale) @ self._roles)

    def table(self, level: float = LEVEL) -> tuple[Effect, ...]:
        """Return the effects per unit, with their intervals where there are any."""
        if self.estimate is None:
            effects = self.effects.detach().double().cpu().numpy() / self.scales
            width = np.full(len(effects), np.nan)
        else:
            effects, width = self.estimate.effects, NormalDist().inv_cdf(0.5 + level / 2) * self.estimate.errors
        bounds = zip(effects.tolist(), (effects - width).tolist(), (effects + width).tolist(), strict=True)
        return tuple(
            Effect(term.name, term.role, effect, lower, upper)
            for term, (effect, lower, upper) in zip(self.design.terms, bounds, strict=True)
        )

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Write covariates.json for these weights of the whole model; return them with the estimate in its place."""
        estimate = self.estimate
        if estimate is None:
            columns = {"effect": weights[WEIGHT].double().cpu().numpy() / self.scales}
        else:
            columns = {"effect": estimate.effects, "error": estimate.errors}
            columns |= {end: np.array([getattr(row, end) for row in self.table()]) for end in ("lower", "upper")}
        facts: dict[str, Any] = {} if estimate is None else {"level": LEVEL, "votes": estimate.votes}
        terms = [
            term._asdict() | {"scale": scale} | {name: float(column[place]) for name, column in columns.items()}
            for place, (term, scale) in enumerate(zip(self.design.terms, self.scales.tolist(), strict=True))
        ]
        content = {"names": self.names, **facts, "missing": self.missing, "texts": self.design.texts}
        write_json(folder / COVARIATES_FILE, {**content, "covariates": terms})
        saved = torch.as_tensor(columns["effect"] * self.scales)
        return {**weights, WEIGHT: saved.to(weights[WEIGHT].dtype)}


class _Stored(BaseModel):
    """A covariate in the file."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    name: str
    role: Literal["difference", "level", "ties"]
    columns: tuple[str, ...] = Field(max_length=2)
    is_text: bool
    value: str | None
    scale: Number = Field(gt=0)
    effect: Number
    error: Number | None = Field(default=None, ge=0)


class _File(BaseModel):
    """The file."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    names: list[str]
    votes: int | None = None
    missing: dict[str, int]
    texts: dict[str, tuple[str | None, ...]]
    covariates: list[_Stored] = Field(min_length=1)


def load_effects(folder: Path) -> CovariateEffects | None:
    """Return a folder's effects, their weights still to be loaded, or None; CheckpointError for a damaged file."""
    file = folder / COVARIATES_FILE
    if not file.is_file():
        return None
    try:
        stored = _File.model_validate(read_object(file))
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise CheckpointError(f"{file}: {place}: {problem['msg']}; copy the folder again") from error
    terms = tuple(Term(row.name, row.role, row.columns, row.is_text, row.value) for row in stored.covariates)
    lost = next((term.name for term in terms if term.is_text and {*term.columns} - {*stored.texts}), None)
    if lost is not None:
        raise CheckpointError(f"{file}: covariate {lost} has no list of texts; copy the folder again")
    effects = CovariateEffects(stored.names, Design(terms, stored.texts), [row.scale for row in stored.covariates])
    effects.missing = stored.missing
    errors = [row.error for row in stored.covariates if row.error is not None]
    if stored.votes is not None and len(errors) == len(terms):
        sizes = np.array([row.effect for row in stored.covariates])
        effects.estimate = Estimate(sizes, np.array(errors), stored.votes)
    return effects
