"""The OpenAPI description of the router, from which clients are made and requests to test it with.

The service does not check requests against it: what shapes an answer goes to the provider as it is, see
`route.request.fields`. So types are stated for what the router itself reads, and for a few fields that all providers
take alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from p2l.common.version import __version__
from route.application.settings import FALLBACKS
from route.config import ROUTER_NAME, SERVED, KeyLimits
from route.keep.conversations import HEADER
from route.keep.feedback import StoredVote
from route.providers.base import JSON
from route.routing.decision import FrontierPoint

_AMOUNT: JSON = {"type": "number", "minimum": 0}
_NUMBERS: JSON = {"type": "object", "additionalProperties": {"type": "number"}}
_TEXTS: JSON = {"type": "array", "items": {"type": "string"}}
_MEANINGS = {
    400: "The request cannot be used, by the router or by the provider; `param` names the field.",
    401: "There is no key, or a wrong one.",
    403: "The key may not use the model, or this is not for it.",
    404: "There is no such model, or no answer of that request to vote on.",
    408: "The body did not arrive in time.",
    409: "There is such a key already, or no database to keep keys in.",
    413: "The body is too large.",
    422: "The provider refuses the request.",
    429: "A limit of the key, or of every provider that could answer; `Retry-After` has the seconds to wait.",
    502: "No provider answered, or not with a chat completion; the message names the last.",
    503: "Votes cannot be stored now; `Retry-After` has the seconds to wait.",
    504: "The last provider, or the whole request, took too long.",
}


@cache
def document() -> bytes:
    """Return the description as it is served; built once, since anybody may ask for it."""
    return json.dumps(describe()).encode()


def describe() -> JSON:
    """Return the description, in OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "P2L router",
            "version": __version__,
            "description": "Sends each chat request to the model that P2L expects to answer it best within its budget.",
        },
        "security": [{"bearer": []}, {"x-api-key": []}],
        "paths": {
            **_chat_paths(),
            **_responses_paths(),
            **_passed_paths(),
            **_other_paths(),
            **_paths_of_operation(),
            **_admin_paths(),
        },
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "parameters": _parameters(),
            "schemas": {**_request_schemas(), **_answer_schemas(), **_other_schemas(), **_admin_schemas()},
        },
    }


def _chat_paths() -> JSON:
    statuses = (400, 401, 403, 404, 408, 413, 422, 429, 502, 504)
    completion = _content("ChatCompletion", stream="An event: a chat completion chunk, at last `[DONE]`.")
    message = _content("Message", stream="An event of the Messages API.")
    return {
        "/v1/chat/completions": {
            "post": _operation(
                "Ask the model that fits the prompt and the budget, in OpenAI's form.",
                body="ChatRequest",
                answers={200: ("The answer, or two with `compare`.", completion), **_errors(*statuses)},
                parameters=("budget", "conversation"),
            )
        },
        "/v1/messages": {
            "post": _operation(
                "The same in the form of Anthropic's Messages API.",
                body="MessagesRequest",
                answers={200: ("The answer.", message), **_errors(*statuses, schema="MessagesError")},
                parameters=("budget", "conversation"),
            )
        },
        "/v1/messages/count_tokens": {
            "post": _operation(
                "Estimate the tokens of a message's prompt.",
                body="MessagesRequest",
                answers={
                    200: ("The estimate.", _content("TokenCount")),
                    **_errors(400, 401, 404, 408, 413, schema="MessagesError"),
                },
            )
        },
        "/v1/route": {
            "post": _operation(
                "Return the decision for a chat request without asking a model.",
                body="ChatRequest",
                answers={200: ("The decision.", _content("RouteDecision")), **_errors(*statuses)},
                parameters=("budget", "conversation"),
            )
        },
    }


def _responses_paths() -> JSON:
    response = _content("Response", stream="An event of the Responses API.")
    kept = _errors(400, 401, 404, 503)
    of_one = "/v1/responses/{response_id}"
    return {
        "/v1/responses": {
            "post": _operation(
                "The same in the form of OpenAI's Responses API.",
                body="ResponsesRequest",
                answers={
                    200: ("The response.", response),
                    **_errors(400, 401, 403, 404, 408, 413, 422, 429, 502, 503, 504),
                },
                parameters=("budget", "conversation"),
            )
        },
        of_one: {
            "get": _operation(
                "Return a response that is kept.",
                answers={200: ("The response.", _content("Response")), **kept},
                parameters=("response_id",),
            ),
            "delete": _operation(
                "Forget a response.",
                answers={200: ("It is forgotten.", _content("Deleted")), **kept},
                parameters=("response_id",),
            ),
        },
        f"{of_one}/input_items": {
            "get": _operation(
                "List the input of the request that a response belongs to.",
                answers={200: ("The items.", _content("Items")), **kept},
                parameters=("response_id",),
            )
        },
    }


def _passed_paths() -> JSON:
    """Return the endpoints that are passed to the model which a request names."""
    anything: JSON = {"*/*": {"schema": {}}}
    form = {"type": "object", "properties": {"model": {"type": "string"}}}
    statuses = (400, 401, 403, 404, 408, 413, 422, 429, 502, 503, 504)
    paths: JSON = {}
    for kind, names in SERVED.items():
        is_form = kind == "transcriptions"
        for name in names:
            operation = _operation(
                f"Pass a request to a model with {kind}, and its answer back.",
                answers={200: ("The provider's answer.", anything), **_errors(*statuses)},
            )
            media = "multipart/form-data" if is_form or name in _FORMS else "application/json"
            schema = form if media.startswith("multipart") else _ref("PassedRequest")
            operation["requestBody"] = {"required": True, "content": {media: {"schema": schema}}}
            paths[f"/v1/{name}"] = {"post": operation}
    return paths


_FORMS = ("images/edits", "images/variations")


def _other_paths() -> JSON:
    return {
        "/v1/feedback": {
            "post": _operation(
                "Vote on an earlier answer to the same key.",
                body="Vote",
                answers={
                    200: ("The vote as it is stored.", _content("StoredVote")),
                    202: ("The vote, which waits for the database's server.", _content("StoredVote")),
                    **_errors(400, 401, 403, 404, 408, 413, 429, 503),
                },
            )
        },
        "/v1/models": {
            "get": _operation(
                "List what `model` may name: the router, and models that a name reaches.",
                answers={200: ("The models.", _content("Models")), **_errors(401, 403)},
            )
        },
        "/v1/models/{name}": {
            "get": _operation(
                "Return one of these models.",
                answers={200: ("The model.", _content("Model")), **_errors(401, 403, 404)},
                parameters=("name",),
            )
        },
    }


def _paths_of_operation() -> JSON:
    text = {"text/plain": {"schema": {"type": "string"}}}
    ready = {
        200: ("A model is not blocked.", _content("Readiness")),
        503: ("All models are blocked by their circuit breakers.", _content("Readiness")),
    }
    metrics = {200: ("Prometheus' text format.", text), **_errors(401, 403)}
    open_to_all = {
        "/health": _operation("Answer while the process runs.", answers={200: ("It does.", _content("Health"))}),
        "/ready": _operation("Say whether a model can be asked.", answers=ready),
        "/openapi.json": _operation("Describe all routes.", answers={200: ("OpenAPI 3.1.", _content("OpenAPI"))}),
    }
    return {
        **{path: {"get": {**operation, "security": []}} for path, operation in open_to_all.items()},
        "/metrics": {"get": _operation("Count requests, tokens, cost, for operators.", answers=metrics)},
    }


def _admin_paths() -> JSON:
    """Return what operators do with the admin key."""
    key = _content("Key")
    changes = _errors(400, 401, 403, 404, 408, 409, 413, 503)
    return {
        "/admin/reload": {
            "post": _operation(
                "Take the configuration anew, in every worker.",
                answers={200: ("What has changed.", _content("Reloaded")), **_errors(400, 401, 403)},
            )
        },
        "/admin/keys": {
            "get": _operation(
                "List keys and teams, and what each has spent today.",
                answers={200: ("They are these.", _content("Keys")), **_errors(401, 403, 503)},
            ),
            "post": _operation(
                "Make a key of the database.",
                body="NewKey",
                answers={201: ("The key, which nothing shows again.", _content("MadeKey")), **changes},
            ),
        },
        "/admin/keys/{name}": {
            "patch": _operation(
                "Change limits of a key of the database; null ends one.",
                body="KeyLimits",
                answers={200: ("The key as it is now.", key), **changes},
                parameters=("name",),
            ),
            "delete": _operation(
                "End a key of the database.",
                answers={200: ("The key that was.", key), **_errors(401, 403, 404, 409, 503)},
                parameters=("name",),
            ),
        },
    }


def _admin_schemas() -> JSON:
    text: JSON = {"type": "string"}
    limits: dict[str, Any] = KeyLimits.model_json_schema()["properties"]
    limits = {name: _or_null({key: limit[key] for key in limit if key != "default"}) for name, limit in limits.items()}
    card = {
        "object": {"const": "route.key"},
        "name": text,
        "source": {"enum": ["configuration", "database"]},
        "limits": {"type": "object"},
        "created": text,
        "revoked": _or_null(text),
        "spent_today": _AMOUNT,
    }
    team = _object({"name": text, "spend_per_day": _AMOUNT, "spent_today": _AMOUNT}, "name", "spend_per_day")
    listed = {"object": {"const": "list"}, "data": {"type": "array", "items": _ref("Key")}}
    numbers = {"models": {"type": "integer"}, "keys": {"type": "integer"}}
    made = {"object": {"const": "route.key"}, "name": text, "key": text, "limits": {"type": "object"}}
    reloaded = {"object": {"const": "route.reload"}, "changed": _TEXTS, **numbers, "everywhere": {"type": "boolean"}}
    return {
        "Key": _object(card, "object", "name", "source", "spent_today"),
        "Keys": _object({**listed, "teams": {"type": "array", "items": team}}, *listed, "teams"),
        "KeyLimits": {**_object(limits), "additionalProperties": False},
        "NewKey": {**_object({"name": text, **limits}, "name"), "additionalProperties": False},
        "MadeKey": _object(made, *made),
        "Reloaded": _object(reloaded, *reloaded),
    }


def _operation(
    summary: str,
    *,
    answers: Mapping[int, tuple[str, JSON]],
    body: str | None = None,
    parameters: tuple[str, ...] = (),
) -> JSON:
    operation: JSON = {
        "summary": summary,
        "responses": {
            str(status): {"description": meaning, "content": content} for status, (meaning, content) in answers.items()
        },
    }
    if parameters:
        operation["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in parameters]
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _content(body)}
    return operation


def _errors(*statuses: int, schema: str = "Error") -> dict[int, tuple[str, JSON]]:
    return {status: (_MEANINGS[status], _content(schema)) for status in statuses}


def _content(schema: str, *, stream: str | None = None) -> JSON:
    """Return a body of JSON, or, for requests with `stream`, of events."""
    content: JSON = {"application/json": {"schema": _ref(schema)}}
    if stream is not None:
        event = _object({"event": {"type": "string"}, "data": {"type": "string"}}, "data")
        content["text/event-stream"] = {"schema": {**event, "description": stream}}
    return content


def _ref(schema: str) -> JSON:
    return {"$ref": f"#/components/schemas/{schema}"}


def _or_null(schema: JSON, description: str | None = None) -> JSON:
    return {"anyOf": [schema, {"type": "null"}], **({} if description is None else {"description": description})}


def _object(properties: JSON, *required: str) -> JSON:
    return {"type": "object", "properties": properties, "required": list(required)}


def _parameters() -> JSON:
    budget = "The budget, where the body has none."
    conversation = "Names the conversation, where conversations keep their models."
    return {
        "budget": {"name": "x-p2l-cost", "in": "header", "description": budget, "schema": _AMOUNT},
        "conversation": {"name": HEADER, "in": "header", "description": conversation, "schema": {"type": "string"}},
        "response_id": {
            "name": "response_id",
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "pattern": "^resp_[a-z0-9]+$"},
        },
        "name": {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}},
    }


def _request_schemas() -> JSON:
    parts = {"type": "array", "items": {"type": "object"}}
    content = {"anyOf": [{"type": "string"}, parts, {"type": "null"}]}
    message = _object({"role": {"type": "string"}, "content": content}, "role")
    own = {
        "model": {"type": "string", "description": "Any text; a name, where the router was started so."},
        "messages": {"type": "array", "minItems": 1, "items": message},
        "cost": _or_null(_AMOUNT, "The budget, in the unit of the models' costs."),
        "budget_usd": _or_null(_AMOUNT, "The budget in expected dollars, instead of cost."),
        "direct_model": _or_null({"type": "string"}, "The name of the model to ask, without routing."),
        "stream": _or_null({"type": "boolean"}),
        "max_tokens": _or_null({"type": "integer", "minimum": 1}),
        "temperature": _or_null(_AMOUNT),
        "top_p": _or_null({"type": "number", "minimum": 0, "maximum": 1}),
    }
    function = _object({"name": {"type": "string"}, "parameters": {"type": "object"}}, "name")
    tool = _object({"type": {"const": "function"}, "function": function}, "type", "function")
    chat = {
        **own,
        "compare": _or_null({"type": "boolean"}, "Ask two models, for a vote between them."),
        "stream_options": _or_null(_object({"include_usage": {"type": "boolean"}})),
        "tools": _or_null({"type": "array", "items": tool}),
        "stop": {"anyOf": [{"type": "string"}, _TEXTS, {"type": "null"}]},
        "n": _or_null({"type": "integer", "minimum": 1, "maximum": 8}),
        "user": _or_null({"type": "string"}),
    }
    return {
        "ChatRequest": _object(chat, "messages"),
        "MessagesRequest": _object(
            {**own, "messages": {"type": "array", "minItems": 1, "items": _turn()}, **_of_messages()}, "messages"
        ),
        "ResponsesRequest": _object({**_of_responses(own), "tools": _or_null(_TOOLS)}, "input"),
        "PassedRequest": _object({"model": {"type": "string"}, "input": {"type": "string"}}, "model"),
        "Vote": {
            **_object(
                {
                    "request_id": {"type": "string", "description": "The `x-request-id` of the answer."},
                    "thumbs": _or_null({"enum": ["up", "down"]}, "Of one answer."),
                    "better": _or_null({"enum": [0, 1, "tie", "both_bad"]}, "Of two; 0 or 1 is a choice's index."),
                },
                "request_id",
            ),
            "additionalProperties": False,
        },
    }


_TOOLS: JSON = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "type": {"const": "function"},
            "name": {"type": "string"},
            "parameters": {"type": "object"},
        },
        "required": ["type", "name"],
    },
}


def _of_responses(own: Mapping[str, object]) -> JSON:
    text = _object({"type": {"const": "input_text"}, "text": {"type": "string"}}, "type", "text")
    message = _object(
        {
            "role": {"enum": ["user", "assistant", "system", "developer"]},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": text}]},
        },
        *("role", "content"),
    )
    items = {"type": "array", "minItems": 1, "items": message}
    same = {name: own[name] for name in ("model", "cost", "direct_model", "stream", "temperature", "top_p")}
    return {
        **same,
        "input": {"anyOf": [{"type": "string"}, items]},
        "instructions": _or_null({"type": "string"}),
        "max_output_tokens": _or_null({"type": "integer", "minimum": 1}),
        "previous_response_id": _or_null({"type": "string"}),
        "store": _or_null({"type": "boolean"}),
    }


def _turn() -> JSON:
    text = _object({"type": {"const": "text"}, "text": {"type": "string"}}, "type", "text")
    answer = {"tool_use_id": {"type": "string"}, "content": {"type": "string"}, "is_error": {"type": "boolean"}}
    of_tool = _object({"type": {"const": "tool_result"}, **answer}, "type", "tool_use_id")
    blocks = {"type": "array", "items": {"anyOf": [text, of_tool]}}
    return _object(
        {"role": {"enum": ["user", "assistant"]}, "content": {"anyOf": [{"type": "string"}, blocks]}}, "role", "content"
    )


def _of_messages() -> JSON:
    schema = {"type": "object"}
    tool = _object({"name": {"type": "string"}, "input_schema": schema}, "name", "input_schema")
    return {
        "system": _or_null({"type": "string"}),
        "stop_sequences": _or_null(_TEXTS),
        "tools": _or_null({"type": "array", "items": tool}),
        "metadata": _or_null(_object({"user_id": {"type": "string"}})),
    }


def _answer_schemas() -> JSON:
    routed: JSON = {
        "model": {"type": "string", "description": "The configured name."},
        "router_outputs": _or_null(_NUMBERS, "The score of each model that could be routed to."),
        "router_decision": _ref("Decision"),
    }
    choice = _object(
        {"index": {"type": "integer"}, "message": {"type": "object"}, "finish_reason": _or_null({"type": "string"})},
        "message",
    )
    tokens = {"type": "integer", "minimum": 0}
    return {
        "ChatCompletion": _object(
            {**routed, "choices": {"type": "array", "items": choice}, "usage": _or_null({"type": "object"})},
            *("model", "choices", "router_outputs"),
        ),
        "Message": _object(
            {
                **routed,
                "id": {"type": "string"},
                "type": {"const": "message"},
                "role": {"const": "assistant"},
                "content": {"type": "array", "items": {"type": "object"}},
                "stop_reason": {"type": "string"},
                "stop_sequence": _or_null({"type": "string"}),
                "usage": _object({"input_tokens": tokens, "output_tokens": tokens}, "input_tokens", "output_tokens"),
            },
            *("id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage", "router_outputs"),
        ),
        "TokenCount": _object({"input_tokens": tokens}, "input_tokens"),
        "Response": _object(
            {
                **routed,
                "id": {"type": "string"},
                "object": {"const": "response"},
                "status": {"enum": ["completed", "incomplete"]},
                "output": {"type": "array", "items": {"type": "object"}},
                "usage": _object({"input_tokens": tokens, "output_tokens": tokens}, "input_tokens", "output_tokens"),
            },
            *("id", "object", "status", "model", "output", "usage", "router_outputs"),
        ),
        "Deleted": _object({"id": {"type": "string"}, "deleted": {"const": True}}, "id", "deleted"),
        "Items": _object({"object": {"const": "list"}, "data": {"type": "array"}}, "object", "data"),
        "Decision": _object({**_reasons(), "attempts": _TEXTS}, *_reasons(), "attempts"),
        "RouteDecision": _object(
            {
                "object": {"const": "route.decision"},
                **_reasons(),
                "scores": _NUMBERS,
                "costs": _NUMBERS,
                "frontier": {"type": "array", "items": TypeAdapter(FrontierPoint).json_schema()},
            },
            *("object", *_reasons(), "scores", "costs", "frontier"),
        ),
    }


def _reasons() -> JSON:
    number = _or_null({"type": "number"})
    return {
        "model": {"type": "string"},
        "probabilities": _NUMBERS,
        "propensity": {"type": "number"},
        "expected_score": number,
        "expected_cost": {"type": "number"},
        "strength": number,
        "budget": number,
        "in_dollars": {"type": "boolean"},
        "explored": {"type": "boolean"},
        "static": {"type": "boolean"},
        "average": {"type": "boolean"},
        "optimizer": {"type": "string"},
        "revision": {"type": "string"},
    }


def _other_schemas() -> JSON:
    text: JSON = {"type": "string"}
    error = {"message": text, "type": text, "param": _or_null(text), "code": text}
    card = {"id": text, "object": {"const": "model"}, "created": {"type": "integer"}, "owned_by": text}
    vote: dict[str, Any] = TypeAdapter(StoredVote).json_schema(mode="serialization")
    vote["properties"]["object"] = {"const": "route.vote"}
    listed = {"object": {"const": "list"}, "data": {"type": "array", "items": _ref("Model")}}
    readiness = {
        "status": text,
        "scores": {"type": "boolean", "description": "Whether P2L scores prompts now."},
        "fallback": {"enum": list(FALLBACKS), "description": "What decides without scores."},
        "database": {"type": "boolean", "description": "Whether the database can be written now."},
        "limits": {
            "type": "boolean",
            "description": "Whether limits are shared through Redis now, if they are to be.",
        },
        "waiting_votes": {"type": "integer", "description": "Votes that wait for the database on this machine's disk."},
        "database_fault": {**text, "description": "Why it cannot be written; for operators."},
        "limits_fault": {**text, "description": "Why Redis cannot be asked; for operators."},
        "trouble": {**text, "description": "Why there are no scores; for operators."},
        "blocked": {**_TEXTS, "description": "Models that are blocked; for operators."},
    }
    return {
        "Error": _object({"error": _object(error, *error)}, "error"),
        "MessagesError": _object(
            {"type": {"const": "error"}, "error": _object({"type": text, "message": text, "code": text}, "type")},
            *("type", "error"),
        ),
        "Model": {**_object(card, *card), "examples": [{"id": ROUTER_NAME, "object": "model"}]},
        "Models": _object(listed, *listed),
        "StoredVote": {**vote, "required": [*vote["required"], "object"]},
        "OpenAPI": {"type": "object"},
        "Health": _object({"status": {"const": "ok"}}, "status"),
        "Readiness": _object(readiness, "status", "scores"),
    }
