"""Traces of requests by OpenTelemetry: a span for each, with children for the scores, the choice and each call.

A request that brings a W3C `traceparent` goes on with that trace, and providers and the P2L endpoint get the one of
their call. Spans hold names, counts and costs; the prompt only where that is asked for. Without tracing nothing of this
is imported, and a request pays for a few comparisons with None.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from route.providers.base import TRACE_HEADERS
from route.providers.usage import TokenCounts

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, SpanKind, Tracer

Attributes: TypeAlias = Mapping[str, str | int | float | bool | Sequence[str] | None]
_PATH = "/v1/traces"
_SERVICE = "p2l-router"
_LONGEST_PROMPT = 10_000  # characters in a span
_OFF = contextlib.nullcontext()


def _set_all(span: Span, attributes: Attributes) -> None:
    """Set the attributes that have a value."""
    for name, value in attributes.items():
        # What a client sends in the place of a number may be anything; spans take these alone.
        if isinstance(value, str | bool | int | float | list | tuple) and value != "":
            span.set_attribute(name, value)


_PROVIDERS: Mapping[str, str] = {
    "azure": "azure.ai.openai",
    "azure-ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "gemini-compatible": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "openai-o1": "openai",
    "openai-reasoning": "openai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""Providers by the names of OpenTelemetry's conventions for generative AI, where those are others than ours."""
_SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed")


def _asked(request: Mapping[str, Any]) -> Attributes:
    """Return the attributes of a chat completion request; nothing of its text."""
    stops = request.get("stop") or ()
    wanted = (request.get("response_format") or {}).get("type")
    about: dict[str, Any] = {f"gen_ai.request.{name}": request.get(name) for name in _SAMPLING}
    about["gen_ai.request.max_tokens"] = request.get("max_completion_tokens") or request.get("max_tokens")
    about["gen_ai.request.stop_sequences"] = [stops] if isinstance(stops, str) else list(stops) or None
    about["gen_ai.request.choice.count"] = request.get("n") if request.get("n") != 1 else None
    about["gen_ai.output.type"] = "text" if wanted in (None, "text") else "json"
    return about


@dataclass
class CallTrace:
    """The span of one call to a provider."""

    span: Span
    headers: dict[str, str]
    """Headers that tell the provider of the span."""
    _answer: dict[str, Any] = field(default_factory=dict)
    _finishes: dict[int, str] = field(default_factory=dict)

    def hear(self, answer: Mapping[str, Any]) -> None:
        """Note who answers and how the choices end, by a whole answer or a chunk."""
        for name in ("id", "model"):
            if isinstance(answer.get(name), str) and answer[name]:
                self._answer[f"gen_ai.response.{name}"] = answer[name]
        for choice in answer.get("choices") or ():
            if choice.get("finish_reason"):
                self._finishes[choice.get("index") or 0] = str(choice["finish_reason"])

    def failed(self, fault: str, status: int | None) -> None:
        """Note a failure; its text is left out, since it may quote the prompt."""
        _fail(self.span, fault)
        _set_all(self.span, {"http.response.status_code": status})

    def end(self, usage: TokenCounts, cost: float) -> None:
        """End the span, with what the provider has counted and what it has cost."""
        counts = {
            "gen_ai.usage.input_tokens": usage.prompt,
            "gen_ai.usage.output_tokens": usage.completion,
            "gen_ai.usage.cache_read.input_tokens": usage.cached or None,
            "gen_ai.usage.cache_creation.input_tokens": usage.written or None,
        }
        finishes = [reason for _, reason in sorted(self._finishes.items())]
        ending = {"gen_ai.response.finish_reasons": finishes or None, "p2l.cost": cost}
        _set_all(self.span, {**self._answer, **counts, **ending})
        self.span.end()


@dataclass
class RequestTrace:
    """The span of one request, and its children."""

    tracing: Tracing
    span: Span
    context: Context = field(repr=False)

    @contextlib.contextmanager
    def child(self, name: str, *, is_call: bool = False) -> Iterator[Span]:
        """Time a block; the requests of one that is a call carry its trace."""
        span = self.tracing.start(name, self.context, is_call=is_call)
        try:
            with _carrying(self.tracing.headers_of(span)) if is_call else _OFF:
                yield span
        except BaseException as error:
            _fail(span, type(error).__name__)
            raise
        finally:
            span.end()

    def call(
        self, model: str, sent_model: str, provider: str, deployment: str = "", request: Mapping[str, Any] | None = None
    ) -> CallTrace:
        """Begin a call to a provider, under the name that the model has there, for a chat completion request."""
        span = self.tracing.start(f"call {model}", self.context, is_call=True)
        _set_all(
            span,
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
                "gen_ai.request.model": sent_model,
                **_asked(request or {}),
                "p2l.model": model,
                "p2l.deployment": deployment,
            },
        )
        return CallTrace(span, self.tracing.headers_of(span))

    def end(self, status: int, attributes: Attributes, *, turns: Sequence[str] = ()) -> None:
        """End the request, whose prompt is noted where that is asked for."""
        if self.tracing.prompts and turns:
            # Its end, where the question stands; collectors refuse spans of megabytes.
            self.span.set_attribute("p2l.prompt", "\n".join(turns)[-_LONGEST_PROMPT:])
        _set_all(self.span, {"http.response.status_code": status, **attributes})
        if status >= 500:
            _fail(self.span, str(status))
        self.span.end()


def child(trace: RequestTrace | None, name: str, *, is_call: bool = False) -> contextlib.AbstractContextManager[object]:
    """Time a block of a request that may be traced; the requests of one that is a call carry its trace."""
    return _OFF if trace is None else trace.child(name, is_call=is_call)


def passed_on(call: CallTrace | None) -> contextlib.AbstractContextManager[object]:
    """Let the requests of the block carry the trace of a call that may be traced."""
    return _OFF if call is None else _carrying(call.headers)


@contextlib.contextmanager
def _carrying(headers: Mapping[str, str]) -> Iterator[None]:
    token = TRACE_HEADERS.set(headers)
    try:
        yield
    finally:
        TRACE_HEADERS.reset(token)


def _fail(span: Span, kind: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))


class Tracing:
    """The spans of one worker, sent to a collector by a thread of its own."""

    def __init__(self, url: str, *, prompts: bool) -> None:
        """Send spans to a collector's base URL over OTLP/HTTP; `prompts` says whether they hold prompts.

        Headers, sampling and the name of the service are as OpenTelemetry's variables (`OTEL_...`) say.
        """
        # Here and below: without tracing nothing of this is imported, nor need it be installed.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self.prompts = prompts
        # Whoever runs the router may name it by OpenTelemetry's variable; the URL may already hold the path.
        name = os.environ.get("OTEL_SERVICE_NAME", _SERVICE)
        self._provider: TracerProvider = TracerProvider(resource=Resource.create({"service.name": name}))
        exporter = OTLPSpanExporter(endpoint=url.rstrip("/").removesuffix(_PATH) + _PATH)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer: Tracer = self._provider.get_tracer("route")

    def begin(self, path: str, request_id: str, headers: Mapping[str, str]) -> RequestTrace:
        """Begin the span of a request, in the trace that its headers name."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract({name: headers[name] for name in _NAMES if name in headers})
        span = self._tracer.start_span(f"POST {path}", parent, kind=trace.SpanKind.SERVER)
        _set_all(span, {"http.request.method": "POST", "url.path": path, "p2l.request_id": request_id})
        return RequestTrace(self, span, trace.set_span_in_context(span, parent))

    def start(self, name: str, context: Context, *, is_call: bool = False) -> Span:
        """Start a child."""
        from opentelemetry.trace import SpanKind

        kind: SpanKind = SpanKind.CLIENT if is_call else SpanKind.INTERNAL
        return self._tracer.start_span(name, context, kind=kind)

    def headers_of(self, span: Span) -> dict[str, str]:
        """Return the headers that name a span as the parent of what others do."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers, trace.set_span_in_context(span))
        return headers

    def flush(self) -> None:
        """Send what has gathered."""
        self._provider.force_flush()

    def close(self) -> None:
        """Send what has gathered, and end the thread."""
        self._provider.shutdown()


_NAMES = ("traceparent", "tracestate")
