"""The HTTP service around one batcher: routes, and what each error becomes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import APIRouter, FastAPI, Header, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import APIKeyHeader
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from p2l.common.errors import InputError
from p2l.common.long_texts import LONG
from p2l.common.processes import end_when_orphaned
from p2l.common.prompts import repair
from p2l.common.version import __version__
from p2l.common.web import BodyLimit, ClientGoneError, within
from p2l.inference import P2L
from p2l.leaderboard import to_score
from p2l.likelihood import win_rates
from p2l.model.encoding import TokenizerFailedError
from p2l.serving.batcher import Batcher, BusyError, ModelFailedError, TooLargeError
from p2l.serving.bodies import (
    BatchRequest,
    BatchResponse,
    BoundedRoute,
    HealthResponse,
    InfoResponse,
    LeaderboardResponse,
    ModelsResponse,
    PredictRequest,
    PredictResponse,
    Problem,
    PromptRequest,
    Rank,
    ReloadRequest,
    ReloadResponse,
    check_prompts,
    describe_faults,
)
from p2l.serving.key_guard import RELOAD, KeyGuard
from p2l.serving.metrics import Metrics, RequestCounter
from p2l.serving.page import Page
from p2l.serving.pairs import check_posterior, deviations, intervals, votes_on
from p2l.serving.reload import Control, Follower, Served, Status, batch_limits
from p2l.serving.score_cache import Answer, ScoreCache
from p2l.serving.settings import Settings

T = TypeVar("T")
_log = logging.getLogger("p2l.serving")
_HEALTH_SECONDS = 10.0
_RELOAD_SECONDS = 600.0
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in {
        400: "The body is not text.",
        403: "The key is missing or wrong.",
        408: "The body did not arrive in time.",
        413: "The request, or a prompt, is too large; the sentence names the limit.",
        429: "Too many wrong keys came from this address.",
        422: "The request cannot be understood.",
        503: "The queue is full, a reload is under way, or the service stops; try again after Retry-After seconds.",
        504: "The deadline passed before the answer was there.",
    }.items()
}


@dataclass
class _Service:
    """The running service, which the routes work with."""

    settings: Settings
    batcher: Batcher
    follower: Follower
    metrics: Metrics


def build_app(settings: Settings, served: Served, generation: int = 0) -> FastAPI:
    """Return the application that serves a loaded model; `generation` is that of the target it was loaded for."""
    metrics = Metrics()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        shared = None
        if settings.score_cache is not None:
            shared = ScoreCache(settings.score_cache, settings.api_key_digest or "", served.dtype)
        batcher = Batcher(
            served.model,
            batch_limits(settings, served.model),
            metrics,
            queue_size=settings.queue_size,
            cache_size=settings.cache_size,
            shared=shared,
        )
        follower = Follower(settings, served, generation, batcher, metrics)
        background = [asyncio.ensure_future(task) for task in (follower.run(), end_when_orphaned(_log))]
        app.state.service = _Service(settings, batcher, follower, metrics)
        yield
        for task in background:
            task.cancel()
        await batcher.close()
        if shared is not None:
            await shared.close()

    app = FastAPI(
        title="P2L endpoint",
        version=__version__,
        description="Leaderboards of LLMs for single prompts.",
        lifespan=lifespan,
        redoc_url=None,
        redirect_slashes=False,  # it would send clients, with their keys, to http: behind a proxy that speaks TLS
        responses=_PROBLEMS,
        dependencies=[Security(APIKeyHeader(name="api-key", auto_error=False))],
    )
    app.include_router(_routes)
    app.add_middleware(BodyLimit, max_bytes=int(settings.max_body_mb * 2**20), seconds=settings.deadline)
    app.add_middleware(
        KeyGuard,
        api_key=settings.api_key_digest,
        admin_key=settings.admin_key_digest,
        has_page=settings.page,
    )
    routes = [route.path for route in _routes.routes if hasattr(route, "path")]
    if settings.page:
        page_routes = Page(settings, partial(_ask, timeout=None)).routes()
        app.router.routes.extend(page_routes)
        routes += [route.path for route in page_routes]
    app.add_middleware(RequestCounter, metrics=metrics, routes=routes)
    _add_error_handlers(app)
    return app


_routes = APIRouter(route_class=BoundedRoute)
Timeout = Annotated[
    float | None,
    Header(alias="x-p2l-timeout", gt=0, allow_inf_nan=False, description="Seconds that the answer may take at most."),
]


@_routes.post("/predict", response_model=PredictResponse)
async def predict(body: PredictRequest, request: Request, timeout: Timeout = None) -> Response:
    """Coefficients of every model for one prompt; on request how uncertain they are, and what covariates change."""
    model, answers = await _ask(request, [body.prompt], timeout=timeout)
    if body.sd or (body.pairs and not body.covariates):
        check_posterior(model)
    more: dict[str, Any] = {"sd": deviations(model, answers[0])} if body.sd else {}
    if body.pairs and model.basis is not None:
        more["pairs"] = intervals(model, answers[0], body.pairs, body.level)
    if body.covariates:
        more["votes"] = votes_on(model, answers[0], body.pairs, body.covariates)
    return _json(_prediction(model, answers[0], **more))


@_routes.post("/predict_batch", response_model=BatchResponse)
async def predict_batch(body: BatchRequest, request: Request, timeout: Timeout = None) -> Response:
    """Coefficients of every model for several prompts, all by the same revision."""
    model, answers = await _ask(request, body.prompts, timeout=timeout)
    if body.sd:
        check_posterior(model)

    def respond() -> Response:
        predictions = [
            _prediction(model, answer, **({"sd": deviations(model, answer)} if body.sd else {})) for answer in answers
        ]
        return _json(BatchResponse(predictions=predictions, revision=model.revision))

    return await _off_loop(len(answers) * len(model.model_list), respond)


@_routes.post("/leaderboard", response_model_exclude_unset=True)
async def leaderboard(body: PromptRequest, request: Request, timeout: Timeout = None) -> LeaderboardResponse:
    """The models for one prompt, best first."""
    model, answers = await _ask(request, [body.prompt], timeout=timeout)
    ranks = await _off_loop(len(model.model_list) ** 2, partial(_ranks, model, answers[0]))
    return LeaderboardResponse(
        leaderboard=ranks,
        truncated=answers[0].truncated,
        revision=answers[0].revision,
        **_familiarity(answers[0]),
    )


@_routes.get("/models")
async def models(request: Request) -> ModelsResponse:
    """The names of the models, in the order of the coefficients."""
    model = _service(request).batcher.model
    return ModelsResponse(models=model.model_list, revision=model.revision)


@_routes.get("/info")
async def info(request: Request) -> InfoResponse:
    """The model that is served, and the limits of the service."""
    settings, served = _service(request).settings, _service(request).follower.served
    record = served.model.model.record
    return InfoResponse(
        model=repair(Path(served.path).name),
        revision=served.model.revision,
        model_type=record.model_type,
        head_type=record.head_type,
        likelihood=served.model.likelihood.name,
        num_models=len(served.model.model_list),
        covariates=list(dict.fromkeys(effect.name for effect in served.model.effects())),
        max_length=served.model.tokenizer.max_length,
        max_turns=settings.max_turns,
        max_chars=settings.max_chars,
        max_body_mb=settings.max_body_mb,
        device=str(served.model.device),
        dtype=served.dtype,
        dtype_reason=served.reason,
        version=__version__,
    )


@_routes.get("/health", responses={503: {"model": Problem}})
async def health(request: Request) -> HealthResponse:
    """200 when the model answers."""
    batcher = _service(request).batcher
    if not await batcher.check(_HEALTH_SECONDS):
        raise HTTPException(503, "the model does not answer")
    return HealthResponse(status="ready", revision=batcher.model.revision)


@_routes.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Counters in Prometheus' text format."""
    text = await asyncio.to_thread(_service(request).metrics.text)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@_routes.post(RELOAD)
async def reload(request: Request, body: ReloadRequest | None = None) -> ReloadResponse:
    """Load the model's folder again, or another one, in every worker; needs the admin key."""
    service = _service(request)
    control = Control(Path(service.settings.control))
    with control.turn("reload") as mine:
        if not mine:
            raise HTTPException(503, "another reload is under way; try again when it is done", {"retry-after": "5"})
        path = body.model_path if body and body.model_path else service.follower.served.path
        done = await _followed(control, control.set_target(path).generation, service.settings.workers)
    problems = [status.problem for status in done if status.problem]
    if problems:
        # Where all workers fail the model is at fault; where some do they may load it the next time.
        raise HTTPException(422 if len(problems) == len(done) else 503, problems[0])
    return ReloadResponse(revision=done[0].revision, workers=len(done))


async def _followed(control: Control, generation: int, workers: int) -> list[Status]:
    """Return the reports of the workers when all of them have tried to load the target."""
    for _ in range(int(_RELOAD_SECONDS / 0.1)):
        statuses = control.statuses()
        done = [status for status in statuses if status.generation >= generation]
        if len(done) >= max(workers, len(statuses)):  # Ray Serve may have started more
            return done
        await asyncio.sleep(0.1)
    raise HTTPException(504, "not every worker has loaded the model yet; GET /info says what is served")


def _json(body: BaseModel) -> Response:
    """A response of what was set; FastAPI would check each coefficient once more, and convert it twice."""
    return Response(body.model_dump_json(exclude_unset=True), media_type="application/json")


def _service(request: Request) -> _Service:
    service: _Service = request.app.state.service
    return service


async def _ask(request: Request, prompts: list[list[str]], *, timeout: float | None) -> tuple[P2L, list[Answer]]:
    """Return the answers, and the model that gave them."""
    service = _service(request)
    settings = service.settings
    if len(prompts) > settings.queue_size:
        raise HTTPException(422, f"{len(prompts)} prompts are too many for one request; send {settings.queue_size}")
    check_prompts(prompts, settings)
    if settings.log_prompts:

        def log_prompts() -> None:
            for prompt in prompts:
                _log.info("prompt %r", prompt)

        await _off_loop(sum(map(len, chain.from_iterable(prompts))), log_prompts)
    model = service.batcher.model
    seconds = min(settings.deadline, timeout or settings.deadline)
    return model, await within(request, seconds, service.batcher.ask(prompts, model=model))


async def _off_loop(size: int, function: Callable[[], T]) -> T:
    """Call a function here, or in a thread where its `size` would hold up other requests."""
    return await asyncio.to_thread(function) if size > LONG else function()


def _prediction(model: P2L, answer: Answer, **more: Any) -> PredictResponse:
    """The body of an answer; `gamma` is there for a head that has it, `familiarity` for a model that tells it."""
    gamma: dict[str, Any] = {"gamma": answer.gamma} if model.model.head.has_gamma else {}
    return PredictResponse(
        coefs=answer.coefs.tolist(),
        eta=answer.eta,
        truncated=answer.truncated,
        revision=answer.revision,
        **gamma,
        **_familiarity(answer),
        **more,
    )


def _familiarity(answer: Answer) -> dict[str, Any]:
    return {} if answer.familiarity is None else {"familiarity": answer.familiarity}


def _ranks(model: P2L, answer: Answer) -> list[Rank]:
    coefs = np.array([answer.coefs], dtype=np.float32)
    eta, gamma = (None if value is None else np.array([value], np.float32) for value in (answer.eta, answer.gamma))
    rates, scores = win_rates(coefs, model.likelihood, eta, gamma)[0], to_score(answer.coefs)
    return [
        Rank(rank=rank, model=model.model_list[n], coef=answer.coefs[n], score=scores[n], win_rate=float(rates[n]))
        for rank, n in enumerate(np.argsort(-coefs[0], kind="stable"), 1)
    ]


def _add_error_handlers(app: FastAPI) -> None:
    """Answer every error with one sentence; none of them says anything of a prompt."""

    async def handle(_: Request, error: Exception, *, status: int, text: str | None) -> Response:
        headers = {"retry-after": "1"} if isinstance(error, BusyError) else None
        return JSONResponse({"detail": text or str(error)}, status_code=status, headers=headers)

    for kind, status, text in (
        (BusyError, 503, None),
        (TooLargeError, 413, None),
        (InputError, 422, None),
        (ModelFailedError, 500, None),
        (TokenizerFailedError, 500, None),
        (TimeoutError, 504, "the deadline passed before the answer was there"),
        (ClientGoneError, 499, "the client left"),  # nobody reads it; the number is for the counters
        (Exception, 500, "an error of the service; its log says more"),
    ):
        app.add_exception_handler(kind, partial(handle, status=status, text=text))
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)


async def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": str(error.detail)}, status_code=error.status_code, headers=error.headers)


_BODIES: dict[str, type[BaseModel]] = {
    "/predict": PredictRequest,
    "/predict_batch": BatchRequest,
    "/leaderboard": PromptRequest,
    "/reload": ReloadRequest,
}


async def _invalid(request: Request, error: Exception) -> Response:
    """Answer with the first fault of a request: where it is and what is wrong, without what was sent."""
    assert isinstance(error, RequestValidationError)
    body = _BODIES.get(request.url.path)
    detail = describe_faults(error.errors(), body.model_fields if body else ())
    return JSONResponse({"detail": detail}, status_code=422)
