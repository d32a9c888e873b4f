"""The flags of the command that the workers need."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2l.common.access import new_key

FALLBACKS = ("average", "static_order", "dearest")
"""Ways to decide without scores: the average leaderboard of earlier prompts, the configured order, or the cost."""


@dataclass(frozen=True)
class Settings:
    """The flags of `route.openai_server` that the workers need."""

    config: str
    """Path of the configuration."""
    router_type: str
    router_model_name: str | None = None
    """Folder or hub id of the P2L model, for the types that run it in the process."""
    router_model_endpoint: str | None = None
    """URL of the P2L endpoint."""
    router_api_key: str | None = field(default=None, repr=False)
    """The API key of the P2L endpoint."""
    cost_optimizer: str | None = None
    """None: what goes with the router type."""
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Digests of keys without limits, beside those of the configuration."""
    direct_by_name: bool = False
    workers: int = 1
    max_body_mb: float = 20.0
    traces: str | None = None
    """URL of the collector of traces, over OTLP/HTTP."""
    trace_prompts: bool = False
    """Whether spans hold prompts."""
    peers: str | None = None
    """Folder in which the workers find one another; None: there is one worker."""
    database: str | None = None
    """Overrides the configuration's: workers without one share a database in the control folder."""
    page_secret: str = field(default_factory=new_key, repr=False)
    """Signs the sessions of the console; the workers of one service have the same."""
