"""Read and write whole parameters and their optimizer state, however ZeRO has partitioned them.

Under ZeRO each rank holds a part of the float32 weights and of the optimizer's state, in flat buffers; here they are
read and written one parameter at a time. Every rank must make the same calls.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

OptimizerScalars = dict[str, Any]


def inner_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """Return the optimizer that holds the state, below DeepSpeed's own."""
    inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
    return inner


def state_keys(optimizer: Any) -> list[str]:
    """Return the keys of the optimizer's per-weight state, after linking it; empty before the first step."""
    _link_states(optimizer)
    for parameter, state in inner_optimizer(optimizer).state.items():
        return [key for key, value in state.items() if torch.is_tensor(value) and value.shape == parameter.shape]
    return []


def _link_states(optimizer: Any) -> None:
    """Make ZeRO 1 and 2 link each parameter to its optimizer state again.

    DeepSpeed (0.19) links after the first step of the first group, when other groups have no state yet; and loading a
    checkpoint may replace all of it.
    """
    link = getattr(optimizer, "_lazy_init_hp_params_optimizer_state", None)
    if link is not None and len(inner_optimizer(optimizer).state):
        optimizer._hp_optimizer_states_linked = False
        link()


def read_full(parameter: nn.Parameter, optimizer: Any, key: str | None = None) -> Tensor:
    """Return the float32 values of a parameter, or of its optimizer state `key`."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    if _is_cut(parameter):
        values = safe_get_full_fp32_param(parameter) if key is None else safe_get_full_optimizer_state(parameter, key)
    else:
        values = parameter.detach() if key is None else inner_optimizer(optimizer).state[parameter][key]
    shape = getattr(parameter, "ds_shape", parameter.shape)  # under ZeRO 3 the parameter itself is empty
    full: Tensor = values.to(torch.float32).view(shape).clone()
    return full


def write_full(parameter: nn.Parameter, optimizer: Any, value: Tensor, key: str | None = None) -> None:
    """Set the values of a parameter, in float32 and in the precision of the forward pass, or of its state `key`."""
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

    if not _is_cut(parameter):
        target = parameter.data if key is None else inner_optimizer(optimizer).state[parameter][key]
        target.copy_(value)
    elif hasattr(parameter, "ds_id"):
        _write_part(parameter, value, key)
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


def read_scalars(optimizer: Any) -> OptimizerScalars:
    """Return the optimizer's remaining state: settings of its groups, and counters that all weights share."""
    inner = inner_optimizer(optimizer)
    groups = [{key: value for key, value in group.items() if key != "params"} for group in inner.param_groups]
    shared: dict[str, float] = {}
    for parameter, state in inner.state.items():
        shared = {key: float(value) for key, value in state.items() if _is_scalar(value, parameter)}
        break
    return {"groups": groups, "shared": shared}


def write_scalars(optimizer: Any, scalars: OptimizerScalars) -> None:
    """Restore what `read_scalars` returned, on an optimizer of the same groups that has made a step."""
    inner = inner_optimizer(optimizer)
    for group, settings in zip(inner.param_groups, scalars["groups"], strict=True):
        group.update(settings)
    for state in inner.state.values():
        for key, value in scalars["shared"].items():
            state[key] = torch.full_like(state[key], value) if torch.is_tensor(state[key]) else type(state[key])(value)


def _is_scalar(value: object, parameter: Tensor) -> bool:
    if torch.is_tensor(value):
        return value.numel() == 1 and value.shape != parameter.shape
    return isinstance(value, (int, float))


def _is_cut(parameter: nn.Parameter) -> bool:
    return hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping")
