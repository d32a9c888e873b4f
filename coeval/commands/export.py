"""Commands of `coeval analyze` for the figures of a run elsewhere: preferences, units, tables, leaderboards, people."""

from __future__ import annotations

import csv
import math
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from coeval.cli import add_out, names, run_flags
from coeval.errors import RunInputError
from p2l.common.cli import add_seed, amount, number_of, positive
from p2l.common.program import Parser
from p2l.common.spreadsheets import to_cell

if TYPE_CHECKING:
    from coeval.analysis.annotations import Annotations
    from coeval.analysis.units import LoadedRun
    from coeval.pairs.preferences import PreferenceSet

_UNIT_FORMATS = ("csv", "parquet")
_PICTURES = (".svg", ".pdf", ".png")
_OTHER_FORMATS = ("txt", "json", "jsonl", "csv", "tsv", "parquet", "xlsx", "gz")


def preferences_parser() -> ArgumentParser:
    """Return the flags of `coeval analyze export-preferences`."""
    flags = run_flags(
        "analyze export-preferences",
        "Write preferences between students as votes for `p2l train`: train and val parts, and model_list.json.",
    )
    add_out(flags, "folder to write")
    flags.add_argument(
        "--format",
        choices=("jsonl", "parquet", "hf"),
        default="jsonl",
        help="of the votes; hf: a folder as `datasets` saves it",
    )
    flags.add_argument("--val-share", type=_share, default=0.1, metavar="S", help="share of the prompts held out")
    _add_selection(flags)
    return flags


def _add_selection(flags: Parser) -> None:
    """Add the flags that `_gather` reads."""
    flags.add_argument(
        "--source",
        choices=("auto", "native", "derived"),
        default="auto",
        help="native: verdicts on pairs; derived: from scores; auto: verdicts for tasks that have them, else scores",
    )
    flags.add_argument(
        "--rows", choices=("judge", "majority"), default="judge", help="one vote of each judge, or one majority vote"
    )
    _add_annotations(flags, "votes from scores then say what `calibrate` makes of the students")
    flags.add_argument("--judges", type=names, default=(), metavar="A,B", help="of these judges alone")
    flags.add_argument("--keep-self-judged", action="store_true", help="keep what a judge says about its own answers")
    flags.add_argument("--keep-flagged", action="store_true", help="derived: keep judges with a bias or fault")
    flags.add_argument(
        "--margin", type=amount, default=0.1, help="derived: difference of scores above which the higher one wins"
    )
    flags.add_argument("--bad", type=amount, default=0.25, help="derived: ties of scores up to this count as both bad")
    flags.add_argument(
        "--factor-weight",
        type=_weight,
        action="append",
        default=[],
        metavar="FACTOR=W",
        help="derived: weight of a factor, that of the rubric by default; may be given several times",
    )
    flags.add_argument(
        "--scores-of", choices=("model", "metric", "label"), default="model", help="derived: whose scores count"
    )
    add_seed(flags, "derived: of which model is model_a")
    flags.arrange(
        {
            "which verdicts count": (
                "--source",
                "--rows",
                "--judges",
                "--keep-self-judged",
                "--keep-flagged",
                "--annotations",
                "--scores-of",
            ),
            "how scores become votes": ("--margin", "--bad", "--factor-weight", "--seed"),
        }
    )


def _gather(arguments: Namespace) -> PreferenceSet:
    """Gather the preferences; print to stderr which records were unusable, and how many are self-judged."""
    from coeval.analysis.people import corrected_run
    from coeval.analysis.units import load_run
    from coeval.analysis.votes import Rule
    from coeval.pairs.preferences import PreferenceFilter, gather

    rule = Rule(
        margin=arguments.margin,
        bad=arguments.bad,
        weights=dict(arguments.factor_weight),
        kind=arguments.scores_of,
        seed=arguments.seed,
    )
    selection = PreferenceFilter(
        source=arguments.source,
        rows=arguments.rows,
        judges=arguments.judges,
        keep_self_judged=arguments.keep_self_judged,
        keep_flagged=arguments.keep_flagged,
        rule=rule,
    )
    loaded = load_run(arguments.run)
    annotations = _annotations(arguments, loaded)
    scores = None if annotations is None else corrected_run(loaded, annotations).score
    preferences = gather(loaded, selection, scores)
    for row in preferences.skipped:
        print(f"skipped: {row.count} {row.code}, such as {row.example}", file=sys.stderr)
    if preferences.self_judged:
        count = preferences.self_judged
        print(f"{count} self-judged preferences left out; --keep-self-judged keeps them", file=sys.stderr)
    for judge, why in preferences.flagged.items():
        print(f"votes of {judge} left out ({why}); --keep-flagged keeps them", file=sys.stderr)
    for note in preferences.notes:
        print(note, file=sys.stderr)
    return preferences


def _say_disagreement(preferences: PreferenceSet, *, by_people: bool) -> None:
    """Print to stderr where the votes put another student first than the report, or people with it, do."""
    from coeval.pairs.board import OVERALL, BoardOptions, Slice, boards

    if not preferences.first:
        return
    board = boards(preferences.preferences, BoardOptions(intervals=None))[Slice(OVERALL)]
    first = board.models[int(board.coefs.argmax())]
    if first == preferences.first:
        return
    why = "no weights of these votes say that, so that they are as the judges gave them"
    if preferences.first not in board.models:
        why = "there is no vote on it"
    print(
        f"these votes put {first} first, {'people and judges' if by_people else 'the report on students'} put "
        f"{preferences.first} first: {why}",
        file=sys.stderr,
    )


def _share(text: str) -> float:
    return number_of(text, float, lambda share: 0 <= share < 1, "a number of at least 0 and below 1")


def _weight(text: str) -> tuple[str, float]:
    factor, equals, weight = text.rpartition("=")
    if not equals or not factor:
        raise ArgumentTypeError(f"must be FACTOR=WEIGHT, such as clarity=2, got {text!r}")
    return factor, amount(weight)


def preferences_main(argv: Sequence[str] | None = None) -> int:
    """Write preferences as votes; 1 where the folder holds no run, or the run no preferences."""
    arguments = preferences_parser().parse_args(argv)
    from coeval.pairs.export import export
    from coeval.storage.run import Run

    preferences = _gather(arguments)
    votes = export(Run(arguments.run), preferences, arguments.out, arguments.format, arguments.val_share)
    _say_disagreement(preferences, by_people=arguments.annotations is not None)
    if votes.without_prompt:
        print(f"{votes.without_prompt} preferences left out: their items have no prompt", file=sys.stderr)
    counts = f"{votes.train} votes to train on, {votes.validation} to validate on, {votes.prompts} prompts"
    print(f"{arguments.out}: {counts},\n{len(votes.models)} models: {', '.join(votes.models)}")
    ending = "" if arguments.format == "hf" else f".{arguments.format}"
    train, validation = (arguments.out / f"{part}{ending}" for part in ("train", "val"))
    control = ""
    if votes.one_order:
        print(
            f"{votes.one_order} verdicts are of one order, model_a's answer first; --control one_order tells what each "
            "judge's preference for the first is worth"
        )
        control = " --control one_order"
    print(f"rank by them: p2l leaderboard --weighted --votes {arguments.out}{control}")
    validated = f" --val {validation}" if validation.exists() else ""
    print(f"train on them: p2l train --votes {train}{validated}{control}")
    return 0


def units_parser() -> ArgumentParser:
    """Return the flags of `coeval analyze export-units`."""
    flags = run_flags("analyze export-units", "Write every valid score as a row of one flat table.")
    add_out(flags, "file, or folder for units.csv")
    flags.add_argument("--format", choices=_UNIT_FORMATS, help="of the file; without it as --out ends, else csv")
    flags.add_argument(
        "--attributes",
        choices=("columns", "json", "none"),
        default="columns",
        help="target attributes of items: a column `attribute.NAME` each, one column of JSON, or left out",
    )
    return flags


def units_main(argv: Sequence[str] | None = None) -> int:
    """Write the table; 1 where the folder holds no run, or --out contradicts --format."""
    arguments = units_parser().parse_args(argv)
    from coeval.analysis.units import load_run
    from coeval.reports.units_table import export_units

    path, form = file_of(arguments.out, "--format", arguments.format, _UNIT_FORMATS, "units")
    count = export_units(load_run(arguments.run), path, form=form, attributes=arguments.attributes)
    print(f"wrote {count} scores to {path}")
    return 0


def tables_parser() -> ArgumentParser:
    """Return the flags of `coeval analyze tables`."""
    flags = run_flags("analyze tables", "Write tables for a paper, with intervals and marks of significance.")
    add_out(flags, "file to write; otherwise they are printed", required=False)
    flags.add_argument("--format", choices=("latex", "md"), default="md", help="LaTeX is for the package booktabs")
    flags.add_argument(
        "--tables", nargs="+", choices=_TABLES, default=list(_TABLES), metavar="NAME", help=f"of {', '.join(_TABLES)}"
    )
    flags.add_argument("--digits", type=positive, default=3, metavar="N", help="after the point")
    flags.add_argument(
        "--plot",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="the ranking as a figure (svg, pdf or png), with its data in a CSV file beside the first",
    )
    return flags


# Those of coeval.reports.paper, whose import --help need not wait for.
_TABLES = ("students", "differences", "judges", "teachers", "pairs")


def tables_main(argv: Sequence[str] | None = None) -> int:
    """Write the tables; 1 where the folder holds no run, or no scores."""
    arguments = tables_parser().parse_args(argv)
    from coeval.analysis.units import load_run
    from coeval.errors import RunInputError
    from coeval.reports.paper import FORMATS, paper_tables
    from p2l.common.files import atomic_path, check_can_write

    loaded = load_run(arguments.run)
    tables = paper_tables(loaded, arguments.digits, arguments.tables)
    if not tables:
        either = ", and no verdicts on pairs" if "pairs" in arguments.tables else ""
        raise RunInputError(f"{arguments.run}: has no scores to make tables of{either}")
    if loaded.header.partial:
        print(f"warning: {arguments.run} {loaded.header.may_change}", file=sys.stderr)
    if arguments.plot:
        _plot_ranking(loaded, arguments.plot)
    text = "\n".join(FORMATS[arguments.format](table, arguments.digits) for table in tables)
    if arguments.out is None:
        print(text, end="")
        return 0
    with atomic_path(check_can_write(arguments.out)) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(f"wrote {len(tables)} tables to {arguments.out}")
    return 0


def _plot_ranking(loaded: LoadedRun, paths: Sequence[Path]) -> None:
    """Draw the ranking into files, and write its data beside the first."""
    from coeval.reports.paper import ranking_figure
    from p2l.common.files import atomic_path, check_can_write
    from p2l.common.report.images import save_picture

    figure = ranking_figure(loaded)
    if figure is None:
        raise RunInputError("--plot: nothing connects the students, so that there is no ranking to draw")
    for path in paths:
        if path.suffix.lower() not in _PICTURES:
            raise RunInputError(f"--plot {path}: must end in {', '.join(_PICTURES)}")
        check_can_write(path)
    save_picture(paths, figure)
    (numbers,) = figure.numbers
    data = paths[0].with_suffix(".csv")
    with atomic_path(data) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([column.title for column in numbers.columns])
        writer.writerows([[to_cell(cell) for cell in row] for row in numbers.rows])
    print(f"wrote {', '.join(map(str, [*paths, data]))}", file=sys.stderr)


def leaderboard_parser() -> ArgumentParser:
    """Return the flags of `coeval analyze pairs-leaderboard`."""
    flags = run_flags(
        "analyze pairs-leaderboard",
        "Fit leaderboards from preferences between students, overall, by task and by attribute; intervals draw items.",
    )
    add_out(flags, "folder to write JSON and CSV to")
    flags.add_argument(
        "--likelihood",
        choices=("bt", "bt-tie", "rk", "grk"),
        help="of outcomes: Bradley-Terry without or with ties, Rao-Kupper, grounded Rao-Kupper (both bad); "
        "by default the first of bt, rk and grk that has all outcomes there are",
    )
    flags.add_argument("--replicates", type=positive, default=200, metavar="N", help="of the bootstrap; 2 or more")
    flags.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help='JSON {model: coefficient}, or {"coefs": {...}, "eta": x}: an aggregate of a P2L to compare with',
    )
    _add_selection(flags)
    return flags


def leaderboard_main(argv: Sequence[str] | None = None) -> int:
    """Fit the leaderboards; 1 where the folder holds no run, or the run no preferences."""
    arguments = leaderboard_parser().parse_args(argv)
    from coeval.analysis.tables import plain
    from coeval.pairs.board import OVERALL, BoardOptions, Slice, boards, rows_of
    from coeval.reports.texts import boards_text
    from coeval.storage.records import write_json
    from p2l.common.files import atomic_path

    preferences = _gather(arguments)
    options = BoardOptions(arguments.likelihood, replicates=arguments.replicates, seed=arguments.seed)
    tables = boards(preferences.preferences, options, preferences.attributes, preferences.clusters)
    _say_disagreement(preferences, by_people=arguments.annotations is not None)
    every = [row for part, table in tables.items() for row in rows_of(part, table)]
    rows = [row for row in every if not row["attribute"]]
    report = {
        "likelihood": tables[Slice(OVERALL)].likelihood,
        "preferences": len(preferences.preferences),
        "self_judged": preferences.self_judged,
        "skipped": plain(preferences.skipped),
        "flips": plain(preferences.flips),
        "notes": {" ".join(part).strip(): list(table.notes) for part, table in tables.items() if table.notes},
        "rows": rows,
        "attributes": [row for row in every if row["attribute"]],
    }
    path = arguments.out / "pairs_leaderboard.json"
    if arguments.against is not None:
        report["against"] = _against(arguments.against, tables)
    write_json(path, report)
    with atomic_path(path.with_suffix(".csv")) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(every[0]))
        writer.writeheader()
        writer.writerows({name: to_cell(entry) for name, entry in row.items()} for row in every)
    print(boards_text(rows, preferences.flips))
    if arguments.against is not None:
        figures = [f"{name} {value:.3f}" for name, value in report["against"].items() if isinstance(value, float)]
        print(f"against {arguments.against}: {', '.join(figures)}")
    print(f"wrote {path} and .csv")
    return 0


def _against(path: Path, tables: Mapping[Any, Any]) -> dict[str, Any]:
    from coeval.pairs.board import OVERALL, Slice, compared
    from coeval.storage.records import read_json

    content = read_json(path)
    whole = content if isinstance(content, dict) and isinstance(content.get("coefs"), dict) else {"coefs": content}
    coefs, eta = whole["coefs"], whole.get("eta")
    if not isinstance(coefs, dict) or not all(map(_is_number, coefs.values())):
        raise RunInputError(f"{path}: cannot be read, or is not a JSON object of model names and coefficients")
    if eta is not None and not _is_number(eta):
        raise RunInputError(f"{path}: eta must be a number, not {eta!r}")
    return compared(tables[Slice(OVERALL)], coefs, eta)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def file_of(out: Path, flag: str, form_flag: str | None, formats: Sequence[str], name: str) -> tuple[Path, str]:
    """Return the file to write and its format, by `--out` and the value of the flag that chooses one of `formats`.

    `out` is a file whose ending is a format, or a folder for the file `name`. Without the flag the ending decides, else
    the first format. Raise RunInputError where both contradict each other, or the ending is of another kind of file.
    """
    ending = out.suffix.removeprefix(".").lower()
    if ending in _OTHER_FORMATS and ending not in formats and not out.is_dir():
        raise RunInputError(
            f"--out {out}: ends in .{ending}; give a folder, or a file that ends in .{' or .'.join(formats)}"
        )
    if ending not in formats:
        form = form_flag or formats[0]
        return out / f"{name}.{form}", form
    if form_flag not in (None, ending):
        raise RunInputError(
            f"--out {out} ends in .{ending} and {flag} is {form_flag}: leave out {flag}, or change the ending"
        )
    return out, ending


def calibrate_parser() -> ArgumentParser:
    """Return the flags of `coeval calibrate`."""
    flags = run_flags(
        "calibrate", "Correct students by people who scored some of the answers, and say which to score next."
    )
    _add_annotations(flags, "without it, which answers people should score first")
    add_out(flags, "folder for the page and the tables")
    return flags


def _add_annotations(flags: Parser, about: str) -> None:
    flags.add_argument(
        "--annotations",
        type=Path,
        metavar="FILE",
        help="people's scores, CSV or JSON lines: response_id (or datapoint_id and student), factor, score, and "
        f"annotator if known; {about}",
    )


def _annotations(arguments: Namespace, loaded: LoadedRun) -> Annotations | None:
    """Read people's scores, and print to stderr which rows cannot be used; None without a file."""
    from coeval.analysis.annotations import WHY, read_annotations

    if arguments.annotations is None:
        return None
    annotations = read_annotations(arguments.annotations, loaded)
    for row in annotations.bad:
        print(f"left out: {row.count} {row.code}: {WHY[row.code]}; such as {row.example}", file=sys.stderr)
    return annotations


def calibrate_main(argv: Sequence[str] | None = None) -> int:
    """Write the report; it ends with 1 where the folder holds no run, or no annotation can be used."""
    args = calibrate_parser().parse_args(argv)
    from coeval.analysis.annotations import no_annotations
    from coeval.analysis.people import calibration
    from coeval.analysis.tables import write_tables
    from coeval.analysis.units import load_run
    from coeval.reports.judges import write_people
    from coeval.reports.texts import calibration_text

    loaded = load_run(args.run)
    annotations = _annotations(args, loaded) or no_annotations()
    report = calibration(loaded, annotations)
    tables = write_tables(cast("Any", report), args.out)
    print(calibration_text(report))
    print(f"wrote {write_people(report, args.out)} and {len(tables)} tables")
    return 0
