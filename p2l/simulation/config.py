"""The configuration of a simulated arena."""

from __future__ import annotations

from dataclasses import dataclass

from p2l.common.errors import ConfigError


@dataclass(frozen=True)
class SimulationConfig:
    """Definition of a simulated arena. The defaults resemble a public arena over 22 months."""

    votes: int = 100_000
    validation_votes: int = 0
    models: int = 40
    topics: int = 8
    languages: int = 5
    users: int = 2000
    seed: int = 0
    effect: float = 0.7
    """Standard deviation of a model's skill between topics, in units of coefficients; 0 makes every prompt alike."""
    drift: float = 0.3
    """Radians a year by which skills turn as models are updated, and change of log popularity of the topics."""
    improvement: float = 0.7
    """Mean gain in coefficient per year of release date."""
    growth: float = 8.0
    """Vote rate at the end over that at the start."""
    days: float = 670.0
    """From the first vote to the last."""
    fashion: float = 0.0
    """Swing of each topic's log popularity on top of the drift, with a peak of its own."""
    turnover: float = 0.0
    """Share of each topic's nouns that others replace over the arena's life; half are in use at a time then."""
    lifetime: float = 330.0
    """Median days that a model stays."""
    start: float = 1_682_300_000.0
    """Unix time of the first vote."""
    structures: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25)
    """Shares of prompts that are single, order, negation, turns (see `p2l.simulation.prompts`)."""

    sentences: bool = False
    """Whether prompts read as English sentences (see `p2l.simulation.prompts`); with one language alone."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a field out of its range (and make a list of structures, as JSON gives it, a tuple)."""
        object.__setattr__(self, "structures", tuple(self.structures))
        low = {"votes": 1, "validation_votes": 0, "users": 1, "seed": 0}
        low |= dict.fromkeys(("effect", "drift", "fashion", "turnover"), 0)
        for name, least in low.items():
            if not getattr(self, name) >= least:  # and not `<`, which NaN would pass
                raise ConfigError(f"{name}: must be at least {least}, got {getattr(self, name)}")
        if self.sentences and self.languages != 1:
            raise ConfigError(f"sentences: are English; choose 1 language, not {self.languages}")
        for name in ("growth", "days", "lifetime"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: must be more than 0, got {getattr(self, name)}")
        if len(self.structures) != 4 or min(self.structures) < 0 or abs(sum(self.structures) - 1) > 1e-9:
            raise ConfigError(f"structures: four shares that sum to 1 are needed, got {self.structures}")
