"""A DeepSpeed JSON file and the training configuration become one dictionary that `deepspeed.initialize` accepts.

`"auto"` is understood by the Hugging Face Trainer alone, yet stands in many users' files: it is resolved here from the
training configuration. Where the two files both give a value they must agree; the error names both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from p2l.config import TrainConfig
from p2l.errors import ConfigError

__all__ = ["Precision", "find_deepspeed_file", "resolve_deepspeed"]

Precision = str  # "float32" | "bfloat16"

_AUTO = "auto"


def find_deepspeed_file(config: TrainConfig, config_path: str | Path) -> Path:
    """`deepspeed_config_path`, looked up from the working directory, then from the configuration file.

    Raises:
        ConfigError: there is no such file in either place.
    """
    given = Path(config.deepspeed_config_path)
    for candidate in (given, Path(config_path).expanduser().resolve().parent / given):
        if candidate.is_file():
            return candidate
    raise ConfigError(f"{config_path}: key 'deepspeed_config_path': no file {given} here or beside the configuration")


def resolve_deepspeed(
    config: TrainConfig, path: Path, *, world_size: int, on_gpu: bool, gpu_has_bfloat16: bool = True
) -> tuple[dict[str, Any], Precision]:
    """The dictionary for `deepspeed.initialize`, and the precision that the model is built in.

    Args:
        config: the training configuration.
        path: the DeepSpeed file.
        world_size: processes in the run; decides the global batch.
        on_gpu: on a CPU the optimizer is torch's, so that no kernel needs to be compiled.
        gpu_has_bfloat16: what `auto` precision means on this GPU.

    Raises:
        ConfigError: the file is no JSON object, or contradicts the configuration.
    """
    raw = _read_json(path)
    batch = _batch_sizes(config, world_size)
    for key, value in batch.items():
        _agree(raw, key, value, path)
    precision = _precision(config, raw, path, default="bfloat16" if on_gpu and gpu_has_bfloat16 else "float32")
    resolved = {key: value for key, value in raw.items() if key not in {"fp16", "bf16", *batch}}
    resolved |= {
        "train_micro_batch_size_per_gpu": config.batch_size,
        # The trainer says where an optimizer step ends, and scales the loss itself (see engine.py).
        "gradient_accumulation_steps": 1,
        "train_batch_size": config.batch_size * world_size,
        "gradient_clipping": _clipping(config, raw, path),
        "bf16": {"enabled": precision == "bfloat16"},
        "optimizer": _optimizer(config, raw, path, on_gpu=on_gpu),
        "steps_per_print": 10**9,
    }
    resolved.pop("scheduler", None)
    if "scheduler" in raw or config.custom_scheduler:
        resolved |= _scheduler(config, raw, path)
    resolved["zero_optimization"] = _zero(raw)
    _refuse_auto(resolved, path)
    return resolved, precision


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: not valid JSON: line {error.lineno}: {error.msg}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(raw).__name__}")
    return raw


def _batch_sizes(config: TrainConfig, world_size: int) -> dict[str, int]:
    micro, accumulation = config.batch_size, config.gradient_accumulation_steps
    return {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "train_batch_size": micro * accumulation * world_size,
    }


def _agree(raw: dict[str, Any], key: str, value: object, path: Path, name: str | None = None) -> None:
    given = raw.get(key, _AUTO)
    if given != _AUTO and given != value:
        raise ConfigError(
            f"{path}: {name or key!r} is {given!r}, but the training configuration makes it {value!r}; "
            'write "auto" there, or change one of the two'
        )


def _precision(config: TrainConfig, raw: dict[str, Any], path: Path, *, default: Precision) -> Precision:
    if raw.get("fp16", {}).get("enabled") is True:
        raise ConfigError(f"{path}: 'fp16': not supported, its range is too small for coefficients; use bf16")
    enabled = raw.get("bf16", {}).get("enabled", False)
    if enabled == _AUTO:
        return default if config.dtype == _AUTO else config.dtype
    asked = "bfloat16" if enabled else "float32"
    if config.dtype not in (_AUTO, asked) and "bf16" in raw:
        _agree({"bf16": asked}, "bf16", config.dtype, path)
    return asked if config.dtype == _AUTO else config.dtype


def _clipping(config: TrainConfig, raw: dict[str, Any], path: Path) -> float:
    given = raw.get("gradient_clipping", _AUTO)
    if config.max_grad_norm is None:
        return 1.0 if given == _AUTO else float(given)
    _agree(raw, "gradient_clipping", config.max_grad_norm, path)
    return config.max_grad_norm


def _optimizer(config: TrainConfig, raw: dict[str, Any], path: Path, *, on_gpu: bool) -> dict[str, Any]:
    if config.optimizer is not None:
        block = config.optimizer.model_dump()
        if "optimizer" in raw:
            raise ConfigError(f"{path}: 'optimizer' stands here and in the training configuration; remove one")
    else:
        wanted = {
            "lr": config.learning_rate,
            "betas": list(config.adam_betas),
            "eps": config.adam_epsilon,
            "weight_decay": config.weight_decay,
        }
        given = raw.get("optimizer", {})
        params = given.get("params", {})
        for key, value in wanted.items():
            _agree(params, key, value, path, name=f"optimizer.params.{key}")
        block = {"type": given.get("type", "AdamW"), "params": {**params, **wanted}}
    if not on_gpu and block["type"].lower() in {"adam", "adamw"} and not _offloads(raw):
        block["params"].setdefault("torch_adam", True)
    return block


def _scheduler(config: TrainConfig, raw: dict[str, Any], path: Path) -> dict[str, Any]:
    if "scheduler" not in raw:
        assert config.custom_scheduler is not None
        return {"scheduler": config.custom_scheduler.model_dump()}
    block = raw["scheduler"]
    if config.custom_scheduler is not None or config.lr_schedule != "constant" or config.warmup_steps:
        raise ConfigError(f"{path}: 'scheduler' stands here and in the training configuration; remove one")
    params = {key: value for key, value in block.get("params", {}).items() if value != _AUTO}
    return {"scheduler": {**block, "params": params}}


def _zero(raw: dict[str, Any]) -> dict[str, Any]:
    """ZeRO settings; an `auto` there falls back to DeepSpeed's own default."""
    zero = raw.get("zero_optimization", {"stage": 0})
    return {key: value for key, value in zero.items() if value != _AUTO}


def _offloads(raw: dict[str, Any]) -> bool:
    device = raw.get("zero_optimization", {}).get("offload_optimizer", {}).get("device", "none")
    return bool(device != "none")


def _refuse_auto(node: object, path: Path, key: str = "") -> None:
    if node == _AUTO:
        raise ConfigError(f'{path}: {key!r}: "auto" has no meaning here; give a value or remove the key')
    if isinstance(node, dict):
        for name, value in node.items():
            _refuse_auto(value, path, f"{key}.{name}" if key else str(name))
