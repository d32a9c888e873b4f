"""Asking models: turns, retries, quotas, dollars and kept answers."""
