"""The cost of an attempt at an answer: its bounds before it is sent, its amount after, even if nobody saw the end."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from p2l.common.long_texts import count_bytes
from route.config import ModelConfig, Price
from route.keep.ledger import KeyRecord
from route.keep.reservations import Reservation, Worst
from route.keep.under_way import CallNotes
from route.observability.tracing import CallTrace
from route.providers.base import JSON, NATIVE, NativeRequest, Provider, ProviderError, Recording, Timeouts
from route.providers.completions import BYTES_PER_TOKEN
from route.providers.registry import spec_of
from route.providers.responses import UNDER_WAY
from route.providers.usage import TokenCounts, read
from route.request.api_errors import ApiError
from route.request.chat import ChatRequest, count_of
from route.request.native import limit_of
from route.send.identity import Identity
from route.send.pace import LEAST_PIECES, Heard, Pace
from route.send.served import Served

# Tokens of an answer where neither request nor configuration limits it; every model accepts this limit.
UNKNOWN_LONGEST = 4096
# Tokens; a shorter answer is worth no call, so that there is an error instead.
_SHORTEST_ANSWER_TOKENS = 16
# Where requests share what is left of a day, each may have an answer four times as long as the model's average one,
# of at least 256 tokens.
_COMFORT_ANSWERS = 4
_COMFORT_TOKENS = 256
# What providers add to a prompt: around its messages, and to explain the use of tools.
_TEMPLATE_TOKENS = 256
_TOOL_TOKENS = 1000
# The largest image, by the provider that counts most tokens for one.
_ATTACHMENT_TOKENS = 50_000
# Seconds before each look at a provider's record, which it may write some time after the answer.
_RECORD_PAUSES = (0.3, 0.7, 2.0, 5.0, 12.0)
# An answer that is made in the background is asked for during these seconds.
_BACKGROUND_SECONDS = 3600.0
_RECORD_TIMEOUTS = Timeouts(connect=5.0, first_token=10.0, total=10.0)
_LIMITS = ("max_tokens", "max_completion_tokens")
# The longest document that a provider fetches, for a model without `context_window`.
_REMOTE_TOKENS = 1_000_000
# Of a fast model: bounds what may have been made of an answer that nobody saw.
_TOKENS_PER_SECOND = 100.0
# After which a provider stops an answer whose connection is closed.
_NOTICE_SECONDS = 0.1
_MILLION = 1e6
_LOGGER = logging.getLogger("route")
_DEEPEST_DELTA = 4  # tool calls hold functions; nothing is deeper
_DEEPEST_MARK = 8  # results of tools in the content of messages


@dataclass(frozen=True)
class Bounds:
    """The worst case of a request to a model, by the request that would go out."""

    choices: int
    prompt: float = 0.0
    """Cost of the longest prompt that these bytes can be."""
    token: float = 0.0
    """Cost of one more token in every choice; 0: the length of the answer does not matter."""
    longest: int = 0
    """Tokens of an answer."""
    is_bound: bool = True
    """Whether the provider knows of `longest`, so that it needs not be sent."""
    fixed: float = 0.0
    """The whole cost where it does not depend on tokens."""

    @classmethod
    def of(cls, model: ModelConfig, request: ChatRequest, body: JSON) -> Bounds:
        """Return the bounds of a request by the body for its provider, which has the configuration's limits as well."""
        choices = count_of(body.get("n")) or 1
        if model.price is None:
            return cls(choices, fixed=model.cost * choices)
        limits = [limit for name in _LIMITS if (limit := count_of(body.get(name)))]
        # The greater of the two limits: which of them a provider reads is not known.
        known = [limit for limit in (max(limits, default=0), model.longest_answer) if limit]
        # No text has more tokens than bytes. An inline image counts by its tokens, not by its bytes in base64.
        held = request.attachments
        system = len((model.system_prompt or "").encode())
        tokens = request.size - held.image_bytes + system + _TEMPLATE_TOKENS
        tokens += _ATTACHMENT_TOKENS * (held.images + held.others) + _REMOTE_TOKENS * held.remote
        if request.body.get("tools") or request.body.get("functions"):
            tokens += _TOOL_TOKENS
        if model.context_window is not None:
            tokens = min(tokens, model.context_window)
        rates, dearest_tier = model.price.rates(), max([1.0, *model.price.tiers.values()])
        return cls(
            choices=choices,
            prompt=tokens * (rates.dearest_write if marks_cache(body) else rates.input) * dearest_tier / _MILLION,
            token=max(rates.output, rates.spoken or 0.0) * dearest_tier * choices / _MILLION,
            longest=min(known, default=UNKNOWN_LONGEST),
            is_bound=bool(known),
        )

    @property
    def most(self) -> float:
        """Return the cost of the worst case."""
        return self.fixed + self.prompt + self.token * self.longest

    def worst(self, model: ModelConfig, ceiling: float | None) -> Worst | None:
        """Return what is to be reserved under a ceiling; None if even the shortest answer is above it."""
        most = self.most
        least = self.fixed + self.prompt + self.token * min(self.longest, _SHORTEST_ANSWER_TOKENS)
        comfort = max(_COMFORT_ANSWERS * model.cost * self.choices, _COMFORT_TOKENS * self.token)
        enough = min(most, self.fixed + self.prompt + comfort)
        if ceiling is None:
            return Worst(most, enough, least)
        if least > ceiling:
            return None
        return Worst(min(most, ceiling), min(enough, ceiling), least)

    def lowered(self, amount: float) -> int | None:
        """Return the tokens that an answer may have for an amount; None if the request's own limit may stay."""
        if self.token and amount < self.most:
            # 1e-6: an amount that is exactly enough for a token must not lose it to rounding.
            return max(1, min(self.longest, math.floor((amount - self.prompt) / self.token + 1e-6)))
        return None if self.is_bound or not self.token else self.longest


def limited(body: JSON | NativeRequest, tokens: int) -> JSON | NativeRequest:
    """Return a request whose answer has at most `tokens` tokens, under the names that it uses."""
    if isinstance(body, NativeRequest):
        name = limit_of(body.protocol)
        return replace(body, body={**body.body, name: min(tokens, count_of(body.body.get(name)) or tokens)})
    limits = {name: limit for name in _LIMITS if (limit := count_of(body.get(name)))} or {_LIMITS[0]: tokens}
    return body | {name: min(tokens, limit) for name, limit in limits.items()}


@dataclass(eq=False)
class Charge:
    """One attempt at an answer: what was reserved for it and what it has cost so far."""

    model: str
    config: ModelConfig
    request: ChatRequest
    reservation: Reservation
    max_tokens: int | None = None
    """The limit of the answer where the router set one."""
    usage: TokenCounts = TokenCounts()  # noqa: RUF009 - immutable
    """What the provider counted last."""
    identity: Identity | None = field(default=None, repr=False)
    """Knows which names are those of the model that was asked for."""
    provider: Provider | None = field(default=None, repr=False)
    """Who was asked."""
    served: Served = Served()  # noqa: RUF009 - immutable
    """Who answers, as the provider says."""
    identifier: str = ""
    """Of the answer, under which the provider may keep a record of it."""
    pace: Pace = field(default_factory=Pace, repr=False)
    """Of the deployment."""
    booked: float = 0.0
    choices: int = 1
    """Number of choices."""
    is_cached: bool = False
    """Whether the answer was kept from an earlier request, so that it costs nothing."""
    use: Callable[[int], None] | None = field(default=None, repr=False)
    """Counts tokens at a deployment that has a limit of them."""
    trace: CallTrace | None = field(default=None, repr=False)
    pending: asyncio.Task[JSON] | None = field(default=None, repr=False)
    """The provider's whole answer, which goes on when the client leaves, since it has to be paid."""
    started: float = field(default_factory=time.perf_counter)
    ended: float | None = None
    """When nothing more was to come: the client had left, or the answer was complete."""
    _first_text_at: float | None = None
    _first_words_at: float | None = None
    """Of the first text that is no thought."""
    _whole_seconds: float | None = None
    """Of an answer that came whole."""
    _is_finished: bool = False
    _pieces: int = 0  # since the provider counted
    _bytes: int = 0
    _all_pieces: int = 0
    _all_bytes: int = 0
    _thought_bytes: int = 0

    def note(self, notes: CallNotes, request_id: str, deployment: str = "") -> None:
        """Note the call that is about to be made, so that a kill of this process leaves what it owes."""
        reservation = self.reservation
        facts = {
            "request_id": request_id,
            "key": reservation.key,
            "day": reservation.day,
            "team": reservation.team,
            "places": reservation.places,
            "model": self.model,
            "deployment": deployment,
            "choices": self.choices,
        }
        reservation.note = note = notes.begin(facts, self.config.cost * self.choices)
        if note is not None:
            note.look = lambda: (self.cost(), not self.is_estimated)

    def count(self, choices: Any) -> None:
        """Count what a chunk or an answer holds, for a provider that does not or a client that leaves before."""
        # Each chunk of a stream comes here: nothing is counted where nobody pays or limits by tokens.
        if self.config.price is None and not self.reservation.counts_tokens and self.use is None:
            return
        for choice in choices or ():
            self._is_finished |= choice.get("finish_reason") is not None
            delta = choice.get("delta") or choice.get("message")
            size = _text_bytes(delta) if isinstance(delta, dict) else 0
            if size:
                if self._first_text_at is None:
                    self._first_text_at = time.perf_counter()
                self._pieces += 1
                self._bytes += size
                self._all_pieces += 1
                self._all_bytes += size
                thoughts = delta.get("reasoning_content")
                thought_size = count_bytes(thoughts) if isinstance(thoughts, str) else 0
                self._thought_bytes += thought_size
                if self._first_words_at is None and size > thought_size:
                    self._first_words_at = time.perf_counter()

    def take_usage(self, answer: JSON) -> None:
        """Take over the usage of an answer or a chunk."""
        self.usage = usage = read(answer)
        if usage.completion is not None:  # what had passed through until now is in the provider's count
            self._pieces = self._bytes = 0
            if self.reservation.note is not None:
                self.reservation.note.refresh()

    def take_usage_so_far(self, counts: JSON) -> None:
        """Take over what a provider counted before the end of a stream; `completion_tokens` may be None."""
        self.usage = usage = read({"usage": counts})
        # Some count thoughts alone until the end, so that the text is not in the count.
        if usage.completion is not None and usage.completion > usage.reasoning:
            self._pieces = self._bytes = 0

    def complete(self, answer: JSON) -> None:
        """Take over a whole answer."""
        self.choices = len(answer.get("choices") or [0])  # an answer without choices is one all the same
        self.take_usage(answer)
        if self.trace is not None:
            self.trace.hear(answer)
        self.identify(answer)
        if self.usage.completion is None:
            self.count(answer.get("choices"))
        else:
            self._whole_seconds = time.perf_counter() - self.started

    def identify(self, answer: JSON) -> None:
        """Note who answers, by a whole answer or a chunk."""
        if not self.identifier and isinstance(answer.get("id"), str):
            self.identifier = answer["id"]
            if self.reservation.note is not None:
                self.reservation.note.identify(self.identifier)
        if spec_of(self.config.type).names_model:
            self.served = self.served.joined(answer)

    @property
    def is_expected(self) -> bool:
        """Return whether no other model than the one that was asked for seems to answer."""
        return self.identity is None or self.identity.judge(self.served).is_expected

    @property
    def price(self) -> Price | None:
        """Return the price of the model that answers, where it is known, else of the one that was asked."""
        return self.config.price if self.identity is None else self.identity.judge(self.served).price

    @property
    def tokens(self) -> tuple[int | None, int | None]:
        """Return the tokens of prompt and answer, as the provider counted them."""
        return self.usage.prompt, self.usage.completion

    @property
    def is_measured(self) -> bool:
        """Return whether the provider counted all of it."""
        is_cut = bool(self._all_bytes) and self.request.stream and not self._is_finished
        return None not in self.tokens and not self._pieces and not self.is_cached and not is_cut

    @property
    def is_told(self) -> bool:
        """Return whether the provider told its cost, or the tokens that it follows from."""
        return self.is_measured or (self.config.reported_cost and self.usage.dollars is not None)

    @property
    def is_estimated(self) -> bool:
        """Return whether its cost rests on what passed through the router or on time, not on the provider's word."""
        return self.config.price is not None and not (self.is_told or self.is_cached)

    @property
    def answer_tokens(self) -> int:
        """Return the tokens of the answer: the provider's count, and what has come since or instead."""
        # A chunk holds a token or more, and a token is four bytes or fewer: the greater count is nearer.
        return (self.tokens[1] or 0) + max(self._pieces, self.pace.text_tokens(self._bytes))

    def cost(self) -> float:
        """Return the cost from tokens and price where both are known, else the configured cost."""
        if self.is_cached:
            return 0.0
        price, usage = self.price, self.usage
        if self.config.reported_cost and usage.dollars is not None:
            return usage.dollars
        if price is None:
            return self.config.cost * self.choices
        prompt, completion = self.tokens
        if prompt is None:  # as of a client that left before the provider counted
            prompt = self.pace.prompt_tokens(self.request.prompt_tokens)
        if self.is_measured:  # an estimate never exceeds what was reserved; the provider's own count may
            return price.cost(usage)
        tokens = self.answer_tokens
        if completion is None and not tokens:  # nobody saw what was made, and the provider charges for it
            made = price.cost(usage._replace(prompt=prompt, completion=self._at_most(self._unseen_tokens())))
            cost = max(made, self.config.cost * self.choices)
        else:
            if completion is None:
                tokens += self._hidden_tokens()
            if self.request.stream and not self._is_finished:
                tokens += self._tokens_under_way()
            cost = price.cost(usage._replace(prompt=prompt, completion=self._at_most(tokens)))
        reserved = self.reservation.amount
        return cost if reserved is None else min(cost, reserved)

    def _at_most(self, tokens: int) -> int:
        """Return an estimate of the tokens of an answer, but no more than its limit and what was seen of it."""
        limits = [limit for name in _LIMITS if (limit := count_of(self.request.body.get(name)))]
        longest = self.max_tokens or max(limits, default=0) or self.config.max_tokens or self.config.longest_answer
        return tokens if longest is None else min(tokens, max(longest * self.choices, self.answer_tokens))

    def _seconds_since(self, began: float) -> float:
        """Return the seconds from a moment until now, or until nothing more was to come."""
        return (time.perf_counter() if self.ended is None else self.ended) - began

    @property
    def has_record(self) -> bool:
        """Return whether the provider may have counted what nobody has seen the end of."""
        records = self._records
        return bool(self.identifier) and records is not None and records.keeps(self.identifier)

    @property
    def _records(self) -> Recording | None:
        provider: object = self.provider
        return provider if isinstance(provider, Recording) else None

    async def look_up(self) -> None:
        """Take over the provider's own record, which it may write seconds later; without one the estimate stays.

        An answer that is made in the background is waited for. Where several looks in a row fail, or time is over, the
        log says that the cost is an estimate.
        """
        records = self._records
        assert records is not None
        form = self.request.native
        is_background = form is not None and bool(form.body.get("background"))
        ends = time.perf_counter() + (_BACKGROUND_SECONDS if is_background else sum(_RECORD_PAUSES))
        pauses = iter(_RECORD_PAUSES)
        pause: float | None = next(pauses)
        why = "it has no counts yet"
        while pause is not None:
            await asyncio.sleep(pause)
            try:
                record = await records.recorded(self.identifier, _RECORD_TIMEOUTS)
            except ProviderError as error:
                why = str(error)
                pause = next(pauses, None)
                continue
            if record.get("usage") is not None:
                self.take_usage(record)
                self._is_finished = True
                self.identify(record)
                return
            why = "it has no counts yet"
            if is_background:
                self.ended = time.perf_counter()
            if is_background and (record.get(NATIVE) or {}).get("status") not in UNDER_WAY:
                why = "it is over and has no counts"  # as one that was cancelled
                break
            pauses = iter(_RECORD_PAUSES)
            pause = min(2 * pause, _RECORD_PAUSES[-1]) if time.perf_counter() < ends else None
        _LOGGER.warning("the record of an answer of %s is not read, its cost is an estimate: %s", self.model, why)

    def learn(self) -> None:
        """Take over what an answer, whose tokens the provider counted, says of others that may be cut."""
        if not self.is_measured or self.choices != 1:
            return
        if self._whole_seconds is not None:
            self.pace.observe_whole(self.usage, self._whole_seconds)
        elif self._first_text_at is not None and self.request.stream:
            wait = (self._first_words_at or self._first_text_at) - self.started
            seconds = self._seconds_since(self.started)
            heard = Heard(self._all_bytes, self._thought_bytes, wait, seconds, pieces=self._all_pieces)
            self.pace.observe(self.usage, heard)
            self.pace.observe_prompt(self.tokens[0] or 0, self.request.prompt_tokens)

    def _tokens_under_way(self) -> int:
        """Return the tokens that the provider makes of a stream before it notices that nobody reads it any more."""
        if self._first_text_at is None:
            return 0
        seconds = max(self._seconds_since(self._first_text_at), _NOTICE_SECONDS)
        share = (self._all_pieces - 1) / self._all_pieces  # the first piece tells no speed
        tokens = max(self._all_pieces, self.pace.text_tokens(self._all_bytes))
        speed = tokens * share / seconds
        if self._all_pieces < LEAST_PIECES:
            speed = max(speed, self.pace.words_per_second)
        return math.ceil(speed * _NOTICE_SECONDS)

    def _hidden_tokens(self) -> int:
        """Return the thoughts that a model may have had before its own words, of which a cut stream tells nothing."""
        words_after = self._seconds_since(self.started) + _NOTICE_SECONDS
        if self._first_words_at is not None:
            words_after = self._first_words_at - self.started
        known = self.pace.hidden_tokens(words_after)
        if known is not None:
            return known * self.choices
        if self._is_finished:  # and not counted: there is a provider that counts nothing
            return 0
        usual_wait, _ = spec_of(self.config.type).speed
        shown = self._thought_bytes // BYTES_PER_TOKEN
        return max(0, math.ceil(max(0.0, words_after - usual_wait) * self._usual_speed * self.choices) - shown)

    def _unseen_tokens(self) -> int:
        """Return the tokens that an answer may have of which nothing came."""
        seconds = self._seconds_since(self.started) + _NOTICE_SECONDS
        known = self.pace.hidden_tokens(seconds) if self.request.stream else self.pace.tokens_by(seconds)
        return math.ceil(seconds * self._usual_speed if known is None else known) * self.choices

    @property
    def _usual_speed(self) -> float:
        """Return the tokens a second of the provider's models, at least those of a fast one."""
        _, speed = spec_of(self.config.type).speed
        return max(_TOKENS_PER_SECOND, speed)


def _text_bytes(delta: Mapping[str, Any], depth: int = 0) -> int:
    """Return the bytes of text in a delta: content, thoughts, refusals, calls."""
    size = 0
    for name, part in delta.items():
        if isinstance(part, str):
            if name != "role":
                size += count_bytes(part)
        elif depth < _DEEPEST_DELTA and isinstance(part, dict):
            size += _text_bytes(part, depth + 1)
        elif depth < _DEEPEST_DELTA and isinstance(part, list):
            size += sum(_text_bytes(each, depth + 1) for each in part if isinstance(each, dict))
    return size


def served_of(charges: Sequence[Charge]) -> JSON:
    """Return the field of an answer, or of the first chunk of a stream, that says who answered; of two, of each."""
    told = [charge.served.told(is_expected=charge.is_expected) if charge.served.model else None for charge in charges]
    return {"router_served": told[0] if len(told) == 1 else told} if any(told) else {}


def ceiling_of(key: KeyRecord, answers: int, dollars: float | None = None) -> float | None:
    """Return what each of the answers of a request may cost: by its key, and `dollars` by a strict budget."""
    key_limit = None if key.max_cost_per_request is None else key.max_cost_per_request / answers
    return min((limit for limit in (key_limit, dollars) if limit is not None), default=None)


def worst_case(model: ModelConfig, request: ChatRequest) -> float:
    """Return what an answer can cost: by the limit that the request states, else one that is long for this model.

    An answer without a limit is cut where it would cost more than a ceiling.
    """
    limits = {name: request.body[name] for name in _LIMITS if count_of(request.body.get(name))}
    # The configuration's limit would be sent, but as a default it says nothing of what this client expects.
    sent = limits or ({} if model.max_tokens is None else {_LIMITS[0]: model.max_tokens})
    bounds = Bounds.of(model, request, {"n": request.body.get("n"), **sent})
    worst = bounds.worst(model, None)
    return bounds.most if limits or worst is None else worst.enough


def too_dear(key: KeyRecord) -> ApiError:
    """Return the error for a request that cannot be kept to its key's ceiling."""
    most = "" if key.max_cost_per_request is None else f" {key.max_cost_per_request:g} with this API key"
    message = f"a request may not cost more than its ceiling{most}; shorten it or choose a cheaper model"
    return ApiError(400, "cost_ceiling_exceeded", message)


def marks_cache(part: Any, depth: int = 0) -> bool:
    """Return whether a request asks a provider to write a part of it to a cache, which costs more than reading it."""
    if isinstance(part, dict):
        return "cache_control" in part or any(marks_cache(each, depth + 1) for each in part.values())
    return isinstance(part, list) and depth < _DEEPEST_MARK and any(marks_cache(each, depth + 1) for each in part)
