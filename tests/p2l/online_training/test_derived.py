"""A live run takes its configuration from the model that it begins with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p2l.common.errors import ConfigError
from p2l.online_training.online_config import OnlineConfig, derived_configuration
from p2l.training.train_config import load_config, load_config_as
from tests.conftest import Configure


def model_of(folder: Path, record: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "training_config.json").write_text(record, encoding="utf-8")
    return folder


def test_passes_over_a_data_set_become_a_stream(tmp_path: Path, configure: Configure) -> None:
    offline = load_config(
        configure(
            shuffle="by_prompt",
            num_train_epochs=6,
            init_type="marginal",
            shared_level=True,
            lr_schedule="cosine",
            warmup_steps=300,
            learning_rate=0.03,
            head_learning_rate=0.3,
            repo_id="a/b",
        )
    )
    first = model_of(tmp_path / "outputs" / "first", offline.model_dump_json())
    record, changes = derived_configuration(str(first))
    online = load_config_as(OnlineConfig, record, changes)
    assert online.output_dir / online.run_name == tmp_path / "outputs" / "first-online"
    # Steps of 16 votes in place of offline ones of 4: the rate grows with the root of their size, and is a third.
    assert (online.batch_size, online.gradient_accumulation_steps) == (16, 1)
    grown = (16 / (offline.batch_size * offline.gradient_accumulation_steps)) ** 0.5
    assert (online.learning_rate, online.head_learning_rate) == pytest.approx((0.03 / 4.5 * grown, 0.3 / 4.5 * grown))
    assert (online.lr_schedule, online.shuffle, online.num_train_epochs, online.repo_id) == ("constant", False, 1, None)
    assert online.buffer.type == "replay"
    assert online.max_length == offline.max_length


def test_a_run_that_goes_on_keeps_its_own(tmp_path: Path, configure: Configure) -> None:
    own = load_config_as(OnlineConfig, configure(), {"buffer": {"type": "none"}})
    folder = model_of(tmp_path / "run" / "checkpoint-8", own.model_dump_json())
    (folder / "trainer_state.json").write_text(json.dumps({"step": 8}), encoding="utf-8")
    record, changes = derived_configuration(str(folder.parent))
    assert load_config_as(OnlineConfig, record, changes) == own


@pytest.mark.parametrize("checkpoint", [None, "owner/model", "."])
def test_without_either_it_says_what_is_missing(checkpoint: str | None) -> None:
    with pytest.raises(ConfigError, match="--config is missing; name a configuration"):
        derived_configuration(checkpoint)
