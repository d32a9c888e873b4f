"""Leaderboards: the result of fits and aggregations, as a table, a file or a plot.

Scores are printed on the scale that readers of arena leaderboards know: score = 1000 + 400 / ln(10) * coefficient, so
that 100 points more mean odds of 10^(1/4) = 1.78 to 1. The coefficient itself stays beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from p2l import likelihood as likelihoods
from p2l.common.text_table import text_table
from p2l.leaderboard.certificate import Certificate
from p2l.leaderboard.covariates import Effect, shifted
from p2l.leaderboard.newton import shift_invariant
from p2l.leaderboard.pair_tables import Covariates
from p2l.likelihood import pair_rates, win_rates, win_rates_if

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
POINTS_PER_LOGIT = 400.0 / math.log(10.0)


def to_score(coefs: npt.ArrayLike) -> Floats:
    """Convert coefficients (logits) to the scale of arena scores; zero becomes 1000."""
    return np.asarray(1000.0 + POINTS_PER_LOGIT * np.asarray(coefs, dtype=np.float64))


@dataclass(frozen=True)
class Leaderboard:
    """Coefficients of M models, with intervals.

    Attributes:
        models: M names, in the order of the codes.
        coefs: (M,) coefficients in logits. Where only differences count, each component has mean zero.
        lower, upper: (M,) ends of the intervals of `coefs`; NaN where there are none.
        eta: the tie parameter, or None.
        gamma: 0 for `ba` (see `p2l.leaderboard.newton`), else None.
        likelihood: name of the outcome model.
        loss: mean negative log-likelihood per vote, or expected per pair of an aggregation; without the prior.
        votes: (M,) votes that each model took part in and that counted; None for an aggregation.
        components: (M,) component of the comparison graph; models of different components were never compared.
        notes: sentences that a reader of the table needs.
        level: coverage of the intervals.
        not_counted: votes that the likelihood leaves out.
        prior_sd: standard deviation of the normal prior of the coefficients; None for an aggregation.
        covariance: (M, M) of the coefficients, for intervals of differences and ranks; None without intervals.
        effects: what covariates add; scores and win rates are those of votes where all covariates are zero.
        familiarity: share of a prompt's own departure from the overall leaderboard that is kept, or its mean over
            prompts; None for a leaderboard of votes or by a model without posterior.
        intervals_of: what another draw would change the coefficients by as much as the intervals say: the "votes" that
            were cast, the "prompts" of an aggregation, or "model", what the votes leave open about a single prompt.
        certificate: how few votes decide the ranks; None where it was not asked for, or cannot be computed.
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
    not_counted: int = 0
    prior_sd: float | None = None
    covariance: Floats | None = field(default=None, repr=False)
    effects: tuple[Effect, ...] = ()
    field_rates: Floats | None = field(default=None, repr=False)
    familiarity: float | None = None
    intervals_of: str = "votes"
    certificate: Certificate | None = field(default=None, repr=False)

    def win_rates(self) -> Floats:
        """Return each model's chance (M,) of beating a uniformly drawn other model; ties count half."""
        if self.field_rates is not None:
            return self.field_rates
        return win_rates(self.coefs, likelihoods.get(self.likelihood), self.eta, self.gamma)

    def __repr__(self) -> str:
        """Return the heading and the best models as a table."""
        return self._shown().text()

    def _repr_html_(self) -> str:
        return self._shown().html()

    def plot(self) -> Figure:
        """Return the win rates with their intervals as a matplotlib figure."""
        return self._shown().figure()

    def _shown(self) -> Rates:
        return Rates.of(
            f"Leaderboard of {len(self.models)} models, {self.likelihood}",
            self.models,
            self.win_rates(),
            self.win_rate_limits(),
            self.level,
        )

    def log_probs(self, model_a: npt.ArrayLike, model_b: npt.ArrayLike, covariates: Covariates | None = None) -> Floats:
        """Return the log-probabilities (N, K) of the outcomes of votes between models by code.

        With `covariates` their effects count too; those that the fit did not have count as zero.
        """
        likelihood = likelihoods.get(self.likelihood)
        a, b, eta = self.coefs[np.asarray(model_a)], self.coefs[np.asarray(model_b)], self.eta
        if covariates is not None:
            effects = {(effect.name, effect.role): effect.coef for effect in self.effects}
            a, b, eta = shifted(likelihood, a, b, eta, covariates, effects)
        return np.asarray(likelihood.log_probs(a, b, eta, self.gamma))

    def rank_intervals(self, order: npt.ArrayLike | None = None) -> tuple[Ints, Ints]:
        """Return the best and the worst rank (M,) that each model may have among those of `order`, by default all.

        A model is ranked behind those that are better, and before those that are worse, by more than an interval of
        their difference, wide enough (Sidak) for all its differences to hold together with the probability `level`.
        Without intervals every rank is possible.
        """
        gaps, sds = self.differences(order)
        better, worse = (np.zeros(len(gaps), dtype=np.int64) for _ in range(2))
        if len(gaps) > 1:
            width = NormalDist().inv_cdf(0.5 + 0.5 * self.level ** (1.0 / (len(gaps) - 1)))
            apart = np.abs(gaps) > width * sds  # never where a deviation is NaN
            better, worse = ((apart & sign).sum(axis=1) for sign in (gaps < 0, gaps > 0))
        return 1 + better, len(gaps) - worse

    def differences(self, order: npt.ArrayLike | None = None) -> tuple[Floats, Floats]:
        """Return by how much (M, M) the model of each row of `order` is above that of each column, in logits.

        Second comes the standard deviation of each difference: NaN without intervals, and between models that were
        never compared where only differences count. By default `order` is that of `models`.
        """
        shown = np.arange(len(self.models)) if order is None else np.asarray(order, dtype=np.int64)
        gaps = self.coefs[shown][:, None] - self.coefs[shown][None, :]
        if self.covariance is None:
            return gaps, np.full(gaps.shape, np.nan)
        covariance = self.covariance[np.ix_(shown, shown)]
        variances = np.diag(covariance)[:, None] + np.diag(covariance)[None, :] - 2.0 * covariance
        return gaps, np.where(self._compared(shown), np.sqrt(np.maximum(variances, 0.0)), np.nan)

    def pair_rates(self, order: npt.ArrayLike | None = None) -> Floats:
        """Return each model's chance (M, M) of beating each other, both of `order`, ties counting half.

        NaN between models that were never compared where only differences count.
        """
        shown = np.arange(len(self.models)) if order is None else np.asarray(order, dtype=np.int64)
        rates = pair_rates(self.coefs[shown], likelihoods.get(self.likelihood), self.eta, self.gamma)
        return np.where(self._compared(shown), rates, np.nan)

    def _compared(self, shown: Ints) -> npt.NDArray[np.bool_]:
        """Return which coefficients compare: under likelihoods where only differences count, those of one component."""
        if not shift_invariant(likelihoods.get(self.likelihood)):
            return np.ones((len(shown), len(shown)), dtype=np.bool_)
        return np.asarray(self.components[shown][:, None] == self.components[shown][None, :])

    def win_rate_limits(self) -> tuple[Floats, Floats] | None:
        """Return the ends (M,) of the intervals of the win rates; None where there are none."""
        if self.field_rates is not None or not np.isfinite(self.lower).any():
            return None
        likelihood = likelihoods.get(self.likelihood)
        with np.errstate(invalid="ignore"):  # a model that nothing joins to the others has no interval
            lower, upper = (
                win_rates_if(end, self.coefs, likelihood, self.eta, self.gamma) for end in (self.lower, self.upper)
            )
        return lower, upper

    def to_frame(self, *, min_votes: int = 0) -> pd.DataFrame:
        """Return the models, best first: rank, model, score, each with its ends, win_rate, votes, component and coef.

        `rank_removed` and `rank_reversed` are the fewest votes whose removal or reversal changes the rank. Columns
        without content (votes of an aggregation, a single component) are left out. `min_votes` hides models.
        """
        import pandas as pd

        order = np.argsort(-self.coefs, kind="stable")
        if self.votes is not None:
            order = order[self.votes[order] >= min_votes]
        best, worst = self.rank_intervals(order)
        columns = {
            "rank": np.arange(1, len(order) + 1),
            "rank_lower": best,
            "rank_upper": worst,
            "model": [self.models[index] for index in order],
            "score": to_score(self.coefs[order]),
            "lower": to_score(self.lower[order]),
            "upper": to_score(self.upper[order]),
            "win_rate": self.win_rates()[order],
        }
        if self.certificate is not None:
            columns["rank_removed"] = self.certificate.rank_removed[order]
            columns["rank_reversed"] = self.certificate.rank_reversed[order]
        if self.votes is not None:
            columns["votes"] = self.votes[order]
        if len(set(self.components[order].tolist())) > 1:
            columns["component"] = self.components[order]
        logits = {"coef": self.coefs, "coef_lower": self.lower, "coef_upper": self.upper}
        frame: pd.DataFrame = pd.DataFrame(columns | {name: values[order] for name, values in logits.items()})
        return frame


class Named(NamedTuple):
    """A leaderboard with the group that it belongs to."""

    by: str
    """The column, or nothing for all rows."""
    group: str
    """The value there, or `all`."""
    size: int
    """Votes or prompts."""
    board: Leaderboard

    @property
    def title(self) -> str:
        """As it heads a table: a prompt in quotes."""
        if self.by == "prompt":
            return f'"{self.group}"'
        return f"{self.by} = {self.group}" if self.by else self.group


def several(names: Sequence[str], most: int) -> str:
    """Return the first `most` names and the number of the others."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


# How leaderboards show themselves in Python: `repr`, `_repr_html_` and `plot` of `Leaderboard`, `Prediction` and `P2L`
# come here with the win rates that they have.

SHOWN_ROWS = 10
"""Models of a `repr`, and of HTML; prompts of one of several."""
_BEST_MODELS = 3
_PLOTTED_MODELS = 30
_BAR_PIXELS = 160
_MEANING = "chance of beating another model drawn at random"


@dataclass(frozen=True)
class Rates:
    """The win rates of M models, best first, under a title; ends of intervals are NaN where there are none."""

    title: str
    models: Sequence[str]
    rates: Floats
    lower: Floats
    upper: Floats
    level: float = 0.95
    """Coverage of the intervals."""
    note: str = ""
    """A sentence that a reader of the board needs."""

    @classmethod
    def of(
        cls,
        title: str,
        models: Sequence[str],
        rates: npt.ArrayLike,
        limits: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        level: float = 0.95,
        note: str = "",
    ) -> Rates:
        """Sort the models by their rates."""
        values = np.asarray(rates, dtype=np.float64)
        order = np.argsort(-values, kind="stable")
        none = np.full(len(values), math.nan)
        lower, upper = (none, none) if limits is None else (np.asarray(end, dtype=np.float64) for end in limits)
        return cls(title, [models[place] for place in order], values[order], lower[order], upper[order], level, note)

    def text(self) -> str:
        """Return the title, the note and the first models as a table."""
        head = ["rank", "model", "beats the field", *([self._interval] if self._has_limits else [])]
        rows = [
            [str(rank), model, f"{rate:.1%}", *([f"{low:.1%} to {high:.1%}"] if self._has_limits else [])]
            for rank, (model, rate, low, high) in enumerate(self._rows(SHOWN_ROWS), 1)
        ]
        heading = [self.title, *([self.note] if self.note else [])]
        return "\n".join([*heading, *text_table(head, rows, left={1}), *_more(len(rows), len(self.models))])

    def html(self) -> str:
        """Return the same as HTML with bars, for a notebook."""
        rows = [
            [str(rank), model, _bar(rate, low, high), f"{rate:.1%}"]
            for rank, (model, rate, low, high) in enumerate(self._rows(SHOWN_ROWS), 1)
        ]
        line = f"; the line is the {self._interval}" if self._has_limits else ""
        notes = [*_more(len(rows), len(self.models)), f"The bar is the {_MEANING}, a tie counting half{line}."]
        return _html(self.title, ["", "model", "beats the field", ""], rows, notes, self.note)

    def figure(self) -> Figure:
        """Return the win rates with their intervals as a figure, at most thirty models."""
        from p2l.common.report.charts import percent
        from p2l.common.report.images import draw
        from p2l.common.report.reports import Figure as ReportFigure
        from p2l.common.report.reports import Forest, ForestRow

        rows = [ForestRow(model, low, rate, high) for model, rate, low, high in self._rows(_PLOTTED_MODELS)]
        unit = f"{_MEANING}, with {self._interval}" if self._has_limits else _MEANING
        forest = Forest(rows, "Model", unit, lambda share: percent(share, 0), zero=0.5)
        return draw(ReportFigure(forest, self.title, note=self.note), width=7.0)

    @property
    def _interval(self) -> str:
        return f"{self.level:.0%} interval"

    @property
    def _has_limits(self) -> bool:
        return bool(np.isfinite(self.lower).any())

    def _rows(self, most: int) -> list[tuple[str, float, float, float]]:
        columns = (self.models, self.rates.tolist(), self.lower.tolist(), self.upper.tolist())
        return list(zip(*(column[:most] for column in columns), strict=True))


def best_text(title: str, boards: Sequence[Rates], count: int, note: str = "") -> str:
    """Return the best models of the first of `count` prompts, a row for each, under the title and the note."""
    head, rows = _best(boards)
    heading = [title, *([note] if note else [])]
    return "\n".join([*heading, *text_table(head, rows, left=range(1, len(head))), *_more(len(boards), count)])


def best_html(title: str, boards: Sequence[Rates], count: int, note: str = "") -> str:
    """Return the same as HTML, for a notebook."""
    notes = [*_more(len(boards), count), f"Percentages are the {_MEANING}, a tie counting half."]
    return _html(title, *_best(boards), notes, note)


def _best(boards: Sequence[Rates]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the best models of prompts."""
    rows = [
        [str(row), *(f"{model} {rate:.1%}" for model, rate, _, _ in board._rows(_BEST_MODELS))]
        for row, board in enumerate(boards)
    ]
    return ["row", "best", "second", "third"][: max(map(len, rows), default=1)], rows


def _more(shown: int, count: int) -> list[str]:
    return [f"... and {count - shown} more"] if count > shown else []


def _html(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str], first: str = "") -> str:
    """Return a table of texts below a title and a `first` note; notebooks have no style sheet of ours."""
    from markupsafe import Markup

    cell = "<{0} style='text-align:left'>{{}}</{0}>"
    forms = [Markup(cell.format("th")), *([Markup(cell.format("td"))] * len(rows))]
    lines = [Markup("").join(map(form.format, row)) for form, row in zip(forms, [head, *rows], strict=True)]
    body = [Markup("<tr>{}</tr>").format(line) for line in lines]
    paragraphs = Markup("").join(Markup("<p>{}</p>").format(note) for note in notes)
    above = Markup("<p>{}</p>").format(first) if first else ""
    return Markup("<p><b>{}</b></p>{}<table>{}</table>{}").format(title, above, Markup("").join(body), paragraphs)


def _bar(rate: float, lower: float, upper: float) -> str:
    """Return the picture of a win rate, with the interval if there is one."""
    from markupsafe import Markup

    line = ""
    if math.isfinite(lower):
        ends = f"x1='{_BAR_PIXELS * lower:.1f}' x2='{_BAR_PIXELS * upper:.1f}'"
        line = f"<line {ends} y1='7' y2='7' stroke='#0b5c96' stroke-width='2'/>"
    bar = f"<rect width='{_BAR_PIXELS * rate:.1f}' y='2' height='10' fill='#b9d3e8'/>"
    return Markup(f"<svg width='{_BAR_PIXELS}' height='14'>{bar}{line}</svg>")
