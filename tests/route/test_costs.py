"""Costs by the documented formula, from logged usage, written back without touching anything else."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from p2l.common.errors import ConfigError, InputError
from route.costs import Answers, main, read_answers, read_prices, recompute, with_costs
from route.keep.ledger import key_record
from tests.conftest import ROOT, Command
from tests.route.keep.ledger_helpers import Clock, ledger, spend

CONFIG = """\
# What the team pays.
model_configs:
  ant:
    type: mock
    name: ant-1
    cost: 0.5   # a guess
  "bee": {cost: '7', type: mock, name: bee-1}
  cat:
    cost: 1e-3
    name: cat-1
    type: mock
static_order: [ant, bee]
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a configuration, prices, and the usage of 30 answers of ant and 5 of bee (one request)."""
    (tmp_path / "router.yaml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "prices.yaml").write_text("ant: {input: 1, output: 10}\nbee: 2.5\ncat: 4\n", encoding="utf-8")
    asyncio.run(use(tmp_path / "router.sqlite"))
    return tmp_path


async def use(path: Path) -> None:
    clock, record = Clock(time.time()), key_record("k")
    async with ledger(record, path=path, clock=clock) as accounts:
        for number in range(30):
            await spend(accounts, record, "ant", 0.5, prompt_tokens=7, completion_tokens=100 + number)
            await spend(accounts, record, "ant", 0.5)  # not counted by the provider
        await spend(accounts, record, "bee", 35.0, answers=5, prompt_tokens=7, completion_tokens=5000)


def words(folder: Path, *more: str) -> list[str]:
    names = {"--config": "router.yaml", "--prices": "prices.yaml", "--database": "router.sqlite"}
    return [word for flag, name in names.items() for word in (flag, str(folder / name))] + list(more)


def test_cost_is_price_times_mean_output_tokens(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(words(files))
    table = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[1:]}
    assert table == {
        "ant": ["30", "114.5", "10", "0.5", "0.001145"],
        "bee": ["5", "too", "few", "2.5", "7", "stays"],
        "cat": ["0", "too", "few", "4", "0.001", "stays"],
    }
    assert (files / "router.yaml").read_text(encoding="utf-8") == CONFIG


def test_only_the_costs_of_the_configuration_change(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("route.costs._MIN_ANSWERS", 5)
    main(words(files, "--output", str(files / "router.yaml")))
    expected = CONFIG.replace("cost: 0.5 ", "cost: 0.001145 ").replace("cost: '7'", "cost: 0.0025")
    assert (files / "router.yaml").read_text(encoding="utf-8") == expected


@given(costs=st.dictionaries(st.sampled_from(["ant", "bee", "cat"]), st.floats(0, 1e9)))
def test_new_costs_are_numbers_of_yaml_to_six_digits(costs: dict[str, float]) -> None:
    changed = yaml.safe_load(with_costs(CONFIG, costs, "c.yaml"))["model_configs"]
    for model, cost in costs.items():
        assert isinstance(changed[model]["cost"], int | float)
        assert changed[model]["cost"] == pytest.approx(cost, rel=1e-5)


def test_the_example_configuration_takes_new_costs() -> None:
    text = (ROOT / "route" / "example_config.yaml").read_text(encoding="utf-8")
    before = yaml.safe_load(text)["model_configs"]
    costs = {model: 0.0625 * number for number, model in enumerate(before)}
    after = yaml.safe_load(with_costs(text, costs, "example"))["model_configs"]
    assert after == {model: {**part, "cost": costs[model]} for model, part in before.items()}
    assert with_costs(text, {}, "example") == text


def test_old_usage_does_not_count(files: Path) -> None:
    today = int(time.time() // 86_400)
    assert read_answers(files / "router.sqlite", since=today - 1)["ant"] == Answers(30, 3435)
    assert read_answers(files / "router.sqlite", since=today + 1) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ant: cheap\n", "ant: must be a price"),
        ("ant: {input: 3}\n", "ant: must be a price"),
        ("ant: {input: 3, ouput: 10}\n", r"ant: unknown key 'ouput' \(did you mean 'output'\?\)"),
        ("ant: -1\n", "ant: must be a price"),
        ("ant: .nan\n", "ant: must be a price"),
        ("ant: true\n", "ant: must be a price"),
    ],
)
def test_prices_that_are_none_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "prices.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_prices(tmp_path / "prices.yaml")


def test_a_price_list_of_other_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'ant'"):
        recompute({"ant": 1.0}, {"ants": 2.0}, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: {}\n", "has no model_configs"),
        ("model_configs: {ant: {name: a}}\n", "c.yaml:1: model 'ant' has no cost"),
        ("model_configs:\n  ant: {cost: &c 1}\n  bee: {cost: *c}\n", "two models share this cost"),
        ("model_configs: [", "is not YAML"),
    ],
)
def test_configurations_without_costs_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        with_costs(text, {}, "c.yaml")


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database " * 100, encoding="utf-8")
    for name, why in (("notes.txt", "not a database"), ("none", "no such file")):
        with pytest.raises(InputError, match=why):
            read_answers(tmp_path / name, since=0)


def test_a_misspelt_model_of_a_price_is_named_and_others_are_passed_over(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "prices.yaml").write_text("ant: 10\nbeee: 2.5\nsome-other-llm: 1\n", encoding="utf-8")
    main(words(files))
    notes = capsys.readouterr().err
    assert "'beee' is no model of the configuration (did you mean 'bee'?)" in notes
    assert "some-other-llm" not in notes


def test_a_mistake_is_one_line_and_exit_code_2(command: Command, files: Path) -> None:
    (files / "router.yaml").unlink()
    done = command("python", "-m", "route.cli", "costs", *words(files))
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: .*router\.yaml: cannot be read: .*\n", done.stderr)
