"""What others call differently who speak OpenAI's protocol: many of them stopped at its first names.

`classic` says `max_tokens` for `max_completion_tokens`, which a provider that does not know it refuses or, worse,
passes over, and `system` for the role `developer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from p2l.command import nearest
from p2l.errors import ConfigError
from route.providers.base import JSON
from route.providers.content import renamed

__all__ = ["DIALECTS", "classic", "dialect_of"]


def classic(request: JSON) -> JSON:
    """The request in the words of the first chat completions."""
    body = dict(request)
    limit = body.pop("max_completion_tokens", None)
    if limit is not None:
        body["max_tokens"] = limit
    return renamed(body, {"developer": "system"})


DIALECTS: Mapping[str, Callable[[JSON], JSON]] = {"current": dict, "classic": classic}
"""By the account's option `dialect`."""


def dialect_of(options: Mapping[str, Any]) -> Callable[[JSON], JSON]:
    """What turns a request into the words that an account's provider knows.

    Raises:
        ConfigError: there is no such dialect.
    """
    name = str(options.get("dialect", "current"))
    if name not in DIALECTS:
        raise ConfigError(f"options: there is no dialect {name!r}{nearest(name, DIALECTS)}; choose current or classic")
    return DIALECTS[name]
