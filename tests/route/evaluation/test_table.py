"""Tables are read whole or refused in a line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from p2l.common.errors import InputError
from route.evaluation.table import TokenPrice, read_prices, read_table, splits, table_of
from tests.route.evaluation.routing_tables import answers, known_table


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_formats_say_the_same(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"scores.{ending}"
    rows = answers()
    if ending == "parquet":
        rows.to_parquet(file)
    elif ending == "csv":
        rows.to_csv(file, index=False)
    else:
        rows.to_json(file, orient="records", lines=True)
    table, known = read_table(file), known_table()
    assert (table.models, table.prompts, table.categories) == (known.models, known.prompts, known.categories)
    np.testing.assert_allclose(table.scores, known.scores)
    np.testing.assert_allclose(table.costs, known.costs)


def test_models_and_questions_without_all_answers_are_left_out() -> None:
    rows = answers()
    rare = rows[rows["question_id"] == "q000"].head(1).assign(model="rare")
    rows = pd.concat([rows.iloc[1:], rare])
    table = table_of(rows, "t")
    assert (table.models, table.left_out, table.incomplete) == (("large", "small"), ("rare",), 1)
    assert len(table.prompts) == 59


def test_prices_are_of_tokens_of_four_characters() -> None:
    table = table_of(answers(), "t", prices={"small": TokenPrice(10.0), "large": TokenPrice(20.0, 4.0)})
    column = table.models.index("small")
    np.testing.assert_allclose(table.costs[:, column], 100 * 10.0 / 1e6)
    asked = np.array([len(prompt) for prompt in table.prompts]) / 4
    np.testing.assert_allclose(table.costs[:, 1 - column], (100 * 20.0 + asked * 4.0) / 1e6)


def test_answers_that_all_cost_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="every answer cost nothing; add --one-price"):
        table_of(answers().assign(cost=0.0), "t")


def test_scores_a_little_beyond_their_limits_are_taken_for_these() -> None:
    rows = answers()
    rows.loc[0, "score"] = -0.05
    table = table_of(rows, "t")
    assert table.clipped == 1
    assert table.scores.min() == 0.0


def changed(column: str, value: object, row: int = 3) -> pd.DataFrame:
    rows = answers().astype({column: object})
    rows.loc[row, column] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (answers().drop(columns="score"), "t: has no column 'score'"),
        (answers().iloc[:0], "t: holds no answers"),
        (changed("score", "good"), "t: row 4: score is not a number"),
        (changed("score", 7.0), "t: row 4: score must be a number from 0 to 1"),
        (changed("cost", -1.0), "t: row 4: cost must be a number of dollars of at least 0"),
        (changed("prompt", None), "t: row 4: prompt is not text"),
        (pd.concat([answers(), answers().tail(1)]), "t: row 121: this model has answered this question"),
        (answers()[lambda rows: rows["model"] == "small"], "t: has 1 model that answered 90% of the questions"),
        (answers().drop(columns="cost"), "t: has no column 'cost'; give --prices"),
    ],
)
def test_what_is_no_table_is_refused_in_a_line(rows: pd.DataFrame, message: str) -> None:
    with pytest.raises(InputError) as caught:
        table_of(rows, "t")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_that_asks_for_too_much_is_refused(tmp_path: Path) -> None:
    """A model and a question a row: a matrix of both would have 10,000,000,000 places."""
    file = tmp_path / "table.csv"
    rows = "".join(f"p{number},m{number},1\n" for number in range(100_000))
    file.write_text(f"prompt,model,score\n{rows}")
    with pytest.raises(InputError, match="has 0 model that answered 90% of the questions"):
        read_table(file)
    with pytest.raises(InputError, match="100,000 questions by 100,000 models are too many"):
        read_table(file, min_coverage=0.0)
    file.write_text("prompt,model,score," + ",".join(f"c{number}" for number in range(20_000)) + "\n")
    with pytest.raises(InputError, match="has 20,003 columns"):
        read_table(file)
    file = tmp_path / "table.jsonl"
    file.write_text('{"prompt": "' + "x" * (17 << 20) + '"}\n')
    with pytest.raises(InputError, match="line 1: is longer than 16 MiB"):
        read_table(file)


def test_prices_need_lengths_and_every_model() -> None:
    prices = {"smal": TokenPrice(1.0), "large": TokenPrice(1.0)}
    with pytest.raises(InputError, match=r"no price for model 'small' \(did you mean 'smal'\?\)"):
        table_of(answers(), "t", prices=prices)
    with pytest.raises(InputError, match="has no column 'output_chars'"):
        table_of(answers().drop(columns="output_chars"), "t", prices=prices)


def test_price_files(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("small: 1\nlarge: {output: 3, input: 0.5}\n", encoding="utf-8")
    assert read_prices(file) == {"small": TokenPrice(1.0), "large": TokenPrice(3.0, 0.5)}
    for text, message in (
        ("small: {outptu: 3}", "unknown key 'outptu'"),
        ("small: -1", "a price is a number"),
        ("small: {input: 1}", "a price is a number"),
        ("[1]", "must map names of models"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=message):
            read_prices(file)


def test_equal_prompts_stay_on_one_side_and_folds_cover_all() -> None:
    prompts = [f"prompt {number // 2}" for number in range(100)]
    held = []
    for train, test in splits(prompts, share=0.2, folds=4, seed=1):
        assert not {prompts[row] for row in train} & {prompts[row] for row in test}
        held += test.tolist()
    assert sorted(held) == list(range(100))


def test_sides_without_prompts_are_refused() -> None:
    with pytest.raises(InputError, match="is on the test side"):
        list(splits(["one", "two"], share=1e-9, folds=1, seed=0))
    with pytest.raises(InputError, match="--folds 5 is more than the 2 distinct prompts"):
        list(splits(["one", "two"], share=0.2, folds=5, seed=0))


def test_a_table_of_questions_and_verdicts_is_read_as_every_other_command_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "answers.csv"
    path.write_text("question,model,score\nQ,ant,correct\nQ,bee,incorrect\nR,ant,50%\nR,bee,1\n", encoding="utf-8")
    table = read_table(path, one_price=True)
    assert (table.models, table.prompts) == (("ant", "bee"), ("Q", "R"))
    assert table.scores.tolist() == [[1.0, 0.0], [0.5, 1.0]]
    path.write_text("question,model,score\nQ\0,ant,1\nQ,bee,1\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"answers\.csv: row 2: prompt holds a NUL character"):
        read_table(path, one_price=True)


def test_epochs_of_a_harness_count_with_their_mean(tmp_path: Path) -> None:
    for model, grades in (("ant", "CCI"), ("bee", "IIC")):
        samples = [
            {"id": 1, "epoch": epoch, "input": "2 + 2?", "scores": {"match": {"value": grade}}}
            for epoch, grade in enumerate(grades, 1)
        ]
        log = {"version": 2, "status": "success", "eval": {"task": "sums", "model": model}, "samples": samples}
        (tmp_path / f"{model}.json").write_text(json.dumps(log), encoding="utf-8")
    table = read_table(tmp_path, one_price=True)
    assert table.scores == pytest.approx(np.array([[2 / 3, 1 / 3]]))
