"""P2L on Ray Serve: the service of `p2l.serving.app` as replicas, behind a front that tries a second one.

    p2l endpoint --model MODEL --ray --workers 2                     # on this machine, without Ray's own HTTP
    serve run p2l.serving.ray_app:build model_path=MODEL workers=2        # on a cluster, with it
    serve deploy serve.yaml                                               # see deploy/ray

A replica is one worker of the service in an actor: batcher, cache, follower of new models. Ray Serve starts, checks and
replaces replicas, adds some while requests queue, and hands each request to the one with the shorter queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2l.common.connections import ConnectionLimits
from p2l.common.errors import ConfigError
from p2l.common.long_texts import BusyError
from p2l.common.processes import control_folder, run_server
from p2l.serving.forwarding import Ask, End, ForwardedRequest, ForwardedResponse, ReplicaLostError, answer_here, front
from p2l.serving.ray_cluster import local_cluster
from p2l.serving.server import check_elsewhere, first_model, log_to_stderr, print_key, with_key
from p2l.serving.settings import Scaling, Settings, build_parser, scaling_of, settings_of

if TYPE_CHECKING:
    from fastapi import FastAPI

_log = logging.getLogger("p2l.serving")
_HEALTH_SECONDS = 10.0
_SHUTDOWN_SECONDS = 5.0
_CONSTRUCTOR_TRIES = 3
_UPSCALE_SECONDS = 10.0  # that requests queue before a replica is added
_DOWNSCALE_SECONDS = 60.0  # that fewer would do before one goes; Ray Serve's own ten minutes are long for a GPU
_METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_ARGUMENTS_BESIDE_FLAGS = {"direct": "false", "open": "false", "gpus": "0", "cpus": "1", "fronts": "1"}
_QUIET_LOGGING = {"log_level": "WARNING", "enable_access_log": False}


class Replica:
    """One worker of the service, in an actor of Ray Serve."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Take the settings; the model comes with `reconfigure`, which Ray Serve calls before any request."""
        self._settings = Settings(**settings)
        if self._settings.control:
            _close_calls(Path(self._settings.control))
        self._app: FastAPI | None = None
        self._running = contextlib.AsyncExitStack()

    async def reconfigure(self, config: dict[str, str]) -> None:
        """Serve the model of `config["model_path"]`: load it at the start, later without dropping a request.

        A later model that cannot be loaded is in the log, and the one before goes on.
        """
        if self._app is None:
            self._app = await self._start(config["model_path"])
            return
        control = self._control()
        target = control.target()
        if target is None or target.model_path != config["model_path"]:
            target = control.set_target(config["model_path"])
        follower = self._app.state.service.follower
        while follower.generation < target.generation:
            await asyncio.sleep(0.1)

    async def respond(self, request: ForwardedRequest) -> ForwardedResponse:
        """Answer a request that the front has forwarded."""
        return await answer_here(self._ready(), ForwardedRequest(*request))

    async def check_health(self) -> None:
        """Raise where the model does not answer: Ray Serve replaces the replica."""
        if not await self._ready().state.service.batcher.check(_HEALTH_SECONDS):
            raise RuntimeError("the model does not answer")

    def __serve_build_asgi_app__(self) -> Callable[..., Any]:
        """Return the application for requests that Ray Serve's own HTTP brings, without a front."""

        async def application(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                # That of the service is entered by `reconfigure`.
                await front({}, Settings(""), lambda: None)(scope, receive, send)
            else:
                await self._ready()(scope, receive, send)

        return application

    async def __del__(self) -> None:
        """Answer what was accepted, then end; Ray Serve waits for it."""
        await self._running.aclose()

    def _ready(self) -> FastAPI:
        assert self._app is not None
        return self._app

    def _control(self) -> Any:
        from p2l.serving.reload import Control

        return Control(Path(self._settings.control))

    async def _start(self, model_path: str) -> FastAPI:
        import ray

        reserved_cores = max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
        settings = replace(self._settings, model_path=model_path, cores=self._settings.cores or reserved_cores)
        log_to_stderr()
        if not settings.control:  # of a cluster, whose replicas share no folder
            folder = self._running.enter_context(tempfile.TemporaryDirectory(prefix="p2l-replica-"))
            (Path(folder) / "metrics").mkdir()
            settings = replace(settings, control=folder, admin_key_digest=None)
        self._settings = settings
        if "prometheus_client" not in sys.modules:  # it looks at its import
            os.environ[_METRICS_FOLDER] = str(Path(settings.control) / "metrics")

        import torch

        from p2l.serving.app import build_app
        from p2l.serving.reload import catch_up

        torch.set_num_threads(settings.cores or 1)
        served, generation = await asyncio.to_thread(catch_up, settings, self._control())
        _log.info("serving %s, revision %s, on %s", served.path, served.model.revision, served.model.device)
        app = build_app(settings, served, generation)
        await self._running.enter_async_context(app.router.lifespan_context(app))
        return app


class Front:
    """The front as a deployment of its own, for clusters, where Ray Serve's own HTTP brings the requests."""

    def __init__(self, settings: dict[str, Any], models: dict[str, Any]) -> None:
        """Forward to the handles of `models`."""
        self._application: Callable[..., Any] = _front_of(Settings(**settings), models)

    def __serve_build_asgi_app__(self) -> Callable[..., Any]:
        """Return the front's application."""
        return self._application


def _close_calls(folder: Path) -> None:
    """Let this replica's server for calls over gRPC listen in a folder that only this user enters.

    Ray Serve has no setting for it: it would listen on every address, and run what anybody sends. Calls here go through
    actors, which ask for the token of the cluster.
    """
    from ray.serve._private import replica

    bind = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, _address: bind(server, f"unix:{folder}/calls-{os.getpid()}")


def _front_of(settings: Settings, models: Mapping[str, Any], end: End | None = None) -> Any:
    from prometheus_client import CollectorRegistry, Counter

    lost = Counter("p2l_replicas_lost", "Requests that went to a second replica.", registry=CollectorRegistry())
    return front({name: _ask(handle) for name, handle in models.items()}, settings, lost.inc, end)


def _ask(handle: Any) -> Ask:
    """Return a function that asks whichever replica Ray Serve chooses."""
    from ray.exceptions import RayActorError, WorkerCrashedError
    from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

    async def ask(request: ForwardedRequest) -> ForwardedResponse:
        try:
            return ForwardedResponse(*await handle.respond.remote(tuple(request)))
        except (RayActorError, WorkerCrashedError) as error:
            raise ReplicaLostError(f"a replica was lost ({type(error).__name__})") from error
        except (BackPressureError, DeploymentUnavailableError) as error:
            raise BusyError("too many prompts are waiting already; try again in a moment") from error

    return ask


def deployment(settings: Settings, scaling: Scaling, name: str, *, has_http: bool = False) -> Any:
    """Return a Serve deployment of the settings' model, bound; `has_http` gives it Ray Serve's own HTTP."""
    from ray import serve

    count: dict[str, Any] = {"num_replicas": scaling.least}
    if scaling.most > scaling.least:
        bounds = {"min_replicas": scaling.least, "max_replicas": scaling.most}
        delays = {"upscale_delay_s": _UPSCALE_SECONDS, "downscale_delay_s": _DOWNSCALE_SECONDS}
        count = {"autoscaling_config": {**bounds, **delays, "target_ongoing_requests": scaling.queue}}
    options = {
        **count,
        "name": name,
        "user_config": {"model_path": settings.model_path},
        "ray_actor_options": {"num_cpus": scaling.cpus, "num_gpus": scaling.gpus},
        "max_ongoing_requests": settings.queue_size,
        "max_queued_requests": settings.queue_size,
        "graceful_shutdown_wait_loop_s": 0.5,
        "graceful_shutdown_timeout_s": settings.deadline + _SHUTDOWN_SECONDS,
        "max_constructor_retry_count": _CONSTRUCTOR_TRIES,
        "logging_config": _QUIET_LOGGING,
    }
    kind = serve.ingress()(Replica) if has_http else Replica
    # The model is in `user_config` alone, so that another one is a change of configuration and not of code.
    return serve.deployment(kind, **options).bind(asdict(replace(settings, model_path="")))


def build(args: Mapping[str, str]) -> Any:
    """Return the application of `serve run` and `serve deploy`; the arguments are flags of `p2l endpoint`.

    `direct: "true"` leaves the front out; `gpus` and `cpus` are those of a replica, `fronts` the number of fronts.
    ConfigError for what `p2l endpoint` refuses, and without a key (P2L_API_KEY), unless `open: "true"`.
    """
    from ray import serve

    arguments = {name: str(text) for name, text in args.items()}
    serving = {name: arguments.pop(name, default) for name, default in _ARGUMENTS_BESIDE_FLAGS.items()}
    words: list[str] = []
    for name, text in arguments.items():
        flag = name.replace("_", "-")
        if text in ("true", "false"):
            words.append(f"--{flag}" if text == "true" else f"--no-{flag}")
        else:
            words += [f"--{flag}", *(text.split() if name == "models" else [text])]
    flags = build_parser().parse_args(["--host", "127.0.0.1", *words])
    settings = replace(settings_of(flags), in_turn=True)
    if settings.api_key_digest is None and serving["open"] != "true":
        raise ConfigError('no key: set P2L_API_KEY where the application is built, or say open: "true"')
    settings = replace(settings, model_path=first_model(settings))
    scaling = replace(scaling_of(flags), gpus=float(serving["gpus"]), cpus=float(serving["cpus"]))
    if serving["direct"] == "true":
        return deployment(settings, scaling, "P2L", has_http=True)
    models = {"": deployment(settings, scaling, "P2L")}
    for name, path in flags.models:
        models[name] = deployment(replace(settings, model_path=path, watch=None), scaling, f"P2L-{name}")
    fronts = serve.deployment(
        serve.ingress()(Front),
        name="Front",
        num_replicas=int(serving["fronts"]),
        ray_actor_options={"num_cpus": 0.1},
        max_ongoing_requests=settings.queue_size,
        logging_config=_QUIET_LOGGING,
    )
    return fronts.bind(asdict(settings), models)


def serve_on_ray(
    settings: Settings, scaling: Scaling, models: Mapping[str, str], host: str, port: int, limits: ConnectionLimits
) -> int | None:
    """Serve on this machine until SIGINT or SIGTERM; InputError if a model cannot be served so.

    `models` are more of them, by id. The front listens in this process; nothing of Ray Serve's own HTTP is started.
    """
    settings, made_key = with_key(settings, host)
    with control_folder("p2l-endpoint-", shared=True) as control, contextlib.ExitStack() as stack:
        cores = len(os.sched_getaffinity(0))
        most_cores = os.environ.get("OMP_NUM_THREADS", "")
        share = min(cores // scaling.least, int(most_cores) if most_cores.isdigit() else cores)
        settings = replace(settings, model_path=first_model(settings), cores=max(1, share), in_turn=True)
        every = {"": settings} | {
            name: replace(settings, model_path=path, watch=None, page_secret=settings.page_secret)
            for name, path in models.items()
        }
        every = dict(zip(every, check_elsewhere(*every.values()), strict=True))
        serve = stack.enter_context(_serve(control, scaling.most * len(every)))
        if settings.device != "cpu":
            import ray

            # In thousandths, rounded down: the shares of all replicas must fit. One that has none sees no GPU.
            gpus = ray.cluster_resources().get("GPU", 0.0)
            scaling = replace(scaling, gpus=float(min(1.0, int(1000 * gpus / (scaling.most * len(every))) / 1000)))
        handles = {}
        for name, model_settings in every.items():
            folder = control / "models" / name if name else control
            (folder / "metrics").mkdir(parents=True, exist_ok=True)
            bound = deployment(replace(model_settings, control=str(folder)), scaling, "P2L")
            handles[name] = serve.run(bound, name=f"p2l-{name}", route_prefix=None, logging_config=_QUIET_LOGGING)
        print_key(made_key)
        run_server(
            _front_of(settings, handles, partial(_end, serve)),
            host,
            port,
            workers=1,
            reload=False,
            request_seconds=settings.deadline,
            limits=limits,
            log_level="info",
        )
    return None


@contextlib.contextmanager
def _serve(control: Path, cpus: int) -> Iterator[Any]:
    """Yield Ray Serve on this machine alone, without its own HTTP."""
    os.environ |= {
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",  # calls in the event loop of who calls,
        "RAY_SERVE_USE_GRPC_BY_DEFAULT": "0",  # through actors, which ask for the token,
        "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",  # and no HTTP but the front's
    }
    metrics = os.environ.pop(_METRICS_FOLDER)  # Ray's own processes would count there too
    with local_cluster(control, cpus):
        os.environ[_METRICS_FOLDER] = metrics
        from ray import serve

        serve.start(proxy_location="Disabled", logging_config=_QUIET_LOGGING)
        yield serve


async def _end(serve: Any) -> None:
    """End the replicas, in the event loop that calls them."""
    with contextlib.suppress(Exception):  # what is left of them ends with Ray
        await serve.shutdown_async()
