"""Command: `coeval view --run DIR`, a run in a browser: the ranking and, one click from any score, the item behind it.

It is served read-only, or written to a folder for any web server with `--bundle`. Exit code 1 where the folder holds no
run, or the other cannot be written.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coeval.cli import run_flags
from p2l.common.access import add_address_flags, check_address, digest_of, is_loopback, new_key
from p2l.common.connections import add_connection_flags, limits_of
from p2l.common.errors import ConfigError

if TYPE_CHECKING:
    from coeval.view.site import Site

_KEY_NAME = "COEVAL_VIEW_KEY"


def build_parser() -> ArgumentParser:
    """Return the flags."""
    flags = run_flags("view", "Show a run in a browser: the ranking and, one click from any score, the item behind it.")
    flags.add_argument(
        "--bundle", type=Path, metavar="DIR", help="write the pages to this new folder, for any web server, and end"
    )
    server = flags.add_argument_group("server")
    add_address_flags(server, host="127.0.0.1", port_number=8050)
    server.add_argument(
        "--key",
        help=f"what readers type once (default: ${_KEY_NAME}; else none on this machine, and a random one for others)",
    )
    add_connection_flags(flags.add_argument_group("connections"), idle_seconds=5.0)
    flags.hide_rare("--header-seconds", "--idle-seconds", "--max-connections", "--max-peer-connections")
    return flags


def main(argv: Sequence[str] | None = None) -> int | None:
    """Serve a run until interrupted, or write its pages. Raise InputError if one of the folders cannot be used."""
    flags = build_parser().parse_args(argv)
    if flags.bundle is not None:
        site = _site(flags.run)
        size = site.write(flags.bundle)
        files = sum(1 for _ in site.paths())
        print(f"wrote {files:,} files, {size / 1e6:.1f} MB; open {flags.bundle / 'index.html'} through a web server")
        return 0
    check_address(flags.host, flags.port)
    limits, key = limits_of(flags), _key(flags.key, flags.host)
    site = _site(flags.run)
    for path in ("index.html", "items.html"):  # what they compute of the whole run is then there for the first reader
        site.read(path)
    from coeval.view.serving import serve

    host = f"[{flags.host}]" if ":" in flags.host else flags.host
    print(f"{site.summary()}; open http://{host}:{flags.port}/", flush=True)
    serve(site, flags.host, flags.port, None if key is None else digest_of(key), limits)
    return None


def _site(run: Path) -> Site:
    from coeval.analysis.units import load_run
    from coeval.view.site import Site

    site = Site(load_run(run))
    if site.loaded.header.partial:
        print(f"note: {run} is {site.loaded.header.status}: this shows what it holds now", file=sys.stderr)
    return site


def _key(typed: str | None, host: str) -> str | None:
    """Return what readers have to type; None where browsers of this machine need nothing."""
    key = os.environ.get(_KEY_NAME) if typed is None else typed
    if key is not None and not key.strip():
        raise ConfigError(f"--key (or ${_KEY_NAME}) is empty; pass a key, or leave it out")
    if key is None and not is_loopback(host):
        key = new_key()
        print(f"no --key was given; readers type this one: {key}", flush=True)
    return None if key is None else key.strip()
