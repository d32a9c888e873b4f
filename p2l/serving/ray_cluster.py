"""Ray, where it is installed: on this machine alone, closed to everybody else, or the cluster of RAY_ADDRESS."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from p2l.common.errors import ConfigError

_STORE_BYTES = 2**27
ADDRESS = "RAY_ADDRESS"
_NICENESS = "RAY_worker_niceness"


def check_installed() -> None:
    """Raise ConfigError where there is no Ray."""
    if importlib.util.find_spec("ray") is None:  # not ray.serve: that would import Ray before its environment is set
        raise ConfigError("--ray needs Ray, which is not installed: pip install 'p2l[ray]'")


@contextlib.contextmanager
def local_cluster(folder: Path, cpus: int) -> Iterator[Any]:
    """Start Ray on this machine alone, with its files in `folder`; yield the package, and end it.

    Everything listens on loopback and asks for a token that only this user can read; there is no dashboard. By itself
    Ray would listen for other machines, keep a token in the home directory, and report its use.
    """
    token = folder / "ray.token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32), "ascii")
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the address of this node is then loopback's
        "RAY_ENABLE_AUTO_CONNECT": "0",  # a thread that comes late would start another cluster
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray lets its workers give way to all others (15); here a request waits for them.
        _NICENESS: os.environ.get(_NICENESS, "0"),
    }
    import ray

    before = signal.getsignal(signal.SIGTERM)
    ray.init(
        address="local",
        num_cpus=cpus,
        object_store_memory=_STORE_BYTES,
        include_dashboard=False,
        logging_level=logging.WARNING,
        _temp_dir=str(folder / "ray"),
    )
    signal.signal(signal.SIGTERM, before if callable(before) else _end)  # Ray's own would leave its processes behind
    try:
        yield ray
    finally:
        ray.shutdown()


def _end(*_: object) -> None:
    sys.exit(128 + signal.SIGTERM)


@contextlib.contextmanager
def any_cluster(cpus: int) -> Iterator[Any]:
    """Join the cluster of RAY_ADDRESS, or start one on this machine; yield the package, and leave it."""
    with contextlib.ExitStack() as stack:
        if not os.environ.get(ADDRESS):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="p2l-ray-", ignore_cleanup_errors=True))
            yield stack.enter_context(local_cluster(Path(folder), cpus))
            return
        import ray

        ray.init(logging_level=logging.WARNING)
        stack.callback(ray.shutdown)
        yield ray
