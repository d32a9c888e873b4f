"""Labels in answers, and how often they are right."""

from __future__ import annotations

import pytest

from coeval.judging.labels import hamming_accuracy, label_accuracy, matches, predicted_label
from coeval.judging.metrics import scores_for
from coeval.schema import Model, Sampling, Task


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ('{"tone": "warm", "label": "cold"}', "warm"),
        ('Here: ```json\n{"Tone": "warm"}\n```', "warm"),
        ('{"prediction": "warm"}', "warm"),
        ('{"answer": 3}', "3"),
        ('{"mood": "warm"}', None),
        ('{"tone": ["warm", "cold"]}', None),
        ("warm", "warm"),
        ("two\nlines", None),
        ("x" * 61, None),
        ("First 20 + 22.\nSo\n#### 42", "42"),
        ("I think.\nThe answer is B. a cat.", "B. a cat."),
        ("so \\boxed{7} it is,\nsurely", "7"),
        ("", None),
    ],
)
def test_where_an_answer_gives_its_label(text: str, label: str | None) -> None:
    assert predicted_label(text, "tone") == label


@pytest.mark.parametrize(
    ("said", "truth", "equal"),
    [
        ("Warm", "warm", True),
        ("warm.", "warm", True),
        ("B. a cat", "B", True),
        ("(b)", "B", True),
        ("b) a cat", "a cat", True),
        ("B", "B. a cat", True),
        ("B. a dog", "B. a cat", False),
        ("A. a cat", "B. a cat", False),
        ("1,000", 1000, True),
        ("$1,000.00", "1000", True),
        ("42.0", "42", True),
        ("41", "42", False),
        ("true", True, True),
        ("u.k.", "u.s.", False),
        ("cold", "warm", False),
        ("nan", "NaN", True),
    ],
)
def test_when_labels_are_equal(said: str, truth: object, equal: bool) -> None:
    assert matches(said, truth) is equal


def test_accuracy_of_a_worked_example() -> None:
    found = label_accuracy([("A", "A"), ("A", "b"), ("B", "(B)"), ("B", None), ("C", "z")])
    assert (found.n_total, found.n_matched, found.n_skipped) == (4, 2, 1)
    assert (found.accuracy, found.strict_accuracy) == (0.5, 0.4)
    assert found.per_label["A"] == {"precision": 1.0, "recall": 0.5, "f1": 0.6667}
    assert found.per_label["B"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5}
    assert hamming_accuracy([found.accuracy, label_accuracy([("x", "x")]).accuracy]) == 0.75
    assert label_accuracy([]).accuracy == 0.0


def test_the_label_judge_scores_the_labels_of_the_item() -> None:
    sampling = Sampling((1, 2), (0, 0), 1)
    attributes = {"tone": ["warm", "cold"], "topic": ["a", "b"]}
    task = Task("mail", "Sort.", "JSON.", attributes, sampling, {}, label_attributes=("tone", "topic"))
    judge = Model("label", "label", ("judge",))
    item = {"sampled_target_attributes": {"tone": "warm"}}
    said = ('{"tone": "WARM"}', "I cannot say, it depends.\nOn what?")
    found = scores_for(judge, task, {}, [(item, {"response": text}) for text in said])
    assert found == [{"label:tone": "1.0"}, {"label:tone": "0.0"}]


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("It is:\nthe answer is" + "\n" * 1_000_000, None),
        ("####\n" * 200_001, "####"),
        ("\\boxed{" * 200_000, None),
    ],
)
def test_markers_with_nothing_behind_them_are_read_once(text: str, label: str | None) -> None:
    assert predicted_label(text, "answer") == label
