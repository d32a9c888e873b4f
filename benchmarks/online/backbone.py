"""A backbone that trains on one core as fast as 200,000 votes need: one layer of attention, read at the CLS alone.

    x = E[token] + P[position];  h = x_cls + attention(cls over all tokens);  state = h + gated MLP(h)

Tokens are the words of the training prompts. With one layer nothing but the CLS token's state reaches the head, so that
the others need no query and no MLP: the same function as a one-layer decoder, at a quarter of its time.

Shapes: B prompts, T tokens, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from p2l.model import backbones
from p2l.model.checkpoint import load_weights, read_object, save_weights, write_json
from p2l.model.encoding import Encoding, PromptTokenizer, register

__all__ = ["NAME", "WordTokenizer", "make"]

NAME = "one-layer"
_WORDS = "words.json"
_PAD, _CLS, _UNKNOWN = range(3)
_HEADS = 2


@dataclass(frozen=True)
class OneLayerConfig:
    """config.json of the backbone."""

    vocab_size: int
    positions: int
    hidden_size: int = 64
    model_type: str = NAME

    def to_dict(self) -> dict[str, object]:
        """Its JSON form."""
        return asdict(self)


class OneLayer(nn.Module):
    """See the module."""

    def __init__(self, config: OneLayerConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.tokens = nn.Embedding(config.vocab_size, width)
        self.places = nn.Embedding(config.positions, width)
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.gate_up = nn.Linear(width, 6 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)
        self.before, self.between, self.after = (nn.RMSNorm(width) for _ in range(3))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Padded ids (B, T) and their mask (B, T) -> the state at the last token (B, D)."""
        rows, last = torch.arange(len(ids)), mask.sum(1) - 1
        states = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        normed = self.before(states)
        keys, values = self.key_value(normed).view(*ids.shape, 2, _HEADS, -1).permute(2, 0, 3, 1, 4)
        queries = self.query(normed[rows, last]).view(len(ids), _HEADS, 1, -1)
        seen = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask[:, None, None].bool())
        state: Tensor = states[rows, last] + self.out(seen.reshape(len(ids), -1))
        gate, up = self.gate_up(self.between(state)).chunk(2, dim=1)
        state = self.after(state + self.down(F.silu(gate) * up))
        return state


class WordTokenizer(PromptTokenizer):
    """One token a word, the CLS at the end."""

    cls_token_id = _CLS
    pad_token_id = _PAD

    def __init__(self, words: Sequence[str], max_length: int) -> None:
        self.max_length, self.vocab_size = max_length, len(words) + _UNKNOWN + 1
        self._words = list(words)
        self._ids = {word: number for number, word in enumerate(words, start=_UNKNOWN + 1)}

    def encode(self, prompts: Sequence[Sequence[str]]) -> list[Encoding]:
        """See `PromptTokenizer.encode`."""
        found = []
        for prompt in prompts:
            words = [self._ids.get(word, _UNKNOWN) for turn in prompt for word in turn.split()]
            kept = words[-(self.max_length - 1) :]
            found.append(Encoding(np.array([*kept, _CLS], dtype=np.int64), None, len(kept) < len(words)))
        return found

    def save_pretrained(self, directory: str | Path) -> None:
        """Write the words."""
        write_json(Path(directory) / _WORDS, {"words": self._words, "max_length": self.max_length})


def make(folder: Path, prompts: Iterable[Sequence[str]], *, seed: int) -> None:
    """Write a backbone with random weights, and the words of `prompts`, into `folder`."""
    split = [[word for turn in prompt for word in turn.split()] for prompt in prompts]
    words = sorted({word for prompt in split for word in prompt})
    tokenizer = WordTokenizer(words, max(map(len, split)) + 1)
    config = OneLayerConfig(tokenizer.vocab_size, tokenizer.max_length)
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = OneLayer(config)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                # benchmarks/LOG.md: the scale that suits a narrow model.
                nn.init.normal_(parameter, std=0.4 * config.hidden_size**-0.5)
    tokenizer.save_pretrained(folder)
    write_json(folder / "config.json", config.to_dict())
    save_weights(model.state_dict(), folder)


@register(NAME)
def _load_tokenizer(folder: Path, **_options: object) -> WordTokenizer:
    kept = read_object(folder / _WORDS)
    return WordTokenizer(kept["words"], kept["max_length"])


def _empty(folder: Path, dtype: torch.dtype) -> OneLayer:
    content = read_object(folder / "config.json")
    return OneLayer(OneLayerConfig(content["vocab_size"], content["positions"], content["hidden_size"])).to(dtype)


def _pretrained(folder: Path, dtype: torch.dtype) -> OneLayer:
    model = _empty(folder, dtype)
    load_weights(model, folder)
    return model


def _encode(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    state: Tensor = model(batch["input_ids"], batch["attention_mask"])
    return state


backbones.register(backbones.Backbone(NAME, _pretrained, _empty, _encode))
