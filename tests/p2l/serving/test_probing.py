"""Tokenizers that would end the service are tried in a child process, and panics of the library are errors."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from p2l.commands.model import init_main
from p2l.common.errors import CheckpointError
from p2l.model.encoding import TokenizerFailedError
from p2l.model.model import P2LModel
from p2l.model.tokenizer import load_tokenizer
from p2l.serving import probing
from p2l.serving.probing import check_in_child
from p2l.serving.reload import load
from p2l.serving.settings import Settings
from tests.conftest import Command

DOUBLING = {
    "type": "Sequence",
    "normalizers": [{"type": "Replace", "pattern": {"String": "zq9"}, "content": "zq9zq9"} for _ in range(40)],
}
SLOW = {"type": "Split", "pattern": {"Regex": "(k+k+)+y"}, "behavior": "Isolated", "invert": False}
FOR_EVER = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{{ messages[0]['content'] }}"


@pytest.fixture(scope="module")
def sound(votes_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a family whose tokenizers are what their tokenizer.json says, normaliser and patterns included."""
    folder = tmp_path_factory.mktemp("sound")
    flags = "--model-type modernbert --vocab-size 300 --hidden-size 16 --layers 1 --heads 2 --max-positions 128 --quiet"
    init_main([*flags.split(), "--votes", str(votes_file), "--output", str(folder / "backbone")])
    encode = load_tokenizer(folder / "backbone")
    model = P2LModel.create(
        folder / "backbone",
        model_type="modernbert",
        head_type="rk",
        loss_type="grk",
        model_list=["ant", "bee"],
        tokenizer=encode,
    )
    model.save_pretrained(folder / "model")
    encode.save_pretrained(folder / "model")
    return folder / "model"


def changed(sound: Path, folder: Path, **keys: Any) -> Path:
    shutil.copytree(sound, folder)
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))
    return folder


def test_a_tokenizer_that_would_abort_the_service_is_refused(sound: Path, tmp_path: Path) -> None:
    folder = changed(sound, tmp_path / "model", normalizer=DOUBLING)
    with pytest.raises(CheckpointError, match=r"ends the process that uses it \(SIG.*take models from whom you trust"):
        load(Settings(model_path=str(folder), device="cpu"))


def test_a_pattern_that_gives_up_is_found_at_load_and_is_an_error_at_a_prompt(sound: Path, tmp_path: Path) -> None:
    folder = changed(sound, tmp_path / "model", pre_tokenizer=SLOW)
    with pytest.raises(CheckpointError, match="tokenizer failed on the prompt") as caught:
        load(Settings(model_path=str(folder), device="cpu"))
    assert "\n" not in str(caught.value)
    with pytest.raises(TokenizerFailedError, match="tokenizer failed on the prompt") as failure:
        load_tokenizer(folder).encode([["secret " + "k" * 3000]])
    assert "secret" not in str(failure.value)


def test_a_template_without_end_is_refused(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "_SECONDS", 6.0)
    folder = changed(sound, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(FOR_EVER)
    with pytest.raises(CheckpointError, match="takes longer than 6 s"):
        check_in_child(folder, None, None)


def test_what_was_tried_is_not_tried_again_by_the_next_worker(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = tmp_path / "control"
    control.mkdir()
    check_in_child(sound, None, control)
    monkeypatch.setattr(probing, "_SOUND", set())  # as in another process
    monkeypatch.setattr(probing, "_tried", lambda *_: "it was tried again")
    check_in_child(sound, None, control)
    changed(sound, tmp_path / "other", truncation=None, added=1)
    with pytest.raises(CheckpointError, match="tried again"):
        check_in_child(tmp_path / "other", None, control)
    check_in_child(tmp_path, None, control)  # a folder without a tokenizer of the library needs no child


@pytest.mark.parametrize(
    "words",
    [
        [str(Path(sys.executable).parent / "p2l"), "leaderboard", "hello", "--model"],
        pytest.param(["python", "-m", "route.openai_server", "--router-model-name"], marks=pytest.mark.slow),
    ],
)
def test_whoever_opens_a_model_of_others_tries_it(
    sound: Path, tmp_path: Path, command: Command, words: list[str]
) -> None:
    folder = changed(sound, tmp_path / "model", normalizer=DOUBLING)
    config = tmp_path / "router.yaml"
    config.write_text("model_configs: {small: {name: s, type: mock, cost: 1}}\n", encoding="utf-8")
    more = ["-c", config, "--api-key", "k"] if words[0] == "python" else []
    done = command(*words, folder, *more)
    assert done.returncode == 2, (done.returncode, done.stderr)
    [line] = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
    assert "ends the process that uses it" in line
    assert "Traceback" not in done.stderr
