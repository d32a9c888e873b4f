"""Run the blocks of documentation pages as they are printed, in order, in an empty folder: `python -m tools.run_docs`.

All blocks of a page run in one shell, so that what one starts in the background the next ones can ask. `bash` blocks
run, `python` blocks run with `python`, and a `yaml` block that begins with `# NAME.yaml` is written to that file. A
block under the comment `<!-- not run: REASON -->` is passed over and listed with its reason; the commands in a comment
`<!-- run first: COMMANDS -->` run before what follows. The first command that fails ends the page.

The README starts with an empty folder. Other pages speak of votes and models that a reader has: they start with sample
votes (`votes`, `train`, `held_out`, `val` and `prompts`, as `.parquet` and `.jsonl`) and a model of them, made once
(`outputs/first`, `outputs/my-run`, `outputs/may`, `outputs/june`).

Programs are those on the PATH: run it in the environment that the page installs; lines that begin with `make install`
are passed over. The folder has copies of the
checkout's examples and configurations, and logs of lm-eval in `eval_logs`; `--keep DIR` keeps it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parents[1]
_COPIES = ("examples", "training_configs", "validation_sets", "benchmark", "constraints.txt")
_LOGS = Path("tests/p2l/votes/logs/lm_eval")  # what a reader has of an evaluation, as `eval_logs`
_FENCE = re.compile(
    r"^<!-- run first: (?P<first>.*?) -->$"
    r"|(?:^<!-- not run: (?P<reason>.*?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
_INPUTS = """set -euo pipefail
for kind in parquet jsonl; do
  p2l votes sample --made-up --output votes.$kind
  p2l votes split votes.$kind --by prompt --val 500 --train-output train.$kind --val-output held_out.$kind --quiet
  cp held_out.$kind val.$kind
  cp held_out.$kind prompts.$kind
done
p2l train --votes train.parquet --val held_out.parquet --size tiny --output outputs/first --quiet
for name in my-run may june; do cp -r outputs/first outputs/$name; done
"""
_MARK = "== run_docs block"
_END = "== run_docs end"  # of the shell; what it started in the background still holds the pipe


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, what it is, and why it is not run, if it is not."""

    page: str
    line: int
    language: str
    text: str
    reason: str

    @property
    def script(self) -> str | None:
        """The shell lines that run the block; None for one that shows something."""
        if self.language == "bash":
            return re.sub(r"^make install\b.*", "", self.text, flags=re.MULTILINE)
        if self.language == "python":
            return f"python - <<'END_OF_BLOCK'\n{self.text}END_OF_BLOCK\n"
        file = re.match(r"# (\S+\.ya?ml)\n", self.text)
        if self.language == "yaml" and file:
            return f"cat > {shlex.quote(file[1])} <<'END_OF_BLOCK'\n{self.text}END_OF_BLOCK\n"
        return None


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page.name,
            text.count("\n", 0, match.start("first" if match["first"] else "language")) + 1,
            match["language"] or "bash",
            match["text"] or f"{match['first']}\n",
            match["reason"] or "",
        )
        for match in _FENCE.finditer(text)
    ]


def runnable(page: Path) -> list[Block]:
    """Return the blocks of a page that are run, in order."""
    return [block for block in blocks(page) if block.script and not block.reason]


def run_page(page: Path, folder: Path) -> int:
    """Run a page's blocks in a folder; print each with its seconds; return the exit code of the shell.

    Seconds of a core leave out what goes on in the background.
    """
    to_run = runnable(page)
    lines = ["set -euo pipefail", f"trap 'echo; echo {_END}' EXIT"]
    for number, block in enumerate(to_run):
        lines += [_mark(number), block.script or ""]
    lines.append(_mark(len(to_run)))
    started = time.monotonic()
    with (folder / "run_docs.log").open("w", encoding="utf-8") as log:
        shell = subprocess.Popen(
            ["bash", "-c", "\n".join(lines)],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"},
        )
        try:
            current = _follow(shell, to_run, log)
            code = shell.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):  # nothing runs in the background
                os.killpg(shell.pid, signal.SIGKILL)
    for block in blocks(page):
        if block.reason:
            print(f"  not run   {block.page}:{block.line}: {block.reason}")
    if current < len(to_run):
        where = to_run[current]
        print(f"{where.page}:{where.line}: failed; run_docs.log, which --keep DIR keeps, ends with\n")
        print("\n".join((folder / "run_docs.log").read_text(encoding="utf-8").splitlines()[-20:]))
        return code or 1
    print(f"{page.name}: {len(to_run)} blocks in {time.monotonic() - started:.0f} s")
    return 0


def _mark(number: int) -> str:
    """Return the shell line that tells which block begins, and the ticks of a core that ended commands have taken."""
    ticks = "$(cut -d' ' -f16,17 /proc/$$/stat 2> /dev/null || true)"
    return f"printf '\\n{_MARK} {number} %s\\n' \"{ticks}\""  # what was printed before may not end its line


def _follow(shell: subprocess.Popen[str], to_run: list[Block], log: TextIO) -> int:
    """Copy the shell's output to the log until the last block has ended or the shell has; return the block it is in."""
    current, since, before = -1, time.monotonic(), 0.0
    for line in _lines(shell):
        log.write(line)
        log.flush()
        if line.startswith(_END):
            break
        if line.startswith(_MARK):
            number, *ticks = map(int, line.removeprefix(_MARK).split())
            busy = sum(ticks) / os.sysconf("SC_CLK_TCK")
            if current >= 0:
                block, seconds = to_run[current], time.monotonic() - since
                print(f"  {seconds:6.1f} s, {busy - before:6.1f} s of a core  {block.page}:{block.line}", flush=True)
            current, since, before = number, time.monotonic(), busy
            if current == len(to_run):
                break  # what still runs in the background holds the pipe open
    return current


def _lines(shell: subprocess.Popen[str]) -> Iterator[str]:
    assert shell.stdout is not None
    yield from shell.stdout


def main() -> int:
    """Run the pages named, or the README."""
    flags = argparse.ArgumentParser(prog="python -m tools.run_docs", description=__doc__.split("\n")[0])
    flags.add_argument("pages", nargs="*", type=Path, default=[ROOT / "README.md"], help="pages to run, in order")
    flags.add_argument("--keep", type=Path, metavar="DIR", help="run in this new folder, and keep it")
    arguments = flags.parse_args()
    codes = []
    with tempfile.TemporaryDirectory(prefix="p2l-docs-") as temporary:
        for page in arguments.pages:
            folder = arguments.keep or Path(temporary) / page.stem
            print(f"{page.name}, in {folder}", flush=True)
            if ROOT / "docs" in page.resolve().parents and runnable(page):
                shutil.copytree(_inputs(Path(temporary) / "inputs"), folder, dirs_exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            for name in _COPIES:
                if (ROOT / name).exists() and not (folder / name).exists():
                    _copy(ROOT / name, folder / name)
            if not (folder / "eval_logs").exists():
                _copy(ROOT / _LOGS, folder / "eval_logs")
            codes.append(run_page(page, folder))
    return max(codes)


def _inputs(folder: Path) -> Path:
    """Return the folder of what pages start with; it is made when the first page asks for it."""
    if not folder.exists():
        folder.mkdir()
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        subprocess.run(["bash", "-c", _INPUTS], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return folder


def _copy(source: Path, target: Path) -> None:
    """Copy a file or folder, without the runs that it may hold."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("runs", "__pycache__"))
    else:
        shutil.copy(source, target)


if __name__ == "__main__":
    sys.exit(main())
