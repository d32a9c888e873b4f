"""The training configuration: one YAML file, validated as a whole before anything slow starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from p2l.common.cli import nearest
from p2l.common.config import Number, Whole, line_of, read_yaml
from p2l.common.errors import ConfigError

# Keys of `p2l.online_training.online_train`, for a message that says where they belong.
_ONLINE_KEYS = {"buffer", "experience_replay", "model_capacity", "new_models", "vote_order"}
_REMOVED_KEYS: dict[str, object] = {"adam_betas": [0.9, 0.999]}
"""Keys that earlier versions had, with their defaults."""


class _DeepSpeedBlock(BaseModel):
    """A DeepSpeed block `{type, params}`: an optimizer, or a learning-rate scheduler."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str
    params: dict[str, Any] = Field(default_factory=dict)


class TrainConfig(BaseModel):
    """Everything that decides a training run, except the flags of the command."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    # The run
    proj_name: str | None = None
    """Run name; the default is `{model}_lr{lr}_bs{batch}_ep{epochs}`."""
    output_dir: Path
    repo_id: str | None = None
    """Hub repository for `--push-to-hf`; made private, must not exist."""
    wandb_entity: str | None = None
    """Log to Weights & Biases under it, when that package is installed."""
    seed: Whole = Field(default=42, ge=0, lt=2**63)
    device: Literal["auto", "cpu", "cuda"] = "auto"

    # Votes
    train_data_path: str
    val_data_path: str | None = None
    load_train_data_from_disk: bool = False
    load_val_data_from_disk: bool = False
    shuffle: bool | Literal["by_prompt"] = True
    """Shuffle the votes of each epoch (seeded), singly or by whole prompts; otherwise use their stored order."""
    selection_share: Number = Field(default=0.1, ge=0, lt=1)
    """Share of the training votes, whole prompts of them, that choose the best step and how far it is shrunk towards
    one leaderboard, when a run validates; 0: all votes are trained on, and the last step is the result."""
    cross_fit: Whole | None = Field(default=None, ge=2)
    """Folds of prompts that take the place of that share: each is predicted by a model trained on the others, and all
    votes are trained on in the end. For few votes and a small backbone: it trains one more model for each fold."""
    drop_unknown_models: bool = False
    """Drop validation votes on models that training never saw, instead of refusing them."""
    people: str | None = None
    """The source (column `source`) of the votes that people cast; those of others are verdicts of judges, whose scales
    and offsets are fitted. The model predicts people's votes."""
    weigh_voters: bool = False
    """Weigh the votes of people by how their voters (column `voter`) agree with the others."""
    covariates: tuple[str, ...] = ()
    """Covariates of votes, as `p2l leaderboard --control` names them (side, length, format, a column): fitted with
    the head, left out of predictions. Beside `people` those of people's votes: judges have leanings of their own."""

    # Model
    pretrain_model_name: str
    model_type: str
    head_type: str
    loss_type: str
    linear_head_downsize_factor: Whole | None = Field(default=None, ge=1)
    head_config: dict[str, Any] = Field(default_factory=dict)
    init_type: Literal["reset_params", "he_unif", "xavier_unif", "tiny_normal", "marginal"] = "reset_params"
    """Start of the head; `marginal`: at the one leaderboard that fits the training votes best."""
    shared_level: bool = False
    """Train what the coefficients of all models have in common as a vector of its own, which is then added to each."""
    train_head_only: bool = False
    pooling: Literal["cls", "mean"] = "cls"
    """Input of the head: the hidden state at the CLS token, or the mean over all tokens."""
    chat_template: str | None = None
    cls_token_if_none: str = Field(default="<|cls|>", min_length=1)
    pad_token_if_none: str = Field(default="<|pad|>", min_length=1)
    max_length: Whole = Field(ge=2)

    # Optimisation
    learning_rate: Number | None = Field(default=None, gt=0)
    head_learning_rate: Number | None = Field(default=None, gt=0)
    """Learning rate of the head; the default is `learning_rate`. The schedule applies to both."""
    adam_epsilon: Number | None = Field(default=None, gt=0)
    weight_decay: Number = Field(default=0.0, ge=0)
    """Decay of weight matrices; biases and the weights of norms do not decay."""
    optimizer: _DeepSpeedBlock | None = None
    """A DeepSpeed optimizer block; replaces learning_rate, adam_epsilon and weight_decay."""
    custom_scheduler: _DeepSpeedBlock | None = None
    """A DeepSpeed scheduler block; replaces lr_schedule and warm-up."""
    lr_schedule: str = "constant"
    lr_schedule_params: dict[str, Any] = Field(default_factory=dict)
    warmup_steps: Whole = Field(default=0, ge=0)
    max_grad_norm: Number | None = Field(default=None, ge=0)
    """Gradient clipping; the DeepSpeed file's value, else 1.0. 0 switches it off."""
    num_train_epochs: Whole = Field(default=1, ge=1)
    batch_size: Whole = Field(ge=1)
    """Votes per micro-batch and device, as far as the size of a step goes: see micro_batch_tokens."""
    gradient_accumulation_steps: Whole = Field(ge=1)
    packing: bool = True
    """Lay prompts end to end without padding. Off, or for a backbone that cannot read that: padded micro-batches."""
    micro_batch_tokens: Whole | None = Field(default=None, ge=1)
    """Most tokens per micro-batch and device, padding included (a longer prompt goes alone). The default is
    batch_size x max_length, what padded batches could take; on a CPU 2,048 at most, since more is not faster there."""
    weighted_loss: bool = False
    reweight_scale: Number = Field(default=1.0, gt=0)

    # Engine
    deepspeed_config_path: str
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: the DeepSpeed file's; where that is auto too, bfloat16 on a GPU that supports it, else float32."""
    gradient_checkpointing: bool | None = None
    """The default is on for GPUs and off for CPUs."""
    compile: bool = False
    """Compile the backbone's layers with torch.compile at the first step. Experimental on GPUs."""

    @field_validator("train_data_path", "val_data_path", "pretrain_model_name", "output_dir", "deepspeed_config_path")
    @classmethod
    def _expand_home(cls, value: str | Path | None) -> str | Path | None:
        return (
            value if value is None else type(value)(Path(value).expanduser()) if str(value).startswith("~") else value
        )

    @field_validator("covariates", mode="before")
    @classmethod
    def _names_between_commas(cls, value: object) -> object:
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts):
            return tuple(dict.fromkeys(name for text in texts for part in text.split(",") if (name := part.strip())))
        return texts

    @field_validator("proj_name")
    @classmethod
    def _name_of_a_folder(cls, value: str | None) -> str | None:
        parts = Path(value or "run").parts
        if Path(value or "run").is_absolute() or not parts or ".." in parts or "\0" in (value or ""):
            raise ValueError("must be the name of a folder below output_dir")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> TrainConfig:
        if self.optimizer is None and (self.learning_rate is None or self.adam_epsilon is None):
            missing = "learning_rate" if self.learning_rate is None else "adam_epsilon"
            raise ValueError(f"{missing}: missing; give it, or an 'optimizer' block")
        rate = 1e-3 if self.optimizer is None else self.optimizer.params.get("lr", 1e-3)
        is_number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
        if self.optimizer is not None and not (is_number and 0 < rate < float("inf")):
            raise ValueError(f"optimizer.params.lr: must be a positive number, got {self.optimizer.params['lr']!r}")
        if self.custom_scheduler is not None and (self.lr_schedule != "constant" or self.warmup_steps):
            raise ValueError("custom_scheduler: replaces lr_schedule and warmup_steps; remove one of the two")
        if self.head_learning_rate is not None and (self.optimizer or self.custom_scheduler):
            other = "optimizer" if self.optimizer else "custom_scheduler"
            raise ValueError(
                f"head_learning_rate: does not go with {other!r}, which has one rate; remove one of the two"
            )
        return self

    @property
    def base_learning_rate(self) -> float:
        """The learning rate that schedules scale."""
        if self.optimizer is not None:
            return float(self.optimizer.params.get("lr", 1e-3))
        assert self.learning_rate is not None
        return self.learning_rate

    @property
    def replaced_keys(self) -> list[str]:
        """Keys that are set although the `optimizer` block replaces them."""
        replaced = ("learning_rate", "adam_epsilon", "weight_decay")
        return [key for key in replaced if key in self.model_fields_set] if self.optimizer is not None else []

    @property
    def run_name(self) -> str:
        """The name of the output folder."""
        if self.proj_name:
            return self.proj_name
        model = Path(self.pretrain_model_name).name
        batch = self.batch_size * self.gradient_accumulation_steps
        return f"{model}_lr{self.base_learning_rate:g}_bs{batch}_ep{self.num_train_epochs}"


Config = TypeVar("Config", bound=TrainConfig)


def load_config(path: str | Path) -> TrainConfig:
    """Read and validate the configuration of offline training; errors as in `load_config_as`."""
    return load_config_as(TrainConfig, path)


def load_config_as(kind: type[Config], path: str | Path, changes: Mapping[str, object] | None = None) -> Config:
    """Read a configuration of this kind, whose values `changes` replace; ConfigError if a key is wrong or missing."""
    from p2l.likelihood import check_pair

    raw = read_yaml(path)
    for key, default in _REMOVED_KEYS.items():
        # What earlier versions recorded beside a model goes on being read.
        if key in raw and raw[key] in (default, None):
            del raw[key]
    for key in raw:
        if key in _ONLINE_KEYS and key not in kind.model_fields:
            raise ConfigError(
                f"{_where(path, key)}: key {key!r} belongs to p2l.online_training.online_train; remove it"
            )
        if key not in kind.model_fields:
            raise ConfigError(f"{_where(path, key)}: unknown key {key!r}{nearest(str(key), kind.model_fields)}")
    try:
        config = kind.model_validate({**raw, **(changes or {})})
        check_pair(config.head_type, config.loss_type)
    except (ValidationError, ConfigError) as error:
        if not isinstance(error, ValidationError):
            raise ConfigError(f"{path}: {error}") from error
        key = str((error.errors()[0]["loc"] or [""])[0])
        where = str(path) if key in (changes or {}) else _where(path, key)  # what replaces a value is not in the file
        raise ConfigError(f"{where}: {_first_problem(error)}") from error
    return config


def _where(path: str | Path, key: object) -> str:
    """Return the file, with the line of a key that it has."""
    line = line_of(path, [str(key)])
    return f"{path}:{line}" if line else str(path)


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"key {key!r} is missing; add it"
    if not key:
        return message
    return f"key {key!r}: {message[0].lower()}{message[1:]}, got {problem['input']!r:.80}"
