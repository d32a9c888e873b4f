"""Paths as users write them, looked at without an exception where one cannot be: it is not there then."""

from __future__ import annotations

from pathlib import Path

__all__ = ["expanded", "is_folder", "is_there"]


def expanded(text: str | Path) -> Path:
    """A path with `~` as the user's home; as it is where nobody knows that home."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def is_there(path: Path) -> bool:
    """Whether something is at a path; not where it is too long, or may not be looked at."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether a path is that of a folder."""
    return is_there(path) and path.is_dir()
