"""The posterior of a prompt's coefficients given the votes, and its distance from the prompts of the training votes.

The true coefficients f of a prompt x differ from one leaderboard for all prompts by a Gaussian process: covariance C
over the models, kernel k over the inputs x (the frozen ones of a reader, the hidden state of any other backbone), and
on top of it a part that is a prompt's own and that nobody can know. Given the training votes, in a Kronecker form,

    Cov(f(x)) = sum over r of  basis_r basis_r'  v_r(x),        v_r(x) = offset_r - sum over k of kept_rk e_k(x)^2
    e(x) = axes' k(points, x),    k(x, z) = exp(-|x - z|^2 / 2) of inputs in units of the kernel's length

where the basis (M, R) diagonalises prior and Fisher information over the models together, and e are the eigenfunctions
of the kernel at `points`, prompts of the training votes. Far from these e vanishes, and the variance is the prior's.

A prompt is familiar where one of the points lies as near as to most prompts of the training votes, and where its words
are known. From `near` to `far` from the nearest point the model's coefficients are shrunk towards one leaderboard by a
factor that falls to `KEPT_OF_STRANGERS`. Where fewer of the words are known, so do those of a reader with a sentence
encoder, which reads other words too; of any other model nothing is left.

LLMs that joined votes on some kinds of prompts alone have no board of their own on the others: there `tried` leaves
them where the one leaderboard has them.

The arrays of a posterior are NumPy's or torch's, and so are those that its methods take and return.

Shapes: B prompts, F inputs, K points, M models, R components of the covariance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2l.common.errors import CheckpointError

if TYPE_CHECKING:
    import torch

    from p2l.model.encoding import Encoding
    from p2l.model.tfidf import TfidfTokenizer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Array: TypeAlias = Any
"""An array of NumPy or a tensor of torch."""
_MAX_POINTS = 512
_CLUSTERS = 8
KEPT_OF_STRANGERS = 0.4
"""Share of its departure from one leaderboard that a prompt of another kind keeps.

The first part of a departure gains most: of twelve kinds of graded prompts that training left out, eight gain by
departing whole, and keep half to three quarters of that gain with this share; two gain by a part of it alone, and two
lose three tenths of what a whole departure costs them (benchmarks/LOG.md).
"""
# Distances to the nearest point at which shrinking begins and ends: quantiles of those of prompts like the votes'.
# Up to a part of the usual distance of two prompts none is strange, however near to each other the votes' prompts are:
# another wording of the same prompt lies within it.
_NEAR_QUANTILE, _FAR_QUANTILE = 0.8, 0.98
_NEVER_STRANGE = 0.6
_LEAST_RAMP = 0.1
_JITTER = 1e-4
_MIN_CLUSTERS = 2.0
# With fewer degrees of freedom t has tails so long that its intervals say nothing.
_MIN_CLUSTERS_FOR_T = 4.0
_UPPER_END = 0.95  # of a 90 % interval
POSTERIOR_FILE = "posterior.safetensors"
# Distance beyond that of the nearest point, in usual distances of two prompts, at which a point still counts for half
# of what `tried` says of a prompt.
_REACH = 0.05
_VERSION = 1
_TERMS, _IDF = "vocabulary", "vocabulary_idf"
_TRIED = "tried"
SHAPES = {
    "centre": "F", "scale": "", "points": "KF", "axes": "KK", "kept": "RK", "offset": "R", "least": "R", "basis": "MR",
    "share": "K", "near": "", "far": "", "strange": "", "words": "W", "encoded": "", "coefs": "M", "eta": "",
    "gamma": "",
}  # fmt: skip
"""Axes of a posterior's tensors, by their names."""


class Place(NamedTuple):
    """Where prompts lie among the points of a posterior."""

    squares: Array
    """(B, K) squared eigenfunctions."""
    nearest: Array
    """(B,) distance to the nearest point, in lengths of the kernel: in usual distances of two prompts."""
    tried: Array | None = None
    """(B, M) share of the points nearby on which each model was voted on; None for all of them."""

    def familiarity(self, trust: Array) -> Array:
        """Return the share (B,) of its departure from one leaderboard that a prompt keeps, in the mean over models."""
        return trust if self.tried is None else trust * self.tried.mean(1)


class Posterior:
    """The covariance of a prompt's true coefficients, and the factor by which a strange prompt's are shrunk."""

    centre: Array
    """(F,) of the inputs."""
    scale: Array
    """One over the kernel's length."""
    points: Array
    """(K, F) scaled inputs of prompts."""
    axes: Array
    """(K, K)"""
    kept: Array
    """(R, K) variance that the votes determine along each eigenfunction."""
    offset: Array
    """(R,) variance of a prompt that is like no other."""
    least: Array
    """(R,) variance that is left in any prompt."""
    basis: Array
    """(M, R)"""
    share: Array
    """(K,) as `kept`, over all components."""
    near: Array
    """Distance to the nearest point up to which nothing is shrunk."""
    far: Array
    """Distance from which coefficients are shrunk as those of a prompt of another kind."""
    strange: Array
    """Variance of prompts of another topic over that of prompts of the training's own: one more draw of few."""
    words: Array
    """(2,) share of known words at which nothing is left, and from which nothing is shrunk."""
    encoded: Array
    """1 where an encoder reads a prompt whose words are unknown, else 0."""
    coefs: Array
    """(M,) of one leaderboard for all prompts; `eta` and `gamma` beside it, NaN for a head without them."""
    eta: Array
    gamma: Array

    tried: Array | None = None
    """(M, K) 1 where a model was voted on in prompts of the kind of a point, else 0; None where all were on all."""

    def __init__(self, tensors: Mapping[str, Array], vocabulary: TfidfTokenizer | None = None) -> None:
        """Take the tensors by name; CheckpointError unless all are there, finite, and fit together."""
        self.vocabulary = vocabulary
        """The words of the training votes' prompts, for a model that does not read words itself."""
        sizes: dict[str, int] = {}
        for name, letters in (SHAPES | ({_TRIED: "MK"} if tensors.get(_TRIED) is not None else {})).items():
            tensor = tensors.get(name)
            if tensor is None or tensor.ndim != len(letters):
                raise CheckpointError(f"{POSTERIOR_FILE}: lacks {name}, or has it in another shape; fit it again")
            for letter, size in zip(letters, tensor.shape, strict=True):
                if sizes.setdefault(letter, size) != size:
                    raise CheckpointError(f"{POSTERIOR_FILE}: {name} does not fit the rest; fit it again")
            if name not in ("eta", "gamma") and not _library(tensor).isfinite(tensor).all():
                raise CheckpointError(f"{POSTERIOR_FILE}: {name} holds values that are not finite; fit it again")
            setattr(self, name, _float32(tensor))
        if self.tried is not None and not bool(((self.tried >= 0.0) & (self.tried <= 1.0)).all()):
            raise CheckpointError(f"{POSTERIOR_FILE}: {_TRIED} holds what is no share; fit it again")

    @classmethod
    def load(cls, folder: Path, num_models: int, *, library: Literal["numpy", "torch"] = "torch") -> Posterior | None:
        """Read the posterior of a model folder, None where there is none; CheckpointError if it is not this model's."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        file = folder / POSTERIOR_FILE
        if not file.is_file():
            return None
        try:
            tensors = load_file(file)
            posterior = cls(tensors, _vocabulary(tensors))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: damaged or cut short ({error}); copy it again") from error
        if len(posterior.coefs) != num_models:
            raise CheckpointError(
                f"{file}: is of {len(posterior.coefs)} models, the head of {num_models}; fit it again (p2l posterior)"
            )
        return posterior if library == "numpy" else posterior.on("cpu")

    def on(self, device: str | torch.device) -> Posterior:
        """Return the same posterior with torch's tensors on a device."""
        import torch

        tensors = {name: torch.as_tensor(tensor, device=device) for name, tensor in self.tensors().items()}
        return Posterior(tensors, self.vocabulary)

    def tensors(self) -> dict[str, Array]:
        """Return the tensors by name, as they were given."""
        return {name: getattr(self, name) for name in (*SHAPES, _TRIED) if getattr(self, name) is not None}

    def without_shrinking(self) -> Posterior:
        """Return the same covariance, with which no prompt is so strange that its coefficients are shrunk."""
        never = {"near": 1e6, "far": 2e6, "words": [-2.0, -1.0]}
        library = _library(self.near)
        limits = {name: library.asarray(value) for name, value in never.items()}
        return Posterior({name: tensor for name, tensor in self.tensors().items() if name != _TRIED} | limits)

    def save(self, folder: Path) -> None:
        """Write the file; points in float16, which changes a variance in its fourth digit."""
        from safetensors.numpy import save_file

        tensors = {name: to_numpy(tensor) for name, tensor in self.tensors().items()}
        tensors["points"] = tensors["points"].astype(np.float16)
        if self.vocabulary is not None:
            terms, idf = self.vocabulary.contents()
            tensors[_TERMS] = np.frombuffer("\n".join(terms).encode(), dtype=np.uint8)
            tensors[_IDF] = idf.astype(np.float32)
        save_file(tensors, folder / POSTERIOR_FILE, metadata={"format": "pt", "version": str(_VERSION)})

    def with_known(self, prompts: Sequence[Sequence[str]], encodings: list[Encoding]) -> list[Encoding]:
        """Return the encodings of prompts with the share of each prompt's words that the training votes had."""
        if self.vocabulary is None:
            return encodings
        words = self.vocabulary.encode(prompts)
        return [encoding._replace(known=word.known) for encoding, word in zip(encodings, words, strict=True)]

    def place(self, inputs: Array) -> Place:
        """Return where the inputs (B, F) of prompts lie among the points."""
        library = _library(inputs)
        distances = self._distances((_float32(inputs) - self.centre) * self.scale)
        nearest = library.sqrt(library.amin(distances, 1))
        tried = None
        if self.tried is not None:
            beyond = library.sqrt(distances) - nearest[:, None]
            weights = library.exp(-np.log(2.0) * (beyond / _REACH) ** 2)
            tried = weights @ self.tried.T / weights.sum(1)[:, None]
        return Place((library.exp(-0.5 * distances) @ self.axes) ** 2, nearest, tried)

    def _distances(self, scaled: Array) -> Array:
        """Return the squared distance (B, K) of scaled inputs from each point."""
        distances = (scaled**2).sum(1)[:, None] + (self.points**2).sum(1) - 2.0 * scaled @ self.points.T
        return _library(scaled).clip(distances, 0.0, None)

    def mean_variances(self, inputs: Array) -> Array:
        """Return the variance (R,) of the mean of each component over some prompts, by their inputs (B, F).

        The mean over all prompts is what one leaderboard tells, and has a component of its own. Beside it only how
        these prompts differ from those of the votes is uncertain, and each prompt's own part, which averages out.
        """
        library = _library(inputs)
        scaled = (_float32(inputs) - self.centre) * self.scale
        values, usual = (library.exp(-0.5 * self._distances(at)) @ self.axes for at in (scaled, self.points))
        apart = (values.mean(0) - usual.mean(0)) ** 2
        shared = library.clip(1.0 - self.kept, 0.0, None) @ apart
        single = library.maximum(self.offset - (values**2).mean(0) @ self.kept.T, self.least)
        is_board = self.least >= self.offset  # all of it is left in any prompt, since all prompts share it
        return library.where(is_board, self.offset, shared + single / len(inputs))

    def variances(self, place: Place, trust: Array) -> Array:
        """Return the variance (B, R) of each component."""
        library = _library(trust)
        within = library.maximum(self.offset - place.squares @ self.kept.T, self.least)
        strangeness = library.clip((1.0 - trust) / (1.0 - KEPT_OF_STRANGERS), None, 1.0)
        return within * (1.0 + strangeness[:, None] * (self.strange - 1.0))

    def trust(self, place: Place, known: Array | None = None) -> Array:
        """Return the factor (B,) in [0, 1] of a prompt's distance from one leaderboard; `known` as in `known_share`."""
        library = _library(place.nearest)
        nearness = 1.0 - _rise(place.nearest, self.near, self.far)
        reading = library.ones_like(nearness) if known is None else _rise(known, self.words[0], self.words[1])
        kept = KEPT_OF_STRANGERS * library.maximum(reading, self.encoded)
        return kept + (1.0 - KEPT_OF_STRANGERS) * nearness * reading

    def shrunk(
        self, trust: Array, coefs: Array, eta: Array | None, gamma: Array | None, tried: Array | None = None
    ) -> tuple[Array, Array | None, Array | None]:
        """Return coefs (B, M), eta and gamma (B,) shrunk towards one leaderboard by the factors `trust` (B,).

        Those of models that were not `tried` (B, M) on such prompts stay there altogether.
        """
        eta, gamma = (
            None if values is None else level + trust * (values - level)
            for values, level in ((eta, self.eta), (gamma, self.gamma))
        )
        factors = trust[:, None] if tried is None else trust[:, None] * tried
        return self.coefs + factors * (coefs - self.coefs), eta, gamma


def _library(array: Array) -> Any:
    """Return the library of an array: numpy or torch, whose functions of the names used here agree."""
    if isinstance(array, np.ndarray | np.generic):
        return np
    import torch

    return torch


def _float32(array: Array) -> Array:
    return array.astype(np.float32) if isinstance(array, np.ndarray) else array.float()


def to_numpy(array: Array) -> NDArray[Any]:
    """Return an array of either library as NumPy's."""
    return np.asarray(array if isinstance(array, np.ndarray) else array.detach().cpu().numpy(), order="C")


def _rise(values: Array, low: Array, high: Array) -> Array:
    """Return 0 up to `low`, 1 from `high` on, and a smooth rise between."""
    place = _library(values).clip((values - low) / (high - low), 0.0, 1.0)
    return place * place * (3.0 - 2.0 * place)


def known_share(batch: Mapping[str, Array]) -> Array | None:
    """Return the shares (B,) of known words, which stand behind the other features of a reader's prompts."""
    return batch["features"][:, -1] if "features" in batch else batch.get("known")


def _vocabulary(tensors: Mapping[str, NDArray[Any]]) -> TfidfTokenizer | None:
    """Return the vocabulary in a file, None where it has none; CheckpointError if it is damaged."""
    if _TERMS not in tensors:
        return None
    from p2l.model.tfidf import TfidfTokenizer

    try:
        terms = tensors[_TERMS].tobytes().decode().split("\n")
        idf = tensors[_IDF].astype(np.float64)
    except (KeyError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{POSTERIOR_FILE}: has a damaged vocabulary; fit it again") from error
    if idf.shape != (len(terms),) or not np.isfinite(idf).all():
        raise CheckpointError(f"{POSTERIOR_FILE}: its vocabulary does not fit its weights; fit it again")
    return TfidfTokenizer(terms, idf)


@dataclass(frozen=True)
class PromptProcess:
    """The Gaussian process over prompts: the kernel at some of them, and its eigenfunctions under the votes.

    Votes on prompts x with information w determine along each eigenfunction e_k of the kernel the share

        known s_k / (1 + known s_k),        s_k = sum w e_k(x)^2 / sum w

    of the prior variance, where `known` is the information of all votes times the prior variance. Summed over a
    prompt's e_k(x)^2 that is the determined share: near 1 for a frequent kind of prompt, 0 for one like no other.

    Shapes: Q prompts, F inputs, K points, R components.
    """

    centre: Floats
    """(F,)"""
    length: float
    """Length of the kernel: the median distance of two prompts."""
    points: Floats
    """(K, F) centred, in units of the length."""
    axes: Floats
    """(K, K): eigenfunctions of kernel values at the points."""
    seen: Floats
    """(K,) mean of the squared eigenfunctions over the votes."""
    fresh: Floats
    """(Q', K) squared eigenfunctions at prompts that are not among the points."""
    nearest: Floats
    """(Q',) distances from these to the nearest point, in units of the length."""
    strange: float
    """Variance of a prompt of another cluster over that of those within, known from few clusters (`_strange`)."""
    features: Floats
    """(Q, K) of all prompts: their inner products are the kernel."""

    @classmethod
    def of(cls, inputs: Floats, information: Floats, rng: np.random.Generator) -> PromptProcess:
        """Choose points among the inputs (Q, F) and find the eigenfunctions; `information` (Q,) is the votes'."""
        centre, length = inputs.mean(0), median_distance(inputs)
        scaled = (inputs - centre) / length
        order = rng.permutation(len(scaled))
        # At most half of the prompts, so that others are left to see how familiar a new one is.
        count = max(1, min(_MAX_POINTS, len(scaled) // 2))
        others = order[count:] if count < len(order) else order
        points = scaled[order[:count]]
        root = np.linalg.cholesky(kernel(points, points) + _JITTER * np.eye(count))
        features = np.linalg.solve(root, kernel(points, scaled)).T
        seen, turn = _eigen(features, information)
        squares = (features @ turn) ** 2
        return cls(
            centre=centre,
            length=length,
            points=points,
            axes=np.linalg.solve(root.T, turn),
            seen=seen,
            fresh=squares[others],
            nearest=np.sqrt(_squared_distances(scaled[others], points).min(1)),
            strange=_strange(_clusters(scaled, rng)),
            features=features,
        )

    def tensors(self, share: Floats) -> dict[str, Floats]:
        """Return the tensors of a posterior that describe the process: all but components and leaderboard.

        `share` (K,) are the shares that the votes determine.
        """
        near, far = np.quantile(self.nearest, [_NEAR_QUANTILE, _FAR_QUANTILE])
        near = max(float(near), _NEVER_STRANGE)
        return {
            "centre": self.centre,
            "scale": np.asarray(1.0 / self.length),
            "points": self.points,
            "axes": self.axes,
            "share": share,
            "strange": np.asarray(self.strange),
            "near": np.asarray(near),
            "far": np.asarray(max(float(far), near + _LEAST_RAMP)),
        }


def determined(known: Floats, seen: Floats) -> Floats:
    """Return the shares (R, K) of the prior variance that votes of information `known` (R,) determine."""
    product = known[:, None] * seen
    return np.asarray(product / (1.0 + product))


def _strange(clusters: list[Ints]) -> float:
    """Return the variance of one more cluster over that of c clusters; unequal clusters count as fewer.

    After c normal draws the next one follows Student's t with c - 1 degrees of freedom, about their mean and with their
    mean square from it, times (c + 1) / (c - 1), as its squared scale.
    """
    from scipy.special import ndtri, stdtrit

    sizes = np.array([len(cluster) for cluster in clusters], dtype=np.float64)
    count = float(sizes.sum() ** 2 / (sizes**2).sum()) if len(sizes) else 0.0
    if count <= _MIN_CLUSTERS:
        return 1.0
    count = max(count, _MIN_CLUSTERS_FOR_T)
    # The result serves intervals of a normal, which are narrower than those of t.
    wider = float(stdtrit(count - 1.0, _UPPER_END) / ndtri(_UPPER_END))
    return (count + 1.0) / (count - 1.0) * wider**2


def median_distance(inputs: Floats) -> float:
    """Return the median distance between the first of some inputs (Q, F)."""
    sample = inputs[: 2 * _MAX_POINTS]
    squares = (sample**2).sum(1)
    distances = squares[:, None] + squares - 2.0 * sample @ sample.T
    apart = distances[np.triu_indices(len(sample), 1)]
    return float(np.sqrt(max(float(np.median(apart)) if len(apart) else 1.0, 1e-12)))


def _squared_distances(x: Floats, z: Floats) -> Floats:
    """Return |x - z|^2 (n, m)."""
    return np.asarray(np.maximum((x**2).sum(1)[:, None] + (z**2).sum(1) - 2.0 * x @ z.T, 0.0))


def kernel(x: Floats, z: Floats) -> Floats:
    """Return exp(-|x - z|^2 / 2) (n, m)."""
    return np.asarray(np.exp(-0.5 * _squared_distances(x, z)))


def _eigen(features: Floats, weights: Floats) -> tuple[Floats, Floats]:
    values, vectors = np.linalg.eigh((features.T * weights) @ features / max(float(weights.sum()), 1e-12))
    return values.clip(0.0), vectors


def _clusters(scaled: Floats, rng: np.random.Generator) -> list[Ints]:
    """Return the prompts of each cluster of some size."""
    from scipy.cluster.vq import kmeans2

    # A model that learned nothing gives all prompts one state, and k-means divides by its distance from itself.
    if len(scaled) < 4 * _CLUSTERS or len(np.unique(scaled.sum(1).round(9))) < _CLUSTERS:
        return []
    _, label = kmeans2(scaled, _CLUSTERS, minit="++", seed=rng)
    clusters = [np.flatnonzero(label == number) for number in range(_CLUSTERS)]
    return [cluster for cluster in clusters if len(scaled) // (4 * _CLUSTERS) <= len(cluster) < len(scaled) // 2]
