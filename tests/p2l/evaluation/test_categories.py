from __future__ import annotations

import json

import pyarrow as pa
import pytest

from p2l.common.errors import ConfigError, VoteError
from p2l.evaluation.categories import EmptyCategoryError, UnknownCategoryError, parse, readable_tags, select

TABLE = pa.table(
    {
        "language": ["English", "Chinese", "German", None],
        "is_code": [True, False, True, None],
        "tags": [["a", "b"], ["b"], [], None],
        "turn": [1, 2, 1, 1],
        "category_tag": [
            {"math_v0.1": {"math": k < 2}, "criteria_v0.1": {f"c{n}": n < 5 + k for n in range(7)}} for k in range(4)
        ],
        "other": [{"twice": True, "math": None}] * 4,
        "more": [{"twice": True}] * 4,
    }
)
FLAT = TABLE.drop_columns(["other", "more"])


def chosen(text: str, table: pa.Table = FLAT) -> list[int]:
    return [row for row, one in enumerate(select(parse(text), table, "votes.jsonl")) if one]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("all", [0, 1, 2, 3]),
        ("language=Chinese", [1]),
        ("is_code", [0, 2]),
        ("is_code=True", [0, 2]),
        ("is_code=False", [1]),
        ("is_code=0", [1]),
        ("math", [0, 1]),
        ("math=False", [2, 3]),
        ("category_tag.math_v0.1.math=false", [2, 3]),
        ("c5", [1, 2, 3]),
        ("hard", [1, 2, 3]),
        ("hard=False", [0]),
        ("tags=b", [0, 1]),
        ("turn=2", [1]),
    ],
)
def test_every_form_of_a_category(text, rows):
    assert chosen(text) == rows


def test_tags_of_a_csv_file_are_json_text():
    texts = [json.dumps({"math_v0.1": {"math": k == 1}}) for k in range(3)]
    assert chosen("math", readable_tags(pa.table({"category_tag": texts}))) == [1]


def test_flags_of_a_csv_file_are_words():
    assert chosen("is_code=False", pa.table({"is_code": ["True", "False", "False"]})) == [1, 2]


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("langauge=Chinese", UnknownCategoryError, "did you mean 'language'"),
        ("language=chinese", EmptyCategoryError, "did you mean 'Chinese'"),
        ("hard=maybe", EmptyCategoryError, "values: true, false"),
        ("language", VoteError, "language=English, language=Chinese"),
        ("twice", VoteError, "other.twice or more.twice"),
    ],
)
def test_what_cannot_be_chosen_is_said(text, kind, said):
    with pytest.raises(kind, match=said):
        chosen(text, TABLE)


@pytest.mark.parametrize("text", ["", "=x", "language="])
def test_a_category_needs_a_key_and_a_value(text):
    with pytest.raises(ConfigError, match="cannot be read"):
        parse(text)
