"""The backbone that trains in seconds: inputs that need no training, and one hidden layer on top.

    h = [gelu(W_1 x + b_1), ..., gelu(W_K x + b_K)] / K,    x = [state, words, form]

`state` is the state of a frozen sentence encoder (left out without one), `words` TF-IDF reduced to its main directions
(fitted to the prompts of the training votes), `form` counts (`p2l.common.prompts`). Each has about unit variance
over the training prompts.

The hidden layer is K members side by side. In training each predicts by its units alone, with dropout of its own, and
the loss is the mean of the members' losses. The head is linear, so that the trained model predicts the mean of their
predictions, in one pass of one layer: its loss is lower than that of any member, by 0.01 nats on graded answers to a
thousand prompts.

Shapes: B prompts, T tokens, D width of the encoder, F inputs, K members, H hidden units of all members, V words.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from p2l.common.cli import choose
from p2l.common.errors import InputError
from p2l.model import backbones, bert
from p2l.model.batching import collate, plan_batches, to_device
from p2l.model.checkpoint import load_weights, read_object
from p2l.model.encoding import Encoding
from p2l.model.heads import Float32Linear
from p2l.model.reader_inputs import MAX_ENCODER_TOKENS, ReaderConfig, ReaderTokenizer, read_config
from p2l.model.sentence import StateCache, encoder_digest, pooling_of
from p2l.model.tfidf import TfidfTokenizer

Floats = npt.NDArray[np.float32]
READS = ("state", "words", "all")
"""Inputs of the members of a reader with an encoder, by turns: members that read different inputs err differently."""
_TOKENS_PER_PASS = 2048  # of prompts that the encoder reads together


_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "softmax": functools.partial(F.softmax, dim=-1),
}


class _MemberLayer(Float32Linear):
    """The hidden layer (F -> H), of units that belong to K members in equal parts."""

    mask: Tensor

    def __init__(self, inputs: int, config: ReaderConfig, dtype: torch.dtype) -> None:
        """Draw torch's default weights; CheckpointError if the members do not share the units evenly."""
        super().__init__(inputs, config.units(inputs), dtype=dtype)
        self.config = config
        # (K, F) 1 where a member reads an input, else 0. Inputs are state, words and form, in this order. Weights of
        # inputs that a member does not read are zero, and stay so: no gradient reaches them.
        state = inputs - config.directions - config.form
        hidden = {"all": slice(0), "state": slice(state, state + config.directions), "words": slice(state)}
        mask = torch.ones(config.members, inputs)
        for member in range(config.members):
            kind = config.reads[member % len(config.reads)]
            mask[member, choose("inputs of a reader's member", kind, hidden)] = 0.0
        self.register_buffer("mask", mask, persistent=False)
        self.activate = choose("activation of a reader", config.activation, _ACTIVATIONS)

    def forward(self, x: Tensor) -> Tensor:
        """(B, F) -> (B, H) float32; in training (K B, H), the members one after the other and each by its own units."""
        x, count = x.float(), self.config.members
        if not self.training:
            units = super().forward(x).view(len(x), count, self.out_features // count)
            units = self.activate(units).flatten(1) / count
            return torch.cat([x, units], 1) if self.config.with_inputs else units
        weight = self.weight.float().view(count, -1, self.in_features)
        seen = F.dropout(x.expand(count, *x.shape), self.config.input_dropout) * self.mask[:, None]
        units = self.activate(torch.baddbmm(self.bias.float().view(count, 1, -1), seen, weight.mT))
        diagonal = torch.eye(count, device=x.device)[:, None, :, None]  # units of the other members are zero
        hidden = (F.dropout(units, self.config.dropout)[:, :, None] * diagonal).flatten(2).flatten(0, 1)
        return torch.cat([seen.flatten(0, 1), hidden], 1) if self.config.with_inputs else hidden

    @torch.no_grad()
    def blind(self) -> None:
        """Set the weights of inputs that a member does not read to zero, and scale the others up by as much."""
        weight = self.weight.view(len(self.mask), -1, self.in_features)
        weight *= (self.mask * (self.in_features / self.mask.sum(1, keepdim=True)).sqrt())[:, None]


class ReaderBackbone(nn.Module):
    """Encoder, if any, and the hidden layer."""

    state_mean: Tensor
    state_scale: Tensor

    def __init__(self, config: ReaderConfig, encoder: nn.Module | None, dtype: torch.dtype = torch.float32) -> None:
        """Join the parts; the layer's weights are torch's default ones."""
        super().__init__()
        self.config = config
        self.encoder = encoder
        width = 0 if encoder is None else int(encoder.config.hidden_size)  # type: ignore[union-attr, arg-type]
        self.register_buffer("state_mean", torch.zeros(width, dtype=dtype))
        self.register_buffer("state_scale", torch.ones(width, dtype=dtype))
        self.layer = _MemberLayer(width + config.directions + config.form, config, dtype)
        self.cache: StateCache | None = None
        """States of prompts that were read before; for a frozen encoder."""
        self._fast: bert.Bert | None = None
        if config.frozen and encoder is not None:
            encoder.requires_grad_(False)

    def with_encoder(self, encoder: nn.Module) -> ReaderBackbone:
        """Return the same reader, its weights shared, with another way to compute the encoder."""
        copied = copy.copy(self)
        copied._modules = {**self._modules, "encoder": encoder}
        return copied

    def train(self, mode: bool = True) -> ReaderBackbone:
        """Switch training mode; a frozen encoder stays in evaluation mode, without dropout."""
        super().train(mode)
        if self.config.frozen and self.encoder is not None:
            self.encoder.eval()
        return self

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Map a collated batch to hidden states (B, H), in training to those of each member (K B, H)."""
        return self.hidden(self.inputs(batch))

    def inputs(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the inputs (B, F) of prompts, which are not trained: states, words, form, of about unit variance."""
        features = batch["features"][:, : self.config.directions + self.config.form]
        if self.encoder is None:
            return features
        scaled = (self.states(batch) - self.state_mean.float()) * self.state_scale.float()
        return torch.cat([scaled, features], 1)

    def hidden(self, inputs: Tensor) -> Tensor:
        """Map inputs (B, F) to hidden states (B, H), in training to those of each member (K B, H)."""
        hidden: Tensor = self.layer(inputs)
        return hidden

    def states(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the encoder's states (B, D) in float32, from the cache as far as it has them."""
        if not self.config.frozen:
            return self._read(batch)
        if self.cache is None:
            with torch.no_grad():  # rounded as a state that is looked up would be
                return self._read(batch).half().float()
        # While the encoder is frozen a state is computed once per prompt and looked up afterwards.
        ids = batch["input_ids"].cpu().numpy()
        if "lengths" in batch:
            tokens = np.split(ids[0], np.cumsum(batch["lengths"].numpy())[:-1])
        else:
            lengths = batch["attention_mask"].sum(1).tolist()
            tokens = [row[:length] for row, length in zip(ids, lengths, strict=True)]
        device = batch["features"].device
        rows = self.cache.states(tokens, functools.partial(self.read, device=device))
        return torch.from_numpy(rows).to(device).float()

    def read(self, tokens: Sequence[npt.NDArray[np.int64]], device: torch.device) -> npt.NDArray[np.float16]:
        """Return the encoder's states (N, D) of prompts, given by their tokens, in a few passes."""
        if self._precision is not None:
            return self._compiled(self._precision).states(tokens).astype(np.float16)
        return self.read_by_torch(tokens, device)

    def read_by_torch(self, tokens: Sequence[npt.NDArray[np.int64]], device: torch.device) -> npt.NDArray[np.float16]:
        """Return the same as `read`, computed by torch on a device."""
        encodings = [Encoding(ids, None, False) for ids in tokens]
        states = np.zeros((len(tokens), len(self.state_mean)), dtype=np.float16)
        threads = torch.get_num_threads()
        torch.set_num_threads(backbones.all_threads())  # the layers above it may be trained by one
        for rows in plan_batches([len(ids) for ids in tokens], max_tokens=_TOKENS_PER_PASS, packed=True):
            batch = to_device(collate([encodings[row] for row in rows], 0, packed=True), device)
            with torch.no_grad():
                states[rows] = self._read(batch).half().cpu().numpy()
        torch.set_num_threads(threads)
        return states

    @property
    def _precision(self) -> bert.Precision | None:
        """The precision in which OpenVINO reads prompts for training, on a CPU; None: torch reads them."""
        encoder = self.config.encoder
        assert self.encoder is not None
        if encoder is None or not bert.is_readable(encoder) or next(self.encoder.parameters()).device.type != "cpu":
            return None
        return "int8" if bert.has_int8_products() else "float32"

    def _compiled(self, precision: bert.Precision) -> bert.Bert:
        """Return the encoder in OpenVINO, made at the first call."""
        if self._fast is None:
            assert self.encoder is not None
            assert self.config.encoder is not None
            weights = {name: weight.float().numpy() for name, weight in self.encoder.state_dict().items()}
            pooling, normalise = self.config.pooling, self.config.normalise
            self._fast = bert.Bert(
                weights, self.config.encoder, pooling=pooling, normalise=normalise, precision=precision
            )
        return self._fast

    def _read(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return pooled states (B, D) in float32."""
        pool = backbones.mean_state if self.config.pooling == "mean" else backbones.first_state
        assert self.encoder is not None
        states = pool(self.encoder, batch).float()
        return F.normalize(states, dim=1) if self.config.normalise else states

    def stored(self, weights: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
        """Return weights as a folder keeps them: those of a frozen encoder in float16, which they were rounded to."""
        # The encoder is part of the folder, so that it needs nothing else and gives the same states everywhere.
        inside = f"{prefix}encoder."
        return {
            name: tensor.half() if self.config.frozen and name.startswith(inside) else tensor
            for name, tensor in weights.items()
        }

    def fingerprint(self) -> str:
        """Return the digest of encoder, pooling and precision, on which a state depends beside the tokens."""
        assert self.encoder is not None
        weights = {name: tensor.cpu().numpy() for name, tensor in self.encoder.state_dict().items()}
        return encoder_digest(
            self.config.pooling,
            normalise=self.config.normalise,
            weights=weights,
            rounded=self._precision == "int8",
        )


def empty(folder: Path, dtype: torch.dtype) -> ReaderBackbone:
    """Return the backbone of a folder's config.json without its weights; CheckpointError if it is of another type."""
    config = read_config(folder)
    if config.encoder is None:
        return ReaderBackbone(config, None, dtype)
    bare = backbones.get(str(config.encoder.get("model_type"))).bare
    assert bare is not None
    return ReaderBackbone(config, bare(dict(config.encoder), dtype), dtype)


def pretrained(folder: Path, dtype: torch.dtype) -> ReaderBackbone:
    """Return the backbone of a folder with its weights."""
    backbone = empty(folder, dtype)
    load_weights(backbone, folder)
    return backbone


def keep_states(model: nn.Module) -> None:
    """Look up states that were computed before, and keep those that are new, as training and `p2l drift` do."""
    if isinstance(model, ReaderBackbone) and model.config.frozen and model.encoder is not None and model.cache is None:
        model.cache = StateCache.open(model.fingerprint(), len(model.state_mean))


def assemble(
    words: TfidfTokenizer, scaling: Mapping[str, Floats], encoder: Path | None, *, frozen: bool = True, **keys: Any
) -> tuple[ReaderBackbone, ReaderTokenizer]:
    """Return a reader, its layer's weights drawn from torch's generator, and its tokenizer.

    `scaling` is as for `ReaderTokenizer`, `keys` are those of `ReaderConfig` beside the encoder's. States are neither
    centred nor scaled. InputError for a folder that is not an encoder's.
    """
    config, network, tokenizer = _with_encoder(encoder, frozen=frozen)
    directions = scaling["projection"].shape[1]
    form = len(scaling["mean"]) - directions
    backbone = ReaderBackbone(replace(config, directions=directions, form=form, **keys), network)
    sizes = {"vocab_size": config.vocab_size, "max_length": config.max_position_embeddings}
    return backbone, ReaderTokenizer(words, scaling, tokenizer, prefix=config.prefix, **sizes)


def _with_encoder(encoder: Path | None, *, frozen: bool) -> tuple[ReaderConfig, nn.Module | None, Any]:
    """Return the configuration of an encoder, the encoder and its tokenizer; InputError if the folder has none."""
    if encoder is None:
        return ReaderConfig(1, 0, 0), None, None
    from transformers import AutoTokenizer

    content = read_object(encoder / "config.json")
    network = backbones.get(str(content.get("model_type"))).pretrained(encoder, torch.float32)
    if frozen:
        network = network.half().float()  # rounded once, here, so that folders in float16 lose nothing
    tokenizer = getattr(AutoTokenizer.from_pretrained(str(encoder), trust_remote_code=False), "backend_tokenizer", None)
    if tokenizer is None:
        raise InputError(f"{encoder}: its tokenizer has no tokenizer.json; use an encoder with a fast tokenizer")
    pooling = pooling_of(encoder)
    positions = int(network.config.max_position_embeddings)  # type: ignore[union-attr, arg-type]
    config = ReaderConfig(
        vocab_size=int(network.config.vocab_size),  # type: ignore[union-attr, arg-type]
        directions=0,
        hidden_size=0,
        encoder=network.config.to_diff_dict() | {"model_type": content["model_type"]},  # type: ignore[union-attr, operator]
        pooling=pooling.kind,
        normalise=pooling.normalise,
        prefix=pooling.prefix,
        frozen=frozen,
        max_position_embeddings=min(positions, pooling.max_length or MAX_ENCODER_TOKENS, MAX_ENCODER_TOKENS),
    )
    return config, network, tokenizer


backbones.register(backbones.Backbone("reader", pretrained, empty, lambda model, batch: model(batch), packs=True))
