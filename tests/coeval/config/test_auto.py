"""Who `interface: auto` becomes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from coeval.config.keys import snapshot_text
from coeval.interfaces import INTERFACES, table
from tests.coeval.config.configs import Change, load, mistakes, model

ALL = {
    "OPENAI_API_KEY": "k",
    "ANTHROPIC_API_KEY": "k",
    "GEMINI_API_KEY": "k",
    "OPENROUTER_API_KEY": "k",
    "GROQ_API_KEY": "k",
    "DEEPSEEK_API_KEY": "k",
    "MISTRAL_API_KEY": "k",
    "COHERE_API_KEY": "k",
    "HF_TOKEN": "k",
}


def auto(model_id: str, **keys: Any) -> Change:
    return model(interface="auto", parameters={"model": model_id}, **keys)


def chosen(folder: Path, model_id: str, env: dict[str, str], **keys: Any) -> tuple[str, str]:
    first = load(folder, auto(model_id, **keys), env=env).models[0]
    return first.interface, first.model_id()


@pytest.mark.parametrize(
    ("model_id", "interface", "name"),
    [
        ("gpt-4o-mini", "openai", "gpt-4o-mini"),
        ("openai/gpt-4.1", "openai", "gpt-4.1"),
        ("o3-mini", "openai", "o3-mini"),
        ("claude-3-5-haiku-latest", "anthropic", "claude-3-5-haiku-latest"),
        ("gemini-2.5-flash", "gemini", "gemini-2.5-flash"),
        ("deepseek-chat", "deepseek", "deepseek-chat"),
        ("deepseek/deepseek-chat", "deepseek", "deepseek-chat"),
        ("deepseek/deepseek-r1", "deepseek", "deepseek-reasoner"),
        ("Llama-3.3-70B", "openrouter", "meta-llama/llama-3.3-70b-instruct"),
        ("llama-3.1-8b-instant", "groq", "llama-3.1-8b-instant"),
        ("mistral-large-latest", "mistral", "mistral-large-latest"),
        ("command-r-plus", "cohere", "command-r-plus"),
        ("qwen/qwen-2.5-72b-instruct", "openrouter", "qwen/qwen-2.5-72b-instruct"),
        ("Some/Model", "huggingface_api", "Some/Model"),
    ],
)
def test_the_cheapest_provider_gets_the_model_by_its_own_name(
    tmp_path: Path, model_id: str, interface: str, name: str
) -> None:
    assert chosen(tmp_path, model_id, ALL) == (interface, name)


def test_only_providers_with_credentials_count(tmp_path: Path) -> None:
    only = {"OPENROUTER_API_KEY": "k"}
    assert chosen(tmp_path, "deepseek-chat", only) == ("openrouter", "deepseek/deepseek-chat")


def test_the_choice_is_told_and_kept(tmp_path: Path) -> None:
    config = load(tmp_path, auto("deepseek-chat"), env=ALL)
    assert config.notes == ("ant: auto is deepseek, model deepseek-chat, $0.07 in and $0.28 out per million tokens",)
    kept = yaml.safe_load(snapshot_text(config))["models"][0]
    assert kept["interface"] == "auto"
    assert kept["resolved"] == {"interface": "deepseek", "model": "deepseek-chat"}


def test_a_run_that_goes_on_stays_with_its_provider(tmp_path: Path) -> None:
    first = load(tmp_path, auto("deepseek-chat"), env={"OPENROUTER_API_KEY": "k"})
    run = first.experiment.folder
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(snapshot_text(first), encoding="utf-8")
    (run / "meta.json").write_text('{"experiment_id": "first"}', encoding="utf-8")
    again = load(tmp_path, auto("deepseek-chat"), env=ALL, continue_in_place=True)
    assert again.models[0].interface == "openrouter"
    assert load(tmp_path, auto("deepseek-chat"), env=ALL, fresh=False).models[0].interface == "deepseek"


BOTH = {"student": {"model": "deepseek-r1"}}


def test_one_provider_gets_the_models_of_all_roles(tmp_path: Path) -> None:
    change = auto("deepseek-chat", role_parameters=BOTH)
    config = load(tmp_path, change, env=ALL)
    assert config.models[0].asked_for == {"deepseek-chat": ("teacher",), "deepseek-reasoner": ("student",)}
    assert [note.partition(", $")[0] for note in config.notes] == [
        "ant: auto is deepseek, model deepseek-chat as teacher",
        "ant: auto is deepseek, model deepseek-reasoner as student",
    ]
    only = {"OPENROUTER_API_KEY": "k"}
    assert list(load(tmp_path, change, env=only).models[0].asked_for) == [
        "deepseek/deepseek-chat",
        "deepseek/deepseek-r1",
    ]
    kept = yaml.safe_load(snapshot_text(config))["models"][0]
    assert kept["resolved"]["models"] == {"teacher": "deepseek-chat", "student": "deepseek-reasoner"}
    assert kept["role_parameters"] == BOTH


def test_models_of_roles_that_no_provider_has_together_are_a_mistake(tmp_path: Path) -> None:
    [line] = mistakes(tmp_path, auto("gpt-4o", role_parameters=BOTH), env=ALL)
    assert "no provider of 'gpt-4o' and 'deepseek-r1' is known" in line


def test_another_model_is_looked_for_anew_when_a_run_goes_on(tmp_path: Path) -> None:
    first = load(tmp_path, auto("deepseek-chat"), env=ALL)
    run = first.experiment.folder
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(snapshot_text(first), encoding="utf-8")
    (run / "meta.json").write_text('{"experiment_id": "first"}', encoding="utf-8")
    again = load(tmp_path, auto("gpt-4o"), env=ALL, continue_in_place=True)
    assert (again.models[0].interface, again.models[0].model_id()) == ("openai", "gpt-4o")


@pytest.mark.parametrize(
    ("model_id", "keys", "message"),
    [
        ("gpt-4o", {}, "there are no credentials for openai, who have 'gpt-4o'; set the variable of one"),
        ("unheard-of", {}, "no provider of 'unheard-of' is known; name the interface"),
        ("gpt-4o", {"access_key": "k"}, "`auto` cannot know whose key this model has; name the interface"),
        ("deepseek-chat", {"batch_enabled": True}, "no provider of 'deepseek-chat' in batches is known"),
    ],
)
def test_nobody_to_ask_is_a_mistake(tmp_path: Path, model_id: str, keys: dict[str, Any], message: str) -> None:
    [line] = mistakes(tmp_path, auto(model_id, **keys))
    assert "models.ant.interface: " in line
    assert message in line


def test_the_table_names_interfaces_that_there_are() -> None:
    known = {*INTERFACES}
    assert all(set(entry["at"]) <= known for entry in table()["auto_routing"])
    assert set(table()["providers"]) <= known
