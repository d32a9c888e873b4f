"""A run in a browser: the ranking, and from any score the item that it is of."""
