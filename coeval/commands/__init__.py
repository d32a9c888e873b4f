"""The commands of `coeval`, one module each."""
