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
Flags = argparse.ArgumentParser | argparse._ArgumentGroup
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


def need_to_read() -> None:
    """Raise ModuleNotFoundError where nothing is installed that reads prompts: torch, or OpenVINO for readers."""
    if importlib.util.find_spec("openvino") is None:
        need("torch")


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


# Flags that many commands share: one name, type and default each; the help says what a command does with it.


def add_quiet(flags: Flags, without: str = "no progress bar") -> None:
    """Add --quiet, whose help says what a command leaves out with it."""
    flags.add_argument("--quiet", action="store_true", help=without)


def add_config(flags: Flags, about: str, *short: str, required: bool = False) -> None:
    """Add --config, a configuration in YAML."""
    flags.add_argument("--config", *short, required=required, metavar="FILE", help=about)


def add_votes(flags: Flags, about: str, *, required: bool = False) -> None:
    """Add --votes, votes to read."""
    flags.add_argument("--votes", required=required, metavar="FILE", help=about)


def add_vote_count(flags: Flags, about: str, *, default: int) -> None:
    """Add --votes of commands that make votes: how many."""
    flags.add_argument("--votes", type=positive, default=default, metavar="N", help=about)


def add_drop_bad(flags: Flags) -> None:
    """Add --drop-bad, for commands that read votes."""
    flags.add_argument("--drop-bad", action="store_true", help="leave out rows that are not votes, and count them")


def add_dataset_split(flags: Flags, *short: str) -> None:
    """Add --dataset-split, for commands that read data sets."""
    flags.add_argument(
        "--dataset-split", *short, default="train", metavar="NAME", help="which split of a data set with several"
    )


def add_label_list(flags: Flags, name: str) -> None:
    """Add the names of models that votes refer to by number, under `name`: commands differ in what they call it."""
    about = "JSON list of names that a labels column refers to, for votes without names"
    flags.add_argument(name, metavar="FILE", help=about)


def add_prompts(flags: Flags, about: str, *, required: bool = False) -> None:
    """Add --prompts, a file with a column `prompt`."""
    flags.add_argument("--prompts", required=required, metavar="FILE", help=about)


def add_limit(flags: Flags, about: str, *, default: int | None = None) -> None:
    """Add --limit, a bound on the rows that are read."""
    flags.add_argument("--limit", type=positive, default=default, metavar="N", help=about)


def add_stream_batch_size(flags: Flags, about: str) -> None:
    """Add --batch-size of commands about a stream of votes: the global batch of online training."""
    flags.add_argument("--batch-size", type=positive, default=512, metavar="N", help=about)


def add_likelihood(flags: Flags, about: str) -> None:
    """Add --likelihood, by name."""
    flags.add_argument("--likelihood", metavar="NAME", help=about)


def add_control(flags: Flags, purpose: str, more: str) -> None:
    """Add --control: `purpose` says what is fitted beside it, `more` what else there is to say."""
    flags.add_argument(
        "--control",
        action="append",
        metavar="NAMES",
        help=f"fit what else decides votes together with {purpose}: side (who was shown first), length, format "
        "(headers, lists, bold, code), a column of numbers for model_a, columns NAME_a and NAME_b, or a column of text "
        f"such as the judge; several with commas{more}",
    )


def add_encoder(flags: Flags, about: str) -> None:
    """Add --encoder, a sentence encoder."""
    flags.add_argument("--encoder", metavar="DIR", help=about)


def add_backbone(flags: Flags, about: str) -> None:
    """Add --backbone, a text model."""
    flags.add_argument("--backbone", metavar="DIR", help=about)


def add_level(flags: Flags) -> None:
    """Add --level, of intervals."""
    flags.add_argument("--level", type=float, default=0.95, metavar="P", help="coverage of each interval")


def add_seed(flags: Flags, about: str, *, default: int = 0) -> None:
    """Add --seed, whose help says of what."""
    flags.add_argument("--seed", type=whole, default=default, metavar="N", help=about)


def add_idle(flags: Flags, about: str) -> None:
    """Add --stop-when-idle, of commands that follow a stream of votes."""
    flags.add_argument("--stop-when-idle", type=amount, metavar="SECONDS", help=about)


def add_output(
    flags: Flags, about: str, *, metavar: str = "FILE", required: bool = False, default: str | None = None
) -> None:
    """Add --output, the file or folder that a command writes."""
    flags.add_argument("--output", required=required, default=default, metavar=metavar, help=about)


def add_html(
    flags: Flags,
    about: str = "also write a page (.html), which opens offline",
    *,
    metavar: str = "FILE",
    earlier: Sequence[str] = ("--report",),
) -> None:
    """Add --html, a page; `earlier` are spellings of earlier versions, which help leaves out."""
    flags.add_argument("--html", *earlier, metavar=metavar, help=about)


def add_plot(flags: Flags, about: str) -> None:
    """Add --plot, a picture."""
    flags.add_argument("--plot", metavar="FILE", help=f"{about} (.png, .svg, .pdf)")


# Flags of training, offline and online.


def add_local_rank(flags: Parser) -> None:
    """Add --local-rank, which DeepSpeed's launcher sets, and which no person types."""
    flags.add_argument("--local-rank", type=int, default=0, help="set by the launcher")
    flags.hide_rare("--local-rank")


def add_checkpoint(flags: Flags, about: str) -> None:
    """Add --model, earlier --checkpoint: what training goes on from."""
    flags.add_argument("--model", "--checkpoint", dest="checkpoint", metavar="DIR", help=about)


def add_training_flags(
    flags: Parser, *, eval_steps: int | None, steps_note: str, no_eval_note: str, save_note: str
) -> None:
    """Add what both ways of training take; notes say what differs, `eval_steps` is the default."""
    flags.add_argument("--push-to-hf", action="store_true", help="push the result to the configuration's repo_id")
    flags.add_argument(
        "--eval-steps",
        type=positive,
        default=eval_steps,
        metavar="N",
        help=f"validate after every N steps{steps_note}",
    )
    flags.add_argument(
        "--no-eval", action="store_true", help=f"do not validate: val_data_path is not needed{no_eval_note}"
    )
    flags.add_argument(
        "--save-steps",
        type=int,
        metavar="N",
        help=f"save a checkpoint after every N steps; -1: only at the end ({save_note})",
    )
    add_quiet(flags, "no progress bar and no notes")
    add_local_rank(flags)


# Flags of the commands that run models over rows: which model it is, and how it computes.


def add_model_flag(
    flags: Flags,
    about: str,
    *short: str,
    dest: str | None = None,
    metavar: str = "DIR",
    required: bool = False,
) -> None:
    """Add --model, a trained model; earlier versions called it --model-path, --model-repo and --checkpoint."""
    names = ("--model", "--model-path", "--model-repo", "--checkpoint", *short)
    flags.add_argument(*names, dest=dest, metavar=metavar, required=required, help=about)


def add_device(flags: Flags) -> None:
    """Add --device."""
    flags.add_argument("--device", help="cpu, cuda or cuda:N (default: a GPU if there is one)")


def add_kind_flags(flags: Flags) -> None:
    """Add what a checkpoint says of itself, where it says nothing; the length of prompts, and the device."""
    flags.add_argument(
        "--model-type",
        "-mt",
        metavar="TYPE",
        help="qwen2, llama, ... (default: as the checkpoint says, as with the next two)",
    )
    flags.add_argument("--head-type", "-ht", metavar="TYPE", help="bt, rk or ba")
    flags.add_argument("--loss-type", "-lt", metavar="TYPE", help="the likelihood that the model was trained with")
    flags.add_argument(
        "--max-length", type=positive, metavar="N", help="tokens per prompt (default: the length of training)"
    )
    add_device(flags)


def add_inference_flags(flags: Parser) -> None:
    """Add the flags of how a model computes, in a group of their own, `--quiet` and the launcher's `--local-rank`."""
    add_quiet(flags, "no progress bar and no notes")
    add_local_rank(flags)
    group = flags.add_argument_group("model")
    add_kind_flags(group)
    group.add_argument(
        "--batch-size", "-bs", type=positive, metavar="N", help="most prompts per forward pass (default: the engine's)"
    )
    group.add_argument(
        "--dtype", help="float32 or bfloat16 (default: bfloat16 on a GPU that supports it, else float32)"
    )


def add_results_flags(flags: Flags, *, folder: str, restart: str) -> None:
    """Add --output-dir and --restart, of commands that resume what was stopped."""
    flags.add_argument("--output-dir", "-od", default="outputs", metavar="DIR", help=folder)
    flags.add_argument("--restart", action="store_true", help=restart)


# Flags of servers.


def add_server_flags(flags: Flags, *, workers: str, max_body_mb: float) -> None:
    """Add the processes of a service and its largest request; `p2l.common.access` has the address."""
    flags.add_argument("--workers", type=positive, default=1, help=workers)
    flags.add_argument("--reload", action=argparse.BooleanOptionalAction, default=False, help="restart on changed code")
    flags.add_argument("--max-body-mb", type=above_zero, default=max_body_mb, help="largest request, in MiB")
