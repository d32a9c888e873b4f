"""Classification of a provider's refusal: from status, headers and body to a `Fault`.

Providers agree on little: the body may be OpenAI's `{"error": {"message", "type", "code"}}`, Anthropic's or Google's
variant of it, a bare `{"message"}` or `{"detail"}`, a list, or HTML. Words and codes decide before the status does,
because an exceeded context is a 400, a 413 or a 500, depending on the provider.

What a provider refuses is read from the words of its message (`read_refusal`): a feature, a parameter, or a size, and
the limit that it names. `tests/route/providers/test_refusals.py` has some of each provider.
"""

from __future__ import annotations

import ipaddress
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from p2l.common.files import parse_json
from p2l.common.long_texts import dumps
from p2l.common.retry import parse_retry_after
from route.providers.base import Fault, ProviderError

_LONGEST_DETAIL = 500
_LONGEST_MESSAGE = 2000  # the patterns take the square of a text that somebody makes for them
_LONGEST_CODE, _MOST_CODES = 200, 10
_SHORTEST_SECRET = 6  # a shorter one would match ordinary words
_KEY_LIKE = re.compile(r"\b(?:sk|pk|gsk|hf|xai|key|AIza)[-_]?[A-Za-z0-9_\-*.]{12,}|(?i:bearer)\s+\S+")
_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.\-]{0,63}")
_CONTEXT = re.compile(
    r"maximum context length|context[ _]length[ _]exceeded|context window|prompt is too long|input is too long"
    r"|exceeds? (the )?(model'?s )?(maximum )?context|too many (input |total )?tokens|reduce the length of"
    r"|input token count|maximum (input|sequence|prompt) length|inputs. tokens .* must be <="
    r"|(inputs|prompt). must have (less|fewer) than \d+ tokens|available context size|(model|context) token limit"
    r"|range of input length|current length is \d+ while limit is|prompt (contains|has) .{0,30}tokens.{0,40}maximum"
)
_FILTER = re.compile(
    r"content[ _]?filter|content management policy|content[ _]policy|responsible ?ai|flagged (by|as|for)|was flagged"
    r"|prohibited_content|violat\w+ .{0,40}(usage|safety) polic"
)
_QUOTA = re.compile(r"insufficient[_ ](quota|balance|credit|fund)|credit balance is too low")
_SPENT = re.compile(
    r"(usage|spend|spending|billing|budget|credit) (hard )?limit|regain access|payment (required|method)"
    r"|(out of|no|not enough|exhausted) (\w+ )?(credits?|funds|budget|balance)\b"
    r"|exceeded (your|its|the) (current )?(quota|budget)|budget (has been |is |was )?(exceeded|exhausted|reached)"
    r"|(monthly|weekly|daily|plan) (\w+ )?(limit|quota) (has been )?(reached|exceeded)"
    # The account itself, not what one has switched off: "your organization has disabled web search".
    r"|(account|subscription|billing|organi[sz]ation)( associated with .{0,20}| [\w-]+)? (is|was|has been|have been)"
    r"( \w+)? (suspend|deactivat|disabled|restricted(?! to)|not active|past due|in arrears|overdue)"
    r"|(no|without an?|invalid) (valid |active )?billing account"
    r"|billing account .{0,40}(disabled|closed|suspend|not (active|valid|found|open))"
    r"|spending cap|credits? (are|is|have been) (depleted|exhausted|used up)|arrearage|in good standing"
)
"""Of an account whose money is spent, where the status does not say so; with 429 it is a limit that passes."""
_KEY = re.compile(
    r"api[_ ]key[_ ](not[_ ](valid|found)|invalid|expired)|invalid[_ ](x-)?api[_ -]key|incorrect api key"
    r"|api key .{0,20}(has |is |was |been )(expired|invalid|not valid|disabled|suspended|revoked|blocked|leaked)"
    r"|location is not supported|operation not allowed"
)
"""Of an account or its key, or of where it may be used."""
_UNSUPPORTED = re.compile(
    r"prefill|must end with a user message|model_?not_?found|model_decommissioned|deploymentnotfound"
    r"|unsupported_(parameter|value|model)|(does not|doesn't|not) support|no endpoints found"
    r"|(deprecated|not (available|allowed)) (for|with|on) this model"
    r"|max_(completion_|output_)?tokens.*(too large|at most|maximum allowed|supported range|less than or equal)"
    r"|max_(completion_|output_)?tokens.*(valid range|<= \d|no more than)|range of max_tokens|requested output tokens"
    r"|(not|n't) (be )?(currently )?(support|enabled|available|allowed to request|implemented)|unsupported|unsupport"
    r"|only (supported|available|enabled) (by|with|on|for|in)|support(s|ed)? only|enabled only for|is unavailable now"
    r"|not an? (multi-?modal|vision)|at most 0 |unknown variant|`?content`? must be a string|mmproj|requires? --"
    r"|untagged enum chatcompletionrequestcontent|invalid type: sequence, expected a string"
    r"|un(recognized|known|expected|permitted) (request )?(argument|parameter|field)|extra (inputs|fields) "
    r"|(does not|doesn't) (work with|accept|take|allow)|cannot (take|accept)"
    r"|missing data required|requires that either input|number must be at most 1|no provider .{0,30}support"
)
_INPUTS = re.compile(
    r"(images?|audio|tools?|function calling|modality|multimodal)\b.{0,60}(not |un)supported|requires --jinja|mmproj"
    r"|not support .{0,30}(images?|audio|tools?|function)"
)
_OF_ACCOUNTS = re.compile(r"not (allowed to request|supported) .{0,60}model|model .{0,80}does not support")
_BY_CODE: Mapping[str, Fault] = {
    **dict.fromkeys(("authentication_error", "permission_error", "permission_denied"), Fault.CREDENTIALS),
    **dict.fromkeys(("unauthenticated", "billing_error"), Fault.CREDENTIALS),
    **dict.fromkeys(("invalid_request_error", "invalid_argument", "badrequesterror"), Fault.REQUEST),
    "request_too_large": Fault.UNSUPPORTED,
    **dict.fromkeys(("not_found_error", "not_found"), Fault.UNSUPPORTED),
    **dict.fromkeys(("rate_limit_error", "rate_limit_exceeded", "resource_exhausted"), Fault.RATE_LIMIT),
    **dict.fromkeys(("deadline_exceeded", "timeout_error"), Fault.TIMEOUT),
}
"""For errors inside a stream, which have no status; any other code there is a failure of the provider."""
_BY_STATUS: Mapping[int, Fault] = {
    **dict.fromkeys((401, 402, 403), Fault.CREDENTIALS),
    **dict.fromkeys((404, 413, 415), Fault.UNSUPPORTED),
    408: Fault.TIMEOUT,
    **dict.fromkeys(
        (409, 425), Fault.SERVER
    ),  # a conflict with another request, and one that came too early: both pass
    429: Fault.RATE_LIMIT,
}
_MEANING: Mapping[Fault, str] = {
    Fault.RATE_LIMIT: "takes no more requests at the moment",
    Fault.SERVER: "failed",
    Fault.CONNECTION: "cannot be reached",
    Fault.TIMEOUT: "took too long",
    Fault.MALFORMED: "sent what is not an answer",
    Fault.CONTEXT_LENGTH: "finds the prompt too long for this model",
    Fault.CONTENT_FILTER: "refuses the content",
    Fault.REQUEST: "cannot use the request",
    Fault.UNSUPPORTED: "has no such model, or one that cannot do what is asked",
    Fault.CREDENTIALS: "does not accept this account",
}


@dataclass(frozen=True)
class _Complaint:
    """The contents of a refusal's body."""

    message: str = ""
    codes: tuple[str, ...] = ()
    """Types, codes and statuses that are words."""
    number: int | None = None
    """A status inside the body."""
    delay: float | None = None
    """Seconds until a retry, where the body says so."""


def refusal(
    who: str,
    status: int | None,
    headers: Mapping[str, str],
    body: object,
    secrets: Iterable[str] = (),
    *,
    clock: Callable[[], float] = time.time,
) -> ProviderError:
    """Return the error for a refusal of the host `who`, by a response or an event (no status), without `secrets`."""
    details = complaint(body)
    fault = classify(status, details)
    delay = retry_after(headers, clock)
    codes = [code for code in details.codes if _CODE.fullmatch(code)]
    words = ", ".join(codes if status is None else [str(status), *codes])
    return ProviderError(
        fault,
        masked(f"{who} {_MEANING[fault]}" + (f" ({words})" if words else ""), secrets),
        status=status,
        retry_after=details.delay if delay is None else delay,
        detail=masked(details.message, secrets)[:_LONGEST_DETAIL],
        host=who,
    )


def classify(status: int | None, details: _Complaint) -> Fault:
    """Return the kind of failure."""
    status = details.number if status is None else status
    text = " ".join([*details.codes, details.message]).lower().replace("\u2019", "'")
    if status is None or status < 500 or status in (500, 501, 503):
        by_words = _by_words(text, status)
        if by_words is not None:
            return by_words
    if status is None:
        codes = [_BY_CODE[code.lower()] for code in details.codes if code.lower() in _BY_CODE]
        return codes[0] if codes else Fault.SERVER
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if 300 <= status < 400:
        return Fault.MALFORMED
    return Fault.SERVER if status >= 500 else Fault.REQUEST


_OF_SPENT = (400, 403, 412)
"""Statuses under which providers say that an account's money is spent."""


def _by_words(text: str, status: int | None) -> Fault | None:
    if _QUOTA.search(text) or _KEY.search(text) or (status in _OF_SPENT and _SPENT.search(text)):
        return Fault.CREDENTIALS
    if status == 429 or "rate_limit" in text or "rate limit exceeded" in text:
        return Fault.RATE_LIMIT
    if _CONTEXT.search(text):
        return Fault.CONTEXT_LENGTH
    if status is not None and status >= 500:
        # Servers of open models say so too.
        return Fault.UNSUPPORTED if status in (500, 501) and _INPUTS.search(text) else None
    if _FILTER.search(text):
        return Fault.CONTENT_FILTER
    if status == 403:
        return Fault.UNSUPPORTED if _OF_ACCOUNTS.search(text) else None
    return Fault.UNSUPPORTED if status in (400, 404, 422) and _UNSUPPORTED.search(text) else None


def complaint(body: object) -> _Complaint:
    """Parse the body of a refusal in any provider's format."""
    if isinstance(body, bytes):
        received = body
        try:
            body = parse_json(received)
        except ValueError:
            # An HTML page comes from a proxy, and says nothing of the request.
            body = "" if b"<" in received[:200] else received.decode("utf-8", "replace")
    if isinstance(body, list):
        body = body[0] if body else {}
    if not isinstance(body, dict):
        return _Complaint(_beginning(body) if isinstance(body, str) else "")
    error = body.get("error", body)
    if not isinstance(error, dict):
        error = {"message": error, **{key: value for key, value in body.items() if key != "error"}}
    words = (value[:_LONGEST_CODE] for value in _codes(error) if isinstance(value, str) and value != "error")
    codes = tuple(dict.fromkeys(words))[:_MOST_CODES]
    numbers = [value for value in _codes(error) if isinstance(value, int) and 300 <= value < 600]
    # Google writes a RetryInfo, such as 3.5s, among the details.
    delays = (re.fullmatch(r"([0-9.]{1,20})s", str(detail.get("retryDelay"))) for detail in _details(error))
    return _Complaint(
        message=_message(error),
        codes=codes,
        number=numbers[0] if numbers else None,
        delay=next((_seconds(match[1]) for match in delays if match), None),
    )


def _codes(error: Mapping[str, object]) -> Iterator[object]:
    for key in ("type", "code", "status", "error_type"):
        yield error.get(key)
    inner = error.get("innererror")  # Azure
    if isinstance(inner, dict):
        yield inner.get("code")
    for detail in _details(error):  # Google
        yield detail.get("reason")


def _details(error: Mapping[str, object]) -> list[Mapping[str, object]]:
    details = error.get("details")
    return [detail for detail in details[:_MOST_CODES] if isinstance(detail, dict)] if isinstance(details, list) else []


def _message(error: Mapping[str, object]) -> str:
    for key in ("message", "detail", "details", "msg"):
        value = error.get(key)
        if isinstance(value, str):
            return _beginning(value)
        if value:
            return _beginning(dumps(value))
    return ""


def _beginning(text: str) -> str:
    """Return the beginning of a message on one line."""
    if len(text) > _LONGEST_MESSAGE:
        # Without the word that is cut, which may be half of a secret: nothing would mask it.
        text = text[:_LONGEST_MESSAGE].rpartition(" ")[0]
    return " ".join(text.split())


def retry_after(headers: Mapping[str, str], clock: Callable[[], float] = time.time) -> float | None:
    """Return the seconds until a retry by `retry-after-ms` or else `Retry-After`; None if neither is legible."""
    milliseconds = _seconds(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    return parse_retry_after(headers.get("Retry-After"), clock)


def _seconds(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return max(0.0, number) if math.isfinite(number) else None


_ADDRESS = re.compile(
    r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>)\]}]+"  # a URL
    r"|(?<=\bhost )[\"']?[\w.-]+:\d+"  # as libraries name whom they cannot reach
    r"|\blocalhost(?::\d+)?|\b(?:[\w-]+\.)+[a-z][\w-]*:\d{1,5}\b"
    r"|\b(?:[\w-]+\.)+(?:local|internal|svc|lan|corp|intranet|cluster|localdomain|home)\b(?:\.[\w-]+)*(?::\d+)?"
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?!\w)",
    re.IGNORECASE,
)
_PERHAPS_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f:]*:[0-9A-Fa-f]*:[0-9A-Fa-f:]*(?![\w:])")


def without_addresses(text: str, host: str = "") -> str:
    """Return a text without addresses: those of `host` and its domain, URLs, IP addresses, names with a port.

    A provider's message may name it or the machines behind it, which is nothing for a client of the router.
    """
    text = _ADDRESS.sub("[address]", text)
    text = _PERHAPS_IPV6.sub(lambda match: "[address]" if _is_ip(match[0]) else match[0], text)
    name = urlsplit(f"//{host}").hostname or ""
    if not name or _is_ip(name):
        return text
    domain = re.escape(".".join(name.split(".")[-2:]))
    of_host = rf"(?<![\w-])(?:[\w-]+\.)*{domain}(?::\d+)?(?![\w-])(?:/[^\s\"'<>)]*)?"
    return re.sub(of_host, "[address]", text, flags=re.IGNORECASE)


def _is_ip(text: str) -> bool:
    try:
        return text != "::" and bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def masked(text: str, secrets: Iterable[str]) -> str:
    """Mask the secrets in a text and everything that looks like a key."""
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "***")
    return _KEY_LIKE.sub("***", text)


_FEATURE_WORDS = {
    "images": r"image_url|\bimages?\b|vision|multi-?modal|`?content`? must be a string|mmproj"
    r"|enum chatcompletionrequestcontent|sequence, expected a string",
    "audio": r"input_audio|audio",
    "video": r"video",
    "files": r"\bpdfs?\b|\bfiles?\b|documents?\b",
    "parallel_tools": r"parallel_tool|parallel (tool|function)",
    "tools": r"\btools?\b|tool[_ -]?(use|call|choice)|function[_ ]call",
    "json_schema": r"json_schema|response_?format|json mode|structured output",
    "logprobs": r"log_?probs?",
    "n": r"['`\"]n['`\"]|\bn (above|must|greater)|multiple (candidates|choices|completions)|candidate_?count",
    "reasoning": r"reasoning|thinking",
}
"""By feature of the router; the first words that fit count, so that parallel tools go before tools."""
_FEATURES = {feature: re.compile(words) for feature, words in _FEATURE_WORDS.items()}
_OUTPUT = re.compile(r"output modalit")
_SIZE = r"[`'\"]?([0-9][0-9,_]{0,11})"
_WINDOW = re.compile(
    rf"maximum context length is {_SIZE}|> {_SIZE} maximum|limit is {_SIZE}|token limit:? {_SIZE}"
    rf"|tokens?`? must be <= {_SIZE}|(?:less|fewer) than {_SIZE} tokens|input length should be \[\d+, {_SIZE}"
    rf"|context (?:size|window|length)(?: of| is|:)? \(?{_SIZE}|exceeds the maximum number of tokens allowed \(?{_SIZE}"
)
_LONGEST = re.compile(
    rf"supports at most {_SIZE}(?: completion| output)? tokens|> {_SIZE}, which is the maximum"
    rf"|max_(?:completion_|output_)?tokens.{{0,60}}(?:less than or equal to|at most|<=|no more than) {_SIZE}"
    rf"|max_(?:completion_|output_)?tokens.{{0,60}}\[\d+, {_SIZE}\]|supported range is from \d+ .{{0,20}}to {_SIZE}"
)
_QUOTED = re.compile(
    r"['`\"]([A-Za-z_][A-Za-z0-9_.\[\]]{1,60})['`\"]|(?:argument|parameter)s? (?:supplied: )?(\w{2,60})"
)


class Refused(NamedTuple):
    """A feature, a parameter or a size that is not accepted; all empty where the words say nothing of it."""

    features: tuple[str, ...] = ()
    parameter: str = ""
    """The name of a field of the request."""
    window: int | None = None
    """Tokens of the longest prompt."""
    longest: int | None = None
    """Tokens of the longest answer."""


def read_refusal(text: str, needed: Collection[str], fields: Collection[str]) -> Refused:
    """Return what a message refuses of a request that needs these features and has these fields."""
    text = text.lower()
    longest, window = _number(_LONGEST, text), _number(_WINDOW, text)
    if longest is not None or window is not None:
        return Refused(window=window if longest is None else None, longest=longest)
    output = {"audio": "audio_output", "images": "image_output"} if _OUTPUT.search(text) else {}
    for feature, words in _FEATURES.items():
        feature = output.get(feature, feature)
        if feature in needed and words.search(text):
            return Refused(features=(feature,))
    names = (name.partition(".")[0].partition("[")[0] for match in _QUOTED.finditer(text) for name in match.groups(""))
    parameter = next((name for name in names if name in fields and name not in ("messages", "model", "stream")), "")
    return Refused(parameter=parameter)


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    digits = next((group for group in match.groups() if group), "") if match else ""
    return int(re.sub("[,_]", "", digits)) if digits else None
