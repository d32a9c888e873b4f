from __future__ import annotations

from pathlib import Path

import pytest

from coeval.calling.caller import Cache, cache_file, key_of
from coeval.calling.calls import Reply
from tests.coeval.calling.calling_helpers import fail
from tests.conftest import Command

ANSWER = Reply("Good morning. ☕", 3, 4, 0.0, 0.25, cached=True)
KEY = key_of("openai", "http://x", {"model": "ant", "messages": []}, 0)


def test_two_runs_share_one_file(tmp_path: Path) -> None:
    first, second = (Cache(tmp_path / "deep" / "cache.sqlite", fail) for _ in range(2))
    assert second.get(KEY) is None
    first.put(KEY, ANSWER)
    assert second.get(KEY) == ANSWER
    first.close()
    second.close()


def test_a_key_is_that_of_who_where_what_and_when() -> None:
    request = {"model": "ant", "messages": [{"role": "user", "content": "\ud800"}]}
    keys = {
        key_of(interface, url, request, attempt)
        for interface in ("openai", "groq")
        for url in ("http://x", "http://y")
        for attempt in (0, 1)
    }
    assert len(keys) == 8


def test_a_file_that_is_no_cache_is_left_alone_and_named_once(tmp_path: Path) -> None:
    path, said = tmp_path / "cache.sqlite", list[str]()
    path.write_text("something else entirely, and long enough to be looked at as a header of a file", encoding="utf-8")
    cache = Cache(path, said.append)
    cache.put(KEY, ANSWER)
    assert cache.get(KEY) is None
    cache.close()
    assert len(said) == 1
    assert str(path) in said[0]
    assert path.read_text(encoding="utf-8").startswith("something else")


def test_an_answer_that_no_file_can_hold_is_not_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache.sqlite", fail)
    cache.put(KEY, Reply("\ud800", 1, 1, 0.0, 0.1))
    assert cache.get(KEY) is None
    cache.put(KEY, ANSWER)
    assert cache.get(KEY) == ANSWER
    cache.close()


def test_the_file_lies_beside_the_runs_or_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COEVAL_CACHE", raising=False)
    assert cache_file(tmp_path) == tmp_path / "coeval-cache.sqlite"
    monkeypatch.setenv("COEVAL_CACHE", str(tmp_path / "elsewhere"))
    assert cache_file(tmp_path) == tmp_path / "elsewhere" / "responses.sqlite"


def test_what_was_kept_survives_a_kill(tmp_path: Path, command: Command) -> None:
    path = tmp_path / "cache.sqlite"
    words = (
        "import os, pathlib; from coeval.calling.caller import Cache; from coeval.calling.calls import Reply;"
        f"Cache(pathlib.Path({str(path)!r}), print).put(b'key', Reply('Hi.', 1, 1, 0.0, 0.1));"
        "os.kill(os.getpid(), 9)"
    )
    assert command("python", "-c", words).returncode == -9
    cache = Cache(path, fail)
    assert cache.get(b"key") == Reply("Hi.", 1, 1, 0.0, 0.1, cached=True)
    cache.close()
