"""A leaderboard: what fits and aggregations return and what tables, files and plots show.

Scores are printed on the scale that readers of arena leaderboards know: score = 1000 + 400 / ln(10) * coefficient, so
that 100 points more mean odds of 10^(1/4) = 1.78 to 1. The coefficient itself stays beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from p2l import likelihood as likelihoods
from p2l.leaderboard.field import win_rates

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["POINTS_PER_LOGIT", "Leaderboard", "to_score"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

POINTS_PER_LOGIT = 400.0 / math.log(10.0)


def to_score(coefs: npt.ArrayLike) -> Floats:
    """Coefficients (logits) on the scale of arena scores; zero becomes 1000."""
    return np.asarray(1000.0 + POINTS_PER_LOGIT * np.asarray(coefs, dtype=np.float64))


@dataclass(frozen=True)
class Leaderboard:
    """Coefficients of M models, with intervals.

    Attributes:
        models: M names, in the order of the codes.
        coefs: (M,) coefficients in logits. Where only differences count, each component has mean zero.
        lower, upper: (M,) ends of the intervals of `coefs`; NaN where there are none.
        eta: the tie parameter, or None.
        gamma: 0 for `ba` (see `p2l.leaderboard.objective`), else None.
        likelihood: name of the outcome model.
        loss: mean negative log-likelihood per vote, or expected per pair of an aggregation; without the prior.
        votes: (M,) votes that each model took part in and that counted; None for an aggregation.
        components: (M,) component of the comparison graph; models of different components were never compared.
        notes: sentences that a reader of the table needs.
        level: coverage of the intervals.
    """

    models: list[str]
    coefs: Floats
    lower: Floats
    upper: Floats
    eta: float | None
    gamma: float | None
    likelihood: str
    loss: float
    votes: Ints | None
    components: Ints
    notes: tuple[str, ...] = ()
    level: float = 0.95
    field_rates: Floats | None = field(default=None, repr=False)

    def win_rates(self) -> Floats:
        """Each model's chance (M,) of beating a uniformly drawn other model; ties count half."""
        if self.field_rates is not None:
            return self.field_rates
        return win_rates(self.coefs, likelihoods.get(self.likelihood), self.eta, self.gamma)

    def to_frame(self, *, min_votes: int = 0) -> pd.DataFrame:
        """The models, best first: rank, model, score, lower, upper, win_rate, votes, component, coef and its interval.

        Columns without content (votes of an aggregation, a single component) are left out. `min_votes` hides models.
        """
        import pandas as pd

        order = np.argsort(-self.coefs, kind="stable")
        if self.votes is not None:
            order = order[self.votes[order] >= min_votes]
        columns = {
            "rank": np.arange(1, len(order) + 1),
            "model": [self.models[index] for index in order],
            "score": to_score(self.coefs[order]),
            "lower": to_score(self.lower[order]),
            "upper": to_score(self.upper[order]),
            "win_rate": self.win_rates()[order],
        }
        if self.votes is not None:
            columns["votes"] = self.votes[order]
        if len(set(self.components[order].tolist())) > 1:
            columns["component"] = self.components[order]
        logits = {"coef": self.coefs, "coef_lower": self.lower, "coef_upper": self.upper}
        frame: pd.DataFrame = pd.DataFrame(columns | {name: values[order] for name, values in logits.items()})
        return frame
