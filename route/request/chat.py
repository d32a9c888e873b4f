"""Chat requests and answers: fields of the router are checked and removed, or added.

Fields of a request that shape its answer go to the provider, see `route.request.fields`; answers pass unchanged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, NoReturn, TypeVar

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Receive

from p2l.common import web
from p2l.common.cli import nearest
from p2l.common.files import DEEPEST_JSON, is_deeper
from p2l.common.long_texts import (
    LONG,
    MANY,
    count_bytes,
    decode,
    dumps,
    holds_more,
    may_be_deeper,
    patiently,
)
from p2l.common.web import bearer_of
from route.config import ModelConfig
from route.providers.base import JSON
from route.providers.chat import BYTES_PER_TOKEN, MOST_TOKENS, has_role, image_url
from route.request.api_errors import ApiError
from route.request.fields import features_of, passed
from route.routing.decision import NO_DEMAND, Decision, Demand
from route.routing.dollars import Prompt
from route.routing.refusals import Refusals, answer_of

T = TypeVar("T")
MOST_MESSAGES = 10_000
"""Of a request: the objects of 100,000 fill memory that Python hardly gives back, and loops over them take long."""
MOST_VALUES = 20 * MOST_MESSAGES
"""Of the body of a request, which is refused unparsed for more."""
_TOKENS_PER_ATTACHMENT = 1000


class Attachments(NamedTuple):
    """Parts of messages that are not text."""

    images: int
    image_bytes: int
    """Of inline images."""
    others: int
    remote: int
    """Those of the others that the provider fetches, so that nobody here knows how long they are."""


@dataclass(frozen=True)
class Incoming:
    """One chat request."""

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
    hints: tuple[str, ...] = ()
    """Fields of the client's own protocol that were left out."""
    budget_usd: float | None = None
    """Expected dollars that the answer may cost; it takes the place of the budget in the unit of the costs."""

    @property
    def ends_with_assistant(self) -> bool:
        """Return whether the model is to continue an answer, which not every provider accepts."""
        return bool(self.body["messages"][-1]["role"] == "assistant")

    @cached_property
    def prompt_tokens(self) -> int:
        """Estimate the tokens of the prompt."""
        return prompt_tokens_of(self.body)

    @cached_property
    def features(self) -> int:
        """Return the bits of the features that the request needs of a model."""
        return features_of(self.body)

    @cached_property
    def attachments(self) -> Attachments:
        """Return what messages hold beside text."""
        return attachments_of(self.body)

    @cached_property
    def has_many_values(self) -> bool:
        """Return whether walking through the body takes so long that others would notice."""
        return self.size > MANY and holds_more(self.body, MANY)

    async def apart(self, function: Callable[[], T]) -> T:
        """Call a function that walks through the body, in a thread where that takes long."""
        return await patiently(function) if self.has_many_values else function()


def key_of(headers: Headers) -> str | None:
    """Return the key of a request, as OpenAI's clients or as Anthropic's send it."""
    token = bearer_of(headers)
    return (headers.get("x-api-key", "") if token is None else token).strip() or None


async def read_body(headers: Headers, receive: Receive, max_bytes: int, seconds: float) -> bytes:
    """Read the whole body; raise `ApiError` 413, 408 or 503 for one that is too large, too late, or one too many."""
    try:
        return await web.read_body(headers, receive, max_bytes, seconds)
    except HTTPException as error:
        code = {408: "request_timeout", 413: "request_too_large"}.get(error.status_code, "busy")
        pause = 1.0 if error.status_code == 503 else None
        raise ApiError(error.status_code, code, error.detail, retry_after=pause) from None


def parse_object(raw: bytes, decoder: json.JSONDecoder | None = None) -> JSON:
    """Parse a body that is a JSON object; raise `ApiError` 400 for any other."""
    body = _object(raw, decoder)
    _check_depth(raw, body)
    return body


def _object(raw: bytes, decoder: json.JSONDecoder | None) -> JSON:
    try:
        body = (decoder or _DECODER).decode(decode(raw))
    except (ValueError, RecursionError):
        raise ApiError(400, "invalid_json", "the body is not valid JSON") from None
    if not isinstance(body, dict):
        raise ApiError(400, "invalid_json", "the body must be a JSON object")
    return body


def _check_depth(raw: bytes, body: JSON) -> None:
    if may_be_deeper(raw, DEEPEST_JSON) and is_deeper(body, DEEPEST_JSON):
        raise ApiError(400, "invalid_json", f"the body is nested deeper than {DEEPEST_JSON} levels")


def parse_chat(
    raw: bytes,
    headers: Mapping[str, str],
    models: Collection[str],
    *,
    by_name: bool,
    translate: Callable[[JSON], JSON] = lambda body: body,
    hints: Collection[str] = (),
    decoder: json.JSONDecoder | None = None,
) -> Incoming:
    """Parse a chat request that `translate` brings into OpenAI's form, without the fields `hints`.

    With `by_name` its `model` may name a model.

    Raise `ApiError` 400 if a field cannot be used, 404 if there is no such model.
    """
    sent = _object(raw, decoder)
    _check_depth(raw, sent)
    if len(sent) > _MOST_FIELDS:
        raise ApiError(400, "invalid_value", f"the request has {len(sent):,} fields, more than any API knows")
    body = translate(sent)
    _check_messages(body.get("messages"))
    model = body.pop("model", None)
    direct = body.pop("direct_model", None)
    if direct is None and by_name and isinstance(model, str) and model in models:
        direct = model
    if direct is not None and (not isinstance(direct, str) or direct not in models):
        name = str(direct)[:_NAME]  # looking for the nearest one takes long for a long text
        hint = nearest(name, models)
        raise ApiError(404, "model_not_found", f"no model {name!r} is configured{hint}", param="direct_model")
    budget = _budget(body.pop("cost", None), headers.get("x-p2l-cost"), "cost", "x-p2l-cost")
    dollars = body.pop("budget_usd", None), headers.get("x-p2l-budget-usd")
    budget_usd = _budget(*dollars, "budget_usd", "x-p2l-budget-usd")
    if budget is not None and budget_usd is not None:
        raise _bad("budget_usd", "goes not with cost: give one of them")
    compare = _flag(body, "compare")
    stream = _flag(body, "stream")
    _check_options(body)
    if compare and (stream or direct is not None or body.get("n") not in (None, 1)):
        raise _bad("compare", "goes with neither stream, direct_model nor n")
    left_out = tuple(name for name in hints if name in sent)
    turns = turns_of(body["messages"])
    incoming = Incoming(body, turns, budget, direct, compare, stream, len(raw), left_out, budget_usd)
    if len(raw) > LONG:
        _ = incoming.prompt_tokens, incoming.features, incoming.has_many_values  # here, in a thread of its own
    return incoming


def tokens_of(incoming: Incoming, smallest_window: int) -> int | None:
    """Estimate the tokens of prompt and answer; None if they are below `smallest_window` in any case.

    Four bytes of text count as a token, which suits English; a provider that counts more refuses the prompt itself.
    """
    body = incoming.body
    answer = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    answer = answer if isinstance(answer, int) else 0
    if incoming.size // BYTES_PER_TOKEN + answer + _TOKENS_PER_ATTACHMENT <= smallest_window:
        return None
    return incoming.prompt_tokens + answer


def demand_of(incoming: Incoming, refusals: Refusals, rare: int, least_window: float) -> Demand:
    """Return what a request needs, as far as it matters: `rare` and `least_window` are those of `Menu`."""
    tokens = None if least_window == math.inf else tokens_of(incoming, int(least_window))
    refused = refusals.of(incoming)
    features = incoming.features if rare else 0
    answer = answer_of(incoming.body)
    if not features and tokens is None and not refused and not answer:
        return NO_DEMAND
    return Demand(features, tokens, answer, refused)


def prompt_of(incoming: Incoming) -> Prompt:
    """Return what the cost of an answer depends on, beside the model."""
    body = incoming.body
    return Prompt(incoming.prompt_tokens, incoming.size, answer_of(body), count_of(body.get("n")) or 1)


def prompt_tokens_of(body: JSON) -> int:
    """Estimate the tokens of a prompt; four bytes of text count as one."""
    texts = len(dumps(body["tools"])) // BYTES_PER_TOKEN if body.get("tools") else 0
    for message in body["messages"]:
        content = message.get("content")
        plain = content if isinstance(content, str) else _text(content)
        texts += (len(plain) if plain.isascii() else count_bytes(plain)) // BYTES_PER_TOKEN
        if message.get("tool_calls"):
            texts += len(dumps(message["tool_calls"])) // BYTES_PER_TOKEN
    held = attachments_of(body)
    return texts + (held.images + held.others) * _TOKENS_PER_ATTACHMENT


def attachments_of(body: JSON) -> Attachments:
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
    return Attachments(images, inline, others, remote)


def _check_options(body: JSON) -> None:
    for field in ("n", "max_tokens", "max_completion_tokens"):
        # Some providers read -1 as no limit, or text as a number: what an answer may cost must be known.
        if body.get(field) is not None and not count_of(body[field]):
            raise _bad(field, f"must be a whole number of at least 1, and at most {MOST_TOKENS:,}")
    if not isinstance(body.get("stream_options"), (dict, type(None))):
        raise _bad("stream_options", "must be an object")


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise _bad("messages", "must be a list of at least one message")
    if len(messages) > MOST_MESSAGES:
        text = f"the request has {len(messages):,} messages, more than {MOST_MESSAGES:,}; send the newest"
        raise ApiError(413, "request_too_large", text, param="messages")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _bad(f"messages[{number}]", "must be an object with a role")
        if not isinstance(message.get("content"), (str, list, type(None))):
            raise _bad(f"messages[{number}].content", "must be text or a list of parts")


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

_NAME = 100  # letters of an unknown model's name that are looked at
_MOST_FIELDS = 1000
_MOST_DOLLARS = 10_000.0  # no answer costs as much
_REASONS = (
    *("model", "probabilities", "propensity", "expected_score", "expected_cost", "strength"),
    *("budget", "in_dollars", "explored", "static", "average", "optimizer", "revision"),
)


def request_for(model: ModelConfig, incoming: Incoming, listed: Collection[str] = ()) -> tuple[JSON, list[str]]:
    """Return the body for this model's provider, and the names of the fields that it does not get.

    Fields that pass, `listed` ones among them, override the configuration.
    """
    body, dropped = passed(incoming.body, listed)
    request = {**model.extra_fields, **body, **_sampling(model, body), "model": model.name}
    if model.system_prompt and not has_role(body["messages"], "system", "developer"):
        request["messages"] = [{"role": "system", "content": model.system_prompt}, *body["messages"]]
    if incoming.stream:
        options = body.get("stream_options") or {}
        request |= {"stream": True, "stream_options": {**options, "include_usage": True}}
    else:
        request.pop("stream_options", None)
    return request, dropped


def _sampling(model: ModelConfig, body: JSON) -> JSON:
    settings = {"temperature": model.temp, "top_p": model.top_p, "top_k": model.top_k, "max_tokens": model.max_tokens}
    if body.get("max_completion_tokens") is not None:
        del settings["max_tokens"]  # the same limit under its newer name
    return {key: setting for key, setting in settings.items() if setting is not None and body.get(key) is None}


def mark_answer(answer: JSON, name: str, decision: Decision | None, attempts: list[str]) -> JSON:
    """Return the answer for the client: with the configured name of the model, scores and decision."""
    for choice in answer.get("choices") or []:
        if isinstance(choice.get("message"), dict):
            choice["message"]["model"] = name
    return {**answer, "model": name, **outputs_of(decision, attempts)}


def mark_chunk(chunk: JSON, name: str) -> JSON:
    """Return the chunk for the client: with the configured name of the model, in each delta too."""
    chunk["model"] = name
    for choice in chunk.get("choices") or []:
        if isinstance(choice.get("delta"), dict):
            choice["delta"]["model"] = name
    return chunk


def outputs_of(decision: Decision | None, attempts: list[str]) -> JSON:
    """Return the fields that an answer, or the first chunk of a stream, has beyond OpenAI's."""
    if decision is None:
        return {"router_outputs": None}
    return {"router_outputs": dict(decision.scores), "router_decision": {**_reasons(decision), "attempts": attempts}}


def decision_of(decision: Decision) -> JSON:
    """Return a whole decision as JSON."""
    return {
        **_reasons(decision),
        "scores": dict(decision.scores),
        "costs": dict(decision.costs),
        "frontier": [{"model": at.model, "cost": at.cost, "score": at.score} for at in decision.frontier],
    }


def _reasons(decision: Decision) -> JSON:
    return {name: getattr(decision, name) for name in _REASONS}


def is_usage_only(chunk: JSON) -> bool:
    """Return whether a chunk holds nothing but the usage."""
    return not chunk.get("choices") and chunk.get("usage") is not None


def usage_of(answer: JSON | None) -> tuple[int | None, int | None]:
    """Return the tokens of prompt and answer, as the provider counted them."""
    usage = (answer or {}).get("usage")
    if not isinstance(usage, dict):
        return None, None
    return _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))


def cached_of(answer: JSON) -> int:
    """Return the tokens of the prompt that were in the provider's cache."""
    usage = answer.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    return (_count(details.get("cached_tokens")) or 0) if isinstance(details, dict) else 0


def dollars_of(answer: JSON) -> float | None:
    """Return what the answer cost, where the provider says so in `usage.cost`."""
    usage = answer.get("usage")
    cost = usage.get("cost") if isinstance(usage, dict) else None
    is_amount = isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < _MOST_DOLLARS
    return float(cost) if is_amount else None  # type: ignore[arg-type]


def _count(tokens: Any) -> int | None:
    """Return a number of tokens; None for what no answer can have, since keys pay for it."""
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and 0 <= tokens <= MOST_TOKENS else None
