"""Chat completions: what a client of OpenAI's API sends and gets, and the form in which every request is held.

`ChatRequest` is one request, in whatever dialect it came; `Dialect` is what differs between dialects. Another dialect
is one file beside this one: a subclass that translates requests to chat completions, and answers back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar

from starlette.exceptions import HTTPException
from starlette.types import Receive

from p2l.common import web
from p2l.common.cli import nearest
from p2l.common.errors import InputError
from p2l.common.files import DEEPEST_JSON, is_deeper
from p2l.common.long_texts import (
    LONG,
    MANY,
    BusyError,
    TooManyValuesError,
    count_bytes,
    dumps,
    holds_more,
    loads,
    may_be_deeper,
    parse_apart,
    patiently,
    short_dumps,
)
from p2l.common.web import bearer_of
from route.keep.stored_responses import ResponseStore
from route.providers.base import JSON, NATIVE, Fault, ProviderError
from route.providers.completions import BYTES_PER_TOKEN, MOST_TOKENS, SHAPE_ERRORS, image_url
from route.providers.translation import NativeEvent
from route.request.api_errors import ApiError
from route.request.native import NativeForm
from route.routing.decision import FEATURE_BITS, bits_of
from route.routing.dollars import Prompt
from route.routing.refusals import answer_of

T = TypeVar("T")
_MAX_FIELDS = 1000
_SHOWN_NAME = 100  # characters of an unknown model's name that its error repeats
# The objects of 100,000 messages fill memory that Python hardly gives back, and loops over them take long.
_MOST_MESSAGES = 10_000
# Of one body, counted before it is parsed.
MOST_VALUES = 20 * _MOST_MESSAGES
_TOKENS_PER_ATTACHMENT = 1000


class _Attachments(NamedTuple):
    """Parts of messages that are not text."""

    images: int
    image_bytes: int
    """Bytes of inline images."""
    others: int
    remote: int
    """Number of the others that the provider fetches: their length is unknown here."""


@dataclass(frozen=True)
class ChatRequest:
    """One chat request, in the form of chat completions, and what follows from it."""

    body: JSON
    """The body for a provider, without the router's own fields."""
    turns: Sequence[str]
    """The text of the user's turns, P2L's input."""
    budget: float | None
    direct: str | None
    """The model that the client named."""
    compare: bool
    stream: bool
    size: int
    """Bytes."""
    native: NativeForm | None = None
    """The request in the client's own protocol, where that is another one."""
    budget_usd: float | None = None
    """Expected dollars that the answer may cost; it takes the place of the budget in the unit of the costs."""

    @cached_property
    def prompt_tokens(self) -> int:
        """Estimate the tokens of the prompt."""
        return prompt_tokens_of(self.body)

    @cached_property
    def features(self) -> int:
        """Return the bits of the features that the request needs of a model."""
        return features_of(self.body)

    @cached_property
    def attachments(self) -> _Attachments:
        """Return what messages hold beside text."""
        return _attachments_of(self.body)

    @cached_property
    def has_many_values(self) -> bool:
        """Return whether walking through the body takes so long that others would notice."""
        return self.size > MANY and holds_more(self.body, MANY)

    async def apart(self, function: Callable[[], T]) -> T:
        """Call a function that walks through the body, in a thread where that takes long."""
        return await patiently(function) if self.has_many_values else function()


_Dump: TypeAlias = Callable[[JSON], bytes]
"""Writes JSON."""


class Dialect:
    """OpenAI's chat completions, unchanged; other dialects translate. An instance serves one request."""

    sign_of_life = b": keep-alive\n\n"
    """What a stream sends while it has nothing to say."""

    def request(self, body: JSON) -> JSON:
        """Return the body of a chat completion for that of a request; raise `ApiError` for a malformed one."""
        return body

    def native_form(self, _body: JSON, _headers: Mapping[str, str]) -> NativeForm | None:
        """Return a request in its own protocol, after `request`; None for a chat completion."""
        return None

    async def prepare(self, request: ChatRequest, _stored: ResponseStore, _key: str, _max_bytes: float) -> ChatRequest:
        """Return the request with the stored responses of its key that it refers to."""
        return request

    def answer(self, completion: JSON) -> JSON:
        """Return the answer for a chat completion; raise `ApiError` for a malformed one."""
        return completion

    async def keep(self) -> None:
        """Store what the client may come back to, after the last chunk or `answer` and before `end`."""

    async def leave(self) -> None:
        """Store what a client that has left before the end may come back to."""

    def error(self, error: ApiError) -> JSON:
        """Return the body of an error."""
        return error.body()

    def take(self, chunk: JSON, dump: _Dump = short_dumps) -> bytes:
        """Return the events of a chunk, possibly none; raise ProviderError for a malformed one."""
        return b"data: " + dump(chunk) + b"\n\n"

    def fail(self, error: ApiError) -> bytes:
        """Return the last event of a stream that broke, after which no end follows."""
        return b"data: " + json.dumps(error.body()).encode() + b"\n\n"

    def end(self) -> bytes:
        """Return the end of a complete stream."""
        return b"data: [DONE]\n\n"


class TranslatedDialect(Dialect):
    """A dialect whose answers have another form than chat completions, and whose streams have named events."""

    def translated(self, _completion: JSON) -> JSON:
        """Return the answer for a chat completion; see `SHAPE_ERRORS` for what a malformed one may raise."""
        raise NotImplementedError

    events: Callable[[JSON], list[JSON]]
    """Returns the events of a chunk; raises as `translated` does."""
    closing_events: Callable[[], list[JSON]]
    """Returns the events after the last chunk."""

    _is_native = False

    def passed_event(self, chunk: JSON, event: NativeEvent) -> bytes:
        """Return an event of a provider that speaks this dialect; the chunk has the model and the router's fields."""
        raise NotImplementedError

    def passed_end(self) -> bytes:
        """Return what completes a stream of such events."""
        raise NotImplementedError

    def passed(self, completion: JSON) -> JSON:
        """Return an answer of a provider that speaks this dialect."""
        return {**completion[NATIVE], "model": completion["model"], **router_fields(completion)}

    def answer(self, completion: JSON) -> JSON:
        """See `Dialect`; likewise the others."""
        if NATIVE in completion:
            return self.passed(completion)
        try:
            return self.translated(completion)
        except SHAPE_ERRORS as error:
            raise ApiError(502, "provider_error", f"{completion.get('model')}: {_NO_COMPLETION}") from error

    def take(self, chunk: JSON, dump: _Dump = short_dumps) -> bytes:
        """Return the events of a chunk."""
        event = chunk.get(NATIVE)
        if event is not None:
            self._is_native = True
            return self.passed_event(chunk, event)
        if self._is_native:  # it says once more what an event has said
            return b""
        try:
            return encode(self.events(chunk), dump)
        except SHAPE_ERRORS as error:
            raise ProviderError(Fault.MALFORMED, _NO_COMPLETION) from error

    def end(self) -> bytes:
        """Return the end of a complete stream."""
        return self.passed_end() if self._is_native else encode(self.closing_events())


ROUTER_FIELDS = frozenset({"model", "direct_model", "cost", "budget_usd", "compare", "stream"})
"""Fields of requests that are the router's own business."""


def router_fields(answer: JSON) -> JSON:
    """Return the fields of an answer or a chunk that the router has added."""
    return {name: value for name, value in answer.items() if name.startswith("router_")}


_THOUGHTS = ("reasoning_content", "reasoning")
"""Fields with the thoughts of an answer, by provider."""
_NO_COMPLETION = "the answer of the provider is not a chat completion"


def encode(events: Sequence[JSON], dump: _Dump = short_dumps) -> bytes:
    """Return events as a stream carries them."""
    return b"".join(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), dump(event)) for event in events)


def object_in(body: JSON, field: str) -> JSON:
    """Return an object in a body, empty where there is none; raise InputError for anything else."""
    fields = body.get(field)
    if fields is not None and not isinstance(fields, dict):
        raise InputError(f"{field}: must be an object")
    return fields or {}


def text_of_answer(content: Any) -> str:
    """Return the text of an answer's content, which some providers send in parts."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def thoughts_of(message: JSON) -> str:
    """Return the thoughts of an answer or a delta, whatever the provider calls them."""
    return next((str(message[name]) for name in _THOUGHTS if isinstance(message.get(name), str) and message[name]), "")


def key_of(headers: Mapping[str, str]) -> str | None:
    """Return the key of a request, as OpenAI's clients or as Anthropic's send it."""
    token = bearer_of(headers)
    return (headers.get("x-api-key", "") if token is None else token).strip() or None


async def read_body(headers: Mapping[str, str], receive: Receive, max_bytes: int, seconds: float) -> bytes:
    """Read the whole body; raise `ApiError` 413, 408 or 503 for one that is too large, too late, or one too many."""
    try:
        return await web.read_body(headers, receive, max_bytes, seconds)
    except HTTPException as error:
        code = {408: "request_timeout", 413: "request_too_large"}.get(error.status_code, "busy")
        pause = 1.0 if error.status_code == 503 else None
        raise ApiError(error.status_code, code, error.detail, retry_after=pause) from None


async def parse_long(raw: bytes, parse: Callable[[json.JSONDecoder], T], most_values: int) -> T:
    """Parse a body beside the event loop where it is long; raise `ApiError` 413 for one of too many values, 503."""
    try:
        return await parse_apart(raw, parse, most_values=most_values, parse_constant=refuse_constant)
    except TooManyValuesError:
        text = f"the request holds more than {most_values:,} values; send fewer at once"
        raise ApiError(413, "request_too_large", text) from None
    except BusyError as error:
        raise ApiError(503, "busy", str(error), retry_after=1.0) from error


def parse_object(raw: bytes, decoder: json.JSONDecoder | None = None) -> JSON:
    """Parse a body that is a JSON object; raise `ApiError` 400 for any other."""
    try:
        body = loads(raw, decoder or _DECODER)
    except (ValueError, RecursionError):
        raise ApiError(400, "invalid_json", "the body is not valid JSON") from None
    if not isinstance(body, dict):
        raise ApiError(400, "invalid_json", "the body must be a JSON object")
    # Deeper bodies would end later, recursive walks (translations, copies, providers' parsers) with a RecursionError.
    if may_be_deeper(raw, DEEPEST_JSON) and is_deeper(body, DEEPEST_JSON):
        raise ApiError(400, "invalid_json", f"the body is nested deeper than {DEEPEST_JSON} levels")
    return body


def parse_chat(
    raw: bytes,
    headers: Mapping[str, str],
    models: Collection[str],
    *,
    by_name: bool,
    dialect: Dialect | None = None,
    decoder: json.JSONDecoder | None = None,
) -> ChatRequest:
    """Parse a request of a dialect, by default chat completions.

    With `by_name` its `model` may name a model.

    Raise `ApiError` 400 if a field cannot be used, 404 if there is no such model.
    """
    sent = parse_object(raw, decoder)
    if len(sent) > _MAX_FIELDS:
        raise ApiError(400, "invalid_value", f"the request has {len(sent):,} fields, more than any API knows")
    dialect = dialect or Dialect()
    body = dialect.request(sent)
    _check_messages(body.get("messages"))
    _check_tools(body.get("tools"))
    model = body.pop("model", None)
    direct = body.pop("direct_model", None)
    if direct is None and by_name and isinstance(model, str) and model in models:
        direct = model
    if direct is not None and (not isinstance(direct, str) or direct not in models):
        name = str(direct)[:_SHOWN_NAME]  # looking for the nearest one takes long for a long text
        hint = nearest(name, models)
        raise ApiError(404, "model_not_found", f"no model {name!r} is configured{hint}", param="direct_model")
    budget = _budget(body.pop("cost", None), headers.get("x-p2l-cost"), "cost", "x-p2l-cost")
    dollars = body.pop("budget_usd", None), headers.get("x-p2l-budget-usd")
    budget_usd = _budget(*dollars, "budget_usd", "x-p2l-budget-usd")
    if budget is not None and budget_usd is not None:
        raise _bad("budget_usd", "goes not with cost: give one of them")
    compare = _flag(body, "compare")
    stream = _flag(body, "stream")
    for field in ("n", "max_tokens", "max_completion_tokens"):
        # Some providers read -1 as no limit, or text as a number: what an answer may cost must be known.
        if body.get(field) is not None and not count_of(body[field]):
            raise _bad(field, f"must be a whole number of at least 1, and at most {MOST_TOKENS:,}")
    if not isinstance(body.get("stream_options"), (dict, type(None))):
        raise _bad("stream_options", "must be an object")
    if compare and (stream or direct is not None or body.get("n") not in (None, 1)):
        raise _bad("compare", "goes with neither stream, direct_model nor n")
    request = ChatRequest(
        body=body,
        turns=turns_of(body["messages"]),
        budget=budget,
        direct=direct,
        compare=compare,
        stream=stream,
        size=len(raw),
        native=dialect.native_form(sent, headers),
        budget_usd=budget_usd,
    )
    if len(raw) > LONG:
        _ = request.prompt_tokens, request.features, request.has_many_values  # here, in a thread of its own
    return request


def tokens_of(request: ChatRequest, smallest_window: int) -> int | None:
    """Estimate the tokens of prompt and answer; None if they are below `smallest_window` in any case.

    Four bytes of text count as a token, which suits English; a provider that counts more refuses the prompt itself.
    """
    body = request.body
    answer = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    answer = answer if isinstance(answer, int) else 0
    if request.size // BYTES_PER_TOKEN + answer + _TOKENS_PER_ATTACHMENT <= smallest_window:
        return None
    return request.prompt_tokens + answer


def prompt_of(request: ChatRequest) -> Prompt:
    """Return what the cost of an answer depends on, beside the model."""
    body = request.body
    return Prompt(request.prompt_tokens, request.size, answer_of(body), count_of(body.get("n")) or 1)


def prompt_tokens_of(body: JSON) -> int:
    """Estimate the tokens of a prompt; four bytes of text count as one."""
    texts = len(dumps(body["tools"])) // BYTES_PER_TOKEN if body.get("tools") else 0
    for message in body["messages"]:
        content = message.get("content")
        plain = content if isinstance(content, str) else _text(content)
        texts += (len(plain) if plain.isascii() else count_bytes(plain)) // BYTES_PER_TOKEN
        if message.get("tool_calls"):
            texts += len(dumps(message["tool_calls"])) // BYTES_PER_TOKEN
    held = _attachments_of(body)
    return texts + (held.images + held.others) * _TOKENS_PER_ATTACHMENT


def _attachments_of(body: JSON) -> _Attachments:
    """Return what messages hold beside text."""
    images, inline, others, remote = 0, 0, 0, 0
    for message in body["messages"]:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if _is_text(part):
                continue
            url = image_url(part) if isinstance(part, dict) and part.get("type") == "image_url" else "data:"
            if url.startswith("data:") and not url.startswith("data:image/"):
                others += 1
                remote += _is_remote(part)
            else:
                images += 1
                inline += len(url) if url.startswith("data:") else 0
    return _Attachments(images, inline, others, remote)


MEDIA = bits_of(("images", "audio", "files", "video"))
_PARTS: Mapping[str, str] = {
    "image_url": "images",
    "image": "images",
    "input_image": "images",
    "input_audio": "audio",
    "audio": "audio",
    "audio_url": "audio",
    "file": "files",
    "document": "files",
    "input_file": "files",
    "video": "video",
    "video_url": "video",
}
_MEDIA_TYPES = (("data:audio/", "audio"), ("data:video/", "video"))


def features_of(body: JSON) -> int:
    """Return the bits of the features that a chat request needs."""
    bits = 0
    for message in body["messages"]:
        content = message.get("content")
        if isinstance(content, list):
            for part in content:
                kind = part.get("type") if isinstance(part, dict) else None
                feature = _PARTS.get(kind) if isinstance(kind, str) else None
                if feature is None:
                    continue
                if kind == "image_url":
                    url = image_url(part)
                    if url.startswith("data:") and not url.startswith("data:image/"):
                        feature = next((other for start, other in _MEDIA_TYPES if url.startswith(start)), "files")
                bits |= FEATURE_BITS[feature]
    if body.get("tools") or body.get("functions"):
        bits |= FEATURE_BITS["tools"]
        if body.get("parallel_tool_calls") is True:
            bits |= FEATURE_BITS["parallel_tools"]
    return bits | _features_of_answer(body)


def _features_of_answer(body: JSON) -> int:
    """Return the bits of what shapes the answer."""
    bits = 0
    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        bits |= FEATURE_BITS["json_schema"]
    if body.get("logprobs"):
        bits |= FEATURE_BITS["logprobs"]
    choices = body.get("n")
    if isinstance(choices, int) and choices > 1:
        bits |= FEATURE_BITS["n"]
    reasoning, thinking = body.get("reasoning"), body.get("thinking")
    # Each provider has its own way to ask for thoughts, and to ask for none.
    if (
        body.get("reasoning_effort") not in (None, "none")
        or (isinstance(reasoning, dict) and reasoning.get("effort") != "none" and reasoning.get("enabled") is not False)
        or (isinstance(thinking, dict) and thinking.get("type") != "disabled")
    ):
        bits |= FEATURE_BITS["reasoning"]
    modalities = body.get("modalities")
    if isinstance(modalities, list):
        bits |= sum(FEATURE_BITS[f"{kind}_output"] for kind in ("audio", "image") if kind in modalities)
    return bits


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise _bad("messages", "must be a list of at least one message")
    if len(messages) > _MOST_MESSAGES:
        text = f"the request has {len(messages):,} messages, more than {_MOST_MESSAGES:,}; send the newest"
        raise ApiError(413, "request_too_large", text, param="messages")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _bad(f"messages[{number}]", "must be an object with a role")
        if not isinstance(message.get("content"), (str, list, type(None))):
            raise _bad(f"messages[{number}].content", "must be text or a list of parts")


def _check_tools(tools: Any) -> None:
    """Raise `ApiError` for tools of which nobody could say what they are, so that none is dropped as another's."""
    if tools is None:
        return
    if not isinstance(tools, list):
        raise _bad("tools", "must be a list of objects")
    for number, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise _bad(f"tools[{number}]", "must be an object")
        kind = tool.get("type")
        if not isinstance(kind, str | None):
            raise _bad(f"tools[{number}].type", "must be text")
        # Tools of Gemini's own have no type, but a key of their name.
        is_function = kind == "function" or (
            kind is None and (tool.get("function") is not None or not tool.keys() - {"type"})
        )
        if is_function and not isinstance(tool.get("function"), dict):
            raise _bad(f"tools[{number}].function", "must be an object with a name")


def turns_of(messages: list[JSON]) -> tuple[str, ...]:
    """Return the text of the user's turns, P2L's input."""
    contents = [message.get("content") for message in messages if message["role"] == "user"]
    return tuple([content if isinstance(content, str) else _text(content) for content in contents]) or ("",)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if _is_text(part))
    return content if isinstance(content, str) else ""


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _is_remote(part: Any) -> bool:
    """Return whether a part names a document, video or recording that is elsewhere."""
    if not isinstance(part, dict) or part.get("type") == "image":
        return False
    holders = [part, *(held for held in part.values() if isinstance(held, dict))]
    places = (held.get(name) for held in holders for name in ("file_id", "file_url", "url"))
    return any(isinstance(place, str) and not place.startswith("data:") for place in places)


def _budget(in_body: Any, in_header: str | None, field: str, header: str) -> float | None:
    """Return the budget of the body, else that of the header."""
    budget = in_header if in_body is None else in_body
    if budget is None:
        return None
    where = f"the header {header}" if in_body is None else field
    try:
        if isinstance(budget, bool) or (in_body is not None and isinstance(budget, str)):
            raise ValueError
        number = float(budget)
    except (TypeError, ValueError, OverflowError):
        raise _bad(where, "must be a number") from None
    if not 0 <= number < math.inf:
        raise _bad(where, "must be a finite number of at least 0")
    return number


def count_of(number: Any) -> int:
    """Return a number of tokens or answers; 0 for what is none."""
    is_count = isinstance(number, int) and not isinstance(number, bool) and 0 < number <= MOST_TOKENS
    return number if is_count else 0


def _flag(body: JSON, field: str) -> bool:
    flag = body.pop(field, None)
    if flag is not None and not isinstance(flag, bool):
        raise _bad(field, "must be true or false")
    return flag is True


def _bad(param: str, problem: str) -> ApiError:
    return ApiError(400, "invalid_value", f"{param}: {problem}", param=param)


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python reads and no provider does."""
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=refuse_constant)
