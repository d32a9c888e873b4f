"""Command: fit leaderboards of the students from what judges preferred, overall and by task."""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coeval.command import run
from coeval.commands.export_preferences import add_selection, tell_left_out, wanted_of
from p2l.command import parser, positive

if TYPE_CHECKING:
    from coeval.pairs.gathering import Gathered

__all__ = ["build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; it ends with 1 where the folder holds no run, or the run no preferences."""
    given = build_parser().parse_args(argv)
    from coeval.analysis.tables import plain
    from coeval.pairs.board import BoardOptions, boards, rows_of
    from coeval.pairs.gathering import gather
    from coeval.storage.jsonl import write_json
    from coeval.storage.layout import Run

    gathered = gather(Run(given.run), wanted_of(given))
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
    from p2l.command import atomic_path

    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _print(rows: Sequence[Mapping[str, Any]], gathered: Gathered) -> None:
    for task in dict.fromkeys(row["task"] for row in rows):
        print(task)
        for row in (one for one in rows if one["task"] == task):
            bounds = "" if row["lower"] is None else f"  [{row['lower']:.0f}, {row['upper']:.0f}]"
            print(f"  {row['rank']:>2}  {row['model']:<24} {row['score']:7.1f}{bounds}  {row['votes']} votes")
    for one in gathered.flips:
        print(f"{one.judge}: {one.flips} of {one.pairs} pairs flip with the order ({one.flip_rate:.1%})")


if __name__ == "__main__":
    run(main)
