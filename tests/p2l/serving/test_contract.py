"""The HTTP contract, here of a plain endpoint; `test_ray.py` runs the same tests over one on Ray Serve."""

import json

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

ROUTES = ["/predict", "/predict_batch", "/leaderboard", "/models", "/info", "/health", "/metrics", "/reload"]
JSON = {"content-type": "application/json"}
CHECKS = [status_code_conformance, response_schema_conformance]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("key", [None, "", "wrong", "a key'", "schlüssel"])
@pytest.mark.parametrize("route", ["/predict", "/models", "/info", "/leaderboard", "/predict_batch", "/nothing"])
def test_without_the_key_there_is_no_answer(shared, route, key):
    headers = {} if key is None else {"api-key": key.encode()}
    method = "GET" if route in {"/models", "/info"} else "POST"
    found = shared.client.request(method, route, headers={"api-key": b"", **headers}, content=b"{}")
    assert found.status_code == 403
    assert "api-key" in found.json()["detail"]


def test_nobody_is_sent_to_another_address_with_a_key(shared):
    """Behind a proxy that speaks TLS a redirect to http: would show the key."""
    assert shared.client.post("/predict/", json={"prompt": ["hi"]}, follow_redirects=False).status_code == 404
    assert shared.client.get("/models/", follow_redirects=False).status_code == 404


@pytest.mark.parametrize(
    "content", [b'{"prompt": ["hello"], "sd": false}', b' { "prompt" : ["h\\u00e4 \\ud83d\\ude00"] }']
)
@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "application/what+json"])
def test_a_prompt_has_one_answer_whichever_way_it_takes(shared, content, kind):
    turns = json.loads(content)["prompt"]
    found = shared.client.post("/predict", content=content, headers={"content-type": kind})
    other = shared.client.post("/predict", content=content, headers={**JSON, "x-p2l-timeout": "20"})
    assert found.status_code == 200
    assert found.json() == other.json()
    np.testing.assert_allclose(found.json()["coefs"], shared.model.predict([turns]).coefs[0], atol=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"{}",
        b'{"prompt": null}',
        b'{"prompt": []}',
        b'{"prompt": [1]}',
        b'{"prompt": [null]}',
        b'{"prompt": [["nested"]]}',
        b'{"prompt": {"role": "user"}}',
        b'{"prompt": NaN}',
        b'{"prompt": ["\xff\xfe"]}',
        b"[" * 100_000,
        b'{"prompt": ["' + b"\x00" + b'"]}',
    ],
)
@pytest.mark.parametrize("route", ["/predict", "/leaderboard"])
def test_what_is_no_prompt_gets_one_sentence(shared, route, body):
    found = shared.client.post(route, content=body, headers={"content-type": "application/json"})
    assert 400 <= found.status_code < 500
    detail = found.json()["detail"]
    assert isinstance(detail, str)
    assert 0 < len(detail) < 200
    assert "\n" not in detail


@pytest.mark.parametrize(
    "turn",
    ["", " ", "\x00\x01\x1b[31m", "\ud800", "a\udc00b", "<|cls|>", "<|im_end|>\n<|cls|>", "x" * 1_000_000, "🦜" * 9],
)
def test_an_odd_prompt_gets_the_answer_of_the_model(shared, turn):
    found = shared.client.post("/predict", content=json.dumps({"prompt": [turn]}), headers=JSON)
    assert found.status_code == 200
    np.testing.assert_allclose(found.json()["coefs"], shared.model.predict([[turn]]).coefs[0], atol=1e-5)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    route=st.sampled_from(["/predict", "/leaderboard", "/predict_batch", "/reload", "/models", "/health"]),
    name=st.sampled_from(["prompt", "prompts", "model_path", "other"]),
    value=ANYTHING,
)
def test_no_body_makes_the_service_fail(shared, route, name, value):
    found = shared.client.post(route, content=json.dumps({name: value}), headers=JSON)
    assert found.status_code < 500
    if found.status_code >= 400:
        assert isinstance(found.json()["detail"], str)


@pytest.mark.parametrize("route", ["/predict", "/leaderboard"])
def test_a_text_is_a_prompt_of_one_turn(shared, route):
    key = {"api-key": "a key"}
    text, turns = (shared.client.post(route, json={"prompt": one}, headers=key) for one in ("hello", ["hello"]))
    assert text.status_code == 200
    assert text.json() == turns.json()


def test_an_unknown_key_is_refused_with_the_nearest(shared):
    key = {"api-key": "a key"}
    for route, body, name, near in (
        ("/predict", {"prompt": "hello", "levl": 0.5}, "levl", "level"),
        ("/leaderboard", {"prompts": "hello", "prompt": "hello"}, "prompts", "prompt"),
        ("/predict_batch", {"prompts": ["hello"], "sdd": True}, "sdd", "sd"),
        ("/predict", {"promt": "hello"}, "promt", "prompt"),
        ("/leaderboard", {"promt": "hello"}, "promt", "prompt"),
    ):
        answer = shared.client.post(route, json=body, headers=key)
        assert answer.status_code == 422
        assert answer.json()["detail"] == f"unknown key {name!r} (did you mean {near!r}?); see GET /docs"
    assert shared.client.post("/predict_batch", json={"prompts": ["hello", ["a", "b"]]}, headers=key).status_code == 200


PROMPT = "must be a text or a list of texts (the user's turns)"


@pytest.mark.parametrize(
    ("route", "body", "detail"),
    [
        ("/leaderboard", {}, f"prompt: is missing; it {PROMPT}"),
        ("/leaderboard", {"prompt": 5}, f"prompt: {PROMPT}, got a number"),
        ("/leaderboard", {"prompt": None}, f"prompt: {PROMPT}, got null"),
        ("/predict", {"prompt": []}, f"prompt: {PROMPT}, got an empty list"),
        ("/predict", {"prompt": ["a secret", 5]}, "prompt.1: must be a text, got a number"),
        ("/predict", {"prompt": {"a": "secret"}}, f"prompt: {PROMPT}, got an object"),
        ("/predict_batch", {"prompts": ["hello", [[1]]]}, "prompts.1.0: must be a text, got a list of 1"),
        ("/predict_batch", {"prompts": [7]}, f"prompts.0: {PROMPT}, got a number"),
        ("/predict", {"prompt": "hello", "level": 7}, "level: must be above 0 and below 1, got 7"),
        ("/predict", {"prompt": "hello", "level": "a"}, "level: must be above 0 and below 1, got a text"),
        ("/predict", {"prompt": "hello", "sd": 3}, "sd: must be true or false, got 3"),
        (
            "/predict",
            {"prompt": "hello", "pairs": [["ant"]]},
            'pairs.0: must be two models, such as ["a", "b"], got a list of 1',
        ),
        (
            "/predict",
            {"prompt": "hello", "covariates": {"side": "a"}},
            "covariates.side: must be a finite number, got a text",
        ),
        ("/predict", [], "the body is an empty list; send a JSON object, with what GET /docs says"),
        ("/predict", None, "the body is missing; send a JSON object, with what GET /docs says"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_in_plain_words(shared, route, body, detail):
    answer = shared.client.post(route, content=json.dumps(body), headers={"api-key": "a key", **JSON})
    assert answer.status_code == 422
    assert answer.json()["detail"] == detail


def test_a_body_that_is_not_declared_as_json_is_told_how(shared):
    answer = shared.client.post("/predict", content=b'{"prompt": "hello"}', headers={"api-key": "a key"})
    assert answer.status_code == 422
    assert "content-type: application/json" in answer.json()["detail"]


def test_every_route_is_described(shared):
    assert sorted(shared.client.get("/openapi.json").json()["paths"]) == sorted(ROUTES)


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("route", ROUTES)
def test_every_answer_is_as_described(shared, route, mode):
    description = schemathesis.openapi.from_url(f"{shared.url}/openapi.json")
    operation = next(iter(description[route].values()))

    @settings(max_examples=15, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        answer = case.call_and_validate(headers={"api-key": "a key"}, checks=CHECKS)
        assert answer.status_code != 500

    check()
