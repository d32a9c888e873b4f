from __future__ import annotations

import json
from typing import Any

import pytest

from coeval.judging.prompts import PROMPTS, VARIABLES, render
from coeval.mock.models import PHASE_OF, answer, quality_of, recognise
from coeval.schema import Sampling, Task
from p2l.common.errors import ConfigError

TASK = Task(
    name="letters",
    description="Write letters to customers. Mind the {tone}: always.",
    output_description="A letter of\nthree paragraphs",
    target_attributes={"tone": ["warm", "cool"]},
    sampling=Sampling((1, 1), (0, 0), 2),
    rubric={"accuracy": "is true", "style": "reads well"},
)
VALUES: dict[str, Any] = {
    "input": "Dear sir,\n\nwhat now? {braces} [tone: warm]",
    "target_attributes": '{"tone": "warm"}',
    "nuanced_attributes": '{"typing": "hasty"}',
    "reference_response": "A reference.\nQuality 1",
    "reference": "A reference.",
    "response": "An answer (quality 0.90)",
    "rubric": "- accuracy: is true: always\n- style: reads well",
    "rubric_factor_name": "style",
    "rubric_factor_description": "reads well",
    "response_a": "First (quality 0.80)",
    "response_b": "Second (quality 0.40)",
    "document": "manual.md",
    "passage": "The valve opens at two bar.\n\nIt closes at {three}.",
}


def prompt_of(prompt: str, **values: Any) -> str:
    return render(TASK, "ant", prompt, **{**VALUES, **values})


@pytest.mark.parametrize("prompt", PROMPTS)
def test_every_built_in_prompt_is_recognised_with_what_stands_in_it(prompt: str) -> None:
    found = recognise(prompt_of(prompt))
    assert found.prompt == prompt
    assert PHASE_OF[prompt]
    if prompt != "test":  # a student's prompt is whatever is none of the others
        assert found.values["task_description"] == TASK.description
        for name, value in found.values.items():
            assert value.strip() == str(VALUES.get(name, value)).strip()
        assert set(found.values) <= VARIABLES[prompt]


def test_a_prompt_of_the_users_own_is_told_by_what_it_asks_for() -> None:
    assert recognise("Say High, Medium or Low.").prompt == "evaluate_per_factor"
    assert recognise("A JSON object of High, Medium or Low for\n- style: nice").factors == ["style"]
    assert recognise("What is the capital of Peru?").prompt == "test"


@pytest.mark.parametrize("prompt", ["map_target_attrs", "map_nuanced_attrs"])
def test_a_teacher_maps_attributes_to_lists(prompt: str) -> None:
    attributes = json.loads(answer(prompt_of(prompt), "", {}))
    assert len(attributes) == 3
    assert all(isinstance(values, list) and len(values) >= 2 for values in attributes.values())


def test_a_teacher_writes_rubrics_and_items() -> None:
    rubric = json.loads(answer(prompt_of("autorubric"), "", {}))
    assert all(isinstance(description, str) for description in rubric.values())
    item = json.loads(answer(prompt_of("sample"), "", {}))
    assert set(item) == {"prompt", "response"}
    assert "letters to customers" in item["prompt"]
    other = json.loads(answer(prompt_of("sample"), "", {"attempt": 1}))
    assert other["prompt"] != item["prompt"]


def test_equal_questions_have_equal_answers_and_another_seed_model_or_attempt_another() -> None:
    asked = prompt_of("test")
    first = answer(asked, "", {"model": "ant", "noise": 0.3})
    assert answer(asked, "", {"model": "ant", "noise": 0.3, "temperature": 0.7}) == first
    others: list[dict[str, Any]] = [{"model": "bee"}, {"model": "ant", "seed": 1}, {"model": "ant", "attempt": 1}]
    assert all(answer(asked, "", {"noise": 0.3, **other}) != first for other in others)


def test_a_student_is_as_good_as_its_skill_at_the_task() -> None:
    skill = {"letters to": 0.9, "sums": 0.2}
    assert quality_of(answer(prompt_of("test"), "", {"skill": skill, "noise": 0})) == 0.9
    assert quality_of(answer("Now sums", "", {"skill": skill, "noise": 0})) == 0.2
    assert quality_of(answer("Poems", "", {"skill": skill, "noise": 0})) == 0.5
    noisy = [quality_of(answer(f"Poem {n}", "", {"skill": 0.5})) for n in range(200)]
    assert abs(sum(noisy) / 200 - 0.5) < 0.03
    assert max(noisy) > 0.6


def test_a_student_gives_the_items_labels_where_json_is_asked_for() -> None:
    asked = "Classify as JSON: it rains. [mood: sad] [size: big]"
    given = json.loads(answer(asked, "", {"skill": 1, "noise": 0}))
    assert (given["mood"], given["size"]) == ("sad", "big")
    assert json.loads(answer(asked, "", {"skill": 0, "noise": 0}))["mood"] == "unknown"


@pytest.mark.parametrize(("quality", "level"), [(0.9, "High"), (0.5, "Medium"), (0.1, "Low")])
def test_a_judge_grades_by_the_quality_it_reads(quality: float, level: str) -> None:
    response = f"An answer (quality {quality})"
    grades = json.loads(answer(prompt_of("evaluate_single", response=response), "", {"noise": 0}))
    assert grades == {"accuracy": level, "style": level}
    assert answer(prompt_of("evaluate_per_factor", response=response), "", {"noise": 0}) == level


@pytest.mark.parametrize(
    ("first", "second", "verdict"), [(0.8, 0.4, "A"), (0.4, 0.8, "B"), (0.6, 0.6, "TIE"), (0.1, 0.1, "BAD")]
)
def test_a_judge_compares(first: float, second: float, verdict: str) -> None:
    asked = prompt_of("compare", response_a=f"quality {first}", response_b=f"quality {second}")
    assert answer(asked, "", {"noise": 0}) == verdict


def test_a_judge_with_a_bias_for_the_first_place_contradicts_itself() -> None:
    pair = {"response_a": "quality 0.5", "response_b": "quality 0.6"}
    swapped = {"response_a": "quality 0.6", "response_b": "quality 0.5"}
    verdicts = [
        answer(prompt_of("compare", **order), "", {"noise": 0, "position_bias": 0.3}) for order in (pair, swapped)
    ]
    assert verdicts == ["A", "A"]


def test_some_answers_do_not_have_the_form_that_was_asked_for() -> None:
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        json.loads(answer(prompt_of("evaluate_single"), "", {"malformed_rate": 1}))
    said = answer(prompt_of("compare"), "", {"malformed_rate": 1})
    assert said not in ("A", "B", "TIE", "BAD")
    answers = [
        answer(prompt_of("evaluate_per_factor", response=str(n)), "", {"malformed_rate": 0.3}) for n in range(200)
    ]
    assert 30 < sum(said not in ("High", "Medium", "Low") for said in answers) < 90


def test_a_fixed_text_is_all_it_says() -> None:
    assert answer(prompt_of("compare"), "", {"text": "Hm."}) == "Hm."


@pytest.mark.parametrize(
    "wrong", [{"skill": "high"}, {"skill": 1.5}, {"skill": {"sums": 2}}, {"noise": -1}, {"failure_rate": True}]
)
def test_a_wrong_parameter_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"mock: {next(iter(wrong))}"):
        answer("x", "", wrong)
