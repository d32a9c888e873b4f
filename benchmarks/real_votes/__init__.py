"""How well do models trained here predict votes that are not simulated? Held-out prompts, beside their baselines."""

from __future__ import annotations
