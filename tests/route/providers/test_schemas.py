"""Instances of schemas, as the mock answers with, against a validator of another library."""

from __future__ import annotations

import json
from typing import Any, Literal

import jsonschema_rs
import pytest
from pydantic import BaseModel, Field

from route.providers.schemas import example_of


class Leaf(BaseModel):
    kind: Literal["leaf"]
    size: int = Field(ge=3, le=9)


SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]},
    {"type": "array", "items": {"type": "integer", "exclusiveMinimum": 4}, "minItems": 3},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "boolean"}], "minItems": 2},
    {"type": ["null", "number"], "maximum": -2},
    {"type": "integer", "multipleOf": 7},
    {"type": "number", "exclusiveMaximum": 0},
    {"allOf": [{"type": "object", "properties": {"a": {"const": 1}}}, {"properties": {"b": {"type": "null"}}}]},
    {"oneOf": [{"type": "string", "format": "date-time"}, {"type": "integer"}]},
    {"$defs": {"a/b": {"type": "string", "format": "uuid"}}, "$ref": "#/$defs/a~1b"},
    {"properties": {"a": {"items": {"type": "boolean"}}}},
    {},
    True,
    Leaf.model_json_schema(),
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_an_example_is_an_instance_of_its_schema(schema: Any) -> None:
    jsonschema_rs.validate(schema, example_of(schema))


def test_a_schema_that_refers_to_itself_has_an_end() -> None:
    optional = {
        "type": "object",
        "properties": {"again": {"$ref": "#"}, "name": {"type": "string"}},
        "required": ["name"],
    }
    jsonschema_rs.validate(optional, example_of(optional))


def test_a_model_of_pydantic_reads_its_example() -> None:
    class Page(BaseModel):
        title: str
        leaves: list[Leaf]
        note: str | None

    page = Page.model_validate(example_of(Page.model_json_schema()))
    assert page.leaves[0].size == 3


DOUBLING = {"type": "object", "properties": {name: {"$ref": "#"} for name in "abcdefghij"}, "required": [*"abcdefghij"]}
HUGE: list[Any] = [
    {"type": "array", "minItems": 10**12},
    {
        "type": "array",
        "minItems": 200,
        "items": {"type": "array", "minItems": 200, "items": {"type": "array", "minItems": 200}},
    },
    {"type": "string", "minLength": 10**12},
    {"type": "array", "minItems": 1000, "items": {"type": "string", "minLength": 10**9}},
    DOUBLING,
    {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
]


@pytest.mark.parametrize("schema", HUGE)
def test_an_example_is_not_larger_than_anybody_wants(schema: Any) -> None:
    assert len(json.dumps(example_of(schema))) < 1_000_000
