"""Which text backbones can carry a head.

A backbone turns a batch into one hidden state per prompt. A transformer of Hugging Face registers in one line,

    register(transformer("gemma"))

where the name is the `model_type` of its config.json; anything else brings its own `Backbone`. Prompts reach it packed
end to end (p2l.attention) unless it says `packs=False`: a model with an attention of its own reads padded batches.

Shapes: B prompts, T tokens, D hidden, V vocabulary.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from p2l import tfidf
from p2l.attention import P2L_ATTENTION, Packed, register_attention
from p2l.checkpoint import check_finite, read_object, weight_shapes
from p2l.command import nearest
from p2l.errors import CheckpointError, ConfigError

__all__ = ["BACKBONES", "POOLINGS", "Backbone", "get", "grow", "no_init", "register", "transformer"]


@dataclass(frozen=True)
class Backbone:
    """How a family of text models is loaded and read."""

    name: str
    pretrained: Callable[[Path, torch.dtype], nn.Module]
    """A folder's weights; the module has `config` with `hidden_size` and `to_dict()`."""
    empty: Callable[[Path, torch.dtype], nn.Module]
    """The architecture of a folder's config.json, its weights still to be loaded."""
    encode: Callable[[nn.Module, Mapping[str, Tensor]], Tensor]
    """A collated batch -> hidden states (B, D) that the head reads."""
    packs: bool = False
    """Whether it reads batches without padding."""
    learned_positions: bool = False
    """Whether it knows no position beyond `max_position_embeddings`."""
    cpu_micro_batch: int | None = None
    """Tokens of a micro-batch beyond which a CPU gets no faster, only fuller."""
    encode_mean: Callable[[nn.Module, Mapping[str, Tensor]], Tensor] | None = None
    """Likewise, by the mean over a prompt's tokens; None for a backbone without tokens."""

    def reader(self, pooling: str) -> Callable[[nn.Module, Mapping[str, Tensor]], Tensor]:
        """`encode` for pooling "cls", `encode_mean` for "mean".

        Raises:
            ConfigError: no such pooling, or this backbone cannot do it.
        """
        if pooling not in POOLINGS:
            raise ConfigError(f"pooling {pooling!r} is unknown{nearest(pooling, POOLINGS)}; use cls or mean")
        if pooling == "cls":
            return self.encode
        if self.encode_mean is None:
            raise ConfigError(f"pooling 'mean' does not go with model_type {self.name!r}; leave it out")
        return self.encode_mean


BACKBONES: dict[str, Backbone] = {}

POOLINGS = ("cls", "mean")
"""What of a prompt the head reads: the state at the CLS token, or the mean over all tokens."""

# What a core's cache holds: see docs/experiments.md.
_CPU_MICRO_BATCH = 2048


def register(backbone: Backbone) -> Backbone:
    """Make a backbone known under its name."""
    BACKBONES[backbone.name] = backbone
    return backbone


def get(name: str) -> Backbone:
    """The backbone of a model type.

    Raises:
        ConfigError: no such backbone.
    """
    if name not in BACKBONES:
        known = ", ".join(sorted(BACKBONES))
        raise ConfigError(f"model_type {name!r} is unknown{nearest(name, BACKBONES)}; use one of {known}")
    return BACKBONES[name]


def transformer(name: str, *, learned_positions: bool = False, packs: bool = True, **options: Any) -> Backbone:
    """The backbone of a transformers text model; `options` go to its constructor."""
    if packs:
        options = {"attn_implementation": P2L_ATTENTION, **options}

    def pretrained(folder: Path, dtype: torch.dtype) -> nn.Module:
        register_attention()
        weight_shapes(folder)  # says clearly what is wrong with the files
        config = _config(folder, name)
        try:
            with _quiet():
                model, missing = _load(folder, config, dtype, options)
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:300]
            raise CheckpointError(f"{folder}: no {name} model can be loaded from it: {reason}") from error
        if missing:
            raise CheckpointError(f"{folder}: its weights are not those of a {name} model: {missing[0]} is missing")
        check_finite(folder, model.state_dict())
        return model

    def empty(folder: Path, dtype: torch.dtype) -> nn.Module:
        from transformers import AutoModel

        register_attention()
        config = _config(folder, name)
        with no_init():
            model: nn.Module = AutoModel.from_config(  # type: ignore[no-untyped-call]
                config, trust_remote_code=False, dtype=dtype, **options
            )
        return model

    return Backbone(name, pretrained, empty, _state_at_cls, packs, learned_positions, _CPU_MICRO_BATCH, _mean_state)


def grow(model: nn.Module, added_ids: Sequence[int], vocab_size: int) -> None:
    """Give every added token, and every id below `vocab_size` without a row, an embedding: the mean of the other rows.

    The mean keeps a new token as unremarkable as an average word. Rows are appended only where the matrix has no
    spare ones (many published models do).
    """
    if not hasattr(model, "get_input_embeddings"):
        return
    resizable: Any = model
    old_rows = resizable.get_input_embeddings().num_embeddings
    new = sorted({*added_ids, *range(old_rows, vocab_size)})
    if not new:
        return
    if vocab_size > old_rows:
        resizable.resize_token_embeddings(vocab_size, mean_resizing=False)
    weight = resizable.get_input_embeddings().weight
    with torch.no_grad():
        weight[torch.tensor(new)] = weight[: new[0]].float().mean(0).to(weight.dtype)


@contextlib.contextmanager
def no_init() -> Iterator[None]:
    """Modules made inside get memory but no random values: their weights are about to be loaded.

    What a module draws all the same leaves torch's generator as it was.
    """
    from transformers.initialization import no_init_weights

    with torch.random.fork_rng(devices=[]), no_init_weights():
        yield


def _load(folder: Path, config: Any, dtype: torch.dtype, options: Mapping[str, Any]) -> tuple[nn.Module, list[str]]:
    """A pretrained model, and the names of the weights that its folder lacks."""
    from transformers import AutoModel

    model, report = AutoModel.from_pretrained(
        str(folder),
        config=config,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
        dtype=dtype,
        **options,
    )
    return model, sorted(report["missing_keys"])


def _state_at_cls(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Hidden states (B, D) at the last token of each prompt, which is the CLS."""
    states = _states(model, batch)
    if "lengths" in batch:
        return states[0, Packed.of(batch["lengths"], states.device).last]
    return states[torch.arange(len(states), device=states.device), batch["attention_mask"].sum(1) - 1]


def _mean_state(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Mean (B, D) of the hidden states of all tokens of each prompt, summed in float32."""
    states = _states(model, batch)
    if "lengths" not in batch:
        mask = batch["attention_mask"][:, :, None].float()
        return ((states.float() * mask).sum(1) / mask.sum(1)).to(states.dtype)
    lengths = batch["lengths"].to(states.device)
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=states.device), lengths)
    sums = torch.zeros(len(lengths), states.shape[-1], device=states.device).index_add(0, owner, states[0].float())
    return (sums / lengths[:, None]).to(states.dtype)


def _states(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Hidden states of all tokens: (1, tokens, D) of prompts end to end, else (B, T, D)."""
    ids = batch["input_ids"]
    if "lengths" in batch:
        packed = Packed.of(batch["lengths"], ids.device)
        states: Tensor = model(input_ids=ids, position_ids=batch["position_ids"], packed=packed).last_hidden_state
    else:
        states = model(input_ids=ids, attention_mask=batch["attention_mask"]).last_hidden_state
    return states


def _config(folder: Path, name: str) -> Any:
    from transformers import AutoConfig

    found = read_object(folder / "config.json").get("model_type")
    if found != name:
        raise CheckpointError(f"{folder}: config.json says model_type {found!r}, asked for {name!r}")
    try:
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # transformers validates with several libraries, each with errors of its own
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{folder}: config.json cannot be used: {reason}; copy it again") from error
    config.use_cache = False
    return config


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bar and no report on unused weights: a backbone leaves its generation head behind on purpose."""
    logging: Any = importlib.import_module("transformers.utils.logging")

    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


for _name in ("qwen2", "qwen3", "llama", "modernbert"):
    register(transformer(_name))
register(transformer("bert", learned_positions=True, add_pooling_layer=False))
register(Backbone("tfidf", tfidf.pretrained, tfidf.empty, tfidf.encode, packs=True))
