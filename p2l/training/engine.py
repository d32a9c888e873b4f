"""DeepSpeed behind one class: processes, forward, backward, optimizer step, state in and out."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import logging
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from p2l.common.errors import CheckpointError, ConfigError, P2LError, PeerError
from p2l.model.batching import Batch, to_device
from p2l.model.model import P2LModel, P2LOutput
from p2l.training.deepspeed_config import one_line, prepare_kernels, update_rule

Part = TypeVar("Part")
_STATE_FOLDER = "deepspeed"
_VALUES_KEY = "values"
_COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
_SHARD = re.compile(r"zero_pp_rank_(\d+)_mp_rank_\d+_optim_states\.pt$")
_WEIGHTS_ONLY, _NOT_WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
_FORBIDDEN_NAME = re.compile(r"(?:GLOBAL|function|class) ([\w.]+)")
_PEER_LOST = re.compile(r"by peer|pair closure|broken pipe|peer .*(closed|failed)", re.IGNORECASE)


def world_size() -> int:
    """Return the number of processes of this run; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_size() -> int:
    """Return the number of processes of this run on this node, as torchrun or DeepSpeed's launcher says."""
    size = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE")
    return int(size) if size else world_size()


def choose_device(name: str) -> torch.device:
    """Return the device of this process; ConfigError if `cuda` is absent, or this rank has no GPU of its own."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigError("device: 'cuda' was requested, but torch sees no CUDA device; use 'cpu' or 'auto'")
    if name == "cpu" or not available:
        os.environ["DS_ACCELERATOR"] = "cpu"
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0"))
    if index >= torch.cuda.device_count():
        raise ConfigError(f"process {index} has no GPU: this machine has {torch.cuda.device_count()}; lower --num_gpus")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def start_processes(device: torch.device) -> None:
    """Join the launcher's process group, or form one of this process alone."""
    backend = "gloo" if device.type == "cpu" else "nccl"
    if "RANK" not in os.environ:
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    if os.environ["WORLD_SIZE"] == "1" and not torch.distributed.is_initialized():
        # A process alone meets nobody: it listens at any free port, so that runs side by side never want the same one.
        torch.distributed.init_process_group(backend, init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # DeepSpeed calls collectives by names that newer torch deprecates; a user can do nothing about it.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    if device.type == "cpu":
        # Otherwise DeepSpeed compiles a shared-memory kernel at the first start, and needs a compiler for it.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=backend, verbose=False)


@contextlib.contextmanager
def peers() -> Iterator[None]:
    """Raise PeerError where a collective fails because another process ended; that one has reported the reason."""
    try:
        yield
    except RuntimeError as error:
        if not _PEER_LOST.search(str(error)):
            raise
        raise PeerError("another process of this run ended; see its message") from error


@contextlib.contextmanager
def _without_code() -> Iterator[None]:
    """Let `torch.load` open tensors and settings alone in the block, whatever its caller asks for."""
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    # A state of DeepSpeed is a pickle, which DeepSpeed opens as one that may run code. torch's variable overrules that.
    before = {name: os.environ.pop(name, None) for name in (_WEIGHTS_ONLY, _NOT_WEIGHTS_ONLY)}
    os.environ[_WEIGHTS_ONLY] = "1"
    try:
        # What the ZeRO stages keep beside tensors: plain records, none of which does anything when it is made.
        with torch.serialization.safe_globals([LossScaler, ZeroStageEnum, fragment_address]):
            yield
    finally:
        del os.environ[_WEIGHTS_ONLY]
        os.environ |= {name: setting for name, setting in before.items() if setting is not None}


def on_first(make: Callable[[], Part]) -> Part:
    """Return the first process's result on every process; PeerError if that one ended, after reporting the reason."""
    box: list[Any] = [None, False]
    try:
        if torch.distributed.get_rank() == 0:
            box = [make(), True]
    finally:  # the other processes wait for this, even after an error
        with peers():
            torch.distributed.broadcast_object_list(box, src=0)
    if not box[1]:
        raise PeerError("the first process of this run ended; see its message")
    part: Part = box[0]
    return part


class Engine:
    """A model under DeepSpeed, in the vocabulary of the training loop."""

    def __init__(
        self,
        model: P2LModel,
        deepspeed_config: dict[str, Any],
        device: torch.device,
        make_scheduler: Callable[[torch.optim.Optimizer], Any] | None,
        groups: Sequence[dict[str, Any]] | None = None,
    ) -> None:
        """Initialise DeepSpeed; ConfigError if it rejects its configuration, or lacks a compiler that it needs.

        `make_scheduler` is None if the configuration holds a scheduler block, `groups` as in `parameter_groups`.
        """
        prepare_kernels(deepspeed_config)
        self.update_rule = update_rule(deepspeed_config)
        self.device = device
        self._settings, self._make_scheduler = deepspeed_config, make_scheduler
        self._start(model, groups)
        self.rank = torch.distributed.get_rank()
        self.world_size = torch.distributed.get_world_size()

    def _start(self, model: P2LModel, groups: Sequence[dict[str, Any]] | None) -> None:
        import deepspeed

        model = model.to(self.device)
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # some stages print their memory use
                self._engine, self._optimizer, _, self._scheduler = deepspeed.initialize(
                    model=model,
                    model_parameters=_trainable(model) if groups is None else list(groups),
                    config=copy.deepcopy(self._settings),  # DeepSpeed may write into it, and `rebuild` needs it again
                    lr_scheduler=self._make_scheduler,
                    dist_init_required=False,
                )
        except Exception as error:  # DeepSpeed raises whatever its parts raise
            raise ConfigError(f"DeepSpeed does not start with these settings: {one_line(error)}") from error

    @property
    def model(self) -> P2LModel:
        """The wrapped model; under ZeRO 3 its weights are partitioned over the ranks."""
        model: P2LModel = self._engine.module
        return model

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    @property
    def zero_stage(self) -> int:
        """The ZeRO stage: 0 partitions nothing over the ranks, 1 optimizer state, 2 also gradients, 3 also weights."""
        return int(self._engine.zero_optimization_stage())

    @property
    def precision(self) -> str:
        """The precision of the weights in a forward pass: `float32` or `bfloat16`."""
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return float(self._optimizer.param_groups[0]["lr"])

    def forward(self, batch: Batch) -> P2LOutput:
        """Return the coefficients of a batch, on this rank."""
        output: P2LOutput = self._engine(to_device(batch, self.device))
        return output

    def predict(self, batch: Batch) -> P2LOutput:
        """Run `forward` without gradients, in evaluation mode."""
        self._engine.eval()
        with torch.no_grad():
            output = self.forward(batch)
        self._engine.train()
        return output

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of this rank's part of the step's loss; `last` marks the step's last micro-batch."""
        # DeepSpeed averages gradients over ranks and counts micro-steps itself; the trainer needs the sum over a step's
        # votes, with as many micro-steps as the step takes. So the boundary is set and the loss scaled by hand.
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss * self.world_size, scale_wrt_gas=False)

    def step(self) -> float:
        """Clip, update the weights, advance the schedule; return the gradient norm before clipping."""
        # Without ZeRO DeepSpeed does not report the norm.
        norm: float | None = None
        if self.zero_stage == 0:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            norm = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients])))
        self._engine.step()
        norm = self._engine.get_global_grad_norm() if norm is None else norm
        return math.nan if norm is None else float(norm)

    def skip_step(self) -> None:
        """Advance the schedule alone, for a step in which no vote counts (every rank must decide the same)."""
        # The optimizer is not called: with a zero gradient Adam would still move the weights by its momentum.
        with warnings.catch_warnings():
            # torch's schedulers warn if the first step of a run is skipped.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step", category=UserWarning)
            self._scheduler.step()

    def even_out(self, parts: Sequence[Part], filler: Callable[[], Part]) -> list[Part]:
        """Append fillers to `parts` up to the longest rank's number, because ZeRO runs the ranks in lockstep."""
        if self.world_size == 1:
            return list(parts)
        most = torch.tensor(len(parts), device=self.device)
        torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
        return [*parts, *(filler() for _ in range(int(most) - len(parts)))]

    def sum_over_ranks(self, *values: float) -> list[float]:
        """Sum each value over all ranks."""
        totals = torch.tensor(values, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(totals)
        return [float(total) for total in totals]

    def gather(self, value: object) -> list[Any] | None:
        """Return the value of every rank, on rank 0; None elsewhere."""
        gathered: list[Any] | None = [None] * self.world_size if self.is_main else None
        torch.distributed.gather_object(value, gathered, dst=0)
        return gathered

    def broadcast(self, value: object) -> Any:
        """Return rank 0's value on every rank."""
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

    def barrier(self) -> None:
        """Wait for all ranks."""
        torch.distributed.barrier()

    def state_dict(self) -> dict[str, Tensor]:
        """Return all weights on the CPU of rank 0 (every rank must call this; the others get an empty dictionary)."""
        if self.zero_stage < 3:
            # Under ZeRO parameters are views into one flat buffer; a file needs a copy of each.
            state = self.model.state_dict() if self.is_main else {}
            return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}
        import deepspeed

        gathered: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter]):
                if self.is_main:
                    gathered[name] = parameter.detach().cpu().clone()
        if self.is_main:
            names = self.model.state_dict().keys()  # without the buffers that are not persistent
            gathered |= {name: buffer.detach().cpu() for name, buffer in self.model.named_buffers() if name in names}
        return gathered

    def save(self, folder: Path) -> None:
        """Write optimizer, schedule and partitioned weights below `folder` (every rank must call this)."""
        self._engine.save_checkpoint(str(folder), tag=_STATE_FOLDER, save_latest=False, exclude_frozen_parameters=False)

    def load(self, folder: Path) -> None:
        """Load what `save` wrote, running no code in it; CheckpointError unless it is the whole state of this run."""
        shards = [file.name for file in (folder / _STATE_FOLDER).glob("*.pt")]
        if not shards:
            raise CheckpointError(
                f"{folder}: its training state, the folder {_STATE_FOLDER}, is missing; copy it again"
            )
        ranks = {int(match[1]) for name in shards if (match := _SHARD.search(name))}
        missing = sorted(set(range(self.world_size)) - ranks) if self.zero_stage else []
        if missing:
            raise CheckpointError(
                f"{folder / _STATE_FOLDER}: the part of process {missing[0]} is missing "
                f"({len(missing)} of {self.world_size} are); output_dir must be a folder that all nodes "
                "share: copy the other nodes' parts into it"
            )
        try:
            with peers(), _without_code():
                path, _ = self._engine.load_checkpoint(str(folder), tag=_STATE_FOLDER)
        except P2LError:
            raise
        except UnpicklingError as error:
            raise _refused(folder / _STATE_FOLDER, error) from error
        except Exception as error:  # DeepSpeed passes on the exceptions of all its components
            raise CheckpointError(
                f"{folder}: damaged or cut short, training cannot resume: {one_line(error).split('. ')[0]}; "
                "copy it again, or name an earlier checkpoint"
            ) from error
        if path is None:
            raise CheckpointError(f"{folder}: holds no training state; resume from a folder 'checkpoint-N'")

    def values(self, name: str) -> Tensor:
        """Return a float32 copy of the weights called `name` (every rank must call this)."""
        return _read_full(self.model.get_parameter(name), self._optimizer)

    def edit(self, name: str, change: Callable[[Tensor], None]) -> None:
        """Let `change` set values in the float32 copy of the weights called `name` (every rank must call this)."""
        values = self.values(name)
        change(values)
        _write_full(self.model.get_parameter(name), self._optimizer, values)

    def save_whole(self, folder: Path) -> None:
        """Write trainable parameters and optimizer state, unpartitioned, below `folder` (every rank must call this)."""
        from safetensors.torch import save_file

        keys = _state_keys(self._optimizer)
        for number, parameter in enumerate(_trainable(self.model)):
            parts = {_VALUES_KEY: _read_full(parameter, self._optimizer)}
            parts |= {key: _read_full(parameter, self._optimizer, key) for key in keys}
            if self.is_main:
                save_file({key: part.cpu() for key, part in parts.items()}, folder / f"{number}.safetensors")
        self.barrier()

    def rebuild(self, model: P2LModel, groups: Sequence[dict[str, Any]] | None, folder: Path, blank: Batch) -> None:
        """Continue with another model of the same parameters, some of which have more rows.

        The state that `save_whole` wrote below `folder` is loaded; `blank` is any batch; every rank must call this.
        """
        from safetensors.torch import load_file

        old, scalars = self._engine, _read_scalars(self._optimizer)
        counters = {name: getattr(old, name) for name in _COUNTERS}
        rates = self._scheduler.state_dict()
        had_stepped = bool(_state_keys(self._optimizer))
        old.destroy()
        del old, self._engine, self._optimizer, self._scheduler
        gc.collect()  # before the new buffers are there: both engines may not fit into memory
        self._start(model, groups)
        if had_stepped:
            # A step without gradient, in which the optimizer creates its state; the weights are overwritten next.
            output = self.forward(blank)
            outputs = [part for part in (output.coefs, output.eta, output.gamma, output.shift) if part is not None]
            zero = torch.zeros((), device=self.device)
            self.backward(sum((values.sum() * 0.0 for values in outputs), zero), last=True)
            self._engine.step()
        keys = _state_keys(self._optimizer)
        for number, parameter in enumerate(_trainable(self.model)):
            parts = load_file(folder / f"{number}.safetensors", device=str(self.device))
            for key in (None, *keys):
                values = _read_full(parameter, self._optimizer, key)
                if key is not None:
                    values.zero_()
                rows = parts[key or _VALUES_KEY]  # further rows stay as the model has them, with a state of zero
                values[: len(rows)] = rows
                _write_full(parameter, self._optimizer, values, key)
        _write_scalars(self._optimizer, scalars)
        self._scheduler.load_state_dict(rates)
        for name, value in counters.items():
            setattr(self._engine, name, value)


def _refused(folder: Path, error: UnpicklingError) -> CheckpointError:
    """Return the error that names the first file which is no state, and the name in it that could run code."""
    for file in sorted(folder.glob("*.pt")):
        try:
            with _without_code():
                torch.load(file, map_location="cpu", weights_only=True)
        except UnpicklingError as of_file:
            folder, error = file, of_file
            break
        except Exception:  # damaged otherwise: what DeepSpeed met is another file
            continue
    name = _FORBIDDEN_NAME.search(str(error).split("WeightsUnpickler error")[-1])
    reason = f"it names {name[1]}, which could run code" if name else "it is damaged, or could run code"
    return CheckpointError(
        f"{folder}: is not a training state: {reason}; nothing of it was run: resume from a checkpoint of your own"
    )


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


# Whole parameters and their optimizer state, however ZeRO has partitioned them: under ZeRO each rank holds a part of
# them in flat buffers; here they are read and written one parameter at a time. Every rank must make the same calls.

_OptimizerScalars = dict[str, Any]


def _inner_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """Return the optimizer that holds the state, below DeepSpeed's own."""
    inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
    return inner


def _state_keys(optimizer: Any) -> list[str]:
    """Return the keys of the optimizer's per-weight state, after linking it; empty before the first step."""
    # DeepSpeed (0.19) links each parameter of ZeRO 1 and 2 to its state after the first step of the first group, when
    # other groups have no state yet; and loading a checkpoint may replace all of it.
    link = getattr(optimizer, "_lazy_init_hp_params_optimizer_state", None)
    if link is not None and len(_inner_optimizer(optimizer).state):
        optimizer._hp_optimizer_states_linked = False
        link()
    for parameter, state in _inner_optimizer(optimizer).state.items():
        return [key for key, value in state.items() if torch.is_tensor(value) and value.shape == parameter.shape]
    return []


def _read_full(parameter: nn.Parameter, optimizer: Any, key: str | None = None) -> Tensor:
    """Return the float32 values of a parameter, or of its optimizer state `key`."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    if hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping"):  # partitioned by ZeRO 3, or by 1 and 2
        values = safe_get_full_fp32_param(parameter) if key is None else safe_get_full_optimizer_state(parameter, key)
    else:
        values = parameter.detach() if key is None else _inner_optimizer(optimizer).state[parameter][key]
    shape = getattr(parameter, "ds_shape", parameter.shape)  # under ZeRO 3 the parameter itself is empty
    full: Tensor = values.to(torch.float32).view(shape).clone()
    return full


def _write_full(parameter: nn.Parameter, optimizer: Any, value: Tensor, key: str | None = None) -> None:
    """Set the values of a parameter, in float32 and in the precision of the forward pass, or of its state `key`."""
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

    if hasattr(parameter, "ds_id"):  # ZeRO 3
        _write_part(parameter, value, key)
    elif not hasattr(parameter, "_hp_mapping"):
        target = parameter.data if key is None else _inner_optimizer(optimizer).state[parameter][key]
        target.copy_(value)
    elif key is not None:
        safe_set_full_optimizer_state(parameter, value, key)
    else:
        # ZeRO 1 and 2: every rank has all forward weights, which DeepSpeed would update only after the next step.
        safe_set_full_fp32_param(parameter, value)
        parameter.data.copy_(value)


def _write_part(parameter: nn.Parameter, value: Tensor, key: str | None) -> None:
    """Write under ZeRO 3, where every rank has an equal part of everything; the last parts are padded."""
    import deepspeed
    from deepspeed.utils import safe_set_local_fp32_param, safe_set_local_optimizer_state

    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    size = parameter.ds_tensor.numel()  # type: ignore[attr-defined]
    padded = value.new_zeros(size * world_size)
    padded[: value.numel()] = value.flatten()
    part = padded[rank * size : (rank + 1) * size]
    if key is not None:
        safe_set_local_optimizer_state(parameter, part, key)
        return
    safe_set_local_fp32_param(parameter, part)
    with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
        if rank == 0:
            parameter.data.copy_(value)


def _read_scalars(optimizer: Any) -> _OptimizerScalars:
    """Return the optimizer's remaining state: settings of its groups, and counters that all weights share."""
    inner = _inner_optimizer(optimizer)
    groups = [{key: value for key, value in group.items() if key != "params"} for group in inner.param_groups]
    shared: dict[str, float] = {}
    for parameter, state in inner.state.items():
        for key, value in state.items():
            if torch.is_tensor(value):
                is_scalar = value.numel() == 1 and value.shape != parameter.shape
            else:
                is_scalar = isinstance(value, (int, float))
            if is_scalar:
                shared[key] = float(value)
        break  # those of the first weights are those of all
    return {"groups": groups, "shared": shared}


def _write_scalars(optimizer: Any, scalars: _OptimizerScalars) -> None:
    """Restore what `_read_scalars` returned, on an optimizer of the same groups that has made a step."""
    inner = _inner_optimizer(optimizer)
    for group, settings in zip(inner.param_groups, scalars["groups"], strict=True):
        group.update(settings)
    for state in inner.state.values():
        for key, value in scalars["shared"].items():
            state[key] = torch.full_like(state[key], value) if torch.is_tensor(state[key]) else type(state[key])(value)
