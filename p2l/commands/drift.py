"""Command: which models rose or fell, on which prompts: between two checkpoints, two versions of a model, two times.

p2l drift models/may models/june --prompts prompts.parquet --by topic
p2l drift --votes votes.parquet --model sql-king --versions 2024-05 2024-08 --by topic
p2l drift --votes votes.parquet --before 2024-06-01 --by topic
p2l drift --follow router.db --clusters models/june --alarm
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from p2l.common import cli
from p2l.common.cli import need_to_read, parser, positive, print_note, run
from p2l.common.errors import ConfigError
from p2l.common.files import write_json
from p2l.common.plots import check_outputs
from p2l.common.text_table import add_rows_flag, rows_to_print

if TYPE_CHECKING:
    from p2l.insight.drift import Changes, Drift
    from p2l.online_training.live_votes import LiveVotes
    from p2l.votes.rows import Source


_EXIT = "exit"
_GROUPS = {
    "what is compared": ("--prompts", "--votes", "--model", "--versions", "--before", "--after", "--by", "--clusters"),
    "watching": ("--follow", "--alarm", "--window", "--comparisons", "--stop-when-idle"),
    "what counts as a change": ("--likelihood", "--min-prompts", "--level", "--fdr", "--least-change"),
    "output": ("--all", "--rows", "--json", "--plot", "--html", "--quiet"),
}


def build_parser(prog: str = "p2l drift") -> argparse.ArgumentParser:
    """Return the flags of the comparison."""
    flags = parser(prog, "Say which models rose or fell, and on which prompts: between A and B, or as votes show.")
    flags.add_argument("a", nargs="?", metavar="A", help="a trained model: a folder (a checkpoint, say) or a hub id")
    flags.add_argument("b", nargs="?", metavar="B", help="a later one")
    cli.add_prompts(flags, "with A and B: the prompts to ask both about")
    cli.add_votes(flags, "instead of A and B: compare what these votes say")
    flags.add_argument(
        "--model", action="append", metavar="NAME", help="only this model (may be repeated); --versions needs one"
    )
    flags.add_argument(
        "--versions", nargs=2, metavar=("OLD", "NEW"), help="with --votes: two values of model_version of --model"
    )
    flags.add_argument(
        "--before", metavar="TIME", help="with --votes: votes before this date, or second since 1970, ..."
    )
    flags.add_argument("--after", metavar="TIME", help="... against those from this one on (default: the same)")
    flags.add_argument(
        "--by", action="append", metavar="COLUMN", help="each value of this column is a category (may be repeated)"
    )
    flags.add_argument(
        "--clusters",
        metavar="MODEL",
        help="the clusters of prompts that `p2l explain` finds for this model are categories, in place of labels",
    )
    _add_follow_flags(flags)
    cli.add_likelihood(flags, "with --votes or --follow: of the fits (default: bt-tie)")
    flags.add_argument(
        "--min-prompts", type=positive, default=20, metavar="N", help="fewest different prompts of a cell"
    )
    cli.add_level(flags)
    flags.add_argument(
        "--fdr", type=float, default=0.05, help="false discovery rate: share of false findings to expect"
    )
    flags.add_argument(
        "--least-change", type=float, default=0.0, metavar="POINTS", help="changes up to this do not count"
    )
    flags.add_argument("--all", action="store_true", help="print every cell, not only the changed ones")
    add_rows_flag(flags)
    flags.add_argument("--json", metavar="FILE", help="also write every cell")
    cli.add_plot(flags, "also draw them")
    cli.add_html(flags)
    cli.add_quiet(flags, "no progress bars")
    flags.arrange(_GROUPS)
    return flags


def _add_follow_flags(flags: argparse.ArgumentParser) -> None:
    flags.add_argument(
        "--follow",
        metavar="FILE",
        help="watch votes as they arrive in this JSONL file, or this database of a router: each window of them against "
        "those before it; --fdr is then the chance that a run without changes ever reports one",
    )
    flags.add_argument(
        "--alarm",
        nargs="?",
        const=_EXIT,
        metavar="URL",
        help="with --follow: end with exit code 1 at the first change, or POST each change to URL and go on",
    )
    flags.add_argument(
        "--window", type=positive, default=5000, metavar="N", help="with --follow: votes between two comparisons"
    )
    flags.add_argument(
        "--comparisons",
        type=positive,
        metavar="N",
        help="with --follow: --fdr is the chance of a false alarm among N comparisons, which share it evenly (default: "
        "among all of them, and later ones find less)",
    )
    cli.add_idle(flags, "with --follow: end when no vote has arrived for this long")


def main(argv: Sequence[str] | None = None) -> int | None:
    """Run the command; 1 after an alarm."""
    args = build_parser().parse_args(argv)
    args.by = args.by or []
    if args.a is not None or args.clusters is not None:
        need_to_read()  # before what comes with the extra of votes alone
    _check(args)
    if args.follow is not None:
        return _follow(args)
    if args.votes is not None:
        drift = _of_votes(args)
    else:
        from p2l.insight.drift_models import drift_of_models

        prompts, by = _with_clusters(args, args.prompts)
        changes = drift_of_models(args.a, args.b, prompts, by=by, least=args.min_prompts, quiet=args.quiet)
        drift = _judged(args, args.a, args.b, changes)
    from p2l.insight.drift_report import drift_figures, drift_text

    print(drift_text(drift, every=args.all, top=rows_to_print(args.rows)))
    _write(args, drift)
    for path in (args.json, args.html):
        if path is not None:
            print(f"wrote {path}", file=sys.stderr)
    if args.plot is not None:
        from p2l.common.report.images import save_picture

        figures = drift_figures(drift)
        save_picture(args.plot, *figures)
        left = len({cell.title for cell in drift.cells}) - len(figures)
        more = f" ({left} more categories are in --json)" if left > 0 and len(figures) > 1 else ""
        print(f"drew {args.plot}{more}", file=sys.stderr)
    return None


def _write(args: argparse.Namespace, drift: Drift) -> None:
    """Write every cell and the page, where they are asked for."""
    if args.json is not None:
        write_json(args.json, drift.to_dict())
    if args.html is not None:
        from p2l.common.report.reports import save_report
        from p2l.insight.drift_report import drift_report

        save_report(drift_report(drift, Path(args.prompts or args.votes or args.follow).name), args.html)


def _check(args: argparse.Namespace) -> None:
    """Refuse flags that contradict each other, and files that cannot be written, before any work."""
    if args.follow is not None:
        _check_follow(args)
    elif args.alarm is not None or args.stop_when_idle is not None or args.comparisons is not None:
        raise ConfigError("--alarm, --comparisons and --stop-when-idle go with --follow FILE, the votes to watch")
    elif args.votes is None:
        if args.b is None or args.prompts is None:
            raise ConfigError("compare two models with A B --prompts FILE, or what --votes FILE say")
        if args.versions or args.before or args.after or args.likelihood:
            raise ConfigError("--versions, --before, --after and --likelihood go with --votes; models have their own")
    else:
        _check_votes(args)
    if not 0 < args.level < 1 or not 0 < args.fdr < 1:
        raise ConfigError("--level and --fdr must lie between 0 and 1")
    if args.min_prompts < 2 or not args.least_change >= 0:
        raise ConfigError("--min-prompts must be at least 2, and --least-change not negative")
    check_outputs(args.json, args.plot, args.votes, args.prompts)
    if args.html is not None:
        from p2l.common.report.reports import check_page

        args.html = str(check_page(args.html, args.votes, args.prompts, args.follow))


def _check_votes(args: argparse.Namespace) -> None:
    if args.a is not None or args.prompts is not None:
        raise ConfigError("A, B and --prompts exclude --votes: compare models, or votes")
    if (args.versions is None) == (args.before is None):
        raise ConfigError("--votes needs either --model NAME --versions OLD NEW, or --before TIME")
    if args.after is not None and args.before is None:
        raise ConfigError("--after goes with --before")
    if args.versions is not None and len(args.model or []) != 1:
        raise ConfigError("--versions needs one --model NAME, whose versions they are")
    if args.versions is not None and args.versions[0] == args.versions[1]:
        raise ConfigError(f"--versions: both are {args.versions[0]!r}; name two")


def _check_follow(args: argparse.Namespace) -> None:
    others = (args.a, args.prompts, args.votes, args.versions, args.before, args.after, args.plot)
    if any(value is not None for value in others):
        raise ConfigError(
            "--follow watches one stream: leave out A, B, --prompts, --votes, --versions, times and --plot"
        )
    if args.alarm not in (None, _EXIT) and not args.alarm.startswith(("http://", "https://")):
        raise ConfigError("--alarm takes an http or https URL, or nothing")


def _of_votes(args: argparse.Namespace) -> Drift:
    from p2l.insight.drift_votes import between_times, between_versions, drift_of_votes
    from p2l.likelihood import get

    likelihood = get(args.likelihood or "bt-tie").name
    if args.versions is not None:
        rule = between_versions(args.model[0], *args.versions)
        before, after = (f"{args.model[0]} {version}" for version in args.versions)
    else:
        times = _time("--before", args.before), _time("--after", args.after or args.before)
        if times[0] > times[1]:
            raise ConfigError("--before must not be later than --after: no vote may be on both sides")
        rule = between_times(*times)
        before, after = f"votes before {args.before}", f"votes from {args.after or args.before} on"
    votes, by = _with_clusters(args, args.votes)
    options = {"by": by, "likelihood": likelihood, "least": args.min_prompts, "quiet": args.quiet}
    return _judged(args, before, after, drift_of_votes(votes, rule, **options))


def _with_clusters(args: argparse.Namespace, path: str) -> tuple[Source | str, list[str]]:
    """Return the votes or prompts and the columns of categories, clusters among them where they are asked for."""
    if args.clusters is None:
        return path, args.by
    from p2l.insight.answers import CLUSTER, with_clusters

    return with_clusters(path, args.clusters), [*args.by, CLUSTER]


def _follow(args: argparse.Namespace) -> int | None:
    """Print each comparison; return 1 at the first change where --alarm asks for that."""
    from p2l.insight.drift_follow import DriftSettings, look_at, send_alarm
    from p2l.insight.drift_report import drift_text
    from p2l.likelihood import get
    from p2l.online_training.live_votes import StopRequestedError

    watch = DriftSettings(
        window=args.window,
        by=args.by,
        clusters=args.clusters,
        models=args.model or [],
        likelihood=get(args.likelihood or "bt-tie").name,
        min_prompts=args.min_prompts,
        level=args.level,
        fdr=args.fdr,
        least_change=args.least_change,
        comparisons=args.comparisons,
    )
    with contextlib.suppress(StopRequestedError):
        for drift in look_at(_followed(args), watch, _teller(args)):
            print(drift_text(drift, every=args.all), flush=True)
            _write(args, drift)
            if drift.found and args.alarm == _EXIT:
                return 1
            if drift.found and args.alarm is not None:
                send_alarm(args.alarm, drift, _teller(args))
    return None


def _teller(args: argparse.Namespace) -> Callable[[str], None]:
    """Return what prints notes, warnings alone where --quiet asks for that."""

    def tell(text: str) -> None:
        if not args.quiet or text.startswith("warning"):
            print_note(text)

    return tell


def _followed(args: argparse.Namespace) -> LiveVotes:
    from p2l.online_training.live_votes import LiveVotes, Waiting
    from p2l.online_training.router_votes import growing_file

    tell = _teller(args)
    waiting = Waiting(idle_seconds=args.stop_when_idle, tell=tell)
    waiting.stop_on_signals()
    lines, gather = growing_file(Path(args.follow).expanduser(), tell)
    return LiveVotes(lines, waiting=waiting, gather=gather, name=args.follow)


def _judged(args: argparse.Namespace, before: str, after: str, changes: Changes) -> Drift:
    from p2l.insight.drift import Drift, judge

    names = sorted({change.model for change in changes.measured})
    for name in args.model or names:
        if name not in names:
            raise ConfigError(f"--model: {name!r} cannot be compared here; models: {', '.join(names)}")
    selected = [change for change in changes.measured if not args.model or change.model in args.model]
    return Drift(
        before=before,
        after=after,
        likelihood=changes.likelihood,
        level=args.level,
        fdr=args.fdr,
        cells=judge(selected, level=args.level, fdr=args.fdr, least_change=args.least_change),
        notes=changes.notes,
        least_change=args.least_change,
    )


def _time(flag: str, text: str) -> float:
    import pyarrow as pa

    from p2l.votes.schema import numbers

    seconds = float(numbers(pa.array([text]))[0])
    if not math.isfinite(seconds):
        raise ConfigError(f"{flag}: {text!r} is not a time; give a date such as 2024-06-01, or seconds since 1970")
    return seconds


if __name__ == "__main__":
    run(main)
