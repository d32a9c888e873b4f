"""Training as a user runs it: real commands, real DeepSpeed, one process on a CPU."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from p2l.common.errors import InputError
from p2l.model.checkpoint import check_complete, check_contents, digests_of
from p2l.training.run_folder import read_state
from p2l.votes import open_votes
from tests.conftest import MODELS, Command, Configure, vote_rows, write_votes
from tests.in_turn import run_in_turn
from tests.warm import warm_python

PINNED = [1.669548, 1.245659, 1.202638, 1.005676, 1.002834, 0.902266, 0.724854, 0.948481]


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model.safetensors")


def largest_difference(one: Path, other: Path) -> float:
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def train(command: Command, config: Path, *flags: str | Path) -> Path:
    done = command("python", "-m", "p2l.train", "--config", config, *flags)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip().splitlines()[-1].removeprefix("trained model: "))


def train_in_turn(command: Command, *runs: Sequence[str | Path]) -> list[Path]:
    """Train by these configurations, each with its flags."""
    plan = Path(runs[0][0]).with_name("plan")
    return run_in_turn(command, plan, [["train", "--config", config, "--no-eval", *flags] for config, *flags in runs])


def lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_run_leaves_a_model_its_metrics_and_its_validation(command: Command, configure: Configure) -> None:
    folder = train(command, configure(num_train_epochs=8, shuffle=True), "--eval-steps", "20")
    assert json.loads((folder / "model_list.json").read_text()) == list(MODELS)
    check_complete(folder)
    check_contents(folder, digests_of(folder))
    assert json.loads((folder / "manifest.json").read_text())["files"].keys() == digests_of(folder).keys()
    assert json.loads((folder / "training_config.json").read_text())["loss_type"] == "grk"
    log = lines(folder / "metrics.jsonl")
    steps = [line for line in log if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 65))
    assert [line["step"] for line in log if "validation/Loss" in line] == [20, 40, 60]
    assert np.mean([line["loss"] for line in steps[-8:]]) < 0.8 * np.mean([line["loss"] for line in steps[:8]])
    results = json.loads((folder / "eval_results.json").read_text())
    assert results["votes"] == 40
    assert results["Accuracy"] > 0.5
    rows = lines(folder / "eval_output.jsonl")
    assert len(rows) == 40
    assert len(rows[0]["betas"]) == 4
    assert "eta" in rows[0]

    # What training validated is what serving answers.
    from p2l import P2L

    answer = P2L.from_pretrained(folder).predict([row["prompt"] for row in rows])
    np.testing.assert_allclose(answer.coefs, [row["betas"] for row in rows], atol=1e-5)
    np.testing.assert_allclose(answer.eta, [row["eta"] for row in rows], atol=1e-5)


def test_a_run_that_was_killed_goes_on_bit_for_bit(
    command: Command, configure: Configure, votes_file: Path, tmp_path: Path
) -> None:
    rates = {"head_learning_rate": 1e-2, "weight_decay": 0.1, "lr_schedule": "cosine", "warmup_steps": 3}
    config = configure(num_train_epochs=2, shuffle=True, init_type="marginal", **rates)
    whole = train(command, config, "--no-eval", "--save-steps", "5")
    killed = whole.with_name("killed")
    shutil.copytree(whole / "checkpoint-5", killed / "checkpoint-5")
    # A line cut in half and lines beyond the checkpoint are what a kill leaves behind.
    text = (whole / "metrics.jsonl").read_text(encoding="utf-8")
    (killed / "metrics.jsonl").write_text("".join(text.splitlines(keepends=True)[:7]) + '{"step": 8, "lo', "utf-8")
    (killed / ".checkpoint-10.unfinished").mkdir()
    again = tmp_path / "again.yaml"
    again.write_text(config.read_text(encoding="utf-8").replace("proj_name: run", "proj_name: killed"), "utf-8")
    resumed = train(command, again, "--no-eval", "--save-steps", "5", "--resume")
    assert resumed == killed
    for part in (".", "checkpoint-10", "checkpoint-15"):
        assert (whole / part / "model.safetensors").read_bytes() == (killed / part / "model.safetensors").read_bytes()
    losses = [[line["loss"] for line in lines(folder / "metrics.jsonl")] for folder in (whole, killed)]
    assert losses[0] == losses[1]
    assert not list(killed.glob(".*"))
    with open_votes(votes_file) as votes:
        assert read_state(killed / "checkpoint-10").votes == votes.fingerprint


@pytest.mark.parametrize("weighted", [False, True])
def test_how_a_step_is_split_does_not_change_it(command: Command, configure: Configure, weighted: bool) -> None:
    configs = []
    for micro, accumulation in ((4, 4), (16, 1)):
        changes = {"batch_size": micro, "gradient_accumulation_steps": accumulation, "weighted_loss": weighted}
        configs.append([configure(f"{micro}.yaml", proj_name=f"b{micro}", **changes)])
    folders = train_in_turn(command, *configs)
    assert largest_difference(*folders) < 1e-4
    first = [lines(folder / "metrics.jsonl")[0] for folder in folders]
    assert first[0]["loss"] == pytest.approx(first[1]["loss"], rel=1e-5)
    assert first[0]["gradient_norm"] == pytest.approx(first[1]["gradient_norm"], rel=1e-4)
    if not weighted:
        # The trajectory is pinned: a change of it is a change of what the configuration means.
        assert [line["loss"] for line in lines(folders[0] / "metrics.jsonl")] == pytest.approx(PINNED, rel=1e-4)


def test_the_scale_of_weights_scales_the_loss(command: Command, configure: Configure) -> None:
    configs = [
        [configure(f"{scale}.yaml", proj_name=f"s{scale}", weighted_loss=True, reweight_scale=scale)]
        for scale in (1.0, 0.5)
    ]
    first = [lines(folder / "metrics.jsonl")[0] for folder in train_in_turn(command, *configs)]
    assert first[1]["loss"] == pytest.approx(first[0]["loss"] / 2, rel=1e-5)


def test_a_frozen_backbone_stays_as_it_was(command: Command, configure: Configure, backbone: Path) -> None:
    folder = train(command, configure(train_head_only=True), "--no-eval")
    before, after = weights(backbone), weights(folder)
    for name, value in after.items():
        if name.startswith("model."):
            np.testing.assert_array_equal(value, before[name.removeprefix("model.")])
    assert {name for name in after if name.startswith("head.")}


def test_tfidf_trains_by_the_same_command(
    command: Command, configure: Configure, votes_file: Path, tmp_path: Path
) -> None:
    made = command(
        "python", "-m", "p2l.cli", "init", "--model-type", "tfidf", "--votes", votes_file, "--output", tmp_path / "t"
    )
    assert made.returncode == 0, made.stderr
    config = configure(pretrain_model_name=str(tmp_path / "t"), model_type="tfidf", num_train_epochs=10)
    folder = train(command, config, "--quiet")
    assert json.loads((folder / "eval_results.json").read_text())["Accuracy"] > 0.5


def test_weights_alone_start_a_new_run(command: Command, configure: Configure, tmp_path: Path) -> None:
    first = train(command, configure(), "--no-eval", "--quiet")
    weights_alone = tmp_path / "published"
    shutil.copytree(first, weights_alone)
    some = write_votes(tmp_path / "some.jsonl", [row for row in vote_rows(60) if "dog" not in row.values()])
    config = configure(proj_name="second", train_data_path=str(some), loss_type="rk", pad_token_if_none="<|new|>")
    second = train(command, config, "--no-eval", "--checkpoint", weights_alone)
    assert second.name == "second"
    assert json.loads((second / "model_list.json").read_text()) == list(MODELS)
    assert json.loads((second / "config.json").read_text())["p2l"]["loss_type"] == "rk"


def test_a_full_disk_keeps_the_last_checkpoint(command: Command, configure: Configure) -> None:
    config = configure()
    folder = train(command, config, "--no-eval", "--save-steps", "3")
    shutil.rmtree(folder / "checkpoint-6")
    before = (folder / "checkpoint-3" / "model.safetensors").read_bytes()
    limit = len(before) // 2 // 1024
    resume = f"{warm_python()} -m p2l.train --config {config} --no-eval --save-steps 3 --checkpoint {folder}"
    # No bytecode: a file of it that is cut short is taken for whole later.
    done = command("bash", "-c", f"ulimit -f {limit}; exec {resume}", env={"PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 2, done.stderr
    assert "checkpoint-6" in done.stderr
    assert "checkpoint-3" in done.stderr
    assert "Traceback" not in done.stderr
    assert (folder / "checkpoint-3" / "model.safetensors").read_bytes() == before
    assert not (folder / "checkpoint-6").exists()
    assert not list(folder.glob(".checkpoint*"))


def bad_input(message: str, *names: str) -> None:
    assert "\n" not in message
    for name in names:
        assert name in message


def refused(config: Path, *flags: str) -> str:
    """The one line of a run that is refused before it starts."""
    from p2l.train import main

    with pytest.raises(InputError) as caught:
        main(["--config", str(config), "--no-eval", "--quiet", *flags])
    return str(caught.value)


def test_bad_input_is_one_line_and_exit_code_two(command: Command, configure: Configure) -> None:
    done = command("python", "-m", "p2l.train", "--config", configure(learning_rat=1.0), "--no-eval")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "learning_rate" in done.stderr


def test_missing_votes_and_models_are_named(configure: Configure, tmp_path: Path) -> None:
    bad_input(refused(configure(train_data_path=str(tmp_path / "none.parquet"))), "none.parquet")
    bad_input(refused(configure(pretrain_model_name=str(tmp_path / "no-model"))), "no-model")
    bad_input(refused(configure(model_type="qwen3")), "qwen3", "qwen2")
    bad_input(refused(configure(model_type="qwen9")), "qwen9")
    bad_input(refused(configure(loss_type="bt")), "bt")
    bad_input(refused(configure(weighted_loss=True, train_data_path=str(_without_weights(tmp_path)))), "weight")
    bad_input(refused(configure(lr_schedule="sawtooth")), "sawtooth", "lr_schedule")
    bad_input(refused(configure(deepspeed_config_path="none.json")), "none.json")
    bad_input(refused(configure(zero={"train_micro_batch_size_per_gpu": 64})), "64", "ds.json")


def _without_weights(folder: Path) -> Path:
    rows = [{key: value for key, value in row.items() if key != "weight"} for row in vote_rows(20)]
    return write_votes(folder / "unweighted.jsonl", rows)


def test_validation_on_unknown_models_is_refused_or_dropped(
    command: Command, configure: Configure, tmp_path: Path
) -> None:
    strange = {"prompt": "hi", "model_a": "ant", "model_b": "emu", "winner": "tie", "weight": 1.0}
    path = write_votes(tmp_path / "strange.jsonl", [*vote_rows(10), strange])
    from p2l.train import main

    with pytest.raises(InputError, match="emu"):
        main(["--config", str(configure(val_data_path=str(path)))])
    done = command(
        "python", "-m", "p2l.train", "--config", configure(val_data_path=str(path), drop_unknown_models=True)
    )
    assert done.returncode == 0
    assert "dropped 1 " in done.stderr


def test_a_run_with_other_settings_is_not_resumed(command: Command, configure: Configure) -> None:
    folder = train(command, configure(), "--no-eval", "--save-steps", "4")
    done = command(
        "python", "-m", "p2l.train", "--no-eval", "--checkpoint", folder, "--config", configure(batch_size=2)
    )
    assert done.returncode == 2
    assert "global_batch" in done.stderr
    resume = ("--checkpoint", str(folder))
    bad_input(refused(configure(learning_rate=1e-5), *resume), "learning_rate", "0.003", "1e-05")
    bad_input(refused(configure(linear_head_downsize_factor=2), *resume), "linear_head_downsize_factor")
    for name, part in (("cut", "deepspeed"), ("list", "model_list.json")):
        damaged = folder.with_name(name)
        shutil.copytree(folder / "checkpoint-4", damaged / "checkpoint-4")
        _cut(damaged / "checkpoint-4" / part)
    bad_input(refused(configure(), "--checkpoint", str(folder.with_name("list"))), "model_list.json", "shorter")
    done = command(
        "python", "-m", "p2l.train", "--no-eval", "--checkpoint", folder.with_name("cut"), "--config", configure()
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "cut short" in done.stderr


def _cut(path: Path) -> None:
    if path.is_dir():
        file = next(path.glob("*.pt"))
        file.write_bytes(file.read_bytes()[:1000])
    else:
        path.write_text('["ant", "bee"]', encoding="utf-8")


def test_what_deepspeed_does_not_accept_is_one_line(command: Command, configure: Configure) -> None:
    block = {"type": "AdamW", "params": {"lr": 1e-3, "learning_rat": 1.0}}
    config = configure(optimizer=block, learning_rate=None, adam_epsilon=None)
    done = command("python", "-m", "p2l.train", "--config", config, "--no-eval")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "learning_rat" in done.stderr


def test_ties_alone_train_no_bradley_terry_model(configure: Configure, tmp_path: Path) -> None:
    ties = write_votes(tmp_path / "ties.jsonl", [row | {"winner": "tie"} for row in vote_rows(8)])
    config = configure(train_data_path=str(ties), head_type="bt", loss_type="bt")
    bad_input(refused(config), "ties.jsonl", "bt")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_stage_goes_on_bit_for_bit(
    command: Command, configure: Configure, tmp_path: Path, stage: int, dtype: str
) -> None:
    config = configure(zero={"zero_optimization": {"stage": stage}}, dtype=dtype)
    whole = train(command, config, "--no-eval", "--save-steps", "4")
    shutil.copytree(whole / "checkpoint-4", tmp_path / "killed" / "checkpoint-4")
    resumed = train(command, config, "--no-eval", "--checkpoint", tmp_path / "killed")
    assert (whole / "model.safetensors").read_bytes() == (resumed / "model.safetensors").read_bytes()


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="has a GPU")
def test_cuda_asked_for_and_absent(configure: Configure) -> None:
    bad_input(refused(configure(device="cuda")), "cuda", "cpu")


def test_a_step_without_a_vote_that_counts_moves_nothing(
    command: Command, configure: Configure, tmp_path: Path
) -> None:
    rows = [row | {"winner": "model_a"} for row in vote_rows(16)]
    ties = [row | {"winner": "tie"} for row in vote_rows(16)]
    configs = []
    for name, votes in (("some", rows), ("ties", rows + ties)):
        path = write_votes(tmp_path / f"{name}.jsonl", votes)
        changes = {"proj_name": name, "train_data_path": str(path), "head_type": "bt", "loss_type": "bt"}
        configs.append([configure(f"{name}.yaml", **changes), "--quiet"])
    folders = train_in_turn(command, *configs)
    assert largest_difference(*folders) == 0.0
    assert [row["gradient_norm"] for row in lines(folders[1] / "metrics.jsonl")][1:] == [0.0]
