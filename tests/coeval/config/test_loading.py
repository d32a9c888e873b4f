"""From a file to a configuration."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from coeval.config.keys import REDACTED, Keys, redacted, snapshot, snapshot_text
from coeval.config.loading import load_config
from coeval.config.reading import ConfigErrors
from coeval.schema import PHASES
from tests.coeval.config.configs import GOOD, experiment, load, mistakes, model, put, task, write


def test_a_right_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert [one.name for one in config.models] == ["ant", "bee"]
    assert config.models[0].roles == ("teacher", "student")
    assert config.tasks[0].sampling.nuance == (1, 1)
    run = config.experiment
    assert run.folder == tmp_path / "runs" / "first"
    assert dict(run.phases) == dict.fromkeys(PHASES, "New")
    assert (run.probe_mode, run.probe_on_fail, run.generation_retries, run.estimate_samples) == ("full", "abort", 2, 2)
    assert run.cache
    assert run.budget_usd is None


@pytest.mark.parametrize(("written", "read"), [([2], (2, 2)), (2, (2, 2)), ([0, 2], (0, 2)), ("all", "all")])
def test_how_many_attributes_is_written_in_several_ways(tmp_path: Path, written: Any, read: Any) -> None:
    config = load(tmp_path, put("tasks", 0, "sampling", "target", written))
    assert config.tasks[0].sampling.target == read


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    def change(raw: Any) -> None:
        raw["models"][0]["interface"] = "opnai"
        raw["tasks"][0]["rubrik"] = {}
        raw["experiment"]["probe_mode"] = "ful"

    lines = mistakes(tmp_path, change)
    assert [line.split(": ")[1] for line in lines] == [
        "models.ant.interface",
        "tasks.sums.rubrik",
        "experiment.probe_mode",
    ]
    assert lines[0].startswith("experiment.yaml:3: ")


def test_the_messages_are_lines_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors) as caught:
        load(tmp_path, lambda raw: (model(interface="x")(raw), task(rubrik=1)(raw)))
    assert str(caught.value).count("\nerror: ") == len(caught.value.messages) - 1 == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: [\n- x\n", ":2: is not YAML: "),
        ("a: 1\nb: {\n  c: d: e}\n", ":3: is not YAML: "),
        ("experiment: {id: a,\n id: b}\n", ":2: experiment.id: is written twice; remove one of the two"),
        ("just words\n", "must be a mapping"),
        ("", "must be a mapping, 'key: value', and is empty"),
        ("- models\n", "must be a mapping, 'key: value', and is a list"),
        ("[" * 5000, "is not YAML"),
        (
            "a: &a [x]\n" + "".join(f"{b}: &{b} [{(f'*{a}, ' * 40)}]\n" for a, b in ("ab", "bc", "cd", "de")),
            "100,000 values",
        ),
        ("a: \x00", "is not YAML"),
        ("a: &a [*a]\n", ":1: is not YAML: *a stands within what it refers to"),
    ],
)
def test_what_is_no_yaml_is_told_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigErrors) as caught:
        load_config(path, keys=Keys())
    assert message in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match=r"none\.yaml: there is no such file; correct --config"):
        load_config(tmp_path / "none.yaml", keys=Keys())


def earlier_run(folder: Path, name: str = "old") -> Path:
    run = folder / "runs" / name
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump(GOOD), encoding="utf-8")
    return run


def test_tasks_come_from_the_run_that_is_resumed(tmp_path: Path) -> None:
    run = earlier_run(tmp_path)
    config = load(tmp_path, lambda raw: raw.pop("tasks"), resume="old")
    assert [one.name for one in config.tasks] == ["sums"]
    assert config.experiment.resume_folder == run
    assert dict(config.experiment.phases) == dict.fromkeys(PHASES, "Keep")
    assert snapshot(config)["tasks"] == GOOD["tasks"]
    assert snapshot(config)["experiment"]["resume_from"] == "old"


def test_a_run_is_resumed_by_its_path_too(tmp_path: Path) -> None:
    run = earlier_run(tmp_path / "elsewhere")
    config = load(tmp_path, experiment(resume_from=str(run)))
    assert config.experiment.resume_folder == run


def test_no_run_is_resumed_from_itself(tmp_path: Path) -> None:
    earlier_run(tmp_path, "first")
    assert any("is this run itself; use --continue" in line for line in mistakes(tmp_path, resume="first"))


def test_a_run_that_goes_on_remembers_what_it_was_resumed_from(tmp_path: Path) -> None:
    earlier_run(tmp_path)
    own = earlier_run(tmp_path, "first")
    (own / "meta.json").write_text('{"experiment_id": "first", "resume_from": "old"}', encoding="utf-8")
    config = load(tmp_path, task(rubric="extend"), continue_in_place=True)
    assert config.experiment.resume_from == "old"


def test_a_model_says_for_itself_whether_it_is_asked_in_batches(tmp_path: Path) -> None:
    def change(raw: Any) -> None:
        for entry in raw["models"]:
            entry |= {"interface": "openai", "parameters": {"model": "gpt-4o"}}
        raw["models"][1]["batch_enabled"] = False
        raw["experiment"]["batch"] = {"openai": {"evaluation": True}}

    config = load(tmp_path, change)
    ant, bee = config.models
    assert config.is_batched(ant, "evaluation")
    assert not config.is_batched(ant, "data_generation")
    assert not config.is_batched(bee, "evaluation")


def test_the_snapshot_holds_no_key_and_can_be_loaded_again(tmp_path: Path) -> None:
    def change(raw: Any) -> None:
        raw["models"][0]["access_key"] = "key-one"
        raw["models"][1]["parameters"] = {
            "api_key": "key-two",
            "session_token": "key-three",
            "max_tokens": 5,
            "base_url": "https://host/v1?key=key-five",
            "headers": [{"X-Api-Key": "key-six"}],
            "note": "sk-abcdefghijklmnop and topsecret of https://me:key-four@host",
        }

    config = load(tmp_path, change)
    text = snapshot_text(config, {"topsecret"})
    assert "key-" not in text
    assert "sk-" not in text
    assert "topsecret" not in text
    assert snapshot(config)["models"][1]["parameters"]["max_tokens"] == 5
    assert "key-" not in repr(config)
    again = tmp_path / "again.yaml"
    again.write_text(text, encoding="utf-8")
    loaded = load_config(again, keys=Keys(env={}))
    assert loaded.models[0].access_key is None
    assert "session_token" not in loaded.models[1].parameters


def test_attributes_and_factors_may_be_called_like_secrets(tmp_path: Path) -> None:
    def change(raw: Any) -> None:
        raw["tasks"][0]["target_attributes"] = {"authorization": ["granted"], "token": ["a", "b"]}
        raw["tasks"][0]["rubric"] = {"secret": "Keeps the secret."}
        raw["tasks"][0]["sampling"]["target"] = 1

    config = load(tmp_path, change)
    assert snapshot(config)["tasks"] == config.raw["tasks"]


def test_parameters_that_look_like_keys_by_name_alone_stay(tmp_path: Path) -> None:
    parameters = {"eos_token": "</s>", "max_tokens": 3, "keyword": "x"}
    assert snapshot(load(tmp_path, model(parameters=parameters)))["models"][0]["parameters"] == parameters


def test_names_of_variables_are_no_secrets() -> None:
    assert redacted({"api_key": "${OPENAI_API_KEY}", "key": "x"}) == {"api_key": "${OPENAI_API_KEY}", "key": REDACTED}


def test_parameters_of_a_role_go_on_top(tmp_path: Path) -> None:
    config = load(tmp_path, model(parameters={"temperature": 1}, role_parameters={"teacher": {"temperature": 0}}))
    assert config.models[0].parameters_for("teacher") == {"temperature": 0}
    assert config.models[0].parameters_for("student") == {"temperature": 1}


def test_the_file_itself_is_not_changed_by_loading(tmp_path: Path) -> None:
    before = write(tmp_path).read_text(encoding="utf-8")
    load(tmp_path)
    assert (tmp_path / "experiment.yaml").read_text(encoding="utf-8") == before
