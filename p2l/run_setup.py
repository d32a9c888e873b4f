"""What offline and online training set up alike: device, tokenizer, model, windows, folder."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from p2l import backbones
from p2l.compilers import has_cuda_compiler
from p2l.compiling import compile_backbone
from p2l.config import TrainConfig
from p2l.deepspeed_config import find_deepspeed_file, resolve_deepspeed
from p2l.engine import Engine, choose_device, world_size
from p2l.errors import CheckpointError, ConfigError
from p2l.heads import HeadStart
from p2l.model import P2LModel
from p2l.run_folder import new_run_folder, newest_checkpoint
from p2l.tokenizer import PromptTokenizer
from p2l.windows import Votes, Windows

__all__ = [
    "Hardware",
    "Start",
    "find_hardware",
    "find_start",
    "global_batch",
    "make_model",
    "make_tokenizer",
    "make_windows",
    "note",
    "prepare",
    "run_folder",
    "trained_model",
]


@dataclass(frozen=True)
class Start:
    """Where the weights come from."""

    resume: Path | None
    """A checkpoint of the trainer that goes on."""
    weights: str | None
    """A model whose weights and model list are taken over."""

    @property
    def model(self) -> str | None:
        """The folder or hub id that holds the model; None: the backbone gets a new head."""
        return str(self.resume) if self.resume else self.weights


@dataclass(frozen=True)
class Hardware:
    """What the run computes on, and in which precision."""

    device: torch.device
    deepspeed: dict[str, Any]
    precision: str

    @property
    def dtype(self) -> torch.dtype:
        """The precision as torch calls it."""
        found: torch.dtype = getattr(torch, self.precision)
        return found


def find_start(checkpoint: str | None) -> Start:
    """Whether `--checkpoint` names a run that goes on, or plain weights.

    Raises:
        CheckpointError: it is a folder that holds neither.
    """
    if checkpoint is None:
        return Start(None, None)
    folder = Path(checkpoint).expanduser()
    resume = newest_checkpoint(folder)
    if resume is None and folder.is_dir() and not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{checkpoint}: holds no checkpoint and no model; a run that was stopped before its first checkpoint "
            "starts again without --checkpoint"
        )
    return Start(resume, None) if resume else Start(None, checkpoint)


def find_hardware(config: TrainConfig, config_path: str) -> Hardware:
    """The device of this process and the settings of DeepSpeed for it.

    Raises:
        ConfigError: there is no such device, or the DeepSpeed file contradicts the configuration.
    """
    device = choose_device(config.device)
    on_gpu = device.type == "cuda"
    deepspeed_config, precision = resolve_deepspeed(
        config,
        find_deepspeed_file(config, config_path),
        world_size=world_size(),
        on_gpu=on_gpu,
        gpu_has_bfloat16=on_gpu and torch.cuda.is_bf16_supported(),
        gpu_compiler=on_gpu and has_cuda_compiler(),
    )
    return Hardware(device, deepspeed_config, precision)


def make_tokenizer(config: TrainConfig, start: Start) -> PromptTokenizer:
    """The tokenizer of the model that training starts from."""
    return PromptTokenizer.from_pretrained(
        start.model or config.pretrain_model_name,
        chat_template=config.chat_template,
        max_length=config.max_length,
        # A trained model has no rows for tokens that are new.
        cls_token_if_none=None if start.model else config.cls_token_if_none,
        pad_token_if_none=None if start.model else config.pad_token_if_none,
    )


def trained_model(config: TrainConfig, start: Start, tokenizer: PromptTokenizer, dtype: torch.dtype) -> P2LModel:
    """The trained model that `start` names, ready to train as the configuration says.

    Raises:
        InputError: it is incomplete, or contradicts the configuration.
    """
    weights = start.model
    assert weights is not None
    kept_loss = config.loss_type if start.resume else None
    kinds = {"model_type": config.model_type, "head_type": config.head_type}
    model = P2LModel.from_pretrained(weights, **kinds, loss_type=kept_loss, dtype=dtype)
    model.retrain(loss_type=config.loss_type, max_length=tokenizer.max_length)
    if "pooling" in config.model_fields_set and config.pooling != model.record.pooling:
        raise ConfigError(f"{weights}: was trained with pooling {model.record.pooling!r}; remove that key")
    return model


def make_model(
    config: TrainConfig,
    tokenizer: PromptTokenizer,
    dtype: torch.dtype,
    model_list: list[str],
    *,
    head_start: HeadStart | None = None,
    linear_head_width: int | None = None,
) -> P2LModel:
    """The configuration's backbone with a new head."""
    return P2LModel.create(
        config.pretrain_model_name,
        model_type=config.model_type,
        head_type=config.head_type,
        loss_type=config.loss_type,
        model_list=model_list,
        tokenizer=tokenizer,
        init_type=config.init_type,
        head_start=head_start,
        linear_head_downsize_factor=config.linear_head_downsize_factor,
        linear_head_width=linear_head_width,
        head_config=config.head_config,
        pooling=config.pooling,
        dtype=dtype,
        seed=config.seed,
    )


def prepare(model: P2LModel, config: TrainConfig, device: torch.device) -> None:
    """Freeze, recompute, compile as the configuration says, and switch to training mode."""
    if config.train_head_only:
        model.freeze_transformer()
    wanted = config.gradient_checkpointing
    if wanted or (wanted is None and device.type == "cuda"):
        model.gradient_checkpointing_enable()
    if config.compile:
        compile_backbone(model.model, device)
    model.train()


def make_windows(
    config: TrainConfig, engine: Engine, tokenizer: PromptTokenizer, votes: Votes, *, ahead: bool = True
) -> Windows:
    """What makes micro-batches of this rank."""
    backbone = backbones.get(config.model_type)
    padded_size = config.batch_size * config.max_length
    usual = min(padded_size, backbone.cpu_micro_batch or padded_size) if engine.device.type == "cpu" else padded_size
    return Windows(
        tokenizer=tokenizer,
        votes=votes,
        packed=config.packing and backbone.packs,
        max_tokens=config.micro_batch_tokens or usual,
        rank=engine.rank,
        world_size=engine.world_size,
        ahead=ahead,
    )


def run_folder(engine: Engine, config: TrainConfig, start: Start) -> Path:
    """The folder of the run that goes on, or a new one (every rank must call this)."""
    if start.resume is not None:
        return start.resume.parent
    folder = new_run_folder(config.output_dir, config.run_name) if engine.is_main else None
    return Path(engine.broadcast(folder))


def global_batch(config: TrainConfig) -> int:
    """Votes of one optimizer step over all processes."""
    return config.batch_size * config.gradient_accumulation_steps * world_size()


def note(text: str) -> None:
    """Say something once, however many processes run."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr)
