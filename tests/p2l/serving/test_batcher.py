import asyncio
import threading
from contextlib import asynccontextmanager

import numpy as np
import pytest
import torch

from p2l.common.errors import InputError
from p2l.inference import P2L
from p2l.serving.batcher import Batcher, BatchLimits, BusyError, ModelFailedError, TooLargeError
from p2l.serving.metrics import Metrics

PROMPTS = [["what is 1 plus 2"], ["write a poem", "shorter"], [""], ["long " * 100]]


class Counting(Metrics):
    """The counters of a batcher, by the names that the tests use."""

    def __init__(self):
        super().__init__()
        self.batches = []
        observe = self.batch_prompts.observe

        def observed(prompts):
            self.batches.append(prompts)
            observe(prompts)

        self.batch_prompts.observe = observed

    def count(self, name):
        return self.registry.get_sample_value(name)

    hits = property(lambda self: self.count("p2l_cache_hits_total"))
    looked = property(lambda self: self.count("p2l_prompts_total"))
    cancelled = property(lambda self: self.count("p2l_dropped_total"))
    turned_away = property(lambda self: self.count("p2l_refused_total"))
    inside = property(lambda self: self.count("p2l_pending_prompts"))


class Gate:
    """Holds a model's forward passes back until it is opened."""

    def __init__(self, model):
        self._opened, self.reached, self.seen = threading.Event(), threading.Event(), []
        compute = model.answer

        def answer(encoded, **options):
            self.reached.set()
            assert self._opened.wait(60)
            self.seen.append(len(encoded))
            return compute(encoded, **options)

        model.answer = answer

    async def wait_until_reached(self):
        await asyncio.to_thread(self.reached.wait, 60)

    def open(self):
        self._opened.set()


@asynccontextmanager
async def running(model, **options):
    counting = Counting()
    limits = options.pop("limits", BatchLimits(tokens=1000, prompts=16, wait=0.0))
    batcher = Batcher(model, limits, counting, **options)
    try:
        yield batcher, counting
    finally:
        await batcher.close()
        assert counting.inside == 0


def run(test):
    asyncio.run(asyncio.wait_for(test, 120))


@pytest.mark.parametrize("streams", [0, 1, 2])
def test_answers_are_those_of_the_model(model, streams):
    async def test():
        limits = BatchLimits(tokens=1000, prompts=16, wait=0.0, streams=streams)
        async with running(model, limits=limits) as (batcher, _):
            answers = await batcher.ask(PROMPTS)
            said = model.predict(PROMPTS)
            for row, answer in enumerate(answers):
                np.testing.assert_allclose(answer.coefs, said.coefs[row], atol=1e-5)
                assert answer.eta == pytest.approx(float(said.eta[row]), abs=1e-5)
                assert answer.gamma is None
                assert answer.revision == model.revision
            assert [answer.truncated for answer in answers] == [False, False, False, True]

    run(test())


@pytest.mark.parametrize("streams", [0, 2])
def test_many_requests_at_once_each_get_their_own_answer(model, streams):
    async def test():
        prompts = [[f"what is {number} plus {number}"] for number in range(60)]
        said = model.predict(prompts)
        limits = BatchLimits(tokens=100, prompts=4, wait=0.0, threads=1, streams=streams)
        async with running(model, limits=limits) as (batcher, counting):
            found = await asyncio.gather(*(batcher.ask([prompt]) for prompt in prompts))
            for row, (answer,) in enumerate(found):
                np.testing.assert_allclose(answer.coefs, said.coefs[row], atol=1e-5)
            assert sum(counting.batches) == 60
            assert max(counting.batches) <= 4

    run(test())


def test_a_repeated_prompt_is_not_computed_again(model):
    async def test():
        async with running(model) as (batcher, counting):
            first = await batcher.ask(PROMPTS)
            computed = sum(counting.batches)
            assert await batcher.ask(PROMPTS) == first
            assert sum(counting.batches) == computed
            assert counting.hits == len(PROMPTS)

    run(test())


def test_the_cache_forgets_what_was_used_least_recently(model):
    async def test():
        async with running(model, cache_size=2) as (batcher, counting):
            for text in ("a", "b", "a", "c", "a", "b"):
                await batcher.ask([[text]])
            assert counting.hits == 2
            assert sum(counting.batches) == 4

    run(test())


def test_identical_prompts_in_flight_are_computed_once(model):
    async def test():
        gate = Gate(model)
        async with running(model) as (batcher, counting):
            asking = [asyncio.ensure_future(batcher.ask([["same"]])) for _ in range(5)]
            await gate.wait_until_reached()
            asking.append(asyncio.ensure_future(batcher.ask([["same"], ["same"]])))
            await asyncio.sleep(0.05)
            gate.open()
            answers = [answer for found in await asyncio.gather(*asking) for answer in found]
            assert len({tuple(answer.coefs) for answer in answers}) == 1
            assert counting.batches == [1]

    run(test())


def test_prompts_that_wait_together_share_a_forward_pass(model):
    async def test():
        gate = Gate(model)
        async with running(model) as (batcher, counting):
            first = asyncio.ensure_future(batcher.ask([["first"]]))
            await gate.wait_until_reached()
            rest = [asyncio.ensure_future(batcher.ask([[f"prompt {n}"]])) for n in range(6)]
            while batcher.pending < 7:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            gate.open()
            await asyncio.gather(first, *rest)
            assert counting.batches == [1, 6]

    run(test())


def test_a_request_that_cannot_be_encoded_harms_no_other(model):
    async def test():
        async with running(model) as (batcher, _):
            prompts = [[["good"]], [[]], [["good too"]], [[]]]
            outcomes = await asyncio.gather(*(batcher.ask(each) for each in prompts), return_exceptions=True)
            assert [isinstance(outcome, InputError) for outcome in outcomes] == [False, True, False, True]
            assert [len(outcomes[place]) for place in (0, 2)] == [1, 1]

    run(test())


def test_a_request_that_is_given_up_while_it_is_encoded_holds_nothing_up(model):
    async def test():
        reached, opened, encode = threading.Event(), threading.Event(), model.encode

        def slow(prompts):
            if "slow" in prompts[0]:
                reached.set()
                assert opened.wait(60)
            return encode(prompts)

        model.encode = slow
        async with running(model) as (batcher, counting):
            gone = asyncio.ensure_future(batcher.ask([["slow"]]))
            await asyncio.to_thread(reached.wait, 60)
            gone.cancel()
            assert (await batcher.ask([["quick"]]))[0].revision == model.revision
            opened.set()
            with pytest.raises(asyncio.CancelledError):
                await gone
            assert counting.batches == [1]

    run(test())


def test_a_full_queue_says_so_and_goes_on(model):
    async def test():
        gate = Gate(model)
        async with running(model, queue_size=2) as (batcher, counting):
            asking = [asyncio.ensure_future(batcher.ask([[f"prompt {n}"]])) for n in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(BusyError):
                await batcher.ask([["one too many"]])
            assert counting.turned_away == 1
            gate.open()
            await asyncio.gather(*asking)
            assert await batcher.ask([["one too many"]])

    run(test())


def test_a_request_that_is_given_up_costs_no_forward_pass(model):
    async def test():
        gate = Gate(model)
        async with running(model) as (batcher, counting):
            first = asyncio.ensure_future(batcher.ask([["first"]]))
            await gate.wait_until_reached()
            gone = asyncio.ensure_future(batcher.ask([["nobody waits for this"]]))
            shared = [asyncio.ensure_future(batcher.ask([["two wait for this"]])) for _ in range(2)]
            await asyncio.sleep(0.1)
            gone.cancel()
            shared[0].cancel()
            await asyncio.gather(gone, shared[0], return_exceptions=True)
            gate.open()
            await first
            assert (await shared[1])[0].revision == model.revision
            assert counting.cancelled == 1
            assert sum(gate.seen) == 2

    run(test())


def test_a_batch_beyond_the_memory_is_halved_and_the_service_lives_on(model):
    compute = model.answer

    def answer(encoded, **options):
        if sum(len(prompt.ids) for prompt in encoded) > 60:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return compute(encoded, **options)

    async def test():
        model.answer = answer
        async with running(model) as (batcher, _):
            prompts = [[f"prompt number {n}"] for n in range(8)]
            said = model.predict(prompts)
            for row, found in enumerate(await batcher.ask(prompts)):
                np.testing.assert_allclose(found.coefs, said.coefs[row], atol=1e-5)
            assert await batcher.ask([["after it"]])

    run(test())


def test_a_prompt_beyond_the_memory_is_its_senders_problem_alone(model):
    compute = model.answer

    def answer(encoded, **options):
        if max(len(prompt.ids) for prompt in encoded) > 40:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 TB")
        return compute(encoded, **options)

    async def test():
        model.answer = answer
        async with running(model) as (batcher, _):
            found = await asyncio.gather(
                batcher.ask([["short"]]),
                batcher.ask([["long " * 100]]),
                batcher.ask([["brief"]]),
                return_exceptions=True,
            )
            assert isinstance(found[1], TooLargeError)
            assert found[0][0].revision == found[2][0].revision == model.revision

    run(test())


def test_a_failing_forward_pass_is_an_error_without_the_prompt(model, caplog):
    def answer(*_, **__):
        raise RuntimeError("could not multiply 'my secret prompt'")

    async def test():
        model.answer = answer
        async with running(model) as (batcher, _):
            with pytest.raises(ModelFailedError) as caught:
                await batcher.ask([["my secret prompt"]])
            assert "secret" not in str(caught.value) + caplog.text
            assert not await batcher.check(0.2)

    run(test())


def test_coefficients_that_are_no_numbers_are_an_error(model):
    async def test():
        torch.nn.init.constant_(model.model.head.head.bias, float("nan"))
        async with running(model) as (batcher, _):
            with pytest.raises(ModelFailedError):
                await batcher.ask([["hello"]])

    run(test())


def test_a_new_model_answers_later_requests_and_the_old_one_those_before(model, other_folder):
    async def test():
        other = P2L.from_pretrained(other_folder, device="cpu")
        gate = Gate(model)
        async with running(model) as (batcher, _):
            before = asyncio.ensure_future(batcher.ask([["hello"]]))
            await gate.wait_until_reached()
            waiting = asyncio.ensure_future(batcher.ask([["waiting"]]))
            await asyncio.sleep(0.05)
            batcher.replace_model(other)
            after = asyncio.ensure_future(batcher.ask([["hello"]]))
            gate.open()
            assert (await before)[0].revision == (await waiting)[0].revision == model.revision
            found = (await after)[0]
            assert found.revision == other.revision != model.revision
            np.testing.assert_allclose(found.coefs, other.predict("hello").coefs[0], atol=1e-5)

    run(test())


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (1, 2)])
def test_a_new_model_may_be_computed_in_another_way(model, other_folder, before, after):
    async def test():
        other = P2L.from_pretrained(other_folder, device="cpu")
        limits = [BatchLimits(tokens=100, prompts=4, wait=0.0, streams=streams) for streams in (before, after)]
        async with running(model, limits=limits[0]) as (batcher, _):
            first = [asyncio.ensure_future(batcher.ask([[f"prompt {number}"]])) for number in range(30)]
            while not any(asking.done() for asking in first):
                await asyncio.sleep(0)
            batcher.replace_model(other, limits[1])
            then = await asyncio.gather(*(batcher.ask([[f"prompt {number}"]]) for number in range(30)))
            assert {answer.revision for answers in then for answer in answers} == {other.revision}
            assert {answer.revision for answers in await asyncio.gather(*first) for answer in answers} == {
                model.revision
            }

    run(test())


def test_closing_answers_what_was_accepted_and_nothing_more(model):
    async def test():
        gate = Gate(model)
        async with running(model) as (batcher, _):
            accepted = asyncio.ensure_future(batcher.ask([["accepted"]]))
            await gate.wait_until_reached()
            closing = asyncio.ensure_future(batcher.close())
            await asyncio.sleep(0.02)
            with pytest.raises(BusyError):
                await batcher.ask([["too late"]])
            gate.open()
            await closing
            assert (await accepted)[0].revision == model.revision
            assert not batcher.alive

    run(test())


def test_a_prompt_without_turns_is_refused(model):
    async def test():
        async with running(model) as (batcher, _):
            with pytest.raises(InputError):
                await batcher.ask([[]])
            assert await batcher.check(60)

    run(test())
