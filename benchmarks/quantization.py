"""How long does a prompt take in each library and precision on this CPU, and what does that do to its coefficients?

    python -m benchmarks.quantization [--shape 135m] [--threads 2] [--rounds 15] [--others]

A random Llama model answers prompts of several lengths, one at a time, and a batch of eight prompts of mixed lengths
(log-normal, median 60 tokens, sigma 0.8), for which the time of one prompt is given. The ways take turns in one
process; medians, and in brackets how many times as fast as the first way, which is what a text-classification pipeline
of transformers computes: the same backbone with a linear head in bfloat16, prompts one by one.

`--others` times ONNX Runtime and int8 whose scales were calibrated beside what this project takes; they need
`pip install onnxruntime onnx nncf`.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from transformers.modeling_outputs import BaseModelOutput

from benchmarks.shapes import SHAPES
from benchmarks.tables import table
from p2l.common.cli import parser, positive, run
from p2l.model.backbones import P2L_ATTENTION, Packed, register_attention
from p2l.model.batching import collate
from p2l.model.checkpoint import P2LRecord
from p2l.model.encoding import Encoding
from p2l.model.heads import build
from p2l.model.model import P2LModel
from p2l.model.openvino import CompiledBackbone, Graph, Traced
from p2l.model.precision import Agreement, agreement, coefficients

LENGTHS = (16, 60, 128, 250)
NUM_MODELS = 100
BATCH = 8
LONGEST = 2048
ONNX_NAMES = ["states", "position_ids", "owners"]

Way = Callable[[list[Encoding]], object]


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.quantization", "Time float32, bfloat16 and int8 on this CPU.")
    flags.add_argument("--shape", choices=SHAPES, default="135m", help="size of the random Llama model")
    flags.add_argument("--threads", type=positive, help="threads of a pass; by default one a core")
    flags.add_argument("--rounds", type=positive, default=15, help="passes of each way and length")
    flags.add_argument("--others", action="store_true", help="time other libraries too")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    flags = build_parser().parse_args(argv)
    torch.set_num_threads(flags.threads or torch.get_num_threads())
    models = make_models(flags.shape, others=flags.others)
    ways: dict[str, Way] = {"transformers, bfloat16": one_by_one(_Classifier(flags.shape))}
    ways |= {name: packed(model) for name, model in models.items()}
    sets = {f"{tokens} tokens": [_prompt(tokens)] for tokens in LENGTHS}
    sets[f"{BATCH} at once"] = mixed_prompts()
    times = {name: _times(ways, prompts, flags.rounds) for name, prompts in sets.items()}
    errors = errors_of(models)
    first = next(iter(ways))
    rows = []
    for way in ways:
        cells = [f"{ms[way]:.1f} ({ms[first] / ms[way]:.2f})" for ms in times.values()]
        error = errors.get(way)
        rows.append([way, *cells, *((f"{error.error:.2%}", f"{error.spearman:.4f}") if error else ("", ""))])
    print(f"{flags.shape} shape, {torch.get_num_threads()} threads; ms a prompt, median of {flags.rounds}\n")
    print(table(["ms a prompt (times the first)", *times, "error", "rank correlation"], rows))


def make_models(shape: str, *, others: bool = False) -> dict[str, P2LModel]:
    """The same random model in every form that answers packed prompts."""
    plain = _model(shape, torch.float32)
    graph = Graph(plain, LONGEST)
    threads = torch.get_num_threads()
    forms: dict[str, torch.nn.Module] = {
        "OpenVINO, float32": graph.compiled("float32", threads=threads),
        "OpenVINO, bfloat16": graph.compiled("bfloat16", threads=threads),
        "OpenVINO, int8": graph.compiled("bfloat16", threads=threads, first=0),
    }
    if others:
        forms |= {"OpenVINO, calibrated int8": _calibrated(plain, threads), **_onnx(plain, threads)}
    models = {"torch, float32": plain, "torch, bfloat16": _model(shape, torch.bfloat16)}
    return models | {name: P2LModel(form, plain.head, plain.model_list, plain.record) for name, form in forms.items()}


def _calibrated(model: P2LModel, threads: int) -> CompiledBackbone:
    """Scales of states that were found beforehand, with NNCF and its SmoothQuant."""
    import nncf

    nncf.set_log_level(logging.ERROR)
    rows = model.model.get_input_embeddings()  # type: ignore[operator]
    prompts = [_prompt(60 + number) for number in range(16)]
    inputs = [
        [rows(torch.from_numpy(ids)[None]).detach().numpy(), np.arange(len(ids))[None], np.zeros(len(ids), np.int64)]
        for ids in (prompt.ids for prompt in prompts)
    ]
    graph = Graph(model, LONGEST)
    graph._graph = nncf.quantize(
        graph._graph,
        nncf.Dataset(inputs),
        subset_size=len(inputs),
        model_type=nncf.ModelType.TRANSFORMER,
        ignored_scope=nncf.IgnoredScope(types=["ScaledDotProductAttention"]),
    )
    return graph.compiled("bfloat16", threads=threads)


class _Onnx(torch.nn.Module):
    """A backbone in ONNX Runtime."""

    def __init__(self, rows: torch.nn.Module, config: Any, file: Path, threads: int) -> None:
        super().__init__()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.rows, self.config = rows, config
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, packed: Packed) -> BaseModelOutput:
        owners = np.repeat(np.arange(len(packed.lengths)), packed.lengths)
        inputs = (self.rows(input_ids).numpy(), position_ids.numpy(), owners)
        (states,) = self._session.run(None, dict(zip(ONNX_NAMES, inputs, strict=True)))
        return BaseModelOutput(last_hidden_state=torch.from_numpy(states))


def _onnx(model: P2LModel, threads: int) -> dict[str, torch.nn.Module]:
    """ONNX Runtime in float32, and in int8 with a scale for each output and one for all states of a pass."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    backbone: Any = model.model
    axes = dict(zip(ONNX_NAMES, ({1: "tokens"}, {1: "tokens"}, {0: "tokens"}), strict=True))
    width = backbone.config.hidden_size
    example = (torch.zeros(1, 5, width), torch.tensor([[0, 1, 2, 0, 1]]), torch.tensor([0, 0, 0, 1, 1]))
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        whole, rounded = Path(name) / "whole.onnx", Path(name) / "rounded.onnx"
        torch.onnx.export(
            Traced(backbone), example, str(whole), input_names=ONNX_NAMES, dynamic_axes=axes, dynamo=False
        )
        quantize_dynamic(
            whole,
            rounded,
            weight_type=QuantType.QInt8,
            per_channel=True,
            op_types_to_quantize=["MatMul"],
            extra_options={"MatMulConstBOnly": True},
        )
        rows, config = backbone.get_input_embeddings(), backbone.config
        return {
            "ONNX Runtime, float32": _Onnx(rows, config, whole, threads),
            "ONNX Runtime, int8": _Onnx(rows, config, rounded, threads),
        }


def errors_of(models: dict[str, P2LModel]) -> dict[str, Agreement]:
    """Each model's coefficients beside those of plain float32."""
    prompts = [_prompt(tokens) for tokens in (8, 16, 32, 60, 128, 250)]
    exact = coefficients(models["torch, float32"], prompts)
    return {name: agreement(exact, coefficients(model, prompts)) for name, model in models.items()}


def mixed_prompts() -> list[Encoding]:
    """Prompts at even quantiles of the log-normal lengths."""
    quantiles = norm.ppf((np.arange(BATCH) + 0.5) / BATCH)
    return [_prompt(int(tokens)) for tokens in 60 * np.exp(0.8 * quantiles)]


def one_by_one(model: torch.nn.Module) -> Way:
    """Each prompt in a pass of its own, as a pipeline does it."""

    def ask(prompts: list[Encoding]) -> object:
        return [model(torch.from_numpy(prompt.ids)[None]) for prompt in prompts]

    return ask


def packed(model: P2LModel) -> Way:
    """All prompts in one pass, end to end."""

    def ask(prompts: list[Encoding]) -> object:
        return model(collate(prompts, 0, packed=True))

    return ask


class _Classifier(torch.nn.Module):
    """transformers' own classifier of the same shape."""

    def __init__(self, shape: str) -> None:
        super().__init__()
        from transformers import LlamaForSequenceClassification

        torch.manual_seed(0)
        self.inner = LlamaForSequenceClassification(_config(shape, num_labels=NUM_MODELS, pad_token_id=0))
        self.inner.to(torch.bfloat16).eval()  # type: ignore[no-untyped-call]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.inner(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        return logits


def _config(shape: str, **options: Any) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**{"vocab_size": 4096, **SHAPES[shape]}, max_position_embeddings=2048, **options)


def _model(shape: str, dtype: torch.dtype) -> P2LModel:
    from transformers import AutoModel

    register_attention()
    torch.manual_seed(0)
    config = _config(shape)
    config.use_cache = False
    backbone = AutoModel.from_config(config, attn_implementation=P2L_ATTENTION).to(dtype)  # type: ignore[no-untyped-call]
    head = build("bt", config.hidden_size, NUM_MODELS)
    names = [f"model-{number}" for number in range(NUM_MODELS)]
    return P2LModel(backbone, head, names, P2LRecord(model_type="llama", head_type="bt", loss_type="bt")).eval()


def _prompt(tokens: int) -> Encoding:
    return Encoding(np.random.default_rng(tokens).integers(3, 4000, tokens), None, False)


def _times(ways: dict[str, Way], prompts: list[Encoding], rounds: int) -> dict[str, float]:
    """Median milliseconds a prompt, the ways taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with torch.inference_mode():
        for number in range(rounds + 1):
            for name, ask in ways.items():
                started = time.perf_counter()
                ask(prompts)
                if number:
                    seconds[name].append(time.perf_counter() - started)
    return {name: float(np.median(taken)) * 1e3 / len(prompts) for name, taken in seconds.items()}


if __name__ == "__main__":
    run(main)
