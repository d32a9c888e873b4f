"""Experiments and shadow policies of a running router, and their comparison by its log."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from p2l.common.errors import ConfigError
from route import compare_policies
from route.config import load_config
from route.observability.logs import set_up_logs
from tests.route.router_helpers import KEY, Endpoint, a_router, served

SPLIT = {"policies": {"now": {"share": 1}, "cheap": {"share": 1, "models": ["poor"]}}}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What the router writes to standard error."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    set_up_logs(stream)
    yield stream
    root.handlers[:], root.level = handlers, level


def requests_in(log: io.StringIO) -> list[dict[str, Any]]:
    for handler in logging.getLogger().handlers:
        handler.flush()
    events = [json.loads(line) for line in log.getvalue().splitlines()]
    return [event for event in events if event["event"] == "request"]


def said(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"question {number}"}]


def test_conversations_are_split_and_each_keeps_its_policy(tmp_path: Path, log: io.StringIO) -> None:
    async def main() -> dict[str, int]:
        async with a_router(tmp_path, experiments={"thrift": SPLIT}) as router:
            for number in range(40):
                first = await router.ask(said(number))
                answer = {"role": "assistant", "content": first.choices[0].message.content}
                await router.ask([*said(number), answer, {"role": "user", "content": "and then?"}])
            return router.counts()

    counts = asyncio.run(main())
    assert counts["fair"] == 0
    assert 20 <= counts["poor"] <= 60  # of 80, half of which are expected
    assert counts["poor"] % 2 == 0  # both turns of a conversation
    trials = [request["trial"] for request in requests_in(log)]
    for trial, request in zip(trials, requests_in(log), strict=True):
        assert trial["chances"] == {"now": {"good": 1.0}, "cheap": {"poor": 1.0}}
        assert request["model"] == {"now": "good", "cheap": "poor"}[trial["policy"]]
    assert all(first["unit"] == second["unit"] for first, second in zip(trials[::2], trials[1::2], strict=True))


def test_a_policy_may_have_a_budget_and_an_optimizer_but_the_budget_of_a_client_goes_first(
    tmp_path: Path, log: io.StringIO
) -> None:
    policies = {"now": {"share": 1e-9}, "thrifty": {"share": 1, "budget": 1.5, "cost_optimizer": "simple-lp"}}

    async def main() -> None:
        async with a_router(tmp_path, experiments={"e": {"policies": policies}}) as router:
            await router.ask(said(1))
            await router.ask(said(1), extra_body={"cost": 3.0})

    asyncio.run(main())
    of_policy, of_client = (request["trial"]["chances"] for request in requests_in(log))
    assert of_policy["now"] == {"good": 1.0}
    assert of_policy["thrifty"] == {"poor": 0.5, "fair": 0.5} or of_policy["thrifty"] == {"poor": 0.75, "good": 0.25}
    assert of_client == {"now": {"good": 1.0}, "thrifty": {"good": 1.0}}


def test_an_experiment_is_of_its_keys_and_until_its_end(tmp_path: Path, log: io.StringIO) -> None:
    async def main() -> None:
        keys = [{"key": "client-key-of-a-team", "name": "team"}]
        only = {**SPLIT, "keys": ["team"]}
        past = {**SPLIT, "ends": "2020-01-01T00:00:00Z"}
        async with a_router(tmp_path, keys=keys, experiments={"past": past, "only": only}) as router:
            body = {"messages": said(1)}
            for key in (KEY, "client-key-of-a-team"):
                await router.post("/v1/chat/completions", body, {"authorization": f"Bearer {key}"})

    asyncio.run(main())
    outsider, member = requests_in(log)
    assert "trial" not in outsider
    assert member["trial"]["experiment"] == "only"


def test_a_shadow_answers_unseen_at_the_cost_of_its_key_and_writes_pairs_for_a_judge(
    tmp_path: Path, log: io.StringIO
) -> None:
    async def main() -> None:
        shadow = {"share": 1.0, "models": ["poor"], "key": "shadow", "pairs": "pairs.jsonl"}
        keys = [{"key": "key-of-the-shadow", "name": "shadow", "spend_per_day": 2.5}]
        async with a_router(tmp_path, keys=keys, shadow=shadow) as router:
            for number in range(4):
                stream = await router.ask(said(number), stream=True)
                text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
                assert text == "I am good"
                while router.service.finishing:
                    await asyncio.sleep(0.01)
            assert router.counts() == {"good": 4, "fair": 0, "poor": 2}  # its budget buys two answers of cost 1

    asyncio.run(main())
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert (tmp_path / "pairs.jsonl").stat().st_mode & 0o777 == 0o600
    assert [row["prompt"] for row in rows] == ["question 0", "question 1"]
    for row in rows:
        answers = {row["model_a"]: row["response_a"], row["model_b"]: row["response_b"]}
        assert answers == {"good": "I am good", "poor": "I am poor"}
    records = requests_in(log)
    shown = [record for record in records if record["key"] != "shadow"]
    assert [record["trial"]["unseen"] for record in shown] == ["poor"] * 4
    assert [record["request_id"] for record in shown][:2] == [row["question_id"] for row in rows]
    assert [record.get("code") for record in records if record["key"] == "shadow"][2:] == ["insufficient_quota"] * 2


def test_the_command_compares_them_by_the_log(
    tmp_path: Path, log: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with a_router(tmp_path, experiments={"thrift": SPLIT}) as router:
            for number in range(120):
                answer = await router.client.chat.completions.with_raw_response.create(model="-", messages=said(number))
                thumbs = "down" if answer.headers["x-p2l-model"] == "poor" else "up"
                vote = {"request_id": answer.headers["x-request-id"], "thumbs": thumbs}
                assert (await router.post("/v1/feedback", vote))[0] == 200

    asyncio.run(main())
    requests_in(log)
    path, figures = tmp_path / "router.log", tmp_path / "figures.json"
    path.write_text(f"uvicorn is up\n{log.getvalue()}" + '{"event": "request", "trial"', encoding="utf-8")
    compare_policies.main([str(path), "--json", str(figures), "--html", str(tmp_path / "page.html")])
    text = capsys.readouterr().out
    assert text.startswith("Decided: cheap is worse than now, ")
    assert "in share of thumbs up" in text
    rows = json.loads(figures.read_text())
    assert "cheap" in json.dumps(rows)
    assert "Decided: cheap is worse than now" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"experiments": {"e": {"policies": {"a": {"share": 1}}}}}, "experiments.e.policies"),
        (
            {"experiments": {"e": {"policies": {"a": {"share": 1}, "shadow": {"share": 1}}}}},
            "is the name of the shadow",
        ),
        ({"experiments": {"e": {**SPLIT, "keys": ["nobody"]}}}, "no key of 'keys' has the name 'nobody'"),
        ({"shadow": {"share": 0.5, "models": ["god"]}}, "did you mean 'good'"),
        ({"shadow": {"share": 0.5, "key": "shadow"}}, "go together"),
        ({"shadow": {"share": 2}}, "shadow.share"),
    ],
)
def test_a_mistake_names_its_place(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    import yaml

    models = {
        "good": {"name": "m", "type": "openai", "cost": 1.0},
        "poor": {"name": "m", "type": "openai", "cost": 1.0},
    }
    path = tmp_path / "router.yaml"
    path.write_text(yaml.safe_dump({"model_configs": models, **changes}), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")


def test_a_log_without_trials_is_one_line(tmp_path: Path) -> None:
    from p2l.common.errors import InputError

    path = tmp_path / "router.log"
    path.write_text('{"event": "request", "request_id": "r"}\n', encoding="utf-8")
    with pytest.raises(InputError, match="no request of an experiment or a shadow"):
        compare_policies.main([str(path)])


def test_a_policy_may_have_another_p2l(tmp_path: Path, log: io.StringIO) -> None:
    async def main() -> None:
        other = Endpoint({"good": 0.0, "fair": 3.0, "poor": 1.0})
        async with served(other.application()) as url:
            newer = {"share": 1, "p2l": url, "p2l_api_key": "key-of-the-other"}
            policies = {"now": {"share": 1e-9}, "newer": newer}
            async with a_router(tmp_path, experiments={"e": {"policies": policies}}) as router:
                assert "key-of-the-other" not in repr(router.service.config)
                answer = await router.ask(said(1))
                assert answer.model == "fair"
                other.pause = 10.0
                router.service.config.__dict__["score_timeout_ms"] = 50.0
                await router.ask(said(2))
        assert other.headers[0]["api-key"] == "key-of-the-other"

    asyncio.run(main())
    scored, blind = (request["trial"] for request in requests_in(log))
    assert scored["chances"] == {"now": {"good": 1.0}, "newer": {"fair": 1.0}}
    assert blind["blind"] == ["newer"]
