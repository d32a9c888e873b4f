"""The commands of `coeval`, one module each."""

__all__: list[str] = []
