"""How well does a router on a P2L choose, on five public sets of graded answers?"""

from __future__ import annotations
