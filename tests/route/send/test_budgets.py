"""Budgets beside those of keys and teams: by month, end user and tag, held at once and after restarts."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from p2l.common.errors import ConfigError
from route.config import load_config
from route.keep.accounts import Budget, Labels, last_day_of_month, payers_of
from route.providers.base import JSON
from tests.route.router_helpers import Running, a_router

DAY = 86_400
BODY: JSON = {"messages": [{"role": "user", "content": "hi"}]}


def run(folder: Path, budgets: list[JSON], use: Any, **more: Any) -> None:
    async def main() -> None:
        async with a_router(folder, budgets=budgets, **more) as router:
            await use(router)

    asyncio.run(main())


async def ask(
    router: Running, body: JSON = BODY, path: str = "/v1/chat/completions", **headers: str
) -> tuple[int, Any]:
    """Status and body; an answer costs 3."""
    status, told, _ = await router.post(path, body, {name.replace("_", "-"): text for name, text in headers.items()})
    return status, told


def test_each_end_user_has_a_day_of_their_own(tmp_path: Path) -> None:
    async def use(router: Running) -> None:
        asked = [await ask(router, x_p2l_user=user) for user in ("ann", "ann", "ann", "bob")]
        assert [status for status, _ in asked] == [200, 200, 429, 200]
        error = asked[2][1]["error"]
        assert error["code"] == "insufficient_quota"
        assert error["message"].startswith("what is left of user 'ann'")
        # As each dialect names them.
        assert (await ask(router, {**BODY, "user": "ann"}))[0] == 429
        assert (await ask(router, {**BODY, "safety_identifier": "ann"}))[0] == 429
        message = {**BODY, "max_tokens": 9, "metadata": {"user_id": "ann"}}
        assert (await ask(router, message, "/v1/messages"))[0] == 429
        assert (await ask(router, {"input": "hi", "user": "ann"}, "/v1/responses"))[0] == 429
        assert (await ask(router, {"input": "hi", "user": "eve"}, "/v1/responses"))[0] == 200

    run(tmp_path, [{"by": "user", "spend_per_day": 7}], use)


def test_requests_that_name_nobody_share_one_account(tmp_path: Path) -> None:
    async def use(router: Running) -> None:
        assert [(await ask(router))[0] for _ in range(3)] == [200, 200, 429]
        assert (await ask(router, x_p2l_user="ann"))[0] == 200

    run(tmp_path, [{"by": "user", "spend_per_day": 7}], use)


def test_an_end_user_counts_within_the_key_that_names_them(tmp_path: Path) -> None:
    async def use(router: Running) -> None:
        for key, expected in (("first-key-of-two", [200, 429]), ("second-key-of-two", [200, 429])):
            authorization = f"Bearer {key}"
            asked = [await ask(router, authorization=authorization, x_p2l_user="ann") for _ in range(2)]
            assert [status for status, _ in asked] == expected

    keys = [{"key": "first-key-of-two", "name": "one"}, {"key": "second-key-of-two", "name": "two"}]
    run(tmp_path, [{"by": "user", "spend_per_day": 4}], use, keys=keys)


def test_a_tag_counts_for_all_keys_and_one_value_may_have_less(tmp_path: Path) -> None:
    async def use(router: Running) -> None:
        assert [(await ask(router, x_p2l_tags="project=a, env=x"))[0] for _ in range(2)] == [200, 429]
        second = {"authorization": "Bearer second-key-of-two", "x-p2l-tags": "project=a"}
        status, _, _ = await router.post("/v1/chat/completions", BODY, second)
        assert status == 429
        assert [(await ask(router, x_p2l_tags="project=b"))[0] for _ in range(4)] == [200, 200, 200, 429]

    budgets = [
        {"by": "tag:project", "spend_per_month": 10},
        {"by": "tag:project", "of": "a", "spend_per_day": 4},
    ]
    run(tmp_path, budgets, use, keys=[{"key": "second-key-of-two", "name": "two"}])


def test_a_month_of_a_key_and_a_team_goes_on_after_a_restart(tmp_path: Path) -> None:
    budgets = [{"by": "key", "of": "one", "spend_per_month": 4}, {"by": "team", "spend_per_month": 10}]
    keys = [{"key": f"key-{name}-of-a-team", "name": name, "team": "t"} for name in ("one", "two")]
    more: JSON = {"keys": keys, "teams": {"t": {"spend_per_day": 1000}}, "database": str(tmp_path / "router.sqlite")}

    async def first(router: Running) -> None:
        asked = [await ask(router, authorization="Bearer key-one-of-a-team") for _ in range(2)]
        assert [status for status, _ in asked] == [200, 429]
        assert "a month" in asked[1][1]["error"]["message"]

    async def second(router: Running) -> None:
        assert (await ask(router, authorization="Bearer key-one-of-a-team"))[0] == 429
        two = [(await ask(router, authorization="Bearer key-two-of-a-team"))[0] for _ in range(3)]
        assert two == [200, 200, 429]

    run(tmp_path, budgets, first, **more)
    run(tmp_path, budgets, second, **more)


def test_many_requests_at_once_spend_no_more(tmp_path: Path) -> None:
    async def use(router: Running) -> None:
        asked = await asyncio.gather(*(ask(router, x_p2l_tags="project=a") for _ in range(12)))
        assert sorted(status for status, _ in asked) == [200] * 3 + [429] * 9

    run(tmp_path, [{"by": "tag:project", "spend_per_month": 10}], use, scripts={"good": {"latency": 0.05}})


@pytest.mark.parametrize(
    "headers",
    [{"x_p2l_tags": "project"}, {"x_p2l_tags": "=a"}, {"x_p2l_tags": "a=" + "b" * 101}, {"x_p2l_user": "u" * 101}],
)
def test_malformed_labels_are_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    async def use(router: Running) -> None:
        status, told = await ask(router, **headers)
        assert (status, told["error"]["code"]) == (400, "invalid_value")

    run(tmp_path, [], use)


@pytest.mark.parametrize(
    ("budget", "problem"),
    [
        ("{by: colour, spend_per_day: 1}", "must be key, team, user or tag:NAME"),
        ("{by: 'tag:', spend_per_day: 1}", "must be key, team, user or tag:NAME"),
        ("{by: user}", "has no limit; add spend_per_day or spend_per_month"),
        ("{by: user, spend_per_month: -1}", "greater than or equal to 0"),
        ("{by: team, of: nobody, spend_per_day: 1}", "no team 'nobody' in teams"),
    ],
)
def test_a_wrong_budget_is_refused_with_its_line(tmp_path: Path, budget: str, problem: str) -> None:
    path = tmp_path / "router.yaml"
    path.write_text(
        f"model_configs:\n  m: {{name: m, type: mock, cost: 1}}\nbudgets:\n  - {budget}\n", encoding="utf-8"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert "router.yaml:4" in str(caught.value)
    assert problem in str(caught.value)


def test_of_two_budgets_of_one_account_the_least_holds(tmp_path: Path) -> None:
    async def use(router: Running) -> None:
        assert [(await ask(router, x_p2l_user="ann"))[0] for _ in range(3)] == [200, 200, 429]
        assert [(await ask(router, x_p2l_user="bob"))[0] for _ in range(2)] == [200, 429]

    run(tmp_path, [{"by": "user", "spend_per_day": 7}, {"by": "user", "of": "bob", "spend_per_day": 4}], use)


def test_months_end_with_their_last_day() -> None:
    for year, month, last in ((2024, 2, 29), (2025, 2, 28), (2026, 12, 31), (2026, 11, 30)):
        for day in (1, last):
            at = datetime(year, month, day, 23, 59, tzinfo=timezone.utc).timestamp()
            end = datetime.fromtimestamp(last_day_of_month(int(at // DAY)) * DAY, timezone.utc)
            assert (end.year, end.month, end.day) == (year, month, last)
    now = datetime(2026, 12, 31, 23, 0, tzinfo=timezone.utc).timestamp()
    [payer] = payers_of([Budget("tag:a", spend_per_month=1)], "k", None, Labels(tags={"a": "b"}), now)
    assert payer.seconds_left == 3600
