"""Tiny trained-looking models of each family, for tests of what answers faster."""

from __future__ import annotations

from pathlib import Path

import torch

from p2l.model.encoding import PromptTokenizer
from p2l.model.model import P2LModel
from p2l.model.precision import PROBES
from p2l.model.scratch import make_tfidf, make_transformer
from p2l.model.tokenizer import load_tokenizer

NAMES = [f"model-{number}" for number in range(12)]


def tiny(folder: Path, model_type: str, *, layers: int = 2, hidden_size: int = 32) -> tuple[P2LModel, PromptTokenizer]:
    """A random model of a family whose head tells models and prompts apart."""
    texts = [list(prompt) for prompt in PROBES]
    if model_type == "tfidf":
        make_tfidf(folder, texts, hidden_size=4, ngrams=(1, 1), max_features=50, min_df=1)
    else:
        sizes = {"vocab_size": 300, "hidden_size": hidden_size, "layers": layers, "heads": 2, "max_positions": 512}
        make_transformer(folder, texts, model_type=model_type, seed=1, intermediate_size=None, **sizes)
    tokenizer = load_tokenizer(folder, max_length=512)
    options = {"model_type": model_type, "head_type": "rk", "loss_type": "grk", "model_list": NAMES}
    model = P2LModel.create(folder, tokenizer=tokenizer, **options)
    with torch.no_grad():
        model.head.head.bias.copy_(torch.linspace(-1, 1, len(NAMES)))
    return model.eval(), tokenizer
