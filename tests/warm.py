"""Python commands in processes forked from one that has imported the heavy packages: those take most of a short run.

Of torch, transformers and DeepSpeed alone, 4 s of computing a start. Nothing of this repository is imported before the
fork: a command imports its own modules, and reads its flags, environment and folder, as one started from a shell does.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

__all__ = ["can_fork", "run_forked"]

_BIN = Path(sys.executable).parent
_HEAVY = ["torch", "deepspeed", "transformers.models.qwen2.modeling_qwen2", "pandas", "pyarrow.dataset", "scipy.stats"]
_HEAVY += ["pydantic", "yaml", "fastapi", "uvicorn", "httpx2"]


def can_fork(line: Sequence[str]) -> bool:
    """Whether a command line is `python -m MODULE ...`, `python SCRIPT ...` or one of DeepSpeed's launcher."""
    if line[0] == "deepspeed":
        return (_BIN / "deepspeed").is_file()
    return line[0] == sys.executable and len(line) > 1 and (line[1] == "-m" or line[1].endswith(".py"))


def run_forked(line: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run such a line to its end; what `subprocess.run` would return."""
    words = [str(_BIN / "deepspeed"), *line[1:]] if line[0] == "deepspeed" else list(line[1:])
    with tempfile.TemporaryDirectory() as folder:
        files = (Path(folder) / "stdout", Path(folder) / "stderr")
        arguments = (words, str(cwd), dict(environment), *map(str, files))
        process = _context().Process(target=_run, args=arguments)
        process.start()
        process.join()
        code = process.exitcode
        assert code is not None
        process.close()
        texts = [file.read_text(encoding="utf-8") if file.exists() else "" for file in files]
    return subprocess.CompletedProcess(list(line), code, *texts)


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_HEAVY)
    with pytest.MonkeyPatch.context() as environment:  # of the process that imports, if it does not run yet
        environment.setenv("OMP_NUM_THREADS", "1")
        environment.setenv("HF_HUB_OFFLINE", "1")
        forkserver.ensure_running()
    return context


def _run(words: Sequence[str], cwd: str, environment: Mapping[str, str], *outputs: str) -> None:
    for descriptor, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    multiprocessing.set_start_method(None, force=True)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    try:
        if words[0] == "-m":
            sys.argv, sys.path[:0] = list(words[1:]), [cwd]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[:0] = list(words), [str(Path(words[0]).resolve().parent)]
            runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out
