"""What the tests of batch inference share: a tiny model of each kind, and data sets of prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p2l.model.model import P2LModel
from p2l.model.scratch import make_tfidf, make_transformer
from p2l.model.tokenizer import load_tokenizer

NAMES = ["ant", "bee", "cat"]
TEXTS = [["write a poem about bees"], ["what is 2 plus 2", "and 3 plus 3"]]


def make_model(
    folder: Path,
    *,
    kind: str = "tfidf",
    names: Sequence[str] = NAMES,
    head: str = "rk",
    loss: str = "grk",
    seed: int = 1,
) -> Path:
    """A model folder with random weights that reads up to 32 tokens."""
    import torch

    torch.manual_seed(seed)
    backbone = folder.with_name(f"{folder.name}-backbone")
    backbone.mkdir(parents=True)
    if kind == "tfidf":
        make_tfidf(backbone, TEXTS, hidden_size=4, ngrams=(1, 1), max_features=99, min_df=1)
    else:
        shape = {"vocab_size": 300, "hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": None}
        make_transformer(backbone, TEXTS, model_type=kind, seed=seed, max_positions=64, **shape)
    tokenizer = load_tokenizer(backbone, max_length=32)
    model = P2LModel.create(
        backbone, model_type=kind, head_type=head, loss_type=loss, model_list=list(names), tokenizer=tokenizer
    )
    with torch.no_grad():  # a bag of words is zero before training: every prompt would get the same answer
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def prompt_rows(count: int) -> list[dict[str, Any]]:
    """Rows of texts of several lengths, with columns of several kinds beside them."""
    words = ["write", "a", "poem", "about", "bees", "what", "is", "2", "plus", "3", "and"]
    return [
        {
            "prompt": " ".join(words[(n * 7 + k) % len(words)] for k in range(n % 45)),
            "question_id": f"{n:03d}",
            "score": n / 7,
            "tag": {"math": n % 2 == 0, "names": ["x", "é"]},
        }
        for n in range(count)
    ]


def write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path
