import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from p2l.inference import P2L
from p2l.model import backbones, openvino
from p2l.model.backbones import Joined, one_by_one
from p2l.model.batching import collate
from p2l.model.model import P2LModel
from p2l.model.openvino import CompiledBackbone, Graph, is_light, layers_of
from p2l.model.precision import PROBES, coefficients, of_length
from p2l.serving.reload import return_freed_memory
from tests.p2l.serving_models import tiny

pytestmark = pytest.mark.skipif(not openvino.is_installed(), reason="no OpenVINO")


def compiled(model: P2LModel, precision: str = "float32", **options: int) -> P2LModel:
    backbone = Graph(model, 512).compiled(precision, threads=1, **options)
    return P2LModel(backbone, model.head, model.model_list, model.record).eval()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "bert", "modernbert"])
def test_a_compiled_model_answers_as_before(family: str, tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, family)
    batch = collate([*tokenizer.encode(PROBES), of_length(tokenizer, 300)], 0, packed=True)
    with torch.inference_mode():
        before = model(batch)
        after = compiled(model)(batch)
        again = model(batch)
    torch.testing.assert_close(after.coefs, before.coefs, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(after.eta, before.eta, atol=1e-5, rtol=1e-4)
    assert torch.equal(again.coefs, before.coefs)


def test_the_mean_over_all_tokens_reads_them_all(tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    model.record, model._read = replace(model.record, pooling="mean"), backbones.get("llama").reader("mean")
    batch = collate(tokenizer.encode(PROBES), 0, packed=True)
    with torch.inference_mode():
        before = model(batch).coefs
        torch.testing.assert_close(compiled(model)(batch).coefs, before, atol=1e-5, rtol=1e-4)


def test_a_window_and_biases_are_kept(tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, "qwen2")
    for layer in model.model.layers:
        layer.self_attn.sliding_window = 7
        for part in (layer.self_attn.q_proj, layer.self_attn.v_proj):
            torch.nn.init.normal_(part.bias)
    batch = collate(tokenizer.encode(PROBES), 0, packed=True)
    with torch.inference_mode():
        before = model(batch).coefs
        torch.testing.assert_close(compiled(model)(batch).coefs, before, atol=1e-5, rtol=1e-4)


def test_far_positions_keep_their_angles_in_bfloat16(tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    model.model.layers[0].self_attn.q_proj.weight.data *= 8  # attention that looks closely
    far = [of_length(tokenizer, tokens) for tokens in (410, 450, 500)]
    exact = coefficients(model, far)
    error = np.abs(coefficients(compiled(model, "bfloat16"), far) - exact).mean() / exact.std(axis=1).mean()
    assert error < 0.03


def test_passes_beside_each_other_have_a_thread_each_in_bfloat16(tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    backbone = Graph(model, 512).compiled("bfloat16", threads=2)
    backbone.divide(2)
    shared = P2LModel(backbone, model.head, model.model_list, model.record).eval()
    exact = coefficients(model, tokenizer.encode(PROBES))
    error = np.abs(coefficients(shared, tokenizer.encode(PROBES)) - exact).mean() / exact.std(axis=1).mean()
    assert error < 0.03


@pytest.mark.parametrize("first", [None, 0])
def test_answers_are_the_same_whatever_shares_the_batch(tmp_path: Path, first: int | None) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    options = {} if first is None else {"first": first}
    asked = P2L(compiled(model, **options), tokenizer, torch.device("cpu"))
    together = asked.predict(PROBES).coefs
    alone = np.concatenate([asked.predict([prompt]).coefs for prompt in PROBES])
    np.testing.assert_allclose(together, alone, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_graph_that_is_dropped_leaves_nothing_behind(tmp_path: Path) -> None:
    model, _ = tiny(tmp_path, "llama", hidden_size=256)

    def resident() -> int:
        gc.collect()
        return_freed_memory()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for _ in range(3):
        Graph(model, 512)
    before = resident()
    for _ in range(8):
        Graph(model, 512)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    assert resident() - before < 2 * size  # of eight


def test_rounding_begins_at_the_layer_that_is_asked_for(tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, "llama", layers=4)
    prompts = tokenizer.encode(PROBES)
    exact = coefficients(model, prompts)
    errors = [np.abs(coefficients(compiled(model, first=first), prompts) - exact).mean() for first in (0, 2, 4)]
    assert errors[0] > errors[1] > 2 * errors[2]  # the embedding is in bfloat16 wherever layers are in int8
    assert errors[2] < 1e-3


def test_a_bag_of_words_has_no_layers_and_is_light(tmp_path: Path) -> None:
    model, _ = tiny(tmp_path, "tfidf")
    assert len(layers_of(model)) == 0
    assert is_light(model)


def test_a_compiled_model_keeps_its_size_in_mind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = tiny(tmp_path, "llama")
    assert is_light(compiled(model))
    monkeypatch.setattr(openvino, "_LIGHT_WEIGHTS", 0)
    assert not is_light(model)
    heavy = compiled(model)
    assert isinstance(heavy.model, CompiledBackbone)
    assert not is_light(heavy)


def test_threads_beside_each_other_get_the_answers_of_one_that_is_alone(tmp_path: Path) -> None:
    model, tokenizer = tiny(tmp_path, "llama")
    exact = coefficients(model, tokenizer.encode(PROBES))
    divided = P2LModel(Graph(model, 512).compiled("float32", threads=2), model.head, model.model_list, model.record)
    backbone = divided.eval().model
    assert isinstance(backbone, CompiledBackbone)
    backbone.divide(2)
    backbone.warm_up(40)
    assert backbone._shared is not backbone._alone

    def ask(threads: int) -> np.ndarray:
        torch.set_num_threads(threads)
        return coefficients(divided, tokenizer.encode(PROBES))

    for cores, at_once in ((2, 1), (1, 2), (1, 3)):
        with ThreadPoolExecutor(at_once) as pool:
            for answers in pool.map(ask, [cores] * at_once):
                np.testing.assert_allclose(answers, exact, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("window", [(-1, 0), (39, 0), (-1, -1), (39, 39)])
def test_attention_under_a_mask_is_attention(groups: int, window: tuple[int, int]) -> None:
    torch.manual_seed(0)
    lengths = [300, 1, 96, 128, 13]
    total = sum(lengths)
    query, key, value = (torch.randn(1, heads, total, 16) for heads in (6, groups, groups))
    expected = one_by_one(query, key, value, lengths, window=window, scale=0.25)
    owners = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    mixed = Joined(owners).attend(query, key, value, window, 0.25)
    torch.testing.assert_close(mixed, expected, atol=1e-5, rtol=1e-4)
