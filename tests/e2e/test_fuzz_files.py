"""Files that a program has damaged: each is read, or refused in a sentence."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coeval.config.keys import Keys
from coeval.config.loading import load_config as load_coeval
from p2l.common.errors import P2LError
from p2l.inference import P2L
from p2l.training.config import load_config as load_training
from p2l.votes.checking import check_votes
from route.config import load_config as load_router
from tests.conftest import ROOT, vote_rows
from tests.fuzz import fuzzing
from tests.p2l.serving_models import tiny

pytestmark = pytest.mark.slow

WORDS = [
    *(b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r\n", b"'", b'"', b'"\\ud800"', b",", b":", b"\t"),
    *(b"[" * 2000, b"{" * 2000, b"}", b"]", b"- ", b"&a ", b"*a", b"<<: *a", b"!!python/object:os.system ", b"? "),
    *(b"null", b"true", b"NaN", b"Infinity", b"-1", b"0", b"1e999", b"9" * 400, b"0x10", b"2024-01-01", b"{}", b"[]"),
    *(b"../../x", b"${HOME}", b"{{ 1/0 }}", b"\xe2\x80\xae", b"a" * 5000, b"e\xcc\x81" * 500),
]


@st.composite
def damaged(draw: st.DrawFn, original: bytes) -> bytes:
    """A file with some of its parts replaced, repeated, moved, cut off, or other bytes in its place."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=200))
    text = original
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        piece = draw(st.sampled_from([*WORDS, text[start : end + 40]])) or draw(st.binary(max_size=8))
        text = text[:start] + piece + text[end:]
        if draw(st.integers(0, 9)) == 0:
            text = text[: draw(st.integers(0, len(text)))]
    return text


def outcome(read: Callable[[], Any]) -> str:
    """Whether something is read or refused, which takes a line for each mistake."""
    try:
        read()
    except P2LError as error:
        message = str(error)
    else:
        return "read"
    assert message.strip()
    assert "\n" not in message.replace("\nerror: ", "")
    return "refused"


def outcomes(original: Path, target: Path, read: Callable[[], Any], few: int) -> Counter[str]:
    """How often a damaged copy of a file was read and refused; any error but a refusal is the test's."""
    counts: Counter[str] = Counter()

    @fuzzing(few)
    @given(damaged(original.read_bytes()))
    def check(content: bytes) -> None:
        target.write_bytes(content)
        counts[outcome(read)] += 1

    check()
    print(f"{target.name}: {dict(counts)}")
    return counts


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet", "json"])
def test_damaged_votes_are_read_or_refused(tmp_path: Path, form: str) -> None:
    rows = vote_rows(20)
    original, target = tmp_path / "original", tmp_path / f"votes.{form}"
    match form:
        case "jsonl":
            original.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        case "json":
            original.write_text(json.dumps(rows), encoding="utf-8")
        case "csv":
            pa.csv.write_csv(pa.Table.from_pylist(rows), original)
        case "parquet":
            pa.parquet.write_table(pa.Table.from_pylist(rows), original)
    assert outcomes(original, target, lambda: check_votes(str(target)), few=60)["refused"]


@pytest.mark.parametrize(
    ("example", "load"),
    [
        ("route/example_config.yaml", load_router),
        ("training_configs/tiny.yaml", load_training),
        ("examples/first_run.yaml", partial(load_coeval, keys=Keys(), fresh=False)),
        ("examples/pairwise.yaml", partial(load_coeval, keys=Keys(), fresh=False)),
    ],
)
def test_damaged_configurations_are_read_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: str, load: Callable[[Path], Any]
) -> None:
    target = tmp_path / "config.yaml"
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, "k")
    assert outcomes(ROOT / example, target, lambda: load(target), few=60)["refused"]


@pytest.mark.parametrize("model_type", ["tfidf", "qwen2"])
def test_damaged_model_folders_are_loaded_or_refused(tmp_path: Path, model_type: str) -> None:
    backbone, folder = tmp_path / "backbone", tmp_path / "folder"
    backbone.mkdir()
    model, tokenizer = tiny(backbone, model_type, layers=1, hidden_size=8)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

    def ask(copy: Path) -> None:
        P2L.from_pretrained(copy, device="cpu").predict([["what is 12 plus 34"]])

    for number, file in enumerate(sorted(path for path in folder.iterdir() if path.is_file())):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(folder, copy)
        ask(copy)
        outcomes(file, copy / file.name, lambda copy=copy: ask(copy), few=8)
