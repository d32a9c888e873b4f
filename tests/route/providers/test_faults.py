"""What a refusal means, in the words of many providers; and that no text shows a key."""

import json
import math

import pytest

from route.providers.base import Fault, ProviderError
from route.providers.errors import complaint, masked, refusal, retry_after

OPENAI_CONTEXT = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."


def openai(message: str, code: str | None = None, kind: str = "invalid_request_error") -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "code": code, "param": None}}


def anthropic(kind: str, message: str) -> dict[str, object]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def google(status: str, message: str, **more: object) -> dict[str, object]:
    return {"error": {"code": 400, "status": status, "message": message, **more}}


CASES = [
    (400, openai(OPENAI_CONTEXT, "context_length_exceeded"), Fault.CONTEXT_LENGTH),
    (400, {"object": "error", "message": OPENAI_CONTEXT, "type": "BadRequestError", "code": 400}, Fault.CONTEXT_LENGTH),
    (
        400,
        anthropic("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
        Fault.CONTEXT_LENGTH,
    ),
    (413, openai("Please reduce the length of the messages or completion."), Fault.CONTEXT_LENGTH),
    (500, openai("the input exceeds the model's context window"), Fault.CONTEXT_LENGTH),
    (400, google("INVALID_ARGUMENT", "The input token count (1100000) exceeds the maximum"), Fault.CONTEXT_LENGTH),
    (
        422,
        {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096"},
        Fault.CONTEXT_LENGTH,
    ),
    (400, openai("The response was filtered", "content_filter"), Fault.CONTENT_FILTER),
    (
        400,
        {"error": {"message": "x", "code": "y", "innererror": {"code": "ResponsibleAIPolicyViolation"}}},
        Fault.CONTENT_FILTER,
    ),
    (400, openai("Your request was rejected as it violates our usage policies", None), Fault.CONTENT_FILTER),
    (403, {"error": {"code": 403, "message": "The input was flagged by moderation"}}, Fault.CONTENT_FILTER),
    (401, openai("Incorrect API key provided", "invalid_api_key"), Fault.CREDENTIALS),
    (400, google("INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."), Fault.CREDENTIALS),
    (403, anthropic("permission_error", "no"), Fault.CREDENTIALS),
    (402, {"error": {"message": "Insufficient Balance"}}, Fault.CREDENTIALS),
    (429, openai("You exceeded your current quota", "insufficient_quota", "insufficient_quota"), Fault.CREDENTIALS),
    (400, anthropic("invalid_request_error", "Your credit balance is too low to access the API"), Fault.CREDENTIALS),
    (400, anthropic("invalid_request_error", "This organization has been disabled."), Fault.CREDENTIALS),
    (400, openai("Organization has been restricted. Reach out to us.", "organization_restricted"), Fault.CREDENTIALS),
    (400, openai("Your project has exceeded its monthly spending cap."), Fault.CREDENTIALS),
    (400, {"code": "Arrearage", "message": "Access denied, your account is not in good standing."}, Fault.CREDENTIALS),
    (403, google("PERMISSION_DENIED", "Your prepayment credits are depleted."), Fault.CREDENTIALS),
    (412, {"error": {"message": "Account a is suspended, possibly for its spending limit."}}, Fault.CREDENTIALS),
    (429, google("RESOURCE_EXHAUSTED", "You exceeded your current quota, check your plan"), Fault.RATE_LIMIT),
    (429, openai("Rate limit reached for requests", "rate_limit_exceeded", "requests"), Fault.RATE_LIMIT),
    (
        413,
        openai("Request too large for model on tokens per minute", "rate_limit_exceeded", "tokens"),
        Fault.RATE_LIMIT,
    ),
    (429, b"<html>slow down</html>", Fault.RATE_LIMIT),
    (404, openai("The model `x` does not exist", "model_not_found"), Fault.UNSUPPORTED),
    (404, {"error": {"code": "DeploymentNotFound", "message": "none"}}, Fault.UNSUPPORTED),
    (404, b"404 page not found", Fault.UNSUPPORTED),
    (400, openai("The model has been decommissioned", "model_decommissioned"), Fault.UNSUPPORTED),
    (
        400,
        anthropic("invalid_request_error", "This model does not support assistant message prefill."),
        Fault.UNSUPPORTED,
    ),
    (400, anthropic("invalid_request_error", "`temperature` is deprecated for this model."), Fault.UNSUPPORTED),
    (400, openai("Unsupported parameter: 'temperature'", "unsupported_parameter"), Fault.UNSUPPORTED),
    (
        400,
        anthropic("invalid_request_error", "max_tokens: 9000 > 8192, which is the maximum allowed"),
        Fault.UNSUPPORTED,
    ),
    (400, openai("max_tokens is too large: 9000. This model supports at most 4096 tokens."), Fault.UNSUPPORTED),
    (400, openai("Invalid value for 'role'", "invalid_value"), Fault.REQUEST),
    (422, {"detail": [{"loc": ["body", "messages"], "msg": "field required"}]}, Fault.REQUEST),
    (413, anthropic("request_too_large", "Request exceeds the maximum size"), Fault.UNSUPPORTED),
    (500, openai("The server had an error", None, "server_error"), Fault.SERVER),
    (502, b"<html>Bad gateway</html>", Fault.SERVER),
    (503, {"message": "model is loading"}, Fault.SERVER),
    (529, anthropic("overloaded_error", "Overloaded"), Fault.SERVER),
    (408, b"", Fault.TIMEOUT),
    (302, b"", Fault.MALFORMED),
    # Inside a stream there is no status.
    (None, anthropic("overloaded_error", "Overloaded"), Fault.SERVER),
    (None, anthropic("rate_limit_error", "slow"), Fault.RATE_LIMIT),
    (None, anthropic("invalid_request_error", "no"), Fault.REQUEST),
    (None, {"error": {"code": 502, "message": "Provider returned error"}}, Fault.SERVER),
    (None, {"error": {"code": 429, "message": "Provider returned error"}}, Fault.RATE_LIMIT),
    (None, openai(OPENAI_CONTEXT, "context_length_exceeded"), Fault.CONTEXT_LENGTH),
    (None, {"error": "something"}, Fault.SERVER),
    (None, google("DEADLINE_EXCEEDED", "late") | {"error": {"status": "DEADLINE_EXCEEDED"}}, Fault.TIMEOUT),
]


@pytest.mark.parametrize(("status", "body", "fault"), CASES)
def test_a_refusal_is_understood(status: int | None, body: object, fault: Fault) -> None:
    error = refusal(
        "host", status, {}, body if isinstance(body, bytes) or status is None else json.dumps(body).encode()
    )
    assert error.fault is fault
    assert error.status == status
    assert str(error).startswith("host ")


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"[[]]", b"12", b'"text"', b"\xff", b'{"error": [1]}', b'{"error": {}}']
)
def test_any_body_will_do(body: bytes) -> None:
    assert refusal("host", 503, {}, body).fault is Fault.SERVER


def test_the_text_has_codes_and_the_detail_has_the_words() -> None:
    error = refusal("host", 400, {}, openai("Invalid 'secret prompt'\nin messages", "invalid_value"))
    assert str(error) == "host cannot use the request (400, invalid_request_error, invalid_value)"
    assert error.detail == "Invalid 'secret prompt' in messages"


def test_codes_with_words_of_the_prompt_are_not_codes() -> None:
    error = refusal("host", 400, {}, openai("x", "you wrote: my secret prompt"))
    assert "secret" not in str(error)


def test_a_page_of_a_proxy_says_nothing() -> None:
    assert complaint(b"<!doctype html><h1>Bad gateway</h1>").message == ""


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:10 GMT"}, 10.0),
        ({"Retry-After": "Wed, 21 Oct 2015 07:27:00 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "1e999"}, math.inf),
        ({"Retry-After": "Wed, 99 Oct 2015 07:28:10 GMT"}, None),
        ({"retry-after-ms": "250", "Retry-After": "1"}, 0.25),
        ({}, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, lambda: 1445412480.0) == seconds


def test_google_says_in_the_body_when_to_come_again() -> None:
    details = [{"@type": "x"}, {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "13.5s"}]
    body = google("RESOURCE_EXHAUSTED", "quota", details=details)
    assert refusal("host", 429, {}, json.dumps([body]).encode()).retry_after == 13.5


@pytest.mark.parametrize("word", ["violat", "max_tokens ", "inputs. tokens ", "a.", ":", "1" * 19 + "s "])
@pytest.mark.parametrize("status", [None, 400, 503])
def test_a_refusal_of_many_words_is_read_at_once(word: str, status: int | None) -> None:
    """The patterns would take hours: the square of eight million."""
    text = word * (8_000_000 // len(word))
    for body in (openai(text, text, text), google(text, text, details=[{"retryDelay": text}] * 100), text.encode()):
        error = refusal("host", status, {}, body)
        assert len(error.detail) <= 500
        assert len(str(error)) < 500


def test_a_secret_that_a_long_message_cuts_is_not_shown() -> None:
    key = "topsecret-" + "0123456789" * 8
    error = refusal("host", 400, {}, openai((key + " ") * 30 + key[:45]), [key])
    assert "topsecret" not in error.detail


def test_no_text_shows_a_key() -> None:
    key = "topsecret-0123456789"
    body = openai(f"Incorrect API key provided: {key}. Also sk-proj-abcdefghijklmnop1234 and Bearer abc.def", key)
    error = refusal("host", 401, {}, body, [key])
    for text in (str(error), repr(error), error.detail):
        assert key not in text
        assert "abcdefghijklmnop" not in text
        assert "abc.def" not in text


def test_short_secrets_do_not_spoil_ordinary_words() -> None:
    assert masked("a test of words", ["test"]) == "a test of words"


def test_faults_say_what_to_do_next() -> None:
    assert not ProviderError(Fault.UNSUPPORTED, "x").fault.is_transient
    assert Fault.SERVER.is_transient
