"""Who a mock model is: its parameters, and the draws that make it the same model whenever it is asked the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from p2l.errors import ConfigError

__all__ = ["Persona"]

_NORMAL = NormalDist()
_SHARES = ("failure_rate", "malformed_rate")


@dataclass(frozen=True)
class Persona:
    """A mock model."""

    skill: float | Mapping[str, float] = 0.6
    """How good its answers are, in [0, 1]; or a map from a part of the prompt to that, of which the first found counts
    and `default` (0.5) where none is."""
    noise: float = 0.1
    """Standard deviation of an answer's quality around the skill, and of a judge's view around the quality."""
    position_bias: float = 0.0
    """What a judge adds to the quality of the answer that is shown first."""
    latency: float = 0.0
    """Seconds before it answers."""
    failure_rate: float = 0.0
    """Share of the requests that fail with a server's error; asked again, they are drawn again."""
    malformed_rate: float = 0.0
    """Share of the answers that do not have the form that was asked for."""
    seed: int = 0
    text: str | None = None
    """What it answers, whatever is asked."""
    model: str = ""
    attempt: int = 0
    """Of a repeated question: another attempt is another draw."""

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Persona:
        """From a model's parameters; those that are not a mock's are passed over, as real models do with them.

        Raises:
            ConfigError: a value of the wrong kind.
        """
        known = {key: parameters[key] for key in cls.__dataclass_fields__ if parameters.get(key) is not None}
        for key, value in known.items():
            _check(key, value)
        return cls(**known)

    def skill_at(self, prompt: str) -> float:
        """Its skill at this prompt."""
        if not isinstance(self.skill, Mapping):
            return float(self.skill)
        found = (level for part, level in self.skill.items() if part.lower() in prompt.lower())
        return float(next(found, self.skill.get("default", 0.5)))

    def uniform(self, *about: object) -> float:
        """A number in (0, 1) that depends on the persona and on what it is about, and on nothing else."""
        text = repr((self.model, self.seed, self.attempt, *about)).encode("utf-8", "surrogatepass")
        return (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") + 0.5) / 2**64

    def error(self, *about: object) -> float:
        """A normal deviate times the noise."""
        return self.noise * _NORMAL.inv_cdf(min(max(self.uniform(*about), 1e-9), 1 - 1e-9)) if self.noise else 0.0


def _check(key: str, value: Any) -> None:
    if key == "skill" and isinstance(value, Mapping):
        for part, level in value.items():
            _check_number(f"skill of {part!r}", level, highest=1.0)
    elif key not in ("text", "model"):
        _check_number(key, value, highest=1.0 if key in (*_SHARES, "skill") else None)


def _check_number(key: str, value: Any, highest: float | None) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    in_range = is_number and (highest is None or 0.0 <= value <= highest)
    if not in_range or (key in ("noise", "latency") and value < 0):
        wanted = f"a number from 0 to {highest:g}" if highest else "a number of the right sign"
        raise ConfigError(f"mock: {key}: {value!r} is not {wanted}")
