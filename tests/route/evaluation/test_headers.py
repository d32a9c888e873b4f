"""The category is told as text, and a saved P2L reads it there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from p2l.common.errors import InputError
from p2l.inference import P2L
from route.evaluation.command import main
from route.evaluation.features import CategoryReader, with_categories, with_category
from route.evaluation.measuring import across, within
from route.evaluation.policies import Setup
from route.evaluation.table import ScoreTable
from tests.route.evaluation.routing_tables import answers, random_table

NAMES = ("math", "math-l4", "math-l5", "Computer  science", "gsm8k", "数学", "日本語 の 問題")


def test_each_category_is_one_feature_whatever_words_it_shares() -> None:
    reader = CategoryReader.of(NAMES)
    prompts = [with_category("is math hard? [category: none] gsm8k", name) for name in NAMES]
    states = reader.states(prompts)
    np.testing.assert_allclose(np.sort(states, axis=1)[:, -1], 1.0)
    assert np.count_nonzero(states) == len(NAMES)
    assert sorted(states.argmax(axis=1).tolist()) == list(range(len(NAMES)))
    unknown = ["is math hard?", with_category("is it?", "math-l"), with_category("category: math", "new"), ""]
    assert not reader.states(unknown).any()


def table_that_text_says_nothing_of(questions: int = 240) -> ScoreTable:
    """Each category has a model that is right; words say nothing."""
    table = random_table(questions, models=3)
    categories = tuple(np.random.default_rng(1).choice(["x", "y", "z"], questions).tolist())
    right = np.array([["x", "y", "z"].index(name) for name in categories])
    scores = 0.2 + 0.6 * np.eye(3)[right]
    return replace(table, categories=categories, scores=scores, costs=np.ones_like(scores), one_price=True)


def test_a_router_that_is_told_does_as_the_best_of_each_category() -> None:
    table = table_that_text_says_nothing_of()
    found = {
        category: within(table, Setup("words", category=category), share=0.4, folds=1, seed=0)[0]
        for category in (True, False)
    }
    assert found[True].policies["category"].accuracy.estimate == pytest.approx(0.8)
    assert found[True].policies["p2l"].accuracy.estimate == pytest.approx(0.8)
    assert found[False].policies["p2l"].accuracy.estimate < 0.6
    assert found[True].questions == found[False].questions  # the same prompts are held out


def test_a_saved_model_is_told_by_the_prompt_alone(tmp_path: Path) -> None:
    file = tmp_path / "scores.parquet"
    answers(60).to_parquet(file)
    flags = ["--table", str(file), "--recipe", "words", "--share", "0.4", "--quiet", "--category-in-prompt"]
    flags += ["--output", str(tmp_path / "out"), "--no-figure"]
    main([*flags, "--save-model", str(tmp_path / "p2l")])
    row = _row(tmp_path / "out")
    main([*flags, "--model", str(tmp_path / "p2l")])
    # Its guard takes the smallest differences that choose as well: all but what is foreseen of them is the same.
    assert _row(tmp_path / "out").split("|")[:-2] == row.split("|")[:-2]
    model = P2L.from_pretrained(tmp_path / "p2l", device="cpu")
    coefs = model.predict([with_category("what now?", name) for name in ("sum", "poem", "new")]).coefs
    small = model.model_list.index("small")
    better = coefs[:, small] - coefs[:, 1 - small]
    assert better[0] > better[2] > better[1]


def _row(folder: Path) -> str:
    lines = (folder / "results.md").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith("| router on P2L"))


def test_categories_that_tell_nothing_are_refused() -> None:
    table = random_table()
    one = replace(table, categories=("all",) * len(table.prompts))
    with pytest.raises(InputError, match="has one category, which tells nothing; leave out --category-in-prompt"):
        within(one, Setup("words", category=True), share=0.4, folds=1, seed=0)
    other = replace(
        table,
        prompts=tuple(f"other {prompt}" for prompt in table.prompts),
        categories=tuple(f"other {name}" for name in table.categories),
    )
    with pytest.raises(InputError, match="shares no category with"):
        across(table, other, Setup("words", category=True), seed=0)


def test_only_prompts_change() -> None:
    table = random_table()
    assert replace(with_categories(table), prompts=table.prompts) == table
    assert with_categories(table).prompts[0].endswith(f"\n{table.prompts[0]}")
