"""Shared by every command: help with defaults, exit codes, progress bars, types of flags."""

from __future__ import annotations

import argparse
import difflib
import errno
import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from p2l.common.display import printable, printable_output
from p2l.common.errors import ConfigError, InputError, P2LError, PeerError

if TYPE_CHECKING:
    from tqdm import tqdm


T = TypeVar("T")
_EXTRAS = {
    **dict.fromkeys(("pandas", "pyarrow", "scipy", "threadpoolctl", "jinja2", "markupsafe"), "p2l[data]"),
    **dict.fromkeys(("deepspeed", "datasets"), "p2l[train]"),
    **dict.fromkeys(("torch", "transformers", "safetensors", "fastapi", "prometheus_client"), "p2l[serve]"),
    **dict.fromkeys(("aiohttp", "anyio", "starlette", "httpx2", "uvicorn"), "p2l[route]"),
    "cvxpy": "p2l[route,lp]",
    "opentelemetry": "p2l[route,traces]",
    "matplotlib": "p2l[plot]",
}
_OUTSIDE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)  # no mistake of the program
_PATIENCE = 10.0  # seconds, more than the processes of a launch are apart


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Show a default only where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or not action.option_strings:
            return action.help
        return super()._get_help_string(action)


def parser(prog: str, description: str) -> argparse.ArgumentParser:
    """Return an argument parser whose help names each default; unknown flags exit with 2."""
    return argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=_HelpFormatter, allow_abbrev=False
    )


def add_command(commands: Any, name: str, about: str) -> argparse.ArgumentParser:
    """Add a subcommand with the form of `parser` to what `add_subparsers` returned."""
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=about, description=about, formatter_class=_HelpFormatter, allow_abbrev=False
    )
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
        print(f"error: this needs {package}, which is not installed; pip install '{_EXTRAS[package]}'", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    except OSError as error:
        code = _lost(error)
    return code


def _lost(error: OSError) -> int:
    """Return the exit code where output was lost; raise again what comes from inside the program."""
    if isinstance(error, BrokenPipeError):  # the reader (`| head`) left; what it wanted has been written
        code = 0
    elif error.errno in _OUTSIDE:
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
) -> tqdm[Any]:
    """Return a progress bar on stderr, silent with `quiet` or when stderr is not a terminal."""
    from tqdm import tqdm

    disable = True if quiet else None  # None: tqdm itself looks whether stderr is a terminal
    return tqdm(items, desc=description, total=total, unit=unit, disable=disable, leave=False, dynamic_ncols=True)


def print_note(text: str) -> None:
    """Print a line to stderr, at once."""
    print(printable(text), file=sys.stderr, flush=True)


def positive(text: str) -> int:
    """Parse a whole number of at least 1, for `type=` of a flag."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def whole(text: str) -> int:
    """Parse a whole number of at least 0, for `type=` of a flag."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {number}")
    return number


def amount(text: str) -> float:
    """Parse a finite number of at least 0, for `type=` of a flag."""
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, got {text}")
    return number


def above_zero(text: str) -> float:
    """Parse a finite number above 0, for `type=` of a flag."""
    number = amount(text)
    if not number:
        raise argparse.ArgumentTypeError("must be above 0")
    return number


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return a hint such as ` (did you mean 'learning_rate'?)`, or nothing when no candidate is near."""
    matches = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.5)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


_SHOWN, _MOST_SHOWN = 40, 40


def listed(names: Sequence[str]) -> str:
    """Return names of a file, as a message of one line lists them: at most 40, each cut after 40 characters."""
    short = [printable(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}...") for name in names[:_MOST_SHOWN]]
    return ", ".join([*short, "..."] if len(names) > _MOST_SHOWN else short)


def choose(kind: str, name: str, table: Mapping[str, T]) -> T:
    """Return the entry of this name; ConfigError, with the nearest name and all of them, if there is none."""
    if name not in table:
        raise ConfigError(f"{kind} {name!r} is unknown{nearest(name, table)}; use one of {', '.join(table)}")
    return table[name]


def _report(error: P2LError) -> None:
    # The processes of one launch make the same mistake; one line is enough. If the first one makes it too, the launcher
    # ends this one while it waits; if not, this one has to speak.
    if os.environ.get("RANK", "0") != "0" or isinstance(error, PeerError):
        time.sleep(_PATIENCE)
    print(f"error: {printable(str(error))}", file=sys.stderr)


# Flags of the commands that run models over rows: which model it is, and how it computes.


def add_model_flags(flags: argparse.ArgumentParser) -> None:
    """Add them to a parser, in a group of their own, and what each such command has besides."""
    flags.add_argument("--quiet", action="store_true", help="no progress bar and no notes")
    flags.add_argument("--local_rank", "--local-rank", type=int, default=0, help="set by the launcher")
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
    group.add_argument("--dtype", help="float32 or bfloat16 (default: bfloat16 on a GPU that knows it, else float32)")
