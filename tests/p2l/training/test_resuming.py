from pathlib import Path

import pytest

from p2l.common.errors import CheckpointError
from p2l.training.run_folder import check_same_configuration
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
