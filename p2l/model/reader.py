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
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from p2l.common.cli import choose
from p2l.common.errors import CheckpointError, InputError
from p2l.common.prompts import BETWEEN_TURNS, FORM_FEATURES, cut_marks, form_of, newest_turns, repair
from p2l.model import backbones
from p2l.model.batching import collate, plan_batches, to_device
from p2l.model.checkpoint import load_weights, read_object
from p2l.model.encoding import Encoding, PromptTokenizer, check_turns, panics_as_errors, register
from p2l.model.heads import Float32Linear
from p2l.model.sentence import StateCache, key_of, pooling_of
from p2l.model.tfidf import TfidfTokenizer
from p2l.model.tfidf import load as load_words

Floats = npt.NDArray[np.float32]
_WORDS_FILE = "words.safetensors"
_MAX_ENCODER_TOKENS = 256
"""Tokens that the encoder reads, at most, unless it was trained with fewer."""
READS = ("state", "words", "all")
"""Inputs of the members of a reader with an encoder, by turns: members that read different inputs err differently."""
MAX_DEVIATIONS = 4.0  # of a feature: a prompt of another kind must not dwarf everything else
_MAX_CHARS = 20_000  # of a prompt that encoder and form read
_TOKENS_PER_PASS = 2048  # of prompts that the encoder reads together


@dataclass(frozen=True)
class ReaderConfig:
    """config.json of the backbone."""

    vocab_size: int
    """Token ids of the encoder, or 1."""
    directions: int
    """Main directions of words."""
    hidden_size: int
    """H, a multiple of `members`."""
    encoder: dict[str, Any] | None = None
    """config.json of the encoder."""
    pooling: str = "mean"
    normalise: bool = False
    frozen: bool = True
    """Whether training leaves the encoder as it is."""
    max_position_embeddings: int = _MAX_ENCODER_TOKENS
    """Tokens that the encoder can read."""
    dropout: float = 0.5
    input_dropout: float = 0.3
    members: int = 1
    """K"""
    activation: str = "gelu"
    """Or "softmax": each member's units are the shares of its clusters in a prompt."""
    reads: Sequence[str] = ("all",)
    """Inputs of the members, by turns: "all", or form with "state" or "words" alone."""
    form: int = 9
    """Counts of form."""
    with_inputs: bool = False
    """Whether the inputs stand in front of the hidden units, so that the head reads them too."""
    model_type: str = "reader"

    def to_dict(self) -> dict[str, Any]:
        """Its JSON form."""
        return asdict(self)


_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "softmax": functools.partial(F.softmax, dim=-1),
}


class _MemberLayer(Float32Linear):
    """The hidden layer (F -> H), of units that belong to K members in equal parts."""

    mask: Tensor

    def __init__(self, inputs: int, config: ReaderConfig, dtype: torch.dtype) -> None:
        """Draw torch's default weights; CheckpointError if the members do not share the units evenly."""
        units = config.hidden_size - inputs * config.with_inputs
        if config.members < 1 or units < 1 or units % config.members:
            raise CheckpointError(
                f"config.json: hidden_size {config.hidden_size} leaves {units} units, no multiple of "
                f"{config.members} members"
            )
        super().__init__(inputs, units, dtype=dtype)
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
        keys = [key_of(ids) for ids in tokens]
        known = self.cache.get(keys)
        missing = [row for row, state in enumerate(known) if state is None]
        if missing:
            new = self.read([tokens[row] for row in missing], batch["features"].device)
            self.cache.put([keys[row] for row in missing], new)
            for row, state in zip(missing, new, strict=True):
                known[row] = state
        rows = np.stack([state for state in known if state is not None])
        return torch.from_numpy(rows).to(batch["features"].device).float()

    def read(self, tokens: Sequence[npt.NDArray[np.int64]], device: torch.device) -> npt.NDArray[np.float16]:
        """Return the encoder's states (N, D) of prompts, given by their tokens, in a few passes."""
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
        """Return the digest of encoder and pooling, on which a state depends beside the tokens."""
        assert self.encoder is not None
        digest = hashlib.blake2b(f"{self.config.pooling} {self.config.normalise}".encode(), digest_size=12)
        for name, tensor in sorted(self.encoder.state_dict().items()):
            digest.update(name.encode() + tensor.detach().cpu().half().numpy().tobytes())
        return digest.hexdigest()


class ReaderTokenizer(PromptTokenizer):
    """Prompts to the tokens of the encoder, and the features of words and form."""

    pad_token_id = 0
    cls_token_id = 0

    def __init__(
        self, words: TfidfTokenizer, scaling: Mapping[str, Floats], tokenizer: Any, *, vocab_size: int, max_length: int
    ) -> None:
        """Take words, their `projection` (V, K) with `mean` and `scale` of all features, and the encoder's tokens."""
        self.words, self.scaling = words, scaling
        self.vocab_size, self.max_length = vocab_size, max_length
        self._tokenizer = tokenizer
        if tokenizer is not None:
            tokenizer.no_padding()
            tokenizer.no_truncation()
            tokenizer.encode_special_tokens = True  # a prompt cannot imitate the encoder's own tokens
            # The tokens that the encoder expects before and after a text.
            whole, body = tokenizer.encode("a").ids, tokenizer.encode("a", add_special_tokens=False).ids
            start = next((n for n in range(len(whole)) if whole[n : n + len(body)] == body), 0)
            self._first = np.array(whole[:start], dtype=np.int64)
            self._last = np.array(whole[start + len(body) :], dtype=np.int64)

    def encode(self, prompts: Sequence[Sequence[str]]) -> list[Encoding]:
        """See `PromptTokenizer.encode`; without an encoder every prompt has one token that nothing reads."""
        turns = [check_turns(prompt, number) for number, prompt in enumerate(prompts)]
        projection, mean = self.scaling["projection"], self.scaling["mean"]
        raw = raw_features(self.words, projection, turns, form=len(mean) - projection.shape[1])
        features = np.clip((raw - mean) * self.scaling["scale"], -MAX_DEVIATIONS, MAX_DEVIATIONS).astype(np.float32)
        # The network does not read this share: a posterior takes it as a measure of strangeness.
        known = np.array([words.known for words in self.words.encode(turns)], dtype=np.float32)[:, None]
        features = np.concatenate([features, known], axis=1)
        if self._tokenizer is None:
            return [Encoding(np.zeros(1, np.int64), None, False, row) for row in features]
        texts = [BETWEEN_TURNS.join(_newest(prompt)) for prompt in turns]
        most = self.max_length - len(self._first) - len(self._last)
        encodings = []
        with panics_as_errors():
            batch = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        for coded, row in zip(batch, features, strict=True):
            body = np.array(coded.ids, dtype=np.int64)
            ids = np.concatenate([self._first, body[max(0, len(body) - most) :], self._last])
            encodings.append(Encoding(ids, None, len(body) > most, row))
        return encodings

    def save_pretrained(self, directory: str | Path) -> None:
        """Write words, scaling and the encoder's tokens."""
        from safetensors.numpy import save_file

        folder = Path(directory)
        self.words.save_pretrained(folder)
        save_file({name: np.ascontiguousarray(part) for name, part in self.scaling.items()}, folder / _WORDS_FILE)
        if self._tokenizer is not None:
            self._tokenizer.save(str(folder / "tokenizer.json"))


def raw_features(
    words: TfidfTokenizer, projection: Floats, turns: Sequence[Sequence[str]], *, form: int = FORM_FEATURES
) -> Floats:
    """Return words along the main directions and the first `form` counts of form (B, features), as they are."""
    features = np.zeros((len(turns), projection.shape[1] + form), dtype=np.float32)
    for row, weighted in enumerate(words.encode(turns)):
        assert weighted.values is not None
        features[row, : projection.shape[1]] = weighted.values @ projection[weighted.ids].astype(np.float32)
        features[row, projection.shape[1] :] = newest_form(turns[row])[:form]
    return features


def newest_form(turns: Sequence[str]) -> list[float]:
    """Return the counts of form of the newest characters of a prompt."""
    return form_of(_newest(turns))


def _newest(turns: Sequence[str]) -> list[str]:
    """Return the newest turns of a prompt, repaired, the oldest of them cut."""
    newest = newest_turns(turns, max_turns=_MAX_CHARS, max_chars=_MAX_CHARS)
    return [cut_marks(repair(turn)) for turn in newest]


@register("reader")
def load(folder: Path, *, max_length: int | None, **_: str | None) -> ReaderTokenizer:
    """Load what `ReaderTokenizer.save_pretrained` wrote; templates and special tokens do not apply."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    file = folder / _WORDS_FILE
    config = _config(folder)
    words = load_words(folder, max_length=None)
    try:
        scaling = load_file(file)
        shapes = {name: part.shape for name, part in scaling.items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: missing or damaged ({error}); copy the folder again") from error
    width = config.directions + config.form
    if shapes != {"projection": (words.vocab_size, config.directions), "mean": (width,), "scale": (width,)}:
        raise CheckpointError(f"{file}: does not belong to config.json and the words beside it; copy the folder again")
    length = min(max_length or config.max_position_embeddings, config.max_position_embeddings)
    tokenizer = None
    if config.encoder is not None:
        from tokenizers import Tokenizer

        tokens_file = folder / "tokenizer.json"
        try:
            with panics_as_errors():
                tokenizer = Tokenizer.from_file(str(tokens_file))
        except Exception as error:  # the library raises Exception itself
            raise CheckpointError(f"{tokens_file}: missing or damaged ({error}); copy the folder again") from error
    return ReaderTokenizer(words, scaling, tokenizer, vocab_size=config.vocab_size, max_length=length)


def _config(folder: Path) -> ReaderConfig:
    file = folder / "config.json"
    content = read_object(file)
    if content.get("model_type") != "reader":
        raise CheckpointError(f"{folder}: config.json has model_type {content.get('model_type')!r}, not 'reader'")
    fields = {key: content[key] for key in ReaderConfig.__dataclass_fields__ if key in content}
    try:
        return ReaderConfig(**fields)
    except TypeError as error:
        raise CheckpointError(
            f"{file}: is not the configuration of a reader: {error}; copy the folder again"
        ) from error


def empty(folder: Path, dtype: torch.dtype) -> ReaderBackbone:
    """Return the backbone of a folder's config.json without its weights; CheckpointError if it is of another type."""
    config = _config(folder)
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
    length = config.max_position_embeddings
    return backbone, ReaderTokenizer(words, scaling, tokenizer, vocab_size=config.vocab_size, max_length=length)


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
        frozen=frozen,
        max_position_embeddings=min(positions, pooling.max_length or _MAX_ENCODER_TOKENS, _MAX_ENCODER_TOKENS),
    )
    return config, network, tokenizer


backbones.register(backbones.Backbone("reader", pretrained, empty, lambda model, batch: model(batch), packs=True))
