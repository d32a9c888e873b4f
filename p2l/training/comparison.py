"""Whether a trained model reads prompts: its loss on held-out votes beside that of one leaderboard for all prompts.

Training prints it, writes it into `comparison.json`, and `p2l report` begins with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2l.common.files import parse_json
from p2l.metrics import Interval

COMPARISON_FILE = "comparison.json"
_SIDES = ("one_leaderboard", "model")


@dataclass(frozen=True)
class HeldOutComparison:
    """Two predictions of the same held-out votes."""

    votes: int
    prompts: int
    one_leaderboard: dict[str, float]
    """Loss and Accuracy."""
    model: dict[str, float]
    gain: Interval
    """Nats per vote that the model's loss is lower by, 95 % interval clustered by prompt."""
    factor: float | None = None
    """The model's share where it is shrunk towards one leaderboard; None where it is not."""
    folds: int | None = None
    """Of cross-fitting: each vote is predicted by a model trained on other folds; None: the votes were held out."""

    @property
    def verdict(self) -> str:
        """The conclusion in words."""
        if self.factor == 0:
            return (
                "The votes do not show that the model reads prompts, so it is one leaderboard for all of them. "
                "Bring more votes, or another --size or --backbone."
            )
        if self.gain.lower > 0:
            return "The model reads prompts: it forecasts votes on new prompts better than any one leaderboard."
        if self.gain.upper < 0:
            return (
                "The model is worse than one leaderboard for all prompts: do not use it. Bring more votes, "
                "or another --size or --backbone."
            )
        return (
            "The votes do not show that the model reads prompts: the interval contains zero. "
            "Bring more votes, or another --size or --backbone."
        )

    @property
    def finding(self) -> str:
        """The conclusion in one sentence with its interval, as a report begins."""
        gain, where = self.gain, "held-out votes" if self.folds is None else f"votes in {self.folds} folds"
        ends = f"95% interval {gain.lower:.4f} to {gain.upper:.4f}"
        over = f"than that of one leaderboard on {self.votes:,} {where}"
        if self.factor == 0:
            return (
                "The votes do not show that the model reads prompts, so it is one leaderboard for all of them "
                f"({ends})."
            )
        if gain.lower > 0:
            return f"The model reads prompts: its loss is {gain.estimate:.4f} nats a vote lower {over} ({ends})."
        if gain.upper < 0:
            return (
                f"The model is worse than one leaderboard: its loss is {-gain.estimate:.4f} nats a vote higher "
                f"{over} ({ends} for the gain)."
            )
        return (
            f"The votes do not show that the model reads prompts: its loss is {abs(gain.estimate):.4f} nats a vote "
            f"{'lower' if gain.estimate >= 0 else 'higher'} {over}, and the {ends} holds zero."
        )

    @property
    def shrunk(self) -> str:
        """How far the model was shrunk towards one leaderboard, in words; empty where it was not."""
        return "" if self.factor is None else _share(self.factor)

    @classmethod
    def read(cls, folder: Path) -> HeldOutComparison | None:
        """Read the comparison of a run's folder; None where it has none or one that cannot be read."""
        try:
            content = parse_json((folder / COMPARISON_FILE).read_text(encoding="utf-8"))
            estimate, lower, upper = (float(content["gain"][name]) for name in ("estimate", "lower", "upper"))
            board, model = ({name: float(content[side][name]) for name in ("Loss", "Accuracy")} for side in _SIDES)
            sizes = int(content["votes"]), int(content["prompts"])
            gain = Interval(estimate, lower, upper, float("nan"))
            return cls(*sizes, board, model, gain, content["factor"], content["folds"])
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def to_text(self) -> str:
        """Return a short table and the verdict."""
        gain = self.gain
        interval = f"95 % interval {gain.lower:.4f} to {gain.upper:.4f}"
        rows = (("one leaderboard for all prompts", self.one_leaderboard), ("this model", self.model))
        how = "held-out votes" if self.folds is None else f"votes, in {self.folds} folds,"
        return "\n".join(
            [
                f"{f'{self.votes:,} {how} on {self.prompts:,} prompts':<46} loss     accuracy",
                *(f"{name:<46} {row['Loss']:.4f}   {row['Accuracy']:>8.1%}" for name, row in rows),
                f"{'gain in nats per vote':<46} {gain.estimate:.4f}   ({interval})",
                *([f"{'shrunk towards one leaderboard':<46} {self.shrunk}"] if self.shrunk else []),
                self.verdict,
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, for comparison.json."""
        gain = {name: float(getattr(self.gain, name)) for name in ("estimate", "lower", "upper")}
        names = ("votes", "prompts", "one_leaderboard", "model", "factor", "folds")
        return {name: getattr(self, name) for name in names} | {"gain": gain}


def _share(factor: float) -> str:
    ends = {0.0: "coefficients are its own: prompts make no difference", 1.0: "not at all"}
    return ends.get(factor, f"coefficients keep {100 * factor:.3g} % of their distance from it")
