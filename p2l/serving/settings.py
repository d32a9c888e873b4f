"""What the command line asks of the service."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2l.common.access import new_key
from p2l.common.prompts import MAX_CHARS, MAX_TURNS


@dataclass(frozen=True)
class Settings:
    """The flags of `p2l.endpoint` that the workers need."""

    model_path: str
    model_type: str | None = None
    head_type: str | None = None
    loss_type: str | None = None
    max_length: int | None = None
    device: str | None = None
    """None: the GPU if there is one."""
    dtype: str | None = None
    """float32 or bfloat16; None: whichever is faster here."""
    dtype_reason: str = "as asked"
    quantize: str | None = None
    """int8, or None."""
    api_key_digest: str | None = None
    """None lets everybody in."""
    admin_key_digest: str | None = None
    """None lets nobody reload."""
    watch: str | None = None
    log_prompts: bool = False
    queue_size: int = 1024
    cache_size: int = 8192
    max_batch_tokens: int | None = None
    """None: what suits the device."""
    max_wait_ms: float | None = None
    streams: int | None = None
    """Threads that compute; None: what suits device and model."""
    max_body_mb: float = 8.0
    max_turns: int = MAX_TURNS
    """Of a request, those of all its prompts together."""
    max_chars: int = MAX_CHARS
    """Of a prompt."""
    deadline: float = 60.0
    """Seconds that a request may take."""
    cores: int | None = None
    """That a worker computes with; None: as many as torch would take."""
    workers: int = 1
    control: str = ""
    """The folder in which the workers of one service tell each other what to load."""
    page: bool = True
    """Whether a page is served at /."""
    page_secret: str = field(default_factory=new_key, repr=False)
    """Signs the sessions of the page; the workers of one service have the same."""
    clusters: str | None = None
    """Path of what `p2l explain --output` wrote, for the page."""
    score_cache: str | None = field(default=None, repr=False)
    """URL of a Redis in which the answers of all workers are; None: each remembers its own."""
    in_turn: bool = False
    """Whether workers load a new model one after the other, so that only one holds two at a time."""


@dataclass(frozen=True)
class Scaling:
    """How many replicas of a model Ray Serve runs."""

    least: int = 1
    most: int = 1
    queue: float = 8.0
    """Requests at each replica, on average, beyond which another starts."""
    gpus: float = 0.0
    """Of each replica."""
    cpus: float = 1.0
