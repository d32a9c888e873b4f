"""Votes that a model folder keeps: what is written is read, and damage is told in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load_file, save_file

from p2l.common.errors import CheckpointError
from p2l.model.kept_votes import VOTES_FILE, KeptVotes


@pytest.fixture
def kept() -> KeptVotes:
    rng = np.random.default_rng(0)
    labels = np.column_stack([np.argsort(rng.random((40, 3)), axis=1)[:, :2], rng.integers(0, 3, 40)])
    inputs = rng.normal(size=(12, 7))
    prompt = rng.permutation(np.arange(40) % 12)
    columns = {"topic": ["sql", "law", "法律"] * 4, "same": ["x"] * 12}
    hashes = list(range(100, 112))
    shift = rng.normal(size=(40, 3))
    return KeptVotes.of(["ant", "bee", "猫"], hashes, inputs, prompt, labels, np.ones(40), 99, columns, shift)


def test_what_is_written_is_read(kept: KeptVotes, tmp_path: Path) -> None:
    kept.save(tmp_path)
    read = KeptVotes.load(tmp_path)
    assert read is not None
    assert (read.models, read.total, len(read)) == (["ant", "bee", "猫"], 99, 40)
    for name in ("hashes", "prompt", "labels", "weights"):
        assert_array_equal(getattr(read, name), getattr(kept, name))
    assert_allclose(read.places, kept.places, rtol=1e-2, atol=1e-2)
    assert_allclose(read.shift, kept.shift, rtol=1e-2, atol=1e-2)
    assert KeptVotes.load(tmp_path / "elsewhere") is None
    assert_array_equal(read.of_category("topic", "法律"), np.arange(12) % 3 == 2)
    assert not read.of_category("topic", "poetry").any()
    assert read.of_category("same", "x") is None
    assert read.of_category("language", "de") is None


def test_some_votes_keep_their_prompts(kept: KeptVotes) -> None:
    chosen = kept.prompt < 4
    some = kept.some(chosen)
    assert_array_equal(some.hashes[some.prompt], kept.hashes[kept.prompt[chosen]])
    assert_array_equal(some.labels, kept.labels[chosen])
    assert_array_equal(some.shift, kept.shift[chosen])
    assert_array_equal(some.of_category("topic", "sql"), [True, False, False, True])


def test_places_keep_the_distances_of_prompts(kept: KeptVotes) -> None:
    inputs = np.random.default_rng(1).normal(size=(5, 7))
    places = kept.place(inputs)
    apart = np.linalg.norm(inputs[:, None] - inputs, axis=2)
    assert_allclose(np.linalg.norm(places[:, None] - places, axis=2), apart, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "damage",
    [
        "cut",
        "lacks",
        "another model",
        "another column",
        "another prompt",
        "not finite",
        "another shift",
    ],
)
def test_damage_is_told_in_one_line(kept: KeptVotes, tmp_path: Path, damage: str) -> None:
    kept.save(tmp_path)
    file = tmp_path / VOTES_FILE
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-9])
    else:
        tensors = load_file(file)
        changed = {
            "lacks": {"weights": tensors["weights"][:3]},
            "another model": {"labels": tensors["labels"] + 7},
            "another column": {"column topic": tensors["column topic"] + np.int16(7)},
            "another prompt": {"prompt": tensors["prompt"] - 20},
            "not finite": {"places": tensors["places"] * np.float16(np.nan)},
            "another shift": {"shift": tensors["shift"][:7]},
        }[damage]
        values = '{"topic": ["law", "sql", "ant"]}'
        metadata = {"models": '["ant", "bee", "cat"]', "total": "99", "values": values}
        save_file(tensors | changed, file, metadata)
    with pytest.raises(CheckpointError, match="damaged or cut short") as error:
        KeptVotes.load(tmp_path)
    assert "\n" not in str(error.value)
