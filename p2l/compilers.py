"""Which compilers this machine has. Nothing is compiled unless a setting asks for it; this says what it lacks."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from p2l.errors import ConfigError

__all__ = ["check_compiler", "compiles_optimizer", "has_cuda_compiler", "prepare_kernels"]

# DeepSpeed's own optimizers for parameters that are kept in the memory of the CPU.
_CPU_KERNELS = frozenset(["adam", "adamw", "adagrad", "lion"])


def check_compiler(wanted_by: str, instead: str) -> None:
    """Raise ConfigError, naming what `wanted_by` needs and what to do `instead`, when there is no C++ compiler."""
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        raise ConfigError(f"{wanted_by} needs a C++ compiler and there is none; install g++, or {instead}")


def has_cuda_compiler() -> bool:
    """Whether DeepSpeed can compile its optimizer for the GPU here."""
    from torch.utils.cpp_extension import CUDA_HOME

    return CUDA_HOME is not None and shutil.which("nvcc", path=str(Path(CUDA_HOME) / "bin")) is not None


def compiles_optimizer(resolved: Mapping[str, Any]) -> bool:
    """Whether DeepSpeed compiles an optimizer for offloaded parameters at the first start with these settings."""
    offload = resolved["zero_optimization"].get("offload_optimizer") or {}
    block = resolved["optimizer"]
    offloads = offload.get("device", "none") != "none" and resolved["zero_optimization"]["stage"] > 0
    return offloads and block["type"].lower() in _CPU_KERNELS and not block["params"].get("torch_adam", False)


def prepare_kernels(resolved: Mapping[str, Any]) -> None:
    """Make sure that what DeepSpeed compiles at its first start (a minute, then kept) can be compiled here.

    Raises:
        ConfigError: a compiler is needed and missing.
    """
    if not compiles_optimizer(resolved):
        return
    name = resolved["optimizer"]["type"]
    check_compiler(
        f"DeepSpeed's {name} for an offloaded optimizer", 'write "torch_adam": true into the optimizer\'s params'
    )
    if shutil.which("ninja") is None:
        # Installed beside this Python, which need not be on the path when it was started by its full name.
        os.environ["PATH"] += os.pathsep + str(Path(sys.executable).parent)
