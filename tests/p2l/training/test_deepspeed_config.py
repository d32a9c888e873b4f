import json
from pathlib import Path
from typing import Any

import pytest

from p2l.common.errors import ConfigError
from p2l.training.deepspeed_config import (
    compiles_optimizer,
    find_deepspeed_file,
    prepare_kernels,
    resolve_deepspeed,
    set_total_steps,
    update_rule,
)
from p2l.training.train_config import TrainConfig


def config(**changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "output_dir": "out",
        "train_data_path": "v.csv",
        "pretrain_model_name": "m",
        "model_type": "qwen2",
        "head_type": "rk",
        "loss_type": "grk",
        "max_length": 64,
        "learning_rate": 1e-3,
        "adam_epsilon": 1e-8,
        "batch_size": 4,
        "gradient_accumulation_steps": 8,
        "deepspeed_config_path": "ds.json",
    }
    return TrainConfig(**(settings | changes))


def resolve(
    tmp_path: Path, file: object, *, on_gpu: bool = False, gpu_compiler: bool = True, **changes: Any
) -> tuple[dict[str, Any], str]:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    return resolve_deepspeed(config(**changes), path, world_size=2, on_gpu=on_gpu, gpu_compiler=gpu_compiler)


def test_every_auto_is_resolved(tmp_path: Path) -> None:
    file = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
        },
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5, "warmup_min_lr": "auto"}},
    }
    resolved, precision = resolve(tmp_path, file)
    assert "auto" not in json.dumps(resolved)
    assert precision == "float32"
    assert resolved["optimizer"]["params"]["lr"] == 1e-3
    assert resolved["zero_optimization"] == {"stage": 2}
    assert resolved["gradient_clipping"] == 1.0


def test_a_scheduler_that_leaves_rates_and_lengths_open_gets_those_of_the_run(tmp_path: Path) -> None:
    names = ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")
    file = {"scheduler": {"type": "WarmupDecayLR", "params": dict.fromkeys(names, "auto")}}
    resolved = set_total_steps(resolve(tmp_path, file, warmup_steps=3)[0], 50)
    assert resolved["scheduler"]["params"] == {
        "warmup_min_lr": 0.0,
        "warmup_max_lr": 1e-3,
        "warmup_num_steps": 3,
        "total_num_steps": 50,
    }
    short = {"type": "WarmupLR", "params": {"warmup_num_steps": 2}}
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [({}, {"scheduler": short}), ({"custom_scheduler": short}, {})]
    for changes, found in cases:
        resolved = set_total_steps(resolve(tmp_path, found, **changes)[0], 50)
        assert resolved["scheduler"]["params"] == {"warmup_num_steps": 2, "warmup_max_lr": 1e-3}
    for name in ("WarmupDecayLR", "WarmupCosineLR"):
        resolved = set_total_steps(resolve(tmp_path, {}, custom_scheduler={"type": name})[0], 50)
        assert resolved["scheduler"]["params"]["total_num_steps"] == 50


def test_bfloat16_keeps_float32_master_weights_and_sums(tmp_path: Path) -> None:
    for file in ({}, {"bf16": {"enabled": "auto"}}):
        resolved = resolve(tmp_path, file, dtype="bfloat16")[0]
        assert resolved["zero_optimization"] == {"stage": 1}
        assert resolved["data_types"] == {"grad_accum_dtype": "fp32"}
    asked = {"bfloat16": {"enabled": True}, "data_types": {"grad_accum_dtype": "bf16"}}
    resolved, precision = resolve(tmp_path, asked)
    assert precision == "bfloat16"
    assert resolved["data_types"] == {"grad_accum_dtype": "bf16"}
    assert "bfloat16" not in resolved


def test_a_cpu_needs_no_compiled_optimizer_and_a_gpu_gets_deepspeeds(tmp_path: Path) -> None:
    assert resolve(tmp_path, {})[0]["optimizer"]["params"]["torch_adam"] is True
    assert "torch_adam" not in resolve(tmp_path, {}, on_gpu=True)[0]["optimizer"]["params"]
    without = resolve(tmp_path, {}, on_gpu=True, gpu_compiler=False)[0]
    assert without["optimizer"]["params"]["torch_adam"] is True


def test_auto_stage_is_the_lowest_and_other_keys_of_bf16_stay(tmp_path: Path) -> None:
    zero = {"zero_optimization": {"stage": "auto"}}
    assert resolve(tmp_path, zero)[0]["zero_optimization"] == {"stage": 0}
    resolved, _ = resolve(tmp_path, {**zero, "bf16": {"enabled": True, "check_grad_overflow": False}})
    assert resolved["zero_optimization"] == {"stage": 1}
    assert resolved["bf16"] == {"enabled": True, "check_grad_overflow": False}


def test_the_rule_of_an_update_knows_clipping_but_neither_place_nor_length(tmp_path: Path) -> None:
    file: dict[str, Any] = {"zero_optimization": {"stage": 2}, "scheduler": {"type": "WarmupDecayLR"}}
    file["scheduler"]["params"] = {"total_num_steps": "auto"}
    one = update_rule(set_total_steps(resolve(tmp_path, file)[0], 10))
    file["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    assert update_rule(set_total_steps(resolve(tmp_path, file, on_gpu=True)[0], 20)) == one
    assert update_rule(resolve(tmp_path, {**file, "gradient_clipping": 0.5})[0]) != one


def test_an_offloaded_optimizer_is_compiled_on_a_gpu_or_when_asked_for(tmp_path: Path) -> None:
    file = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    resolved = resolve(tmp_path, file)[0]
    assert not compiles_optimizer(resolved)
    assert resolved["zero_force_ds_cpu_optimizer"] is False
    asked = {"optimizer": {"type": "AdamW", "params": {"torch_adam": False}}}
    assert compiles_optimizer(resolve(tmp_path, file | asked)[0])
    assert compiles_optimizer(resolve(tmp_path, file, on_gpu=True)[0])


def test_a_compiler_that_is_needed_and_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    prepare_kernels(resolve(tmp_path, file)[0])
    with pytest.raises(ConfigError, match=r"g\+\+.*torch_adam"):
        prepare_kernels(resolve(tmp_path, file, on_gpu=True)[0])


def test_auto_precision_is_bfloat16_on_a_gpu_only(tmp_path: Path) -> None:
    auto = {"bf16": {"enabled": "auto"}}
    assert resolve(tmp_path, auto)[1] == "float32"
    assert resolve(tmp_path, auto, on_gpu=True)[1] == "bfloat16"
    assert resolve(tmp_path, auto, dtype="bfloat16")[1] == "bfloat16"
    assert resolve(tmp_path, {}, dtype="bfloat16")[0]["bf16"] == {"enabled": True}


@pytest.mark.parametrize(
    ("file", "changes", "names"),
    [
        ({"train_micro_batch_size_per_gpu": 8}, {}, ["train_micro_batch_size_per_gpu", "8", "4"]),
        ({"train_batch_size": 32}, {}, ["train_batch_size", "32", "64"]),
        ({"gradient_accumulation_steps": 1}, {}, ["gradient_accumulation_steps"]),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 0.5}}}, {}, ["lr", "0.5", "0.001"]),
        ({"gradient_clipping": 2.0}, {"max_grad_norm": 1.0}, ["gradient_clipping"]),
        ({"bf16": {"enabled": True}}, {"dtype": "float32"}, ["bf16"]),
        ({"fp16": {"enabled": True}}, {}, ["fp16", "bf16"]),
        ({"scheduler": {"type": "WarmupLR"}}, {"lr_schedule": "cosine"}, ["scheduler"]),
        ({"aio": {"block_size": "auto"}}, {}, ["aio.block_size"]),
        (["list"], {}, ["object"]),
        ({"zero_optimization": 1}, {}, ["zero_optimization"]),
        ({"zero_optimization": {"stage": 7}}, {}, ["stage", "7"]),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, {}, ["offload_optimizer", "stage 0"]),
        ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, {}, ["offload_param", "stage 2"]),
        ({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": 1}}}, {}, ["offload_optimizer", "cpu"]),
        ({"zero_optimization": {"stage": 1, "offload_optimizer": True}}, {}, ["offload_optimizer", "cpu"]),
        ({"zero_optimization": {"stage": 1, "offload_optimizer": "cpu"}}, {}, ["offload_optimizer", "device"]),
        ({"zero_optimization": {"stage": True}}, {}, ["stage"]),
        ({"zero_optimization": {"stage": 2.0}}, {}, ["stage", "2.0"]),
        ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, {}, ["cpu_offload", "offload_optimizer"]),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, {}, ["offload_param", "nvme_path"]),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}}, {}, ["nvme", "stage 3"]),
        ({"scheduler": {}}, {}, ["scheduler", "type"]),
        ({"zero_optimisation": {"stage": 1}}, {}, ["did you mean 'zero_optimization'"]),
        ({"zero_optimization": {"stage": 0}}, {"dtype": "bfloat16"}, ["stage", "bfloat16"]),
        ({"bf16": True}, {}, ["bf16"]),
        ({"bf16": {"enabled": "false"}}, {}, ["bf16.enabled"]),
        ({"fp16": True}, {}, ["fp16"]),
        ({"gradient_clipping": "much"}, {}, ["gradient_clipping", "much"]),
        ({"optimizer": {"type": 3}}, {}, ["optimizer"]),
        ({"optimizer": {"type": "AdamW", "params": [1]}}, {}, ["optimizer"]),
        ({"scheduler": {"type": "WarmupLR"}}, {"custom_scheduler": {"type": "WarmupLR"}}, ["scheduler"]),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.5}}}, {}, ["warmup_max_lr", "0.5", "0.001"]),
    ],
)
def test_a_file_that_contradicts_the_configuration_is_refused(
    tmp_path: Path, file: object, changes: dict[str, Any], names: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(tmp_path, file, **changes)
    for name in [*names, "ds.json"]:
        assert name in str(caught.value)


def test_the_file_is_found_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text("{}", encoding="utf-8")
    assert find_deepspeed_file(config(), tmp_path / "train.yaml") == tmp_path / "ds.json"
    with pytest.raises(ConfigError, match="deepspeed_config_path"):
        find_deepspeed_file(config(deepspeed_config_path="none.json"), tmp_path / "train.yaml")


@pytest.mark.parametrize("kind", ["SGD", "Adagrad", "Lion"])
def test_another_optimizer_gets_no_parameters_of_adam(kind: str, tmp_path: Path) -> None:
    resolved, _ = resolve(tmp_path, {"optimizer": {"type": kind, "params": {"lr": "auto"}}}, weight_decay=0.1)
    assert resolved["optimizer"] == {"type": kind, "params": {"lr": 1e-3, "weight_decay": 0.1}}
