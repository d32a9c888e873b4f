"""Coefficients and a budget in, a decision out: pure functions, no input or output but the scoring of prompts."""
