"""Evaluation of what models said of votes: simple metrics, leaderboards by category, aggregation, intervals."""
