"""Batch jobs, which a provider answers within a day for less, and which outlive the process that submitted them."""
