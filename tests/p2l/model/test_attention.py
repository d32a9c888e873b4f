from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from p2l.model import backbones
from p2l.model.backbones import Packed, one_by_one, varlen_kernel
from p2l.model.batching import collate
from p2l.model.encoding import Encoding

SMALL = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
GROUPED = {**SMALL, "num_hidden_layers": 2, "num_key_value_heads": 2}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
CONFIGS: dict[str, dict[str, object]] = {
    "qwen2": GROUPED,
    "qwen2 with a window": {**GROUPED, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    "qwen3": {**GROUPED, "head_dim": 8},
    "llama": GROUPED,
    "bert": {**SMALL, "num_hidden_layers": 2, "max_position_embeddings": 64, "hidden_dropout_prob": 0.0},
    "modernbert": {**SMALL, **ENDS, "num_hidden_layers": 4, "local_attention": 8, "global_attn_every_n_layers": 2},
}
LENGTHS = (40, 40, 23, 11, 9, 3, 1, 60)


def backbone(name: str, folder: Path) -> tuple[backbones.Backbone, nn.Module]:
    """A random model of a family, written and read again as a user's would be."""
    from transformers import AutoConfig, AutoModel

    family = backbones.get(name.split()[0])
    torch.manual_seed(0)
    config = AutoConfig.for_model(family.name, **CONFIGS[name])
    options = {"add_pooling_layer": False} if family.name == "bert" else {}
    AutoModel.from_config(config, **options).save_pretrained(folder)
    return family, family.pretrained(folder, torch.float32).eval()


def encodings() -> list[Encoding]:
    rng = np.random.default_rng(0)
    return [Encoding(rng.integers(3, 99, length), None, False) for length in LENGTHS]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("name", CONFIGS)
def test_packed_padded_and_one_by_one_agree(name: str, pooling: str, tmp_path: Path) -> None:
    family, model = backbone(name, tmp_path)
    read = family.reader(pooling)
    prompts = encodings()
    weights = torch.randn(len(prompts), 32)

    def run(states: Tensor) -> tuple[Tensor, Tensor]:
        model.zero_grad()
        (states * weights).sum().backward()
        return states.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    alone = run(torch.cat([read(model, collate([prompt], 0)) for prompt in prompts]))
    for packed in (True, False):
        states, gradients = run(read(model, collate(prompts, 0, packed=packed)))
        torch.testing.assert_close(states, alone[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(gradients, alone[1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["qwen2", "bert"])
def test_a_prompt_does_not_see_its_neighbours(name: str, tmp_path: Path) -> None:
    family, model = backbone(name, tmp_path)
    prompts = encodings()
    before = family.encode(model, collate(prompts, 0, packed=True))
    other = [Encoding((prompt.ids + 1) % 90 + 3, None, False) for prompt in prompts]
    after = family.encode(model, collate([*other[:3], prompts[3], *other[4:]], 0, packed=True))
    assert torch.equal(before[3], after[3])
    assert not torch.allclose(before[2], after[2])


def test_recomputed_activations_give_the_same_gradients(tmp_path: Path) -> None:
    family, model = backbone("qwen2", tmp_path)
    model.train()
    batch = collate(encodings(), 0, packed=True)
    found = []
    for _ in range(2):
        model.zero_grad()
        family.encode(model, batch).square().sum().backward()
        found.append([parameter.grad for parameter in model.parameters()])
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    for plain, recomputed in zip(*found, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_a_long_pack_needs_no_more_positions_than_its_longest_prompt(tmp_path: Path) -> None:
    family, model = backbone("bert", tmp_path)
    prompts = [Encoding(np.arange(3, 53), None, False)] * 4
    states = family.encode(model, collate(prompts, 0, packed=True))
    torch.testing.assert_close(states[3], states[0])


def test_float32_on_a_cpu_has_no_kernel() -> None:
    assert varlen_kernel("cpu", torch.float32) is None
    assert varlen_kernel("cpu", torch.bfloat16) is None


def test_an_attention_that_is_not_computed_here_is_refused(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model("gemma2", **GROUPED, head_dim=8)
    AutoModel.from_config(config).save_pretrained(tmp_path)
    batch = collate(encodings(), 0, packed=True)
    family = backbones.transformer("gemma2")
    with pytest.raises(ValueError, match="softcap"):
        family.encode(family.pretrained(tmp_path, torch.float32), batch)
    padded = backbones.transformer("gemma2", packs=False)
    states = padded.encode(padded.pretrained(tmp_path, torch.float32), collate(encodings(), 0))
    assert states.shape == (len(LENGTHS), 32)


@pytest.mark.parametrize("window", [(-1, 0), (-1, -1), (7, 0), (4, 4)])
def test_the_reference_is_plain_attention_within_each_prompt(window: tuple[int, int]) -> None:
    torch.manual_seed(0)
    lengths, heads, width = [9, 1, 20], 2, 8
    query, key, value = torch.randn(3, 1, heads, sum(lengths), width, dtype=torch.float64)
    packed = Packed.of(torch.tensor(lengths), query.device)
    found = one_by_one(query, key, value, packed.lengths, window=window, scale=0.3)
    place = torch.arange(sum(lengths))
    prompt = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
    ahead = place[None, :] - place[:, None]
    seen = prompt[None, :] == prompt[:, None]
    seen &= ahead <= (window[1] if window[1] >= 0 else 99)
    seen &= ahead >= (-window[0] if window[0] >= 0 else -99)
    scores = (query @ key.transpose(-1, -2) * 0.3).masked_fill(~seen, float("-inf"))
    torch.testing.assert_close(found, (scores.softmax(-1) @ value).transpose(1, 2))
