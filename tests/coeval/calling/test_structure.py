"""Verdicts in a form that is asked for: where a model refuses it, it is asked without, and that is said."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from coeval.calling.caller import Caller
from coeval.calling.calls import Reply
from coeval.mock.server import MockServer
from tests.coeval.calling.calling_helpers import call, caller_of, model_at, run
from tests.coeval.helpers import STATIC_TASK, coeval, model, records, run_of, write_config

SCHEMA = {"type": "object", "properties": {"clarity": {"type": "string"}}}


def asked_in_turn(folder: Path, server: MockServer, number: int) -> list[Any]:
    """Replies, or errors, of a judge that is asked for a verdict so many times."""

    async def work(caller: Caller) -> list[Any]:
        asked = model_at(server.url)
        found: list[Any] = []
        for place in range(number):
            found += await asyncio.gather(
                caller.ask(call(asked, f"Hello {place}", role="judge", schema=SCHEMA)), return_exceptions=True
            )
        return found

    found: list[Any] = run(work, caller_of(folder))
    return found


def test_a_model_that_refuses_a_form_is_asked_without_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer(failures=[400]) as server:
        found = asked_in_turn(tmp_path, server, 3)
    assert all(isinstance(reply, Reply) for reply in found)
    assert ["response_format" in body for body in server.bodies] == [True, False, False, False]
    said = capsys.readouterr().err
    assert said.count("ant: it refuses a JSON schema or a tool for its verdicts") == 1


def test_a_form_that_the_user_asks_for_is_never_taken_out(tmp_path: Path) -> None:
    own = {"type": "json_object"}

    async def work(caller: Caller) -> list[Any]:
        asked = model_at(server.url, response_format=own)
        return [*await asyncio.gather(caller.ask(call(asked, role="judge", schema=SCHEMA)), return_exceptions=True)]

    with MockServer(failures=[400, 400]) as server:
        [refused] = run(work, caller_of(tmp_path))
    assert not isinstance(refused, Reply)
    assert [body["response_format"] for body in server.bodies] == [own]


def test_a_refusal_of_something_else_is_no_refusal_of_the_form(tmp_path: Path) -> None:
    with MockServer(failures=[400, 400]) as server:
        found = asked_in_turn(tmp_path, server, 2)
    assert [isinstance(reply, Reply) for reply in found] == [False, True]
    assert ["response_format" in body for body in server.bodies] == [True, False, True]


def forms_of(folder: Path, task: dict[str, Any]) -> list[Any]:
    """The forms that the judge of a run is asked for."""
    with MockServer() as server:
        models = [model("ant", roles=["teacher", "student"]), model("bee", roles=["student"])]
        models.append(model("cow", server, roles=["judge"]))
        assert coeval("run", "--config", write_config(folder, models, [{**STATIC_TASK, **task}])) == 0
        assert all("messages" in body for body in server.bodies)
        return [body.get("response_format") for body in server.bodies]


def test_judges_are_asked_for_the_form_that_their_prompt_describes(tmp_path: Path) -> None:
    forms = forms_of(tmp_path, {"scale": "1-5", "rationale": True})
    schema = forms[0]["json_schema"]["schema"]
    assert list(schema["properties"]) == ["rationale", "scores"]
    grades = schema["properties"]["scores"]["properties"]
    assert grades == {name: {"type": "integer", "enum": [1, 2, 3, 4, 5]} for name in ("clarity", "tone")}
    assert all(form == forms[0] for form in forms)
    assert all(record["scores"] for record in records(run_of(tmp_path), "evaluation"))


@pytest.mark.parametrize(
    "task",
    [
        {"evaluation_mode": "per_factor"},
        {"evaluation_mode": "pairwise"},
        {
            "prompt_library": {
                "evaluate_single": "{input} {response} {rubric} Reply with a JSON object: factor to grade."
            }
        },
    ],
    ids=["a word", "a pair", "a prompt of one's own"],
)
def test_a_prompt_that_describes_no_form_goes_without(tmp_path: Path, task: dict[str, Any]) -> None:
    forms = forms_of(tmp_path, task) if "prompt_library" not in task else forms_of_own(tmp_path, task)
    assert forms
    assert not any(forms)


def forms_of_own(folder: Path, task: dict[str, Any]) -> list[Any]:
    """The same with a prompt that the mock model does not know, whose run therefore ends without scores."""
    with MockServer() as server:
        models = [model("ant", roles=["teacher", "student"]), model("cow", server, roles=["judge"])]
        coeval("run", "--config", write_config(folder, models, [{**STATIC_TASK, **task}]))
        return [body.get("response_format") for body in server.bodies]


def test_pairs_with_a_rationale_have_a_form(tmp_path: Path) -> None:
    forms = forms_of(tmp_path, {"evaluation_mode": "pairwise", "rationale": True})
    assert {json.dumps(form["json_schema"]["schema"]["properties"]["verdict"]) for form in forms} == {
        '{"type": "string", "enum": ["A", "B", "TIE", "BAD"]}'
    }
