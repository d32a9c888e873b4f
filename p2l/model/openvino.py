"""A transformer's layers in OpenVINO, for answering on a CPU.

    graph = Graph(model, longest=2048)                       # the layers, traced once
    model.model = graph.compiled("bfloat16", threads=2)      # a backbone that answers packed prompts

The embedding stays in torch, and so does the head. Lengths are free; prompts lie end to end, and a mask keeps them
apart. Int8 rounds the weights of each output to 8 bits; OpenVINO rounds the states, each group of a token's by itself,
so that an answer does not depend on the prompts that share its pass.

The package is optional: without it torch computes.

Shapes: T tokens of all prompts together, D hidden, N outputs of a linear layer.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.metadata
import importlib.util
import re
import warnings
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from p2l.model.backbones import Joined, Packed, quiet
from p2l.model.bert import STATES_PER_SCALE, core, rounded
from p2l.model.bert import has_bfloat16 as has_bfloat16
from p2l.model.model import P2LModel
from p2l.model.reader import ReaderBackbone

_PASS_TOKENS_STEP = 16
"""Passes are padded to a multiple of this many tokens: OpenVINO compiles for each length that it has not seen."""

_MAX_WARM_TOKENS = 256
"""Tokens of the longest pass that is tried beforehand: most are shorter."""


_LIGHT_WEIGHTS = 5_000_000
"""Weights below which dividing a pass among threads takes longer than the pass."""


def is_installed() -> bool:
    """Return whether OpenVINO is installed."""
    return importlib.util.find_spec("openvino") is not None


def version() -> str:
    """Return the name of the library with its version."""
    return f"OpenVINO {importlib.metadata.version('openvino')}"


def text_model(model: P2LModel) -> nn.Module:
    """Return the module that reads tokens: the encoder of a reader, else the backbone itself."""
    inner = model.model.encoder if isinstance(model.model, ReaderBackbone) else None
    return model.model if inner is None else inner


def layers_of(model: P2LModel) -> nn.ModuleList:
    """Return the layers of a transformer in torch, first to last; none for a backbone without."""
    backbone = text_model(model)
    holder: Any = getattr(backbone, "encoder", backbone)
    layers = getattr(holder, "layers", None) or getattr(holder, "layer", None)
    return layers if isinstance(layers, nn.ModuleList) else nn.ModuleList()


def is_light(model: P2LModel) -> bool:
    """Return whether a pass is so short that the calling thread computes it fastest, on one core."""
    if isinstance(backbone := text_model(model), CompiledBackbone):
        return backbone.light
    matrices = (weight for layer in layers_of(model) for weight in layer.parameters() if weight.ndim == 2)
    return sum(matrix.numel() for matrix in matrices) < _LIGHT_WEIGHTS


class CompiledBackbone(nn.Module):
    """A backbone that answers packed prompts; it can be neither trained nor saved. Threads may share it."""

    def __init__(self, rows: nn.Embedding, config: Any, make: Callable[[int], Any], *, light: bool, cores: int) -> None:
        """Join the embedding with the layers that `make` compiles for a number of passes at a time."""
        super().__init__()
        self.config = config
        self.light = light
        self.embed_tokens = rows
        self._make: Callable[[int], Any] | None = make
        self._cores = cores
        self._alone = self._shared = _requests(make(1), 1)

    def forward(self, input_ids: Tensor, position_ids: Tensor, packed: Packed) -> BaseModelOutput:
        """Ids and places (1, T) -> states (1, T, D)."""
        tokens = input_ids.shape[1]
        more = -tokens % _PASS_TOKENS_STEP
        states = F.pad(self.embed_tokens(input_ids).float(), (0, 0, 0, more))
        owners = np.repeat(np.arange(len(packed.lengths) + 1), [*packed.lengths, more])
        inputs = [states.numpy(), F.pad(position_ids, (0, more)).numpy(), owners]
        # Fewer threads than cores: this thread computes beside others, each on its share. On two cores two passes side
        # by side take less time than both on all cores, one after the other.
        requests = self._shared if torch.get_num_threads() < self._cores else self._alone
        request = requests.get()
        try:
            outputs = request.infer(inputs, share_inputs=True, share_outputs=True)
            # The buffer belongs to the request, which another thread may take next.
            return BaseModelOutput(last_hidden_state=torch.from_numpy(outputs[0][:, :tokens].copy()))
        finally:
            requests.put(request)

    def divide(self, streams: int) -> None:
        """Compile the layers again for `streams` passes side by side; only once, since the layers are dropped then."""
        if self._make is not None and streams > 1:
            self._shared = _requests(self._make(streams), streams)
        self._make = None

    def warm_up(self, longest: int) -> None:
        """Let OpenVINO compile for passes of at most `longest` tokens now, not while a request waits."""
        threads = torch.get_num_threads()
        ways = (self._cores,) if self._shared is self._alone else (self._cores, 1)
        try:
            for number in ways:
                torch.set_num_threads(number)
                for tokens in range(_PASS_TOKENS_STEP, min(longest, _MAX_WARM_TOKENS) + 1, _PASS_TOKENS_STEP):
                    ids = torch.zeros(1, tokens, dtype=torch.long)
                    with torch.inference_mode():
                        self(ids, torch.arange(tokens)[None], Packed.of(torch.tensor([tokens]), ids.device))
        finally:
            torch.set_num_threads(threads)


class Graph:
    """The layers of a transformer as OpenVINO reads them, not yet laid out for a precision."""

    def __init__(self, model: P2LModel, longest: int) -> None:
        """Trace a float32 model on the CPU for prompts of at most `longest` tokens; the model stays as it is."""
        self._backbone: Any = text_model(model)
        self._light = is_light(model)
        with _tables(self._backbone, longest):
            self._graph = _traced(self._backbone)

    def compiled(self, precision: str, *, threads: int, first: int | None = None) -> CompiledBackbone:
        """Return a backbone that computes in this precision, on at most `threads`, layers from `first` on in int8."""
        from openvino import opset13 as ops

        graph = self._graph if first is None else _rounded(self._graph.clone(), first)
        options = {
            "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[precision],
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": False,  # services and workers on one machine would all take the first cores
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0 if first is None else STATES_PER_SCALE,
        }

        def make(streams: int) -> Any:
            laid_out = graph
            if threads // streams <= 1:
                # On processors with AMX OpenVINO (2026.4.1) would make one node of gate, up and down, dividing its work
                # by half its threads: where a pass has only one thread, that ends the process. A Swish with its slope
                # of one as an input leaves them three products.
                laid_out = graph.clone()
                for node in laid_out.get_ordered_ops():
                    if node.get_type_name() == "Swish":
                        swish = ops.swish(node.input_value(0), ops.constant(np.float32(1)))
                        node.output(0).replace(swish.output(0))
            return core().compile_model(laid_out, "CPU", {**options, "NUM_STREAMS": streams})

        rows = copy.deepcopy(self._backbone.get_input_embeddings()).requires_grad_(False)
        exact = precision == "float32" and first is None
        rows.to(torch.float32 if exact else torch.bfloat16)
        return CompiledBackbone(rows, self._backbone.config, make, light=self._light, cores=threads)


def _requests(compiled: Any, count: int) -> SimpleQueue[Any]:
    """Return inference requests of a compiled model, which threads take and put back."""
    requests: SimpleQueue[Any] = SimpleQueue()
    for _ in range(count):
        requests.put(compiled.create_infer_request())
    return requests


class Traced(nn.Module):
    """The layers of a backbone, in the form that the tracer takes."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, states: Tensor, position_ids: Tensor, owners: Tensor) -> Tensor:
        """Embedded tokens (1, T, D), places (1, T) and prompts (T,) of tokens -> states (1, T, D)."""
        packed = Joined(owners)
        output: Tensor = self.backbone(inputs_embeds=states, position_ids=position_ids, packed=packed).last_hidden_state
        return output


class _Angles(nn.Module):
    """Tables of a rotary embedding's cosines and sines: a bfloat16 graph would round the angles, losing positions."""

    def __init__(self, rotary: nn.Module, longest: int) -> None:
        super().__init__()
        self._rotary = rotary
        self._longest = longest
        self._tables: dict[tuple[Any, ...], tuple[Tensor, ...]] = {}

    def forward(self, states: Tensor, position_ids: Tensor, *options: Any) -> tuple[Tensor, ...]:
        """Return the same as the replaced module; tables are made at the first call."""
        if options not in self._tables:
            places = torch.arange(self._longest)[None]
            self._tables[options] = tuple(table[0] for table in self._rotary(states[:, :1], places, *options))
        return tuple(F.embedding(position_ids, table) for table in self._tables[options])


@contextlib.contextmanager
def _tables(backbone: nn.Module, longest: int) -> Iterator[None]:
    """Put tables in the place of the rotary embeddings of a backbone, until the block ends."""
    rotaries = {
        name: module for name, module in backbone.named_children() if type(module).__name__.endswith("RotaryEmbedding")
    }
    for name, rotary in rotaries.items():
        setattr(backbone, name, _Angles(rotary, longest))
    try:
        yield
    finally:
        for name, rotary in rotaries.items():
            setattr(backbone, name, rotary)


def _traced(backbone: Any) -> Any:
    """Return the graph of a backbone's layers."""
    from openvino import PartialShape
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    places, owners = torch.tensor([[0, 1, 2, 0, 1]]), torch.tensor([0, 0, 0, 1, 1])
    width = int(backbone.get_input_embeddings().embedding_dim)
    example = (torch.zeros(1, len(owners), width), places, owners)
    module = Traced(backbone).eval()
    with warnings.catch_warnings(), quiet(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch's tracer warns of shapes, which do not vary here
        module(*example)
        # The frontend is called directly, because `openvino.convert_model` reports its use to the maker.
        frontend = FrontEndManager().load_by_framework("pytorch")
        decoder = TorchScriptPythonDecoder(module, example_input=example)
        read = frontend.load(decoder)
        graph = frontend.convert(read)
    # torch keeps the type of each traced module, and with it its weights, for good unless it is told to let go.
    torch._C._jit_clear_class_registry()
    recursive: Any = torch.jit._recursive
    recursive.concrete_type_store = recursive.ConcreteTypeStore()
    _fold(graph)
    _join(graph)
    for entry, shape in zip(graph.inputs, ([1, -1, width], [1, -1], [-1]), strict=True):
        entry.get_node().set_partial_shape(PartialShape(shape))
    graph.validate_nodes_and_infer_types()
    return graph


def _fold(graph: Any) -> None:
    """Turn converted constants into constants: a rotation is recognised, and computed in one step, only so."""
    from openvino import opset13 as ops

    for node in graph.get_ordered_ops():
        source = node.input_value(0).get_node() if node.get_type_name() in ("Convert", "ConvertLike") else None
        if source is not None and source.get_type_name() == "Constant" and source.data.size == 1:
            kind = node.get_output_element_type(0).to_dtype()
            node.output(0).replace(ops.constant(source.data.astype(kind)).output(0))


def _join(graph: Any) -> None:
    """Make one product of the queries, keys and values of a layer: several cores share one large product better."""
    from openvino import opset13 as ops

    readers: dict[tuple[str, int], list[Any]] = {}
    for node in graph.get_ordered_ops():
        if node.get_type_name() == "MatMul" and node.get_attributes()["transpose_b"]:
            source = node.input_value(0)
            if node.input_value(1).get_node().get_type_name() == "Constant":
                readers.setdefault((source.get_node().get_friendly_name(), source.get_index()), []).append(node)
    for nodes in readers.values():
        weights = [node.input_value(1).get_node().data for node in nodes]
        # Gate and up stay two products, since an activation is computed together with its product.
        if len(nodes) != 3 or any(weight.ndim != 2 for weight in weights):
            continue
        product = ops.matmul(nodes[0].input_value(0), ops.constant(np.concatenate(weights)), False, True)
        product.set_friendly_name(nodes[0].get_friendly_name())
        lengths = ops.constant(np.array([len(weight) for weight in weights]))
        parts = ops.variadic_split(product, ops.constant(-1), lengths)
        for number, node in enumerate(nodes):
            node.output(0).replace(parts.output(number))


def _rounded(graph: Any, first: int) -> Any:
    """Round the weights (N, D) of the layers from `first` on to 8 bits, with a scale for each output."""
    for node in graph.get_ordered_ops():
        layer = re.search(r"\blayers?\.(\d+)\.", node.get_friendly_name())
        if node.get_type_name() != "MatMul" or layer is None or int(layer[1]) < first:
            continue
        source = node.input_value(1).get_node()
        if source.get_type_name() != "Constant" or source.data.ndim != 2:
            continue
        axis = 1 if node.get_attributes()["transpose_b"] else 0
        weights = rounded(source.data, axis)
        node.input(1).replace_source_output(weights.output(0))
    return graph
