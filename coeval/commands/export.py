"""Command: write what judges preferred as votes, which `p2l train` takes as they are."""

from __future__ import annotations

import argparse
import csv
import math
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coeval.cli import run
from coeval.errors import RunInputError
from p2l.common.cli import amount, parser, positive

if TYPE_CHECKING:
    from coeval.pairs.preferences import PreferenceFilter, PreferenceSet


def preferences_parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = parser(
        "coeval analyze export-preferences",
        "Write preferences between students as votes for `p2l train`: train and val parts, and model_list.json.",
    )
    flags.add_argument("--run", required=True, type=Path, metavar="PATH", help="folder of the run")
    flags.add_argument("--out", required=True, type=Path, metavar="PATH", help="folder to write")
    flags.add_argument(
        "--format",
        choices=("jsonl", "parquet", "hf"),
        default="jsonl",
        help="of the votes; hf: a folder as `datasets` saves it",
    )
    flags.add_argument("--val-share", type=_share, default=0.1, metavar="S", help="share of the prompts held out")
    add_selection(flags)
    return flags


def add_selection(flags: argparse.ArgumentParser) -> None:
    """Add what chooses the preferences."""
    flags.add_argument(
        "--source",
        choices=("auto", "native", "derived"),
        default="auto",
        help="native: verdicts on pairs; derived: from scores; auto: verdicts for tasks that have them, else scores",
    )
    flags.add_argument(
        "--rows", choices=("judge", "majority"), default="judge", help="a vote of each judge, or one of all together"
    )
    flags.add_argument("--judges", type=_names, default=(), metavar="A,B", help="of these judges alone")
    flags.add_argument("--keep-self-judged", action="store_true", help="keep what a judge says about its own answers")
    flags.add_argument("--margin", type=amount, default=0.1, help="derived: the better has to be ahead by more")
    flags.add_argument("--bad", type=amount, default=0.25, help="derived: a tie of scores up to this is of both bad")
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
    flags.add_argument("--seed", type=int, default=0, help="derived: of which model is model_a")


def filter_of(given: argparse.Namespace) -> PreferenceFilter:
    """What the flags of `add_selection` say."""
    from coeval.pairs.preferences import PreferenceFilter, Rule

    rule = Rule(given.margin, given.bad, dict(given.factor_weight), given.scores_of, given.seed)
    return PreferenceFilter(given.source, given.rows, given.judges, given.keep_self_judged, rule)


def tell_left_out(gathered: PreferenceSet) -> None:
    """Say on stderr which records were of no use, and that self-judged preferences do not count."""
    for one in gathered.skipped:
        print(f"skipped: {one.count} {one.code}, such as {one.example}", file=sys.stderr)
    if gathered.self_judged:
        print(
            f"{gathered.self_judged} self-judged preferences left out; --keep-self-judged keeps them", file=sys.stderr
        )


def _share(text: str) -> float:
    share = amount(text)
    if share >= 1:
        raise argparse.ArgumentTypeError(f"must be below 1, got {text}")
    return share


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _weight(text: str) -> tuple[str, float]:
    factor, equals, weight = text.rpartition("=")
    if not equals or not factor:
        raise argparse.ArgumentTypeError(f"must be FACTOR=WEIGHT, such as clarity=2, got {text}")
    return factor, amount(weight)


def preferences_main(argv: Sequence[str] | None = None) -> int:
    """Run the command; it ends with 1 where the folder holds no run, or the run no preferences."""
    given = preferences_parser().parse_args(argv)
    from coeval.pairs.export import export
    from coeval.pairs.preferences import gather
    from coeval.storage.run import Run

    folder = Run(given.run)
    gathered = gather(folder, filter_of(given))
    tell_left_out(gathered)
    done = export(folder, gathered, given.out, given.format, given.val_share)
    if done.without_prompt:
        print(f"{done.without_prompt} preferences left out: their items have no prompt", file=sys.stderr)
    print(f"{given.out}: {done.train} votes to train on, {done.validation} to validate on, {done.prompts} prompts,")
    print(f"{len(done.models)} models: {', '.join(done.models)}")
    print(f"train on them: p2l train --votes {_source(given)}")
    return 0


def _source(given: argparse.Namespace) -> str:
    ending = "" if given.format == "hf" else f".{given.format}"
    train, validation = (given.out / f"{part}{ending}" for part in ("train", "val"))
    return f"{train}" + (f" --val {validation}" if validation.exists() else "")


# Command: `coeval analyze export-units --run PATH --out PATH`, every valid score as a row of one flat table.

_FORMATS = ("csv", "parquet")


def units_parser() -> ArgumentParser:
    """The flags."""
    flags = parser("coeval analyze export-units", "Write every valid score as a row of one flat table.")
    flags.add_argument("--run", required=True, type=Path, metavar="PATH", help="folder of the run")
    flags.add_argument("--out", required=True, type=Path, metavar="PATH", help="file, or folder for units.csv")
    flags.add_argument("--format", choices=_FORMATS, help="of the file; without it as --out ends, else csv")
    flags.add_argument(
        "--attributes",
        choices=("columns", "json", "none"),
        default="columns",
        help="target attributes of items: a column `attribute.NAME` each, one column of JSON, or left out",
    )
    return flags


def units_main(argv: Sequence[str] | None = None) -> int:
    """Write the table; it ends with 1 where the folder holds no run, or --out contradicts --format."""
    args = units_parser().parse_args(argv)
    from coeval.analysis.export import export_units
    from coeval.analysis.units import load_run

    path, form = file_of(args.out, "--format", args.format, _FORMATS, "units")
    loaded = load_run(args.run)
    print(f"wrote {export_units(loaded, path, form=form, attributes=args.attributes)} scores to {path}")
    return 0


# Command: fit leaderboards of the students from what judges preferred, overall and by task.


def leaderboard_parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = parser(
        "coeval analyze pairs-leaderboard",
        "Fit leaderboards from preferences between students, overall, by task and by attribute; intervals draw items.",
    )
    flags.add_argument("--run", required=True, type=Path, metavar="PATH", help="folder of the run")
    flags.add_argument("--out", required=True, type=Path, metavar="PATH", help="folder to write JSON and CSV to")
    flags.add_argument(
        "--likelihood",
        choices=("bt", "bt-tie", "rk", "grk"),
        default="rk",
        help="of outcomes: Bradley-Terry without or with ties, Rao-Kupper, grounded Rao-Kupper (both bad)",
    )
    flags.add_argument("--replicates", type=positive, default=200, metavar="N", help="of the bootstrap; 2 or more")
    flags.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help='JSON {model: coefficient}, or {"coefs": {...}, "eta": x}: an aggregate of a P2L to compare with',
    )
    add_selection(flags)
    return flags


def leaderboard_main(argv: Sequence[str] | None = None) -> int:
    """Run the command; it ends with 1 where the folder holds no run, or the run no preferences."""
    given = leaderboard_parser().parse_args(argv)
    from coeval.analysis.tables import plain
    from coeval.pairs.board import BoardOptions, boards, rows_of
    from coeval.pairs.preferences import gather
    from coeval.storage.jsonl import write_json
    from coeval.storage.run import Run

    gathered = gather(Run(given.run), filter_of(given))
    tell_left_out(gathered)
    options = BoardOptions(given.likelihood, replicates=given.replicates, seed=given.seed)
    found = boards(gathered.preferences, options, gathered.attributes)
    every = [row for part, one in found.items() for row in rows_of(part, one)]
    rows, attributes = ([row for row in every if bool(row["attribute"]) is kind] for kind in (False, True))
    result = {
        "likelihood": given.likelihood,
        "preferences": len(gathered.preferences),
        "self_judged": gathered.self_judged,
        "skipped": plain(gathered.skipped),
        "flips": plain(gathered.flips),
        "notes": {" ".join(part).strip(): list(one.notes) for part, one in found.items() if one.notes},
        "rows": rows,
        "attributes": attributes,
    }
    if given.against is not None:
        result["against"] = _against(given.against, found)
    write_json(given.out / "pairs_leaderboard.json", result)
    _write_csv(given.out / "pairs_leaderboard.csv", every)
    _print(rows, gathered)
    if given.against is not None:
        numbers = {name: value for name, value in result["against"].items() if isinstance(value, float)}
        print(f"against {given.against}: " + ", ".join(f"{name} {value:.3f}" for name, value in numbers.items()))
    print(f"wrote {given.out / 'pairs_leaderboard.json'} and .csv")
    return 0


def _against(path: Path, found: Mapping[Any, Any]) -> dict[str, Any]:
    from coeval.errors import RunInputError
    from coeval.pairs.board import OVERALL, Slice, compared
    from coeval.storage.jsonl import read_json

    given = read_json(path)
    whole = given if isinstance(given, dict) and isinstance(given.get("coefs"), dict) else {"coefs": given}
    coefs, eta = whole["coefs"], whole.get("eta")
    if not isinstance(coefs, dict) or not all(map(_is_number, coefs.values())):
        raise RunInputError(f"{path}: cannot be read, or is no JSON object of model names and coefficients")
    if eta is not None and not _is_number(eta):
        raise RunInputError(f"{path}: eta must be a number, not {eta!r}")
    return compared(found[Slice(OVERALL)], coefs, eta)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    from p2l.common.files import atomic_path

    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _print(rows: Sequence[Mapping[str, Any]], gathered: PreferenceSet) -> None:
    for task in dict.fromkeys(row["task"] for row in rows):
        print(task)
        for row in (one for one in rows if one["task"] == task):
            bounds = "" if row["lower"] is None else f"  [{row['lower']:.0f}, {row['upper']:.0f}]"
            print(f"  {row['rank']:>2}  {row['model']:<24} {row['score']:7.1f}{bounds}  {row['votes']} votes")
    for one in gathered.flips:
        print(f"{one.judge}: {one.flips} of {one.pairs} pairs flip with the order ({one.flip_rate:.1%})")


# Where a command writes its one file, and in which format: what `--out` and a flag of formats say together.

_OTHER_FILES = ("txt", "json", "jsonl", "csv", "tsv", "parquet", "xlsx", "gz")


def file_of(out: Path, flag: str, given: str | None, formats: Sequence[str], name: str) -> tuple[Path, str]:
    """The file to write and its format.

    Args:
        out: `--out`: a file whose ending is a format, or a folder.
        flag: that chooses the format.
        given: what it says; None: the ending decides, else the first of `formats`.
        formats: that there are.
        name: of the file in a folder, without the ending.

    Raises:
        RunInputError: ending and flag contradict each other, or the ending is that of another kind of file.
    """
    ending = out.suffix.removeprefix(".").lower()
    if ending in _OTHER_FILES and ending not in formats and not out.is_dir():
        raise RunInputError(
            f"--out {out}: ends in .{ending}; give a folder, or a file that ends in .{' or .'.join(formats)}"
        )
    if ending not in formats:
        form = given or formats[0]
        return out / f"{name}.{form}", form
    if given not in (None, ending):
        raise RunInputError(
            f"--out {out} ends in .{ending} and {flag} is {given}: leave out {flag}, or change the ending"
        )
    return out, ending


if __name__ == "__main__":
    run(preferences_main)
