"""Command: `p2l leaderboard`, leaderboards from a file of votes or from a trained model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from p2l.common import cli
from p2l.common.cli import counted, listed, nearest, need, need_to_read, parser, positive, run
from p2l.common.errors import InputError
from p2l.common.files import STDOUT, format_of
from p2l.common.program import Parser
from p2l.common.text_table import add_rows_flag, rows_to_print
from p2l.public import PUBLIC

if TYPE_CHECKING:
    from p2l.leaderboard.board import Named
    from p2l.leaderboard.report import Leaderboards
    from p2l.leaderboard.report.provenance import Provenance
    from p2l.people import Examination


_VOTER = "voter"
_MOST_VOTES_EXAMINED_UNASKED = 200_000
_TABLES = ("csv", "json", "parquet")
"""Formats that hold one table."""
_FORMATS = (*_TABLES, "md", "xlsx")
_SCORES = """
scores: score = 1000 + 400 / ln(10) * coefficient, the scale of public arena leaderboards: 400 points more are odds
of 10 to 1. Where only differences count (bt, bt-tie, rk) the mean model has 1000; under grk and ba 1000 is the level
at which an answer is just usable. "beats the field" is the chance of winning a vote against another model drawn at
random; ties of either kind count half. Files also hold the raw coefficients (coef).

ranks: the best and the worst rank that a model may have, by intervals of its differences to all others.

prior: coefficients are normal with the standard deviation that suits the votes best (--verbose prints it), so that
models with few votes are not first or last by chance. Groups (--by) have --shrink instead.
"""


_GROUPS = {
    "which leaderboards": ("--prompts", "--models", "--by", "--over", "--periods", "--time-column"),
    "how they are fitted": (
        "--likelihood",
        "--people",
        "--control",
        "--control-steps",
        "--shrink",
        "--weighted",
        "--weigh-voters",
        "--robust",
        "--with-revealed",
        "--drop-bad",
    ),
    "intervals": ("--intervals", "--level", "--cluster", "--seed"),
    "output": ("--top", "--min-votes", "--verbose", "--output", "--format", "--html", "--plot", "--verify", "--quiet"),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of `p2l leaderboard`."""
    flags = parser(
        "p2l leaderboard",
        "Print the leaderboard of a file of votes, or what a trained model says of a prompt or a file of prompts.",
    )
    flags.epilog = " ".join(_SCORES.split())
    flags.add_argument("prompt", nargs="*", help="print the leaderboard of this prompt; may be repeated")
    source = flags.add_mutually_exclusive_group()
    cli.add_votes(source, "votes: .parquet, .jsonl, .jsonl.gz, .csv, a lake, a folder or a hub id")
    source.add_argument(
        "--from-counts", nargs="+", metavar="FILE", help="counts that --counts-only wrote, on any machines; added up"
    )
    cli.add_model_flag(source, "a trained P2L model: a folder or a hub id (default: the public model of this package)")
    flags.add_argument(
        "--models",
        nargs="+",
        default=[],
        metavar="NAME",
        help="by a model: only these LLMs, against one another (behind the prompts)",
    )
    cli.add_prompts(flags, "in place of prompts: aggregate over the `prompt` column of this file")
    cli.add_likelihood(
        flags,
        "with --votes: bt (drops ties), bt-tie, rk, rk-reparam, grk (= bag) or ba; by default the one with the "
        "outcomes that occur: bt without ties, bt-tie with fewer than one in a hundred, grk where both answers may "
        "be bad, rk else; a model has its own",
    )
    _add_control_flags(flags)
    flags.add_argument(
        "--by",
        action="append",
        metavar="COLUMN",
        help="one leaderboard per value of this column as well: text, flag, list, or a nested tag such as "
        "category_tag.math_v0.1.math; may be repeated",
    )
    flags.add_argument(
        "--shrink",
        type=float,
        default=0.5,
        metavar="SD",
        help="with --votes and --by: pull each group's coefficients towards the leaderboard of all votes, by a normal "
        "prior of this standard deviation; it weighs as much as about 4 / SD^2 votes of a model; inf switches it off; "
        "with --over and --periods alone: each period's",
    )
    flags.add_argument(
        "--cluster",
        metavar="COLUMN",
        help="with --votes: votes with one value of this column (user, prompt) count as one observation in intervals",
    )
    flags.add_argument("--weighted", action="store_true", help="weight votes by their `weight` column")
    _add_voter_flags(flags)
    cli.add_drop_bad(flags)
    _add_history_flags(flags)
    _add_output_flags(flags)
    flags.hide_rare("--control-steps", "--time-column", "--seed", "--format", "--from-counts", "--counts-only")
    return flags


def _add_voter_flags(flags: argparse.ArgumentParser) -> None:
    flags.add_argument(
        "--weigh-voters",
        action="store_true",
        help="with --votes: votes of voters who do not vote like people, alone or together, count less; without it "
        "they are named",
    )
    flags.add_argument(
        "--robust",
        action="store_true",
        help="with --votes: as --weigh-voters, and votes of a voter on a model that no taste explains count less, so "
        "that few colluders move no model beyond its interval; with what it costs on these votes",
    )
    flags.add_argument(
        "--with-revealed",
        action="store_true",
        help="with --votes: count votes on answers that tell their model or maker (column identity_revealed), too",
    )


def _add_control_flags(flags: argparse.ArgumentParser) -> None:
    more = "; with --model: print the effects that it was trained with"
    cli.add_control(flags, "the coefficients, left out of the scores", more)
    flags.add_argument(
        "--control-steps",
        type=positive,
        metavar="N",
        help="with --control: round differences to 1/N and numbers to N steps an octave, so that votes are counted "
        "rather than held one by one; by default as they are, of a lake 16",
    )
    flags.add_argument(
        "--people",
        metavar="NAME",
        help="with --votes: the leaderboard of the votes that the column `source` calls NAME, its intervals narrowed "
        "by the verdicts of the other sources (judges) on these and further battles, which never bias it",
    )


def _add_history_flags(flags: argparse.ArgumentParser) -> None:
    flags.add_argument(
        "--over",
        metavar="PERIOD",
        help="with --votes: the history of the leaderboard by hour, day, week, month, quarter or year (UTC), or "
        "several of them, such as 2weeks",
    )
    flags.add_argument(
        "--periods",
        choices=["cumulative", "alone"],
        default="cumulative",
        help="with --over: each leaderboard of all votes up to the end of its period, or of the period's votes alone, "
        "held to the leaderboard of all votes by --shrink",
    )
    flags.add_argument(
        "--time-column",
        default="tstamp",
        metavar="COLUMN",
        help="with --over: when a vote was cast: seconds since 1970, ISO dates or times, or text such as 2025, "
        "2025-06, 2025-Q2, 2025-W23",
    )


def _add_output_flags(flags: Parser) -> None:
    flags.add_argument("--intervals", choices=["sandwich", "bootstrap", "none"], default="sandwich", help="which kind")
    cli.add_level(flags)
    flags.add_argument(
        "--min-votes", type=int, default=1, metavar="N", help="list only models with at least this many votes"
    )
    add_rows_flag(flags, "models to print and draw")
    flags.add_argument(
        "--verbose", action="store_true", help="also print what was fitted: likelihood, loss, eta, prior; files hold it"
    )
    cli.add_seed(flags, "of the bootstrap")
    flags.add_argument(
        "--counts-only", action="store_true", help="with --votes: write counts to --output FILE.parquet and fit nothing"
    )
    cli.add_output(
        flags,
        "also write all leaderboards to a .csv, .json, .parquet, .md or .xlsx file; - is stdout, in the "
        "place of the tables",
    )
    flags.add_argument(
        "--format", choices=_FORMATS, help="of --output, in the place of its ending; csv where --output is -"
    )
    cli.add_html(
        flags,
        "also write a page that opens offline: who leads and how surely, ranks, intervals, groups side by side, "
        "win rates, history",
    )
    cli.add_plot(flags, "also draw them with their intervals")
    flags.add_argument(
        "--verify",
        metavar="PAGE",
        help="with --votes: make a page (or JSON) of this command again from the votes, with the flags that it "
        "names, and compare every text and number",
    )
    cli.add_quiet(flags, "no progress bars")
    flags.arrange(_GROUPS)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    args.by, args.control = args.by or [], args.control or []
    if args.votes is None and args.from_counts is None and args.model is None and (args.prompt or args.prompts):
        args.model = PUBLIC
    if args.verify is not None:
        print(_verified(args))
        return
    if args.model is not None:
        need_to_read()  # before what comes with the extra of votes alone
    _check(args)
    if args.counts_only:
        from p2l.leaderboard.sources import write_counts_of

        examination = _examination(args) if args.weigh_voters else None
        args.voter_weights = {} if examination is None else examination.weights
        args.cell_weights = _robust(args)[0] if args.robust else {}
        write_counts_of(args)
        print(f"wrote {args.output}", file=sys.stderr)
        return
    leaderboards = _leaderboards(args)
    if args.output != STDOUT:
        _print(leaderboards, args)
    _write(leaderboards, args)


def _leaderboards(args: argparse.Namespace) -> Leaderboards:
    """Compute the leaderboards, the history, or both."""
    from p2l.leaderboard.report import Leaderboards

    boards: list[Named] = []
    history = None
    examination = _examination(args)
    args.voter_weights = examination.weights if examination is not None and args.weigh_voters else {}
    args.cell_weights, cost = _robust(args) if args.robust else ({}, "")
    if args.over is not None:
        from p2l.leaderboard.sources import history_of_votes

        history = history_of_votes(args)
    if args.model is not None:
        from p2l.commands.model_leaderboards import boards_of_model

        boards = boards_of_model(args)
    elif args.people is not None:
        from p2l.leaderboard.board import Named
        from p2l.people.prediction_powered import powered_board

        board = powered_board(args.votes, args.people, likelihood=args.likelihood, level=args.level).board
        # Each vote counts for both of its models.
        boards = [Named("", "all", 0 if board.votes is None else int(board.votes.sum()) // 2, board)]
    elif args.over is None or args.by:
        from p2l.leaderboard.sources import boards_of_votes

        boards = boards_of_votes(argparse.Namespace(**vars(args) | {"over": None}))
    title, unit = f"Leaderboard of {args.prompts}", "prompts"
    if args.model is None:
        title, unit = f"Leaderboard of {Path(args.votes or args.from_counts[0]).name}", "votes"
    elif args.prompt:
        title = f"Leaderboards of {Path(args.model).name}, by prompt"
    on_voters = "" if examination is None else _note_on_voters(examination, weighed=args.weigh_voters)
    notes = [note for note in (on_voters, cost) if note]
    if notes and boards:
        board = boards[0].board
        boards[0] = boards[0]._replace(board=replace(board, notes=(*board.notes, *notes)))
    if notes and history is not None:
        history = replace(history, notes=(*history.notes, *notes))
    is_stated = args.html is not None or (args.output is not None and _format_of(args) == "json")
    provenance = _provenance(args) if is_stated and args.votes is not None else None
    return Leaderboards(title, unit, boards, history, args.min_votes, provenance)


def _format_of(args: argparse.Namespace) -> str:
    return format_of(args.output, args.format, _FORMATS)


def _provenance(args: argparse.Namespace) -> Provenance:
    from p2l.common.report.reports import today
    from p2l.leaderboard.report.provenance import Provenance

    return Provenance.of(args, build_parser().parse_args(["--votes", args.votes]), today())


def _verified(args: argparse.Namespace) -> str:
    """Return a sentence that a page, or JSON, is what its votes give; InputError where it is not."""
    from p2l.leaderboard.report import provenance

    if args.votes is None:
        raise InputError("--verify PAGE goes with --votes FILE, from which the page is made again")
    path = Path(args.verify).expanduser()
    stated = provenance.provenance_of(path)
    flags = provenance.flags_of(stated, args.votes, build_parser())
    flags.by, flags.control = flags.by or [], flags.control or []
    _check(flags)

    def made_again() -> str:
        from p2l.common.report.reports import report_page
        from p2l.leaderboard.report import leaderboard_report
        from p2l.leaderboard.report.files import leaderboards_json

        leaderboards = replace(_leaderboards(flags), provenance=stated)
        if path.suffix.lower() == ".json":
            return leaderboards_json(leaderboards)
        return report_page(leaderboard_report(leaderboards, "", stated.votes))

    return provenance.verify(path, args.votes, made_again)


def _examination(args: argparse.Namespace) -> Examination | None:
    """Return what votes say of their voters; None where nothing tells who cast them, or rows are not read."""
    if args.votes is None:
        return None
    from p2l.votes.lake import is_lake
    from p2l.votes.reading import open_vote_source

    if is_lake(args.votes) and not args.weigh_voters:
        return None  # counted in seconds, however many votes it holds
    source = open_vote_source(args.votes)
    if not args.weigh_voters and (source.rows or 0) > _MOST_VOTES_EXAMINED_UNASKED:
        return None  # which takes longer than all the rest
    if _VOTER not in source.columns:
        if args.weigh_voters:
            raise InputError(
                f"{source.name}: --weigh-voters needs a column 'voter': who cast each vote"
                f"{nearest(_VOTER, source.columns)}; columns: {listed(source.columns)}"
            )
        return None
    from p2l.people import examine
    from p2l.people.cast import cast_of_source

    return examine(cast_of_source(source, args.people, drop_bad=args.drop_bad))


def _robust(args: argparse.Namespace) -> tuple[dict[tuple[str, str], float], str]:
    """Return what votes count by voter and model, where that is less than one, and a sentence on what it costs."""
    from p2l.people.cast import cast_of_source
    from p2l.people.robust import robust_factors, share_left
    from p2l.votes.reading import open_vote_source

    votes = cast_of_source(open_vote_source(args.votes), args.people, drop_bad=args.drop_bad)
    factors = robust_factors(votes, args.voter_weights)
    lost = 1.0 - share_left(votes, args.voter_weights, factors)
    voters = counted(len({voter for voter, _ in factors}), "voter")
    return factors, f"Robust: votes of {voters} count less on some models; {lost:.1%} of all weight is lost."


def _note_on_voters(examination: Examination, *, weighed: bool) -> str:
    """Return what a leaderboard says of its voters; nothing where all of them vote like people."""
    if not examination.suspects:
        return ""
    if examination.is_beyond:
        return f"{examination.verdict} (p2l votes check lists them)."
    how = "Their votes count less" if weighed else "Their votes count like all others: --weigh-voters weighs them"
    return f"{examination.verdict}. {how}; p2l votes check lists them."


def _check(args: argparse.Namespace) -> None:
    """Refuse flags that contradict each other, and files that cannot be written, before any work."""
    if args.votes is not None and (args.prompts is not None or args.prompt):
        raise InputError("a prompt or --prompts goes with --model; --votes holds its own")
    if args.votes is None and args.from_counts is None and args.model is None:
        raise InputError('give a prompt, as in p2l leaderboard "Prove that 17 is prime.", or --votes FILE')
    _check_model_flags(args)
    if args.by and args.prompt:
        raise InputError("--by needs a file: --votes FILE or --model DIR --prompts FILE")
    if not args.shrink > 0:
        raise InputError("--shrink must be positive (inf switches it off)")
    args.weigh_voters = args.weigh_voters or args.robust
    if args.votes is None and (args.weigh_voters or args.with_revealed):
        raise InputError(
            "--weigh-voters, --robust and --with-revealed go with --votes FILE: they are about single votes"
        )
    if args.control_steps is not None and not (args.control and args.votes):
        raise InputError("--control-steps goes with --votes and --control")
    if not 0 < args.level < 1:
        raise InputError(f"--level must lie between 0 and 1, such as 0.95, not {args.level}")
    _check_people(args)
    _check_counts(args)
    _check_history(args)
    _check_files(args)
    from p2l.common.report.reports import check_result_files

    check_result_files(args, args.votes, args.prompts, *(args.from_counts or []))


def _check_model_flags(args: argparse.Namespace) -> None:
    if args.model is None:
        if args.models:
            raise InputError("--models goes with a prompt or --prompts; a leaderboard of votes has all (--top 0)")
        return
    if (args.prompts is None) != bool(args.prompt):
        raise InputError("--model needs a prompt, or --prompts FILE, and not both")
    if args.likelihood is not None or args.weighted or args.cluster is not None:
        raise InputError("--likelihood, --cluster and --weighted go with --votes; a model has a likelihood of its own")


def _check_people(args: argparse.Namespace) -> None:
    if args.people is None:
        return
    others = {"--by": args.by, "--control": args.control, "--over": args.over, "--cluster": args.cluster}
    others |= {"--weighted": args.weighted, "--counts-only": args.counts_only, "--drop-bad": args.drop_bad}
    other = next((name for name, value in others.items() if value), None)
    if args.votes is None or args.intervals != "sandwich":
        raise InputError("--people goes with --votes FILE and with sandwich intervals")
    if other is not None:
        raise InputError(f"--people does not go with {other}")


def _check_files(args: argparse.Namespace) -> None:
    """Refuse outputs that cannot hold what is asked for, or that lack a package."""
    if args.format is not None and args.output is None:
        raise InputError("--format goes with --output")
    if args.output is None:
        return
    kind = _format_of(args)
    if args.over is not None and args.by and kind in _TABLES:
        raise InputError(f"{args.output}: {kind} holds one table, not those of --over and --by; use md or xlsx")
    if kind == "xlsx":
        need("xlsxwriter")


def _check_counts(args: argparse.Namespace) -> None:
    if args.from_counts is not None and (args.by or args.control or args.cluster is not None or args.prompt):
        raise InputError("--from-counts holds groups already; --by, --control and --cluster go with --votes")
    if args.counts_only and (args.votes is None or args.control or args.cluster is not None):
        raise InputError("--counts-only goes with --votes FILE, and neither with --control nor --cluster")
    if args.counts_only and not str(args.output or "").endswith(".parquet"):
        raise InputError("--counts-only needs --output FILE.parquet")


def _check_history(args: argparse.Namespace) -> None:
    if args.over is None:
        if args.periods != "cumulative" or args.time_column != "tstamp":
            raise InputError("--periods and --time-column go with --over PERIOD")
        return
    if args.model is not None:
        raise InputError("--over goes with --votes FILE; a model has no history")
    if args.cluster is not None:
        raise InputError("--over does not go with --cluster")
    from p2l.leaderboard.history import parse_over

    parse_over(args.over)


def _print(leaderboards: Leaderboards, args: argparse.Namespace) -> None:
    from p2l.leaderboard.report.files import PRINTED_GROUPS, leaderboards_text

    print(leaderboards_text(leaderboards, rows_to_print(args.rows), verbose=args.verbose))
    more = len(leaderboards.boards) - 1 - PRINTED_GROUPS
    if more > 0:
        place = "are in the file" if args.output else "can be written with --output FILE"
        print(f"\n{more} more groups, with fewer {leaderboards.unit}, {place}")


def _write(leaderboards: Leaderboards, args: argparse.Namespace) -> None:
    from p2l.leaderboard.report.files import write_leaderboards

    if args.output is not None:
        write_leaderboards(leaderboards, args.output, _format_of(args))
        if args.output != STDOUT:
            print(f"wrote {args.output}", file=sys.stderr)
    if args.html is not None:
        from p2l.common.report.reports import save_report
        from p2l.leaderboard.report import leaderboard_report

        subject, data = "", Path(args.votes or (args.from_counts or [""])[0]).name
        if args.model is not None:
            subject = f"Leaderboard by {Path(args.model).name}"
            data = f"{len(args.prompt)} prompts" if args.prompt[1:] else "a prompt" if args.prompt else args.prompts
            data = Path(data).name
        save_report(leaderboard_report(leaderboards, subject, data), args.html)
        print(f"wrote {args.html}", file=sys.stderr)
    if args.plot is not None:
        from p2l.common.report.images import save_picture
        from p2l.leaderboard.report import leaderboard_figures

        figures, left_out = leaderboard_figures(leaderboards, args.rows or None)
        save_picture(args.plot, *figures)
        print(f"drew {args.plot}{f' ({left_out})' if left_out else ''}", file=sys.stderr)


if __name__ == "__main__":
    run(main)
