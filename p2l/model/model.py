"""P2LModel: a text backbone with a coefficient head, and how both are loaded from and saved to model folders.

A folder is a Hugging Face folder: the backbone's own config.json with a record `p2l` in it, model.safetensors with
the names `model.*` and `head.*`, and model_list.json. Published folders have no record: there flags, or else the names
of the weights, determine the head.

Shapes: B prompts, M models, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

import p2l.model.reader  # noqa: F401 (registers its backbone)
from p2l import likelihood
from p2l.common.errors import CheckpointError, ConfigError
from p2l.model import backbones, heads
from p2l.model.checkpoint import (
    MODEL_LIST_FILE,
    P2LRecord,
    load_weights,
    local_folder,
    read_model_list,
    read_object,
    save_weights,
    seal,
    weight_shapes,
    write_json,
)
from p2l.model.covariates import CovariateEffects, load_effects
from p2l.model.posterior import Posterior, known_share

if TYPE_CHECKING:
    from p2l.model.batching import Batch
    from p2l.model.encoding import PromptTokenizer


# What a transformers model raises at a configuration with wrong values.
_UNUSABLE_CONFIG = (
    ArithmeticError, AttributeError, ConfigError, LookupError, RuntimeError, TypeError, ValueError
)  # fmt: skip


@dataclass
class P2LOutput(ModelOutput):
    """The output of a forward pass; float32 except for the hidden state.

    In training a backbone with K members has K rows for each prompt, member by member: K B in place of B.
    """

    coefs: Tensor | None = None
    """(B, M)"""
    eta: Tensor | None = None
    """(B,) raw output of the eta head, or None"""
    gamma: Tensor | None = None
    """(B,) or None"""
    loss: Tensor | None = None
    """Scalar: sum of the weighted vote losses over the sum of the weights of the votes that count."""
    last_hidden_state: Tensor | None = None
    """(B, D) state at the CLS token"""
    vote_losses: Tensor | None = None
    """(B,) weighted loss of each vote, 0 for votes that the likelihood drops; the mean over members"""
    variances: Tensor | None = None
    """(B, R) of the posterior's components, if the model has a posterior"""
    familiarity: Tensor | None = None
    """(B,) share of each prompt's departure from the overall leaderboard that is kept, if the model has a posterior"""
    shift: Tensor | None = None
    """(n, 3) shifts of both coefficients and eta by the covariates of votes in the batch"""


class P2LModel(nn.Module):
    """A backbone `model`, a `head`, and the names of the models that its coefficients belong to."""

    def __init__(
        self,
        backbone: nn.Module,
        head: heads.BTHead,
        model_list: Sequence[str],
        record: P2LRecord,
        covariates: CovariateEffects | None = None,
    ) -> None:
        """Join the parts; `create` and `from_pretrained` make them."""
        super().__init__()
        self.model = backbone
        self.head = head
        self.covariates = covariates
        self.model_list = list(model_list)
        self.record = record
        self.likelihood = likelihood.get(record.loss_type)
        self._read = backbones.get(record.model_type).reader(record.pooling)
        self.posterior: Posterior | None = None
        """Uncertainty of the coefficients; outside training it shrinks those of strange prompts."""

    @classmethod
    def create(
        cls,
        pretrain_model_name: str | Path,
        *,
        model_type: str,
        head_type: str,
        loss_type: str,
        model_list: Sequence[str],
        tokenizer: PromptTokenizer,
        init_type: str = "reset_params",
        head_start: heads.HeadStart | None = None,
        linear_head_downsize_factor: int | None = None,
        linear_head_width: int | None = None,
        head_config: Mapping[str, Any] | None = None,
        pooling: str = "cls",
        dtype: torch.dtype | str = torch.float32,
        seed: int = 42,
    ) -> P2LModel:
        """Put a new head, its weights drawn with `seed`, on a pretrained backbone; in training mode.

        `head_start` is the leaderboard for `init_type` "marginal". A head without models has one spare row (`widen`).
        ConfigError for names or a length that do not fit, CheckpointError for a backbone that cannot be loaded.
        """
        likelihood.check_pair(head_type, loss_type)
        family = backbones.get(model_type)
        backbone = family.pretrained(local_folder(pretrain_model_name), to_dtype(dtype))
        _check_positions(family, backbone, tokenizer.max_length)
        backbones.grow(backbone, tokenizer.added_ids, tokenizer.vocab_size)
        record = P2LRecord(
            model_type=model_type,
            head_type=head_type,
            loss_type=likelihood.get(loss_type).name,
            linear_head_downsize_factor=linear_head_downsize_factor,
            linear_head_width=linear_head_width,
            head_config=dict(head_config) if head_config else None,
            max_length=tokenizer.max_length,
            pooling=pooling,
        )
        family.reader(pooling)  # refuses a pooling that the backbone does not have
        with torch.random.fork_rng(devices=[]):  # the head is drawn on the CPU: no GPU has to be started for it
            torch.manual_seed(seed)
            head = _head(record, backbone, max(1, len(model_list)))
            heads.initialise(head, init_type, head_start)
        return cls(backbone, head.to(to_dtype(dtype)), model_list, record).train()

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        model_type: str | None = None,
        head_type: str | None = None,
        loss_type: str | None = None,
        dtype: torch.dtype | str = torch.float32,
    ) -> P2LModel:
        """Load a trained model, in evaluation mode, from a local folder or hub id.

        Arguments that are None come from the folder's record; without a record the head comes from the names of the
        weights, and the loss from training_config.json or else from the head. CheckpointError if the folder is
        incomplete or contradicts an argument, ConfigError for names that do not go together.
        """
        folder = local_folder(path)
        model_list = read_model_list(folder)
        shapes = weight_shapes(folder)
        typed = {"model_type": model_type, "head_type": head_type, "loss_type": loss_type}
        record = _read_record(folder, shapes, typed)
        rows = (shapes.get("head.head.weight") or shapes.get("head.head.1.weight") or (None,))[0]
        if rows is None:
            raise CheckpointError(
                f"{folder}: its weights have no head (head.head.weight); it is not a trained P2L model"
            )
        if rows != len(model_list):
            word = "longer" if len(model_list) > rows else "shorter"
            raise CheckpointError(
                f"{folder}: {MODEL_LIST_FILE} is {word} than the head: {len(model_list)} names for {rows} coefficients"
            )
        as_dtype = to_dtype(dtype)
        try:
            with backbones.no_init():
                backbone = backbones.get(record.model_type).empty(folder, as_dtype)
                head = _head(record, backbone, len(model_list)).to(as_dtype)
        except _UNUSABLE_CONFIG as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise CheckpointError(f"{folder}: config.json describes no model: {reason}; copy it again") from error
        model = cls(backbone, head, model_list, record, load_effects(folder))
        load_weights(model, folder)
        model.posterior = Posterior.load(folder, len(model_list))
        return model.eval()

    def forward(self, batch: Batch, labels: Tensor | None = None, weights: Tensor | None = None) -> P2LOutput:
        """Return the coefficients of a batch and, with labels (B, 3) `[winner, loser, tie]`, the loss of its votes.

        Covariates of votes in the batch (see `CovariateEffects`) give their shift, which coefficients do not hold.
        """
        posterior = None if self.training else self.posterior
        hidden, inputs = (self._read(self.model, batch), None) if posterior is None else self.read(batch)
        coefs, eta, gamma = self.head(hidden)
        coefs = coefs[:, : len(self.model_list)]
        variances = familiarity = None
        if posterior is not None and inputs is not None:
            place = posterior.place(inputs)
            trust = posterior.trust(place, known_share(batch))
            coefs, eta, gamma = posterior.shrunk(trust, coefs, eta, gamma, place.tried)
            familiarity = place.familiarity(trust)
            variances = posterior.variances(place, familiarity)
        output = P2LOutput(
            coefs=coefs,
            eta=eta,
            gamma=gamma,
            last_hidden_state=hidden,
            variances=variances,
            familiarity=familiarity,
        )
        if self.covariates is not None and "covariates" in batch:
            output["shift"] = self.covariates(batch["covariates"])
        if labels is not None:
            again = labels.repeat(self.members, 1)
            losses = likelihood.vote_losses(self.likelihood, coefs, again, eta, gamma)
            losses = losses.view(self.members, len(labels)).mean(0)
            counted = likelihood.counted(self.likelihood, labels)
            if weights is not None:
                weights = weights.to(losses)
                losses, counted = losses * weights, counted * weights
            output["vote_losses"] = losses
            output["loss"] = losses.sum() / counted.sum().clamp_min(torch.finfo(torch.float32).tiny)
        return output

    def read(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return hidden states (B, D) and the inputs of the posterior (B, F): frozen inputs, else the states again."""
        if self.has_frozen_inputs:
            inputs = self.model.inputs(batch)  # type: ignore[operator]
            return self.model.hidden(inputs), inputs  # type: ignore[operator]
        hidden = self._read(self.model, batch)
        return hidden, hidden

    @property
    def has_frozen_inputs(self) -> bool:
        """Whether the backbone tells prompts apart by inputs that are not trained, as a reader does."""
        return hasattr(self.model, "inputs")

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """Of the covariates of votes that it was trained with; maybe none."""
        return () if self.covariates is None else self.covariates.names

    @property
    def num_embeddings(self) -> int:
        """V, the number of token or feature ids."""
        return int(self.model.config.vocab_size)  # type: ignore[union-attr, arg-type]

    @property
    def hidden_size(self) -> int:
        """D, the width of the hidden state."""
        return int(self.model.config.hidden_size)  # type: ignore[union-attr, arg-type]

    @property
    def max_positions(self) -> int:
        """The positions of the backbone's configuration; a hard limit only for learned positions."""
        return int(self.model.config.max_position_embeddings)  # type: ignore[union-attr, arg-type]

    @property
    def members(self) -> int:
        """K, the rows that a forward pass has for each prompt now: those of a backbone's members in training."""
        return int(getattr(self.model.config, "members", 1)) if self.model.training else 1

    @property
    def num_rows(self) -> int:
        """Rows of the head: those of the model list, and spare ones during training."""
        return heads.last_layer(self.head).out_features

    def widen(self, rows: int) -> None:
        """Give the head `rows` rows; those beyond the model list are zero, so that no update moves them."""
        heads.widen(self.head, rows, used=len(self.model_list))
        if self.record.linear_head_downsize_factor is not None:
            width = heads.last_layer(self.head).in_features
            self.record = replace(self.record, linear_head_width=width)

    def changes_towards(self, start: heads.HeadStart, factor: float) -> dict[str, Callable[[Tensor], None]]:
        """Return the changes of `heads.towards` by the names of the parameters."""
        changes = heads.towards(self.head, start, factor)
        return {name: changes[weight] for name, weight in self.named_parameters() if weight in changes}

    def retrain(self, *, loss_type: str, max_length: int) -> None:
        """Prepare trained weights for another loss of the same head, or another length; ConfigError if unfit."""
        likelihood.check_pair(self.record.head_type, loss_type)
        _check_positions(backbones.get(self.record.model_type), self.model, max_length)
        self.likelihood = likelihood.get(loss_type)
        self.record = replace(self.record, loss_type=self.likelihood.name, max_length=max_length)
        self.posterior = None  # of the weights as they were

    def train(self, mode: bool = True) -> P2LModel:
        """Switch training mode; a frozen backbone stays in evaluation mode, without dropout."""
        super().train(mode)
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            self.model.eval()
        return self

    def gradient_checkpointing_enable(self) -> None:
        """Recompute activations in the backward pass instead of storing them; no effect on `tfidf`."""
        options = {"use_reentrant": False}
        if hasattr(self.model, "activation_checkpointing_enable"):  # its name since transformers 5
            self.model.activation_checkpointing_enable(options)  # type: ignore[operator]
        elif hasattr(self.model, "gradient_checkpointing_enable"):
            self.model.gradient_checkpointing_enable(options)  # type: ignore[operator]

    def save_pretrained(
        self,
        directory: str | Path,
        state_dict: Mapping[str, Tensor] | None = None,
        model_list: Sequence[str] | None = None,
    ) -> None:
        """Write config.json, weights and model_list.json into `directory`; CheckpointError if that fails.

        `state_dict` replaces the model's own weights (by a trainer's consolidated ones). Spare rows are left out.
        `model_list` are the same names in the order that the folder's rows shall have.
        """
        folder, names = Path(directory), list(self.model_list if model_list is None else model_list)
        # Folders hold the published layout: a level that rows share in training is folded into them.
        weights = heads.folded(self.state_dict() if state_dict is None else state_dict)
        if self.num_rows != len(names) or names != self.model_list:
            place = {name: row for row, name in enumerate(self.model_list)}
            order = torch.tensor([place[name] for name in names], dtype=torch.long)
            rows = {name: weights[name].cpu()[order] for name in self.row_names if name in weights}
            weights = {**weights, **rows}
        if hasattr(self.model, "stored"):
            weights = self.model.stored(weights, "model.")  # type: ignore[operator]
        config = self.model.config.to_dict()  # type: ignore[union-attr, operator]
        for name in ("torch_dtype", "_name_or_path"):  # an old name of dtype; a path of the machine that trained
            config.pop(name, None)
        dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
        config |= {"dtype": dtype, "p2l": {**asdict(self.record), "num_models": len(self.model_list)}}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / "config.json", config)
            write_json(folder / MODEL_LIST_FILE, names)
            if self.covariates is not None:
                weights = self.covariates.save(folder, weights)
        except OSError as error:
            raise CheckpointError(f"{folder}: cannot be written: {error.strerror or error}") from error
        save_weights(weights, folder)

    @property
    def row_names(self) -> tuple[str, str]:
        """Names of the two parameters that have a row for each model."""
        layer = heads.last_layer(self.head)
        weight, bias = (
            next(name for name, weight in self.named_parameters() if weight is parameter)
            for parameter in (layer.weight, layer.bias)
        )
        return weight, bias

    @property
    def word_names(self) -> frozenset[str]:
        """Names of the backbone's matrices that have a row for each token or word."""
        rows = getattr(self.model.config, "vocab_size", None)
        weights = self.model.named_parameters(prefix="model")
        return frozenset(name for name, weight in weights if weight.ndim == 2 and len(weight) == rows)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> P2LModel:
        """Move or cast the model; rotary frequencies, and the posterior, stay float32: bfloat16 loses far positions."""
        exact = [
            (module, name, buffer)
            for module in self.modules()
            for name, buffer in module.named_buffers(recurse=False)
            if name in module._non_persistent_buffers_set and buffer.dtype == torch.float32
        ]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for module, name, buffer in exact:
            setattr(module, name, buffer.to(getattr(module, name).device))
        if self.posterior is not None:
            self.posterior = self.posterior.on(next(self.parameters()).device)
        return self


def write_folder(
    folder: Path,
    model: P2LModel,
    tokenizer: PromptTokenizer,
    *,
    state_dict: Mapping[str, Tensor] | None = None,
    model_list: Sequence[str] | None = None,
    add_files: Callable[[Path], None] = lambda _: None,
) -> None:
    """Write everything that a model is loaded from, let `add_files` add its posterior and notes, and seal the folder.

    Every command makes model folders here: model and tokenizer know which files their backbone needs.
    """
    model.save_pretrained(folder, state_dict=state_dict, model_list=model_list)
    tokenizer.save_pretrained(folder)
    add_files(folder)
    seal(folder)


def to_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """Return the floating point dtype of a name such as `bfloat16`, else raise ConfigError."""
    torch_dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(torch_dtype, torch.dtype) or not torch_dtype.is_floating_point:
        raise ConfigError(f"dtype {dtype!r} is unknown; use float32, bfloat16 or float16")
    return torch_dtype


def _head(record: P2LRecord, backbone: nn.Module, num_models: int) -> heads.BTHead:
    return heads.build(
        record.head_type,
        int(backbone.config.hidden_size),  # type: ignore[union-attr, arg-type]
        num_models,
        downsize_factor=record.linear_head_downsize_factor,
        width=record.linear_head_width,
        head_config=record.head_config,
    )


def _read_record(folder: Path, shapes: Mapping[str, tuple[int, ...]], typed: Mapping[str, str | None]) -> P2LRecord:
    """Read the record of config.json, or infer it from the weights; flags must agree with it."""
    config = read_object(folder / "config.json")
    stored: Any = config.get("p2l")
    if stored is None:
        record = _infer_record(folder, config, shapes, typed["loss_type"])
    else:
        fields = P2LRecord.__dataclass_fields__  # a later version may have written more
        try:
            record = P2LRecord(**{key: value for key, value in stored.items() if key in fields})
            likelihood.check_pair(record.head_type, record.loss_type)
            backbones.get(record.model_type).reader(record.pooling)
        except (AttributeError, TypeError, ConfigError) as error:
            raise CheckpointError(f"{folder / 'config.json'}: its record 'p2l' cannot be used: {error}") from error
    if typed["loss_type"] is not None:
        likelihood.check_pair(typed["head_type"] or record.head_type, typed["loss_type"])
        typed = {**typed, "loss_type": likelihood.get(typed["loss_type"]).name}
    for key, value in typed.items():
        if value is not None and value != getattr(record, key):
            raise CheckpointError(
                f"{folder}: {key} is {getattr(record, key)!r} in this checkpoint, not {value!r}; leave the flag out"
            )
    return record


def _infer_record(
    folder: Path, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], loss_type: str | None
) -> P2LRecord:
    """Infer the record of a published folder from names and shapes of its weights, and how it was trained."""
    has_gamma = any(name.startswith("head.gamma_head.") for name in shapes)
    has_eta = any(name.startswith("head.eta_head.") for name in shapes)
    head_type = "ba" if has_gamma else "rk" if has_eta else "bt"
    if loss_type is None:
        loss_type = str(read_object(folder / "training_config.json", missing={}).get("loss_type"))
        try:
            likelihood.check_pair(head_type, loss_type)
        except ConfigError:  # the configuration is absent, or of another head
            loss_type = likelihood.default_for_head(head_type).name
    rank = shapes.get("head.head.0.weight", (None,))[0]
    rows = shapes.get("head.head.1.weight", (0,))[0]
    eta_width = shapes.get("head.eta_head.0.weight", (None,))[0]
    return P2LRecord(
        model_type=str(config.get("model_type")),
        head_type=head_type,
        loss_type=likelihood.get(loss_type).name,
        linear_head_downsize_factor=None if rank is None else rows // rank,
        head_config=None if eta_width is None else {"eta_dim": eta_width},
    )


def _check_positions(family: backbones.Backbone, backbone: nn.Module, max_length: int) -> None:
    if not family.learned_positions:
        return
    limit = int(backbone.config.max_position_embeddings)  # type: ignore[union-attr, arg-type]
    if max_length > limit:
        raise ConfigError(f"max_length {max_length} is beyond the {limit} positions of this backbone; lower it")
