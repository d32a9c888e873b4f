"""The shipped catalogue: what the models of the providers can do and what they cost, on the day that it names.

`catalogue.json` is written by `python -m tools.catalogue`. A configuration overrides it, and it may be wrong: it rules
no request out (see `route.routing.candidates.Menu`), and prices are taken from it only where the configuration says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from p2l.common.cli import nearest
from p2l.common.errors import ConfigError

CATALOGUE = Path(__file__).with_name("catalogue.json")
SECTIONS: Mapping[str, str] = {
    **{name: name for name in ("anthropic", "azure", "cerebras", "cohere", "deepinfra", "deepseek", "fireworks")},
    **{name: name for name in ("gemini", "groq", "mistral", "openai", "openrouter", "together", "xai")},
    "openai-reasoning": "openai",
    "openai-o1": "openai",
    "openai-responses": "openai",
    "gemini-compatible": "gemini",
}
"""Where the models of a provider's type are listed."""
LACKING_TYPES: Mapping[str, tuple[str, ...]] = {"anthropic": ("n", "logprobs"), "gemini": ("n", "logprobs")}
"""Features that the protocol of a provider's type does not have, whatever the model."""
_SUFFIX = re.compile(r"-(latest|\d{3}|\d{4}|\d{8}|\d{4}-\d\d-\d\d|\d\d-\d{4})|@\d{8}|:[a-z]+")
"""The ending that a provider adds to the name of a model for one version of it."""


class _CatalogueModel(NamedTuple):
    """One model of the catalogue; None, or in neither set of features: not known."""

    window: int | None
    """Tokens of the longest prompt."""
    longest: int | None
    """Tokens of the longest answer."""
    input: float | None
    """Dollars per million tokens, like the next two."""
    output: float | None
    cached: float | None
    """Of input that is in the provider's prompt cache."""
    can: tuple[str, ...]
    """Features, of `route.routing.decision.FEATURES`, that it has."""
    lacks: tuple[str, ...]
    """Those that it does not have."""


@cache
def read() -> dict[str, Any]:
    """Return the content of the file: `date`, `sources` and `models`, by section and name."""
    content: dict[str, Any] = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    return content


def listed(section: str, name: str) -> _CatalogueModel | None:
    """Return the entry of a model as its provider calls it: of its exact name, else without the suffix of a version."""
    models = read()["models"].get(section, {})
    name = name.lower()
    row = models.get(name)
    if row is None:
        ends = [end for end in range(len(name) - 1, 2, -1) if _SUFFIX.fullmatch(name, end)]
        row = next((models[name[:end]] for end in ends if name[:end] in models), None)
    if row is None:
        return None
    window, longest, dollars_in, dollars_out, cached, can, lacks = row
    return _CatalogueModel(window, longest, dollars_in, dollars_out, cached, tuple(can), tuple(lacks))


def entry_of(type_: str, name: str, base_url: str | None, reference: str | bool) -> _CatalogueModel | None:
    """Return the entry that a model of the configuration inherits from.

    `reference` is `SECTION/NAME` of another entry, False for none, or True for its own: where it is asked at its
    provider's own address. Raise ConfigError for a reference to what is not listed.
    """
    if isinstance(reference, str):
        section, _, other = reference.partition("/")
        entry = listed(section, other)
        if entry is None:
            hint = nearest(other, read()["models"].get(section, ())) if section in SECTIONS.values() else ""
            sections = "" if section in SECTIONS.values() else f"; begin with one of {', '.join(read()['models'])}/"
            raise ConfigError(f"the catalogue of {read()['date']} does not list {reference!r}{hint}{sections}")
        return entry
    type_ = type_.replace("_", "-")
    return listed(SECTIONS[type_], name) if reference and base_url is None and type_ in SECTIONS else None
