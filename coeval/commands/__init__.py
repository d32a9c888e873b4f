"""The commands of `coeval`, a module for each group."""
