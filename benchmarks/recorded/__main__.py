"""Replay recorded traffic of providers through a router: which answers are told, which requests arrive whole.

    python -m benchmarks.recorded FOLDER [--list]

FOLDER has a `KIND.jsonl.gz` for each protocol. `--list` names each answer and request that differs. Some recorded
answers are faults within a 200: no JSON, an error, a refused prompt, a call of a tool that was not offered. A client
has to be told an error of these.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.recorded.replay import DIALECTS, NATIVE, ClientDialect, Replay, differences, replaying
from benchmarks.recorded.telling import is_fault, told_by_provider
from benchmarks.recorded.traffic import KINDS, Exchange, read_exchanges
from benchmarks.tables import table


async def answers(replay: Replay, folder: Path, kind: str, listed: bool) -> list[list[str]]:
    """Return a row for each client dialect: how many recorded answers it is told as they were, and faults as errors."""
    rows = []
    exchanges = [exchange for exchange in read_exchanges(folder, kind) if exchange.status == 200]
    for name, dialect in DIALECTS.items():
        right, total, refused, faults = 0, 0, 0, 0
        for exchange in exchanges:
            for stream in {kind != "bedrock", exchange.is_stream}:
                wrong = await _wrong(replay, exchange, dialect, stream=stream)
                if is_fault(exchange):
                    faults += 1
                    refused += "error" in wrong
                    continue
                total += 1
                right += not wrong
                if wrong and listed:
                    print(kind, name, "stream" if stream else "whole", exchange.name, str(wrong)[:400])
        rows.append([kind, name, f"{right} of {total}", f"{refused} of {faults}" if faults else ""])
    return rows


async def _wrong(replay: Replay, exchange: Exchange, dialect: ClientDialect, *, stream: bool) -> dict[str, Any]:
    """Return what a client is told otherwise than it was recorded, or the error that it gets instead."""
    try:
        told = await replay.told(exchange, dialect, stream=stream)
    except (ValueError, LookupError, TypeError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    if is_fault(exchange):
        return {}
    return {
        field: (value, getattr(told, field))
        for field, value in vars(told_by_provider(exchange)).items()
        # An ending that the provider left blank follows from what it sent.
        if value != getattr(told, field) and not (field in ("tokens", "finish") and not value)
    }


async def requests(replay: Replay, folder: Path, kind: str, listed: bool) -> list[str]:
    """Return a row: how many recorded requests are accepted, and how many arrive whole at the same protocol."""
    accepted, whole, total, lost = 0, 0, 0, Counter[str]()
    for exchange in read_exchanges(folder, kind):
        if exchange.status != 200:
            continue
        total += 1
        status, error, received, _ = await replay.passed(exchange, kind)
        changed = differences(exchange.request, received) if status == 200 else []
        accepted += status == 200
        whole += status == 200 and not changed
        lost.update(changed)
        if listed and (error or changed):
            print(kind, exchange.name, status, error[:300], changed)
    return [kind, f"{accepted} of {total}", str(whole), ", ".join(f"{name} {n}" for name, n in lost.most_common())]


async def _main(folder: Path, kinds: list[str], listed: bool) -> None:
    logging.disable(logging.WARNING)
    async with replaying() as replay:
        told = [row for kind in kinds for row in await answers(replay, folder, kind, listed)]
        print(table(["recorded answers of", "through", "told as recorded", "faults told as errors"], told), "\n")
        rows = [await requests(replay, folder, kind, listed) for kind in kinds if kind in NATIVE]
        print(table(["recorded requests to", "accepted", "arrive whole", "fields that differ"], rows))


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the recorded traffic")
    parser.add_argument("--kind", action="append", help="one protocol (default: all)")
    parser.add_argument("--list", action="store_true", help="name each answer and request that differs")
    return parser


def main() -> None:
    """Replay what the flags say."""
    flags = build_parser().parse_args()
    asyncio.run(_main(flags.folder, flags.kind or list(KINDS), flags.list))


if __name__ == "__main__":
    main()
