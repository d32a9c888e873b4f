"""Held-out loss over the number of votes and parameters, with a fitted law."""
