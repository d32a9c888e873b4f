"""Answers compared in pairs: the verdicts of judges, preferences from scores, and what P2L trains on."""
