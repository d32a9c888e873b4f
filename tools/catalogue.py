"""Write the catalogue of models that the router ships: capabilities, sizes and prices, as known today.

    pip install genai-prices && pip download --no-deps --only-binary :all: litellm
    python -m tools.catalogue --features litellm-*.whl

Prices and context windows are those of `genai-prices` (MIT, Pydantic Services Inc.); features, longest answers, and
what it does not have, those of a list in the wheel of `litellm` (MIT, Berri AI), of which nothing is ever installed or
run: releases of it were compromised. The router needs neither. Models of other kinds than chat, and those whose
provider has withdrawn them, are left out. Of features that a list only ever states of models that have them, a missing
one is a doubt.
"""

from __future__ import annotations

import argparse
import importlib
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from p2l.common.cli import parser, run
from p2l.common.errors import ConfigError
from p2l.common.files import atomic_path
from route.catalogue import CATALOGUE, SECTIONS

_LIST = "litellm/model_prices_and_context_window_backup.json"
_FLAGS = {
    "supports_vision": "images",
    "supports_audio_input": "audio",
    "supports_pdf_input": "files",
    "supports_video_input": "video",
    "supports_audio_output": "audio_output",
    "supports_function_calling": "tools",
    "supports_parallel_function_calling": "parallel_tools",
    "supports_response_schema": "json_schema",
    "supports_reasoning": "reasoning",
}
"""The features of the router by the keys of litellm's list."""
_ALWAYS_STATED = {"images", "audio", "files", "video", "audio_output", "tools", "reasoning"}
"""Features that a model surely lacks, or nearly so, if a list that says anything of it does not state them."""
_PROVIDERS = {
    **{name: (name, name) for name in ("anthropic", "azure", "cerebras", "deepseek", "groq", "mistral", "openai")},
    "cohere": ("cohere_chat", "cohere"),
    "deepinfra": ("deepinfra", ""),
    "fireworks": ("fireworks_ai", "fireworks"),
    "gemini": ("gemini", "google"),
    "openrouter": ("openrouter", "openrouter"),
    "together": ("together_ai", "together"),
    "xai": ("xai", "x-ai"),
}
"""By section: the provider's name at litellm and at genai-prices."""
Row = list[Any]


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    flags = parser("python -m tools.catalogue", "Write the catalogue of models from genai-prices and litellm.")
    flags.add_argument("--features", required=True, metavar="WHEEL", help="litellm's wheel, of which the list is read")
    flags.add_argument("--output", default=str(CATALOGUE), metavar="FILE", help="where to write it")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Write the file."""
    flags = build_parser().parse_args(argv)
    now = datetime.now(timezone.utc)
    features, providers = _features(Path(flags.features)), _prices()
    models = {section: dict(_rows(section, features, providers, now)) for section in sorted(set(SECTIONS.values()))}
    sources = {"genai-prices": version("genai-prices"), "litellm": Path(flags.features).name.split("-")[1]}
    with atomic_path(flags.output) as temporary:
        temporary.write_text(_text(now, sources, models), encoding="utf-8")
    print(f"{flags.output}: {sum(map(len, models.values())):,} models, as of {now:%Y-%m-%d}")


def _text(now: datetime, sources: Mapping[str, str], models: Mapping[str, Mapping[str, Row]]) -> str:
    """Return the file: one line a model, so that changes can be read."""
    licence = "both MIT; prices: Copyright (c) Pydantic Services Inc., features: Copyright (c) Berri AI"
    head = {"date": f"{now:%Y-%m-%d}", "sources": sources, "licence": licence}
    head |= {"columns": ["window", "longest", "input", "output", "cached", "can", "lacks"]}
    sections = (
        f"{json.dumps(section)}: {{\n"
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in rows.items())
        + "\n}"
        for section, rows in models.items()
    )
    return json.dumps(head)[:-1] + ', "models": {\n' + ",\n".join(sections) + "\n}}\n"


def _features(wheel: Path) -> dict[str, dict[str, Any]]:
    try:
        with zipfile.ZipFile(wheel) as files:
            content: dict[str, dict[str, Any]] = json.loads(files.read(_LIST))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{wheel}: is not a wheel of litellm with {_LIST} ({error}); download one") from error
    return content


def _prices() -> dict[str, Any]:
    try:
        module = importlib.import_module("genai_prices.data")
    except ImportError as error:
        raise ConfigError("genai-prices is not installed: pip install genai-prices") from error
    return {provider.id: provider for provider in module.providers}


def _rows(
    section: str, features: Mapping[str, Mapping[str, Any]], providers: Mapping[str, Any], now: datetime
) -> Iterator[tuple[str, Row]]:
    ours, theirs = _PROVIDERS[section]
    provider = providers.get(theirs)
    stated: dict[str, Mapping[str, Any]] = {}
    for key, facts in features.items():
        if facts.get("litellm_provider") == ours and facts.get("mode") in ("chat", "responses"):
            stated.setdefault(key.removeprefix(f"{ours}/").removeprefix(f"{section}/").lower(), facts)
    today = f"{now:%Y-%m-%d}"
    names = {name for name, facts in stated.items() if str(facts.get("deprecation_date") or "9") > today}
    priced = {model.id.lower() for model in (provider.models if provider else ()) if not model.deprecated}
    names |= priced | {name.removesuffix("-latest") for name in priced}
    for name in sorted(names):
        if section == "openrouter" and name not in stated:
            stated[name] = _of_vendor(name, features)
        row = _row(stated.get(name, {}), provider.find_model(name) if provider else None, now)
        if row is not None:
            yield name, row


def _of_vendor(name: str, features: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the features that a model has at its own vendor; sizes and prices may differ at another's."""
    vendor, _, own = name.partition("/")
    facts = features.get(own) or features.get(f"{vendor}/{own}") or features.get(f"gemini/{own}") or {}
    return {key: value for key, value in facts.items() if key.startswith("supports_")}


def _row(stated: Mapping[str, Any], model: Any, now: datetime) -> Row | None:
    """Return a model's row; None where nothing is known of it."""
    price = _price_of(model, now) or tuple(
        _per_million(stated.get(f"{kind}_cost_per_token")) for kind in ("input", "output", "cache_read_input_token")
    )
    if price[2] is None and "cache_read_input_token_cost" in stated:
        price = (*price[:2], _per_million(stated["cache_read_input_token_cost"]))
    window = (model.context_window if model else None) or _count(stated.get("max_input_tokens"))
    flags = {feature: stated[key] for key, feature in _FLAGS.items() if isinstance(stated.get(key), bool)}
    can = sorted(feature for feature, has in flags.items() if has)
    lacks = {feature for feature, has in flags.items() if not has}
    if can:
        lacks |= _ALWAYS_STATED - set(flags)
    row: Row = [window, _count(stated.get("max_output_tokens")), *price, can, sorted(lacks)]
    return row if any(row) and (price[1] is not None or can) else None


def _price_of(model: Any, now: datetime) -> tuple[float | None, ...] | None:
    """Return the dollars per million tokens of short prompts: input, output, cached input."""
    if model is None:
        return None
    prices = model.get_prices(now)
    amounts = (getattr(prices, f"{kind}_mtok", None) for kind in ("input", "output", "cache_read"))
    dollars = tuple(None if amount is None else float(getattr(amount, "base", amount)) for amount in amounts)
    return None if dollars[0] is None or dollars[1] is None else dollars


def _per_million(dollars: Any) -> float | None:
    return round(float(dollars) * 1e6, 9) if isinstance(dollars, int | float) else None


def _count(number: Any) -> int | None:
    return int(number) if isinstance(number, int | float) and 0 < number < 10**8 else None


if __name__ == "__main__":
    run(main)
