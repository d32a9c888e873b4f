"""Prices of models, for tables that know the length of an answer but not what it cost.

A price file (YAML or JSON) has dollars per million tokens by model: a number is the price of output, and input is free;
a mapping has `output` and `input`. A token is taken for four characters, of prompts and of answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from p2l.command import nearest
from p2l.errors import InputError

__all__ = ["CHARS_PER_TOKEN", "Price", "price_of", "read_prices"]

CHARS_PER_TOKEN = 4.0
"""English prose has about four, code and numbers fewer, Chinese about one and a half."""


class Price(NamedTuple):
    """Dollars per million tokens."""

    output: float
    input: float = 0.0


def read_prices(path: str | Path) -> dict[str, Price]:
    """Read a price file.

    Raises:
        InputError: there is no such file, or an entry is no price.
    """
    import yaml

    file = Path(path).expanduser()
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{file}: cannot be read as YAML or JSON: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict) or not content:
        raise InputError(f"{file}: must map names of models to dollars per million output tokens")
    return {str(model): _price(file, str(model), value) for model, value in content.items()}


def price_of(model: str, prices: Mapping[str, Price]) -> Price:
    """The price of a model.

    Raises:
        InputError: it has none; the message gives the nearest name.
    """
    if model not in prices:
        raise InputError(f"no price for model {model!r}{nearest(model, prices)}; add it to the price file")
    return prices[model]


def _price(file: Path, model: str, value: Any) -> Price:
    given = value if isinstance(value, dict) else {"output": value}
    for key in given:
        if key not in Price._fields:
            raise InputError(f"{file}: {model}: unknown key {key!r}{nearest(str(key), Price._fields)}")
    numbers = [given.get("output"), given.get("input", 0.0)]
    if not all(isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one < 1e9 for one in numbers):
        raise InputError(f"{file}: {model}: a price is a number of dollars per million tokens, at least 0")
    return Price(*(float(one) for one in numbers))
