import asyncio
import threading
import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from p2l.model.encoding import Encoding
from p2l.serving.batcher import BatchLimits, Job, JobQueue

MODELS = ["one", "other"]  # a queue only asks whether two jobs have the same


def job(size: int, model: str = "one") -> Job:
    return Job(model, Encoding(np.arange(size), None, False), asyncio.Future(loop=LOOP), None)


LOOP = asyncio.new_event_loop()


def drained(queue: JobQueue) -> list[list[Job]]:
    queue.close()
    return list(iter(queue.take, []))


@given(
    sizes=st.lists(st.tuples(st.integers(1, 50), st.sampled_from(MODELS)), max_size=30),
    tokens=st.integers(1, 100),
    prompts=st.integers(1, 8),
)
def test_batches_hold_every_job_once_in_order_and_within_the_limits(sizes, tokens, prompts):
    queue = JobQueue(1000, BatchLimits(tokens, prompts, 0.0))
    jobs = [job(size, model) for size, model in sizes]
    assert queue.put(jobs)
    batches = drained(queue)
    assert [one for batch in batches for one in batch] == jobs
    for batch in batches:
        assert len(batch) <= prompts
        assert len({one.model for one in batch}) == 1
        assert len(batch) == 1 or sum(one.size for one in batch) <= tokens


def test_a_full_queue_takes_all_of_a_request_or_nothing():
    queue = JobQueue(3, BatchLimits(100, 10, 0.0))
    assert queue.put([job(1), job(1)])
    assert not queue.put([job(1), job(1)])
    assert len(queue) == 2
    assert queue.put([job(1)])


def test_a_discarded_job_is_never_given_out_and_makes_room():
    queue = JobQueue(2, BatchLimits(100, 10, 0.0))
    first, second = job(1), job(1)
    queue.put([first, second])
    assert queue.discard(first)
    assert not queue.discard(first)
    assert queue.put([job(1)])
    assert first not in drained(queue)[0]


def test_a_closed_queue_takes_nothing_more():
    queue = JobQueue(2, BatchLimits(100, 10, 0.0))
    queue.close()
    assert not queue.put([job(1)])
    assert queue.take() == []


def test_a_job_waits_for_company_but_not_for_ever():
    queue = JobQueue(100, BatchLimits(tokens=10, prompts=10, wait=0.05))
    queue.put([job(4)])
    started = time.monotonic()
    assert len(queue.take()) == 1
    assert time.monotonic() - started >= 0.04

    queue.limits = BatchLimits(tokens=10, prompts=10, wait=3600.0)
    taken = []
    thread = threading.Thread(target=lambda: taken.extend(queue.take()))
    thread.start()
    queue.put([job(4)])
    queue.put([job(6)])  # ten tokens are there: no reason to wait any longer
    thread.join()
    assert len(taken) == 2
