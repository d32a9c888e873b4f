"""Command: an HTTP service for one model. `python -m p2l.endpoint --model DIR`, or `p2l endpoint`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from p2l.common.access import check_address
from p2l.common.cli import need, run
from p2l.common.connections import limits_of
from p2l.common.errors import ConfigError
from p2l.serving.ray_cluster import check_installed
from p2l.serving.settings import build_parser as build_parser
from p2l.serving.settings import scaling_of, settings_of


def main(argv: Sequence[str] | None = None) -> int | None:
    """Check everything, then serve until stopped."""
    flags = build_parser().parse_args(argv)
    _check(flags)
    need("torch", "fastapi", "starlette")
    check_address(flags.host, flags.port)
    limits = limits_of(flags)
    settings = settings_of(flags)
    if flags.ray:
        check_installed()
        from p2l.serving.ray_app import serve_on_ray

        return serve_on_ray(settings, scaling_of(flags), dict(flags.models), flags.host, flags.port, limits)

    from p2l.serving.server import serve

    return serve(settings, flags.host, flags.port, limits, reload=flags.reload)


def _check(flags: argparse.Namespace) -> None:
    """Raise ConfigError for flags that contradict each other."""
    if flags.reload and flags.workers > 1:
        raise ConfigError("--reload goes with one worker; leave out --reload or --workers")
    if flags.quantize and flags.dtype != "auto":
        raise ConfigError(f"--quantize {flags.quantize} decides the dtype; leave out --dtype or --quantize")
    if flags.streams == 0 and flags.max_wait_ms:
        raise ConfigError("the event loop cannot wait for a fuller batch; leave out --streams 0 or --max-wait-ms")
    if flags.ray and flags.reload:
        raise ConfigError("--reload restarts a plain endpoint on changed code; leave out --reload or --ray")
    if not flags.ray:
        of_ray = {"--max-workers": flags.max_workers, "--queue-per-worker": flags.queue_per_worker}
        of_ray["--models"] = flags.models
        for name in (name for name, typed in of_ray.items() if typed):
            raise ConfigError(f"{name} is of Ray Serve; add --ray, or leave it out")
    scaling_of(flags)


if __name__ == "__main__":
    run(main)
