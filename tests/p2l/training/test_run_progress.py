"""What a run says while it goes on, on a clock that the tests turn."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from p2l.training.train_config import TrainConfig
from p2l.training.trainer import StepReport, StepResult, TimeLeft


def config_of(folder: Path, **keys: Any) -> TrainConfig:
    named = {"pretrain_model_name": "tiny", "model_type": "qwen2", "head_type": "bt", "loss_type": "bt"}
    data = {"output_dir": folder, "train_data_path": "votes.csv", "deepspeed_config_path": "zero1.json"}
    sizes = {"max_length": 64, "batch_size": 8, "gradient_accumulation_steps": 1}
    keys = {"learning_rate": 1e-3, "adam_epsilon": 1e-8, **keys}
    return TrainConfig(**named, **data, **sizes, **keys)


@pytest.mark.parametrize("quiet", [False, True])
def test_the_estimate_is_said_once_and_every_step_is_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    now = [0.0]
    shown = StepReport(config_of(tmp_path), tmp_path, total=20, first=0, num_votes=200, quiet=quiet, is_main=True)
    shown.time_left = TimeLeft(200, clock=lambda: now[0])
    for step in range(1, 11):
        now[0] += 20.0
        shown.step(StepResult(step, 1.0, 0.5, 1e-3, 10, 500), seconds=20.0)
    shown.evaluation(10, {"Loss": 0.5})
    shown.close()
    said = capsys.readouterr().err.splitlines()
    estimate = "training will take about 6 minutes more (15% done, 25 tokens/s)"
    assert said == ([] if quiet else [estimate, "step 10: validation loss 0.5000"])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in lines] == [*range(1, 11), 10]
    assert lines[0]["tokens_per_second"] == 25.0


def test_a_resumed_run_estimates_what_is_left_of_it(tmp_path: Path) -> None:
    shown = StepReport(config_of(tmp_path), tmp_path, total=20, first=15, num_votes=200, quiet=True, is_main=False)
    assert shown.time_left.votes == 50
    shown.close()


def test_steps_go_to_weights_and_biases_where_the_configuration_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is no requirement: what it would be told is what a stand-in of its three calls is told."""
    logged: list[tuple[dict[str, float], int]] = []
    started: dict[str, Any] = {}
    finished: list[bool] = []
    service_run = SimpleNamespace(
        log=lambda values, step: logged.append((values, step)), finish=lambda: finished.append(True)
    )
    stand_in = SimpleNamespace(init=lambda **settings: started.update(settings) or service_run)
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    config = config_of(tmp_path, wandb_entity="team")
    report = StepReport(config, tmp_path, total=20, first=0, num_votes=200, quiet=True, is_main=True)
    report.step(StepResult(1, 1.0, 0.5, 1e-3, 10, 500), seconds=1.0)
    report.close()
    assert (started["entity"], started["name"]) == ("team", tmp_path.name)
    assert [step for _, step in logged] == [1]
    assert logged[0][0]["loss"] == 1.0
    assert finished == [True]


def test_without_the_package_a_run_says_that_nothing_is_logged_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = config_of(tmp_path, wandb_entity="team")
    StepReport(config, tmp_path, total=20, first=0, num_votes=200, quiet=True, is_main=True).close()
    assert "wandb is not installed" in capsys.readouterr().err
