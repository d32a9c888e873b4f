"""Judging: the prompts, and how a judge's reply becomes a score."""
