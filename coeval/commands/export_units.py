"""Command: `coeval analyze export-units --run PATH --out PATH`, every valid score as a row of one flat table."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from coeval.command import run
from p2l.command import parser

__all__ = ["build_parser", "main"]

_FORMATS = ("csv", "parquet")


def build_parser() -> ArgumentParser:
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


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table; it ends with 1 where the folder holds no run, or --out contradicts --format."""
    args = build_parser().parse_args(argv)
    from coeval.analysis.unit_export import export_units
    from coeval.analysis.units import load_run
    from coeval.commands.outputs import file_of

    path, form = file_of(args.out, "--format", args.format, _FORMATS, "units")
    loaded = load_run(args.run)
    print(f"wrote {export_units(loaded, path, form=form, attributes=args.attributes)} scores to {path}")
    return 0


if __name__ == "__main__":
    run(main)
