"""JSON schemas of answers and tools: adapted to what a provider takes of JSON Schema, and examples of them.

What a provider does not enforce is told to the model in words: a keyword that has to go is written into the
description of its place. Examples are what the mock answers with: structured output, and the arguments of its calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


_MAX_DEPTH = 12
"""Levels of a schema that refers to itself; below them there are no optional properties."""
_MAX_REFERENCES = 4 * _MAX_DEPTH
"""Levels below which no reference is followed: a schema may refer to itself and to nothing else."""
_FORMAT_EXAMPLES: Mapping[str, str] = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "someone@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


_LARGEST = 20_000
"""Values and characters of an instance, whatever its schema asks for."""


@dataclass
class _Document:
    """What references start at, and how much an instance of it may still hold."""

    root: Any
    left: int = _LARGEST

    def take(self, count: int) -> int:
        """Return `count`, or what is left of it."""
        count = max(0, min(count, self.left))
        self.left -= count
        return count


def example_of(schema: Any) -> Any:
    """Return an instance of a JSON schema; one that may not be whole of a schema that asks for very much."""
    return _instance(schema, _Document(schema), 0)


def _instance(schema: Any, document: _Document, depth: int) -> Any:
    if not isinstance(schema, dict):
        return {}
    if not document.take(1):
        return None
    if "$ref" in schema and depth < _MAX_REFERENCES:
        referenced = {key: value for key, value in schema.items() if key != "$ref"}
        referenced = {**_referenced(document.root, str(schema["$ref"])), **referenced}
        return _instance(referenced, document, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            choices = schema[key]
            null = next(
                (choice for choice in choices if isinstance(choice, dict) and choice.get("type") == "null"), None
            )
            # Null ends a schema that goes deep, where it is a choice.
            simplest = null if null is not None and depth > _MAX_DEPTH else choices[0]
            return _instance(simplest, document, depth + 1)
    if schema.get("allOf"):
        parts = [_instance(part, document, depth + 1) for part in schema["allOf"]]
        rest = {key: value for key, value in schema.items() if key != "allOf"}
        parts += [_instance(rest, document, depth + 1)] if "properties" in rest else []
        objects = [part for part in parts if isinstance(part, dict)]
        return {key: value for part in objects for key, value in part.items()} if objects else parts[0]
    return _instance_of_type(schema, document, depth)


def _referenced(root: Any, reference: str) -> JSON:
    """Return what `#/$defs/NAME` points to; an empty schema for what is not there."""
    place = root
    for step in reference.removeprefix("#").split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if name:
            place = place.get(name) if isinstance(place, dict) else None
    return place if isinstance(place, dict) else {}


def _instance_of_type(schema: JSON, document: _Document, depth: int) -> Any:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "null")
    if kind is None:
        kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
    match kind:
        case "object":
            required = schema.get("required") or ()
            return {
                name: _instance(inner, document, depth + 1)
                for name, inner in (schema.get("properties") or {}).items()
                if name in required or depth < _MAX_DEPTH
            }
        case "array":
            items = schema.get("prefixItems") or [schema.get("items") or {"type": "string"}]
            number = max(
                int(schema.get("minItems") or 0), len(items) if "prefixItems" in schema else depth < _MAX_DEPTH
            )
            return [
                _instance(items[min(place, len(items) - 1)], document, depth + 1)
                for place in range(min(number, document.left))
            ]
        case "string":
            text = _FORMAT_EXAMPLES.get(str(schema.get("format")), "text")
            least, most = int(schema.get("minLength") or 0), schema.get("maxLength")
            text = text.ljust(document.take(least), "x")
            return text if most is None else text[: int(most)]
        case "integer" | "number":
            return _number(schema, whole=kind == "integer")
        case "boolean":
            return True
    return None


def _number(schema: JSON, *, whole: bool) -> float:
    step: float = schema.get("multipleOf") or 1
    number = step
    if schema.get("minimum") is not None:
        number = schema["minimum"]
    elif schema.get("exclusiveMinimum") is not None:
        number = schema["exclusiveMinimum"] + step
    elif schema.get("maximum") is not None:
        number = min(step, schema["maximum"])
    elif schema.get("exclusiveMaximum") is not None:
        number = min(step, schema["exclusiveMaximum"] - step)
    return int(number) if whole else float(number)
