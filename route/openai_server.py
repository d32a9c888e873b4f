"""Command: the OpenAI-compatible router. `python -m route.openai_server -c config.yaml`, or `p2l-route serve`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from p2l.common.access import add_address_flags, check_address, digest_of, new_key
from p2l.common.cli import add_config, add_server_flags, parser, run
from p2l.common.connections import add_connection_flags, limits_of
from p2l.common.errors import AnswerTimeoutError, ConfigError, MalformedAnswerError, P2LError, UnavailableError
from route.application.settings import Settings

if TYPE_CHECKING:
    from route.config import RouterConfig

_UNKNOWN_TYPE = ""
"""In place of a router type, where no P2L can be asked for its likelihood."""
_KEY_VARIABLE = "P2L_ROUTER_KEY"
_ENDPOINT_KEY_VARIABLE = "P2L_API_KEY"
_USUAL_ENDPOINT = "http://localhost:10250"
_ENDPOINT_START_SECONDS = 10.0  # seconds in which an endpoint that starts beside the router should answer


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    flags = parser("p2l-route serve", "Route chat completions to the best model within a budget.")
    add_config(flags, "the models, their costs and limits: a YAML file", "-c", required=True)
    group = flags.add_argument_group("choice")
    group.add_argument(
        "--router-type",
        help="where coefficients come from: bt-endpoint, grk-endpoint (or bag-endpoint), bt-local, grk-local, random "
        "(default: what the P2L model says of itself; with --router-model-name it runs in this process)",
    )
    group.add_argument("--router-model-name", help="folder or hub id of the P2L model; for bt-local and grk-local")
    group.add_argument(
        "--router-model-endpoint",
        help=f"URL of the P2L endpoint; for the others (default: {_USUAL_ENDPOINT}; where nothing answers there, the "
        "public P2L of this package, in this process)",
    )
    group.add_argument("--router-api-key", help=f"key of the P2L endpoint (default: ${_ENDPOINT_KEY_VARIABLE})")
    group.add_argument(
        "--cost-optimizer",
        help="strict, simple-lp, optimal-lp or lp (default: optimal-lp for bt, simple-lp for grk, strict for random)",
    )
    _add_server_flags(flags)
    # Longer than clients keep idle connections, so that none is closed under a request.
    add_connection_flags(flags.add_argument_group("connections"), idle_seconds=75.0)
    return flags


def _add_server_flags(flags: argparse.ArgumentParser) -> None:
    group = flags.add_argument_group("server")
    add_address_flags(group, host="0.0.0.0", port_number=8000)
    add_server_flags(group, workers="processes that share limits and spend", max_body_mb=20.0)
    group.add_argument(
        "--api-key",
        help=f"what clients send as bearer key, beside the keys of the configuration (default: ${_KEY_VARIABLE}; "
        "a random one when there is no key at all, those of the database included)",
    )
    group.add_argument(
        "--direct-by-name",
        action="store_true",
        help="a request whose `model` is a configured name goes to that model, not to the router's choice",
    )
    group.add_argument(
        "--traces", metavar="URL", help="send OpenTelemetry traces to this collector, such as http://localhost:4318"
    )
    group.add_argument("--trace-prompts", action="store_true", help="with --traces: spans hold the prompts, too")


def main(argv: Sequence[str] | None = None) -> int | None:
    """Check everything, then serve until stopped."""
    flags = build_parser().parse_args(argv)
    if flags.reload and flags.workers > 1:
        raise ConfigError("--reload goes with one worker; leave out --reload or --workers")
    limits = limits_of(flags)
    settings = _settings(flags)
    check_address(flags.host, flags.port)

    from route.application.server import serve

    return serve(settings, flags.host, flags.port, limits, reload=flags.reload)


def _settings(flags: argparse.Namespace) -> Settings:
    from route.application.service import check_providers, check_together
    from route.config import load_config

    options = {field.name: getattr(flags, field.name) for field in fields(Settings) if hasattr(flags, field.name)}
    endpoint_key = os.environ.pop(_ENDPOINT_KEY_VARIABLE, None)
    options["router_api_key"] = options["router_api_key"] or endpoint_key
    if flags.traces is not None:
        # Both before the start: a malformed URL, and a missing extra.
        if not flags.traces.startswith(("http://", "https://")):
            raise ConfigError(f"--traces {flags.traces}: must be the http:// or https:// address of a collector")
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.sdk.trace  # noqa: F401
    config = load_config(flags.config)
    check_providers(config, flags.config)  # before an endpoint is waited for
    options["router_model_endpoint"] = flags.router_model_endpoint or _USUAL_ENDPOINT
    options["router_type"] = flags.router_type or _type_of(
        flags.router_model_name, options["router_model_endpoint"], options["router_api_key"]
    )
    if options["router_type"] == _UNKNOWN_TYPE:
        options |= _without_endpoint(config, is_named=flags.router_model_endpoint is not None)
    settings = Settings(**options)
    check_together(config, settings)
    return replace(settings, api_keys=_digests(flags.api_key, config))


def _type_of(model: str | None, endpoint: str, key: str | None) -> str:
    """Return the router type that fits the P2L model; `_UNKNOWN_TYPE` if nobody can be asked."""
    from route.routing.scoring import family_of

    if model:
        from p2l.inference import P2L
        from p2l.serving.probing import check_model

        check_model(model)
        return f"{family_of(P2L.from_pretrained(model).likelihood.name)}-local"
    from p2l.client import P2LClient

    until = time.monotonic() + _ENDPOINT_START_SECONDS
    while True:
        try:
            with P2LClient(endpoint, key, timeout=5.0, retries=0) as client:
                return f"{family_of(str(client.info().get('likelihood', '')))}-endpoint"
        except (UnavailableError, AnswerTimeoutError) as error:
            if time.monotonic() < until:
                time.sleep(0.2)  # it may be starting at this moment
                continue
            print(f"warning: {error}", file=sys.stderr, flush=True)
            return _UNKNOWN_TYPE
        except MalformedAnswerError:  # not every endpoint has this path
            return "bt-endpoint"


def _without_endpoint(config: RouterConfig, *, is_named: bool) -> dict[str, str]:
    """Return the options of a router whose endpoint does not answer: the public P2L, unless the user named another.

    The public one reads in this process, where what it needs is installed and it knows a configured model.
    """
    if not is_named:
        reason, options = _public_options([model.name for model in config.routed_models()])
        if reason is None:
            return options
        print(f"warning: {reason}", file=sys.stderr, flush=True)
    print(
        "warning: The router goes on as for likelihood bt; --router-type says another one",
        file=sys.stderr,
        flush=True,
    )
    return {"router_type": "bt-endpoint"}


def _public_options(names: list[str]) -> tuple[str | None, dict[str, str]]:
    """Return the options of a router with the public P2L, or why it cannot have it."""
    from p2l.public import PUBLIC, Names
    from route.routing.scoring import family_of

    try:
        from p2l.inference import P2L

        model = P2L.public()
    except (ImportError, P2LError) as error:
        return f"the public P2L cannot be used here ({error})", {}
    matched = Names.load().matched(names, model.model_list)
    if not matched:
        return "the public P2L knows none of the configured models", {}
    from p2l.public.model import public_note

    known = ", ".join(f"{name} as {known}" if name != known else name for name, known in matched.items())
    print(f"no P2L was given: {public_note()} chooses; it knows {known}", file=sys.stderr, flush=True)
    return None, {"router_type": f"{family_of(model.likelihood.name)}-local", "router_model_name": PUBLIC}


def _digests(flag: str | None, config: RouterConfig) -> tuple[str, ...]:
    from route.manage_keys import has_stored_keys

    variable = os.environ.pop(_KEY_VARIABLE, None)  # popped, so that workers do not inherit it
    key = variable if flag is None else flag
    if key is not None and not key.strip():
        raise ConfigError(f"--api-key (or ${_KEY_VARIABLE}) is empty; give a key, or leave it out")
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigError(f"--api-key (or ${_KEY_VARIABLE}) must be text that an HTTP header can carry")
    if key is None and (config.keys or has_stored_keys(config.database)):
        return ()
    if key is None:
        key = new_key()
        print(f"no --api-key was given; clients send this one as bearer key: {key}", flush=True)
    return (digest_of(key.strip()),)


if __name__ == "__main__":
    run(main)
