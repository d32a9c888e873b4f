"""A model of a stranger is tried in a child process before this one opens its tokenizer.

What ends a process cannot be caught in it: a normaliser that doubles a letter forty times asks for a terabyte, and the
tokenizers library aborts. A template may loop for days. So a child with little memory and time loads the tokenizer and
reads prompts of one, two and fifty turns, empty and long ones, in many scripts, and runs of whatever the patterns of
tokenizer.json name. Weights need no child: only numbers are read of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from p2l.common.errors import CheckpointError, P2LError

_SECONDS = 120.0  # on a busy machine; alone the child takes two
_MEMORY_BYTES = 2 * 2**30  # beyond what its modules take
_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json", "special_tokens_map.json")
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_LONG_CHARACTERS = 50_000
_RUN_CHARACTERS = 3_000  # more than the steps back that a pattern may take
_MOST_RUNS = 200
_MANY_TURNS = 50
_SOUND: set[str] = set()
"""Digests of what this process has tried: models that follow each other mostly have the same tokenizer."""
_SCRIPTS = (
    *("Grüße, naïve façade", "Ελληνικά και Кириллица", "العربية ועברית", "हिन्दी বাংলা தமிழ்", "ไทย ភាសាខ្មែរ"),
    *(
        "漢字かな交じり文 한국어",
        "👩‍👩‍👧‍👦🏳️‍🌈 e\u0301\u0323",
        "\u202eabc\u202c \u200b\ufeff",
        "\x00\x07\t\r\n\u2028",
        "\ufffd\U0010ffff",
    ),
)


def check_model(model: str | Path, max_length: int | None = None, control: Path | None = None) -> None:
    """Try the tokenizer of a model, a folder or its name on the hub, as `check_in_child` does."""
    from p2l.model.checkpoint import local_folder
    from p2l.public import PUBLIC

    if str(model) != PUBLIC:  # which is part of this package
        check_in_child(local_folder(model), max_length, control)


def check_in_child(folder: Path, max_length: int | None, control: Path | None) -> None:
    """Raise CheckpointError where the tokenizer of a folder ends a child process, or fails in it on a prompt.

    What was tried once is remembered in the folder `control`, which the workers of a service share.
    """
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        return  # the words of our own models are numbers and texts
    try:
        digest = _digest(folder, max_length)
    except OSError as error:
        raise CheckpointError(f"{folder}: its tokenizer cannot be read: {error.strerror}") from error
    mark = None if control is None else control / f"tried-{digest}"
    if digest in _SOUND or (mark is not None and mark.exists()):
        return
    problem = _tried(folder, max_length)
    if problem is not None:
        raise CheckpointError(f"{folder}: {problem}; take models from whom you trust")
    _SOUND.add(digest)
    if mark is not None:
        mark.touch()


def _digest(folder: Path, max_length: int | None) -> str:
    digest = hashlib.sha256(repr(max_length).encode())
    for name in sorted({*_FILES, *_VOCABULARIES}):
        if (folder / name).is_file():
            digest.update(name.encode() + hashlib.sha256((folder / name).read_bytes()).digest())
    return digest.hexdigest()


def _tried(folder: Path, max_length: int | None) -> str | None:
    """Return what is wrong with the tokenizer of a folder, after a child has tried it."""
    code = "from p2l.serving.probing import try_here; try_here()"
    words = [sys.executable, "-c", code, str(folder.absolute()), str(max_length or 0)]
    try:
        child = subprocess.run(words, capture_output=True, timeout=_SECONDS, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        return f"its tokenizer or chat template takes longer than {_SECONDS:.0f} s for a few prompts"
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        return f"its tokenizer ends the process that uses it ({name}), for lack of memory perhaps"
    with contextlib.suppress(ValueError):
        problem: str | None = json.loads(child.stdout)
        return problem
    return f"its tokenizer ends the process that uses it (exit code {child.returncode})"


def _limit_memory() -> None:
    """Let this process take little more memory than it has; a system without such limits has the time alone."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + _MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _prompts(folder: Path) -> Iterator[list[str]]:
    yield ["What is a bee?"]
    yield ["What is a bee?", "And a wasp?"]
    yield [f"turn {number}" for number in range(_MANY_TURNS)]
    yield [""]
    yield ["", ""]
    yield list(_SCRIPTS)
    yield ["word " * (_LONG_CHARACTERS // 5)]
    yield ["".join(_SCRIPTS) * (_LONG_CHARACTERS // 100)]
    for text in _patterns(folder):
        yield [(text * _RUN_CHARACTERS)[:_RUN_CHARACTERS]]


def _patterns(folder: Path) -> list[str]:
    """Return letters and texts that the patterns of a tokenizer.json look for, and letters that any may look for."""
    texts = dict.fromkeys("ax0 \n.-_é漢")

    def collect(part: Any) -> None:
        if isinstance(part, list):
            for item in part:
                collect(item)
        elif isinstance(part, dict):
            for name, item in part.items():
                if name == "Regex" and isinstance(item, str):
                    texts.update(dict.fromkeys(re.sub(r"\\.|[\[\](){}|?*+^$]", "", item)))
                elif name in ("String", "content", "prepend") and isinstance(item, str) and item:
                    texts[item] = None
                elif name not in ("model", "added_tokens"):
                    collect(item)

    with contextlib.suppress(OSError, ValueError, RecursionError):
        collect(json.loads((folder / "tokenizer.json").read_text("utf-8")))
    return list(texts)[:_MOST_RUNS]


def try_here() -> None:
    """Try the folder and the length of `sys.argv` in this process, and print as JSON what is wrong, or null."""
    folder, max_length = Path(sys.argv[1]), int(sys.argv[2]) or None
    from p2l.model.encoding import TokenizerFailedError
    from p2l.model.tokenizer import load_tokenizer

    _limit_memory()
    problem = None
    try:
        tokenizer = load_tokenizer(folder, max_length=max_length, cls_token_if_none=None, pad_token_if_none=None)
        for prompt in _prompts(folder):
            tokenizer.encode([prompt])
    except TokenizerFailedError as error:
        problem = str(error)
    except P2LError:
        pass  # the folder is refused by whoever loads it, with all that is known of it
    except MemoryError:
        problem = "its tokenizer or chat template takes too much memory"
    except Exception as error:
        problem = f"its tokenizer fails on a prompt ({type(error).__name__})"
    print(json.dumps(problem))
