"""Online training: votes come in time order, models come and go, and nothing is forgotten."""

from __future__ import annotations

__all__: list[str] = []
