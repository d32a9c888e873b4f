"""Traces of requests by OpenTelemetry: a span for each, with children for the scores, the choice and each call.

A request that brings a W3C `traceparent` goes on with that trace, and providers and the P2L endpoint get the one of
their call. Spans hold names, counts, costs and what ends an answer; the prompt only where that is asked for. Without
tracing nothing of this is imported, and a request pays for a few comparisons with None.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

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


def _with_values(attributes: Attributes) -> dict[str, Any]:
    """Return the attributes that have a value."""
    # What a client sends in the place of a number may be anything; spans take these alone.
    kinds = (str, bool, int, float, list, tuple)
    return {name: value for name, value in attributes.items() if isinstance(value, kinds) and value != ""}


def _set_all(span: Span, attributes: Attributes) -> None:
    span.set_attributes(_with_values(attributes))


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
    "openai-responses": "openai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""Providers by the names of OpenTelemetry's conventions for generative AI, where those are others than ours."""
_SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed")
_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_PORTS = {"http": 80, "https": 443}
_MEDIA = {"text": "text", "json_object": "json", "json_schema": "json", "audio": "speech", "image": "image"}
"""Types of output by the names of formats and modalities."""
_MOST_STOPS = 16
_LONGEST_TEXT = 256
"""Characters of what clients may write as long as they like."""


def place_of(provider: str, sent_model: str, url: str) -> Attributes:
    """Return what the spans of calls say of the place that is asked: the provider, the model's name there, the server.

    `url` is its base URL.
    """
    parts = urlsplit(url)
    return {
        "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
        "gen_ai.request.model": sent_model,
        "server.address": parts.hostname,
        "server.port": parts.port or _PORTS.get(parts.scheme),
    }


def _within(request: Mapping[str, Any], *path: str) -> Any:
    """Return what stands at a path within a request, which may hold anything; None where nothing does."""
    part: Any = request
    for name in path:
        part = part.get(name) if isinstance(part, Mapping) else None
    return part


def _first(request: Mapping[str, Any], *paths: str) -> Any:
    """Return the first thing that a request has at one of these paths, whose names stand between dots."""
    return next((part for path in paths if (part := _within(request, *path.split("."))) is not None), None)


def _asked(request: Mapping[str, Any]) -> Attributes:
    """Return the attributes of a request of chat completions, Messages or Responses; of its texts only its stops."""
    stops = _first(request, "stop", "stop_sequences")
    stops = [stops] if isinstance(stops, str) else stops if isinstance(stops, list) else []
    format_name = _first(request, "response_format.type", "text.format.type", "output_config.format.type")
    modalities = request.get("modalities")
    if format_name is None and isinstance(modalities, list):  # a request for speech asks for its text as well
        format_name = next((each for each in ("audio", "image") if each in modalities), None)
    about: dict[str, Any] = {f"gen_ai.request.{name}": request.get(name) for name in _SAMPLING}
    about["gen_ai.request.max_tokens"] = _first(request, *_LIMITS)
    about["gen_ai.request.stop_sequences"] = [
        _cut(stop) for stop in stops[:_MOST_STOPS] if isinstance(stop, str)
    ] or None
    about["gen_ai.request.choice.count"] = request.get("n") if request.get("n") != 1 else None
    about["gen_ai.request.stream"] = True if request.get("stream") is True else None
    about["gen_ai.request.reasoning.level"] = _first(
        request, "reasoning_effort", "reasoning.effort", "output_config.effort"
    )
    about["gen_ai.request.previous_response.id"] = request.get("previous_response_id")
    about["gen_ai.output.type"] = _MEDIA.get(str(format_name))
    return {name: _cut(part) for name, part in about.items()}


def _cut(part: Any) -> Any:
    return part[:_LONGEST_TEXT] if isinstance(part, str) else part


@dataclass
class CallTrace:
    """The span of one call to a provider."""

    span: Span
    headers: dict[str, str]
    """Headers that tell the provider of the span."""
    started: float = field(default_factory=time.perf_counter)
    _answer: dict[str, Any] = field(default_factory=dict)
    _finishes: dict[int, str] = field(default_factory=dict)

    def begun(self) -> None:
        """Note the first piece of a stream."""
        self._answer["gen_ai.response.time_to_first_chunk"] = time.perf_counter() - self.started

    def hear(self, answer: Mapping[str, Any]) -> None:
        """Note who answers and how the choices end, by a whole answer or a chunk."""
        for name in ("id", "model"):
            if isinstance(answer.get(name), str) and answer[name]:
                self._answer[f"gen_ai.response.{name}"] = answer[name]
        for choice in answer.get("choices") or ():
            self._finishes.setdefault(choice.get("index") or 0, "error")  # until its end is told
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
            "gen_ai.usage.cache_write.input_tokens": usage.written or None,
            # Its name before; most viewers know this one.
            "gen_ai.usage.cache_creation.input_tokens": usage.written or None,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning or None,
            "gen_ai.usage.audio.input_tokens": usage.heard or None,
            "gen_ai.usage.audio.output_tokens": usage.spoken or None,
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
    conversation: str = ""
    """As the client names it."""

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

    def call(self, operation: str, place: Attributes, request: Mapping[str, Any]) -> CallTrace:
        """Begin a call to a provider with a request in its own protocol; `place` is what is known of it before.

        `operation` is a name of the conventions, such as `chat`.
        """
        conversation = self.conversation or _first(request, "conversation.id", "conversation")
        about: Attributes = {
            "gen_ai.operation.name": operation,
            **place,
            **_asked(request),
            "gen_ai.conversation.id": _cut(conversation) if isinstance(conversation, str) else None,
        }
        name = f"{operation} {place.get('gen_ai.request.model')}"
        span = self.tracing.start(name, self.context, is_call=True, about=about)
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
        conversation = headers.get("x-p2l-conversation", "")
        return RequestTrace(self, span, trace.set_span_in_context(span, parent), conversation)

    def start(
        self, name: str, context: Context, *, is_call: bool = False, about: Attributes = MappingProxyType({})
    ) -> Span:
        """Start a child; samplers see what is known `about` it."""
        from opentelemetry.trace import SpanKind

        kind: SpanKind = SpanKind.CLIENT if is_call else SpanKind.INTERNAL
        return self._tracer.start_span(name, context, kind=kind, attributes=_with_values(about))

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
