"""Names of LLMs across public sets, configurations and providers, joined by the table `names.yaml`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from p2l.common.config import read_yaml

_TABLE = Path(__file__).parent / "names.yaml"
_SIGNS = re.compile(r"[^a-z0-9]+")


def name_key(name: str) -> str:
    """Return a name as it is compared: `Meta/Llama-3.1-70B-Instruct@host` is `llama-3-1-70b-instruct`."""
    bare = name.rsplit("/", 1)[-1].split("@", 1)[0]
    return _SIGNS.sub("-", bare.lower()).strip("-")


@dataclass(frozen=True)
class Names:
    """The table: what public sets call an LLM, and what it is called here."""

    known: Mapping[str, str]
    """Name here by key."""
    within: Mapping[str, Mapping[str, str]]
    """The same for names that mean something else in one set, by the set."""
    left_out: frozenset[str]
    """Keys of models that are not taken."""

    @staticmethod
    @lru_cache(maxsize=1)
    def load() -> Names:
        """Read the package's table."""
        table = read_yaml(_TABLE)
        known: dict[str, str] = {}
        for name, others in table["names"].items():
            known |= {name_key(other): name for other in (name, *others)}
        within = {
            source: {name_key(other): name for other, name in names.items()}
            for source, names in table["within"].items()
        }
        return Names(known, within, frozenset(map(name_key, table["left_out"])))

    def joined(self, name: str, source: str | None = None) -> str | None:
        """Return what an LLM is called here: by the table, else its own name as it is compared; None if left out."""
        key = name_key(name)
        if key in self.left_out:
            return None
        return self.within.get(source or "", {}).get(key) or self.known.get(key) or _plain(name)

    def matched(self, names: Iterable[str], models: Iterable[str]) -> dict[str, str]:
        """Return the model that each name means, of those that are known; names that mean none are not in it."""
        there = {name_key(model): model for model in models}
        meant = {name: there.get(name_key(self.joined(name) or name)) for name in names}
        return {name: model for name, model in meant.items() if model is not None}


def _plain(name: str) -> str:
    return name.rsplit("/", 1)[-1].split("@", 1)[0].lower()
