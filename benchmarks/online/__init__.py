"""How much of what naive training on a stream forgets does each schedule keep?"""

from __future__ import annotations
