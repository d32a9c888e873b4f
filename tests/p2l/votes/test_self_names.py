"""Answers that tell their model are found and masked, and answers about models are not."""

from __future__ import annotations

import pytest

from p2l.votes.kinds.self_names import SelfNames

NAMES = SelfNames.of(["meta-llama/Llama-3.1-70B-Instruct", "acme/road-runner-2", "bee"])
TELLING = [
    "I am ChatGPT, a large language model trained by OpenAI.",
    "As an AI language model developed by Anthropic, I cannot do that.",
    "Hello! I'm Claude.",
    "My name is Gemini, and I can help.",
    "I was created by Meta AI to help people.",
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "I am an AI assistant made by Google",
    "I'm a Google AI, so I have no opinion.",
    "我是通义千问，由阿里云开发。",
    "Ich bin Llama 3.1, ein Sprachmodell.",
    "Soy GPT-4, un modelo de lenguaje.",
    "I'm DeepSeek-V3, an AI assistant",
    "I am Road Runner 2.",
    "I am a language model, trained by researchers at ACME.",
]
NOT_TELLING = [
    "OpenAI released GPT-4 in 2023.",
    "The Claude model by Anthropic is good.",
    "GPT-4 is a language model developed by OpenAI.",
    "Here is a comparison of GPT-4 and Claude 3.",
    "I am happy to help you with Amazon deliveries.",
    "You are right that Meta bought Instagram.",
    "As an example, Google Maps works.",
    "Claude Monet was a painter. I am a fan.",
    "As a Microsoft Excel user, you can sort.",
    "I am busy as a bee.",
    "",
]


@pytest.mark.parametrize("text", TELLING)
def test_an_answer_that_names_itself_is_found(text: str) -> None:
    assert NAMES.revealed(text)
    assert NAMES.revealed(f"Sure, here is more.\n{text} What else?")


@pytest.mark.parametrize("text", NOT_TELLING)
def test_an_answer_about_models_is_not(text: str) -> None:
    assert not NAMES.revealed(text)


def test_the_list_grows_with_the_models_that_are_known() -> None:
    assert not SelfNames.of().revealed("I am Road Runner 2.")


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_names_are_masked_however_the_answer_comes(size: int) -> None:
    text = "Hi! I am ChatGPT, made by OpenAI. OpenAI is a firm. I am here"
    mask = NAMES.mask()
    shown = [mask.feed(text[start : start + size]) for start in range(0, len(text), size)]
    whole = "".join(shown) + mask.end()
    assert whole == "Hi! I am [name hidden], made by [name hidden]. OpenAI is a firm. I am here"
    assert not NAMES.revealed(whole)


def test_text_without_an_end_of_a_sentence_is_shown_in_time() -> None:
    mask = NAMES.mask()
    assert mask.feed("word " * 400)
