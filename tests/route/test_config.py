"""The router's configuration: what it means, and where its mistakes are."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from p2l.common.errors import ConfigError
from route.config import load_config
from tests.conftest import ROOT

MODELS = """\
model_configs:
  small.v1: {name: s, type: mock, cost: 1}
  large:
    name: l
    type: mock
    cost: 5
    latency: 2.5
    price: {input: 1, output: 4}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "router.yaml"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def test_a_short_configuration_has_the_documented_defaults(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, MODELS))
    assert (config.score_timeout_ms, config.max_attempts, config.explore) == (2000.0, 3, 0.0)
    assert (config.breaker.failures, config.breaker.seconds) == (5, 10.0)
    assert (config.sticky, config.store_prompts, config.database) == (False, False, None)
    large = config.routed_models()[1]
    assert (large.name, large.cost, large.provider, large.amounts) == ("large", 5.0, "mock", {"latency": 2.5})


def test_the_shipped_example_is_valid_and_names_a_dozen_models() -> None:
    config = load_config(ROOT / "route" / "example_config.yaml")
    assert len(config.model_configs) >= 12
    assert all(model.price is not None and model.context_window for model in config.model_configs.values())


def test_the_database_is_beside_the_configuration(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, MODELS + "database: route.sqlite\n")).database == str(tmp_path / "route.sqlite")


def test_a_key_may_be_a_variable_and_is_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, MODELS + "keys:\n  - {key: '${CLIENT_KEY}', name: app}\n")
    with pytest.raises(ConfigError, match="CLIENT_KEY is not set"):
        load_config(path)
    monkeypatch.setenv("CLIENT_KEY", "sesame")
    config = load_config(path)
    assert config.keys[0].key == "sesame"
    assert "sesame" not in repr(config)


@pytest.mark.parametrize(
    ("added", "line", "says"),
    [
        ("scticky: true", 9, "unknown key 'scticky' (did you mean 'sticky'?)"),
        ("explore: 1.5", 9, "key 'explore': input should be less than or equal to 1, got 1.5"),
        ("explore: .nan", 9, "finite"),
        ("max_attempts: true", 9, "must be a number"),
        ("breaker:\n  failures: 2\n  second: 3", 11, "unknown key 'breaker.second' (did you mean 'seconds'?)"),
        ("keys:\n- key: a\n- key: a", 11, "keys.1.key"),
        ("keys:\n- key: a\n  models: [larg]", 11, "no model 'larg' in model_configs (did you mean 'large'?)"),
        ("static_order: [tiny]", 9, "no model 'tiny'"),
        ("limits:\n- {quantity: latency, most: 2}", 10, "model 'small.v1' has no 'latency'"),
        ("limits:\n- {quantity: 'share:openai', most: 0.5}", 10, "no model is of provider 'openai'"),
        ("opponent_weights: {a: 0}", 9, "must not all be 0"),
        ("store_prompts: true", 9, "needs a 'database'"),
        ("sticky: true\nlimits: redis://host:6379/0", 10, "key 'limits': needs a 'database'"),
        ("sticky: true\nlimits: http://host", 10, "key 'limits': must begin with redis"),
        ("shared_limits: redis://host:6379/0", 9, "key 'shared_limits': needs a 'database'"),
        ("timeouts: {total: 0}", 9, "greater than 0"),
        ("cors_origins: [chat.example.com]", 9, "'chat.example.com' is not an origin"),
        (
            "cors_origins: [https://chat.example.com/]",
            9,
            "is not an origin; write for example https://chat.example.com",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_file_line_and_key(tmp_path: Path, added: str, line: int, says: str) -> None:
    path = write(tmp_path, MODELS + added + "\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("cost: 5", "cots: 5", 6, "unknown key 'model_configs.large.cots' (did you mean 'cost'?)"),
        ("cost: 1", "cost: -1", 2, "'model_configs.small.v1.cost'"),
        ("    cost: 5\n", "", 3, "key 'model_configs.large.cost' is missing; add it"),
        ("cost: 5", "cost: 5\n    deployments: {}", 7, "key 'model_configs.large.deployments': has none; add one"),
        ("cost: 5", "cost: 5\n    eforts: {}", 7, "'model_configs.large.eforts' (did you mean 'efforts'?)"),
        ("output: 4", "output: free", 8, "'model_configs.large.price.output'"),
        ("large:", "p2l-router:", 3, "is the router's own name"),
        (
            "    cost: 5\n",
            "    cost: 5\n    capabilities: {image: no}\n",
            7,
            "'model_configs.large.capabilities.image':",
        ),
    ],
)
def test_a_mistake_within_a_model_names_its_line(tmp_path: Path, old: str, new: str, line: int, says: str) -> None:
    path = write(tmp_path, MODELS.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert says in str(caught.value)


def test_a_key_given_twice_is_told_with_the_line_of_the_second(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"router\.yaml:10: not valid YAML: key 'sticky' is given twice"):
        load_config(write(tmp_path, MODELS + "sticky: true\nsticky: false\n"))


def test_a_key_given_twice_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'cost' is given twice"):
        load_config(write(tmp_path, MODELS.replace("type: mock, cost: 1", "cost: 2, type: mock, cost: 1")))


@pytest.mark.parametrize(
    "text",
    [
        "keys: [sesame]",
        "keys: sesame",
        "keys: {sesame: team}",
        "model_configs: [{name: s, api_key: sesame}]",
        "model_configs: {a: sesame}",
        "model_configs:\n  a:\n    api_key: sesame: 1",
        "model_configs:\n  a:\n    api_key: 'sesame",
        "model_configs:\n  a: {api_key: sesame}\n  a: {api_key: sesame}",
    ],
)
def test_what_may_be_a_key_is_not_repeated_and_has_its_line(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text + "\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert "sesame" not in str(caught.value)
    assert re.match(rf"{re.escape(str(path))}:\d+: ", str(caught.value))


@pytest.mark.parametrize("value", ["2024-01-01", ".nan", "!!set {a}"])
def test_extra_fields_must_be_json(tmp_path: Path, value: str) -> None:
    path = write(tmp_path, MODELS.replace("    latency: 2.5", f"    extra_fields: {{x: {value}}}"))
    with pytest.raises(
        ConfigError, match=r"router\.yaml:7: key 'model_configs\.large\.extra_fields': must be what JSON"
    ):
        load_config(path)


def test_two_keys_of_one_name_are_a_mistake_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, MODELS + "keys:\n- {key: a, name: x}\n- {key: b, name: x}\n")
    with pytest.raises(ConfigError, match=r"router\.yaml:11: key 'keys\.1\.name': is given twice"):
        load_config(path)


@pytest.mark.parametrize("text", ["a: " + "[" * 5000, "a: " + "1" * 5000])
def test_yaml_that_cannot_be_read_at_all_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"router\.yaml:1: not valid YAML: ") as caught:
        load_config(write(tmp_path, text))
    assert len(str(caught.value)) < 1000


def test_a_secret_is_not_repeated_in_a_message(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, MODELS + "keys:\n- key: 'sesäme'\n"))
    assert "ses" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("base_url: notaurl", "must begin with http:// or https://"),
        ("extra_fields: {stream: true, model: x}", "cannot set model, stream, which the router sets itself"),
    ],
)
def test_what_cannot_work_is_refused_at_its_line(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"router\.yaml:9: .*{re.escape(said)}"):
        load_config(write(tmp_path, MODELS + f"    {line}\n"))


EFFORTS = """
model_configs:
  thinker:
    name: thinker-1
    type: openai
    cost: 1
    extra_fields: {verbosity: low}
    efforts:
      thinker-low: {effort: low, cost: 0.01, price: {input: 1, output: 2}}
      thinker-high: {effort: high, cost: 0.2, longest_answer: 9}
"""


def test_each_effort_is_a_model_with_its_own_price_and_name(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    path.write_text(EFFORTS)
    models = load_config(path).model_configs
    assert set(models) == {"thinker-low", "thinker-high"}
    low, high = models["thinker-low"], models["thinker-high"]
    assert (low.name, low.cost, high.cost, high.longest_answer) == ("thinker-1", 0.01, 0.2, 9)
    assert low.extra_fields == {"verbosity": "low", "reasoning_effort": "low"}
    assert high.extra_fields["reasoning_effort"] == "high"
    assert low.price is not None
    assert low.price.output == 2


@pytest.mark.parametrize(
    ("efforts", "told"),
    [
        ("[low]", "must be settings by name"),
        ("{a: {cost: 1}}", "needs an effort"),
        ("{other: {effort: low}}", "is the name of another model"),
        ("{a: {effort: low, prize: 1}}", r"yaml:3: key 'model_configs\.m\.efforts\.a\.prize': .* mean 'price'"),
        ("{a: {efort: low}}", r"yaml:3: key 'model_configs\.m\.efforts\.a\.efort': .* mean 'effort'"),
    ],
)
def test_a_wrong_effort_is_named(tmp_path: Path, efforts: str, told: str) -> None:
    path = tmp_path / "router.yaml"
    other = "other: {name: o, type: openai, cost: 1}"
    path.write_text(f"model_configs:\n  {other}\n  m: {{name: m, type: openai, cost: 1, efforts: {efforts}}}\n")
    with pytest.raises(ConfigError, match=told) as failed:
        load_config(path)
    assert str(path) in str(failed.value)


def test_locations_of_database_and_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "s3cret")
    text = "database: postgresql://me:${DATABASE_PASSWORD}@host/router\nlimits: redis://:${DATABASE_PASSWORD}@host:6379/0\n"
    config = load_config(write(tmp_path, MODELS + text))
    assert config.database == "postgresql://me:s3cret@host/router"
    assert config.shared_limits == "redis://:s3cret@host:6379/0"
    assert (config.limits, config.journal) == ([], tmp_path / "router.journal.sqlite")
    assert "s3cret" not in repr(config)
    assert load_config(write(tmp_path, MODELS + "database: sqlite:///r.db\n")).database == str(tmp_path / "r.db")
    assert load_config(write(tmp_path, MODELS + "database: sqlite:////var/r.db\n")).database == "/var/r.db"
    for wrong, why in {
        "database: mysql://me:s3cret@host/x": "must begin with sqlite",
        "database: postgresql://me:s3@cret@host/x": "as %40",
        "limits: http://me:s3cret@host": "must begin with redis",
        "limits: redis://:s3cret@host": "needs a 'database'",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(why)) as error:
            load_config(write(tmp_path, MODELS + wrong + "\n"))
        assert "s3" not in str(error.value)


def test_a_long_value_or_key_is_not_repeated_whole(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    for text in (f"model_configs: '{'9' * 5000}'\n", f"{'k' * 5000}: 1\nmodel_configs: {{}}\n"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        assert len(str(caught.value)) < 600
