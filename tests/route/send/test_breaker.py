"""The circuit breaker of one model."""

from __future__ import annotations

import pytest

from route.providers.base import Fault, ProviderError
from route.send.fleet import Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fault(kind: Fault = Fault.SERVER, retry_after: float | None = None) -> ProviderError:
    return ProviderError(kind, "no", retry_after=retry_after)


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(2, 30.0, clock)
    for _ in range(2):
        assert not breaker.is_blocked
        breaker.failed(fault(), breaker.begin())
    assert breaker.is_blocked
    return breaker


def test_it_opens_after_failures_in_a_row_and_a_success_starts_the_count_anew() -> None:
    breaker = Breaker(2, 30.0, Clock())
    for _ in range(5):
        breaker.failed(fault())
        breaker.succeeded()
    assert not breaker.is_blocked


def test_after_its_time_one_request_tries_and_success_closes_it() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 30
    assert not breaker.is_blocked
    assert breaker.begin()
    assert breaker.is_blocked  # for everybody else
    breaker.succeeded()
    assert not breaker.is_blocked
    assert not breaker.begin()


def test_a_probe_that_fails_opens_it_again_at_once() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 30
    breaker.failed(fault(), breaker.begin())
    assert breaker.is_blocked
    assert breaker.opens_in == 30


def test_a_probe_that_was_cancelled_leaves_room_for_the_next() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 30
    breaker.give_up(breaker.begin())
    assert not breaker.is_blocked
    assert breaker.begin()


def test_a_rate_limit_rests_for_as_long_as_the_provider_says() -> None:
    clock = Clock()
    breaker = Breaker(5, 30.0, clock)
    breaker.failed(fault(Fault.RATE_LIMIT, 7.0))
    assert breaker.opens_in == 7
    clock.now += 7
    assert not breaker.is_blocked


@pytest.mark.parametrize("kind", [Fault.CONTEXT_LENGTH, Fault.CONTENT_FILTER, Fault.REQUEST])
def test_what_is_the_requests_own_fault_counts_as_an_answer(kind: Fault) -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 30
    breaker.failed(fault(kind), breaker.begin())
    assert not breaker.is_blocked


def test_a_model_that_its_provider_does_not_know_is_left_alone() -> None:
    breaker = Breaker(2, 30.0, Clock())
    for _ in range(2):
        breaker.failed(ProviderError(Fault.UNSUPPORTED, "no such model", status=404), breaker.begin())
    assert breaker.is_blocked


def test_answers_that_begin_and_break_off_open_it_too() -> None:
    breaker = Breaker(2, 30.0, Clock())
    for _ in range(2):
        breaker.began(breaker.begin())
        breaker.failed(fault(Fault.CONNECTION))
    assert breaker.is_blocked


def test_a_probe_that_begins_to_answer_lets_others_in_and_one_that_breaks_off_keeps_them_out() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 30
    breaker.began(breaker.begin())
    assert not breaker.is_blocked
    breaker.failed(fault(Fault.TIMEOUT))
    assert breaker.is_blocked


def test_a_late_failure_of_a_request_from_before_does_not_prolong_a_rest_for_ever() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 10
    breaker.failed(fault())
    clock.now += 30
    assert not breaker.is_blocked


def test_a_rest_without_end_is_cut_to_an_hour() -> None:
    clock = Clock()
    breaker = Breaker(2, 30.0, clock)
    breaker.failed(fault(Fault.RATE_LIMIT, retry_after=1e13))
    assert breaker.opens_in == 3600
    clock.now += 3600
    assert not breaker.is_blocked
