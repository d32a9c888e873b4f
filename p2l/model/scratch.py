"""Backbones from scratch, for training without any download.

For a transformer: random weights and a byte-level BPE tokenizer trained on the prompts of the votes. For `tfidf`: the
vocabulary of those prompts. For a reader: the vocabulary, its main directions, and the scale of all inputs.

Shapes: F inputs, K directions, V words.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2l.common.errors import ConfigError, InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import nn

    from p2l.model.reader import ReaderBackbone
    from p2l.model.reader_inputs import ReaderTokenizer
    from p2l.model.tfidf import TfidfTokenizer

    Floats = npt.NDArray[np.float32]


_SPECIAL_TOKENS = ("<|pad|>", "<|cls|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>")
# One digit, word, run of signs or run of blanks at a time, as Qwen's tokenizers split; transformers replaces any other
# split for models of that family.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TRANSFORMER_DEFAULTS: dict[str, Any] = {
    "vocab_size": 4000,
    "hidden_size": 128,
    "layers": 2,
    "heads": 4,
    "max_positions": 2048,
}
_PROMPTS_PER_BATCH = 256
_SPARE_DIRECTIONS = 16  # directions beyond those that are kept, without which the last ones are imprecise
_POWER_STEPS = 6
_DIRECTIONS = 128  # main directions of words that a reader reads
READER_DEFAULTS: dict[str, Any] = {"hidden_size": 128, "members": 6, "max_features": 20_000, "min_df": 3}
# Single words: with pairs the held-out loss of 20,000 simulated votes on 16 models was 1.271 at best in place of 1.264
# (1.267 with the best ridge penalty on the same features, 1.284 with one leaderboard for all prompts).
TFIDF_DEFAULTS: dict[str, Any] = {"hidden_size": 32, "ngrams": (1, 1), "max_features": 50_000, "min_df": 3}


def sample_prompts(batches: Iterable[Any], count: int, *, seed: int = 42) -> list[list[str]]:
    """Return the distinct prompts among `count` votes drawn evenly from Arrow batches, in bounded memory."""
    draw = random.Random(seed)
    sample: list[list[str]] = []
    seen = 0
    for batch in batches:
        numbers = range(seen, seen + len(batch))
        places = [draw.randrange(number + 1) if number >= count else number for number in numbers]
        rows = [row for row, place in enumerate(places) if place < count]
        # A late batch of a large file may have none, and Arrow takes no list without a type.
        prompts = batch.column("prompt").take(rows).to_pylist() if rows else []
        for row, prompt in zip(rows, prompts, strict=True):
            sample[places[row] : places[row] + 1] = [prompt]
        seen += len(batch)
    return [list(prompt) for prompt in dict.fromkeys(map(tuple, sample))]


def make_tfidf(
    folder: Path,
    prompts: Sequence[Sequence[str]],
    *,
    hidden_size: int,
    ngrams: Sequence[int],
    max_features: int,
    min_df: int,
) -> str:
    """Write a TF-IDF backbone into `folder` and return its size in words; InputError if no feature is frequent."""
    from p2l.model.backbones import TfidfBackbone, TfidfConfig
    from p2l.model.checkpoint import save_weights, write_json
    from p2l.model.tfidf import fit_vocabulary

    low, high = ngrams
    if not 1 <= low <= high:
        raise ConfigError(f"--ngrams must be a range such as 1 2, not {low} {high}")
    tokenizer = fit_vocabulary(prompts, ngrams=(low, high), max_features=max_features, min_df=min_df)
    config = TfidfConfig(tokenizer.vocab_size, hidden_size)
    tokenizer.save_pretrained(folder)
    write_json(folder / "config.json", config.to_dict())
    save_weights(TfidfBackbone(config).state_dict(), folder)
    return f"{tokenizer.vocab_size:,} features, rank {hidden_size}"


def make_transformer(
    folder: Path,
    prompts: Sequence[Sequence[str]],
    *,
    model_type: str,
    seed: int,
    vocab_size: int,
    hidden_size: int,
    layers: int,
    heads: int,
    max_positions: int,
    intermediate_size: int | None = None,
) -> str:
    """Write a random transformer and its tokenizer; return its size in words; ConfigError for wrong sizes."""
    from p2l.model import backbones
    from p2l.model.checkpoint import save_weights, write_json

    backbones.get(model_type)
    if hidden_size % heads or (hidden_size // heads) % 2:
        raise ConfigError(f"--hidden-size {hidden_size} must be an even multiple of --heads {heads}")
    tokenizer = train_bpe(prompts, vocab_size)
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": hidden_size // heads,
        "intermediate_size": intermediate_size or 3 * hidden_size,
        "max_position_embeddings": max_positions,
    }
    model = _random_model(model_type, sizes, tokenizer, seed)
    tokenizer.model_max_length = max_positions
    tokenizer.save_pretrained(str(folder))
    write_json(folder / "config.json", model.config.to_dict())  # type: ignore[union-attr, operator]
    save_weights(model.state_dict(), folder)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return f"{len(tokenizer):,} tokens, {parameters / 1e6:.2f} million parameters"


def train_bpe(prompts: Sequence[Sequence[str]], vocab_size: int) -> Any:
    """Train byte-level BPE on prompts, with the `chatml` template and a CLS token; ConfigError if too small."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from p2l.common.prompts import repair
    from p2l.model.tokenizer import resolve_template

    least = 256 + len(_SPECIAL_TOKENS)
    if vocab_size < least:
        raise ConfigError(
            f"--vocab-size must be at least {least} (every byte and the special tokens), not {vocab_size}"
        )
    built = Tokenizer(models.BPE())
    built.normalizer = normalizers.NFC()
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    built.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(_SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The template's own words are in every prompt, so `user` is part of the training text to become a short token.
    texts = ("user\n" + repair(turn) for prompt in prompts for turn in prompt)
    built.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=built,
        pad_token="<|pad|>",
        cls_token="<|cls|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
    )
    tokenizer.chat_template = resolve_template("chatml")
    return tokenizer


def _random_model(model_type: str, sizes: dict[str, int], tokenizer: Any, seed: int) -> nn.Module:
    import torch
    from transformers import AutoConfig, AutoModel

    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    if model_type == "modernbert":
        ids |= {"bos_token_id": tokenizer.cls_token_id, "cls_token_id": tokenizer.cls_token_id, "sep_token_id": None}
    config = AutoConfig.for_model(model_type, **sizes, **ids, tie_word_embeddings=True, use_cache=False)
    # The usual 0.02 is small for a narrow model and sqrt(1 / width) too large: at width 64 the one closed 74 % of the
    # gap to the truth of a simulated arena, the other 68 %, this one 87 % (benchmarks/LOG.md).
    config.initializer_range = 0.4 * sizes["hidden_size"] ** -0.5
    options = {"add_pooling_layer": False} if model_type == "bert" else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = AutoModel.from_config(config, **options)  # type: ignore[no-untyped-call]
    return model


def make_reader(
    folder: Path,
    prompts: Sequence[Sequence[str]],
    *,
    encoder: Path | None,
    hidden_size: int,
    members: int,
    max_features: int,
    min_df: int,
    directions: int = _DIRECTIONS,
    frozen: bool = True,
    seed: int = 42,
    quiet: bool = True,
) -> str:
    """Write a reader of these prompts into `folder` and return its size in words; InputError if no word is frequent.

    `encoder` is the folder of a sentence encoder; with `frozen` False it is trained with the rest. `hidden_size` counts
    the units of one of the `members`.
    """
    import numpy as np
    import torch

    from p2l.model.checkpoint import save_weights, write_json
    from p2l.model.reader import READS, assemble
    from p2l.model.reader_inputs import raw_features
    from p2l.model.tfidf import fit_vocabulary

    words = fit_vocabulary(prompts, max_features=max_features, min_df=min_df)
    projection = _main_directions(words, prompts, directions, seed=seed)
    raw = raw_features(words.encode(prompts), projection, prompts)
    scaling = {
        "projection": projection.astype(np.float16),
        "mean": raw.mean(0),
        "scale": _scales(raw, projection.shape[1]),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        units = members * hidden_size
        reads = ("all",) if encoder is None else READS
        keys: dict[str, Any] = {"hidden_size": units, "members": members, "reads": reads}
        backbone, reader = assemble(words, scaling, encoder, frozen=frozen, **keys)
        backbone.layer.blind()
    if backbone.encoder is not None:
        _scale_states(backbone, reader, prompts, quiet=quiet)
    reader.save_pretrained(folder)
    write_json(folder / "config.json", backbone.config.to_dict())
    save_weights(backbone.stored(backbone.state_dict()), folder)
    if backbone.encoder is None:
        return f"{words.vocab_size:,} words, without an encoder"
    parameters = sum(parameter.numel() for parameter in backbone.encoder.parameters())
    return f"{words.vocab_size:,} words, an encoder of {parameters / 1e6:,.1f} million parameters"


def words_and_form(prompts: Sequence[Sequence[str]]) -> tuple[Floats, TfidfTokenizer | None]:
    """Return the inputs (Q, F) of a reader without encoder, and its words; form alone where no word is frequent."""
    import numpy as np

    from p2l.common.prompts import form_of
    from p2l.model.reader_inputs import raw_features
    from p2l.model.tfidf import fit_vocabulary

    words: TfidfTokenizer | None = None
    with suppress(InputError):
        words = fit_vocabulary(prompts, max_features=READER_DEFAULTS["max_features"], min_df=READER_DEFAULTS["min_df"])
    if words is None:
        raw, directions = np.array([form_of(turns) for turns in prompts], dtype=np.float32), 0
    else:
        projection = _main_directions(words, prompts, _DIRECTIONS, seed=42)
        raw, directions = raw_features(words.encode(prompts), projection, prompts), projection.shape[1]
    return (raw - raw.mean(0)) * _scales(raw, directions), words


def _main_directions(words: TfidfTokenizer, prompts: Sequence[Sequence[str]], count: int, *, seed: int) -> Floats:
    """Return the main directions (V, K) of the prompts' TF-IDF, K at most `count`, by randomised subspace iteration."""
    import numpy as np
    from scipy.sparse import csr_matrix

    from p2l.leaderboard.newton import one_blas_thread

    rows = words.encode(prompts)
    borders = np.cumsum([0, *(len(row.ids) for row in rows)])
    weights = np.concatenate([row.values for row in rows if row.values is not None])
    matrix = csr_matrix((weights, np.concatenate([row.ids for row in rows]), borders), (len(rows), words.vocab_size))
    least = min(matrix.shape)
    start = np.random.default_rng(seed).standard_normal((words.vocab_size, min(count + _SPARE_DIRECTIONS, least)))
    basis = start
    with one_blas_thread():
        for _ in range(_POWER_STEPS):
            basis = np.linalg.qr(matrix.T @ np.linalg.qr(matrix @ basis)[0])[0]
        _, _, rotation = np.linalg.svd(matrix @ basis, full_matrices=False)
    directions: Floats = (basis @ rotation.T)[:, : min(count, least)].astype(np.float32)
    return directions


def _scales(raw: Floats, directions: int) -> Floats:
    """Return factors (F,) that give each count of form unit variance, and the directions of words unit on average."""
    import numpy as np

    deviations = raw.std(0)
    words = deviations[:directions]
    # A direction's deviation is reduced by its square root, so that the first, most telling ones stay larger.
    roots = np.sqrt(np.maximum(words, 1e-6))
    words = 1 / (roots * max(float(np.sqrt(((words / roots) ** 2).sum() / max(directions, 1))), 1e-6))
    scales: Floats = np.concatenate([words, 1 / np.maximum(deviations[directions:], 1e-6)]).astype(np.float32)
    # A count that no prompt differs in says nothing, and would be enormous in the first prompt that does.
    scales[directions:][deviations[directions:] < 1e-6] = 0
    return scales


def _scale_states(
    backbone: ReaderBackbone, reader: ReaderTokenizer, prompts: Sequence[Sequence[str]], *, quiet: bool
) -> None:
    """Centre the states of these prompts, and give them unit variance on average over their directions."""
    import torch

    from p2l.common.cli import progress
    from p2l.model.batching import collate
    from p2l.model.reader import keep_states

    keep_states(backbone)
    backbone.eval()
    total = squares = torch.zeros(len(backbone.state_mean), dtype=torch.float64)
    count = len(prompts)
    with progress(description="reading prompts", total=count, unit="prompt", quiet=quiet) as bar, torch.no_grad():
        for start in range(0, count, _PROMPTS_PER_BATCH):
            chunk = reader.encode(prompts[start : start + _PROMPTS_PER_BATCH])
            states = backbone.states(collate(chunk, 0, packed=True)).double()
            total, squares = total + states.sum(0), squares + (states**2).sum(0)
            bar.update(len(chunk))
    mean = total / count
    variance = float((squares / count - mean**2).mean())
    backbone.state_mean.copy_(mean)
    backbone.state_scale.fill_(1 / max(variance, 1e-12) ** 0.5)
