"""Command: would more votes help, or another model? The held-out loss over growing parts of a file of votes.

p2l scaling --votes votes.parquet
p2l scaling --votes votes.parquet --also encoder=encoders/e5-base --price 0.12 --output curve.json --plot curve.png
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from p2l.common.cli import add_backbone, add_encoder, add_output, add_plot, add_quiet, add_votes, parser, positive, run
from p2l.common.errors import ConfigError
from p2l.common.files import write_json
from p2l.common.plots import check_outputs

if TYPE_CHECKING:
    from p2l.evaluation.vote_curve import Variant, VoteCurve

_KINDS = ("size", "encoder", "backbone")
_ENDINGS = (".json", ".csv")


_GROUPS = {
    "models": ("--size", "--encoder", "--backbone", "--also"),
    "output": ("--folder", "--output", "--plot", "--quiet"),
}


def build_parser(prog: str = "p2l scaling") -> argparse.ArgumentParser:
    """Return the flags of the command."""
    flags = parser(
        prog, "Train on growing parts of your votes, and say what more votes or another model would be worth."
    )
    add_votes(flags, "votes: a file, folder or hub id", required=True)
    flags.add_argument("--size", metavar="NAME", help="the model, as in p2l train (default: reader)")
    add_encoder(flags, "the reader's sentence encoder, as in p2l train")
    add_backbone(flags, "a text model of your own, as in p2l train")
    flags.add_argument(
        "--also",
        metavar="MODEL",
        action="append",
        default=[],
        help="another model to train on all votes: a size, or encoder=DIR or backbone=DIR (may be repeated)",
    )
    flags.add_argument("--draws", type=positive, default=2, metavar="N", help="parts of each size that are trained on")
    flags.add_argument("--price", type=float, metavar="X", help="what one vote costs, for the cost of twice the votes")
    flags.add_argument(
        "--folder",
        metavar="DIR",
        help="work folder, where a stopped run goes on (default: outputs/ and the votes' name)",
    )
    add_output(flags, "also write everything (.json), or a line per model (.csv)")
    add_plot(flags, "also draw the curve")
    add_quiet(flags)
    flags.arrange(_GROUPS)
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    args = build_parser().parse_args(argv)
    if args.output is not None and not args.output.endswith(_ENDINGS):
        raise ConfigError(f"--output {args.output}: must end in {' or '.join(_ENDINGS)}")
    check_outputs(args.output, args.plot, args.votes)
    if args.price is not None and not 0 <= args.price < float("inf"):
        raise ConfigError(f"--price {args.price}: must be a number of at least 0")
    variants = [_first(args), *map(_variant, args.also)]
    if len({variant.name for variant in variants}) < len(variants):
        raise ConfigError("--also names a model twice; name each once")
    from p2l.evaluation.vote_curve import measure

    stem = Path(args.votes).name.split(".")[0] or "votes"
    folder = Path(args.folder or Path("outputs") / f"{stem}-scaling").expanduser()
    curve = measure(args.votes, variants, folder, draws=args.draws, quiet=args.quiet)
    print(curve.to_text(args.price))
    if args.output is not None:
        _write(curve, args.output, args.price)
    if args.plot is not None:
        from p2l.common.report.images import save_picture

        save_picture(args.plot, curve.figure())
    for path in filter(None, (args.output, args.plot)):
        print(f"wrote {path}", file=sys.stderr)


def _first(args: argparse.Namespace) -> Variant:
    from p2l.evaluation.vote_curve import Variant

    named = [Path(getattr(args, kind)).name for kind in _KINDS if getattr(args, kind)]
    return Variant(" ".join(named) or "reader", args.size, args.encoder, args.backbone)


def _variant(text: str) -> Variant:
    """Return the model that `--also` names; ConfigError for an unknown kind."""
    from p2l.evaluation.vote_curve import Variant

    kind, equals, name = text.partition("=")
    kind, name = (kind, name) if equals else ("size", text)
    if kind not in _KINDS or not name:
        raise ConfigError(f"--also {text}: unknown; use a size, or encoder=DIR or backbone=DIR")
    return Variant(text, **{kind: name})


def _write(curve: VoteCurve, path: str, price: float | None) -> None:
    if path.endswith(".json"):
        write_json(path, curve.to_dict(price), indent=2)
        return
    from p2l.common.report.text import write_csv

    write_csv(curve.points_table(), path)


if __name__ == "__main__":
    run(main)
