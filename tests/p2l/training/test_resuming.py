from pathlib import Path

import pytest

from p2l.common.errors import CheckpointError, ConfigError
from p2l.training.offline import take_up
from p2l.training.run_folder import check_same_configuration
from p2l.training.run_records import STATE_FILE
from tests.p2l.training.test_deepspeed_config import config


def test_what_decides_the_weights_may_not_change(tmp_path: Path) -> None:
    before = config(optimizer={"type": "AdamW", "params": {"lr": 0.1}})
    (tmp_path / "training_config.json").write_text(before.model_dump_json(), encoding="utf-8")
    check_same_configuration(before, tmp_path)
    moved = before.model_copy(
        update={"output_dir": Path("elsewhere"), "num_train_epochs": 3, "packing": False, "micro_batch_tokens": 64}
    )
    check_same_configuration(moved, tmp_path)
    for key, value in (("learning_rate", 0.5), ("linear_head_downsize_factor", 2), ("optimizer", None)):
        with pytest.raises(CheckpointError, match=key):
            check_same_configuration(before.model_copy(update={key: value}), tmp_path)


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for text in (None, "{", "[]"):
        if text is not None:
            (tmp_path / "training_config.json").write_text(text, encoding="utf-8")
        with pytest.raises(CheckpointError, match=r"training_config\.json"):
            check_same_configuration(config(), tmp_path)


def test_a_run_is_begun_then_taken_up_at_its_newest_checkpoint_until_it_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = config(output_dir=tmp_path, proj_name="run")
    folder = tmp_path / "run"
    assert take_up(run, validate=False) == (folder, None)
    for step in (9, 10):
        (folder / f"checkpoint-{step}").mkdir()
        (folder / f"checkpoint-{step}" / STATE_FILE).touch()
    (folder / "checkpoint-11").mkdir()  # without a state it is not a checkpoint
    assert take_up(run, validate=False) == (folder, str(folder / "checkpoint-10"))
    (folder / "config.json").touch()
    assert take_up(run, validate=True) == (folder, str(folder / "checkpoint-10"))  # its results are missing still
    assert take_up(run, validate=False) is None
    assert "run: is trained" in capsys.readouterr().err


def test_a_launcher_that_could_not_start_processes_again_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(ConfigError, match="set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        take_up(config(output_dir=tmp_path), validate=False)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    assert take_up(config(output_dir=tmp_path, proj_name="run"), validate=False) is not None
