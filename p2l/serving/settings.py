"""What the command line asks of the endpoint: its flags, and the settings that they become."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
from dataclasses import dataclass, field, fields, replace
from typing import Any

from p2l.common import cli
from p2l.common.access import add_address_flags, digest_of, new_key, weakness_of
from p2l.common.cli import above_zero, amount, parser, positive, whole
from p2l.common.connections import add_connection_flags
from p2l.common.errors import ConfigError
from p2l.common.prompts import MAX_CHARS, MAX_TURNS
from p2l.public import PUBLIC


@dataclass(frozen=True)
class Settings:
    """The flags of `p2l endpoint` that the workers need."""

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


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of `p2l endpoint`, which `p2l.serving.ray_app` takes too."""
    flags = parser("p2l endpoint", "Serve a trained model over HTTP: leaderboards of LLMs for single prompts.")
    _add_model_flags(flags.add_argument_group("model"))
    _add_server_flags(flags.add_argument_group("server"))
    _add_limit_flags(flags.add_argument_group("limits"))
    add_connection_flags(flags.add_argument_group("connections"), idle_seconds=5.0)
    _add_ray_flags(flags.add_argument_group("Ray Serve"))
    flags.hide_rare("--model-type", "--head-type", "--loss-type", "--streams")
    flags.hide_rare("--max-batch-tokens", "--max-wait-ms", "--max-turns", "--max-chars", "--reload")
    flags.hide_rare("--header-seconds", "--idle-seconds", "--max-connections", "--max-peer-connections")
    return flags


def _add_model_flags(group: argparse._ArgumentGroup) -> None:
    about = "folder or hub id (default: the newest of --watch, else the public model of this package)"
    cli.add_model_flag(group, about, "-m", dest="model_path", metavar="MODEL")
    cli.add_kind_flags(group)
    # As the published commands have it.
    group.add_argument("--cuda", dest="device", action="store_const", const="cuda", help=argparse.SUPPRESS)
    group.add_argument("--no-cuda", dest="device", action="store_const", const="cpu", help=argparse.SUPPRESS)
    group.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto", help="auto measures")
    group.add_argument(
        "--quantize", choices=["int8"], help="smaller and faster on a CPU; refused where the error is too large"
    )
    group.add_argument(
        "--watch", metavar="DIR", help="serve the newest complete model in DIR, and each that arrives later"
    )


def _add_server_flags(group: argparse._ArgumentGroup) -> None:
    add_address_flags(group, host="0.0.0.0", port_number=10250)
    cli.add_server_flags(group, workers="processes, each with a copy of the model", max_body_mb=8.0)
    group.add_argument(
        "--api-key",
        "-a",
        help="what clients send as api-key (default: $P2L_API_KEY, or a random key when other machines can connect)",
    )
    group.add_argument(
        "--admin-key", help="what POST /reload needs as api-key (default: $P2L_ADMIN_KEY; none: no reload)"
    )
    group.add_argument(
        "--page", action=argparse.BooleanOptionalAction, default=True, help="a page at / that shows leaderboards"
    )
    group.add_argument(
        "--clusters", metavar="FILE", help="kinds of prompts that the page compares with, of p2l explain --output"
    )
    group.add_argument("--log-prompts", action="store_true", help="write prompts to the log")


def _add_limit_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--cache-size", type=whole, default=8192, help="answers remembered; 0: none")
    group.add_argument(
        "--score-cache",
        metavar="URL",
        help="redis://HOST:6379/0: answers that workers share (default: $P2L_SCORE_CACHE)",
    )
    group.add_argument("--max-batch-tokens", type=positive, help="tokens of a forward pass (default: by device)")
    group.add_argument("--max-wait-ms", type=amount, help="wait for a fuller batch (default: 2 on a GPU, else 0)")
    group.add_argument(
        "--streams",
        type=whole,
        help="threads that compute; 0: the event loop itself (default: by device and model)",
    )
    group.add_argument("--max-turns", type=positive, default=MAX_TURNS, help="turns of a request, of all its prompts")
    group.add_argument("--max-chars", type=positive, default=MAX_CHARS, help="characters of a prompt")
    group.add_argument("--deadline", type=above_zero, default=60.0, help="seconds that a request may take")


def _add_ray_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--ray", action="store_true", help="workers as replicas of Ray Serve, on this machine (pip install 'p2l[ray]')"
    )
    group.add_argument(
        "--max-workers",
        type=positive,
        help="start up to this many workers while requests queue (default: --workers)",
    )
    group.add_argument(
        "--queue-per-worker",
        type=above_zero,
        help="requests at each worker beyond which another starts (default: 8)",
    )
    group.add_argument(
        "--models", type=_named_model, nargs="+", default=[], metavar="ID=MODEL", help="more models, each at /m/ID"
    )


def _named_model(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name) or not path:
        raise argparse.ArgumentTypeError(f"must be ID=FOLDER, the id of letters, digits, dots and dashes, got {text!r}")
    return name, path


def scaling_of(flags: argparse.Namespace) -> Scaling:
    """Return how many replicas there are; ConfigError where the flags contradict each other."""
    most = flags.max_workers or flags.workers
    if most < flags.workers:
        raise ConfigError(f"--max-workers {most} is less than --workers {flags.workers}; raise it or leave it out")
    if flags.queue_per_worker and most == flags.workers:
        raise ConfigError("--queue-per-worker decides when workers are added; give --max-workers, or leave it out")
    if len(dict(flags.models)) < len(flags.models):
        raise ConfigError("--models: an id is there twice; give each model its own")
    return Scaling(flags.workers, most, flags.queue_per_worker or Scaling.queue)


def settings_of(flags: argparse.Namespace) -> Settings:
    """Return what the workers need, keys as digests; ConfigError for a key that is empty.

    Without a model and a folder to watch it is the public one. Without a key, where other machines can connect, the
    server makes one.
    """
    names = {field.name for field in fields(Settings)}
    typed: dict[str, Any] = {name: value for name, value in vars(flags).items() if name in names}
    typed["model_path"] = flags.model_path or ("" if flags.watch else PUBLIC)
    typed["dtype"] = None if flags.dtype == "auto" else flags.dtype
    typed["score_cache"] = _score_cache(flags.score_cache or os.environ.pop("P2L_SCORE_CACHE", None))
    settings = Settings(**typed)
    api_key = _key("--api-key", flags.api_key, "P2L_API_KEY")
    admin_key = _key("--admin-key", flags.admin_key, "P2L_ADMIN_KEY")
    weakness = None if admin_key is None else weakness_of(admin_key)
    if weakness is not None:
        raise ConfigError(f"--admin-key (or $P2L_ADMIN_KEY) {weakness}")
    api, admin = (None if key is None else digest_of(key) for key in (api_key, admin_key))
    return replace(settings, api_key_digest=api, admin_key_digest=admin)


def _score_cache(url: str | None) -> str | None:
    if url is None:
        return None
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ConfigError(
            "--score-cache (or $P2L_SCORE_CACHE): not the URL of a Redis server; write redis://HOST:6379/0"
        )
    if importlib.util.find_spec("redis") is None:
        raise ConfigError("--score-cache needs a package: pip install 'p2l[ray]'")
    return url


def _key(flag: str, typed: str | None, variable: str) -> str | None:
    from_environment = os.environ.pop(variable, None)  # nor do workers inherit it
    key = from_environment if typed is None else typed
    if key is not None and not key.strip():
        raise ConfigError(f"{flag} (or ${variable}) is empty; pass a key, or leave it out")
    return None if key is None else key.strip()  # HTTP drops white space around a header's value
