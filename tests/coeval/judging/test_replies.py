"""What judges write, in whatever form, and the verdict that is read of it: the last thing that they say, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from coeval.judging.grading import grading_of, read_factor, read_factors
from coeval.parsing import MalformedAnswerError
from coeval.phases.pairwise import KINDS
from coeval.schema import Sampling, Task, scale_of

TASK = Task("mail", "Write a mail.", "A mail.", {}, Sampling((0, 0), (0, 0), 1), {"accuracy": "Is it right?"})
NUMBERS = replace(TASK, scale=scale_of("1-5"))


def factor(reply: str, task: Task = TASK) -> str:
    scores = read_factor({"factors": ["accuracy"], **grading_of(task)}, "accuracy", reply).scores
    return scores["accuracy"]


def factors(reply: str, names: Sequence[str] = ("accuracy",), task: Task = TASK) -> list[str]:
    return list(read_factors({"factors": list(names), **grading_of(task)}, reply).scores.values())


def winner(reply: str, context: dict[str, Any] | None = None) -> str:
    return str(KINDS["pair"].read(context or {}, "ab", reply).winner)


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("Low\n</think>\nHigh", "High"),
        ("<think>Low</think>\n\nHigh", "High"),
        ("<think>a<think>b</think>c</think>High", "High"),
        ("<thinking>Low\n</thinking>\n**High**", "High"),
        ("< think >Low< /think >High", "High"),
        ('<think type="deep">Low</think>High', "High"),
        ("<|START_THINKING|>Low<|END_THINKING|>High", "High"),
        ("<|channel|>analysis<|message|>Low<|end|><|start|>assistant<|channel|>final<|message|>High", "High"),
        ("High</s>", "High"),
        ("High<|im_end|>", "High"),
        ("High<|eot_id|>\n", "High"),
        ("Ｈｉｇｈ", "High"),
        ("\u200bHigh", "High"),
        ("\\*\\*High\\*\\*", "High"),
        ("Final rating: **High**\n\nThe answer covers all.", "High"),
        ("Score: Low\nConfidence: High", "Low"),
        ("<score>High</score>", "High"),
        ("Some words.\n<verdict>High</verdict>", "High"),
        ("It is good. [[High]]", "High"),
        ("### Grade\nHigh", "High"),
        ("### Grade: High", "High"),
        ("## High", "High"),
        ('{"score": "High"}', "High"),
        ('{"rating": "High", "reason": "x"}', "High"),
        ('"{\\"score\\": \\"High\\"}"', "High"),
        ('{"score": "High"}\n\nHigh', "High"),
        ('["High"]', "High"),
        ("\\boxed{\\text{High}}", "High"),
        ("<Reflection>Low</Reflection>High", "High"),
        ("<|thinking|>\nLow\n<|/thinking|>\nHigh", "High"),
        ("<unused94>thought\nLow<unused95>High", "High"),
        ("<analysis>It is Low.</analysis>\n<answer>High</answer>", "High"),
        ("> High\n\nThe answer graded itself.\n\nLow", "Low"),
        ("Bewertung: High", "High"),
        ("評価：High", "High"),
        ('```json\n"High"\n```', "High"),
        ("$\\boxed{High}$", "High"),
    ],
)
def test_verdicts_in_words_are_read(reply: str, verdict: str) -> None:
    assert factor(reply) == verdict


@pytest.mark.parametrize(
    "reply",
    [
        "<|channel|>analysis<|message|>so it is\nHigh",
        "<think>High",
        "High</think>",
        "High<think>no",
        "Grade: High\nGrade: Low",
        "Grade: High\nWait, Low",
        "[[High]] or [[Low]]",
        "High or Low",
        "Not High",
        "High\n\nFor it is right.",
        '{"score":"High","rating":"Low"}',
        '{"score": "High"}\nActually:\nLow',
        "Grade: High\n\nOn second thought, the grade is Low.",
        'The answer ends in "[[High]]", which I ignore.',
        "> [[High]]\n\nThe quoted line is an attempt to grade itself.",
        "I'm sorry, but I cannot grade this.",
    ],
)
def test_words_that_contradict_or_leave_open_are_none(reply: str) -> None:
    with pytest.raises(MalformedAnswerError):
        factor(reply)


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("Rating: [[5]]", "1.0000"),
        ("４", "0.7500"),
        ("4.0", "0.7500"),
        ("I rate it 4 of 5.\n\nRating: 4", "0.7500"),
        ('{"score": "4"}', "0.7500"),
        ('{"score": 4.0}', "0.7500"),
        ('{"score": "4.0"}', "0.7500"),
        ("**Score:** 4", "0.7500"),
        ("1. It is right.\n2. It is clear.\n\n5", "1.0000"),
        ('{"score": "４"}', "0.7500"),
        ("Score: 4/5", "0.7500"),
        ("**Rating: 4 out of 5**\n\nGood work.", "0.7500"),
        ("The final score is $\\boxed{4}$.", "0.7500"),
        ("<rating>4/5</rating>", "0.7500"),
        ("评分：4", "0.7500"),
        ("Оценка: 4", "0.7500"),
        ('{"score": 4, "out_of": 5}', "0.7500"),
        ('{"score": "4/5"}', "0.7500"),
    ],
)
def test_verdicts_in_numbers_are_read(reply: str, verdict: str) -> None:
    assert factor(reply, NUMBERS) == verdict


@pytest.mark.parametrize(
    "reply",
    [
        "4/10",
        "Score: 8/10",
        '{"score": 4, "out_of": 10}',
        "Score: 4\n\nSo the final score is 5 for me.",
        "★★★★☆",
        "I'd give it a 4",
        "-4",
        "6",
        "4.5",
        '{"score": NaN}',
        '{"score": Infinity}',
        '{"score": true}',
        '{"score": null}',
        "4\n5",
        '{"score": "four"}',
        '{"score": 4, "score": 5}',
    ],
)
def test_numbers_that_contradict_or_leave_open_are_none(reply: str) -> None:
    with pytest.raises(MalformedAnswerError):
        factor(reply, NUMBERS)


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ('first {"accuracy": "Low"} </think> {"accuracy": "High"}', ["High"]),
        ('The answer \\frac{1}{2} {"accuracy": "High"}', ["High"]),
        ('```python\nd = {1: 2}\n```\n{"accuracy": "High"}', ["High"]),
        ('The answer itself says {"accuracy": "Low"}. Mine: {"accuracy": "High"}', ["High"]),
        ('{"accuracy": "High"}\n{"accuracy": "Low"}', ["Low"]),
        ("{'accuracy': 'High', 'reason': 'it's right'}", ["High"]),
        ('{"reason": "It says "x" here", "accuracy": "High"}', ["High"]),
        ("{'accuracy': 'High', 'note': None, 'ok': True}", ["High"]),
        ('{"accuracy": "High",}', ["High"]),
        ("{`accuracy`: `High`}", ["High"]),
        ('{"accuracy"："High"}', ["High"]),
        ("{accuracy: High}", ["High"]),
        ('{"accuracy": "High" /* because */}', ["High"]),
        ('{"accuracy": "High"} # nothing more', ["High"]),
        ('```json\n{"accuracy": "High"}\n```\nI hope this helps!', ["High"]),
        ('{"results": [{"accuracy": "High"}]}', ["High"]),
        ('{"scores": {"accuracy": {"score": "High"}}}', ["High"]),
        ('{"accuracy": "High"} The answer has `</think>` in it.', ["High"]),
        ('{"reason": "it writes </think>", "accuracy": "High"}', ["High"]),
        ('<tool_call>{"name": "grade", "arguments": {"accuracy": "High"}}</tool_call>', ["High"]),
        ('{"accuracy": "High", "Accuracy": "High"}', ["High"]),
        ('{"name": "grade", "arguments": "{\\"accuracy\\": \\"High\\"}"}', ["High"]),
        ('{\\"accuracy\\": \\"High\\"}', ["High"]),
        ('> {"accuracy": "Low"}\n\nSo it grades itself.\n\n{"accuracy": "High"}', ["High"]),
        ('It wrote: "{\\"accuracy\\": \\"Low\\"}". Not so.\n{"accuracy": "High"}', ["High"]),
        ('{"accuracy": "Low"} wait, {"accuracy": "High"}', ["High"]),
        ("```json5\n{\n  // grade\n  accuracy: 'High',\n}\n```", ["High"]),
        ('<think>{"accuracy": "Low"}</think>\n<answer>{"accuracy": "High"}</answer>', ["High"]),
        ('[{"criterion": "accuracy", "verdict": "High"}]', ["High"]),
    ],
)
def test_verdicts_in_objects_are_read(reply: str, verdict: list[str]) -> None:
    assert factors(reply) == verdict


@pytest.mark.parametrize(
    "reply",
    [
        '[{"accuracy": "High"},{"accuracy": "Low"}]',
        '{"accuracy": "High"',
        '{"accuracy": {"score": "High", "rating": "Low"}}',
        '{"accuracy": "High"} but accuracy: Low',
        '{"accuracy": "High"}\nAccuracy is Low.',
        '{"accuracy": "Low"}\n\nIt wrote {"accuracy": "High"} in its answer, which I ignored.',
        '> {"accuracy": "High"}\n\nThe quoted line is an attempt to grade itself.',
        '{"Genauigkeit": "High"}',
        '{"error": "content policy"}',
        '{"accuracy": NaN}',
        '{"accuracy": true}',
    ],
)
def test_objects_that_contradict_or_leave_open_are_none(reply: str) -> None:
    with pytest.raises(MalformedAnswerError):
        factors(reply)


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ('[{"factor": "accuracy", "score": "High"}, {"factor": "clarity", "score": "Low"}]', ["High", "Low"]),
        ('{"accuracy": "High"}\n{"clarity": "Low"}', ["High", "Low"]),
        ("| factor | grade |\n|---|---|\n| accuracy | High |\n| clarity | Low |", ["High", "Low"]),
        ("- **accuracy**: High\n- **clarity**: Low", ["High", "Low"]),
        ('{"scores": [{"accuracy": "High"}, {"clarity": "Low"}]}', ["High", "Low"]),
    ],
)
def test_verdicts_in_objects_of_several_factors_are_read(reply: str, verdict: list[str]) -> None:
    assert factors(reply, ("accuracy", "clarity")) == verdict


@pytest.mark.parametrize(
    "reply",
    [
        '{"accuracy": "High"}\n{"accuracy": "Low"}\n{"clarity": "Low"}',
        'The answer says {"accuracy": "High"} of itself: {"clarity": "Low"}',
        "accuracy: High\nclarity: Low\naccuracy: Low",
        "accuracy: High would be too much\nclarity: Low",
        '{"accuracy": "High", "clarity": "Lo',
    ],
)
def test_objects_of_several_factors_that_contradict_or_leave_open_are_none(reply: str) -> None:
    with pytest.raises(MalformedAnswerError):
        factors(reply, ("accuracy", "clarity"))


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("A", "model_a"),
        ("**[[A]]**", "model_a"),
        ("[[B]]", "model_b"),
        ("My final verdict is: [[B]]", "model_b"),
        ("It is better, so I say [[B]].", "model_b"),
        ('{"verdict": "A"}', "model_a"),
        ('{"winner": "B", "reason": "short"}', "model_b"),
        ("<think>A</think>B", "model_b"),
        ("A\n</think>\nTIE", "tie"),
        ("Answer A:\nLong.\nAnswer B:\nShort.\n\nVerdict: B", "model_b"),
        ("**Answer A**\nLong.\n**Answer B**\nShort.\n\n**B**", "model_b"),
        ("Answer A", "model_a"),
        ("Verdict: A\n\nBecause it is right.", "model_a"),
        ("```\nB\n```", "model_b"),
        ("'B'", "model_b"),
        ("{'verdict': 'B'}", "model_b"),
        ("BAD.", "tie (bothbad)"),
        ("**Winner: Response B**", "model_b"),
        ("Winner: Answer B", "model_b"),
        ("Response B", "model_b"),
        ("**Response A**\nLong.\n**Response B**\nShort.\n\n**A**", "model_a"),
        ("The answer is $\\boxed{\\textbf{A}}$.", "model_a"),
        ("\\boxed{\\text{Answer B}}", "model_b"),
        ("Vencedor: B", "model_b"),
        ("获胜者：B", "model_b"),
        ("Ｂ", "model_b"),
    ],
)
def test_verdicts_in_pairs_are_read(reply: str, verdict: str) -> None:
    assert winner(reply) == verdict


@pytest.mark.parametrize(
    "reply",
    [
        '{"verdict": "A"}\nVerdict: B',
        "A or B",
        "[[A]] no [[B]]",
        "C",
        "The better answer is A",
        "Winner: A\n\nOn second thought, Winner: B",
        "[[A]]\n\nStill, the winner is Response B.",
        "[[C]]",
        "[[A>B]]",
        "Neither",
        "I'm sorry, but I can't compare these.",
    ],
)
def test_pairs_that_contradict_or_leave_open_are_none(reply: str) -> None:
    with pytest.raises(MalformedAnswerError):
        winner(reply)


def test_numbers_of_several_factors_are_read_and_not_contradicted() -> None:
    names = ("accuracy", "clarity")
    assert factors('{"accuracy": "4", "clarity": 5}', names, NUMBERS) == ["0.7500", "1.0000"]
    with pytest.raises(MalformedAnswerError, match="two grades for 'accuracy'"):
        factors('{"accuracy": 4, "clarity": 5} then accuracy: 3', names, NUMBERS)


def test_a_verdict_on_a_pair_with_a_rationale_may_not_be_taken_back() -> None:
    context = grading_of(replace(TASK, rationale=True))
    said = '{"rationale": "The first is right.", "verdict": "A"}'
    assert winner(said, context) == "model_a"
    for reply in (f"{said}\nVerdict: B", f"{said}\n[[B]]", '{"verdict": "A"}', "A"):
        with pytest.raises(MalformedAnswerError):
            winner(reply, context)
