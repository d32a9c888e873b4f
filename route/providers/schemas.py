"""JSON schemas of answers and tools, adapted to what a provider takes of JSON Schema.

What a provider does not enforce is told to the model in words: a keyword that has to go is written into the
description of its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from route.providers.base import JSON

_NESTED_LISTS = ("anyOf", "allOf", "oneOf")
_TOLD_ELSEWHERE = frozenset({"$defs", "definitions", "$schema", "$id", "description", "additionalProperties"})
_KEPT = frozenset({"type", "enum", "const", "title", "default"})
_OF_TYPES = {
    "string": frozenset({"format"}),
    "array": frozenset({"items", "minItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
_MOST_ITEMS_KNOWN = 1
"""The largest `minItems` that Anthropic enforces."""


def for_anthropic(schema: JSON, note: Callable[[str], None]) -> JSON:
    """Return a schema as Anthropic's structured outputs take it: closed objects, and few keywords beside types.

    `note` is called with each keyword that goes into a description. Raise ValueError for a place of any type at all,
    which they do not have.
    """
    if schema.get("$defs") is None and isinstance(schema.get("definitions"), dict):
        text = json.dumps({**schema, "$defs": schema["definitions"]}).replace('"#/definitions/', '"#/$defs/')
        schema = json.loads(text)
        del schema["definitions"]
    adapted = _adapted(schema, note)
    definitions = schema.get("$defs")
    if isinstance(definitions, dict):
        adapted["$defs"] = {name: _adapted(each, note) for name, each in definitions.items()}
    return adapted


def _adapted(schema: JSON, note: Callable[[str], None]) -> JSON:
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return {"anyOf": [_adapted(_of_type(schema, kind), note) for kind in kinds], **_described(schema)}
    kind = kinds or _kind_of(schema)
    adapted: JSON = {} if kind is None else {"type": kind}
    words: JSON = {}
    for name, value in schema.items():
        if name in _NESTED_LISTS and isinstance(value, list):
            adapted["allOf" if name == "allOf" else "anyOf"] = [_adapted(each, note) for each in value]
        elif name in _KEPT or (name in _OF_TYPES.get(str(kind), ()) and _is_enforced(name, value)):
            adapted[name] = value
        elif name not in _TOLD_ELSEWHERE:
            words[name] = value
            note(name)
    if kind == "object":
        adapted |= _closed(schema, note)
    if isinstance(adapted.get("items"), dict):
        adapted["items"] = _adapted(adapted["items"], note)
    description = [str(schema["description"])] if schema.get("description") else []
    if words:
        description.append(json.dumps(words, ensure_ascii=False))
    return {**adapted, "description": "\n\n".join(description)} if description else adapted


def _closed(schema: JSON, note: Callable[[str], None]) -> JSON:
    """Return what an object may have: its properties, and no others."""
    if schema.get("additionalProperties") not in (None, False):
        note("additionalProperties")
    properties = {name: _adapted(each, note) for name, each in (schema.get("properties") or {}).items()}
    return {"properties": properties, "additionalProperties": False}


def _described(schema: JSON) -> JSON:
    return {name: schema[name] for name in ("description", "title") if name in schema}


def _of_type(schema: JSON, kind: Any) -> JSON:
    """Return the part of a schema of several types that says something of one of them."""
    foreign = {name for other, names in _OF_TYPES.items() if other != kind for name in names}
    kept = {name: value for name, value in schema.items() if name not in foreign and name not in _described(schema)}
    if isinstance(kept.get("enum"), list):
        is_null = kind == "null"
        kept["enum"] = [value for value in kept["enum"] if (value is None) == is_null]
        if not kept["enum"]:
            del kept["enum"]
    return {**kept, "type": kind}


def _is_enforced(name: str, value: Any) -> bool:
    match name:
        case "format":
            return value in _FORMATS
        case "minItems":
            return isinstance(value, int) and value <= _MOST_ITEMS_KNOWN
    return True


def _kind_of(schema: JSON) -> str | None:
    """Return the type that a schema means without saying so; None where it says what there is in other words."""
    if "properties" in schema:
        return "object"
    if "items" in schema:
        return "array"
    if any(name in schema for name in ("enum", "const", *_NESTED_LISTS)):
        return None
    raise ValueError("a place of any type")
