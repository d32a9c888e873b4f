"""The public P2L of real LLMs that comes with the package: its weights, and the names of the LLMs that it knows."""

from p2l.public.names import Names

__all__ = ["PUBLIC", "Names"]

PUBLIC = "p2l-public"
"""The name that stands for the public model where a folder or hub id would."""
