"""Metrics against worked examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coeval.errors import RunInputError
from coeval.judging.metrics import bleu4, exact_match, metric_scores, missing_package, scores_for, wrong_definition
from coeval.schema import Model, Sampling, Task

TASK = Task("sums", "Add.", "A number.", {"answer": ["1", "2"]}, Sampling((1, 1), (0, 0), 1), {}, label_attributes=())


def test_bleu_of_a_worked_example() -> None:
    # 5 of 6 words, 3 of 5 pairs, 1 of 4 triples and none of 3 fours, which counts as 0.1; the lengths are equal.
    expected = (5 / 6 * 3 / 5 * 1 / 4 * 0.1 / 3) ** 0.25
    assert bleu4("the cat sat on the mat", "The cat lay on the mat") == pytest.approx(expected)


def test_a_short_answer_is_penalised() -> None:
    whole, half = "one two three four five six seven eight", "one two three four"
    assert bleu4(whole, half) == pytest.approx(2.718281828459045 ** (1 - 8 / 4))


@given(st.lists(st.sampled_from("abcdef"), min_size=4, max_size=12), st.lists(st.sampled_from("abcdefgh"), max_size=12))
def test_bleu_is_a_share_and_whole_for_the_reference_itself(words: list[str], other: list[str]) -> None:
    assert bleu4(" ".join(words), " ".join(words)) == pytest.approx(1.0)
    assert 0.0 <= bleu4(" ".join(words), " ".join(other)) <= 1.0


def test_nothing_in_common_is_nothing() -> None:
    assert bleu4("one two", "three four") == 0.0
    assert bleu4("one two", "") == 0.0


@pytest.mark.parametrize(
    ("reference", "said", "value"),
    [
        ("Paris", " paris\n", 1.0),
        ("Paris|Lutetia", "lutetia", 1.0),
        ("a|b", "A|B", 1.0),
        ("Paris", "Paris, France", 0.0),
    ],
)
def test_exact_match_knows_alternatives(reference: str, said: str, value: float) -> None:
    assert exact_match(reference, said) == value


def test_a_metric_judge_scores_the_factors_that_are_metrics() -> None:
    rubric = {"clarity": "Is it clear?", "same": {"metric": "exact_match", "description": "Equal."}}
    judge = Model("m", "metric", ("judge",))
    pairs = [
        ({"reference_response": "Four"}, {"response": "four"}),
        ({"reference_response": "the cat sat on the mat"}, {"response": "The cat lay on the mat"}),
    ]
    assert scores_for(judge, TASK, rubric, pairs) == [{"same": "1.0"}, {"same": "0.0"}]
    rubric["words"] = {"metric": "bleu", "description": "Words."}
    assert scores_for(judge, TASK, rubric, pairs)[1] == {"same": "0.0", "words": "0.2541"}


def test_what_cannot_be_computed_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunInputError, match="no metric 'blue'"):
        metric_scores({"f": {"metric": "blue", "description": ""}}, ["a"], ["a"])
    with pytest.raises(RunInputError, match="does not compute"):
        scores_for(Model("j", "mock", ("judge",)), TASK, {}, [({}, {"response": "x"})])
    assert missing_package({"metric": "bleu"}) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "pip install p2l[huggingface]" in str(missing_package({"metric": "bertscore"}))


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        ({"metric": "bleu", "model_type": "x"}, "'model_type' is not an option of bleu"),
        ({"metric": "bertscore", "model": "x"}, "'model' is not an option of bertscore (did you mean 'model_type'?)"),
        ({"metric": "bertscore", "model_type": "x"}, "it needs `num_layers`, the layer of x to be read"),
        ({"metric": "bertscore", "num_layers": 0}, "its num_layers must be a whole number of at least 1"),
        ({"metric": "bertscore", "device": 0}, "its device must be text"),
        ({"metric": "bertscore", "description": "Alike.", "model_type": "roberta-large"}, None),
    ],
)
def test_options_of_metrics_are_checked(definition: dict[str, object], why: str | None) -> None:
    assert wrong_definition(definition) == why or str(wrong_definition(definition)).startswith(why or "nothing")
