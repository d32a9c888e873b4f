from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coeval.calling.limits import Retries
from route.providers.base import Fault, ProviderError


@given(st.sampled_from(Fault), st.integers(1, 20), st.floats(0, 1, exclude_max=True), st.none() | st.floats(0, 400))
def test_a_wait_is_between_what_the_provider_wants_and_the_cap(
    fault: Fault, failed: int, draw: float, wanted: float | None
) -> None:
    retries = Retries(uniform=lambda low, high: low + draw * (high - low))
    wait = retries.wait(ProviderError(fault, "no", retry_after=wanted), failed)
    if wait is None:
        assert not fault.is_transient or failed >= retries.timed_out or (wanted or 0) > retries.longest_retry_after
    else:
        assert fault.is_transient
        assert (wanted or 0.0) <= wait <= max(retries.cap, (wanted or 0.0) + retries.base)


def test_each_wait_is_twice_the_last() -> None:
    retries = Retries(uniform=lambda low, _: low, base=1.0, cap=6.0)
    waits = [retries.wait(ProviderError(Fault.RATE_LIMIT, "no"), failed) for failed in range(1, 6)]
    assert waits == [0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("fault", [Fault.CREDENTIALS, Fault.REQUEST, Fault.UNSUPPORTED, Fault.CONTENT_FILTER])
def test_what_does_not_pass_is_not_waited_for(fault: Fault) -> None:
    assert Retries().wait(ProviderError(fault, "no", retry_after=1.0), 1) is None
