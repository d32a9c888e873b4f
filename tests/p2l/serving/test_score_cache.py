"""Answers in Redis: what comes back is what was stored, or nothing."""

import asyncio
import os
import time
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2l.common.errors import ConfigError
from p2l.inference import P2L
from p2l.serving.score_cache import Answer, Form, ScoreCache, pack, unpack
from tests.conftest import free_port

REDIS = os.environ.get("P2L_TEST_REDIS", "redis://127.0.0.1:6379/0")
NUMBERS = st.floats(-100, 100, width=32)


@given(
    coefs=st.lists(NUMBERS, min_size=1, max_size=5),
    eta=st.none() | NUMBERS,
    gamma=st.none() | NUMBERS,
    truncated=st.booleans(),
    variances=st.none() | st.lists(NUMBERS, min_size=1, max_size=5),
    familiarity=st.none() | st.floats(0, 1, width=32),
)
def test_an_answer_comes_back_as_it_was(coefs, eta, gamma, truncated, variances, familiarity):
    of_posterior = None if variances is None else array("f", variances)
    answer = Answer(array("f", coefs), eta, gamma, truncated, "revision", of_posterior, familiarity)
    assert unpack(pack(answer), "revision", Form(len(coefs), len(variances or ()))) == answer


@given(block=st.binary(max_size=80))
def test_any_bytes_are_an_answer_or_none(block):
    answer = unpack(block, "revision", Form(2, 0))
    assert answer is None or len(answer.coefs) == 2


def test_what_is_no_answer_of_this_model_is_not_believed():
    block = pack(Answer(array("f", [1, 2]), 0.5, None, False, "revision"))
    assert unpack(block, "revision", Form(2, 0)) is not None
    for form in (Form(3, 0), Form(1, 1), Form(2, 1)):
        assert unpack(block, "revision", form) is None
    for other in (b"", block[:-1], b"x" + block[1:], block[:-4] + b"\xff" * 4):
        assert unpack(other, "revision", Form(2, 0)) is None


def test_without_redis_answers_go_on(model: P2L, caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> float:
        cache = ScoreCache(f"redis://:secret@127.0.0.1:{free_port()}/0")
        started = time.monotonic()
        for _ in range(50):
            assert await cache.get(model, [b"prompt"]) == {}
            cache.put({b"prompt": Answer(array("f", [1, 2, 3, 4]), None, None, False, "r")})
        await cache.close()
        return time.monotonic() - started

    asyncio.run(ask())
    assert sum("the score cache is away" in record.getMessage() for record in caplog.records) == 1
    assert "secret" not in caplog.text


def test_what_is_no_redis_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigError, match="not the URL of a Redis server") as error:
        ScoreCache("http://user:secret@127.0.0.1/0")
    assert "secret" not in str(error.value)


def test_services_with_another_key_or_precision_share_nothing(model: P2L) -> None:
    answer = Answer(array("f", [1, 2, 3, 4]), 0.5, None, False, model.revision)
    prompt = os.urandom(20)

    async def ask() -> list[bool]:
        caches = [
            ScoreCache(REDIS, secret, dtype) for secret, dtype in (("a", "x"), ("a", "x"), ("b", "x"), ("a", "y"))
        ]
        first = caches[0]
        try:
            await first._redis.ping()
        except Exception:
            pytest.skip("no Redis here: make services")
        first.put({prompt: answer})
        await asyncio.gather(*first._tasks)
        try:
            return [(await cache.get(model, [prompt])).get(prompt) == answer for cache in caches]
        finally:
            for cache in caches:
                await cache.close()

    assert asyncio.run(ask()) == [True, True, False, False]
