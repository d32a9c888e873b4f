"""Names of LLMs that sets, providers and configurations spell differently."""

import pytest

from p2l.public import Names


@pytest.mark.parametrize(
    ("name", "source", "joined"),
    [
        ("Meta-Llama-3.1-70B-Instruct@hyperbolic", "zeroeval", "llama-3.1-70b-instruct"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "routellm", "mixtral-8x7b-instruct-v0.1"),
        ("mistralai/mixtral-8x7b-chat", "routerbench", "mixtral-8x7b-instruct-v0.1"),
        ("gpt-4", "oasst", "gpt-4-0314"),
        ("gpt-4", None, "gpt-4-0613"),
        ("gemini-1.5-pro", "zeroeval", "gemini-1.5-pro-001"),
        ("gemini-1.5-pro", None, "gemini-1.5-pro-002"),
        ("Meta-Llama-3-70B", "mmlu_pro", None),
        ("openai/GPT-4o_Mini", None, "gpt-4o-mini-2024-07-18"),
        ("some-model-of-mine", None, "some-model-of-mine"),
    ],
)
def test_a_name_is_joined_by_the_table_and_else_stays(name: str, source: str | None, joined: str | None) -> None:
    assert Names.load().joined(name, source) == joined


def test_a_configuration_s_names_mean_models_of_a_p2l() -> None:
    models = ["gpt-4o-mini-2024-07-18", "claude-3-haiku-20240307", "qwen2.5-7b-instruct"]
    names = ["gpt-4o-mini", "anthropic/claude-3-haiku", "Qwen/Qwen2.5-7B-Instruct", "gpt-9", "gpt-4o"]
    assert Names.load().matched(names, models) == {
        "gpt-4o-mini": "gpt-4o-mini-2024-07-18",
        "anthropic/claude-3-haiku": "claude-3-haiku-20240307",
        "Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b-instruct",
    }


def test_no_name_stands_twice_in_the_table() -> None:
    names = Names.load()
    assert all(names.joined(name) == name for name in set(names.known.values()))
