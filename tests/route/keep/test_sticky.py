"""Conversations keep their models: here, in other workers, after a restart, and not for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from route.keep.conversations import KEPT_SECONDS, Sticky, conversation_of, goes_on
from tests.route.keep.ledger_helpers import Clock, database
from tests.route.keep.stores import every_database


def chat(*messages: tuple[str, Any], user: str | None = None) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in messages], "user": user}


async def model_of(sticky: Sticky, conversation: str) -> str | None:
    last = await sticky.last_of(conversation)
    return last and last.model


FIRST = chat(("system", "Be brief."), ("user", "Hello"))
SECOND = chat(("system", "Be brief."), ("user", "Hello"), ("assistant", "Hi"), ("user", "Who are you?"))


def test_later_turns_are_of_the_conversation_that_began_alike() -> None:
    assert conversation_of(FIRST, key="k") == conversation_of(SECOND, key="k")
    assert not goes_on(FIRST)
    assert goes_on(SECOND)


def test_what_begins_otherwise_is_another_conversation() -> None:
    others = [
        conversation_of(FIRST, key="another"),
        conversation_of({**FIRST, "user": "someone"}, key="k"),
        conversation_of(chat(("user", "Hello")), key="k"),
        conversation_of(chat(("system", "Be brief."), ("user", "Hello!")), key="k"),
        conversation_of(FIRST, key="k", header="a"),
        conversation_of(FIRST, key="k", header="b"),
    ]
    assert len({conversation_of(FIRST, key="k"), *others}) == 7


def test_the_header_names_a_conversation_whatever_is_said() -> None:
    assert conversation_of(FIRST, key="k", header="a") == conversation_of(chat(("user", "Bye")), key="k", header="a")
    assert goes_on(FIRST, header="a")


def test_images_tell_no_conversations_apart_and_texts_do() -> None:
    def seen(text: str, url: str) -> str:
        parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]
        return conversation_of(chat(("user", parts)), key="k")

    assert seen("Look", "data:1") == seen("Look", "data:2")
    assert seen("Look", "data:1") != seen("See", "data:1")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
messages = st.lists(
    json_values | st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "tool"]), "content": json_values})
)


@given(body=st.fixed_dictionaries({"messages": messages, "user": json_values}))
def test_any_json_is_of_some_conversation(body: dict[str, Any]) -> None:
    assert len(conversation_of(body, key="k")) == 32
    assert goes_on(body) is False


@every_database
def test_a_conversation_keeps_its_model_in_every_worker_and_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "router.sqlite"
        async with database(path) as one, database(path) as two:
            here, there = Sticky(one), Sticky(two)
            await here.start()
            await there.start()
            assert await model_of(here, "c") is None
            here.remember("c", "ant")
            assert await model_of(here, "c") == "ant"
            assert await one.flush()
            assert await model_of(there, "c") == "ant"
            here.remember("c", "bee")
            assert await model_of(here, "c") == "bee"
        async with database(path) as again:
            assert await model_of(Sticky(again), "c") == "bee"

    asyncio.run(main())


@every_database
def test_what_was_not_used_for_a_day_is_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        path, clock = tmp_path / "router.sqlite", Clock()
        async with database(path) as opened:
            sticky = Sticky(opened, clock=clock, capacity=1)
            await sticky.start()
            sticky.remember("old", "ant")
            await opened.flush()
            clock.now += KEPT_SECONDS + 1
            sticky.remember("new", "bee")
            assert await model_of(sticky, "old") is None
            await opened.flush()
            [count] = await opened.read(
                lambda connection: connection.execute("SELECT count(*) FROM conversations").fetchone()
            )
            assert count == 1

    asyncio.run(main())


def test_memory_is_bounded_and_the_file_remembers_the_rest() -> None:
    async def main() -> None:
        async with database() as opened:
            sticky = Sticky(opened, capacity=10)
            await sticky.start()
            for number in range(30):
                sticky.remember(str(number), "ant")
                await opened.flush()
            assert await model_of(sticky, "0") == "ant"
            assert len(sticky._last) == 10

    asyncio.run(main())
