"""A run in a browser: the ranking and, one click from any score, the item behind it."""
