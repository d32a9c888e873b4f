"""How judges grade: on which scale, with a rationale or without, and what weight each factor has."""
