"""Outcome models: how likely each outcome of a vote is, given the coefficients of the two models.

The only place where their formulas live. Training, metrics, aggregation and routing all call it, with NumPy arrays or
torch tensors, through one text. With d = coef_a - coef_b, a = exp(coef_a), b = exp(coef_b):

    bt, bt-tie       P(win) = sigmoid(d); under bt-tie a tie counts as half a win and half a loss, under bt not at all
    rk               h = max(10 log(1 + exp((eta - 22.5) / 10)), 0.02); P(win) = sigmoid(d - h),
                     P(loss) = sigmoid(-d - h), P(tie) = (e^2h - 1) P(win) P(loss)
    grk, ba          D_a = a + t b + g, D_b = b + t a + g, D_0 = a + b + g; P(win) = a / D_a, P(loss) = b / D_b,
                     P(bothbad) = g / D_0, P(tie) = a b (t - 1) (D_a + D_b) / (D_a D_b D_0),
                     with t = exp(eta) + 1.000001 and g = 1 (grk), or t = exp(eta) + 1.02 and g = exp(gamma) (ba)
    rk-reparam       as grk, but its tie takes the mass of bothbad too

`log_probs` works in log space by differences: every term is a log-sum-exp, nothing is subtracted from one, nothing is
clamped. Terms are arranged so that automatic differentiation adds parts of one sign, except where the gradient itself
changes sign: against 320-digit arithmetic, float32 gradients of coefficients up to 50 have a relative error below 1e-6
down to the smallest normal number. (The tie of rk-reparam alone keeps an absolute noise of 1e-16.) `probs` has the same
values from plain products of exp(coef), which for NumPy is more than twenty times as fast.

Shapes: B prompts or votes, M models, N votes, K outcomes; (...) any shape that broadcasts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.common.cli import nearest
from p2l.common.errors import ConfigError

# One text serves NumPy arrays and torch tensors: the namespace `xp` is the module itself (`numpy` or `torch`), used
# only through functions with the same positional arguments in both. torch is never imported here: a tensor cannot
# exist unless somebody else has imported it.

Array: TypeAlias = Any  # numpy.ndarray or torch.Tensor, of any shape


def prepare(*values: Any) -> tuple[Any, list[Any]]:
    """Return the namespace of `values` and the values as its floating arrays (None stays None).

    Half precisions become float32, integers and lists float64. With one torch tensor among the values, the others
    become tensors on its device.
    """
    torch = sys.modules.get("torch")
    tensors = [value for value in values if torch is not None and isinstance(value, torch.Tensor)]
    if not tensors:
        return np, [None if value is None else _numpy_float(value) for value in values]
    device = tensors[0].device
    return torch, [None if value is None else _torch_float(torch, value, device) for value in values]


def _numpy_float(value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    if array.dtype in (np.float32, np.float64):
        return array
    return array.astype(np.float32 if array.dtype == np.float16 else np.float64)


def _torch_float(torch: Any, value: Any, device: Any) -> Any:
    # A Python number has no width of its own: as float32 it never widens the tensors beside it.
    tensor = torch.as_tensor(value, device=device)
    if tensor.dtype in (torch.float32, torch.float64) and not isinstance(value, float):
        return tensor
    return tensor.to(torch.float32)


def widen(torch: Any, tensors: list[Any]) -> tuple[list[Any], Any]:
    """Return the tensors in float64, and the type that they had together.

    Where parts of a gradient cancel, float32 leaves noise or zero, though it could hold the sum. These are a few
    numbers per vote, so the width costs nothing even on GPUs with slow float64. Devices other than CPUs and CUDA may
    lack float64; there tensors keep their own width.
    """
    present = [tensor for tensor in tensors if tensor is not None]
    dtype = torch.float64 if any(tensor.dtype == torch.float64 for tensor in present) else torch.float32
    if present[0].device.type not in ("cpu", "cuda"):
        return tensors, dtype
    return [None if tensor is None else tensor.double() for tensor in tensors], dtype


def logaddexp(xp: Any, x: Array, y: Array | float) -> Array:
    """Return log(e^x + e^y); `y` may be a number."""
    return xp.logaddexp(x, xp.full_like(x, y) if isinstance(y, float) else y)


def softplus(xp: Any, x: Array) -> Array:
    """Return log(1 + e^x) with a gradient that stays accurate where it is tiny (torch's own is linear above 20)."""
    return xp.logaddexp(x, xp.zeros_like(x))


def log_sigmoid(xp: Any, x: Array) -> Array:
    """Return log(1 / (1 + e^-x))."""
    return -softplus(xp, -x)


def log_two_cosh(xp: Any, x: Array) -> Array:
    """Return log(e^x + e^-x) with its derivative tanh(x) to full relative accuracy.

    logaddexp(x, -x) would differentiate to a difference of two sigmoids, which rounds to zero for small x.
    """
    near = xp.sinh(0.5 * xp.clip(x, -1.0, 1.0))
    size = xp.abs(x)
    return xp.where(size < 1.0, xp.log1p(2.0 * near * near) + math.log(2.0), size + xp.log1p(xp.exp(-2.0 * size)))


Terms: TypeAlias = tuple[Array, ...]
LogTerms: TypeAlias = Callable[[Any, Array, Array, Array, Array], Terms]
ProbTerms: TypeAlias = Callable[[Array, Array, Array, Array, Array], None]
TieTarget: TypeAlias = Literal["none", "half", "outcome"]
HEAD_PARAMETERS = {"bt": (), "rk": ("eta",), "ba": ("eta", "gamma")}
RK_FLOOR = 0.02  # the least h of rk: the one place where a parameter (eta) gets no gradient
GRK_EXCESS, BA_EXCESS = 1e-6, 0.02  # t - 1 = exp(eta) + excess
LOG_2 = math.log(2.0)
_TWO, _THREE, _FOUR = ("win", "loss"), ("win", "loss", "tie"), ("win", "loss", "tie", "bothbad")
LIKELIHOODS: dict[str, Likelihood] = {}
ALIASES = {"bag": "grk", "tie-bag": "tie-grk", "tie-bb-bag": "tie-bb-grk"}


class EtaScale(NamedTuple):
    """How a fit moves eta: where it starts, how long its steps are, and the least value that changes anything."""

    start: float = 0.0
    unit: float = 1.0
    least: float | None = None


_PLAIN_ETA = EtaScale()


@dataclass(frozen=True)
class Likelihood:
    """An outcome model: what may come out of a vote, and the log-probability of each outcome."""

    name: str
    head: str
    """The head that supplies the parameters: bt (coefs), rk (coefs, eta) or ba (coefs, eta, gamma)."""
    outcomes: tuple[str, ...]
    """Names of the K outcomes, in the order of the last axis."""
    log_terms: LogTerms
    """(namespace, coef_a, coef_b, eta, gamma) -> one log-probability per outcome."""
    grounded: bool = False
    """Whether coefs have an absolute zero. Under ba only their distance to gamma is fixed."""
    prob_terms: ProbTerms | None = None
    """(exp coef_a, exp coef_b, eta, gamma, out): the NumPy fast path, which fills the probabilities out (K, ...)."""
    evaluation_only: bool = False
    """Whether this is a coarser view of another likelihood, for metrics rather than for training."""
    tie_target: TieTarget = "outcome"
    """What a tie counts as: nothing (the vote is dropped), half a win and half a loss, or an outcome of its own."""
    eta_scale: EtaScale = _PLAIN_ETA
    title: str = ""
    """Name in reports, where it differs."""

    @property
    def counts_ties(self) -> bool:
        """Whether ties count at all."""
        return self.tie_target != "none"

    @property
    def merges_ties(self) -> bool:
        """Whether its outcome tie takes the mass of both-bad votes too, though its coefficients have a zero."""
        return self.grounded and "tie" in self.outcomes and "bothbad" not in self.outcomes

    @property
    def board_gamma(self) -> float | None:
        """The gamma of one leaderboard: zero, since only distances from it are fixed; None without gamma."""
        return 0.0 if "gamma" in self.parameters else None

    @property
    def parameters(self) -> tuple[str, ...]:
        """The scalars per prompt that it needs beside the coefficients: (), ("eta",) or ("eta", "gamma")."""
        return HEAD_PARAMETERS[self.head]

    def log_probs(self, coef_a: Any, coef_b: Any, eta: Any = None, gamma: Any = None) -> Array:
        """Return the log-probabilities of the outcomes, (...) -> (..., K); ConfigError without eta or gamma it needs.

        Half precisions count as float32. Tensors in float32 are computed in float64, for their gradients' sake, and
        returned in float32. Parameters the likelihood does not have are ignored.
        """
        xp, inputs = prepare(*self.needed(coef_a, coef_b, eta, gamma))
        if xp is np:
            return np.stack(np.broadcast_arrays(*self.log_terms(np, *inputs)), -1)
        inputs, dtype = widen(xp, inputs)
        return xp.stack(xp.broadcast_tensors(*self.log_terms(xp, *inputs)), -1).to(dtype)

    def probs(self, coef_a: Any, coef_b: Any, eta: Any = None, gamma: Any = None) -> Array:
        """Return the probabilities of the outcomes, `exp(log_probs)`; inputs broadcast (...) -> (..., K).

        Fast for NumPy: exp is taken of the inputs before they are broadcast, so that all pairs of M models, as
        `probs(coefs[:, :, None], coefs[:, None, :], eta[:, None, None])`, cost M exponentials per prompt, not M^2.
        Outcomes lie in memory one after the other: `probs(...)[..., k]` is contiguous.
        """
        xp, inputs = prepare(*self.needed(coef_a, coef_b, eta, gamma))
        if xp is not np or self.prob_terms is None:
            return xp.exp(self.log_probs(coef_a, coef_b, eta, gamma))
        present = [value for value in inputs if value is not None]
        dtype, reach = np.result_type(*present), max(float(np.max(np.abs(v), initial=0.0)) for v in present)
        if not reach <= 100.0:  # products of the exponentials of more would leave the range of float64
            return np.exp(self.log_probs(coef_a, coef_b, eta, gamma))
        if reach > 15.0:
            inputs = [None if value is None else value.astype(np.float64) for value in inputs]
        a, b, eta, gamma = inputs
        shape, wide = np.broadcast_shapes(*(value.shape for value in present)), np.float64 if reach > 15.0 else dtype
        out = np.empty((len(self.outcomes), *shape), wide)
        self.prob_terms(np.exp(a), np.exp(b), eta, gamma, out)
        return np.moveaxis(out.astype(dtype, copy=False), 0, -1)

    def needed(self, coef_a: Any, coef_b: Any, eta: Any, gamma: Any) -> tuple[Any, Any, Any, Any]:
        """Return the inputs, None for parameters that this likelihood does not have; ConfigError if one is missing."""
        parameters = {"eta": eta, "gamma": gamma}
        for name in self.parameters:
            if parameters[name] is None:
                raise ConfigError(f"likelihood {self.name} needs {name}, which head {self.head} supplies")
        eta, gamma = (value if name in self.parameters else None for name, value in parameters.items())
        return coef_a, coef_b, eta, gamma


def register(name: str, *, head: str, outcomes: tuple[str, ...], **facts: Any) -> Callable[[LogTerms], LogTerms]:
    """Register the decorated function as the log-probabilities of a new likelihood; `facts` are fields of it."""

    def add(log_terms: LogTerms) -> LogTerms:
        LIKELIHOODS[name] = Likelihood(name, head, outcomes, log_terms, **facts)
        return log_terms

    return add


def get(name: str) -> Likelihood:
    """Return the likelihood of a name or alias: `bt_tie` is `bt-tie`, `bag` is `grk`; ConfigError if unknown."""
    key = name.lower().replace("_", "-")
    key = ALIASES.get(key, key)
    if key not in LIKELIHOODS:
        raise ConfigError(
            f"unknown likelihood (loss type) {name!r}{nearest(key, [*LIKELIHOODS, *ALIASES])}; "
            f"use one of {', '.join(names())}"
        )
    return LIKELIHOODS[key]


def names(*, evaluation_only: bool = False) -> list[str]:
    """Return the names of the likelihoods that a model can be trained with, or of those for metrics only."""
    return [name for name, likelihood in LIKELIHOODS.items() if likelihood.evaluation_only == evaluation_only]


def aliases() -> dict[str, str]:
    """Return old spellings and what they stand for."""
    return dict(ALIASES)


def default_for_head(head: str) -> Likelihood:
    """Return the likelihood that a head is trained with by default: bt for bt, grk for rk, ba for ba."""
    _check_head(head)
    return get({"rk": "grk"}.get(head, head))


_FEWEST_RK_TIES = 0.01
"""Share of ties below which rk, whose equal models tie at least so often, is further from the votes than bt-tie."""


def outcome_model(ties: int, both_bad: int, votes: int) -> tuple[str, str, str]:
    """Choose head and likelihood from how many of the votes are ties of either kind; return them with the reason."""
    if both_bad:
        return "rk", "grk", f"{both_bad:,} of {votes:,} votes call both answers bad, which grk alone has an outcome for"
    if 0 < ties < _FEWEST_RK_TIES * votes:
        few = f"{ties:,} of {votes:,} votes {'is a tie' if ties == 1 else 'are ties'}, fewer than rk can express"
        return "bt", "bt-tie", f"{few}; each is half a win"
    if ties:
        return "rk", "rk", f"{ties:,} of {votes:,} votes are ties, none says that both answers are bad"
    return "bt", "bt", f"none of the {votes:,} votes is a tie"


def check_pair(head_type: str, loss_type: str) -> None:
    """Raise ConfigError unless a head supplies what a loss needs, and nothing that the loss would leave untrained."""
    likelihood = get(loss_type)
    _check_head(head_type)
    allowed = [name for name in names() if LIKELIHOODS[name].head == head_type]
    if likelihood.evaluation_only:
        raise ConfigError(
            f"loss_type {loss_type!r} serves metrics only; head {head_type} trains with {_either(allowed)}"
        )
    if likelihood.head != head_type:
        raise ConfigError(
            f"loss_type {loss_type!r} needs head_type {likelihood.head!r}, not {head_type!r}; "
            f"head {head_type} trains with {_either(allowed)}"
        )


def _check_head(head: str) -> None:
    if head not in HEAD_PARAMETERS:
        raise ConfigError(f"unknown head_type {head!r}{nearest(head, HEAD_PARAMETERS)}; use {_either(HEAD_PARAMETERS)}")


def _either(words: Any) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else str(last)


# Votes: labels are (N, 3) integers [winner, loser, tie]; tie 0 none, 1 tie, 2 tie (bothbad).
def targets(likelihood: Likelihood, ties: Any) -> Array:
    """Return the targets (N, K) over the outcomes of votes whose winner is model a; `ties` (N,) in {0, 1, 2}.

    A tie that does not count is a row of zeros; without the outcome bothbad, tie 2 counts as tie 1.
    """
    rows = np.zeros((3, len(likelihood.outcomes)))
    rows[0, _place(likelihood, "win", "decided", "rest")] = 1.0
    if likelihood.tie_target == "half":
        rows[1:] = 0.5
    elif likelihood.tie_target == "outcome":
        rows[1, _place(likelihood, "tie", "rest")] = 1.0
        rows[2, _place(likelihood, "bothbad", "tie")] = 1.0
    xp, (ties_float,) = prepare(ties)
    if xp is np:
        return rows[np.asarray(ties, dtype=np.intp)]
    return xp.as_tensor(rows, dtype=xp.float32, device=ties_float.device)[ties.long()]


def _place(likelihood: Likelihood, *outcomes: str) -> int:
    return next(likelihood.outcomes.index(name) for name in outcomes if name in likelihood.outcomes)


def counted(likelihood: Likelihood, labels: Any) -> Array:
    """Return a mask (B,) of floats: 1 for votes that count, 0 for ties that the likelihood drops."""
    xp, (ties,) = prepare(labels[:, 2])
    return xp.ones_like(ties) if likelihood.counts_ties else xp.where(ties == 0, 1.0, 0.0)


def vote_losses(
    likelihood: Likelihood, coefs: Any, labels: Any, eta: Any = None, gamma: Any = None, shift: Any = None
) -> Array:
    """Return the cross-entropy (B,) of each vote, -sum_k target_k log p_k; 0 for votes that do not count.

    `coefs` are (B, M), one row per vote, `labels` integers (B, 3) `[winner, loser, tie]`, `eta` and `gamma` (B,).
    `shift` (B, 3) is what covariates add to the winner's coefficient, to the loser's and to eta.
    """
    xp, (coefs,) = prepare(coefs)
    labels = np.asarray(labels) if xp is np else xp.as_tensor(labels, device=coefs.device).long()
    rows = np.arange(len(labels)) if xp is np else xp.arange(len(labels), device=coefs.device)
    a, b, ties = coefs[rows, labels[:, 0]], coefs[rows, labels[:, 1]], labels[:, 2]
    eta, gamma = (None if value is None else value.reshape(-1) for value in (eta, gamma))
    if shift is not None:
        a, b, eta = a + shift[:, 0], b + shift[:, 1], None if eta is None else eta + shift[:, 2]
    logs = likelihood.log_probs(a, b, eta, gamma)
    win, tie, bothbad = _label_terms(likelihood, xp, a - b, logs)
    return -xp.where(ties == 0, win, xp.where(ties == 1, tie, bothbad))


def _label_terms(likelihood: Likelihood, xp: Any, d: Array, logs: Array) -> Terms:
    """Return the log-likelihood of the three kinds of label; `d` (B,), `logs` (B, K)."""
    win = logs[..., _place(likelihood, "win", "decided", "rest")]
    if not likelihood.counts_ties:
        return win, xp.zeros_like(win), xp.zeros_like(win)
    if likelihood.tie_target == "half":
        # The mean of log sigmoid(d) and log sigmoid(-d), in the form whose gradient does not round to zero.
        half = -log_two_cosh(xp, 0.5 * d)
        return win, half, half
    tie = logs[..., _place(likelihood, "tie", "rest")]
    return win, tie, logs[..., _place(likelihood, "bothbad", "tie")]


def mean_loss(
    likelihood: Likelihood, coefs: Any, labels: Any, eta: Any = None, gamma: Any = None, weights: Any = None
) -> Array:
    """Return the weighted mean of `vote_losses` over the votes that count; `weights` (B,) or ones; nan of no votes."""
    losses = vote_losses(likelihood, coefs, labels, eta, gamma)
    _, (mask,) = prepare(counted(likelihood, labels))
    if weights is not None:
        mask = mask * weights
    with np.errstate(invalid="ignore"):
        return (losses * mask).sum() / mask.sum()


# The formulas. Log-probabilities take (namespace, coef_a, coef_b, eta, gamma), probabilities exp(coef_a), exp(coef_b).
def _rows(out: Array) -> Terms:
    """Return views of out (K, ...) that can be written into, also where (...) is empty."""
    return tuple(out[k, ...] for k in range(len(out)))


def _bt_probs(a: Array, b: Array, _eta: Array, _gamma: Array, out: Array) -> None:
    win, loss = _rows(out)
    np.add(a, b, out=win)
    np.divide(b, win, out=loss)
    np.divide(a, win, out=win)


@register(
    "bt-tie",
    head="bt",
    outcomes=_TWO,
    prob_terms=_bt_probs,
    tie_target="half",
    title="Bradley-Terry, a tie is half a win",
)
@register("bt", head="bt", outcomes=_TWO, prob_terms=_bt_probs, tie_target="none", title="Bradley-Terry, ties left out")
def _bt(xp: Any, a: Array, b: Array, _eta: Array, _gamma: Array) -> Terms:
    d = a - b
    return log_sigmoid(xp, d), log_sigmoid(xp, -d)


def rk_half_width(xp: Any, eta: Array) -> Array:
    """Return h of rk: half the width of the band of coefficient differences in which a tie is likeliest."""
    return xp.clip(10.0 * softplus(xp, 0.1 * (eta - 22.5)), RK_FLOOR, None)


def _rk_probs(a: Array, b: Array, eta: Array, _gamma: Array, out: Array) -> None:
    h = rk_half_width(np, eta)
    t = np.exp(h)
    win, loss, tie = _rows(out)
    np.divide(a, np.add(a, t * b, out=win), out=win)
    np.divide(b, np.add(b, t * a, out=loss), out=loss)
    np.multiply(win, loss, out=tie)
    tie *= np.expm1(2.0 * h)


@register(
    "rk",
    head="rk",
    outcomes=_THREE,
    prob_terms=_rk_probs,
    # A tenth of its raw eta enters the softplus, so its steps are longer. Below the eta that gives the floor nothing
    # would move it; the hair on top keeps rounding from falling below.
    eta_scale=EtaScale(-7.0, 5.0, 22.5 + 10.0 * math.log(math.expm1(RK_FLOOR / 10.0)) + 1e-9),
    title="Rao-Kupper, ties counted",
)
def _rk(xp: Any, a: Array, b: Array, eta: Array, _gamma: Array) -> Terms:
    h, d = rk_half_width(xp, eta), a - b
    # (1 + e^(h-d)) (1 + e^(h+d)) / e^2h = e^-2h + 1 + 2 cosh(d) e^-h
    crowd = xp.logaddexp(softplus(xp, -2.0 * h), log_two_cosh(xp, d) - h)
    return log_sigmoid(xp, d - h), log_sigmoid(xp, -d - h), xp.log(-xp.expm1(-2.0 * h)) - crowd


def _grounded(xp: Any, a: Array, b: Array, eta: Array, g: Array, excess: float) -> Terms:
    """Return the log-probabilities of win, loss, tie, bothbad and of not bothbad; `g` is log g."""
    log_t, d, above_a, above_b = logaddexp(xp, eta, math.log1p(excess)), a - b, g - a, g - b
    win = -softplus(xp, xp.logaddexp(log_t - d, above_a))
    loss = -softplus(xp, xp.logaddexp(log_t + d, above_b))
    both = xp.logaddexp(-above_a, -above_b)
    bothbad, rest = -softplus(xp, both), -softplus(xp, -both)
    # P(tie) = (t-1)/t (2/t + (t-1)/t P(rest)) / (D_a D_b / (a b t^2)): factors at most 1, at most 2, at least 1,
    # so that the logarithms cannot be large and cancel.
    keep = -softplus(xp, -logaddexp(xp, eta, math.log(excess)))
    ground = xp.logaddexp(above_a, above_b) + (softplus(xp, -log_t) - log_t)
    crowd = xp.logaddexp(
        xp.logaddexp(log_two_cosh(xp, d) - log_t, softplus(xp, -2.0 * log_t)),
        xp.logaddexp(ground, (above_a - log_t) + (above_b - log_t)),
    )
    tie = keep + xp.logaddexp(LOG_2 - log_t, keep + rest) - crowd
    return win, loss, tie, bothbad, rest


def _grounded_probs(a: Array, b: Array, eta: Array, g: Array, excess: float, out: Terms) -> None:
    """Fill the arrays `out` with the probabilities of win, loss, tie, bothbad; `g` is g itself."""
    # Everything of full size is computed in `out`: a temporary array costs more in page faults than the arithmetic.
    less = np.exp(eta) + excess
    t = 1.0 + less
    win, loss, tie, bothbad = out
    np.add(a + g, t * b, out=win)
    np.add(b + g, t * a, out=loss)
    np.add(a + g, b, out=bothbad)
    np.add(win, loss, out=tie)
    for worth, total in ((a, win), (b, loss), (g, bothbad)):
        np.divide(worth, total, out=total)
    tie *= win
    tie *= loss
    tie *= bothbad
    tie *= less / g


def _grk_probs(a: Array, b: Array, eta: Array, _gamma: Array, out: Array) -> None:
    _grounded_probs(a, b, eta, np.ones_like(eta), GRK_EXCESS, _rows(out))


def _rk_reparam_probs(a: Array, b: Array, eta: Array, _gamma: Array, out: Array) -> None:
    win, loss, tie = _rows(out)
    bothbad = np.empty_like(tie)
    _grounded_probs(a, b, eta, np.ones_like(eta), GRK_EXCESS, (win, loss, tie, bothbad))
    tie += bothbad


def _ba_probs(a: Array, b: Array, eta: Array, gamma: Array, out: Array) -> None:
    _grounded_probs(a, b, eta, np.exp(gamma), BA_EXCESS, _rows(out))


@register(
    "rk-reparam",
    head="rk",
    outcomes=_THREE,
    grounded=True,
    prob_terms=_rk_reparam_probs,
    title="Rao-Kupper, grounded, one kind of tie",
)
def _rk_reparam(xp: Any, a: Array, b: Array, eta: Array, _gamma: Array) -> Terms:
    win, loss, tie, bothbad, _ = _grounded(xp, a, b, eta, xp.zeros_like(eta), GRK_EXCESS)
    return win, loss, xp.logaddexp(tie, bothbad)


@register("grk", head="rk", outcomes=_FOUR, grounded=True, prob_terms=_grk_probs, title="Rao-Kupper, grounded")
def _grk(xp: Any, a: Array, b: Array, eta: Array, _gamma: Array) -> Terms:
    return _grounded(xp, a, b, eta, xp.zeros_like(eta), GRK_EXCESS)[:4]


@register("ba", head="ba", outcomes=_FOUR, prob_terms=_ba_probs, title="Rao-Kupper, grounded by gamma")
def _ba(xp: Any, a: Array, b: Array, eta: Array, gamma: Array) -> Terms:
    return _grounded(xp, a, b, eta, gamma, BA_EXCESS)[:4]


@register("tie-rk", head="rk", outcomes=("tie", "decided"), evaluation_only=True)
def _tie_rk(xp: Any, a: Array, b: Array, eta: Array, gamma: Array) -> Terms:
    win, loss, tie = _rk(xp, a, b, eta, gamma)
    return tie, xp.logaddexp(win, loss)


@register("tie-grk", head="rk", outcomes=("tie", "decided"), grounded=True, evaluation_only=True)
def _tie_grk(xp: Any, a: Array, b: Array, eta: Array, gamma: Array) -> Terms:
    win, loss, tie, bothbad = _grk(xp, a, b, eta, gamma)
    return xp.logaddexp(tie, bothbad), xp.logaddexp(win, loss)


@register("tie-bb-grk", head="rk", outcomes=("bothbad", "rest"), grounded=True, evaluation_only=True)
def _tie_bb_grk(xp: Any, a: Array, b: Array, eta: Array, _gamma: Array) -> Terms:
    *_, bothbad, rest = _grounded(xp, a, b, eta, xp.zeros_like(eta), GRK_EXCESS)
    return bothbad, rest


# Win rates. A vote gives a model one point for a win and half a point for a tie of either kind:
# points(i, j) = P(i wins) + (1 - P(i wins) - P(j wins)) / 2 = (1 + P(i wins) - P(j wins)) / 2.
# The win rate of i is the mean over all other models j, so the rates of one leaderboard average 1/2 whatever the
# likelihood, and those of a hard prompt (many votes "both bad") lie closer to 1/2 than those of an easy one.

Floats = npt.NDArray[np.float64]
_BLOCK_ELEMENTS = 2_000_000


def win_rates(
    coefs: npt.ArrayLike, likelihood: Likelihood, eta: npt.ArrayLike | None = None, gamma: npt.ArrayLike | None = None
) -> Floats:
    """Return each model's mean points (..., M) against a uniformly drawn other model, in [0, 1].

    `coefs` are (..., M), `eta` and `gamma` (...,) or scalars. A single model has no field: its rate is 1/2.
    """
    vectors = np.asarray(coefs, dtype=np.float64)
    lead, num_models = vectors.shape[:-1], vectors.shape[-1]
    if num_models < 2:
        return np.full(vectors.shape, 0.5)
    flat = vectors.reshape(-1, num_models)
    scalars = [
        None if one is None else np.broadcast_to(np.asarray(one, dtype=np.float64), lead).reshape(-1, 1, 1)
        for one in (eta, gamma)
    ]
    rates = np.empty_like(flat)
    rows = max(1, _BLOCK_ELEMENTS // num_models**2)
    for first in range(0, len(flat), rows):
        part = slice(first, first + rows)
        block = [None if one is None else one[part] for one in scalars]
        points = _points(flat[part, :, None], flat[part, None, :], likelihood, *block)
        # The diagonal is exactly 1/2: no model is its own opponent.
        rates[part] = (points.sum(axis=-1) - 0.5) / (num_models - 1)
    return rates.reshape(vectors.shape)


def win_rates_if(
    coefs: npt.ArrayLike,
    others: npt.ArrayLike,
    likelihood: Likelihood,
    eta: float | None = None,
    gamma: float | None = None,
) -> Floats:
    """Return what each win rate (M,) would be if this model alone had the coefficient of `coefs` (M,).

    The other models keep theirs of `others` (M,). With the ends of the coefficients' intervals as `coefs` these are the
    ends of the win rates'.
    """
    one, field = np.asarray(coefs, dtype=np.float64), np.asarray(others, dtype=np.float64)
    if len(one) < 2:
        return np.full(one.shape, 0.5)
    points = _points(one[:, None], field[None, :], likelihood, eta, gamma)
    np.fill_diagonal(points, 0.0)
    return np.asarray(points.sum(axis=-1) / (len(one) - 1))


def pair_rates(
    coefs: npt.ArrayLike, likelihood: Likelihood, eta: float | None = None, gamma: float | None = None
) -> Floats:
    """Return the mean points (M, M) of the model of each row against that of each column; 1/2 against itself."""
    vector = np.asarray(coefs, dtype=np.float64)
    return _points(vector[:, None], vector[None, :], likelihood, eta, gamma)


def _points(a: Floats, b: Floats, likelihood: Likelihood, eta: Any, gamma: Any) -> Floats:
    """Return the mean points of the first model against the second."""
    probs = likelihood.probs(a, b, eta, gamma)
    win, loss = likelihood.outcomes.index("win"), likelihood.outcomes.index("loss")
    return np.asarray(0.5 * (1.0 + probs[..., win] - probs[..., loss]))
