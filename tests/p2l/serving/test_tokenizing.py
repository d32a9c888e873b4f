import asyncio
import threading

import numpy as np
import pytest

from p2l.common.errors import InputError
from p2l.serving.tokenizing import GroupTokenizer


def run(test):
    asyncio.run(asyncio.wait_for(test, 120))


@pytest.mark.parametrize("threads", [1, 2])
def test_each_request_gets_its_own_encodings(model, threads):
    async def test():
        tokenizer = GroupTokenizer(threads)
        requests = [[[f"request {number}"], ["of", "two turns"]][: 1 + number % 2] for number in range(150)]
        requests.append([["long " * 30_000]])
        found = await asyncio.gather(*(tokenizer.encode(model, prompts) for prompts in requests))
        for prompts, encoded in zip(requests, found, strict=True):
            for one, expected in zip(encoded, model.encode(prompts), strict=True):
                assert np.array_equal(one.encodings[0].ids, expected.encodings[0].ids)
        tokenizer.close()

    run(test())


def test_a_request_that_cannot_be_encoded_harms_no_other(model):
    async def test():
        tokenizer = GroupTokenizer(1)
        prompts = [[["good"]], [[]], [["good too"]], [[]]]
        found = await asyncio.gather(*(tokenizer.encode(model, each) for each in prompts), return_exceptions=True)
        assert [isinstance(each, InputError) for each in found] == [False, True, False, True]
        tokenizer.close()

    run(test())


def test_a_request_that_is_given_up_holds_nothing_up(model):
    async def test():
        tokenizer = GroupTokenizer(1)
        asking = [asyncio.ensure_future(tokenizer.encode(model, [[f"prompt {number}"]])) for number in range(20)]
        await asyncio.sleep(0)
        for each in asking[::2]:
            each.cancel()
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(each, list) for each in found[1::2])
        tokenizer.close()

    run(test())


def test_long_requests_leave_a_thread_for_short_ones(model):
    opened, encode = threading.Event(), model.encode

    def slow(prompts):
        assert len(prompts[0][0]) < 1000 or opened.wait(60)
        return encode(prompts)

    model.encode = slow

    async def test():
        tokenizer = GroupTokenizer(2)
        long = [asyncio.ensure_future(tokenizer.encode(model, [["long " * 30_000]])) for _ in range(3)]
        assert len(await tokenizer.encode(model, [["short"]])) == 1
        assert not any(each.done() for each in long)
        opened.set()
        assert len(await asyncio.gather(*long)) == 3
        tokenizer.close()

    run(test())
