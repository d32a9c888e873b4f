"""Text backbones that can carry a head.

A backbone turns a batch into one hidden state per prompt. A transformer of Hugging Face registers in one line,

    register(transformer("gemma"))

where the name is the `model_type` of its config.json; any other model needs its own `Backbone`. Prompts are packed end
to end unless the backbone has `packs=False`: a model with an attention of its own reads padded batches.

Shapes: B prompts, T tokens, D hidden, V vocabulary, H heads, G heads of keys and values, C width of a head.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from p2l.common.cli import choose
from p2l.common.errors import CheckpointError, ConfigError
from p2l.model.checkpoint import check_finite, load_weights, read_object, weight_shapes

P2L_ATTENTION = "p2l"
_VarlenKernel = Callable[..., Tensor]
"""(query (T, H, C), key (T, G, C), value (T, G, C), packed, window, scale) -> (T, H, C)"""


@dataclass(frozen=True)
class Packed:
    """Borders of prompts that lie end to end in a row of tokens."""

    lengths: list[int]
    """Tokens of each prompt."""
    borders: Tensor
    """(B + 1,) int32 on the device of the tokens: 0, then the end of each prompt."""

    @staticmethod
    def of(lengths: Tensor, device: torch.device) -> Packed:
        """Return the borders of prompts of these `lengths` (B,), which are on the CPU."""
        borders = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        return Packed(lengths.tolist(), borders.to(device, non_blocking=True))


class Joined:
    """Prompts end to end for a traced graph, which knows no borders: which prompt each token belongs to."""

    def __init__(self, owners: Tensor) -> None:
        """Take the number (T,) of each token's prompt."""
        self._owners = owners
        self._masks: dict[tuple[int, int], Tensor] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, window: tuple[int, int], scale: float) -> Tensor:
        """Attend as `one_by_one` does, all prompts at once under a mask."""
        heads, groups = query.shape[1], key.shape[1]
        if groups != heads:
            key, value = (
                states[:, :, None].expand(-1, -1, heads // groups, -1, -1).flatten(1, 2) for states in (key, value)
            )
        if window not in self._masks:  # the layers of a backbone share one window or two
            place = torch.arange(self._owners.shape[0], device=self._owners.device)
            ahead = place[None, :] - place[:, None]
            seen = self._owners[:, None] == self._owners[None, :]
            left, right = window
            seen = seen if left < 0 else seen & (ahead >= -left)
            seen = seen if right < 0 else seen & (ahead <= right)
            # Added to the scores (1, 1, T, T): 0 where a token sees another, else a large cost.
            self._masks[window] = torch.where(seen, 0.0, -1e30)[None, None]
        mask = self._masks[window]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
        return mixed.transpose(1, 2)


@functools.cache
def all_threads() -> int:
    """Return the number of threads that torch computes with by default, as it was at the first call."""
    return torch.get_num_threads()


@functools.cache
def register_attention() -> None:
    """Register the attention with transformers as `P2L_ATTENTION`, once; transformers is slow to import."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(P2L_ATTENTION, _attention)
    AttentionMaskInterface.register(P2L_ATTENTION, _mask)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed: Packed | Joined | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend with query (B, H, T, C), key and value (B, G, T, C); return (B, T, H, C)."""
    if packed is None:  # a padded batch with its mask
        sdpa: Any = importlib.import_module("transformers.integrations.sdpa_attention")
        arguments: dict[str, Any] = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **options}
        states: tuple[Tensor, None] = sdpa.sdpa_attention_forward(
            module, query, key, value, attention_mask, **arguments
        )
        return states
    for name in ("softcap", "position_bias", "s_aux"):  # they modify the scores, which no kernel below would do
        if options.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} attends with {name!r}, which packed prompts do not support; "
                "register its backbone with packs=False"
            )
    causal = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    reach = -1 if sliding_window is None else sliding_window - 1  # transformers' window counts the token itself
    window = (reach, 0 if causal else reach)
    if isinstance(packed, Joined):
        return packed.attend(query, key, value, window, scale), None
    kernel = varlen_kernel(query.device.type, query.dtype) if dropout == 0 else None
    if kernel is None:  # on a CPU, and for float32
        return one_by_one(query, key, value, packed.lengths, window=window, scale=scale, dropout=dropout), None
    flat = [states[0].transpose(0, 1) for states in (query, key, value)]
    return kernel(*flat, packed, window, scale).unsqueeze(0), None


def one_by_one(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: list[int],
    *,
    window: tuple[int, int] = (-1, 0),
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """Attend prompt by prompt, as reference: query (1, H, T, C), key and value (1, G, T, C) -> (1, T, H, C).

    `lengths` are the tokens of each prompt, `window` the tokens that a token sees to its left and right, -1 for all.
    """
    shared = key.shape[1] != query.shape[1]
    attended = []
    for q, k, v in zip(*(states.split_with_sizes(lengths, dim=2) for states in (query, key, value)), strict=True):
        length = q.shape[2]
        left, right = (reach if 0 <= reach < length - 1 else length for reach in window)
        masking: dict[str, Any] = {"is_causal": right == 0}
        if left != length or right not in (0, length):  # a prompt within its window needs no mask, which costs a kernel
            ahead = torch.arange(length, device=q.device)[None, :] - torch.arange(length, device=q.device)[:, None]
            masking = {"attn_mask": (ahead >= -left) & (ahead <= right)}
        attended.append(
            F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale, enable_gqa=shared, **masking)
        )
    return torch.cat(attended, dim=2).transpose(1, 2)


@functools.cache
def varlen_kernel(device_type: str, dtype: torch.dtype) -> _VarlenKernel | None:
    """Return this machine's kernel for sequences of varying length, or None."""
    if device_type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return None
    return _torch_varlen() or _flash_varlen()


def _import(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return None


def _torch_varlen() -> _VarlenKernel | None:
    """Return torch's own kernel, from version 2.11 on (earlier ones have no window)."""
    attend = _import("torch.nn.attention.varlen", "varlen_attn")
    parameters = inspect.signature(attend).parameters if attend else {}
    if "window_size" not in parameters or "scale" not in parameters:
        return None

    def kernel(q: Tensor, k: Tensor, v: Tensor, packed: Packed, window: tuple[int, int], scale: float) -> Tensor:
        options: dict[str, Any] = {"scale": scale, "window_size": window}
        if k.shape[1] != q.shape[1]:
            if "enable_gqa" in parameters:
                options["enable_gqa"] = True
            else:
                k, v = (states.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for states in (k, v))
        borders, longest = packed.borders, max(packed.lengths)
        attended: Tensor = attend(q, k, v, borders, borders, longest, longest, **options)
        return attended

    return kernel


def _flash_varlen() -> _VarlenKernel | None:
    """Return the kernel of the package flash-attn."""
    attend = _import("flash_attn", "flash_attn_varlen_func")
    if attend is None:
        return None

    def kernel(q: Tensor, k: Tensor, v: Tensor, packed: Packed, window: tuple[int, int], scale: float) -> Tensor:
        borders, longest = packed.borders, max(packed.lengths)
        states: Tensor = attend(
            q, k, v, borders, borders, longest, longest, softmax_scale=scale, window_size=window, causal=window[1] == 0
        )
        return states

    return kernel


def _mask(*arguments: Any, attention_mask: Tensor | None = None, **options: Any) -> Tensor | None:
    """Return the mask of padded batches; packed ones have borders instead."""
    if attention_mask is None:
        return None
    masking: Any = importlib.import_module("transformers.masking_utils")
    mask: Tensor | None = masking.sdpa_mask(*arguments, attention_mask=attention_mask, **options)
    return mask


@dataclass(frozen=True)
class Backbone:
    """A family of text models: its loaders, and the readers of its hidden states."""

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
    """Whether positions end at `max_position_embeddings`."""
    cpu_micro_batch: int | None = None
    """Tokens of a micro-batch beyond which a CPU needs more memory without being faster."""
    encode_mean: Callable[[nn.Module, Mapping[str, Tensor]], Tensor] | None = None
    """Like `encode`, with the mean over a prompt's tokens; None for a backbone without tokens."""
    bare: Callable[[dict[str, Any], torch.dtype], nn.Module] | None = None
    """Like `empty`, from the content of config.json; None where that is not an encoder of its own."""

    def reader(self, pooling: str) -> Callable[[nn.Module, Mapping[str, Tensor]], Tensor]:
        """Return `encode` for pooling "cls", `encode_mean` for "mean"; ConfigError for others, or without tokens."""
        read = choose("pooling", pooling, {"cls": self.encode, "mean": self.encode_mean})
        if read is None:
            raise ConfigError(f"pooling 'mean' does not go with model_type {self.name!r}; leave it out")
        return read


BACKBONES: dict[str, Backbone] = {}
_CPU_MICRO_BATCH_TOKENS = 2048  # tokens whose activations fit into a core's cache; see benchmarks/LOG.md


def register(backbone: Backbone) -> Backbone:
    """Register a backbone under its name."""
    BACKBONES[backbone.name] = backbone
    return backbone


def get(name: str) -> Backbone:
    """Return the backbone of a model type, else raise ConfigError."""
    return choose("model_type", name, BACKBONES)


def transformer(name: str, *, learned_positions: bool = False, packs: bool = True, **options: Any) -> Backbone:
    """Return the backbone of a transformers text model; `options` go to its constructor."""
    if packs:
        options = {"attn_implementation": P2L_ATTENTION, **options}

    def pretrained(folder: Path, dtype: torch.dtype) -> nn.Module:
        from transformers import AutoModel

        register_attention()
        weight_shapes(folder)  # its errors name the damaged file, those of transformers do not
        config = _config(folder, name)
        try:
            with quiet():
                model, report = AutoModel.from_pretrained(
                    str(folder),
                    config=config,
                    use_safetensors=True,
                    trust_remote_code=False,
                    output_loading_info=True,
                    dtype=dtype,
                    **options,
                )
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:300]
            raise CheckpointError(f"{folder}: a {name} model cannot be loaded from it: {reason}") from error
        if report["missing_keys"]:
            missing = min(report["missing_keys"])
            raise CheckpointError(f"{folder}: its weights are not those of a {name} model: {missing} is missing")
        check_finite(folder, model.state_dict())
        backbone: nn.Module = model
        return backbone

    def bare(content: dict[str, Any], dtype: torch.dtype) -> nn.Module:
        from transformers import AutoConfig

        return _build(AutoConfig.for_model(**content), dtype)

    def _build(config: Any, dtype: torch.dtype) -> nn.Module:
        from transformers import AutoModel

        register_attention()
        with no_init():
            model: nn.Module = AutoModel.from_config(  # type: ignore[no-untyped-call]
                config, trust_remote_code=False, dtype=dtype, **options
            )
        return model

    return Backbone(
        name=name,
        pretrained=pretrained,
        empty=lambda folder, dtype: _build(_config(folder, name), dtype),
        encode=_state_at_cls,
        packs=packs,
        learned_positions=learned_positions,
        cpu_micro_batch=_CPU_MICRO_BATCH_TOKENS,
        encode_mean=mean_state,
        bare=bare,
    )


def grow(model: nn.Module, added_ids: Sequence[int], vocab_size: int) -> None:
    """Give every added token, and every id below `vocab_size` without a row, the mean of the other embeddings."""
    if not hasattr(model, "get_input_embeddings"):
        return
    resizable: Any = model
    old_rows = resizable.get_input_embeddings().num_embeddings
    new = sorted({*added_ids, *range(old_rows, vocab_size)})
    if not new:
        return
    if vocab_size > old_rows:  # many published models have spare rows
        resizable.resize_token_embeddings(vocab_size, mean_resizing=False)
    # The mean makes a new token as neutral as an average word.
    weight = resizable.get_input_embeddings().weight
    with torch.no_grad():
        weight[torch.tensor(new)] = weight[: new[0]].float().mean(0).to(weight.dtype)


@contextlib.contextmanager
def no_init() -> Iterator[None]:
    """Skip the random initialisation of modules whose weights are loaded next; torch's generator is untouched."""
    from transformers.initialization import no_init_weights

    with torch.random.fork_rng(devices=[]), no_init_weights():
        yield


def _state_at_cls(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return hidden states (B, D) at the last token of each prompt, which is the CLS."""
    states = _states(model, batch)
    if "lengths" in batch:
        return states[0, Packed.of(batch["lengths"], states.device).borders[1:].long() - 1]
    return states[torch.arange(len(states), device=states.device), batch["attention_mask"].sum(1) - 1]


def first_state(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return hidden states (B, D) at the first token of each prompt, where encoders of sentences have their CLS."""
    states = _states(model, batch)
    if "lengths" not in batch:
        return states[:, 0]
    return states[0, Packed.of(batch["lengths"], states.device).borders[:-1].long()]


def mean_state(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return mean (B, D) of the hidden states of all tokens of each prompt, summed in float32."""
    states = _states(model, batch)
    if "lengths" not in batch:
        mask = batch["attention_mask"][:, :, None].float()
        return ((states.float() * mask).sum(1) / mask.sum(1)).to(states.dtype)
    lengths = batch["lengths"].to(states.device)
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=states.device), lengths)
    sums = torch.zeros(len(lengths), states.shape[-1], device=states.device).index_add(0, owner, states[0].float())
    return (sums / lengths[:, None]).to(states.dtype)


def _states(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return hidden states of all tokens: (1, tokens, D) of prompts end to end, else (B, T, D)."""
    ids = batch["input_ids"]
    if "lengths" in batch:
        packed = Packed.of(batch["lengths"], ids.device)
        states: Tensor = model(input_ids=ids, position_ids=batch["position_ids"], packed=packed).last_hidden_state
    else:
        states = model(input_ids=ids, attention_mask=batch["attention_mask"]).last_hidden_state
    return states


def _config(folder: Path, name: str) -> Any:
    from transformers import AutoConfig

    model_type = read_object(folder / "config.json").get("model_type")
    if model_type != name:
        raise CheckpointError(f"{folder}: config.json has model_type {model_type!r}, not {name!r}")
    try:
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # transformers validates with several libraries, each with errors of its own
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{folder}: config.json cannot be used: {reason}; copy it again") from error
    config.use_cache = False
    return config


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bar and its remarks on heads and losses that a backbone has no use for."""
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


@dataclass(frozen=True)
class TfidfConfig:
    """config.json of the backbone."""

    vocab_size: int
    hidden_size: int = 32
    feature_dropout: float = 0.5
    """Share of features hidden from each prompt in training, without which rare ones are memorised."""
    model_type: str = "tfidf"

    def to_dict(self) -> dict[str, Any]:
        """Its JSON form."""
        return asdict(self)


class TfidfBackbone(nn.Module):
    """The embedding matrix E (V, D)."""

    def __init__(self, config: TfidfConfig, dtype: torch.dtype = torch.float32) -> None:
        """Make E, at zero."""
        super().__init__()
        self.config = config
        # At zero a feature without training votes has no effect; the head's random weights break the symmetry.
        self.embedding = nn.Parameter(torch.zeros(config.vocab_size, config.hidden_size, dtype=dtype))

    def forward(self, ids: Tensor, values: Tensor, offsets: Tensor) -> Tensor:
        """Sum flat ids (F,) with weights (F,) from the offsets (B,) where prompts start -> (B, D)."""
        # Adam moves a rare feature as fast as a common one, and would memorise rare ones in the second pass.
        weights = F.dropout(values, self.config.feature_dropout, self.training).to(self.embedding.dtype)
        return F.embedding_bag(ids, self.embedding, offsets, mode="sum", per_sample_weights=weights)


def _empty_words(folder: Path, dtype: torch.dtype) -> TfidfBackbone:
    """Return the backbone of a folder's config.json, at zero; CheckpointError unless weights of its size are there."""
    file = folder / "config.json"
    content = read_object(file)
    if content.get("model_type") != "tfidf":
        raise CheckpointError(f"{folder}: config.json has model_type {content.get('model_type')!r}, not 'tfidf'")
    if not isinstance(content.get("vocab_size"), int):
        raise CheckpointError(f"{file}: has no vocab_size; copy the folder again")
    config = TfidfConfig(**{key: content[key] for key in TfidfConfig.__dataclass_fields__ if key in content})
    if type(config.hidden_size) is not int or not isinstance(config.feature_dropout, int | float):
        raise CheckpointError(f"{file}: hidden_size and feature_dropout must be numbers; copy the folder again")
    if not 0 <= config.feature_dropout < 1:
        raise CheckpointError(f"{file}: feature_dropout must be at least 0 and below 1; copy the folder again")
    # No more memory is allocated than the folder's weights take, whatever its config.json says.
    stored = [shape for name, shape in weight_shapes(folder).items() if name.endswith("embedding")]
    if (config.vocab_size, config.hidden_size) not in stored:
        shape = stored[0] if stored else "no"
        size = (config.vocab_size, config.hidden_size)
        raise CheckpointError(f"{folder}: the embedding has shape {shape}, config.json asks for {size}")
    return TfidfBackbone(config, dtype)


def _pretrained_words(folder: Path, dtype: torch.dtype) -> TfidfBackbone:
    """Return the backbone of a folder with its weights."""
    backbone = _empty_words(folder, dtype)
    load_weights(backbone, folder)
    return backbone


for _name in ("qwen2", "qwen3", "llama", "modernbert"):
    register(transformer(_name))
register(transformer("bert", learned_positions=True, add_pooling_layer=False))
register(
    Backbone(
        name="tfidf",
        pretrained=_pretrained_words,
        empty=_empty_words,
        encode=lambda model, batch: model(batch["input_ids"], batch["values"], batch["offsets"]),
        packs=True,
    )
)
