"""Command: find what is broken or missing in a run, and open it for `run --continue`."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coeval.command import run
from p2l.command import parser, whole

if TYPE_CHECKING:
    from coeval.repairing import Found
    from coeval.storage.layout import Run

__all__ = ["build_parser", "main"]

_KINDS = {"3": ("data_generation",), "4": ("response_collection",), "5": ("evaluation", "pairwise")}
_SHOWN = 160


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = parser(
        "coeval repair",
        "Find records of no use and gaps; mark or remove the records, and open their phases for `run --continue`.",
    )
    flags.add_argument("--run", required=True, type=Path, metavar="PATH", help="folder of the run")
    flags.add_argument("--dry-run", action="store_true", help="say what would be done, change nothing")
    flags.add_argument("--stats", action="store_true", help="print counts alone, change nothing")
    flags.add_argument("--examples", type=_count, default=5, metavar="N", help="records of no use to show; -1: all")
    flags.add_argument("--phase", choices=tuple(_KINDS), help="look at one phase alone")
    flags.add_argument("--breakdown", action="store_true", help="count by file, and gaps by task and model")
    flags.add_argument("--show-valid", type=whole, default=0, metavar="N", help="sound records to show")
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; it ends with 1 where the folder holds no run, or another process is at work on it."""
    given = build_parser().parse_args(argv)
    from coeval.repairing import KINDS, examine, mend
    from coeval.storage.claims import main_process, replacing
    from coeval.storage.layout import Run
    from coeval.storage.meta import Meta

    folder = Run(given.run)
    Meta(folder)
    kinds = _KINDS[given.phase] if given.phase else KINDS
    if given.dry_run or given.stats:
        _print(folder, [found for kind, found in examine(folder).items() if kind in kinds], given)
        return 0
    with main_process(folder), replacing(folder):
        found = examine(folder)
        _print(folder, [found[kind] for kind in kinds], given)
        changed = mend(folder, found, kinds)
    lacking = any(found[kind].bad or found[kind].gaps for kind in kinds)
    hint = "`coeval run --config ... --continue` makes what is missing" if lacking else "nothing is missing"
    print(f"{changed} lines changed; {hint}")
    return 0


def _count(text: str) -> int:
    if text != "-1" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor -1 for all")
    return int(text)


def _print(folder: Run, found: Sequence[Found], given: argparse.Namespace) -> None:
    for one in found:
        if folder.record_files(one.kind) or one.gaps:
            print("\n".join(_told(folder, one, given)))


def _told(folder: Run, found: Found, given: argparse.Namespace) -> Iterator[str]:
    gaps = sum(gap.missing for gap in found.gaps)
    yield f"{found.kind}: {len(found.valid)} valid, {len(found.bad)} of no use, {gaps} missing"
    for why, count in found.reasons().most_common():
        yield f"  {count} {why}"
    if given.breakdown:
        yield from (f"  {name}: {count} of no use" for name, count in _by_file(found).most_common())
        yield from (f"  {gap.task}, {gap.model}: {gap.missing} missing" for gap in found.gaps)
    if not given.stats:
        bad = found.bad if given.examples < 0 else found.bad[: given.examples]
        yield from (f"  {one.path.name}:{one.line}: {one.id or 'no id'}: {one.why}" for one in bad)
        yield from _valid(folder, found, given.show_valid)


def _by_file(found: Found) -> Counter[str]:
    return Counter(bad.path.name for bad in found.bad)


def _valid(folder: Run, found: Found, count: int) -> Iterator[str]:
    from coeval.storage.jsonl import read_records

    records = (record for path in folder.record_files(found.kind) for record in read_records(path))
    sound = (record for record in records if record.get("id") in found.valid)
    for record, _ in zip(sound, range(count), strict=False):
        text = json.dumps(record, ensure_ascii=False)
        yield f"  valid: {text if len(text) <= _SHOWN else text[:_SHOWN] + '...'}"


if __name__ == "__main__":
    run(main)
