"""Log-probabilities: asked for, read, and done without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coeval.calling.calls import Reply, first_tokens, logprob_parameters
from coeval.judging.prompts import render
from coeval.mock.server import MockServer
from coeval.schema import Sampling, Task
from route.providers.base import Fault, ProviderError
from tests.coeval.calling.calling_helpers import call, caller_of, model_at, replies

TASK = Task("mail", "Write a mail.", "A mail.", {}, Sampling((0, 0), (0, 0), 1), {"clarity": "Is it clear?"})
PROMPT = render(
    TASK,
    "ant",
    "evaluate_per_factor",
    **dict.fromkeys(("input", "target_attributes", "reference_response"), "x"),
    response="An answer (quality 0.50)",
    rubric_factor_name="clarity",
    rubric_factor_description="Is it clear?",
)


def said(*tokens: str) -> dict[str, Any]:
    content = [{"token": token, "logprob": -0.5, "top_logprobs": [{"token": "x", "logprob": -1.0}]} for token in tokens]
    return {"choices": [{"message": {"content": "".join(tokens)}, "logprobs": {"content": content}}]}


def test_the_first_token_that_says_something_counts() -> None:
    assert first_tokens(said(" ", '"', "High", '"')) == (("x", -1.0), ("High", -0.5))
    assert first_tokens(said("<think>", "5", "?", "</think>", "\n", "4")) == (("x", -1.0), ("4", -0.5))


@pytest.mark.parametrize(
    "completion",
    [{}, {"choices": []}, {"choices": [{"logprobs": None}]}, {"choices": [{"logprobs": {"content": []}}]}, said(" ")],
)
def test_an_answer_without_probabilities_has_none(completion: dict[str, Any]) -> None:
    assert first_tokens(completion) is None


def test_they_are_asked_for_where_they_are_wanted_alone(tmp_path: Path) -> None:
    with MockServer() as server:
        model = model_at(server.url)
        plain, weighed = replies(caller_of(tmp_path), [call(model, PROMPT), call(model, PROMPT, logprobs=True)])
    assert isinstance(plain, Reply)
    assert isinstance(weighed, Reply)
    assert plain.tokens is None
    assert {token for token, _ in weighed.tokens or ()} == {"High", "Medium", "Low"}
    assert [("logprobs" in body, body.get("top_logprobs")) for body in server.bodies] in (
        [(False, None), (True, 20)],
        [(True, 20), (False, None)],
    )


class WithoutLogprobs(MockServer):
    """A provider that refuses a request which asks for log-probabilities."""

    def completion(self, request: dict[str, Any]) -> dict[str, Any]:
        if "logprobs" in request:
            raise ProviderError(Fault.REQUEST, "logprobs: unknown parameter", status=400)
        return super().completion(request)


def test_a_provider_that_refuses_the_question_is_asked_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with WithoutLogprobs() as server:
        model, caller = model_at(server.url), caller_of(tmp_path)
        found = replies(caller, [call(model, f"{PROMPT} ", logprobs=True), call(model, PROMPT, logprobs=True)])
    assert [isinstance(reply, Reply) and reply.tokens is None for reply in found] == [True, True]
    asked = ["logprobs" in body for body in server.bodies]
    # The second call may start after the first was refused, and then does not ask.
    assert asked.count(False) == 2
    assert asked.count(True) in {1, 2}
    assert capsys.readouterr().err.count("ant: no log-probabilities come with its answers") == 1


def test_interfaces_that_tell_none_are_not_asked_for_them() -> None:
    assert logprob_parameters(model_at("http://x", interface="anthropic")) == {}
    assert logprob_parameters(model_at("http://x", interface="xai")) == {"logprobs": True, "top_logprobs": 8}
