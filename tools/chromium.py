"""The browser with which tests, pictures and benchmarks open pages."""

from __future__ import annotations

import shutil

__all__ = ["CHROMIUM", "FLAGS"]

# The shell has no window to draw, and takes half of the computing.
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, _NAMES)), None)
"""Path of the first that is installed (`make browser`), None without."""
FLAGS = ["--no-sandbox", "--disable-gpu"]
"""No sandbox, for tests often run as root; no graphics card, for which a machine without one would compute."""
