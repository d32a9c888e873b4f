"""The shipped catalogue, and what a model of the configuration inherits from it."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from p2l.common.errors import ConfigError
from route.catalogue import CATALOGUE, SECTIONS, entry_of, listed, read
from route.config import Feature, ModelConfig, load_config
from route.routing.decision import FEATURES


def model(**settings: Any) -> ModelConfig:
    return ModelConfig.model_validate({"name": "gpt-4o", "type": "openai", "cost": 1, **settings})


def test_it_has_a_date_sources_and_the_models_of_every_section() -> None:
    content = read()
    assert date.fromisoformat(content["date"]) >= date(2026, 1, 1)
    assert set(content["sources"]) == {"genai-prices", "litellm"}
    assert set(content["models"]) == set(SECTIONS.values())
    for section, models in content["models"].items():
        assert models, section
        for name in models:
            entry = listed(section, name)
            assert entry is not None
            assert set(entry.can) | set(entry.lacks) <= set(FEATURES)
            assert not set(entry.can) & set(entry.lacks)
            assert all(amount is None or amount >= 0 for amount in entry[:5])
    assert CATALOGUE.stat().st_size < 2**19


def test_the_configuration_knows_the_features_of_routing() -> None:
    assert Feature.__args__ == FEATURES  # type: ignore[attr-defined]


def test_a_version_of_a_model_is_that_model() -> None:
    whole = listed("openai", "gpt-4o")
    assert whole is not None
    assert "images" in whole.can
    assert listed("openai", "gpt-4o-2031-01-01") == listed("openai", "GPT-4o-latest") == whole
    assert listed("openai", "gpt-4o-transcribe-mini-of-mine") is None
    assert listed("nobody", "gpt-4o") is None


def test_a_model_inherits_what_it_does_not_state() -> None:
    routed = model(capabilities={"audio": True, "images": False}).routed("m")
    entry = listed("openai", "gpt-4o")
    assert entry is not None
    assert routed.lacks == ("images",)
    assert set(routed.doubts) == set(entry.lacks) - {"audio", "images"}
    assert (routed.listed_window, routed.longest_answer) == (entry.window, entry.longest)
    assert model(longest_answer=7).routed("m").longest_answer == 7


@pytest.mark.parametrize("settings", [{"base_url": "http://localhost/v1"}, {"catalogue": False}, {"type": "vllm"}])
def test_elsewhere_nothing_is_inherited(settings: dict[str, Any]) -> None:
    routed = model(**settings).routed("m")
    assert (routed.doubts, routed.listed_window, routed.longest_answer) == ((), None, None)


def test_another_entry_can_be_named() -> None:
    settings = {"name": "deployment-7", "type": "azure", "catalogue": "openai/gpt-4o"}
    assert model(**settings).routed("m").listed_window == listed("openai", "gpt-4o").window  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"does not list 'openai/gpt-4oo' \(did you mean"):
        entry_of("openai", "x", None, "openai/gpt-4oo")
    with pytest.raises(ConfigError, match="begin with one of"):
        entry_of("openai", "x", None, "gpt-4o")


def test_a_listed_price_is_that_of_the_catalogue() -> None:
    entry = listed("openai", "gpt-4o")
    assert entry is not None
    price = model(price="listed").price
    assert price is not None
    assert (price.input, price.output, price.cached) == (entry.input, entry.output, entry.cached)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("price: listed", "the catalogue has none"),
        ("catalogue: openai/nothing", "does not list 'openai/nothing'"),
        ("capabilities: {pictures: true}", "capabilities"),
    ],
)
def test_a_mistake_names_the_line(tmp_path: Path, lines: str, told: str) -> None:
    path = tmp_path / "router.yaml"
    path.write_text(f"model_configs:\n  m:\n    name: mine\n    type: openai\n    cost: 1\n    {lines}\n")
    with pytest.raises(ConfigError, match=told) as failed:
        load_config(path)
    assert str(path) in str(failed.value)
