"""BERT as an encoder of sentences in OpenVINO, made of its weights alone: neither torch nor transformers is imported.

    encoder = Bert(weights, config, pooling="mean", normalise=False)
    encoder.states(tokens)                                                # (N, D)

The embeddings of a pass's tokens are looked up here, so that of the table only rows that are read take memory. Prompts
of similar length share a pass, the shorter ones filled up; a mask keeps what was filled in out of the sums.

Shapes: N prompts, B prompts of a pass, T tokens of the longest, D hidden, H heads.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]
Floats = npt.NDArray[np.float32]
Precision = Literal["float32", "int8"]
_TOKENS_PER_PASS = 1024  # beyond it a pass needs more memory without being faster
STATES_PER_SCALE = 64
"""States of a token that share a scale in int8."""
_INT8_FLAGS = {"avx512_vnni", "avx_vnni", "amx_int8"}
"""Of processors that multiply numbers of 8 bits several times as fast as those of 32."""
_LENGTH_STEP = 8  # tokens: OpenVINO prepares itself for each length that it has not seen
_HIDDEN_COST = 1e30
"""Taken from the scores of tokens that were filled in."""


@functools.cache
def core() -> Any:
    """Return OpenVINO's entry point, one for the process: loading its plugin takes time."""
    from openvino import Core

    return Core()


def has_bfloat16() -> bool:
    """Return whether OpenVINO computes in bfloat16 on this processor."""
    return "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@functools.cache
def has_int8_products() -> bool:
    """Return whether this processor is faster in int8; False where nothing tells (beside Linux)."""
    try:
        words = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
    return not _INT8_FLAGS.isdisjoint(words)


_DEFAULTS: Mapping[str, Any] = {
    "hidden_act": "gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
"""Of the architecture: configurations may leave out what they have in common with it."""


def is_readable(config: Mapping[str, Any]) -> bool:
    """Return whether the config.json of an encoder describes a network that is built here, and OpenVINO is there."""
    whole = {**_DEFAULTS, **config}
    usual = all(whole[name] == _DEFAULTS[name] for name in ("hidden_act", "position_embedding_type"))
    return config.get("model_type") == "bert" and usual and importlib.util.find_spec("openvino") is not None


def weight_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights that are read, by their names in a folder of Hugging Face."""
    config = {**_DEFAULTS, **config}
    width, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (int(config["vocab_size"]), width),
        "embeddings.position_embeddings.weight": (int(config["max_position_embeddings"]), width),
        "embeddings.token_type_embeddings.weight": (int(config["type_vocab_size"]), width),
    }
    norms, linears = ["embeddings.LayerNorm"], dict[str, tuple[int, int]]()
    for layer in range(int(config["num_hidden_layers"])):
        prefix = f"encoder.layer.{layer}."
        linears |= {f"{prefix}attention.self.{name}": (width, width) for name in ("query", "key", "value")}
        linears[f"{prefix}attention.output.dense"] = (width, width)
        linears[f"{prefix}intermediate.dense"] = (inner, width)
        linears[f"{prefix}output.dense"] = (width, inner)
        norms += [f"{prefix}attention.output.LayerNorm", f"{prefix}output.LayerNorm"]
    for name in norms:
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    for name, shape in linears.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


class Bert:
    """The encoder; threads may share it."""

    def __init__(
        self,
        weights: Mapping[str, Array],
        config: Mapping[str, Any],
        *,
        pooling: str,
        normalise: bool,
        precision: Precision = "float32",
        threads: int = 0,
    ) -> None:
        """Build the layers from `weights` as `weight_shapes` names them and compile them; 0 threads: all cores.

        `pooling` is "mean" or "cls"; with `normalise` states have length one. In int8 the layers' products are of
        rounded weights and states, everything else stays in float32.
        """
        self._words = weights["embeddings.word_embeddings.weight"]
        places = weights["embeddings.position_embeddings.weight"].astype(np.float32)
        self._places: Floats = places + weights["embeddings.token_type_embeddings.weight"][0].astype(np.float32)
        self._normalise = normalise
        self._request = _compiled(
            _graph(weights, config, pooling, precision), precision, threads
        ).create_infer_request()
        self._lock = threading.Lock()

    def states(self, tokens: Sequence[npt.NDArray[np.int64]]) -> Floats:
        """Return the states (N, D) of prompts by their tokens, each with at least one."""
        states = np.zeros((len(tokens), self._places.shape[1]), dtype=np.float32)
        lengths = np.array([len(ids) for ids in tokens])
        order = np.argsort(-lengths, kind="stable")
        start = 0
        while start < len(order):
            longest = max(1, int(lengths[order[start]]))
            longest = min(longest + -longest % _LENGTH_STEP, len(self._places))
            rows = order[start : start + max(1, _TOKENS_PER_PASS // longest)]
            states[rows] = self._pass([tokens[row] for row in rows], longest)
            start += len(rows)
        if self._normalise:
            states /= np.maximum(np.linalg.norm(states, axis=1, keepdims=True), 1e-12)
        return states

    def _pass(self, tokens: Sequence[npt.NDArray[np.int64]], longest: int) -> Floats:
        """Return the pooled states (B, D) of prompts that are filled up to `longest` tokens."""
        ids = np.zeros((len(tokens), longest), dtype=np.int64)
        mask = np.zeros((len(tokens), longest), dtype=np.float32)
        for row, prompt in enumerate(tokens):
            ids[row, : len(prompt)] = prompt
            mask[row, : len(prompt)] = 1.0
        embedded = self._words[ids].astype(np.float32) + self._places[:longest]
        with self._lock:  # the output's buffer belongs to the request
            return np.array(self._request.infer([embedded, mask], share_inputs=True, share_outputs=True)[0])


def _compiled(graph: Any, precision: Precision, threads: int) -> Any:
    options = {
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": STATES_PER_SCALE if precision == "int8" else 0,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # services and workers on one machine would all take the first cores
    }
    return core().compile_model(graph, "CPU", options)


def _graph(weights: Mapping[str, Array], config: Mapping[str, Any], pooling: str, precision: Precision) -> Any:
    """Return the graph of embedded tokens (B, T, D) and their mask (B, T), 1 or 0, to pooled states (B, D)."""
    from openvino import Model, PartialShape
    from openvino import opset13 as ops

    config = {**_DEFAULTS, **config}
    width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    layers = _Layers(weights, float(config["layer_norm_eps"]), _rounded if precision == "int8" else _matrix)
    embedded = ops.parameter(PartialShape([-1, -1, width]), np.float32)
    mask = ops.parameter(PartialShape([-1, -1]), np.float32)
    cost = ops.multiply(ops.subtract(mask, _numbers(1.0)), _numbers(_HIDDEN_COST))
    cost = ops.unsqueeze(cost, _places(1, 2))
    states = layers.norm("embeddings.LayerNorm", embedded)
    for layer in range(int(config["num_hidden_layers"])):
        prefix = f"encoder.layer.{layer}."
        # One product of queries, keys and values: several cores share one large product better.
        names = [f"{prefix}attention.self.{name}" for name in ("query", "key", "value")]
        split_heads = ops.reshape(layers.linear(names, states), _places(0, 0, 3 * heads, width // heads), True)
        parts = ops.split(ops.transpose(split_heads, _places(0, 2, 1, 3)), ops.constant(1), 3)
        mixed = ops.scaled_dot_product_attention(*(parts.output(number) for number in range(3)), cost)
        joined = ops.reshape(ops.transpose(mixed, _places(0, 2, 1, 3)), _places(0, 0, width), True)
        attended = layers.linear([f"{prefix}attention.output.dense"], joined)
        states = layers.norm(f"{prefix}attention.output.LayerNorm", ops.add(states, attended))
        inner = ops.gelu(layers.linear([f"{prefix}intermediate.dense"], states), "erf")
        outer = layers.linear([f"{prefix}output.dense"], inner)
        states = layers.norm(f"{prefix}output.LayerNorm", ops.add(states, outer))
    if pooling == "cls":
        pooled = ops.gather(states, ops.constant(0), ops.constant(1))
    else:
        counted = ops.unsqueeze(mask, ops.constant(2))
        sums = ops.reduce_sum(ops.multiply(states, counted), ops.constant(1), False)
        pooled = ops.divide(sums, ops.reduce_sum(counted, ops.constant(1), False))
    return Model([ops.result(pooled)], [embedded, mask], "bert")


class _Layers:
    """The layers with weights."""

    def __init__(self, weights: Mapping[str, Array], epsilon: float, constant: Callable[[Array], Any]) -> None:
        self._weights, self._epsilon, self._constant = weights, epsilon, constant

    def linear(self, names: Sequence[str], states: Any) -> Any:
        """Return the outputs of linear layers, side by side."""
        from openvino import opset13 as ops

        weights = [self._weights[f"{name}.weight"] for name in names]
        biases = [self._weights[f"{name}.bias"] for name in names]
        matrix = weights[0] if len(weights) == 1 else np.concatenate(weights)
        product = ops.matmul(states, self._constant(matrix), False, True)
        return ops.add(product, _numbers(np.concatenate(biases)))

    def norm(self, name: str, states: Any) -> Any:
        """Return the states with mean 0 and variance 1 over D, times the layer's weight, plus its bias."""
        from openvino import opset13 as ops

        scaled = ops.mvn(states, _places(-1), True, self._epsilon, "inside_sqrt")
        weight, bias = (_numbers(self._weights[f"{name}.{part}"]) for part in ("weight", "bias"))
        return ops.add(ops.multiply(scaled, weight), bias)


def _matrix(weights: Array) -> Any:
    """Return weights as a constant that shares their memory; those in float16 stay so until they are multiplied."""
    from openvino import opset13 as ops

    constant = ops.constant(np.ascontiguousarray(weights), shared_memory=True)
    if weights.dtype == np.float32:
        return constant
    converted = ops.convert(constant, np.float32)
    # OpenVINO's own mark: without it all weights would be written out in float32 while the graph is compiled.
    converted.get_rt_info()["decompression_0"] = ""
    return converted


def _rounded(weights: Array) -> Any:
    return rounded(weights.astype(np.float32), 1)


def rounded(weights: Floats, axis: int) -> Any:
    """Return a layer's weights rounded to 8 bits, with a scale for each output, over the `axis` of its inputs."""
    from openvino import opset13 as ops

    scales = np.maximum(np.abs(weights).max(axis, keepdims=True) / np.float32(127), np.float32(1e-30))
    codes = np.round(weights / scales).astype(np.int8)
    return ops.multiply(ops.convert(ops.constant(codes), np.float32), ops.constant(scales))


def _numbers(values: Any) -> Any:
    from openvino import opset13 as ops

    return ops.constant(np.asarray(values, dtype=np.float32))


def _places(*values: int) -> Any:
    from openvino import opset13 as ops

    return ops.constant(np.array(values, dtype=np.int64))
