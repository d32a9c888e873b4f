"""Sizes of the random models that benchmarks time."""

from __future__ import annotations

from typing import Any

__all__ = ["SHAPES"]

# Those of SmolLM2-135M, Qwen2.5-0.5B and -1.5B, and one that takes seconds.
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 192},
    "135m": {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "intermediate_size": 1536}
    | {"num_key_value_heads": 3, "vocab_size": 49_152},
    "0.5b": {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "intermediate_size": 4864}
    | {"num_key_value_heads": 2, "vocab_size": 151_936},
    "1.5b": {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "intermediate_size": 8960}
    | {"num_key_value_heads": 2, "vocab_size": 151_936},
}
