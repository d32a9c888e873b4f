"""Roles that have models of their own: `role_parameters.ROLE.model`, wherever a model's name matters."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from coeval.config.keys import Keys
from coeval.config.loading import load_config
from coeval.mock.server import MockServer
from coeval.planning.counting import remaining
from coeval.planning.estimate import estimate_text, static_estimate
from coeval.planning.plan import description_page, plan_text
from coeval.planning.probing import models_needed, probe_models
from tests.coeval.batch.batch_helpers import batched
from tests.coeval.batch.batch_helpers import config as batch_config
from tests.coeval.batch.servers import BatchServer
from tests.coeval.config.configs import Change, load, mistakes, model
from tests.coeval.helpers import coeval, records, run_of, write_config
from tests.coeval.helpers import model as behind

BY_ROLE = {"student": {"model": "gpt-4o-mini"}, "judge": {"model": "gpt-4.1"}}
ALL = ("teacher", "student", "judge")


def openai(**keys: Any) -> Change:
    return model(interface="openai", roles=list(ALL), parameters={"model": "gpt-4o"}, role_parameters=BY_ROLE, **keys)


def test_a_run_asks_each_role_by_its_own_model(tmp_path: Path) -> None:
    with MockServer() as server:
        models = [{**behind("gpt-4o", server, roles=ALL), "role_parameters": BY_ROLE}]
        path = write_config(tmp_path, models, probe_mode="full")
        server.models, server.only_these = {"gpt-4o": {}, "gpt-4o-mini": {}}, True
        assert coeval("run", "--config", path) == 1  # the judge's model is not there
        server.models["gpt-4.1"] = {}
        assert coeval("run", "--config", path) == 0
        asked = Counter({name: 0 for name, _ in server.calls})
        for (name, _), count in server.calls.items():
            asked[name] += count
    assert asked == {"gpt-4o": 4, "gpt-4o-mini": 4, "gpt-4.1": 4}
    usage = [records(run_of(tmp_path), kind)[0]["usage"] for kind in ("data_generation", "evaluation")]
    for one, (price_in, price_out) in zip(usage, ((2.5, 10), (2, 8)), strict=True):
        cost = (one["prompt_tokens"] * price_in + one["completion_tokens"] * price_out) / 1e6
        assert one["cost_usd"] == pytest.approx(cost)


def test_the_same_words_in_two_roles_are_two_questions(tmp_path: Path) -> None:
    with MockServer() as server:
        models = [{**behind("ant", server, roles=ALL), "role_parameters": BY_ROLE}]
        path = write_config(tmp_path, models, cache=True, id="first")
        assert coeval("run", "--config", path) == 0
        server.calls.clear()
        models[0]["role_parameters"] = {**BY_ROLE, "judge": {"model": "another"}}
        assert coeval("run", "--config", write_config(tmp_path, models, cache=True, id="second")) == 0
        assert {name for name, _ in server.calls} == {"another"}


def test_a_probe_looks_for_the_models_of_the_roles_that_are_needed(tmp_path: Path) -> None:
    with MockServer(models={"ant": {}}, only_these=True) as server:
        models = [{**behind("ant", server, roles=ALL), "role_parameters": {"judge": {"model": "bee"}}}]
        config = load_config(write_config(tmp_path, models), keys=Keys())
        assert asyncio.run(probe_models(config, Keys(), ("data_generation",))) == {"ant": "ok"}
        found = asyncio.run(probe_models(config, Keys()))
    assert found["ant"].startswith("openai has no model 'bee'")
    assert found["ant"].endswith("correct role_parameters.judge.model")
    assert [model.roles for model in models_needed(config, ("evaluation",))] == [("judge",)]


def test_estimates_are_by_the_price_of_each_role(tmp_path: Path) -> None:
    config = load(tmp_path, openai())
    found = static_estimate(config)
    per_call = {"gpt-4o": (350 * 2.5 + 250 * 10) / 1e6, "gpt-4o-mini": (200 * 0.15 + 180 * 0.6) / 1e6}
    per_call["gpt-4.1"] = (600 * 2 + 100 * 8) / 1e6
    parts = found["per_model"]["ant"]["models"]
    assert {name: part["roles"] for name, part in parts.items()} == {
        "gpt-4o": ["teacher"],
        "gpt-4o-mini": ["student"],
        "gpt-4.1": ["judge"],
    }
    calls = {name: part["estimated_calls"] for name, part in parts.items()}
    assert calls == {"gpt-4o": 3, "gpt-4o-mini": 3, "gpt-4.1": 6}
    assert found["total_cost_usd"] == pytest.approx(
        sum(calls[name] * cost for name, cost in per_call.items()), abs=1e-4
    )
    assert found["assumptions"]["price_table"]["gpt-4.1"] == [2, 8]
    assert "ant: gpt-4.1" in estimate_text(found)
    assert "gpt-4o (teacher), gpt-4o-mini (student), gpt-4.1 (judge)" in plan_text(config, remaining(config))
    assert all(f">{name}<" in description_page(config) for name in per_call)


def test_a_batch_job_holds_the_model_of_its_role_at_its_price(tmp_path: Path) -> None:
    with BatchServer() as server:
        entry = batched(server, name="ant", role_parameters=BY_ROLE)
        assert coeval("run", "--config", batch_config(tmp_path, [entry])) == 0
    assert [{body["model"] for _, body in job.requests} for job in server.jobs] == [
        {"ant"},
        {"gpt-4o-mini"},
        {"gpt-4.1"},
    ]
    usage = records(run_of(tmp_path), "response_collection")[0]["usage"]
    assert usage["cost_usd"] == pytest.approx(0.5 * (100 * 0.15 + 10 * 0.6) / 1e6)


def test_a_model_is_missing_only_where_a_role_lacks_it(tmp_path: Path) -> None:
    each = {role: {"model": f"m-{role}"} for role in ("teacher", "student")}
    assert mistakes(tmp_path, model(interface="groq", role_parameters=each)) == []
    [line] = mistakes(tmp_path, model(interface="groq", role_parameters={"student": {"model": "m"}}))
    assert "parameters.model: is missing" in line
