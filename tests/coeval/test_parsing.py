from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

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
    split_thoughts,
)
from tests.conftest import ROOT

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
        f'{{"another": 1}}\n{PLAIN}',
        f"The set {{x}} of \\frac{{1}}{{2}}: {PLAIN}",
        f"```c\nint main() {{ return 0; }}\n```\n{PLAIN}",
        f"a thought {{}} that has no beginning</think>{PLAIN}",
        f"<think>Maybe {{}}? No.</think>{PLAIN}",
        f"\n\n  {PLAIN}  \n",
    ],
)
def test_an_object_is_found_wherever_it_stands(text: str) -> None:
    assert read_object(text) == OBJECT


@pytest.mark.parametrize("text", ["", "High", "[1, 2]", '{"a": ', "{'a': 1", "{'a' 1}", "{x, y}", "null", "[[[[" * 500])
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


MANY = 300_000


@pytest.mark.parametrize(
    "text",
    ["<think>" * MANY, "```" + " " * MANY, "```" + "a" * MANY, "```" * MANY, "[" * MANY, "{" * MANY],
    ids=["thoughts", "space", "language", "fences", "lists", "objects"],
)
def test_a_reply_without_an_end_is_read_once(text: str) -> None:
    """Each of these takes hours where a pattern starts anew at each beginning."""
    with pytest.raises(MalformedAnswerError, match="no JSON object"):
        read_object(text)
    with pytest.raises(MalformedAnswerError, match="is none of High"):
        read_level(text)


def test_what_stands_before_the_end_of_the_last_thought_is_no_verdict() -> None:
    assert read_level("<think>Low?</think><thinking>Medium?</thinking>High") == "High"
    assert read_level("Low, surely. No:</think>\nHigh") == "High"
    for text in ("High<think>Low", "High<think>Low</think>", "Hi<think>Low</think>gh", "<think>High"):
        with pytest.raises(MalformedAnswerError):
            read_level(text)


LOW, HIGH = '{"accuracy": "Low"}', '{"accuracy": "High"}'


@pytest.mark.parametrize(
    "text",
    [
        f"a first thought {LOW} and so on </think> {HIGH}",
        f"<think>{LOW}</think>\n{HIGH}",
        f"[THINK]{LOW}[/THINK]{HIGH}",
        f"The answer says {LOW} of itself. My verdict:\n```json\n{HIGH}\n```",
        f"By \\frac{{1}}{{2}} and {{x : x > 0}} it is {HIGH}",
        f"```python\nscores = {{'accuracy': 'Low'}}\n```\n{HIGH}",
        f"{HIGH}\nThis {{is}} why: accuracy: high, as every step holds.",
        "{'accuracy': 'High',}",
        '{"accuracy": "High", // as it should be\n}',
        '{\n  # of the answer\n  accuracy: "High" /* and more */\n}',
        "{“accuracy”: “High”}",
        '{"scores": {"accuracy": "High"}}',
        '{"evaluation": {"grades": [{"factor": "accuracy", "score": "High"}]}}',
        '{"accuracy": {"score": "High", "reason": "It says </think> and {\\"accuracy\\": \\"Low\\"}."}}',
        '{"accuracy": ["High"]}',
        f'{HIGH}\n{{"remark": "none"}}',
        f"[{HIGH}]",
    ],
)
def test_the_last_complete_verdict_counts(text: str) -> None:
    assert read_scores(text, ["accuracy"]) == {"accuracy": "High"}


@pytest.mark.parametrize(
    "text",
    [
        '{"accuracy": "High", "accuracy": "Low"}',
        "{'accuracy': 'High', 'accuracy': 'Low'}",
        '{"Accuracy": "High", "accuracy": "Low"}',
        '{"accuracy": {"score": "High", "level": "Low"}}',
        '{"accuracy": "High", "scores": {"accuracy": "Low"}}',
        f"[{HIGH}, {LOW}]",
        f"{HIGH} but then again: **accuracy**: Low",
        HIGH + ' or else {"accuracy": "Low", "tone": ',
        f"{LOW} or {{'accuracy': 'High'}}",
        f"{HIGH}</think>",
        f"{HIGH}<think>or {LOW}",
        '{"accuracy": null}',
    ],
)
def test_a_verdict_that_contradicts_itself_is_none(text: str) -> None:
    with pytest.raises(MalformedAnswerError):
        read_scores(text, ["accuracy"])


def test_a_later_object_may_repeat_a_part_of_the_verdict_and_not_contradict_it() -> None:
    whole = '{"accuracy": "High", "tone": "Low"}'
    assert read_scores(f"{whole} in short {HIGH}", ["accuracy", "tone"]) == {"accuracy": "High", "tone": "Low"}
    with pytest.raises(MalformedAnswerError, match="two grades for 'accuracy'"):
        read_scores(f"{whole} in short {LOW}", ["accuracy", "tone"])


@pytest.mark.parametrize(
    "text",
    ["It is right in all.\n\n**High**", "Low would be unfair.\nFinal verdict: High", "\\boxed{High}", "High\n\nHigh."],
)
def test_a_word_may_stand_in_the_last_line(text: str) -> None:
    assert read_level(text) == "High"


@pytest.mark.parametrize("text", ["Low\nHigh", "Grade: Low\n\nGrade: High", "High\n\nFor it is right.", "It is High"])
def test_words_that_differ_and_words_among_others_are_none(text: str) -> None:
    with pytest.raises(MalformedAnswerError):
        read_level(text)


@pytest.mark.parametrize(
    ("text", "answer", "thoughts"),
    [
        ("<think>So?</think>\n\nYes.", "Yes.", "So?"),
        ("So?\n</think>\nYes.", "Yes.", "So?"),
        ("Well. <think>So?</think> Yes.", "Well.  Yes.", "So?"),
        ("<think>So? <think>More?</think>Yes.", "Yes.", "So? \nMore?"),
        ("<think>So, on and on", "", "So, on and on"),
        ("Write `</think>` after the thoughts.", "Write `</think>` after the thoughts.", ""),
        ("```\n<think>x</think>\n```", "```\n<think>x</think>\n```", ""),
        ("The tag <think> begins a thought.", "The tag <think> begins a thought.", ""),
        ("<think>a `</think>Yes.", "Yes.", "a `"),
        ("Yes.", "Yes.", ""),
    ],
)
def test_an_answer_and_its_thoughts_are_told_apart(text: str, answer: str, thoughts: str) -> None:
    found = split_thoughts(text)
    assert found[0] == answer
    assert found[1].split() == thoughts.split()


@pytest.mark.parametrize("mark", ["<think>", "</think>", "`</think>", '{"a":"</think>"}', "{'a': /*", "{'a':'"])
def test_marks_without_end_are_read_in_bounded_time(mark: str) -> None:
    text = mark * 100_000
    split_thoughts(text)
    with pytest.raises(MalformedAnswerError):
        read_scores(text, ["accuracy"])


CASSETTES = Path(os.environ.get("P2L_RECORDED") or ROOT.parent / "shared" / "cassettes")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _texts(entry)


@pytest.mark.skipif(not CASSETTES.is_dir(), reason="no recorded traffic here")
def test_recorded_replies_are_read_as_they_are_or_refused() -> None:
    """Objects alone are read as they stand, and no other text ends in anything but a refusal."""
    read = 0
    for path in sorted(CASSETTES.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for text in _texts([json.loads(line).get("response") for line in lines]):
                try:
                    value = json.loads(text)
                except ValueError:
                    value = None
                if isinstance(value, dict) and value:
                    assert read_object(text) == value
                    read += 1
                if "think" not in text:
                    assert split_thoughts(text)[0] == text.strip()
                with suppress(MalformedAnswerError):
                    read_scores(text, ["accuracy"])
                with suppress(MalformedAnswerError):
                    read_level(text)
    assert read > 100


def test_an_answer_that_nests_too_deep_is_none() -> None:
    deep = '{"prompt": ' + "[" * 500 + "]" * 500 + ', "response": "x"}'
    with pytest.raises(MalformedAnswerError, match="no JSON object"):
        read_item(deep)
