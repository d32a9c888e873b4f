"""The published lists of blocks, categories, metrics and sizes: the defaults of the flags of `p2l auto-evals`.

Nothing is imported here, so that `--help` answers at once.
"""

from __future__ import annotations

MODEL_TYPES = ("p2l", "marginal", "arena", "marginal-gt")
TRUTHS = ("marginal-gt", "arena")
PARTS = ("simple", "category", "random_subsets", "aggr_scale")
CATEGORIES = ("all", "creative_writing", "math", "language=Chinese", "is_code", "hard")
SIMPLE_METRICS = (
    *("Loss", "BCELoss", "MSELoss", "Accuracy", "Tie_Loss", "Tie_Accuracy", "Tie_bb_Loss", "Tie_bb_Accuracy"),
    *("Mean-BT", "Std-BT", "Spread-BT", "Mean-Spread-BT", "Mean-IQR-BT", "Mean-Std-BT"),
)
CATEGORY_METRICS = (
    *("Leaderboard", "Aggr_Loss", "Aggr_BCELoss", "Aggr_Tie_Loss", "Aggr_Tie_Accuracy", "Aggr_Tie_bb_Loss"),
    *("Aggr_Tie_bb_Accuracy", "L1-Dist-Prob", "Spearman-lbs", "Kendall-lbs", "IQR-BT", "Std-BT", "Spread-BT"),
    *("Top-k-fraction", "Top-k-displace"),
)
SUBSET_METRICS = ("L1-Dist-Prob", "Spearman-lbs", "Kendall-lbs")
SUBSET_SIZES, SUBSET_SAMPLES = (250, 500, 1000, 2000), (50, 20, 5, 3)
SCALE_SIZES, SCALE_SAMPLES = (1, 10, 25, 100, 250, 500, 1000, 2000), (500, 500, 500, 200, 100, 40, 10, 6)
