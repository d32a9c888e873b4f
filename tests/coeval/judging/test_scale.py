"""Scales, what is read from judges on them, and expected scores."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coeval.judging.grading import Graded, clashing, expected_value, grading_of, read_factor, read_factors, weighed
from coeval.judging.prompts import render
from coeval.parsing import MalformedAnswerError
from coeval.schema import DEFAULT, Sampling, Task, scale_of

TASK = Task("mail", "Write a mail.", "A mail.", {}, Sampling((0, 0), (0, 0), 1), {"clarity": "Is it clear?"})
NAMED = ["useless", "poor", "fair", "very good"]


def context(**changes: Any) -> dict[str, Any]:
    return {"factors": ["clarity", "tone"], **grading_of(replace(TASK, **changes))}


@given(st.integers(0, 50), st.integers(1, 50))
def test_a_grade_of_a_range_is_worth_its_place(low: int, width: int) -> None:
    scale = scale_of(f"{low}-{low + width}")
    values = [float(scale.stored(scale.read(grade))) for grade in range(low, low + width + 1)]
    assert values == pytest.approx([place / width for place in range(width + 1)], abs=6e-5)
    assert scale_of(scale.to_json()) == scale


def test_levels_are_stored_as_words_and_all_else_as_numbers() -> None:
    assert DEFAULT.stored(DEFAULT.read(" **high**. ")) == "High"
    assert scale_of(["low", "medium", "high"]) is DEFAULT
    named = scale_of(NAMED)
    assert [named.stored(grade) for grade in named.grades] == ["0.0000", "0.3333", "0.6667", "1.0000"]
    assert named.read('"Very good".') == "very good"


@pytest.mark.parametrize(
    "said",
    ["6", "0", "4.5", "4/6", "-4", "about 4", "four", "", "4 or 5", "٤", 6, 4.5, True, None, [4], math.nan, 1e30],
)
def test_what_is_no_grade_of_the_scale_is_never_one(said: object) -> None:
    with pytest.raises(MalformedAnswerError):
        scale_of("1-5").read(said)


@pytest.mark.parametrize("said", ["4", "4/5", "4.", " '4' ", "**4**", "<think>5?</think>\n4", 4, 4.0])
def test_a_grade_is_read_leniently_in_its_form(said: object) -> None:
    assert scale_of("1-5").read(said) == "4"


def test_replies_are_read_on_every_scale_with_a_rationale_or_without() -> None:
    assert read_factors(context(), '{"clarity": "High", "tone": "Low"}') == Graded(
        {"clarity": "High", "tone": "Low"}, '{"clarity": "High", "tone": "Low"}'
    )
    found = read_factors(context(scale=scale_of("1-5")), '{"clarity": 4, "Tone": {"score": "5"}}')
    assert (found.scores, found.grades) == ({"clarity": "0.7500", "tone": "1.0000"}, {"clarity": "4", "tone": "5"})
    said = '```json\n{"rationale": "Plain words.", "scores": {"clarity": "fair", "tone": "poor"}}\n```'
    found = read_factors(context(scale=scale_of(NAMED), rationale=True), said)
    assert (found.scores, found.rationale) == ({"clarity": "0.6667", "tone": "0.3333"}, "Plain words.")
    found = read_factor(context(rationale=True), "clarity", '{"rationale": "Plain words.", "score": "high"}')
    assert (found.scores, found.grades, found.rationale) == ({"clarity": "High"}, {}, "Plain words.")


@pytest.mark.parametrize(
    "said",
    [
        "Secret words.",
        '{"rationale": "Secret words.", "score": "Secret words."}',
        '{"rationale": "Secret words."}',
        '{"rationale": "", "score": "High"}',
        '{"score": "High"}',
    ],
)
def test_what_is_wrong_with_a_rationale_is_told_without_it(said: str) -> None:
    with pytest.raises(MalformedAnswerError) as caught:
        read_factor(context(rationale=True), "clarity", said)
    assert "Secret" not in str(caught.value)


def test_prompts_say_the_scale_and_those_of_levels_are_as_they_were() -> None:
    seen = dict.fromkeys(
        ("input", "target_attributes", "reference_response", "response", "rubric", "response_a", "response_b"), "x"
    )
    named = {"rubric_factor_name": "clarity", "rubric_factor_description": "Is it clear?"}

    def last(prompt: str, **changes: Any) -> str:
        return render(replace(TASK, **changes), "ant", prompt, **seen, **named).rpartition("\n")[2]

    assert last("evaluate_single") == (
        "Reply with a JSON object alone: each key is the name of a factor above, "
        'each value is "High", "Medium" or "Low".'
    )
    assert last("evaluate_per_factor") == "Reply with one word: High, Medium or Low."
    assert last("compare") == (
        "Reply with one word: A if answer A is better, B if answer B is better, TIE if they are equally good, "
        "BAD if neither is of any use."
    )
    assert "a whole number from 1 (worst) to 10 (best)" in last("evaluate_single", scale=scale_of("1-10"))
    assert '"useless", "poor", "fair" or "very good"' in last("evaluate_per_factor", scale=scale_of(NAMED))
    assert '"no" or "a whole lot"' in last("evaluate_per_factor", scale=scale_of(["no", "a whole lot"]))
    for prompt in ("evaluate_single", "evaluate_per_factor", "compare"):
        assert '"rationale"' in last(prompt, rationale=True)
    own = replace(TASK, scale=scale_of("1-5"), prompt_library={"evaluate_single": "{input}: {scale}?"})
    assert render(own, "ant", "evaluate_single", **seen) == "x: a whole number from 1 (worst) to 5 (best)?"


def test_an_expected_score_weighs_grades_by_their_probability() -> None:
    tokens = [("4", math.log(0.6)), (" 5", math.log(0.2)), ("3.", math.log(0.1)), ("The", math.log(0.1))]
    assert expected_value(scale_of("1-5"), tokens) == pytest.approx((0.6 * 0.75 + 0.2 * 1.0 + 0.1 * 0.5) / 0.9)
    words = [("Med", math.log(0.5)), ("HIGH", math.log(0.25)), ("L", math.log(0.25))]
    assert expected_value(DEFAULT, words) == pytest.approx(0.5)
    assert expected_value(scale_of("1-5"), [("The", -0.1)]) is None
    assert expected_value(scale_of(["bad", "better"]), [("b", math.log(0.9)), ("bad", math.log(0.1))]) is None
    graded = Graded({"clarity": "High"}, "High", {"clarity": "High"})
    found = weighed(context(expected_scores=True), graded, words)
    assert (found.scores, found.grades) == ({"clarity": "0.5000"}, {"clarity": "High"})


def test_grades_that_begin_alike_are_told() -> None:
    assert clashing(scale_of("1-10")) == ("1", "10")
    assert clashing(scale_of(["very bad", "very good"])) == ("very bad", "very good")
    assert clashing(scale_of("0-9")) is None
    assert clashing(DEFAULT) is None
