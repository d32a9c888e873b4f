"""From a prompt to coefficients: tokenizer, batches, backbone, head and the model folder.

Importing this package does not import torch; the names below import it at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2l.model.checkpoint import P2LRecord
    from p2l.model.model import P2LModel, P2LOutput, to_dtype

__all__ = ["P2LModel", "P2LOutput", "P2LRecord", "to_dtype"]


def __getattr__(name: str) -> Any:
    """Import the model, and with it torch, at its first use."""
    if name in __all__:
        from p2l.model import model

        return getattr(model, name)
    raise AttributeError(f"module 'p2l.model' has no attribute {name!r}")
