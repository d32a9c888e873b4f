"""Command: the OpenAI-compatible router. `python -m route.openai_server -c config.yaml`, or `p2l-route serve`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from p2l.common.cli import parser, positive, run
from p2l.common.errors import ConfigError
from p2l.common.web import check_address, digest_of, new_key, port
from route.service.state import Settings

_KEY_VARIABLE = "P2L_ROUTER_KEY"
_ENDPOINT_KEY_VARIABLE = "P2L_API_KEY"


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    made = parser("python -m route.openai_server", "Route chat completions to the best model within a budget.")
    made.add_argument("--config", "-c", required=True, help="the models, their costs and limits: a YAML file")
    _add_choice_flags(made)
    _add_server_flags(made)
    return made


def _add_choice_flags(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("choice")
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


def _add_server_flags(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("server")
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
    group.add_argument("--max-body-mb", type=_above_zero, default=20.0, help="largest request, in MiB")


def main(argv: Sequence[str] | None = None) -> int | None:
    """Check everything, then serve until stopped."""
    flags = build_parser().parse_args(argv)
    if flags.reload and flags.workers > 1:
        raise ConfigError("--reload goes with one worker; leave out --reload or --workers")
    settings = _settings(flags)
    check_address(flags.host, flags.port)

    from route.service.server import serve

    return serve(settings, flags.host, flags.port, reload=flags.reload)


def _settings(flags: argparse.Namespace) -> Settings:
    known = {field.name for field in fields(Settings)}
    typed: dict[str, Any] = {name: value for name, value in vars(flags).items() if name in known}
    settings = Settings(**typed)
    endpoint_key = os.environ.pop(_ENDPOINT_KEY_VARIABLE, None)
    if settings.router_api_key is None and endpoint_key:
        settings = replace(settings, router_api_key=endpoint_key)
    has_keys = _check(settings)
    return replace(settings, api_keys=_digests(flags.api_key, has_keys))


def _check(settings: Settings) -> bool:
    """Refuse what cannot be served before a port is opened; says whether the configuration has keys."""
    from route.config import load_config
    from route.service.state import check_together

    config = load_config(settings.config)
    check_together(config, settings)
    return bool(config.keys)


def _digests(typed: str | None, has_keys: bool) -> tuple[str, ...]:
    given = os.environ.pop(_KEY_VARIABLE, None)  # nor do workers inherit it
    key = given if typed is None else typed
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


def _above_zero(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text}")
    return number


if __name__ == "__main__":
    run(main)
