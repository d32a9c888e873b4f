"""A simulated arena with a known truth: its models, its prompts, its votes. `p2l.simulate` is the command."""

from __future__ import annotations

from p2l.simulation.arena import Arena, Examples, Truth, VoteChunk, simulate
from p2l.simulation.config import SimulationConfig

__all__ = ["Arena", "Examples", "SimulationConfig", "Truth", "VoteChunk", "simulate"]
