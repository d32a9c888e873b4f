"""Where a service listens: refused before anything large is loaded."""

from __future__ import annotations

import argparse
import socket

from p2l.errors import ConfigError

__all__ = ["check_address", "port"]


def port(text: str) -> int:
    """A port, for `type=` of a flag."""
    number = int(text)
    if not 0 < number < 65536:
        raise argparse.ArgumentTypeError(f"must be from 1 to 65535, got {number}")
    return number


def check_address(host: str, number: int) -> None:
    """Listen on an address for a moment.

    Raises:
        ConfigError: that cannot be done.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            trial.listen()
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{number}: {error.strerror or error}; choose another --port or --host"
        ) from error
