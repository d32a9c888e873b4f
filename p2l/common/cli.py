"""Shared by every command: help with defaults, exit codes, progress bars, types of flags."""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib.util
import io
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from p2l.common.display import printable, printable_output
from p2l.common.errors import ConfigError, InputError, P2LError, PeerError
from p2l.common.program import Parser

if TYPE_CHECKING:
    from tqdm import tqdm


T = TypeVar("T")
_Flags = argparse.ArgumentParser | argparse._ArgumentGroup
N = TypeVar("N", int, float)
_EXTRAS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("pandas", "pyarrow", "scipy", "threadpoolctl"), ("data", "train", "coeval")),
    **dict.fromkeys(("jinja2", "markupsafe"), ("data", "route")),
    **dict.fromkeys(("deepspeed", "tokenizers", "ninja"), ("train",)),
    "datasets": ("hub", "train"),
    **dict.fromkeys(("torch", "transformers", "safetensors", "huggingface_hub"), ("serve", "train", "huggingface")),
    **dict.fromkeys(("starlette", "uvicorn"), ("route", "serve", "coeval")),
    **dict.fromkeys(("httpx2", "prometheus_client"), ("route", "serve")),
    **dict.fromkeys(("aiohttp", "anyio"), ("route", "coeval")),
    "fastapi": ("serve",),
    "xlsxwriter": ("data", "coeval"),
    "openvino": ("cpu",),
    "cvxpy": ("route,lp",),
    "opentelemetry": ("route,traces",),
    "matplotlib": ("plot",),
    "wandb": ("wandb",),
}
"""Package: the extras that bring it; the first unless the command is one of another."""
_COMMANDS_OF = (
    ("data", tuple(f"p2l.online_training.{name}." for name in ("reorder", "timestamps"))),
    ("data", tuple(f"p2l.online_training.{name}." for name in ("geometric_buffer", "replay_buffer"))),
    ("data,plot", ("p2l.online_training.visualize.",)),
    ("train", ("p2l.train.", "p2l.training.", "p2l.online_training.", "p2l.demo.", "p2l.commands.model.")),
    ("train", ("p2l.commands.scaling.",)),
    ("huggingface", ("coeval.",)),
    ("coeval", ("coeval.",)),
    ("route", ("route.",)),
    ("serve", ("p2l.",)),
)
"""Extras of commands: how the names of their modules begin, each with a dot behind it; the first that fits counts."""
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)  # no mistake of the program
_PATIENCE_SECONDS = 10.0  # more than the processes of a launch are apart


def parser(prog: str, description: str, *, examples: Sequence[str] = ()) -> Parser:
    """Return an argument parser whose help starts with examples and names each default; unknown flags exit with 2.

    The examples are by default the first two of this command in the file `examples.txt` of its package.
    """
    return Parser(prog=prog, description=description, examples=examples)


def add_command(commands: Any, name: str, about: str, *, examples: Sequence[str] = ()) -> Parser:
    """Add a subcommand with the form of `parser` to what `add_subparsers` returned."""
    command: Parser = commands.add_parser(name, help=about, description=about, examples=examples)
    return command


def run(main: Callable[[Sequence[str] | None], int | None], argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command's `main` and exit: 0 on success, 2 with one line on stderr for input that cannot be used.

    Letters that the encoding of stdout lacks are written as escapes, and controls in texts of others are not (see
    `p2l.common.display`).
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    with printable_output():
        sys.exit(_exit_code(main, argv))


def _exit_code(main: Callable[[Sequence[str] | None], int | None], argv: Sequence[str] | None) -> int:
    try:
        code = main(argv) or 0
        sys.stdout.flush()
    except InputError as error:
        _report(error)
        code = 2
    except P2LError as error:
        _report(error)
        code = 1
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        install = f"pip install 'p2l[{_extra_of(package, error.__traceback__)}]'"
        # Without the constraints pip takes the newest torch, with gigabytes of CUDA.
        hint = f"{install} (with the constraints of docs/start/install.md)"
        print(f"error: this needs {package}, which is not installed; {hint}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except OSError as error:
        code = _exit_code_of(error)
    return code


def need(*packages: str) -> None:
    """Raise ModuleNotFoundError for the first of the packages that is not installed, before any work is done."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def _extra_of(package: str, raised: TracebackType | None) -> str:
    """Return the extra that brings a package, of several the one that brings all that the command needs."""
    frames = [frame.f_globals for frame, _ in traceback.walk_tb(raised)]
    # A module that is run as a program calls itself __main__; its specification has its name.
    modules = [str(names["__spec__"].name if names.get("__spec__") else names.get("__name__", "")) for names in frames]
    extras = _EXTRAS[package]
    for extra, prefixes in _COMMANDS_OF:
        if not {*extra.split(",")}.isdisjoint(extras) and any(f"{module}.".startswith(prefixes) for module in modules):
            return extra
    return extras[0]


def _exit_code_of(error: OSError) -> int:
    """Return the exit code where output was lost; raise again what comes from inside the program."""
    if isinstance(error, BrokenPipeError):  # the reader (`| head`) left; what it wanted has been written
        code = 0
    elif error.errno in _DISK_ERRORS:
        print(f"error: {error.filename or 'the output'}: {error.strerror}", file=sys.stderr)
        code = 1
    else:
        raise error
    try:
        sys.stdout.flush()
    except OSError:  # the end of the process would try it once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def progress(
    items: Iterable[Any] | None = None,
    *,
    description: str,
    total: int | None = None,
    unit: str = "it",
    quiet: bool = False,
    form: str | None = None,
) -> tqdm[Any]:
    """Return a progress bar on stderr, silent with `quiet` or when stderr is not a terminal; `form` is tqdm's."""
    from tqdm import tqdm

    return tqdm(
        items,
        desc=description,
        total=total,
        unit=unit,
        disable=True if quiet else None,  # None: tqdm itself looks whether stderr is a terminal
        leave=False,
        dynamic_ncols=True,
        bar_format=form,
    )


def print_note(text: str) -> None:
    """Print a line to stderr, at once."""
    print(printable(text), file=sys.stderr, flush=True)


def number_of(text: str, kind: Callable[[str], N], is_allowed: Callable[[N], bool], expected: str) -> N:
    """Return the number that a flag's value stands for; raise ArgumentTypeError, with what is expected, for others."""
    try:
        number = kind(text)
    except ValueError:  # argparse would name the function that parses
        pass
    else:
        if is_allowed(number):
            return number
    raise argparse.ArgumentTypeError(f"must be {expected}, got {text!r}")


def positive(text: str) -> int:
    """Parse a whole number of at least 1, for `type=` of a flag."""
    return number_of(text, int, lambda number: number >= 1, "a whole number of at least 1")


def whole(text: str) -> int:
    """Parse a whole number of at least 0, for `type=` of a flag."""
    return number_of(text, int, lambda number: number >= 0, "a whole number of at least 0")


def amount(text: str) -> float:
    """Parse a finite number of at least 0, for `type=` of a flag."""
    return number_of(text, float, lambda number: 0 <= number < float("inf"), "a number of at least 0")


def above_zero(text: str) -> float:
    """Parse a finite number above 0, for `type=` of a flag."""
    return number_of(text, float, lambda number: 0 < number < float("inf"), "a number above 0")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 vote`, `2,500 votes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def not_votes(number: int) -> str:
    """Return how many rows were left out of votes, in words."""
    return "1 row that is not a vote" if number == 1 else f"{number:,} rows that are not votes"


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return a hint such as ` (did you mean 'learning_rate'?)`, or nothing when no candidate is near."""
    match = nearest_of(word, candidates)
    return "" if match is None else f" (did you mean {match!r}?)"


def nearest_of(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that a misspelt word is likely to mean; None when no candidate is near."""
    return next(iter(difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.5)), None)


_MAX_NAME_CHARS, _MAX_NAMES = 40, 40


def listed(names: Sequence[str]) -> str:
    """Return names of a file, as a message of one line lists them: at most 40, each cut after 40 characters."""
    short = [
        printable(name if len(name) <= _MAX_NAME_CHARS else f"{name[:_MAX_NAME_CHARS]}...")
        for name in names[:_MAX_NAMES]
    ]
    return ", ".join([*short, "..."] if len(names) > _MAX_NAMES else short)


def choose(kind: str, name: str, table: Mapping[str, T]) -> T:
    """Return the entry of this name; ConfigError, with the nearest name and all of them, if there is none."""
    if name not in table:
        raise ConfigError(f"{kind} {name!r} is unknown{nearest(name, table)}; use one of {', '.join(table)}")
    return table[name]


def _report(error: P2LError) -> None:
    # The processes of one launch make the same mistake; one line is enough. If the first one makes it too, the launcher
    # ends this one while it waits; if not, this one has to speak.
    if os.environ.get("RANK", "0") != "0" or isinstance(error, PeerError):
        time.sleep(_PATIENCE_SECONDS)
    for message in error.messages:
        print(f"error: {printable(message)}", file=sys.stderr)


# Flags that many commands share.


def add_quiet(flags: _Flags, without: str = "no progress bar") -> None:
    """Add --quiet, whose help says what a command leaves out with it."""
    flags.add_argument("--quiet", action="store_true", help=without)


def add_drop_bad(flags: _Flags) -> None:
    """Add --drop-bad, for commands that read votes."""
    flags.add_argument("--drop-bad", action="store_true", help="leave out rows that are not votes, and count them")


def add_dataset_split(flags: _Flags) -> None:
    """Add --dataset-split, for commands that read data sets."""
    flags.add_argument(
        "--dataset-split", default="train", metavar="NAME", help="which split of a data set with several"
    )


def add_local_rank(flags: Parser) -> None:
    """Add --local-rank, which DeepSpeed's launcher sets, and which no person types."""
    flags.add_argument("--local-rank", type=int, default=0, help="set by the launcher")
    flags.hide_rare("--local-rank")


# Flags of the commands that run models over rows: which model it is, and how it computes.

MODEL_FLAG = ("--model", "--model-path", "--model-repo", "--checkpoint")
"""The flag of a trained model in every command, and the spellings of earlier versions, which help leaves out."""


def add_model_flags(flags: Parser) -> None:
    """Add the flags of how a model computes, in a group of their own, `--quiet` and the launcher's `--local-rank`."""
    add_quiet(flags, "no progress bar and no notes")
    add_local_rank(flags)
    group = flags.add_argument_group("model")
    group.add_argument(
        "--model-type", "-mt", metavar="TYPE", help="qwen2, llama, ... (default: as the checkpoint says)"
    )
    group.add_argument("--head-type", "-ht", metavar="TYPE", help="bt, rk or ba (default: as the checkpoint says)")
    group.add_argument("--loss-type", "-lt", metavar="TYPE", help="the likelihood (default: as the checkpoint says)")
    group.add_argument(
        "--batch-size", "-bs", type=positive, metavar="N", help="most prompts per forward pass (default: the engine's)"
    )
    group.add_argument(
        "--max-length", type=positive, metavar="N", help="tokens per prompt (default: the length of training)"
    )
    group.add_argument("--device", help="cpu, cuda or cuda:N (default: a GPU if there is one)")
    group.add_argument(
        "--dtype", help="float32 or bfloat16 (default: bfloat16 on a GPU that supports it, else float32)"
    )
