"""plan, describe and generate, as a user runs them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from coeval import cli
from coeval.cli import with_exit_code
from coeval.commands import plan, run
from coeval.commands import plan as describe
from coeval.config.keys import Keys
from coeval.config.loading import load_config
from p2l.common.errors import ConfigError
from tests.coeval.config.configs import Raw, experiment, model, task, write
from tests.conftest import Command


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_a_plan_tells_models_tasks_modes_and_calls_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan.main(["--config", str(write(tmp_path))]) == 0
    text = said(capsys)
    for part in (
        "ant",
        "mock",
        "teacher, student",
        "sums",
        "1 to 2",
        "3 a teacher",
        "single",
        "data_generation",
        "New",
    ):
        assert part in text
    assert ["total", "0", "0", "3", "6", "6", "15"] in [line.split() for line in text.splitlines()]
    assert "Estimate: 15 calls, $0.00" in text
    assert not (tmp_path / "runs").exists()


def test_a_plan_is_kept_where_the_run_has_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    plan.main(["--config", str(write(tmp_path)), "--estimate-samples", "0"])
    assert json.loads((folder / "cost_estimate.json").read_text(encoding="utf-8"))["total_calls"] == 15


def test_a_plan_says_once_what_it_guesses_and_what_goes_in_batches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OPENAI_API_KEY", "COEVAL_KEYS_FILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def change(raw: Raw) -> None:
        for one, name in zip(raw["models"], ("gpt-4o", "never-heard"), strict=True):
            one |= {"interface": "openai", "parameters": {"model": name}}
        experiment(batch={"openai": {"evaluation": True}})(raw)

    assert plan.main(["--config", str(write(tmp_path, change))]) == 0
    said = capsys.readouterr()
    assert (said.out + said.err).count("no key for openai") == 1
    assert "speed guessed of ant, bee: no key for openai: set OPENAI_API_KEY" in said.out
    lines = said.out.splitlines()
    assert [" ".join(line.split()[4:]) for line in lines if line.endswith("guessed")] == [
        "10 80 speed guessed",
        "3 80 price guessed, speed guessed",
    ]
    assert "evaluation           New   bee" in lines
    assert any(line.endswith("1 factor") for line in lines)


def test_what_is_left_needs_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path)
    with pytest.raises(Exception, match=r"meta\.json is not there"):
        plan.main(["--config", str(path), "--continue"])
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text('{"experiment_id": "first"}', encoding="utf-8")
    assert plan.main(["--config", str(path), "--continue", "--estimate-samples", "0"]) == 0
    text = said(capsys)
    assert "What is left: 15 calls" in text
    assert "Extend" in text


def left_to_teachers(raw: Raw) -> None:
    raw["models"][0]["access_key"] = "a-key-of-mine"
    task(
        target_attributes="complete",
        target_attributes_seed={"size": ["small"]},
        nuanced_attributes="auto",
        rubric="auto",
        sampling={"target": [1, 1], "nuance": [1], "total": 2},
    )(raw)


def test_generate_writes_what_teachers_propose_and_leaves_no_run(tmp_path: Path) -> None:
    out = tmp_path / "static.yaml"
    assert run.generate_main(["--config", str(write(tmp_path, left_to_teachers)), "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert "# - sums.rubric: auto became" in text
    assert "a-key-of-mine" not in text
    made = yaml.safe_load(text)["tasks"][0]
    assert "small" in made["target_attributes"]["size"]
    assert len(made["target_attributes"]) > 1
    assert "target_attributes_seed" not in made
    assert all(isinstance(description, str) for description in made["rubric"].values())
    config = load_config(out, keys=Keys())
    assert not isinstance(config.tasks[0].rubric, str)
    assert not (tmp_path / "runs").exists()


def test_generate_replaces_no_file_that_is_there(tmp_path: Path) -> None:
    out = tmp_path / "static.yaml"
    out.write_text("written: by hand\n")
    with pytest.raises(ConfigError, match="is there already"):
        run.generate_main(["--config", str(write(tmp_path, left_to_teachers)), "--out", str(out)])
    assert out.read_text() == "written: by hand\n"


def test_generate_stops_where_a_teacher_is_not_there(tmp_path: Path) -> None:
    def change(raw: Raw) -> None:
        left_to_teachers(raw)
        raw["models"][0] |= {"interface": "vllm", "parameters": {"model": "x", "base_url": "http://127.0.0.1:9/v1"}}

    out = tmp_path / "static.yaml"
    assert run.generate_main(["--config", str(write(tmp_path, change)), "--out", str(out)]) == 1
    assert not out.exists()


def page(folder: Path, change: Any = None, *flags: str) -> str:
    path = write(folder, change)
    assert describe.describe_main(["--config", str(path), "--no-open", *flags]) == 0
    return (folder / "experiment_description.html").read_text(encoding="utf-8")


def test_a_description_needs_nothing_but_itself(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    for part in ("ant", "sums", "Add numbers.", "The sum is right.", "small, large", "Grade an answer"):
        assert part in text


def test_a_description_shows_the_prompts_of_each_model_and_no_key(tmp_path: Path) -> None:
    def change(raw: Raw) -> None:
        task(prompt_library={"test.bee": "For bees: {input} <b>"})(raw)
        model(access_key="a-key-of-mine", parameters={"session_token": "another-key"})(raw)
        experiment(quota={"bee": {"max_calls": 7}})(raw)
        raw["models"][1] |= {"role_parameters": {"judge": {"system_prompt": "Be <strict>."}}}

    text = page(tmp_path, change, "--probe")
    assert "test, for bee" in text
    assert "For bees: {input} &lt;b&gt;" in text
    assert "bee: 7 calls" in text
    assert "<h4>bee as judge</h4>" in text
    assert text.count("Be &lt;strict&gt;.") == 1
    assert "a-key-of-mine" not in text
    assert "another-key" not in text
    assert ">ok<" in text


def test_every_command_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.dispatch(["--help"]) == 0
    text = said(capsys)
    assert all(name in text for name in cli.COMMANDS)


def test_bad_input_ends_with_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path)
    assert with_exit_code(cli.dispatch, ["describe", "--config", str(path), "--out", str(path)]) == 1
    assert "error: " in capsys.readouterr().err


def test_help_waits_for_nothing_that_only_the_work_needs(command: Command) -> None:
    code = (
        "import contextlib, sys\n"
        "from coeval.cli import dispatch\n"
        "for name in ('run', 'generate', 'status', 'repair', 'plan', 'probe', 'describe', 'models', 'ingest'):\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        dispatch([name, '--help'])\n"
        "print({'asyncio', 'dataclasses', 'json', 'numpy', 'pydantic', 'yaml'} & set(sys.modules), file=sys.stderr)"
    )
    done = command("python", "-c", code)
    assert (done.returncode, done.stderr) == (0, "set()\n")
    assert done.stdout.count("usage: coeval") == 9
