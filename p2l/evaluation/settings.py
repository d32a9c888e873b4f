"""What an evaluation is asked to do: the lists of metrics, sizes and categories, checked before any work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from p2l.command import nearest
from p2l.errors import ConfigError
from p2l.evaluation.categories import Category, parse
from p2l.evaluation.defaults import (
    CATEGORIES,
    CATEGORY_METRICS,
    PARTS,
    SCALE_SAMPLES,
    SCALE_SIZES,
    SIMPLE_METRICS,
    SUBSET_METRICS,
    SUBSET_SAMPLES,
    SUBSET_SIZES,
)
from p2l.likelihood import Likelihood
from p2l.metrics import LEADERBOARD_METRICS, METRICS

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        likelihood: the outcome model.
        model_type: what is evaluated.
        ground_truth: what leaderboards are compared with.
        categories: as the user wrote them.
        lenient: whether a category that the votes do not know is passed over (the default list is).
        parts: which blocks of `PARTS`.
        simple, category, subset, scale: names of metrics.
        subset_sizes, subset_samples, scale_sizes, scale_samples: of the draws.
        seed: of every draw.
        bootstrap: replicates of the intervals of vote metrics; 0 leaves intervals out.
        level: coverage of all intervals.
    """

    likelihood: Likelihood
    model_type: str = "p2l"
    ground_truth: str = "marginal-gt"
    categories: Sequence[str] = CATEGORIES
    lenient: bool = False
    parts: Sequence[str] = PARTS
    simple: Sequence[str] = SIMPLE_METRICS
    category: Sequence[str] = CATEGORY_METRICS
    subset: Sequence[str] = SUBSET_METRICS
    scale: Sequence[str] = SUBSET_METRICS
    subset_sizes: Sequence[int] = SUBSET_SIZES
    subset_samples: Sequence[int] = SUBSET_SAMPLES
    scale_sizes: Sequence[int] = SCALE_SIZES
    scale_samples: Sequence[int] = SCALE_SAMPLES
    seed: int = 0
    bootstrap: int = 1000
    level: float = 0.95
    parsed: tuple[Category, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parsed", tuple(parse(text) for text in dict.fromkeys(self.categories)))
        _check("metric", self.simple, METRICS)
        for names in (self.category, self.subset, self.scale):
            _check("leaderboard metric", names, LEADERBOARD_METRICS)
        for flag, names in (("--rand_subset_metrics", self.subset), ("--aggr_scale_metrics", self.scale)):
            if "Leaderboard" in names:
                raise ConfigError(
                    f"{flag} Leaderboard is a list of names, which has no mean over subsets; leave it out"
                )
        _check_draws("rand_subset", self.subset_sizes, self.subset_samples)
        _check_draws("aggr_scale", self.scale_sizes, self.scale_samples)
        if not 0.0 < self.level < 1.0:
            raise ConfigError(f"--level {self.level} is no coverage; use a number between 0 and 1, such as 0.95")
        if self.bootstrap == 1:
            raise ConfigError("--bootstrap 1 is too few; use 100 or more, or 0 for no intervals")


def _check(kind: str, names: Sequence[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown {kind} {name!r}{nearest(name, known)}; use some of {', '.join(known)}")


def _check_draws(name: str, sizes: Sequence[int], samples: Sequence[int]) -> None:
    if len(sizes) != len(samples):
        flags = f"--{name}_sizes" if name == "rand_subset" else f"--{name}_subset_sizes"
        counts = f"--{name}_num_samples" if name == "aggr_scale" else "--rand_num_samples"
        raise ConfigError(f"{flags} has {len(sizes)} numbers and {counts} {len(samples)}; give one sample count a size")
    if any(size < 1 for size in (*sizes, *samples)):
        raise ConfigError(f"sizes and sample counts of {name} must be at least 1")
