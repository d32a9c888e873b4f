"""Online training: votes come in time order, models come and go, and nothing is forgotten."""
