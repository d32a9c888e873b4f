"""What models cost, and what a run will."""
