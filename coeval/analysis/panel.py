"""Judges: how sharp they are, how noisy, what length is worth to them, which errors they share, and their tastes.

Steps 1 and 2 of the fit of students, judges and items, whose model is at the head of `coeval.analysis.fit`:

1. lambda. gamma_j, the slope of a judge's scores on length within student and item, is l_j beta + lambda_j, where beta
   is what length is worth. Most judges are taken not to favour length for its own sake: beta is the median of
   gamma_j / l_j, weighted by what judges can tell.
2. l and sigma. Within an item two judges' scores covary by l_j l_k: the loadings of one factor (minres), which a judge
   that says the same of all, or anything, does not have.

Errors need not be independent. On the scores about their means within items, a judge's error is

    e_rj = delta_js + epsilon_rj,   delta ~ (0, T),   epsilon_r ~ (0, N)

with the taste delta of a judge for a student, which no number of items averages out, and noise epsilon; T and N are
matrices of judges, since near copies share both. A student's score rests on weights that are optimal for its mean over
n items, proportional to (T + N / n)^-1 l: where tastes dominate all judges count alike, and copies count once.

* N: two judges share an error where they correlate more than each, by its correlations with the others, has quality in
  common with all (tetrads). What all judges share cannot be told from quality without labels of people.
* T: the spread of each judge's mean scores of students about sharpness times quality, less what the choice of items
  explains; judges share tastes as they share errors.

The effective number of judges is that of independent ones whose mean has the variance of error of this panel's mean.

Shapes: R answers, J judges, S students, D items, T tasks, C clusters, G groups of clusters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from coeval.analysis.statistics import Codes, Component, Floats
from coeval.analysis.units import LoadedRun, Votes, factor_weights, once, verdict_votes

Mask = npt.NDArray[np.bool_]
# Observations that say that judges are equally reliable: with one judge or two it cannot be told which is sharper.
PRIOR = 5.0
LEAST_NOISE = 0.05  # as a share of a judge's variance within items: none is so sure that the others do not count
_MINRES_STEPS = 200
_LEAST_LOADING = 1e-6
_LEAST_SEEN = 0.04  # share of a judge's variance within items that is quality, of one that tells answers apart
_MAX_RELIABILITY = 0.98  # correlation with quality
_PRODUCTS_IN_MEMORY = 2_000_000
# Below this a surplus of correlation is not told from chance or from a factor that is not quite one.
_LEAST_SHARED = 0.15
_SHARED_ERRORS_FROM_CHANCE = 4.0  # standard errors of a correlation that a surplus has to exceed
_ROUNDS = 20
_LEAST_EIGENVALUE = 0.02  # of correlations of errors: two judges are never one
_MAX_SHARED = 0.98


@dataclass(frozen=True)
class ScoreTable:
    """Every judge's score of every answer, its mean over factors."""

    student: Codes  # (R,)
    item: Codes  # (R,), from 0 to D - 1
    task: Codes  # (R,)
    scores: Floats  # (R, J), NaN where there is none
    own: Mask  # (R, J): the judge gave the answer itself
    wrote: Mask  # (R,): the student wrote the item itself
    length: Floats  # (R,): logarithm of tokens, about its mean; all 0 where lengths are not known
    cluster: Codes  # (D,): items of one prompt
    items: Codes  # (D,): places of the items in the run
    students: int
    tasks: int

    @property
    def judges(self) -> int:
        """Number of judges."""
        return int(self.scores.shape[1])

    def where(self, rows: Mask) -> ScoreTable:
        """Return the answers that a mask chooses, items numbered anew."""
        items, item = np.unique(self.item[rows], return_inverse=True)
        return replace(
            self,
            **{name: getattr(self, name)[rows] for name in ("student", "task", "scores", "own", "wrote", "length")},
            item=item,
            cluster=np.unique(self.cluster[items], return_inverse=True)[1],
            items=self.items[items],
        )


@once
def score_table(loaded: LoadedRun) -> ScoreTable:
    """Return the scores of a run, without answers that no judge scored."""
    pairs = loaded.pairs
    responses, row = np.unique(pairs.response, return_inverse=True)
    first = np.zeros(len(responses), dtype=np.int64)
    first[row[::-1]] = np.arange(len(row))[::-1]
    weights = factor_weights(loaded)[pairs.task, pairs.factor]
    scores = np.full((len(responses), len(loaded.judges)), np.nan)
    for judge in range(len(loaded.judges)):
        given = ~np.isnan(pairs.scores[:, judge])
        total = np.bincount(row[given], weights[given], minlength=len(responses))
        sums = np.bincount(row[given], weights[given] * pairs.scores[given, judge], minlength=len(responses))
        np.divide(sums, total, out=scores[:, judge], where=total > 0)
    items, item = np.unique(pairs.datapoint[first], return_inverse=True)
    student = pairs.student[first]
    # log2 of tokens about its mean, 0 where they are not known.
    tokens = loaded.tokens[responses]
    is_known = np.isfinite(tokens) & (tokens > 0)
    length = np.zeros(len(tokens))
    if is_known.any():
        logs = np.log2(np.where(is_known, tokens, 1.0))
        length = np.where(is_known, logs - logs[is_known].mean(), 0.0)
    return ScoreTable(
        student=student,
        item=item,
        task=pairs.task[first],
        scores=scores,
        own=student[:, None] == loaded.student_codes("judge"),
        wrote=np.asarray(loaded.student_codes("teacher")[loaded.datapoint_teacher[pairs.datapoint[first]]] == student),
        length=length,
        cluster=np.unique(loaded.clusters[items], return_inverse=True)[1],
        items=items,
        students=len(loaded.students),
        tasks=len(loaded.tasks),
    )


# Judges: how sharp they are, how noisy, and what length is worth to them.


# Scores of the two answers of a verdict, by its winner (`WINNERS`): 1 for the better, half for each of a tie.
_SCORES_OF_WINNER = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.5, 0.5]])


@once
def verdict_table(loaded: LoadedRun) -> ScoreTable:
    """Return the verdicts on pairs as scores: what was compared is an item of its own, with two answers."""
    votes, students = verdict_votes(loaded), len(loaded.students)
    # A key has its students by name, which their codes follow.
    first, second = np.minimum(votes.model_a, votes.model_b), np.maximum(votes.model_a, votes.model_b)
    keys, place = np.unique((votes.datapoint * students + first) * students + second, return_inverse=True)
    given = _SCORES_OF_WINNER[votes.winner]
    is_single = np.array([len(verdict.verdicts) == 1 for verdict in loaded.verdicts], dtype=bool)
    position = _position_effects(votes.where(is_single), students, len(loaded.judges))
    given[is_single] += np.outer(position[votes.judge[is_single]], [-0.5, 0.5])
    is_turned = votes.model_a != first
    given[is_turned] = given[is_turned, ::-1]
    scores = np.full((2 * len(keys), len(loaded.judges)), np.nan)
    for answer in (0, 1):
        scores[2 * place + answer, votes.judge] = given[:, answer]
    task = np.zeros(len(keys), dtype=np.int64)
    task[place] = votes.task
    items, pair = np.divmod(keys, students**2)
    student = np.stack(np.divmod(pair, students), axis=1).ravel()
    teacher = np.repeat(loaded.student_codes("teacher")[loaded.datapoint_teacher[items]], 2)
    return ScoreTable(
        student=student,
        item=np.repeat(np.arange(len(keys)), 2),
        task=np.repeat(task, 2),
        scores=scores,
        own=np.repeat(_judges_itself(student.reshape(-1, 2), loaded), 2, axis=0),
        wrote=np.asarray(teacher == student),
        length=np.zeros(2 * len(keys)),
        cluster=np.unique(loaded.clusters[items], return_inverse=True)[1],
        items=items,
        students=students,
        tasks=len(loaded.tasks),
    )


def _position_effects(votes: Votes, students: int, judges: int) -> Floats:
    """Return by how much each judge prefers the answer that it sees first, (J,), as a difference of two scores.

    By least squares beside students' qualities, of verdicts that were asked for in one order, model_a's answer first:
    since that order is drawn, it can be told from quality. In both orders the effect cancels.
    """
    if not len(votes):
        return np.zeros(judges)
    lead = _SCORES_OF_WINNER[votes.winner] @ [1.0, -1.0]
    design = np.zeros((len(votes), students + judges))
    rows = np.arange(len(votes))
    design[rows, votes.model_a] += 1.0
    design[rows, votes.model_b] -= 1.0
    design[rows, students + votes.judge] = 1.0
    solved = np.linalg.pinv(design.T @ design, rcond=1e-9, hermitian=True) @ (design.T @ lead)
    return np.asarray(solved[students:])


def _judges_itself(pairs: Codes, loaded: LoadedRun) -> Mask:
    """Return whether each judge is one of the two, (N, J), of pairs of students (N, 2)."""
    mask: Mask = (pairs[:, :, None] == loaded.student_codes("judge")).any(axis=1)
    return mask


NO_TASTE = Component(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class JudgeFit:
    """Estimates of judges, each (J,) unless another shape is given."""

    sharpness: Floats  # l: score for one standard deviation of quality within items
    noise: Floats  # sigma^2
    reliability: Floats  # correlation of its scores with quality within items, in [0, 1]
    slope: Floats  # gamma: score for a doubling of length, within student and item
    slope_influence: Floats  # (C, J): what each cluster adds to it
    beta: float  # quality of a doubling of length, by the median of judges
    counting: Floats  # the noise that gives a judge its weight: sigma^2, until shared errors and tastes are known
    shared: Floats  # (J, J): correlation of scores within items that is not quality
    errors: Floats  # (J, J): correlation of errors
    taste: Component = NO_TASTE  # of a judge for a student, as a share of the variance of its scores within items

    @property
    def information(self) -> Floats:
        """Weight of one score on quality by what it adds to the panel, (J,)."""
        safe = np.where(self.counting > 0, self.counting, 1.0)
        return np.where(self.counting > 0, self.sharpness**2 / safe, 0.0)

    @property
    def sees(self) -> Mask:
        """Return which judges tell answers apart, (J,): some luck with quality is in any scores."""
        return (self.information > 0) & (self.sharpness**2 > _LEAST_SEEN * self.sd**2)

    @property
    def evidence(self) -> Floats:
        """Weight of a score in the estimate of quality, l / sigma^2 for errors that are independent."""
        safe = np.where(self.counting > 0, self.counting, 1.0)
        return np.where(self.counting > 0, self.sharpness / safe, 0.0)

    @property
    def sd(self) -> Floats:
        """Standard deviation of a judge's scores within items, (J,)."""
        return np.asarray(np.sqrt(self.sharpness**2 + self.noise))

    @property
    def excess(self) -> Floats:
        """lambda: score for a doubling of length, beyond what that is worth."""
        return self.slope - self.sharpness * self.beta


@dataclass(frozen=True)
class _Products:
    """Products of judges' scores about their means within items, (D, J, J), with their expectation in variances."""

    cross: Floats
    count: Floats

    def covariance(self) -> Floats:
        """Return the covariances within items, (J, J), NaN where two judges share nothing."""
        cross, count = self.cross.sum(axis=0), self.count.sum(axis=0)
        return np.where(count > 1e-9, cross / np.where(count > 1e-9, count, 1.0), np.nan)


def item_products(table: ScoreTable, scores: Floats, counts: Mask) -> _Products:
    """Return the products of scores (R, J) that count, by item.

    Judges who scored other answers of an item have other means there: the expectation of a product is the covariance
    times n_jk (1 - 1/n_j - 1/n_k + n_jk / (n_j n_k)), for n_jk answers that both scored.
    """
    items, judges = len(table.items), scores.shape[1]
    centred = np.zeros(scores.shape)
    for judge in range(judges):
        mine = counts[:, judge]
        centred[mine, judge] = about_means(scores[mine, judge], table.item[mine], items)
    order = np.argsort(table.item, kind="stable")
    starts = np.searchsorted(table.item[order], np.arange(items))
    cross, shared = np.zeros((items, judges, judges)), np.zeros((items, judges, judges))
    step = max(1, _PRODUCTS_IN_MEMORY // max(1, judges**2) // max(1, len(order) // max(1, items)))
    for first in range(0, items, step):
        last = min(first + step, items)
        rows = order[starts[first] : starts[last] if last < items else len(order)]
        places = starts[first:last] - starts[first]
        values, mask = centred[rows], counts[rows].astype(np.float64)
        cross[first:last] = np.add.reduceat(values[:, :, None] * values[:, None, :], places)
        shared[first:last] = np.add.reduceat(mask[:, :, None] * mask[:, None, :], places)
    n = np.maximum(np.einsum("djj->dj", shared), 1.0)
    n_j, n_k = n[:, :, None], n[:, None, :]
    return _Products(cross, shared * (1.0 - 1.0 / n_j - 1.0 / n_k + shared / (n_j * n_k)))


def about_means(values: Floats, groups: Codes, size: int) -> Floats:
    """Subtract from values (N,) the mean of their group (N,)."""
    counts = np.maximum(np.bincount(groups, minlength=size), 1)
    rest: Floats = values - (np.bincount(groups, values, minlength=size) / counts)[groups]
    return rest


def two_way(values: Floats, item: Codes, student: Codes, sizes: tuple[int, int]) -> Floats:
    """Return values (N,) less the effects of their items and students, by least squares."""
    rest = about_means(values, item, sizes[0])
    for _ in range(50):
        before = rest
        rest = about_means(about_means(rest, student, sizes[1]), item, sizes[0])
        if np.abs(rest - before).max(initial=0.0) < 1e-10:
            break
    return rest


def _length_slopes(table: ScoreTable, counts: Mask) -> tuple[Floats, Floats]:
    """Return each judge's slope on length within student and item (J,), and what each cluster adds to it (C, J)."""
    clusters = int(table.cluster.max(initial=-1)) + 1
    slopes, influence = np.zeros(table.judges), np.zeros((clusters, table.judges))
    sizes = (len(table.items), table.students)
    for judge in range(table.judges):
        rows = counts[:, judge]
        item, student = table.item[rows], table.student[rows]
        x = two_way(table.length[rows], item, student, sizes)
        square = float((x**2).sum())
        if square < 1e-9 * max(1, len(x)):
            continue
        y = two_way(table.scores[rows, judge], item, student, sizes)
        slopes[judge] = float((x * y).sum()) / square
        scores = x * (y - slopes[judge] * x) / square
        influence[:, judge] = np.bincount(table.cluster[item], scores, minlength=clusters)
    return slopes, influence


def loadings(correlation: Floats, count: Floats) -> Floats:
    """Return the correlation of each judge with the one quality that all see, (..., J), of matrices (..., J, J).

    Minimises sum n_jk (rho_jk - r_j r_k)^2 over pairs, with a prior worth five observations that all are alike; a
    judge who disagrees with the others has 0.
    """
    judges = correlation.shape[-1]
    weight = np.where(np.isnan(correlation), 0.0, count) * (1.0 - np.eye(judges))
    rho = np.where(weight > 0, correlation, 0.0)
    total = weight.sum(axis=(-1, -2))
    mean = (weight * rho).sum(axis=(-1, -2)) / np.where(total > 0, total, 1.0)
    alike = np.sqrt(np.clip(np.where(total > 0, mean, 0.5), 0.01, _MAX_RELIABILITY**2))[..., None]
    r: Floats = np.broadcast_to(alike, correlation.shape[:-1]).copy()
    for _ in range(_MINRES_STEPS):
        above = np.einsum("...jk,...k->...j", weight * rho, r) + PRIOR * alike
        below = np.einsum("...jk,...k->...j", weight, r**2) + PRIOR
        new = 0.5 * (r + np.clip(above / below, 0.0, _MAX_RELIABILITY))
        done = np.abs(new - r).max(initial=0.0) < 1e-9
        r = new
        if done:
            break
    return r * (r > _LEAST_LOADING)  # steps halve what goes to 0


def fit_judges(table: ScoreTable, counts: Mask, *, within_students: bool = False) -> JudgeFit:
    """Estimate the judges from the scores that count (steps 1 and 2), or from those about each judge's of a student."""
    slope, influence = _length_slopes(table, counts)
    rest = table.scores - table.length[:, None] * slope
    if within_students:
        rest = within_students_of(table, rest, counts)
    products = item_products(table, rest, counts)
    covariance = products.covariance()
    variance = np.nan_to_num(np.maximum(np.diagonal(covariance), 0.0))
    variance = np.where(variance < 1e-9, 0.0, variance)
    sd = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    scale = sd[:, None] * sd
    with np.errstate(invalid="ignore", divide="ignore"):  # a judge that does not vary has no correlation
        correlation = np.where(scale > 1e-9, np.clip(covariance / scale, -1.0, 1.0), np.nan)
    count = products.count.sum(axis=0)
    shared = shared_errors(correlation, count)
    reliability = loadings(correlation - shared, count) * (variance > 0)
    sharpness, noise = reliability * np.sqrt(variance), variance * np.maximum(1.0 - reliability**2, LEAST_NOISE)
    judges = JudgeFit(
        sharpness=sharpness,
        noise=noise,
        reliability=reliability,
        slope=slope,
        slope_influence=influence,
        beta=0.0,
        counting=noise,
        shared=shared,
        errors=error_correlation(shared, reliability),
    )
    return replace(judges, beta=length_worth(judges))


def within_students_of(table: ScoreTable, scores: Floats, counts: Mask) -> Floats:
    """Return scores (R, J) that count less each judge's effects of items and students."""
    rest: Floats = scores.copy()
    for judge in range(table.judges):
        rows = counts[:, judge]
        sizes = (len(table.items), table.students)
        rest[rows, judge] = two_way(rest[rows, judge], table.item[rows], table.student[rows], sizes)
    return rest


def weighed_panel(judges: JudgeFit, means: Floats, sampling: Floats, items: float) -> JudgeFit:
    """Return the judges, counting as their shared errors and tastes allow.

    `means` (J, S) are mean scores of students on the average item, `sampling` their variances by the choice of items,
    `items` the usual number of items behind one.
    """
    taste = estimated_taste(means, sampling, judges.sharpness, judges.sd)
    weights = panel_weights(judges.sharpness, judges.noise, judges.sd, judges.errors, taste, items)
    chosen = weights > 0
    if not chosen.any():
        return judges
    noise = np.sqrt(judges.noise[chosen])
    covariance = judges.errors[np.ix_(chosen, chosen)] * np.outer(noise, noise)
    sharpness = judges.sharpness[chosen]
    # All together tell as much of one answer as their scores do, whatever their tastes for students.
    told = float(sharpness @ np.linalg.solve(covariance, sharpness))
    weights = weights * told / float(weights @ judges.sharpness)
    counting = np.where(chosen, judges.sharpness / np.where(chosen, weights, 1.0), 0.0)
    return replace(judges, counting=counting, taste=taste)


def length_worth(judges: JudgeFit) -> float:
    """Return beta by the median of judges."""
    weights = judges.information
    safe = np.where(judges.sharpness > 0, judges.sharpness, 1.0)
    values = judges.slope / safe
    # The weighted median, between two that share it: most judges are taken not to favour length for its own sake.
    chosen = np.where(judges.sharpness > 0, weights, 0.0) > 0
    if not chosen.any():
        return 0.0
    order = np.argsort(values[chosen], kind="stable")
    values, weights = values[chosen][order], weights[chosen][order]
    places = (np.cumsum(weights) - 0.5 * weights) / weights.sum()
    return float(np.interp(0.5, places, values))


# Errors and tastes in common.


def shared_errors(correlation: Floats, count: Floats) -> Floats:
    """Return by how much each two judges correlate beyond the quality that they see, (..., J, J), 0 on the diagonal.

    `correlation` is of scores within items, NaN where two judges share too few, `count` their number. Fewer than four
    judges who correlate with any cannot tell an error in common from quality: 0.
    """
    judges = correlation.shape[-1]
    none = np.zeros(correlation.shape)
    if judges < 4:
        return none
    rho = np.nan_to_num(correlation)
    is_other = ~np.eye(judges, dtype=bool)
    sees = np.where(is_other, rho, 0.0).max(axis=-1) > _LEAST_SHARED
    # What one who sees no quality has in common with others is chance, and tells nothing of theirs.
    rho = np.where(sees[..., :, None] & sees[..., None, :], rho, 0.0)
    can_tell = (sees.sum(axis=-1) >= 4)[..., None, None]
    least = np.maximum(_LEAST_SHARED, _SHARED_ERRORS_FROM_CHANCE / np.sqrt(np.maximum(count, 1.0)))
    shared, misfit = _surplus(rho, count, least, none)
    if judges < 5:
        return np.where(can_tell, shared, none)
    # From the other end: judges see no more quality than the least that they share with others, but for one who may be
    # blunt. Three copies of five are either that, or sharp beside two that share an error; the data may fit both, and
    # the cautious reading is the first.
    counted = is_other & sees[..., None, :]
    low = np.sort(np.where(counted, rho, np.inf), axis=-1)[..., 1]
    apart = np.maximum(rho - np.maximum(low[..., :, None], low[..., None, :]), 0.0) * is_other
    cautious, cautious_misfit = _surplus(rho, count, least, apart)
    fits = cautious_misfit <= misfit + np.log(np.maximum(count.max(axis=(-1, -2)), 2.0))
    result: Floats = np.where(can_tell, np.where(fits[..., None, None], cautious, shared), none)
    return result


def _surplus(rho: Floats, count: Floats, least: Floats, start: Floats) -> tuple[Floats, Floats]:
    """Return the surplus of correlations at which iterations from a start end, and its misfit."""
    judges = rho.shape[-1]
    others = 1.0 - np.eye(judges)
    shared = start
    for _ in range(_ROUNDS):
        # A judge against all others sees no quality with them, and must not make theirs look small.
        quality = _quality_in_common(np.maximum(rho - shared, 0.0) * others)
        surplus = np.where(count > 1, rho - quality, 0.0) * others
        shared = 0.5 * (shared + np.where(surplus > least, np.minimum(surplus, _MAX_SHARED), 0.0))
    shared = np.where(shared > 0.5 * least, shared, 0.0)
    quality = _quality_in_common(np.maximum(rho - shared, 0.0) * others)
    rest = (rho - quality - shared) * others * (count > 1)
    misfit = 0.5 * (count * rest**2).sum(axis=(-1, -2))
    # Where most pairs share errors there is nothing left by which to know quality.
    seeing = (np.where(others > 0, rho, 0.0).max(axis=-1) > _LEAST_SHARED).sum(axis=-1)
    most = (shared > 0).sum(axis=(-1, -2)) > seeing * (seeing - 1) / 2.0
    return shared, np.where(most, np.inf, misfit)


def _quality_in_common(rho: Floats) -> Floats:
    """Return the correlation that two judges have by quality alone, each by its correlations with all but the other.

    With one factor r_j^2 = sum rho_ja rho_jb / sum rho_ab over pairs of others.
    """
    judges = rho.shape[-1]
    by_pair = np.zeros(rho.shape)
    for other in range(judges):
        kept = np.arange(judges) != other
        part = rho[..., kept, :][..., :, kept]  # zero on the diagonal
        row = part.sum(axis=-1)
        above = row**2 - (part**2).sum(axis=-1)  # over ordered pairs of two others
        below = part.sum(axis=(-1, -2))[..., None] - 2.0 * row
        square = np.clip(above / np.where(below > 1e-3, below, np.inf), 0.0, 1.0)
        by_pair[..., kept, other] = np.sqrt(square)
    result: Floats = by_pair * np.swapaxes(by_pair, -1, -2)
    return result


def error_correlation(shared: Floats, reliability: Floats) -> Floats:
    """Return the correlations of judges' errors (..., J, J), by what they share of their scores' variance."""
    free = np.sqrt(np.maximum(1.0 - reliability**2, 1.0 - _MAX_SHARED**2))
    raw = np.clip(shared / (free[..., :, None] * free[..., None, :]), 0.0, _MAX_SHARED)
    raw = raw + np.eye(shared.shape[-1])
    values, vectors = np.linalg.eigh(raw)
    fixed = (vectors * np.maximum(values, _LEAST_EIGENVALUE)[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    scale = np.sqrt(np.einsum("...jj->...j", fixed))
    result: Floats = fixed / (scale[..., :, None] * scale[..., None, :])
    return result


def estimated_taste(means: Floats, sampling: Floats, sharpness: Floats, sd: Floats) -> Component:
    """Estimate tastes from judges' mean scores of students (J, S), NaN where there are none.

    `sampling` is the variance of each mean by the choice of items; `sharpness` and `sd` (J,) are those of the judges.
    """
    informative = (sharpness > 0) & (sd > 0)
    used = np.isfinite(means) & informative[:, None]
    # Students of one judge, and judges of one student, tell nothing of tastes.
    used &= (used.sum(axis=1) > 1)[:, None] & (used.sum(axis=0) > 1)
    judges, students = used.any(axis=1), used.any(axis=0)
    freedom = float(used.sum() - judges.sum() - students.sum() + 1)
    if not used.any() or freedom < 1:
        return NO_TASTE
    safe = np.where(sd > 0, sd, 1.0)
    slope = np.where(used, (sharpness / safe)[:, None], 0.0)
    z = np.where(used, means / safe[:, None], 0.0)
    severity, theta = np.zeros(len(means)), np.zeros(means.shape[1])
    for _ in range(100):
        theta = (slope * (z - used * severity[:, None])).sum(axis=0) / np.maximum((slope**2).sum(axis=0), 1e-12)
        theta = np.where(students, theta - theta[students].mean(), 0.0)
        severity = (used * (z - slope * theta)).sum(axis=1) / np.maximum(used.sum(axis=1), 1)
    rest = np.where(used, z - severity[:, None] - slope * theta, 0.0)
    chance = np.where(used, sampling / safe[:, None] ** 2, 0.0).sum() * freedom / used.sum()
    return Component(square=float((rest**2).sum()) / freedom, chance=float(chance) / freedom, freedom=freedom)


def panel_weights(
    sharpness: Floats, noise: Floats, sd: Floats, errors: Floats, taste: Component, items: float
) -> Floats:
    """Return the weights of judges' scores (J,), proportional to (T + N / n)^-1 l and none of them below 0.

    `errors` is the correlation of their errors (J, J), `items` the number n of items behind a student's mean.
    """
    chosen = np.flatnonzero((sharpness > 0) & (noise > 0))
    weights = np.zeros(len(sharpness))
    while len(chosen):
        spread = np.sqrt(taste.variance * sd[chosen] ** 2 + noise[chosen] / max(items, 1.0))
        covariance = errors[np.ix_(chosen, chosen)] * np.outer(spread, spread)
        solved = np.linalg.solve(covariance, sharpness[chosen])
        if (solved >= 0).all():
            weights[chosen] = solved
            break
        chosen = chosen[solved > 0]  # a judge that would count against its own scores counts for nothing
    return weights


def effective_number(errors: Floats, noise: Floats) -> Floats:
    """Return the number of independent judges that a panel's plain mean is worth, (...), by its errors (..., J, J)."""
    sd = np.sqrt(np.maximum(noise, 1e-12))
    covariance = errors * sd[..., :, None] * sd[..., None, :]
    judges = errors.shape[-1]
    total = covariance.sum(axis=(-1, -2))
    result: Floats = judges * (sd**2).sum(axis=-1) / np.maximum(total, 1e-300)
    return np.asarray(np.clip(result, 1.0, judges))


def taste_exposure(table: ScoreTable, counts: Mask, judges: JudgeFit) -> Floats:
    """Return the variance of each student's quality (S,) where tastes have variance 1, as each judge counts for it."""
    answers = np.stack([np.bincount(table.student, column, minlength=table.students) for column in counts.T], axis=1)
    weights = answers * judges.evidence
    total = weights @ judges.sharpness
    weights = np.divide(weights, total[:, None], out=np.zeros(weights.shape), where=total[:, None] > 0)
    covariance = judges.errors * np.outer(judges.sd, judges.sd)
    variance: Floats = np.einsum("sj,jk,sk->s", weights, covariance, weights)
    return variance
