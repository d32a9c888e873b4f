"""Files of votes and scores as other tools write them, one entry of a registry each, behind one door."""

from __future__ import annotations

from p2l.votes.kinds.kind import Kind, Record, Sample
from p2l.votes.kinds.registry import KINDS, register

__all__ = ["KINDS", "Kind", "Record", "Sample", "register"]
