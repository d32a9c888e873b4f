"""Metrics, logs and traces of the router, for its operators."""
