"""Keys that say how judges grade, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coeval.schema import DEFAULT
from tests.coeval.config.configs import Change, Raw, load, mistakes

EXPECTED: dict[str, Any] = {"evaluation_mode": "per_factor", "expected_scores": True}


def task(**changes: Any) -> Change:
    return lambda raw: raw["tasks"][0].update(changes)


def batched(raw: Raw) -> None:
    raw["tasks"][0].update(EXPECTED)
    raw["models"][1].update(interface="openai", access_key="sk-x", parameters={"model": "gpt-4o"}, batch_enabled=True)


def deaf(raw: Raw) -> None:
    raw["tasks"][0].update(EXPECTED)
    raw["models"][1].update(interface="anthropic", access_key="sk-x", parameters={"model": "claude"})


def test_what_is_not_said_is_as_ever_and_what_is_said_is_read(tmp_path: Path) -> None:
    (plain,) = load(tmp_path).tasks
    assert (plain.scale, plain.rationale, plain.expected_scores) == (DEFAULT, False, False)
    rubric = {"right": {"description": "The sum is right.", "weight": 2}, "same": {"metric": "bleu", "weight": 0.5}}

    def change(raw: Raw) -> None:
        task(scale="0-9", rubric=rubric, **EXPECTED)(raw)
        raw["models"].append({"name": "m", "interface": "metric", "roles": ["judge"]})

    (told,) = load(tmp_path, change).tasks
    assert (told.scale.short, told.expected_scores, told.rubric) == ("0-9", True, rubric)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (task(scale="lvels"), "scale: must be `levels`, a range of whole numbers such as `1-5`, or a list"),
        (task(scale="lvels"), "and is 'lvels' (did you mean 'levels'?)"),
        (task(scale=5), "scale: must be `levels`, a range of whole numbers such as `1-5`, or a list of levels"),
        (task(scale={"low": 1}), "from worst to best, and is a mapping"),
        (task(scale="5-1"), "scale: the worst, 5, is not below the best, 1; write 1-5, or another range"),
        (task(scale="0-1000"), "1001 grades are more than the 101 that a scale may have; write fewer"),
        (task(scale=["fine"]), "a scale needs two levels or more, each another word"),
        (task(scale=["fine", "Fine"]), "a scale needs two levels or more, each another word"),
        (task(scale=[False, True]), "level 'False' must be text on one line, without quotes in it; write it in quotes"),
        (task(scale=["a", ["b"]]), "must be `levels`, a range"),
        (task(scale=["High", "Medium", "Low"]), "stands from best to worst; write the worst first"),
        (task(scale="1-5", evaluation_mode="pairwise"), "scale: has no use where answers are compared in pairs"),
        (task(rationale="yes"), "rationale: must be true or false, and is 'yes'"),
        (task(rationales=True), "rationales: unknown key (did you mean 'rationale'?)"),
        (task(expected_scores=True), "expected_scores: looks at the first token of an answer; write `evaluation_mode"),
        (task(**EXPECTED, rationale=True), "which `rationale` makes another; remove one of them"),
        (task(**EXPECTED, scale="1-10"), "begins with another token, not '1' and '10'; use `0-9`"),
        (batched, "expected_scores: cannot be had from batch jobs, and bee judges in batches; turn one of them off"),
        (deaf, "expected_scores: no judge's interface tells log-probabilities; add one that does, or remove it"),
        (task(rubric={"a": {"description": "x", "weight": 0}}), "rubric.a.weight: must be a number above 0, and is 0"),
        (
            task(rubric={"a": {"description": "x", "wieght": 2}}),
            "rubric.a.wieght: unknown key (did you mean 'weight'?)",
        ),
        (task(rubric={"a": {"weight": 2}}), "rubric.a.description: is missing; add what tells a good answer"),
        (task(rubric={"a": {"metric": "bleu", "weight": "x"}}), "rubric.a.weight: must be a number above 0"),
    ],
)
def test_a_mistake_is_told_with_what_to_do(tmp_path: Path, change: Change, message: str) -> None:
    assert message in "\n".join(mistakes(tmp_path, change))
