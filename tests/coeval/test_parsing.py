from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coeval.parsing import (
    MalformedAnswerError,
    read_attributes,
    read_item,
    read_level,
    read_object,
    read_rubric,
    read_scores,
    read_word,
)

OBJECT = {"a": ["x", "y"], "b": "a } in text"}
PLAIN = json.dumps(OBJECT)


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        f"```json\n{PLAIN}\n```",
        f"Sure! Here it is:\n```\n{PLAIN}\n```\nAnything else?",
        f"Here: {PLAIN}",
        f"Here: {PLAIN} That is all.",
        f"[{PLAIN}]",
        f'{PLAIN}\n{{"another": 1}}',
        f"<think>Maybe {{}}? No.</think>{PLAIN}",
        f"\n\n  {PLAIN}  \n",
    ],
)
def test_an_object_is_found_wherever_it_stands(text: str) -> None:
    assert read_object(text) == OBJECT


@pytest.mark.parametrize("text", ["", "High", "[1, 2]", '{"a": ', "{'a': 1}", "null", "[[[[" * 500])
def test_what_is_no_object_is_an_error(text: str) -> None:
    with pytest.raises(MalformedAnswerError, match="no JSON object"):
        read_object(text)


@given(st.dictionaries(st.text(), st.text() | st.integers(), max_size=4), st.text("abc .\n"), st.text("abc .\n"))
def test_words_around_an_object_do_not_matter(value: dict[str, object], before: str, after: str) -> None:
    assert read_object(f"{before}{json.dumps(value)}{after}") == value


def test_attributes_are_lists_of_plain_values() -> None:
    text = json.dumps({"tone": ["warm", 1, None, {"x": 1}], "nothing": [], "text": "x", " ": ["y"]})
    assert read_attributes(text) == {"tone": ["warm", 1]}
    with pytest.raises(MalformedAnswerError, match="no attribute"):
        read_attributes('{"tone": "warm"}')


def test_a_rubric_is_described() -> None:
    assert read_rubric('{"clarity": " Is it clear? ", "x": 3}') == {"clarity": "Is it clear?"}
    with pytest.raises(MalformedAnswerError, match="no factor"):
        read_rubric("{}")


@pytest.mark.parametrize(
    ("text", "item"),
    [
        ('{"prompt": "p", "response": "r"}', ("p", "r")),
        ('{"Question": " p ", "Answer": "r"}', ("p", "r")),
        ('{"text": "no", "input": "p", "label": "r"}', ("p", "r")),
        ('{"prompt": "p", "response": {"subject": "s"}}', ("p", '{"subject": "s"}')),
        ('{"prompt": "p", "response": 3}', ("p", "3")),
    ],
)
def test_an_item_is_read_under_the_names_that_models_use(text: str, item: tuple[str, str]) -> None:
    assert read_item(text) == item


@pytest.mark.parametrize("text", ['{"prompt": "p"}', '{"prompt": "", "response": "r"}', '{"response": "r"}', "no"])
def test_half_an_item_is_none(text: str) -> None:
    with pytest.raises(MalformedAnswerError):
        read_item(text)


@pytest.mark.parametrize("text", ["High", "high.", ' "High" ', "**High**", "HIGH", "<think>low?</think>High"])
def test_a_level_is_one_word(text: str) -> None:
    assert read_level(text) == "High"


@pytest.mark.parametrize("text", ["", "Very high", "High or Medium", "0.9", "Excellent", "Low, because", "None"])
def test_anything_else_is_no_level(text: str) -> None:
    with pytest.raises(MalformedAnswerError):
        read_level(text)


def test_scores_are_of_the_factors_asked_for_and_no_other() -> None:
    text = '{"Clarity": "low", "good_tone": {"score": "High", "reason": "..."}, "extra": "High"}'
    assert read_scores(text, ["clarity", "good tone"]) == {"clarity": "Low", "good tone": "High"}


@pytest.mark.parametrize(
    "text", ['{"clarity": "High"}', '{"clarity": "High", "tone": 3}', '{"clarity": "High", "tone": "Great"}', "Low"]
)
def test_a_malformed_judgement_is_never_a_score(text: str) -> None:
    with pytest.raises(MalformedAnswerError):
        read_scores(text, ["clarity", "tone"])


def test_words_of_other_sets_are_read_too() -> None:
    assert read_word("tie.", ("A", "B", "TIE")) == "TIE"
    with pytest.raises(MalformedAnswerError, match="is none of A, B"):
        read_word("A and B", ("A", "B"))


MILLION = 1_000_000


@pytest.mark.parametrize(
    "text",
    ["<think>" * MILLION, "```" + " " * MILLION, "```" + "a" * MILLION, "```" * MILLION, "[" * MILLION, "{" * MILLION],
    ids=["thoughts", "space", "language", "fences", "lists", "objects"],
)
def test_a_reply_without_an_end_is_read_once(text: str) -> None:
    """Each of these takes hours where a pattern starts anew at each beginning."""
    with pytest.raises(MalformedAnswerError, match="no JSON object"):
        read_object(text)
    with pytest.raises(MalformedAnswerError, match="is none of High"):
        read_level(text)


def test_all_thoughts_are_left_out_and_an_unfinished_one_is_not() -> None:
    assert read_level("<think>Low?</think><thinking>Medium?</thinking>High") == "High"
    assert read_level("Hi<think>Low</think>gh") == "High"
    with pytest.raises(MalformedAnswerError):
        read_level("High<think>Low")


def test_an_answer_that_nests_too_deep_is_none() -> None:
    deep = '{"prompt": ' + "[" * 500 + "]" * 500 + ', "response": "x"}'
    with pytest.raises(MalformedAnswerError, match="no JSON object"):
        read_item(deep)
