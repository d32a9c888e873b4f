"""The commands typed the documented way, through the DeepSpeed launcher, with two processes on a CPU."""

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import Command, Configure, free_port, make_configure
from tests.e2e.test_train import largest_difference, lines, train
from tests.warm import warm_python

pytestmark = pytest.mark.launcher


@pytest.fixture(scope="module")
def alone(
    command: Command, tmp_path_factory: pytest.TempPathFactory, votes_file: Path, validation_file: Path, backbone: Path
) -> Path:
    """The same steps in one process, with twice the accumulation."""
    configure = make_configure(tmp_path_factory.mktemp("alone"), votes_file, validation_file, backbone)
    return train(command, configure(gradient_accumulation_steps=4), "--no-eval")


@pytest.mark.parametrize(
    ("form", "stage"),
    [
        (["p2l.train"], 0),
        pytest.param(["--module", "p2l.train"], 1, marks=pytest.mark.slow),
        pytest.param(["train.py"], 2, marks=pytest.mark.slow),
    ],
    ids=lambda form: str(form),
)
def test_two_processes_take_the_steps_of_one(
    command: Command, configure: Configure, alone: Path, form: list[str], stage: int
) -> None:
    zero = {"zero_optimization": {"stage": stage}}
    config = configure(proj_name="pair", gradient_accumulation_steps=2, zero=zero)
    done = command("deepspeed", "--num_gpus=2", *form, "--config", config, "--eval-steps", "4", "--save-steps", "8")
    assert done.returncode == 0, done.stderr
    pair = config.parent / "out" / "pair"
    assert largest_difference(alone, pair) < 1e-4
    one, two = lines(alone / "metrics.jsonl"), [row for row in lines(pair / "metrics.jsonl") if "loss" in row]
    assert [row["loss"] for row in one] == pytest.approx([row["loss"] for row in two], rel=1e-4)
    assert len(lines(pair / "eval_output.jsonl")) == json.loads((pair / "eval_results.json").read_text())["votes"] == 40
    assert (pair / "checkpoint-8" / "trainer_state.json").is_file()


def test_a_full_disk_stops_two_processes_with_one_line(command: Command, configure: Configure) -> None:
    config = configure(zero={"zero_optimization": {"stage": 1}})
    launcher = f"{warm_python()} {Path(sys.executable).with_name('deepspeed')} --num_gpus=2 --master_port={free_port()}"
    line = f"{launcher} p2l.train --config {config} --no-eval --save-steps 2"
    # No bytecode: a file of it that is cut short is taken for whole later.
    done = command("bash", "-c", f"ulimit -f 20; exec {line}", env={"PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 2
    assert done.stderr.count("error: ") + done.stdout.count("error: ") == 1
    assert "checkpoint-2: cannot be saved" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr + done.stdout
    assert not (config.parent / "out" / "run" / "checkpoint-2").exists()


def test_a_mistake_is_told_once_by_two_processes(command: Command, configure: Configure, tmp_path: Path) -> None:
    config = configure(train_data_path=str(tmp_path / "none.jsonl"))
    done = command("deepspeed", "--num_gpus=2", "p2l.train", "--config", config, "--no-eval")
    assert done.returncode == 2
    assert done.stderr.count("error: ") + done.stdout.count("error: ") == 1
    assert "Traceback" not in done.stderr
