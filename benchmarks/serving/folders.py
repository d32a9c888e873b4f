"""Random models of a shape, as this project serves them and as a transformers classification pipeline does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm

from benchmarks.shapes import SHAPES

__all__ = ["lexicon", "prompts", "write_folders", "write_tfidf"]

NUM_MODELS = 100
MAX_LENGTH = 2048
SEED = 0


def lexicon() -> NDArray[np.str_]:
    """1,500 short invented words, each a token."""
    rng = np.random.default_rng(SEED)
    sounds = ["ba", "de", "ki", "lo", "mu", "na", "pe", "ri", "so", "tu"]
    return np.array([" " + "".join(rng.choice(sounds, size=rng.integers(1, 4))) for _ in range(1500)])


def prompts(count: int, sigma: float, seed: int, longest: int = MAX_LENGTH - 8) -> list[str]:
    """Different prompts of log-normal lengths (median 60 words): quantiles at even steps, in random order."""
    rng = np.random.default_rng(seed)
    words = lexicon()
    lengths = 60 * np.exp(sigma * norm.ppf((rng.permutation(count) + 0.5) / count))
    sizes = np.clip(lengths, 1, longest).astype(int)
    return ["".join(rng.choice(words, size=size)).strip() for size in sizes]


def write_folders(root: Path, shape: str) -> tuple[Path, Path]:
    """The folder of a P2L model, and that of a sequence classifier of the same shape."""
    from transformers import AutoModel, LlamaConfig, LlamaForSequenceClassification

    from p2l.likelihood import get
    from p2l.model.checkpoint import P2LRecord
    from p2l.model.heads import build
    from p2l.model.model import P2LModel
    from p2l.model.scratch import train_bpe
    from p2l.model.tokenizer import load_tokenizer

    ours, plain = root / shape / "p2l", root / shape / "plain"
    for folder in (ours, plain):
        folder.mkdir(parents=True)
        train_bpe([["".join(lexicon())]], 4000).save_pretrained(str(folder))
    sizes: dict[str, Any] = {"vocab_size": 4096, **SHAPES[shape]}
    config = LlamaConfig(**sizes, max_position_embeddings=MAX_LENGTH, num_labels=NUM_MODELS, pad_token_id=0)
    torch.manual_seed(SEED)
    classifier = LlamaForSequenceClassification(config).to(torch.bfloat16)
    classifier.save_pretrained(str(plain))
    backbone = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
    head = build("bt", config.hidden_size, NUM_MODELS, downsize_factor=None, head_config=None)
    record = P2LRecord(model_type="llama", head_type="bt", loss_type=get("bt").name, max_length=MAX_LENGTH)
    model = P2LModel(backbone, head, [f"model-{n}" for n in range(NUM_MODELS)], record)
    tokenizer = load_tokenizer(ours, max_length=MAX_LENGTH)
    model.save_pretrained(ours)
    tokenizer.save_pretrained(ours)
    return ours, plain


def write_tfidf(root: Path) -> Path:
    """The folder of a bag-of-words model with the same number of coefficients."""
    from p2l.model.model import P2LModel
    from p2l.model.scratch import make_tfidf
    from p2l.model.tokenizer import load_tokenizer

    backbone, folder = root / "words", root / "tfidf"
    backbone.mkdir(parents=True)
    make_tfidf(backbone, [["".join(lexicon())]], hidden_size=32, ngrams=(1, 1), max_features=50_000, min_df=1)
    tokenizer = load_tokenizer(backbone)
    model = P2LModel.create(
        backbone,
        model_type="tfidf",
        head_type="bt",
        loss_type="bt",
        model_list=[f"model-{n}" for n in range(NUM_MODELS)],
        tokenizer=tokenizer,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
