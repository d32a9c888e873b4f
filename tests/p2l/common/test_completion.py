"""What bash, zsh and fish offer for half a line, asked of the shells themselves; those that are not there skip."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coeval.cli import COMMANDS as COEVAL
from p2l.cli import COMMANDS
from route.cli import COMMANDS as ROUTE
from tests.conftest import Command

PROGRAMS = {"p2l": ("p2l", COMMANDS), "p2l-route": ("route", ROUTE), "coeval": ("coeval", COEVAL)}
FILES = {"bash": "bash/{}", "zsh": "zsh/_{}", "fish": "fish/{}.fish"}
"""Of a program, where the shells look for them."""
BASH = """
{script}
COMP_WORDS=({words}); COMP_CWORD={place}
{function}
echo "${{COMPREPLY[@]}}"
"""
# compadd is told every match; what it is told of no match it adds is for the completion's own use (-O, -A, -D).
ZSH = r"""
fpath=({functions} $fpath); autoload -Uz compinit; compinit -u -D
compadd() {{
  if [[ ${{@[1,(i)(-|--)]}} != *-[OAD]* ]]; then
    typeset -a hits; builtin compadd -A hits "$@"; print -rl -- $hits >> {hits}
  fi
  builtin compadd "$@"
}}
complete-and-end() {{ zle complete-word; exit }}
zle -N complete-and-end; bindkey '^X' complete-and-end
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory, command: Command) -> Path:
    """A folder with the script of each program and shell."""
    folder = tmp_path_factory.mktemp("scripts")
    for program, (module, _) in PROGRAMS.items():
        for shell, file in FILES.items():
            done = command("python", "-m", f"{module}.cli", "completion", shell)
            assert done.returncode == 0, done.stderr
            path = folder / file.format(program)
            path.parent.mkdir(exist_ok=True)
            path.write_text(done.stdout, encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file of votes and a folder of models."""
    (tmp_path / "votes.parquet").touch()
    (tmp_path / "outputs").mkdir()
    return tmp_path


def in_bash(scripts: Path, line: str, folder: Path) -> list[str]:
    """What bash offers for the last word."""
    words = line.split() + [""] * line.endswith(" ")
    script = (scripts / FILES["bash"].format(words[0])).read_text(encoding="utf-8")
    function = re.findall(r"^complete .*-F (\w+)", script, re.MULTILINE)[0]
    typed = " ".join(word or "''" for word in words)
    text = BASH.format(script=script, words=typed, place=len(words) - 1, function=function)
    done = subprocess.run(["bash", "-c", text], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split()


def in_fish(scripts: Path, line: str, folder: Path) -> list[str]:
    """What fish offers: it lists a word and its meaning, with a tab between."""
    text = f"set -p fish_complete_path {scripts}/fish; complete -C '{line}'"
    # It completes only a program that it finds.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}
    done = subprocess.run(
        ["fish", "--no-config", "-c", text], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return [offer.split("\t")[0] for offer in done.stdout.splitlines()]


def in_zsh(scripts: Path, line: str, folder: Path) -> list[str]:
    """What zsh offers to one who types the line at a terminal and asks for more."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    hits = home / "hits"
    (home / ".zshrc").write_text(ZSH.format(functions=scripts / "zsh", hits=hits), encoding="utf-8")
    ours, theirs = os.openpty()
    environment = {**os.environ, "ZDOTDIR": str(home), "TERM": "dumb"}
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with subprocess.Popen(["zsh", "-d", "-i"], cwd=folder, env=environment, start_new_session=True, **streams):
        os.close(theirs)
        os.write(ours, f"{line}\x18".encode())
        with contextlib.suppress(OSError):  # which Linux answers when the shell has ended
            while os.read(ours, 4096):
                pass
    os.close(ours)
    return hits.read_text(encoding="utf-8").split() if hits.exists() else []


OFFERS = {
    "p2l lead": {"leaderboard"},
    "p2l votes sp": {"split"},
    "p2l train --vo": {"--votes"},
    "p2l train --votes vo": {"votes.parquet"},
    "p2l leaderboard --model ou": {"outputs"},
    "p2l train --size ti": {"tiny"},
    "p2l votes split votes.parquet --by ": {"prompt", "time"},
    "p2l online-train --publish": {"--publish", "--publish-keep", "--publish-minutes", "--publish-votes"},
    "p2l completion f": {"fish"},
    "p2l-route se": {"serve"},
    "coeval analyze pa": {"pairs", "pairs-leaderboard"},
}


@pytest.mark.parametrize("line", OFFERS)
@pytest.mark.parametrize("shell", FILES)
def test_a_shell_completes_commands_flags_files_and_words(shell: str, line: str, scripts: Path, folder: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    offers = {"bash": in_bash, "zsh": in_zsh, "fish": in_fish}[shell](scripts, line, folder)
    assert {offer.removesuffix("/") for offer in offers} == OFFERS[line]


@pytest.mark.parametrize("shell", FILES)
def test_a_script_has_every_command(shell: str, scripts: Path) -> None:
    for program, (_, commands) in PROGRAMS.items():
        text = (scripts / FILES[shell].format(program)).read_text(encoding="utf-8")
        assert all(re.search(rf"\b{name}\b", text) for name in commands)
