"""Requests made from the OpenAPI description: whatever they hold, the service answers as it says it does."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

ROUTES = ["/predict", "/predict_batch", "/leaderboard", "/models", "/info", "/health", "/metrics", "/reload"]
CHECKS = [status_code_conformance, response_schema_conformance]


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
