"""The OpenAPI description of the router, from which clients are made and requests to test it with.

The description is the file `openapi.yaml` beside this one. The service does not check requests against it: what shapes
an answer goes to the provider as it is, so types are stated for what the router itself reads, and for a few fields that
all providers take alike.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import yaml
from pydantic import TypeAdapter

from p2l.common.version import __version__
from route.application.settings import FALLBACKS
from route.keep.feedback import StoredVote
from route.key_config import KeyLimits
from route.providers.base import JSON
from route.routing.decision import FrontierPoint

# Data, so that it reads as the document that it is.
_FILE = Path(__file__).with_name("openapi.yaml")


@cache
def document() -> bytes:
    """Return the description as it is served; built once, since anybody may ask for it."""
    return json.dumps(describe()).encode()


def describe() -> JSON:
    """Return the description, in OpenAPI 3.1, with the schemas that follow from classes of the router."""
    description: JSON = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    description["info"]["version"] = __version__
    schemas = description["components"]["schemas"]
    for name in ("KeyLimits", "NewKey"):
        for limit, schema in KeyLimits.model_json_schema()["properties"].items():
            schema.pop("default", None)
            schemas[name]["properties"][limit] = {"anyOf": [schema, {"type": "null"}]}  # null ends a limit
    vote: JSON = TypeAdapter(StoredVote).json_schema(mode="serialization")
    vote["properties"]["object"] = {"const": "route.vote"}
    vote["required"].append("object")
    schemas["StoredVote"] = vote
    schemas["RouteDecision"]["properties"]["frontier"]["items"] = TypeAdapter(FrontierPoint).json_schema()
    schemas["Readiness"]["properties"]["fallback"]["enum"] = list(FALLBACKS)
    return description
