"""Which model a deployment turns out to be: whether it is the one that it was asked for, and what its answers cost.

The price of an answer is that of the model that gave it, where it is known: of another model of the configuration, or
of the catalogue where the price of the model asked is the catalogue's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from route.catalogue import SECTIONS, listed
from route.config import ModelConfig, Price
from route.observability.logs import LOGGER
from route.send.served import Served, is_among, is_same_model

_NAMED_BY_ITS_USER = ("azure", "azure-openai", "azure_openai")
"""Types whose models have names that say nothing, so that they are compared with `served_as` alone."""
_MOST_NAMES = 50
"""Names of one deployment that are remembered, and told apart in metrics."""
OTHERS = "others"
"""Label of the rest."""


class _Known(NamedTuple):
    """What is known of a name that a deployment answered under."""

    is_expected: bool
    price: Price | None


class Identity:
    """The names that a deployment answers under."""

    def __init__(self, name: str, label: str, place: ModelConfig, models: Mapping[str, ModelConfig]) -> None:
        """Take the model as it is asked at this deployment, and all models of the configuration, for their prices."""
        self._about = {"model": name, **({"deployment": label} if label else {})}
        self._place = place
        self._models = models
        self._known: dict[str, _Known] = {}

    def judge(self, served: Served) -> _Known:
        """Return whether an answer is one of the model that was asked for, and its price; log another model once."""
        known = self._known.get(served.model)
        if known is None:
            is_expected = self._is_expected(served.model)
            known = _Known(is_expected, self._price_of(served.model, is_expected))
            if len(self._known) < _MOST_NAMES:
                self._known[served.model] = known
                if not is_expected:
                    fields = {"asked": self._place.name, "served": served.model}
                    LOGGER.warning("another model answered", extra={"fields": {**self._about, **fields}})
        return known

    def label_of(self, served: Served) -> str:
        """Return a name for metrics, of which there are not many."""
        return served.model if served.model in self._known else OTHERS

    def _is_expected(self, served: str) -> bool:
        place = self._place
        if not served or is_among(served, place.served_as):
            return True
        is_free = place.type.lower() in _NAMED_BY_ITS_USER
        return not place.served_as if is_free else is_same_model(place.name, served)

    def _price_of(self, served: str, is_expected: bool) -> Price | None:
        place = self._place
        if place.price is None or not served:
            return place.price
        if not is_expected:
            same = [each for each in self._models.values() if each.price and is_same_model(each.name, served)]
            # At the same kind of provider first.
            same.sort(key=lambda each: each.type != place.type)
            if same:
                return same[0].price
        section = SECTIONS.get(place.type.lower().replace("_", "-"), "")
        if isinstance(place.catalogue, str):
            section = place.catalogue.partition("/")[0]
        asked, answering = listed(section, place.name), listed(section, served)
        if asked is None or answering is None or answering.input is None or answering.output is None:
            return place.price
        if (asked.input, asked.output) != (place.price.input, place.price.output):
            return place.price  # in a unit or of an agreement of its own
        changes = {"input": answering.input, "output": answering.output, "cached": answering.cached}
        return place.price if asked[2:5] == answering[2:5] else place.price.model_copy(update=changes)
