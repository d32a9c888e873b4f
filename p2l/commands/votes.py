"""Command: `p2l votes check|import|from-scores|sample|split|slice|lake`: look votes through, make or gather them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2l.common import cli
from p2l.common.cli import add_command, counted, not_votes, parser, positive, run, whole
from p2l.common.errors import InputError, VoteError
from p2l.common.files import check_can_write, read_names
from p2l.common.program import Parser
from p2l.online_training.router_votes import (
    Pseudonyms,
    add_database,
    pair_columns,
    router_database,
    vote_of,
    vote_schema,
)

_SOURCE_HELP = "hub id, save_to_disk folder, or .parquet / .jsonl / .jsonl.gz / .csv file"
_READING = {"how votes are read": ("--dataset-split", "--drop-bad", "--model-list")}


def build_parser() -> argparse.ArgumentParser:
    """Return the seven commands and their flags."""
    top = parser("p2l votes", "Check, make, split and slice votes. `p2l votes COMMAND --help` explains each command.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (_add_check, _add_import, _add_from_scores, _add_sample, _add_split, _add_slice, _add_lake):
        add(commands)
    return top


def _add(commands: Any, name: str, about: str) -> Parser:
    """Add a command that reads votes, with the flags of how."""
    flags = add_command(commands, name, about)
    flags.add_argument("source", metavar="VOTES", help=_SOURCE_HELP)
    cli.add_dataset_split(flags)
    cli.add_quiet(flags)
    return flags


def _add_check(commands: Any) -> None:
    flags = _add(commands, "check", "Print statistics and problems of votes; exit with 2 when there are problems.")
    flags.add_argument("--limit", type=whole, default=20, metavar="N", help="problems to list; the rest is counted")
    cli.add_label_list(flags, "--model-list")


def _add_import(commands: Any) -> None:
    flags = add_command(
        commands,
        "import",
        "Make votes, or a table of graded answers, of whatever holds them: arena exports, preference data, verdicts of "
        "judges, score tables, logs of evaluation tools. What a path holds is recognised by its content.",
    )
    flags.add_argument("source", nargs="*", metavar="PATH", help="files, folders, globs, a hub id, or - for stdin")
    cli.add_output(flags, "file to write; the ending names the format", required=False)
    flags.add_argument("--kind", metavar="NAME", help="the kind that the paths are (default: recognised by content)")
    flags.add_argument("--list-kinds", action="store_true", help="show every kind with two lines of such a file")
    flags.add_argument(
        "--columns",
        metavar="NAME=COLUMN,...",
        help="columns of the file to take for those of votes or scores, such as model_a=left,model_b=right,winner=vote",
    )
    flags.add_argument(
        "--as",
        dest="as_what",
        choices=["votes"],
        help="write votes where the paths hold graded answers, as `p2l votes from-scores` makes them",
    )
    flags.add_argument("--rename", metavar="FILE", help="CSV lines of a model's name and what it is to be called")
    cli.add_dataset_split(flags)
    cli.add_drop_bad(flags)
    cli.add_quiet(flags)
    flags.arrange({"what the paths hold": ("--kind", "--list-kinds", "--columns", "--rename", "--as")})


def _add_from_scores(commands: Any) -> None:
    flags = add_command(
        commands, "from-scores", "Make votes of graded answers: rows of question (or prompt), model, score."
    )
    flags.add_argument("source", metavar="TABLE", help="table of answers, or a file or folder of any kind of scores")
    cli.add_output(flags, "votes to write; the ending names the format", required=True)
    flags.add_argument(
        "--per-question", type=positive, default=30, metavar="N", help="pairs of models drawn for each question"
    )
    flags.add_argument("--margin", type=float, default=0.0, help="difference up to which two scores are a tie")
    flags.add_argument(
        "--passed", type=float, default=0.5, metavar="SCORE", help="a tie below this mean score is a tie (bothbad)"
    )
    flags.add_argument("--only", nargs="+", default=[], metavar="NAME", help="take these categories alone")
    flags.add_argument("--without", nargs="+", default=[], metavar="NAME", help="leave these categories out")
    cli.add_seed(flags, "seed of the pairs and their sides", default=42)


def _add_sample(commands: Any) -> None:
    flags = add_command(commands, "sample", "Write real votes on prompts of many kinds, to try the other commands on.")
    cli.add_output(flags, "votes to write; the ending names the format", required=True)
    cli.add_vote_count(flags, "votes to draw", default=2500)
    flags.add_argument(
        "--scores", metavar="FILE", help="graded answers and what they cost as well, for `p2l eval-routing`"
    )
    flags.add_argument(
        "--made-up",
        action="store_true",
        help="votes between made-up models, drawn from coefficients that p2l/simulation/samples.py shows, with voters "
        "and times; as many as asked for",
    )
    cli.add_seed(flags, "the same seed and flags give the same files", default=42)
    flags.add_argument("--overwrite", action="store_true", help="replace files that hold something else")


def _add_split(commands: Any) -> None:
    flags = _add(commands, "split", "Split votes into a train and a validation file.")
    flags.add_argument(
        "--by", required=True, choices=["prompt", "time"], help="whole prompts at random, or the newest votes"
    )
    flags.add_argument("--val", required=True, type=int, metavar="N", help="votes for validation")
    flags.add_argument("--train-output", required=True, metavar="FILE", help="train votes; the ending names the format")
    flags.add_argument("--val-output", required=True, metavar="FILE", help="validation votes")
    flags.add_argument(
        "--min-votes-per-model",
        type=int,
        default=1,
        metavar="K",
        help="remove models with fewer training votes from both parts",
    )
    cli.add_seed(flags, "order in which prompts are taken", default=42)
    cli.add_drop_bad(flags)
    cli.add_label_list(flags, "--model-list")
    flags.arrange({"what is written": ("--train-output", "--val-output", "--min-votes-per-model"), **_READING})


def _add_slice(commands: Any) -> None:
    flags = _add(
        commands,
        "slice",
        "Cut held-out votes into slices by the time of VOTES, a stream in time order, for `p2l eval-chrono`.",
    )
    flags.add_argument("--held-out", required=True, metavar="VOTES", help="held-out votes of the same time")
    cli.add_output(flags, "folder for validation-N.csv and timestamps.json", metavar="DIR", required=True)
    cli.add_stream_batch_size(flags, "votes of the stream in a batch")
    flags.add_argument("--every", type=positive, default=256, metavar="N", help="batches between slices")
    flags.add_argument("--most", type=positive, metavar="N", help="votes of a slice at most, spread over its time")
    flags.add_argument("--columns", nargs="+", metavar="NAME", help="keep these as well as those of votes")
    flags.arrange({"slices": ("--batch-size", "--every", "--most", "--columns")})


def _add_lake(commands: Any) -> None:
    flags = add_command(
        commands, "lake", "Add votes to a lake: Parquet files by day that grow, read wherever votes are."
    )
    flags.add_argument("source", nargs="*", metavar="VOTES", help=f"each once: {_SOURCE_HELP}")
    cli.add_output(flags, "folder, or s3://BUCKET/PLACE, gs://...", metavar="LAKE", required=True)
    _add_router_flags(
        flags,
        database="add what is new in a router's database",
        without_prompts="with --database: every vote, without its prompt",
    )
    cli.add_dataset_split(flags)
    cli.add_drop_bad(flags)


def _add_router_flags(flags: Parser, *, database: str, without_prompts: str, required: bool = False) -> None:
    """Add which router's votes are read, and whether their prompts are."""
    about = f"{database}: a file or a postgresql:// URL"
    flags.add_argument("--database", required=required, metavar="FILE", help=about)
    flags.add_argument("--without-prompts", action="store_true", help=without_prompts)


def main(argv: Sequence[str] | None = None) -> int | None:
    """Run one of the seven commands."""
    args = build_parser().parse_args(argv)
    from p2l.votes.reading import FaultyRowError

    try:
        return _RUN[args.command](args)
    except FaultyRowError as error:
        if not hasattr(args, "drop_bad"):
            raise
        raise VoteError(f"{error}; add --drop-bad to leave out all rows that are not votes") from error


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Return how the source is read, which all commands have flags for."""
    options = {"split": args.dataset_split, "quiet": args.quiet}
    if getattr(args, "model_list", None) is not None:
        options["label_list"] = read_names(args.model_list, "model list")
    return options


def _check(args: argparse.Namespace) -> int:
    from p2l.people.vote_file import examine_file

    examined = examine_file(args.source, limit=args.limit, **_options(args))
    print(examined.text())
    return 0 if examined.report.is_fit else 2


def _import(args: argparse.Namespace) -> int:
    from p2l.votes.importing import STDIN, ImportOptions, import_votes

    if args.list_kinds:
        print(_kinds_listed())
        return 0
    if not args.source:
        raise InputError("name the files or folders to import; --list-kinds shows what is read")
    if args.output is None:
        raise InputError("name the file to write: --output votes.parquet")
    for source in args.source:
        check_can_write(args.output, None if source == STDIN else source)
    options = ImportOptions(
        kind=args.kind,
        columns=_columns(args.columns),
        as_votes=args.as_what == "votes",
        rename=args.rename,
        drop_bad=args.drop_bad,
        split=args.dataset_split,
        quiet=args.quiet,
    )
    done = import_votes(args.source, args.output, options)
    if done.about:
        print(f"read as {done.about}")
    for note in done.notes:
        print(note)
    noun = "vote" if done.gives == "votes" else "graded answer"
    dropped = _left_out(done.dropped)
    if done.gives == "scores" and done.dropped:
        dropped = f" ({counted(done.dropped, 'row')} that cannot be read left out)"
    print(f"{args.output}: {counted(done.rows, noun)}, {counted(done.models, 'model')}{dropped}")
    return 0


def _columns(text: str | None) -> dict[str, str] | None:
    """Return --columns as column of the schema -> column of the file."""
    if text is None:
        return None
    pairs = [pair.split("=", 1) for pair in text.split(",")]
    for pair in pairs:
        if len(pair) != 2 or not all(pair):
            raise InputError(f"--columns: {'='.join(pair)!r} is no NAME=COLUMN")
    names, columns = ([part.strip() for part in parts] for parts in zip(*pairs, strict=True))
    for called in (names, columns):
        if twice := next((name for name in called if called.count(name) > 1), None):
            raise InputError(f"--columns: {twice!r} stands there twice")
    return dict(zip(names, columns, strict=True))


def _kinds_listed() -> str:
    from p2l.votes.kinds import KINDS

    lines = []
    for kind in KINDS.values():
        what = "cannot be read" if kind.refusal else f"gives {kind.gives}"
        lines += [f"{kind.name}: {kind.about} ({what})", *(f"    {line}" for line in kind.sample.splitlines())]
    return "\n".join(lines)


def _split(args: argparse.Namespace) -> int:
    from p2l.votes.splitting import split_votes
    from p2l.votes.store import open_votes

    for output in (args.train_output, args.val_output):
        check_can_write(output, args.source)
    with open_votes(args.source, need_prompt=args.by == "prompt", drop_bad=args.drop_bad, **_options(args)) as store:
        halves = split_votes(
            store,
            by=args.by,
            val=args.val,
            train_output=args.train_output,
            val_output=args.val_output,
            min_votes_per_model=args.min_votes_per_model,
            seed=args.seed,
            quiet=args.quiet,
        )
        print(f"{args.train_output}: {counted(halves.train, 'vote')}{_left_out(store.dropped_bad)}")
        print(f"{args.val_output}: {counted(halves.val, 'vote')}")
    if removed := halves.removed_models:
        names = ", ".join(removed[:5]) + (", ..." if len(removed) > 5 else "")
        votes = counted(halves.removed_votes, "vote")
        print(f"removed {votes} of {len(removed)} models with few train votes ({names})")
    return 0


def _slice(args: argparse.Namespace) -> int:
    from p2l.votes.splitting import cut_slices, write_slices
    from p2l.votes.store import open_votes

    with open_votes(args.source, need_prompt=False, **_options(args)) as stream, open_votes(args.held_out) as held_out:
        slices = cut_slices(stream, held_out, batch_size=args.batch_size, every=args.every, most=args.most)
        files = write_slices(held_out, slices, Path(args.output).expanduser(), columns=args.columns or [])
    votes = counted(sum(len(piece.ids) for piece in slices), "vote")
    print(f"{args.output}: {counted(len(files), 'slice')}, {files[0].name} to {files[-1].name}, {votes}")
    return 0


def _from_scores(args: argparse.Namespace) -> int:
    from p2l.votes.scores import ScoreOptions, votes_of_scores
    from p2l.votes.writing import write_votes

    check_can_write(args.output, args.source)
    options = ScoreOptions(
        per_question=args.per_question,
        margin=args.margin,
        passed=args.passed,
        only=tuple(args.only),
        without=tuple(args.without),
        seed=args.seed,
    )
    done = votes_of_scores(args.source, options)
    write_votes([done.batch], done.batch.schema, args.output)
    votes, questions = counted(len(done.batch), "vote"), counted(done.questions, "question")
    print(f"{args.output}: {votes} on {questions} between {done.models} models")
    if done.averaged:
        print(f"{counted(done.averaged, 'repeated answer')} counted in the mean of the model's answers to the question")
    return 0


def _sample(args: argparse.Namespace) -> int:
    from p2l.votes.writing import holds, write_votes

    check_can_write(args.output)
    if args.scores:
        check_can_write(args.scores, args.output)
    votes, scores = _drawn(args)
    tables = {args.output: votes} | ({args.scores: scores} if args.scores else {})
    new = {name: table for name, table in tables.items() if args.overwrite or not Path(name).exists()}
    # Files that hold these votes already stay; one that holds something else may be a user's own votes.
    for name, table in tables.items():
        if name not in new and not holds(name, table):
            raise InputError(f"{name}: exists and holds something else; choose another name, or add --overwrite")
    for name, table in new.items():
        write_votes([table], table.schema, name)
    models = len({*votes.column("model_a").to_pylist(), *votes.column("model_b").to_pylist()})
    kind = "made-up models" if args.made_up else "LLMs"
    topics = counted(len(set(votes.column("topic").to_pylist())), "topic")
    print(f"{args.output}: {counted(len(votes), 'vote')} between {models} {kind} on {topics}")
    if args.scores:
        print(f"{args.scores}: {counted(len(scores), 'graded answer')}")
    return 0


def _drawn(args: argparse.Namespace) -> tuple[Any, Any]:
    """Return the sample's votes, and its graded answers, real or made up."""
    if args.made_up:
        from p2l.simulation.samples import sample_scores, sample_votes

        return sample_votes(args.votes, args.seed), sample_scores(args.seed)
    from p2l.public.sample import public_sample, public_scores

    return public_sample(args.votes, args.seed), public_scores()


def _lake(args: argparse.Namespace) -> int:
    from p2l.votes.lake import Lake
    from p2l.votes.writing import add_file

    if not args.source and args.database is None:
        raise InputError("name files of votes, or --database of a router, to add")
    lake = Lake(args.output, create=True)
    for source in args.source:
        added = add_file(lake, source, drop_bad=args.drop_bad, split=args.dataset_split)
        what = f"{counted(added.votes, 'vote')} of {counted(added.days, 'day')}" if added.is_new else "is there already"
        print(f"{source}: {what}{_left_out(added.dropped)}")
    if args.database is not None:
        new = add_database(lake, args.database, prompts=not args.without_prompts)
        print(f"router: {counted(new.votes, 'vote')} of {counted(new.days, 'day')}" if new else "router: no new votes")
    print(f"{lake.name}: {counted(lake.rows, 'vote')}")
    return 0


_RUN = {
    "lake": _lake,
    "check": _check,
    "import": _import,
    "from-scores": _from_scores,
    "sample": _sample,
    "split": _split,
    "slice": _slice,
}


def _left_out(count: int) -> str:
    return f" ({not_votes(count)} left out)" if count else ""


# Command: `p2l export-votes`: the votes that a router has collected, as training data.

_BATCH_ROWS = 10_000


@dataclass(frozen=True)
class Exported:
    """How many votes were written, and how many were not."""

    written: int
    without_prompt: int
    """Left out because their prompts were not stored."""
    thumbs: int
    """Left out because they compare nothing."""


def export_parser() -> argparse.ArgumentParser:
    """Return the flags of `p2l export-votes`."""
    flags = parser("p2l export-votes", "Write the votes that a router has collected as training data, oldest first.")
    cli.add_output(flags, "votes to write: .parquet, .jsonl(.gz) or .csv", required=True)
    _add_router_flags(
        flags,
        database="the router's database",
        without_prompts="leave the prompts out and write every vote: enough for leaderboards, not for training",
        required=True,
    )
    flags.add_argument(
        "--categories",
        metavar="DIR",
        help="add a column `category`: which of the clusters that `p2l explain` finds for this model a prompt is in",
    )
    return flags


def export_main(argv: Sequence[str] | None = None) -> int | None:
    """Run the command."""
    args = export_parser().parse_args(argv)
    counts = export_votes(args.database, args.output, prompts=not args.without_prompts, category_model=args.categories)
    print(f"{args.output}: {counted(counts.written, 'vote')}{_skipped_rows(counts)}")
    return None


def _skipped_rows(counts: Exported) -> str:
    parts = []
    if counts.without_prompt:
        parts.append(f"{counts.without_prompt:,} without a stored prompt (--without-prompts writes them)")
    if counts.thumbs:
        parts.append(f"{counts.thumbs:,} thumbs")
    return f"; left out: {', '.join(parts)}" if parts else ""


def export_votes(
    database: str | Path, output: str | Path, *, prompts: bool = True, category_model: str | None = None
) -> Exported:
    """Write the votes of a router's database to a file whose ending names the format; memory stays bounded.

    A row is an answer of two models (`compare: true`) that was voted on: prompt, model_a and model_b as they were
    shown, winner, tstamp (when they were shown), propensity (probability that these two were shown), model_version (of
    both, null where the router's configuration states none), question_id (the request's id), voter (a pseudonym of the
    visitor of the arena, else of the key, the same in every export of this database), network (a pseudonym of the
    visitor's address prefix), voter_battles and network_battles (how many battles they had begun by then, voted on or
    not), identity_revealed (whether an answer names its model or maker). Thumbs compare nothing and are left out. With
    `prompts`, so are votes whose prompt was not stored; without, there is no column `prompt`. With `category_model`, a
    column `category` names the cluster of a prompt, of those that `p2l explain` finds for this model in the newest
    prompts; it is null where the prompt was not stored.
    Raise InputError for a database that is missing, no router's or without votes, and for an output that cannot be
    written.
    """
    from p2l.votes.writing import write_votes

    check_can_write(output)
    with router_database(database) as connection:
        counts = _counts(connection, prompts=prompts)
        if not counts.written:
            raise InputError(f"{Path(database).name}: holds no votes to write{_skipped_rows(counts)}")
        schema = vote_schema(prompts=prompts)
        batches = _batches(connection, schema, prompts=prompts)
        if category_model is not None:
            schema, batches = _with_categories(connection, category_model, prompts=prompts)
        write_votes(batches, schema, output)
    return counts


_CLUSTERED_PROMPTS = 20_000  # the newest, of which clusters are formed


def _with_categories(connection: Any, model: str, *, prompts: bool) -> tuple[Any, Iterator[Any]]:
    """Return the schema and the batches of votes with the cluster of each prompt."""
    import pyarrow as pa

    from p2l.insight.answers import kinds_of_prompts

    stored = connection.execute(
        "SELECT prompt FROM votes WHERE model_b IS NOT NULL AND prompt IS NOT NULL ORDER BY time DESC LIMIT ?",
        (_CLUSTERED_PROMPTS,),
    )
    kinds = kinds_of_prompts(model, [json.loads(prompt) for (prompt,) in stored])
    whole = vote_schema(prompts=True)
    schema = vote_schema(prompts=prompts).append(pa.field("category", pa.string()))

    def batches() -> Iterator[Any]:
        for batch in _batches(connection, whole, prompts=prompts, read_prompts=True):
            texts = batch.column("prompt").to_pylist()
            names = iter(kinds([turns for turns in texts if turns is not None]))
            category = pa.array([None if turns is None else next(names) for turns in texts], pa.string())
            yield batch.append_column("category", category).select(schema.names)

    return schema, batches()


def _counts(connection: Any, *, prompts: bool) -> Exported:
    # A thumb is on one answer: it has no model_b, and count(model_b) passes over it.
    pairs, stored, votes = connection.execute(
        "SELECT count(model_b), count(CASE WHEN model_b IS NOT NULL THEN prompt END), count(*) FROM votes"
    ).fetchone()
    written = stored if prompts else pairs
    return Exported(written, pairs - written, votes - pairs)


def _batches(connection: Any, schema: Any, *, prompts: bool, read_prompts: bool | None = None) -> Iterator[Any]:
    import pyarrow as pa

    rows = connection.execute(
        f"SELECT {pair_columns(connection)} FROM votes "
        f"WHERE model_b IS NOT NULL {'AND prompt IS NOT NULL' if prompts else ''} ORDER BY time, request_id"
    )
    voters, read = Pseudonyms(connection), prompts if read_prompts is None else read_prompts
    while chunk := rows.fetchmany(_BATCH_ROWS):
        yield pa.RecordBatch.from_pylist([vote_of(voters, *row, prompts=read) for row in chunk], schema)


if __name__ == "__main__":
    run(main)
