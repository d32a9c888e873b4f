"""A model as it is served: where it runs, in which precision, and why."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from p2l.checkpoint import MODEL_LIST_FILE
from p2l.errors import InputError
from p2l.inference import P2L, Member, choose_device
from p2l.lean import layers_of
from p2l.model import P2LModel, to_dtype
from p2l.precision import choose_dtype, half_is_fast, in_dtype
from p2l.quantize import quantize
from p2l.serving.jobs import BatchLimits
from p2l.serving.settings import Settings

__all__ = ["Served", "batch_limits", "load", "newest_model", "written_at"]

_CPU_BATCH_TOKENS = 1024
_GPU_BATCH_TOKENS = 16_384
_GPU_WAIT_MS = 2.0
_COMPANY = 0.004
_MOST_PROMPTS = 256
_MOST_STREAMS = 4
_SHORT = 2048  # tokens that a light model reads in some hundredths of a second
_LIGHT = 5_000_000  # weights of a model whose passes are shorter than dividing them is


@dataclass(frozen=True)
class Served:
    """A loaded model and how its precision was chosen."""

    model: P2L
    path: str
    dtype: str
    """Of its members, in words."""
    reason: str

    @property
    def transformer_dtype(self) -> str:
        """What its transformers compute in."""
        return "bfloat16" if "bfloat16" in self.dtype else "float32"


def load(settings: Settings, path: str | None = None) -> Served:
    """Load the model of the settings, or another one in the same way, and make it ready to answer.

    It happens in a thread of its own, whose OpenMP helpers end with it (`p2l.serving.compute.start_streams`).

    Raises:
        InputError: it cannot be loaded, or not as the settings say.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_load, settings, path).result()


def _load(settings: Settings, path: str | None) -> Served:
    asked = settings if path is None else replace(settings, model_path=path)
    model = P2L.from_pretrained(
        asked.model_path,
        device=asked.device,
        dtype=_loaded_in(asked),
        model_type=asked.model_type,
        head_type=asked.head_type,
        loss_type=asked.loss_type,
        max_length=asked.max_length,
    )
    ready = [_prepare(member, asked) for member in model.members]
    model.members = [member for member, _, _ in ready]
    _ = model.revision  # computed here and kept, not when the first answer needs it
    dtypes, reasons = (list(dict.fromkeys(column)) for column in ([r[1] for r in ready], [r[2] for r in ready]))
    return Served(model, asked.model_path, " + ".join(dtypes), "; ".join(reasons))


def _loaded_in(settings: Settings) -> str | None:
    """The dtype to load weights in: what is measured, rounded or laid out on a CPU starts from float32."""
    return "float32" if choose_device(settings.device).type == "cpu" else settings.dtype


def _prepare(member: Member, settings: Settings) -> tuple[Member, str, str]:
    """A member in the form that answers fastest, its dtype, and why."""
    member.tokenizer.forget_words()
    if settings.quantize:
        half = torch.bfloat16 if half_is_fast() else torch.float32
        rounded = quantize(member.model, member.tokenizer, settings.quantize, dtype=half)
        return member, settings.quantize, str(rounded)
    if settings.dtype is None:
        choice = choose_dtype(member.model, member.tokenizer)
    else:
        choice = in_dtype(member.model, to_dtype(settings.dtype), settings.dtype_reason)
    return Member(choice.model, member.tokenizer), str(choice.dtype).removeprefix("torch."), choice.reason


def batch_limits(settings: Settings, model: P2L) -> BatchLimits:
    """What shares a forward pass and how many threads compute, where the settings do not say it.

    On a CPU a pass takes what is there at once: its time grows with its tokens, so waiting for company gains nothing.
    """
    on_cpu = model.device.type == "cpu"
    tokens = settings.max_batch_tokens or (_CPU_BATCH_TOKENS if on_cpu else _GPU_BATCH_TOKENS)
    wait_ms = settings.max_wait_ms if settings.max_wait_ms is not None else (0.0 if on_cpu else _GPU_WAIT_MS)
    light = on_cpu and sum(part.numel() for member in model.members for part in _weights(member.model)) < _LIGHT
    # The event loop may not be held up: neither by waiting for company nor by a long prompt.
    short = not wait_ms and all(
        not layers_of(member.model) or member.tokenizer.max_length <= _SHORT for member in model.members
    )
    cores = settings.cores or torch.get_num_threads()
    streams = settings.streams
    if streams is None:
        streams = 1 if light or not on_cpu else min(_MOST_STREAMS, cores)
        streams = 0 if light and short else streams
    return BatchLimits(
        tokens=tokens,
        prompts=_MOST_PROMPTS,
        wait=wait_ms / 1000,
        company=_COMPANY if on_cpu and settings.max_wait_ms is None else 0.0,
        threads=1 if light else settings.cores,
        streams=streams,
    )


def _weights(model: P2LModel) -> Iterator[torch.Tensor]:
    """The matrices that every token passes through."""
    for layer in layers_of(model):
        for part in layer.modules():
            weight = getattr(part, "weight", None)
            if isinstance(weight, torch.Tensor) and weight.ndim == 2:
                yield weight


def newest_model(folder: Path) -> Path | None:
    """The model folder (`folder` itself or one in it) whose weights were written last; None if there is none.

    Raises:
        InputError: the folder cannot be read.
    """
    try:
        parts = [part for part in folder.iterdir() if part.is_dir() and not part.name.startswith(".")]
    except OSError as error:
        raise InputError(f"{folder}: cannot be watched: {error.strerror or error}") from error
    newest = max([folder, *parts], key=written_at)
    return newest if written_at(newest) else None


def written_at(folder: Path) -> int:
    """When the newest weights of a complete model folder were written (ns); 0 for any other folder.

    Folders that are being written by training have names that begin with a dot, and no model list before the end.
    """
    try:
        files = [*folder.glob("*.safetensors"), *folder.glob("member-*/*.safetensors")]
        if not files or not (folder / MODEL_LIST_FILE).is_file():
            return 0
        return max(file.stat().st_mtime_ns for file in files)
    except OSError:  # it is being removed
        return 0
