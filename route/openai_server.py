"""Command: the OpenAI-compatible router. `python -m route.openai_server -c config.yaml`, or `p2l-route serve`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import fields, replace

from p2l.common.access import check_address, digest_of, new_key, port
from p2l.common.cli import above_zero, parser, positive, run
from p2l.common.connections import add_connection_flags, limits_of
from p2l.common.errors import ConfigError
from route.service.settings import Settings

_KEY_VARIABLE = "P2L_ROUTER_KEY"
_ENDPOINT_KEY_VARIABLE = "P2L_API_KEY"


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    flags = parser("python -m route.openai_server", "Route chat completions to the best model within a budget.")
    flags.add_argument("--config", "-c", required=True, help="the models, their costs and limits: a YAML file")
    _add_choice_flags(flags)
    _add_server_flags(flags)
    # Longer than clients keep idle connections, so that none is closed under a request.
    add_connection_flags(flags.add_argument_group("connections"), idle_seconds=75.0)
    return flags


def _add_choice_flags(flags: argparse.ArgumentParser) -> None:
    group = flags.add_argument_group("choice")
    group.add_argument(
        "--router-type",
        default="bt-endpoint",
        help="where coefficients come from: bt-endpoint, grk-endpoint (or bag-endpoint), bt-local, grk-local, random",
    )
    group.add_argument("--router-model-name", help="folder or hub id of the P2L model; for bt-local and grk-local")
    group.add_argument(
        "--router-model-endpoint", default="http://localhost:10250", help="URL of the P2L endpoint; for the others"
    )
    group.add_argument("--router-api-key", help=f"key of the P2L endpoint (default: ${_ENDPOINT_KEY_VARIABLE})")
    group.add_argument(
        "--cost-optimizer",
        help="strict, simple-lp, optimal-lp or lp (default: optimal-lp for bt, simple-lp for grk, strict for random)",
    )


def _add_server_flags(flags: argparse.ArgumentParser) -> None:
    group = flags.add_argument_group("server")
    group.add_argument("--host", default="0.0.0.0", help="address to listen on")
    group.add_argument("--port", "-p", type=port, default=8000, help="to listen on")
    group.add_argument(
        "--api-key",
        help=f"what clients send as bearer key, beside the keys of the configuration (default: ${_KEY_VARIABLE}; "
        "a random one when there is no key at all)",
    )
    group.add_argument("--workers", type=positive, default=1, help="processes that share limits and spend")
    group.add_argument("--reload", action=argparse.BooleanOptionalAction, default=False, help="restart on changed code")
    group.add_argument(
        "--direct-by-name", action="store_true", help="a request's model calls that model, if there is one"
    )
    group.add_argument("--max-body-mb", type=above_zero, default=20.0, help="largest request, in MiB")


def main(argv: Sequence[str] | None = None) -> int | None:
    """Check everything, then serve until stopped."""
    flags = build_parser().parse_args(argv)
    if flags.reload and flags.workers > 1:
        raise ConfigError("--reload goes with one worker; leave out --reload or --workers")
    limits = limits_of(flags)
    settings = _settings(flags)
    check_address(flags.host, flags.port)

    from route.service.server import serve

    return serve(settings, flags.host, flags.port, limits, reload=flags.reload)


def _settings(flags: argparse.Namespace) -> Settings:
    from route.config import load_config
    from route.service.state import check_together

    names = {field.name for field in fields(Settings)} & set(vars(flags))
    settings = Settings(**{name: getattr(flags, name) for name in names})
    endpoint_key = os.environ.pop(_ENDPOINT_KEY_VARIABLE, None)
    if settings.router_api_key is None and endpoint_key:
        settings = replace(settings, router_api_key=endpoint_key)
    config = load_config(settings.config)
    check_together(config, settings)
    return replace(settings, api_keys=_digests(flags.api_key, has_keys=bool(config.keys)))


def _digests(flag: str | None, *, has_keys: bool) -> tuple[str, ...]:
    variable = os.environ.pop(_KEY_VARIABLE, None)  # popped, so that workers do not inherit it
    key = variable if flag is None else flag
    if key is not None and not key.strip():
        raise ConfigError(f"--api-key (or ${_KEY_VARIABLE}) is empty; give a key, or leave it out")
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigError(f"--api-key (or ${_KEY_VARIABLE}) must be text that an HTTP header can carry")
    if key is None and has_keys:
        return ()
    if key is None:
        key = new_key()
        print(f"no --api-key was given; clients send this one as bearer key: {key}", flush=True)
    return (digest_of(key.strip()),)


if __name__ == "__main__":
    run(main)
