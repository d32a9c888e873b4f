"""Files that were damaged, or made to be: each command's reader takes them, or refuses them in one line.

Mutations of valid files: bytes changed, cut, repeated, and words put in that readers have stumbled over. `make test`
tries 25 of each kind, `make test-slow` 1,000 or as many as P2L_FUZZ_EXAMPLES says.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coeval.config.keys import Keys
from coeval.config.loading import load_config as load_experiment
from coeval.config.reading import ConfigErrors
from p2l.commands.leaderboard import main as leaderboard
from p2l.common.errors import InputError
from p2l.inference import P2L
from p2l.model.model import P2LModel
from p2l.model.scratch import make_tfidf
from p2l.model.tokenizer import load_tokenizer
from p2l.online_training.online_config import OnlineConfig
from p2l.training.train_config import load_config as load_training
from p2l.training.train_config import load_config_as
from p2l.votes.checking import check_votes
from route.config import load_config as load_router
from tests.conftest import ROOT
from tests.fuzz import EXAMPLES, fuzzing
from tests.p2l.serving_models import tiny
from tests.p2l.votes_helpers import ENDINGS, save, vote

WORDS = [
    b"{", b"}", b"[", b"]", b'"', b"'", b"\\", b"\n", b"\r", b"\x00", b"\xff", b"\xed\xa0\x80", b",", b":", b"- ",
    b"&a ", b"*a", b"<<: *a", b"!!python/object:os.system x", b"!!int x", b"!!binary =", b"!!timestamp 1",
    b"2001-13-45", b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-1", b"0", b"9" * 30, b"9" * 5000, b"1:59:59",
    b"0x", b"\\ud800", b'{"a": {"b": 1}}', b"[[1], [2, [3]]]", b"{x}", b"{x!r:>9}", b"${HOME}", b"~", b"=1+1",
    b"[" * 300, b'{"a":' * 300, b"\xef\xbb\xbf", b"\xff\xfe", "\u202e\u0301".encode(), b"<think>", b"---\n",
    b"? ", b"|\n", b"%YAML 9.9\n", b"../../x", b"{{ 1/0 }}", b"a" * 5000, b"e\xcc\x81" * 500,
]  # fmt: skip


@st.composite
def mutations(draw: st.DrawFn) -> list[tuple[str, float, float, bytes]]:
    """Changes to a file, at places from 0, its beginning, to 1, its end."""
    place = st.floats(0, 1)
    kinds = st.sampled_from(["put", "replace", "cut", "repeat", "end"])
    words = st.sampled_from(WORDS) | st.binary(min_size=1, max_size=8)
    return draw(st.lists(st.tuples(kinds, place, st.floats(0, 0.1), words), min_size=1, max_size=6))


def mutated(content: bytes, changes: list[tuple[str, float, float, bytes]]) -> bytes:
    """Apply changes to a file one after the other."""
    for kind, place, share, word in changes:
        start = int(place * len(content))
        end = start + int(share * len(content)) + 1
        if kind == "put":
            content = content[:start] + word + content[start:]
        elif kind == "replace":
            content = content[:start] + word + content[start + len(word) :]
        elif kind == "cut":
            content = content[:start] + content[end:]
        elif kind == "repeat":
            content = content[:end] + content[start:]
        elif start:
            content = content[:start]
    return content


def _outcome(read: Callable[[], object]) -> str:
    """Call a reader, which may refuse what it reads, with one line for each mistake."""
    try:
        read()
    except ConfigErrors as error:
        lines = list(error.messages)
    except InputError as error:
        lines = [str(error)]
    else:
        return "read"
    for line in lines:
        assert line
        assert not {"\n", "\r"} & set(line)
        assert len(line) < 2000
    return "refused"


def _read_votes(path: Path) -> None:
    try:
        check_votes(path, label_list=["a", "b", "c", "d"])
    finally:
        leaderboard(["--votes", str(path), "--by", "language", "--drop-bad", "--intervals", "none", "--quiet"])


def _model(path: Path) -> None:
    P2L.from_pretrained(path.parent, device="cpu").predict([["what is 12 plus 34"]])


def _coeval(path: Path) -> None:
    load_experiment(path, keys=Keys(), fresh=False)


READERS: dict[str, Callable[[Path], object]] = {
    **{f"votes{ending}": _read_votes for ending in ENDINGS},
    "training.yaml": load_training,
    "online.yaml": lambda path: load_config_as(OnlineConfig, path),
    "router.yaml": load_router,
    "coeval.yaml": _coeval,
    "pairwise.yaml": _coeval,
    **{f"tfidf/{file}": _model for file in ("config.json", "tfidf.json", "model_list.json", "model.safetensors")},
    **{f"qwen2/{file}": _model for file in ("config.json", "tokenizer.json", "model.safetensors")},
}


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a valid file of each kind."""
    folder = tmp_path_factory.mktemp("valid")
    rows = [
        vote(n, weight=1.5, tstamp=1.7e9 + n, language="en", labels=[n % 4, (n + 1) % 4, 0], extra={"a": [n]})
        for n in range(40)
    ]
    for ending in ENDINGS:
        save(folder / f"votes{ending}", rows)
    for source, name in {
        "training_configs/qwen2.5-0.5b-grk.yaml": "training.yaml",
        "training_configs/online/tiny.yaml": "online.yaml",
        "route/example_config.yaml": "router.yaml",
        "examples/scales.yaml": "coeval.yaml",
        "examples/pairwise.yaml": "pairwise.yaml",
    }.items():
        shutil.copy(ROOT / source, folder / name)
    (folder / "tfidf").mkdir()
    _save_tfidf(folder / "tfidf")
    (folder / "backbone").mkdir()
    model, tokenizer = tiny(folder / "backbone", "qwen2", layers=1, hidden_size=8)
    model.save_pretrained(folder / "qwen2")
    tokenizer.save_pretrained(folder / "qwen2")
    return folder


def _save_tfidf(folder: Path) -> None:
    make_tfidf(folder, [["a few words"]], hidden_size=2, ngrams=(1, 1), max_features=9, min_df=1)
    tokenizer = load_tokenizer(folder)
    model = P2LModel.create(
        folder, model_type="tfidf", head_type="bt", loss_type="bt", model_list=["ant", "bee"], tokenizer=tokenizer
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize("name", READERS)
def test_what_is_valid_is_read(valid: Path, name: str) -> None:
    READERS[name](valid / name)


def _fuzz(valid: Path, name: str, examples: int) -> None:
    content = (valid / name).read_bytes()
    outcomes: Counter[str] = Counter()

    @settings(fuzzing(examples), max_examples=examples)
    @given(mutations())
    def try_one(changes: list[tuple[str, float, float, bytes]]) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            target = Path(temporary) / name
            if READERS[name] is _model:
                shutil.copytree(valid / target.parent.name, target.parent)
            target.write_bytes(mutated(content, changes))
            outcomes[_outcome(lambda: READERS[name](target))] += 1

    try_one()
    print(f"{name}: {dict(outcomes)}")


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused_in_one_line(valid: Path, name: str) -> None:
    _fuzz(valid, name, 25)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_thousand_damaged_files_are_read_or_refused_in_one_line(valid: Path, name: str) -> None:
    _fuzz(valid, name, EXAMPLES or 1000)
