"""Where a run lies: its folder, its records, what it knows of itself."""
