"""The older name of the package `route`; only its command is here."""

__all__: list[str] = []
