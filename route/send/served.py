"""Who answered: the model that a provider names in its answer, and whether it is the one that it was asked for.

Providers answer under other spellings of a name, under the dated snapshot that it stands for, or under the release of a
preview. Whatever does not follow from the name that was asked by these rules, nor from `_ALIASES`, is another model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from route.providers.base import JSON

_LONGEST_NAME = 200


class Served(NamedTuple):
    """What a provider says of itself in an answer; empty where it says nothing."""

    model: str = ""
    fingerprint: str = ""
    """Of the system that answered (`system_fingerprint`)."""
    tier: str = ""
    """The service tier (`service_tier`)."""
    provider: str = ""
    """Whom a reseller has asked, as OpenRouter names it."""

    @property
    def version(self) -> str:
        """Return the snapshot that the model's name ends with, such as 2024-08-06."""
        match = _SNAPSHOT.search(_bare(self.model))
        return match[0].strip("-@") if match else ""

    def joined(self, answer: JSON) -> Served:
        """Return what is known after another chunk, or the whole answer, in the form of chat completions."""
        usage = answer.get("usage")
        tier = usage.get("service_tier") if isinstance(usage, dict) else None
        return Served(
            model=_text(answer.get("model")) or self.model,
            fingerprint=_text(answer.get("system_fingerprint")) or self.fingerprint,
            tier=_text(answer.get("service_tier")) or _text(tier) or self.tier,
            provider=_text(answer.get("provider")) or self.provider,
        )

    def told(self, *, is_expected: bool) -> JSON:
        """Return what a client is told, without what is empty."""
        fields = {**self._asdict(), "version": self.version}
        return {name: text for name, text in fields.items() if text} | {"is_expected": is_expected}


def _text(name: object) -> str:
    return name[:_LONGEST_NAME] if isinstance(name, str) and name.isprintable() else ""


_ANY = re.compile(r"(openrouter/)?(auto|free)(-beta)?|openrouter/fusion|switchpoint/router|@preset/.+")
"""Names that stand for whatever model a service chooses."""
_ALIASES: Mapping[str, str] = {
    "compound-beta": "compound",
    "compound-beta-mini": "compound-mini",
    "deepseek-chat": r"deepseek-v[\w.-]+",
    "deepseek-reasoner": r"deepseek-(v|r)[\w.-]+",
    "gemini-pro": r"gemini-1\.0-pro(-\d+)?",
    "gpt-4-turbo-preview": r"gpt-4-\d{4}-preview",
    "gpt-5.6": "gpt-5.6-sol",
    "grok-code-fast": r"grok-code-fast-1(-\d{4})?",
    "kimi-latest": r"(kimi|moonshot)-[\w.-]+",
}
"""Published names that stand for a model of another name, as a pattern of what answers to them."""
_SNAPSHOT = re.compile(r"[-@](20\d\d-\d\d-\d\d|20\d{6}|\d\d-20\d\d|\d\d-\d\d(?=$)|\d{4}|\d{3}(?=$))(?![\da-z.])")
"""Dates, and numbers of versions such as 001, in the name of a model."""
_STAGES = frozenset({"preview", "exp", "experimental"})
_TOKENS = re.compile(r"[a-z]+|\d+")


class _Name(NamedTuple):
    """The parts of a model's name that tell it from others."""

    maker: str
    """Before the slash, where there is one maker."""
    words: frozenset[str]
    numbers: tuple[int, ...]
    """In their order, without zeros at the end: 4-0 is 4."""
    snapshot: str
    """Digits of the date or version; empty where it names none."""


def is_same_model(asked: str, served: str) -> bool:
    """Return whether an answer under the name `served` is one of the model that was asked for."""
    if served == asked or not served or _ANY.fullmatch(asked):
        return True
    pattern = _ALIASES.get(_bare(asked))
    if pattern is not None and re.fullmatch(pattern, _bare(served)):
        return True
    tagged, _, tag = asked.rpartition(":")
    if tagged and tag[:1].isalpha() and is_same_model(tagged, served):  # `:free`, `:nitro`, a provider
        return True
    wanted, given = _read(asked), _read(served)
    if wanted.maker and given.maker and wanted.maker[:3] != given.maker[:3]:
        return False
    if "latest" in wanted.words - given.words:
        family = wanted.words - {"latest"}
        is_newest = not wanted.numbers and given.words - _STAGES == family
        return is_newest or (given.words == family and given.numbers == wanted.numbers)
    if wanted.snapshot and given.snapshot and not _is_end_of(wanted.snapshot, given.snapshot):
        return False
    # A preview goes on under the name of the release.
    released = wanted.words - _STAGES
    return given.words in (wanted.words, released) and given.numbers == wanted.numbers


def is_among(served: str, names: Collection[str]) -> bool:
    """Return whether a name is one of some names, which may be patterns such as `gpt-4o*`."""
    return any(fnmatchcase(served.lower(), name.lower()) or is_same_model(name, served) for name in names)


def _bare(name: str) -> str:
    """Return a name in small letters, without the path and the tag of the newest version."""
    return name.lower().rpartition("/")[2].removesuffix(":latest")


def _read(name: str) -> _Name:
    path, _, _ = name.lower().rpartition("/")
    bare = _bare(name)
    digits = "".join("".join(_TOKENS.findall(match[0])) for match in _SNAPSHOT.finditer(bare))
    bare = re.sub(r"\bv(\d+)p(\d+)", r"\1-\2", _SNAPSHOT.sub("-", bare))  # Fireworks' v3p1 is 3.1
    tokens = _TOKENS.findall(bare)
    numbers = [int(token) for token in tokens if token.isdigit()]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return _Name(
        maker="" if "/" in path or path == "models" else re.sub(r"\W", "", path),
        words=frozenset(token for token in tokens if not token.isdigit() and token != "v"),
        numbers=tuple(numbers),
        snapshot=digits,
    )


def _is_end_of(snapshot: str, other: str) -> bool:
    return snapshot.endswith(other) or other.endswith(snapshot)
