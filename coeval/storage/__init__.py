"""The folder of a run: its records, its state, its log."""
