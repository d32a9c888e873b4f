"""Whether a configuration is that of the run which goes on."""

from __future__ import annotations

import json
from pathlib import Path

from p2l.config import TrainConfig
from p2l.errors import CheckpointError

__all__ = ["check_same_configuration"]

# Where things are may change, and what is done beside the steps. Names of model, head and loss are checked against the
# model's own record; votes, batch, seed, precision and ZeRO stage against the trainer's state.
_MAY_CHANGE = frozenset(
    [
        "proj_name",
        "output_dir",
        "repo_id",
        "wandb_entity",
        "device",
        "train_data_path",
        "val_data_path",
        "load_train_data_from_disk",
        "load_val_data_from_disk",
        "drop_unknown_models",
        "pretrain_model_name",
        "model_type",
        "head_type",
        "loss_type",
        "num_train_epochs",
        "batch_size",
        "gradient_accumulation_steps",
        "packing",
        "micro_batch_tokens",
        "seed",
        "shuffle",
        "deepspeed_config_path",
        "dtype",
        "gradient_checkpointing",
        "compile",
        # Of online runs: the room that a head has is in its state, and votes are checked for themselves.
        "model_capacity",
        "vote_order",
    ]
)


def check_same_configuration(config: TrainConfig, checkpoint: Path) -> None:
    """Refuse to go on with settings that the training state would silently override, such as another learning rate.

    Raises:
        CheckpointError: a key that decides the weights has another value now, or the record cannot be read.
    """
    file = checkpoint / "training_config.json"
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
        now = config.model_dump(mode="json")
        changed = [key for key, value in now.items() if before.get(key, value) != value]
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}; copy the checkpoint again") from error
    for key in changed:
        if key not in _MAY_CHANGE:
            name, old, new = _innermost(key, before[key], now[key])
            raise CheckpointError(
                f"{checkpoint}: was trained with {name} = {old!r}, this run has {new!r}; "
                "change it back, or start a new run"
            )


def _innermost(key: str, old: object, new: object) -> tuple[str, object, object]:
    """The first difference within two values of a key, and its dotted name."""
    if isinstance(old, dict) and isinstance(new, dict):
        for inner in [*old, *(name for name in new if name not in old)]:
            if old.get(inner) != new.get(inner):
                return _innermost(f"{key}.{inner}", old.get(inner), new.get(inner))
    return key, old, new
