"""`python -m coeval`."""

from __future__ import annotations

from coeval.cli import main

if __name__ == "__main__":
    main()
