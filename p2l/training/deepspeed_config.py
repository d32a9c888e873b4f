"""Merge a DeepSpeed JSON file and the training configuration into one dictionary for `deepspeed.initialize`.

Where both files give a value, the two must agree; the error names both. Also here: the compilers that such settings
need, and torch.compile for the layers of a backbone.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from p2l.common.cli import choose, nearest
from p2l.common.errors import ConfigError
from p2l.common.files import parse_json
from p2l.model.backbones import P2L_ATTENTION, register_attention
from p2l.training.train_config import TrainConfig

Precision = str  # "float32" | "bfloat16"
# Only the Hugging Face Trainer understands it, yet many users' files contain it: it is resolved here.
_AUTO = "auto"
_TOTAL_STEPS = "total_num_steps"
_OLD_OFFLOAD = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}
# DeepSpeed silently ignores top-level keys that it does not know.
_BLOCK_KEYS = {
    "activation_checkpointing", "aio", "autotuning", "bf16", "bfloat16", "checkpoint", "comet", "comms_logger",
    "compile", "compression_training", "csv_monitor", "data_types", "fp16", "flops_profiler", "nebula", "optimizer",
    "scheduler", "tensorboard", "timers", "torch_autocast", "wandb", "zero_optimization",
}  # fmt: skip
_VALUE_KEYS = {
    "communication_data_type", "disable_allgather", "disable_python_gc", "dump_state", "gradient_accumulation_steps",
    "gradient_allreduce_op", "gradient_clipping", "gradient_predivide_factor", "memory_breakdown", "prescale_gradients",
    "sparse_gradients", "steps_per_print", "train_batch_size", "train_micro_batch_size_per_gpu",
    "use_node_local_storage", "wall_clock_breakdown", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
}  # fmt: skip


def find_deepspeed_file(config: TrainConfig, config_path: str | Path) -> Path:
    """Find `deepspeed_config_path` from the working directory, else beside the configuration; ConfigError if absent."""
    path = Path(config.deepspeed_config_path)
    for candidate in (path, Path(config_path).expanduser().resolve().parent / path):
        if candidate.is_file():
            return candidate
    raise ConfigError(f"{config_path}: key 'deepspeed_config_path': no file {path} here or beside the configuration")


def resolve_deepspeed(
    config: TrainConfig,
    path: Path,
    *,
    world_size: int,
    on_gpu: bool,
    gpu_has_bfloat16: bool = True,
    gpu_compiler: bool = True,
) -> tuple[dict[str, Any], Precision]:
    """Return the dictionary for `deepspeed.initialize`, and the precision that the model is built in.

    On a CPU, and on a GPU without `gpu_compiler`, the optimizer is torch's, so that no kernel needs to be compiled.
    ConfigError if the file at `path` is not a JSON object, or contradicts the configuration.
    """
    raw = _checked(_read_json(path), path)
    batch = {
        "train_micro_batch_size_per_gpu": config.batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "train_batch_size": config.batch_size * config.gradient_accumulation_steps * world_size,
    }
    for key, value in batch.items():
        _agree(raw, key, value, path)
    precision = _precision(config, raw, path, default="bfloat16" if on_gpu and gpu_has_bfloat16 else "float32")
    zero = _zero(raw, path, precision)
    resolved = {key: value for key, value in raw.items() if key not in {"fp16", "bf16", *batch}}
    resolved |= {
        "train_micro_batch_size_per_gpu": config.batch_size,
        # The trainer decides where an optimizer step ends, and scales the loss itself (see engine.py).
        "gradient_accumulation_steps": 1,
        "train_batch_size": config.batch_size * world_size,
        "gradient_clipping": _clipping(config, raw, path),
        "bf16": {**raw.get("bf16", {}), "enabled": precision == "bfloat16"},
        "optimizer": _optimizer(config, raw, path, torch_adam=not (gpu_compiler and on_gpu)),
        "steps_per_print": 10**9,  # never: the run reports its steps itself
        "zero_optimization": zero,
    }
    if resolved["optimizer"]["params"].get("torch_adam"):
        # torch's optimizer gives the same weights as DeepSpeed's for offloaded parameters; it is only slower.
        resolved.setdefault("zero_force_ds_cpu_optimizer", False)
    if precision == "bfloat16":
        # DeepSpeed's default accumulates micro-batches in bfloat16, which rounds small gradients away.
        resolved["data_types"] = {"grad_accum_dtype": "fp32", **raw.get("data_types", {})}
    if "scheduler" in raw or config.custom_scheduler:
        resolved["scheduler"] = _scheduler(config, raw, path)
    _refuse_auto({key: value for key, value in resolved.items() if key != "scheduler"}, path)
    return resolved, precision


def set_total_steps(resolved: dict[str, Any], total_steps: int | None) -> dict[str, Any]:
    """Fill in the scheduler's number of steps, which is known once the votes are counted."""
    params = resolved.get("scheduler", {}).get("params", {})
    if params.get(_TOTAL_STEPS) != _AUTO:
        return resolved
    if total_steps is None:
        raise ConfigError(f"'scheduler.params.{_TOTAL_STEPS}': a growing stream has no known number of steps; add one")
    scheduler = {**resolved["scheduler"], "params": {**params, _TOTAL_STEPS: total_steps}}
    return {**resolved, "scheduler": scheduler}


def update_rule(resolved: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that decide how a gradient changes the weights, as JSON values."""
    rule: dict[str, Any] = {key: resolved.get(key) for key in ("gradient_clipping", "optimizer", "scheduler")}
    for block, ignored in (("optimizer", "torch_adam"), ("scheduler", _TOTAL_STEPS)):
        if rule[block]:
            params = {key: value for key, value in rule[block].get("params", {}).items() if key != ignored}
            rule[block] = {**rule[block], "params": params}
    decoded: dict[str, Any] = json.loads(json.dumps(rule))
    return decoded


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: not valid JSON: line {error.lineno}: {error.msg}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(raw).__name__}")
    return raw


def _checked(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Check keys, and the types of the values that this module uses."""
    for key, value in raw.items():
        if key not in _BLOCK_KEYS | _VALUE_KEYS:
            raise ConfigError(f"{path}: unknown key {key!r}{nearest(key, _BLOCK_KEYS | _VALUE_KEYS)}; fix or remove it")
        if key in _BLOCK_KEYS and not isinstance(value, dict):
            raise ConfigError(f"{path}: {key!r} must be an object {{...}}, got {value!r}")
    if "bfloat16" in raw:  # DeepSpeed's old name of bf16
        raw = {"bf16": raw["bfloat16"], **{key: value for key, value in raw.items() if key != "bfloat16"}}
    for name in ("bf16", "fp16"):
        if raw.get(name, {}).get("enabled", _AUTO) not in (True, False, _AUTO):
            raise ConfigError(f"{path}: '{name}.enabled' must be true, false or \"auto\"")
    for name in ("optimizer", "scheduler"):
        block = raw.get(name, {"type": ""})
        if not isinstance(block.get("type", ""), str) or not isinstance(block.get("params", {}), dict):
            raise ConfigError(f'{path}: {name!r} must be of the form {{"type": name, "params": {{...}}}}')
    return raw


def _agree(raw: dict[str, Any], key: str, value: object, path: Path, name: str | None = None) -> None:
    written = raw.get(key, _AUTO)
    if written != _AUTO and written != value:
        raise ConfigError(
            f"{path}: {name or key!r} is {written!r}, but the training configuration makes it {value!r}; "
            'write "auto" there, or change one of the two'
        )


def _precision(config: TrainConfig, raw: dict[str, Any], path: Path, *, default: Precision) -> Precision:
    if raw.get("fp16", {}).get("enabled") is True:
        raise ConfigError(f"{path}: 'fp16': not supported, its range is too small for coefficients; use bf16")
    enabled = raw.get("bf16", {}).get("enabled", False)
    if enabled == _AUTO:
        return default if config.dtype == _AUTO else config.dtype
    precision = "bfloat16" if enabled else "float32"
    if config.dtype not in (_AUTO, precision) and "bf16" in raw:
        _agree({"bf16": precision}, "bf16", config.dtype, path)
    return precision if config.dtype == _AUTO else config.dtype


def _clipping(config: TrainConfig, raw: dict[str, Any], path: Path) -> float:
    written = raw.get("gradient_clipping", _AUTO)
    if config.max_grad_norm is None:
        if isinstance(written, bool) or (not isinstance(written, (int, float)) and written != _AUTO):
            raise ConfigError(f"{path}: 'gradient_clipping' must be a number, got {written!r}")
        return 1.0 if written == _AUTO else float(written)
    _agree(raw, "gradient_clipping", config.max_grad_norm, path)
    return config.max_grad_norm


def _optimizer(config: TrainConfig, raw: dict[str, Any], path: Path, *, torch_adam: bool) -> dict[str, Any]:
    if config.optimizer is not None:
        block = config.optimizer.model_dump()
        if "optimizer" in raw:
            raise ConfigError(f"{path}: 'optimizer' is here and in the training configuration; remove one")
    else:
        block = {"type": "AdamW", "params": {}, **raw.get("optimizer", {})}
        settings: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
        if "adam" in block["type"].lower():
            settings["eps"] = config.adam_epsilon
        for key, value in settings.items():
            _agree(block["params"], key, value, path, name=f"optimizer.params.{key}")
        block = {"type": block["type"], "params": {**block["params"], **settings}}
        if "adam" in block["type"].lower() and block["params"].get("betas", _AUTO) == _AUTO:
            block["params"]["betas"] = [0.9, 0.999]
    _refuse_auto(block, path, "optimizer")
    if torch_adam and block["type"].lower() in {"adam", "adamw"}:
        block["params"].setdefault("torch_adam", True)
    return block


def _scheduler(config: TrainConfig, raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the scheduler block, with absent and `auto` values from the training configuration."""
    if "scheduler" in raw and (config.custom_scheduler is not None or config.lr_schedule != "constant"):
        raise ConfigError(f"{path}: 'scheduler' is here and in the training configuration; remove one")
    if config.head_learning_rate is not None:
        raise ConfigError(f"{path}: 'scheduler' sets one rate, head_learning_rate another; use lr_schedule instead")
    block = raw["scheduler"] if config.custom_scheduler is None else config.custom_scheduler.model_dump()
    if not block.get("type"):
        raise ConfigError(f"{path}: 'scheduler' has no type; add one, or remove the block")
    params = dict(block.get("params", {}))
    ours: dict[str, Any] = {"warmup_min_lr": 0.0, "warmup_num_steps": max(1, config.warmup_steps), _TOTAL_STEPS: _AUTO}
    if config.warmup_steps:
        _agree(params, "warmup_num_steps", config.warmup_steps, path, name="scheduler.params.warmup_num_steps")
        params.setdefault("warmup_num_steps", config.warmup_steps)
    if block["type"] in {"WarmupDecayLR", "WarmupCosineLR"}:
        params.setdefault(_TOTAL_STEPS, _AUTO)
    if block["type"] in {"WarmupLR", "WarmupDecayLR"}:
        # DeepSpeed's default is 1e-3, whatever rate the optimizer has.
        ours["warmup_max_lr"] = config.base_learning_rate
        params.setdefault("warmup_max_lr", _AUTO)
        if "scheduler" in raw:
            _agree(params, "warmup_max_lr", config.base_learning_rate, path, name="scheduler.params.warmup_max_lr")
    resolved = {key: ours.get(key) if value == _AUTO else value for key, value in params.items()}
    return {**block, "params": {key: value for key, value in resolved.items() if value is not None}}


def _zero(raw: dict[str, Any], path: Path, precision: Precision) -> dict[str, Any]:
    """Return the ZeRO settings; an `auto` there means DeepSpeed's own default."""
    written = {key: value for key, value in raw.get("zero_optimization", {}).items() if value != _AUTO}
    # Without ZeRO there are no float32 master weights, and small updates of bfloat16 weights are rounded away.
    zero = {"stage": 1 if precision == "bfloat16" else 0, **written}
    stage = zero["stage"]
    if type(stage) is not int or stage not in (0, 1, 2, 3):
        raise ConfigError(f"{path}: 'zero_optimization.stage' must be 0, 1, 2 or 3, got {stage!r}")
    if stage == 0 and precision == "bfloat16":
        raise ConfigError(f"{path}: 'zero_optimization.stage' is 0, but bfloat16 needs 1, 2 or 3; or use dtype float32")
    # Offloading that DeepSpeed would ignore, or reject with an error that does not name the key.
    for key, stages in (("offload_optimizer", (1, 2, 3)), ("offload_param", (3,))):
        block = zero.get(key)
        device = block.get("device", "none") if isinstance(block, dict) else "none" if block is None else None
        if not isinstance(device, str) or device not in {"none", "cpu", "nvme"}:
            raise ConfigError(f'{path}: \'zero_optimization.{key}\' must be of the form {{"device": "cpu"}}')
        if device != "none" and zero["stage"] not in stages:
            needed = " or ".join(map(str, stages))
            raise ConfigError(f"{path}: 'zero_optimization.{key}' needs stage {needed}, this is stage {zero['stage']}")
        if device == "nvme" and zero["stage"] != 3:
            raise ConfigError(
                f"{path}: 'zero_optimization.{key}': nvme needs stage 3, this is stage {zero['stage']}; use cpu"
            )
        if device == "nvme" and not isinstance(zero[key].get("nvme_path"), str):
            raise ConfigError(f"{path}: 'zero_optimization.{key}': nvme needs a folder; add \"nvme_path\"")
        if zero.get(old := _OLD_OFFLOAD[key]):
            raise ConfigError(f'{path}: \'zero_optimization.{old}\' is an old name; write "{key}": {{"device": "cpu"}}')
    return zero


def _refuse_auto(node: object, path: Path, key: str = "") -> None:
    if node == _AUTO:
        raise ConfigError(f'{path}: {key!r}: "auto" has no meaning here; give a value or remove the key')
    if isinstance(node, dict):
        for name, value in node.items():
            _refuse_auto(value, path, f"{key}.{name}" if key else str(name))


# Compilers. Nothing is compiled unless a setting asks for it.

# DeepSpeed's own optimizers for parameters that are offloaded to the CPU.
_CPU_KERNELS = frozenset(["adam", "adamw", "adagrad", "lion"])


def _check_compiler(feature: str, instead: str) -> None:
    """Raise ConfigError, naming the `feature` that needs it and what to do `instead`, if there is no C++ compiler."""
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        raise ConfigError(f"{feature} needs a C++ compiler and there is none; install g++, or {instead}")


def has_cuda_compiler() -> bool:
    """Return whether DeepSpeed can compile its GPU optimizer here."""
    from torch.utils.cpp_extension import CUDA_HOME

    return CUDA_HOME is not None and shutil.which("nvcc", path=str(Path(CUDA_HOME) / "bin")) is not None


def compiles_optimizer(resolved: Mapping[str, Any]) -> bool:
    """Return whether DeepSpeed compiles an optimizer for offloaded parameters at the first start."""
    offload = resolved["zero_optimization"].get("offload_optimizer") or {}
    block = resolved["optimizer"]
    offloads = offload.get("device", "none") != "none" and resolved["zero_optimization"]["stage"] > 0
    return offloads and block["type"].lower() in _CPU_KERNELS and not block["params"].get("torch_adam", False)


def prepare_kernels(resolved: Mapping[str, Any]) -> None:
    """Raise ConfigError if DeepSpeed would compile an optimizer at its first start and a compiler is missing."""
    if not compiles_optimizer(resolved):
        return
    name = resolved["optimizer"]["type"]
    _check_compiler(
        f"DeepSpeed's {name} for an offloaded optimizer", 'write "torch_adam": true into the optimizer\'s params'
    )
    if shutil.which("ninja") is None:
        # pip installs ninja beside this Python, whose folder is not on the path when it was started by its full name.
        os.environ["PATH"] += os.pathsep + str(Path(sys.executable).parent)


# torch.compile, layer by layer: one graph serves all layers and all lengths of text.


def compile_backbone(backbone: nn.Module, device: torch.device) -> None:
    """Compile a transformer's layers at its first forward pass; ConfigError without a compiler, or without layers.

    Gradient checkpointing has to be enabled before; validation then runs uncompiled.
    """
    if device.type == "cpu":
        _check_compiler("key 'compile'", "set it to false")
    stacks = [module for module in backbone.modules() if isinstance(module, nn.ModuleList)]
    if not stacks:
        raise ConfigError("key 'compile': this backbone has no layers to compile; set it to false")
    from transformers import AttentionInterface

    register_attention()
    # Attention is left out: its loops and kernels depend on the ends of the packed prompts, and would be recompiled for
    # every batch.
    attend = AttentionInterface()[P2L_ATTENTION]  # type: ignore[no-untyped-call]
    AttentionInterface.register(P2L_ATTENTION, torch.compiler.disable(attend))  # type: ignore[no-untyped-call]
    for layer in max(stacks, key=len):
        if getattr(layer, "gradient_checkpointing", False):
            _compile_within_checkpoint(layer)
        else:
            layer.compile(dynamic=True)


def _compile_within_checkpoint(layer: Any) -> None:
    """Compile the function that gradient checkpointing runs again in the backward pass."""
    # Compiled from outside, the layer would meet attention, which breaks the graph, in the middle of a checkpoint:
    # torch then compiles nothing of the layer, silently.
    checkpoint = layer._gradient_checkpointing_func
    forwards: dict[Callable[..., Any], Callable[..., Any]] = {}

    def checkpoint_compiled(run: functools.partial[Any], *inputs: Any) -> Any:
        if run.func not in forwards:
            forwards[run.func] = torch.compile(run.func, dynamic=True)
        return checkpoint(functools.partial(forwards[run.func], *run.args, **run.keywords), *inputs)

    layer._gradient_checkpointing_func = checkpoint_compiled


# Schedule of the rate and groups of parameters.


def make_scheduler(config: TrainConfig, total_steps: int | None) -> Callable[[torch.optim.Optimizer], Any]:
    """Return a factory of the schedule that the configuration names; ConfigError if it or its settings are wrong."""
    from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION

    makers: Any = TYPE_TO_SCHEDULER_FUNCTION
    unfit = ("reduce_lr_on_plateau", "greedy")  # they need a validation loss before every step
    schedules: dict[str, Callable[..., Any]] = {
        entry.value: make for entry, make in makers.items() if entry.value not in unfit
    }
    name = config.lr_schedule
    # transformers' own "constant" ignores a warm-up.
    kind = "constant_with_warmup" if name == "constant" and config.warmup_steps else name
    schedule = choose("key 'lr_schedule':", kind, schedules)
    parameters = inspect.signature(schedule).parameters
    counts = {"num_warmup_steps": config.warmup_steps, "num_training_steps": total_steps}
    options = {key: value for key, value in counts.items() if key in parameters} | config.lr_schedule_params
    if "num_training_steps" in options and options["num_training_steps"] is None:
        raise ConfigError(
            f"key 'lr_schedule': {name!r} needs the number of steps, which a growing stream does not have; "
            "use constant or inverse_sqrt, or set num_training_steps in lr_schedule_params"
        )
    for key in config.lr_schedule_params:
        if key not in parameters:
            raise ConfigError(f"key 'lr_schedule_params': {name!r} has no parameter {key!r}{nearest(key, parameters)}")

    def make(optimizer: torch.optim.Optimizer) -> Any:
        return schedule(optimizer, **options)

    try:
        make(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0))
    except Exception as error:  # any failure here comes from the user's parameters
        raise ConfigError(f"key 'lr_schedule': {name!r}: {one_line(error)}") from error
    return make


def parameter_groups(model: nn.Module, config: TrainConfig) -> list[dict[str, Any]] | None:
    """Split the trainable parameters into optimizer groups by learning rate and weight decay, the backbone's first.

    None if all parameters are treated alike: without decay and a rate for the head, or under an `optimizer` block.
    """
    if config.optimizer is not None or not (config.weight_decay or config.head_learning_rate):
        return None
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            kind = (name.startswith(("head.", "covariates.")), parameter.ndim < 2)
            groups.setdefault(kind, []).append(parameter)
    # The head starts from nothing and the backbone from a text model: one rate would be too slow for the head or too
    # fast for the backbone. Decay is for matrices alone; biases hold the leaderboard of all prompts.
    head_rate = config.head_learning_rate or config.learning_rate
    return [
        {
            "params": groups[is_head, is_vector],
            "lr": head_rate if is_head else config.learning_rate,
            "weight_decay": 0.0 if is_vector else config.weight_decay,
        }
        for is_head, is_vector in sorted(groups)
    ]


def one_line(error: Exception) -> str:
    """Return the message of a foreign error, as one line of bounded length."""
    text = " ".join(str(error).split()).split(" For further information visit")[0]
    return text[:300] or type(error).__name__
