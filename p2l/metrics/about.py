"""The meaning of each metric, in one sentence for readers of reports, and the form of its values.

Shares are percentages wherever people read them, in terminals and on pages; files hold the plain number. Spreads of
coefficients are written in points of an arena score, of which 400 are odds of 10 to 1 and 174 are one unit of a file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_POINTS = 400.0 / math.log(10.0)


@dataclass(frozen=True)
class About:
    """A metric for readers.

    Attributes:
        title: its name in words.
        unit: `nats`, `share`, `points`, or empty for a plain number such as a correlation.
        better: `lower`, `higher`, or empty where neither is better.
        meaning: one sentence.
    """

    title: str
    unit: str
    better: str
    meaning: str

    def text(self, value: float) -> str:
        """Return a value as it is printed: `48.1%`, `1.1023`, `173 points`."""
        if self.unit == "share":
            return f"{value:.1%}"
        return f"{_POINTS * value:,.0f} points" if self.unit == "points" else f"{value:.4f}"

    @property
    def sentence(self) -> str:
        """The meaning, and which way is better."""
        return f"{self.meaning} {self.better.capitalize()} is better." if self.better else self.meaning


# Every metric of votes and leaderboards, by its name in files.
ABOUT: dict[str, About] = {
    "Loss": About(
        "Loss",
        "nats",
        "lower",
        "Minus the logarithm of the chance that was given to what happened, a vote on average; a sure and right "
        "forecast has 0, an even guess among four outcomes 1.39, among two 0.69.",
    ),
    "BCELoss": About(
        "Loss of decided votes",
        "nats",
        "lower",
        "The same for votes with a winner, as if there were no ties: an even guess has 0.69.",
    ),
    "MSELoss": About(
        "Squared error",
        "",
        "lower",
        "The square of what was missing to certainty of what happened, a vote on average: between 0 and 1.",
    ),
    "Brier": About(
        "Brier score", "", "lower", "The squared distance of all chances from what happened: 0 is perfect, 2 the worst."
    ),
    "RPS": About(
        "Ranked probability score",
        "",
        "lower",
        "Squared distance of the cumulated chances of loss, tie and win, so that a tie taken for a win costs less "
        "than a loss: between 0 and 1.",
    ),
    "Accuracy": About(
        "Accuracy",
        "share",
        "higher",
        "How often the likeliest outcome happened. Votes are noisy, so even the truth itself is far from 100%.",
    ),
    "Tie_Loss": About(
        "Loss of ties",
        "nats",
        "lower",
        "Loss of the forecast whether a vote ends in a tie of any kind: an even guess has 0.69.",
    ),
    "Tie_Accuracy": About(
        "Accuracy of ties", "share", "higher", "How often it was right whether a vote ends in a tie of any kind."
    ),
    "Tie_bb_Loss": About(
        "Loss of “both bad”",
        "nats",
        "lower",
        "Loss of the forecast whether both answers are called bad: an even guess has 0.69.",
    ),
    "Tie_bb_Accuracy": About(
        "Accuracy of “both bad”", "share", "higher", "How often it was right whether both answers are called bad."
    ),
    "ECE": About(
        "Calibration error",
        "share",
        "lower",
        "By how much chances differ from how often it came true, over all outcomes; even a perfect forecast has "
        "some with few votes.",
    ),
    "ECE-win": About("Calibration error of wins", "share", "lower", "The same for the chance that a model wins."),
    "ECE-tie": About("Calibration error of ties", "share", "lower", "The same for the chance of a tie."),
    "ECE-bothbad": About(
        "Calibration error of “both bad”", "share", "lower", "The same for the chance that both answers are called bad."
    ),
    "Mean-BT": About(
        "Mean coefficient", "points", "", "The mean of all coefficients; where only differences count it says nothing."
    ),
    "Std-BT": About(
        "Standard deviation of coefficients",
        "points",
        "",
        "How far coefficients are apart, over models and prompts together.",
    ),
    "Spread-BT": About(
        "Range of coefficients",
        "points",
        "",
        "From the least to the greatest coefficient, over models and prompts together.",
    ),
    "Mean-Spread-BT": About(
        "Range on a prompt",
        "points",
        "",
        "From the worst to the best model of a prompt, on average: how much a prompt tells models apart.",
    ),
    "Mean-IQR-BT": About(
        "Quartiles on a prompt", "points", "", "The range of the middle half of the models of a prompt, on average."
    ),
    "Mean-Std-BT": About(
        "Standard deviation on a prompt", "points", "", "How far the models of a prompt are apart, on average."
    ),
    "Skill": About(
        "Skill",
        "share",
        "higher",
        "The share of the loss of one leaderboard for all prompts that the model saves: 0% is no better than that "
        "leaderboard.",
    ),
    "Aggr_Loss": About(
        "Loss of the leaderboard", "nats", "lower", "Loss of the same votes when one leaderboard forecasts all of them."
    ),
    "Aggr_BCELoss": About(
        "Loss of the leaderboard, decided votes",
        "nats",
        "lower",
        "The same for votes with a winner, as if there were no ties.",
    ),
    "Aggr_Tie_Loss": About(
        "Loss of the leaderboard, ties", "nats", "lower", "The same for whether a vote ends in a tie."
    ),
    "Aggr_Tie_Accuracy": About(
        "Accuracy of the leaderboard, ties",
        "share",
        "higher",
        "How often one leaderboard is right whether a vote ends in a tie.",
    ),
    "Aggr_Tie_bb_Loss": About(
        "Loss of the leaderboard, “both bad”", "nats", "lower", "The same for whether both answers are called bad."
    ),
    "Aggr_Tie_bb_Accuracy": About(
        "Accuracy of the leaderboard, “both bad”",
        "share",
        "higher",
        "How often one leaderboard is right whether both answers are called bad.",
    ),
    "L1-Dist-Prob": About(
        "Distance of chances",
        "share",
        "lower",
        "By how much the chances of two models differ between both leaderboards, over all pairs and outcomes on "
        "average.",
    ),
    "Spearman-lbs": About(
        "Rank correlation (Spearman)",
        "",
        "higher",
        "Whether both leaderboards have the same order: 1 is the same, 0 no relation, −1 the reverse.",
    ),
    "Kendall-lbs": About(
        "Rank correlation (Kendall)",
        "",
        "higher",
        "Pairs of models in the same order less pairs in the other one, as a share of all pairs: between −1 and 1.",
    ),
    "IQR-BT": About("Quartiles of the leaderboard", "points", "", "The range of the middle half of its models."),
    "Top-k-fraction": About(
        "Top models in common", "share", "higher", "The share of the best k models that both leaderboards name."
    ),
    "Top-k-displace": About(
        "Displacement of top models",
        "",
        "lower",
        "The places by which the best k models of the ground truth are displaced, on average.",
    ),
    "Leaderboard": About("Leaderboard", "", "", "Both leaderboards, model by model."),
}


def about(name: str) -> About:
    """Return the entry of a metric; a metric without one speaks for itself."""
    return ABOUT.get(name) or About(name, "", "", "")
