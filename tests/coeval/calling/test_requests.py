from __future__ import annotations

from typing import Any

import pytest

from coeval.calling.calls import chat_request, limit_of
from coeval.schema import Model


def request(interface: str = "openai", **parameters: Any) -> dict[str, Any]:
    return chat_request(Model("ant", interface, ("judge",), parameters), "judge", "Hello")


def test_prompt_system_prompt_and_parameters_become_a_chat_completion() -> None:
    assert request(model="gpt-4o", system_prompt="Be brief.", max_tokens=50, top_p=0.9, made_up={"x": 1}) == {
        "model": "gpt-4o",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
        "temperature": 0.0,
        "max_tokens": 50,
        "top_p": 0.9,
        "made_up": {"x": 1},
    }


def test_a_models_name_is_its_id_where_none_is_given() -> None:
    assert request()["model"] == "ant"


def test_parameters_of_the_role_come_on_top() -> None:
    model = Model("ant", "openai", ("judge",), {"temperature": 0.9}, {"judge": {"temperature": 0.0, "model": "big"}})
    asked = chat_request(model, "judge", "Hello")
    assert (asked["temperature"], asked["model"]) == (0.0, "big")
    assert chat_request(model, "student", "Hello")["temperature"] == 0.9


def test_what_says_where_to_ask_is_not_sent_and_neither_is_what_only_local_models_know() -> None:
    unsent = {"api_key": "secret", "base_url": "http://x", "azure_endpoint": "y", "site_url": "z", "device": "cpu"}
    assert set(request(**unsent, max_new_tokens=9, load_in_4bit=True)) == {"model", "messages", "temperature"}
    local = request("huggingface", max_new_tokens=9, device="cpu", base_url="http://x")
    assert (local["max_new_tokens"], local["device"]) == (9, "cpu")
    assert "base_url" not in local


def test_a_parameter_of_null_is_left_out() -> None:
    assert "temperature" not in request(temperature=None)


@pytest.mark.parametrize("name", ["o1", "o3-mini", "o4-mini-2025-04-16", "openai/o3", "gpt-5", "gpt-5-mini", "GPT-5.1"])
def test_reasoning_models_get_their_own_limit_and_no_temperature(name: str) -> None:
    asked = request("openrouter", model=name, max_tokens=9, temperature=0.3)
    assert asked["max_completion_tokens"] == 9
    assert not {"temperature", "max_tokens"} & set(asked)


@pytest.mark.parametrize("name", ["gpt-4o", "gpt-5-chat-latest", "o1x", "llama-o1", "deepseek-r1"])
def test_others_keep_theirs(name: str) -> None:
    asked = request(model=name, max_tokens=9)
    assert (asked["max_tokens"], asked["temperature"]) == (9, 0.0)


def test_the_first_reasoning_models_have_no_system_message() -> None:
    asked = request(model="o1-mini", system_prompt="Be brief.")
    assert [message["role"] for message in asked["messages"]] == ["user", "user"]


def test_anthropic_is_told_a_limit_and_gemini_may_be_told_in_its_own_word() -> None:
    assert request("anthropic")["max_tokens"] == 1024
    assert request("anthropic", max_tokens=7)["max_tokens"] == 7
    gemini = request("gemini", max_output_tokens=64)
    assert gemini["max_tokens"] == 64
    assert "max_output_tokens" not in gemini
    assert limit_of(gemini) == 64
    assert limit_of(request()) is None
