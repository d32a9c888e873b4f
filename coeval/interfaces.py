"""The values of `interface`: the providers of `route.providers.registry`, and what CoEval itself answers."""

from __future__ import annotations

from collections.abc import Mapping

from route.providers.registry import OWN_MACHINE, PROVIDERS, ProviderSpec

VIRTUAL = ("benchmark", "answers", "metric", "label")
"""Teachers and students that were ingested, and judges that compute: no model is called."""
LOCAL = ("huggingface", "mock")
"""Answered by this process."""
_HUGGINGFACE = ProviderSpec(
    "huggingface",
    "",
    "https://huggingface.co",
    PROVIDERS["huggingface"].key_variables,
    needs_key=False,
    interface="huggingface",
    key_fields=("api_key", "token"),
    is_free=True,
    speed=OWN_MACHINE,
    top_logprobs=0,
)
INTERFACES: Mapping[str, ProviderSpec] = {
    **{spec.interface: spec for spec in PROVIDERS.values() if spec.interface},
    "huggingface": _HUGGINGFACE,
    **{name: ProviderSpec(name, "", needs_key=False, is_free=True, top_logprobs=0) for name in VIRTUAL},
}
"""By the name in the configuration; `auto` stands for one of them."""
BATCHING = tuple(name for name, spec in INTERFACES.items() if spec.batch_discount is not None)
"""Interfaces that take batch jobs."""
_IN_FLIGHT = 10


def in_flight(concurrency: int | Mapping[str, int], interface: str) -> int:
    """Return how many calls may be in flight: 10 where a map does not name the interface, 1 for local models."""
    if interface == "huggingface":
        return 1
    return concurrency if isinstance(concurrency, int) else concurrency.get(interface, _IN_FLIGHT)


def tells_logprobs(interface: str) -> bool:
    """Whether answers can come with log-probabilities of their tokens."""
    return interface not in INTERFACES or INTERFACES[interface].top_logprobs > 0
