"""Very many messages that are kept as JSON are the list that they were, of which few exist at a time."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2l.common import long_texts
from p2l.common.long_texts import dumps
from route.providers import plain_messages
from route.providers.chat import for_another_model, renamed, with_tool_ids
from route.providers.plain_messages import MessagesDecoder, PlainMessages, has_role

ROLES = st.sampled_from(["user", "assistant", "tool"])
MESSAGES = st.lists(st.fixed_dictionaries({"role": ROLES, "content": st.text(max_size=60)}), min_size=1, max_size=20)


def kept(messages: list[Any], monkeypatch: pytest.MonkeyPatch, **form: Any) -> Any:
    """Return the messages of a request, as they are kept where 30 characters of JSON are long."""
    for module in (long_texts, plain_messages):
        monkeypatch.setattr(module, "AT_ONCE", 30)
    return MessagesDecoder().decode(json.dumps({"model": "m", "messages": messages, "n": 1}, **form))["messages"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    messages=MESSAGES,
    at=st.integers(-20, 20),
    to=st.integers(-20, 20),
    is_ascii=st.booleans(),
    indent=st.none() | st.just(1),
)
def test_what_is_kept_as_json_is_the_list(
    messages: list[Any], at: int, to: int, is_ascii: bool, indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = kept(messages, monkeypatch, ensure_ascii=is_ascii, indent=indent)
    assert isinstance(same, PlainMessages)
    assert len(same) == len(messages)
    assert list(same) == messages
    assert list(reversed(same)) == messages[::-1]
    assert same[at:to] == messages[at:to]
    assert same[at % len(messages)] == messages[at % len(messages)]
    assert same[-1] == messages[-1]
    assert json.loads(dumps({"messages": same})) == {"messages": messages}
    turns = [message["content"] for message in messages if message["role"] == "user"] or [""]
    assert [*same.turns] == turns
    assert [*same.turns[at:to]] == turns[at:to]
    assert (len(same.turns), same.turns[-1]) == (len(turns), turns[-1])
    for change in (
        lambda request: renamed(request, {"tool": "function"}),
        lambda request: for_another_model(request, ()),
        lambda request: with_tool_ids(request, "usual"),
    ):
        assert list(change({"messages": same})["messages"]) == change({"messages": messages})["messages"]


@pytest.mark.parametrize("other", [{"role": "user"}, {"role": "user", "content": None}, ["role", "content"], "role", 1])
@pytest.mark.parametrize("place", [0, 5, 10])
def test_messages_that_are_not_all_plain_are_read_at_once(
    other: Any, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[Any] = [{"role": "user", "content": str(number)} for number in range(10)]
    messages.insert(place, other)
    assert kept(messages, monkeypatch) == messages


def test_no_other_field_is_kept_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (long_texts, plain_messages):
        monkeypatch.setattr(module, "AT_ONCE", 30)
    plain = [{"role": "user", "content": "x" * number} for number in range(50)]
    request = {"prompt": plain, "tools": [{"messages": plain}], "messages": [{"role": "user", "content": plain}]}
    for each in (request, plain, "messages", {"messages": []}):
        assert MessagesDecoder().decode(json.dumps(each)) == each


def test_as_many_roles_as_no_api_has_are_no_plain_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [{"role": str(number), "content": ""} for number in range(100)]
    assert kept(messages, monkeypatch) == messages


@pytest.mark.parametrize("messages", [None, "user", [], [{"role": "tool"}, 1], [{"role": []}]])
def test_messages_of_any_form_have_roles_or_none(messages: Any) -> None:
    assert has_role(messages, "tool", "user") is (messages == [{"role": "tool"}, 1])


def test_a_hundred_thousand_messages_take_the_memory_of_their_json() -> None:
    """So many dictionaries would leave the allocator with memory that it cannot give back."""
    text = json.dumps({"messages": [{"role": "user", "content": str(number)} for number in range(100_000)]})
    tracemalloc.start()
    try:
        request = MessagesDecoder().decode(text)
        written = dumps(request)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(written) == len(text)
    assert held < 1.1 * len(text)
    assert most < 5 * len(text)
