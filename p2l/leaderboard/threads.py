"""One BLAS thread for small matrices.

Factorising a 130 x 130 matrix takes a third of a millisecond on one thread. Several threads gain nothing there, and on
a busy machine they wait for each other: a hundred milliseconds were measured.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

__all__ = ["one_blas_thread"]


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold NumPy's and SciPy's linear algebra to one thread; does nothing where threadpoolctl is not installed."""
    pools = _pools()
    with contextlib.nullcontext() if pools is None else pools.limit(limits=1, user_api="blas"):
        yield


@functools.cache
def _pools() -> Any:
    if importlib.util.find_spec("threadpoolctl") is None:
        return None
    # NumPy and SciPy bring a library each, and only what is loaded now can be held.
    for name in ("numpy.linalg", "scipy.linalg"):
        importlib.import_module(name)
    return importlib.import_module("threadpoolctl").ThreadpoolController()
