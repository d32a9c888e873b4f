from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from p2l.common.errors import ConfigError
from p2l.common.program import Parser
from p2l.online_training.online_config import OnlineConfig
from p2l.online_training.online_train import build_parser as online_parser
from p2l.train import build_parser as offline_parser
from p2l.training.train_config import TrainConfig, load_config, load_config_as
from tests.conftest import ROOT

MINIMAL = {
    "learning_rate": "8e-6",
    "adam_epsilon": 1e-8,
    "batch_size": 4,
    "gradient_accumulation_steps": 16,
    "max_length": 8192,
    "train_data_path": "votes.parquet",
    "output_dir": "out",
    "pretrain_model_name": "Qwen/Qwen2.5-1.5B-Instruct",
    "model_type": "qwen2",
    "head_type": "rk",
    "loss_type": "bag",
    "deepspeed_config_path": "zero1.json",
}


def write(tmp_path: Path, changes: dict[str, object]) -> Path:
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in (MINIMAL | changes).items() if v is not ...}), encoding="utf-8")
    return path


def problem(tmp_path: Path, **changes: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, changes))
    message = str(caught.value)
    assert "\n" not in message
    assert str(tmp_path / "train.yaml") in message
    return message


def test_a_number_without_a_dot_is_a_number_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    text = yaml.safe_dump(MINIMAL).replace("'8e-6'", "8e-6")
    path.write_text(text, encoding="utf-8")
    assert load_config(path).learning_rate == 8e-6


def test_the_run_is_named_after_model_rate_batch_and_epochs(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, {}))
    assert config.run_name == "Qwen2.5-1.5B-Instruct_lr8e-06_bs64_ep1"
    assert load_config(write(tmp_path, {"proj_name": "mine"})).run_name == "mine"


def test_home_is_expanded_in_paths(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, {"train_data_path": "~/v.csv"})).train_data_path == str(Path.home() / "v.csv")


def test_an_unknown_key_names_the_nearest_known_one(tmp_path: Path) -> None:
    assert "(did you mean 'learning_rate'?)" in problem(tmp_path, learning_rat=1)


def test_a_wrong_key_or_value_is_named_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, {})
    text = path.read_text(encoding="utf-8")
    for line, wrong in ((text, "lerning_rate: 1"), (text.replace("batch_size: 4\n", ""), "batch_size: many")):
        path.write_text(f"{line}{wrong}\n", encoding="utf-8")
        with pytest.raises(ConfigError, match=rf"^{path}:{len(line.splitlines()) + 1}: "):
            load_config(path)


def test_a_value_that_replaces_one_of_the_file_has_no_line(tmp_path: Path) -> None:
    path = write(tmp_path, {})
    with pytest.raises(ConfigError, match=rf"^{path}: key 'batch_size'"):
        load_config_as(TrainConfig, path, {"batch_size": "many"})


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    assert "max_length" in problem(tmp_path, max_length=...)
    assert "adam_epsilon" in problem(tmp_path, adam_epsilon=...)


def test_a_wrong_value_is_named_with_its_key(tmp_path: Path) -> None:
    assert "'batch_size'" in problem(tmp_path, batch_size="many")
    assert "many" in problem(tmp_path, batch_size="many")
    assert "init_type" in problem(tmp_path, init_type="zeros")


def test_a_head_and_a_loss_that_cannot_go_together(tmp_path: Path) -> None:
    assert "head" in problem(tmp_path, head_type="bt", loss_type="grk")


def test_an_optimizer_block_replaces_the_learning_rate(tmp_path: Path) -> None:
    block = {"type": "AdamW", "params": {"lr": 1e-4}}
    config = load_config(write(tmp_path, {"optimizer": block, "learning_rate": ..., "adam_epsilon": ...}))
    assert config.base_learning_rate == 1e-4
    assert config.replaced_keys == []
    both = load_config(write(tmp_path, {"optimizer": block}))
    assert both.base_learning_rate == 1e-4
    assert both.replaced_keys == ["learning_rate", "adam_epsilon"]
    assert "head_learning_rate" in problem(tmp_path, optimizer=block, head_learning_rate=1e-3)
    assert "optimizer.params.lr" in problem(tmp_path, optimizer={"type": "AdamW", "params": {"lr": "fast"}})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch_size", True),
        ("learning_rate", float("inf")),
        ("learning_rate", [1e-4]),
        ("max_grad_norm", -1.0),
        ("seed", 2**70),
        ("proj_name", "../elsewhere"),
        ("proj_name", "."),
        ("head_type", ["rk"]),
        ("head_config", "eta_dim"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(tmp_path: Path, key: str, value: object) -> None:
    assert key in problem(tmp_path, **{key: value})


def test_a_missing_file_and_broken_yaml_are_one_line(tmp_path: Path) -> None:
    for text in (None, "a: [1", "just text", "a: 1\na: 2"):
        path = tmp_path / "train.yaml"
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"train\.yaml") as caught:
            load_config(path)
        assert "\n" not in str(caught.value)


def test_every_key_that_earlier_releases_knew_is_known() -> None:
    known = (
        "proj_name learning_rate adam_epsilon batch_size gradient_accumulation_steps max_length num_train_epochs "
        "lr_schedule train_data_path val_data_path load_train_data_from_disk load_val_data_from_disk output_dir "
        "pretrain_model_name chat_template model_type head_type loss_type weighted_loss reweight_scale "
        "deepspeed_config_path linear_head_downsize_factor head_config init_type train_head_only cls_token_if_none "
        "pad_token_if_none repo_id"
    )
    assert set(known.split()) <= set(TrainConfig.model_fields)


def test_votes_are_shuffled_unless_their_order_is_asked_for(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, {})).shuffle is True
    assert load_config(write(tmp_path, {"shuffle": False})).shuffle is False
    shipped = list((ROOT / "training_configs").glob("*.yaml"))
    assert len(shipped) > 10
    assert all(load_config(path).shuffle for path in shipped)


def test_online_training_chooses_no_step(tmp_path: Path) -> None:
    for key, value in (("selection_share", 0.1), ("cross_fit", 5), ("shared_level", True)):
        with pytest.raises(ConfigError, match=key):
            load_config_as(OnlineConfig, write(tmp_path, {key: value}))
    assert load_config_as(OnlineConfig, write(tmp_path, {})).shuffle is False


def test_keys_of_earlier_versions_are_read_where_they_change_nothing(tmp_path: Path) -> None:
    recorded = write(tmp_path, {"adam_betas": [0.9, 0.999]})
    assert "adam_betas" not in load_config(recorded).model_fields_set
    with pytest.raises(ConfigError, match="adam_betas"):
        load_config(write(tmp_path, {"adam_betas": [0.8, 0.9]}))


@pytest.mark.parametrize("build_parser", [offline_parser, online_parser])
def test_the_model_has_one_flag_with_its_old_spelling(build_parser: Callable[[], Parser]) -> None:
    source = ["--config", "a.yaml"]
    for spelling in ("--model", "--checkpoint"):
        assert build_parser().parse_args([*source, spelling, "runs/one"]).checkpoint == "runs/one"
    for spelling in ("--local-rank", "--local_rank"):
        assert build_parser().parse_args([*source, spelling, "1"]).local_rank == 1
