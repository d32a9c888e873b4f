"""Replay recorded traffic of providers through a router: which answers are told, which requests arrive whole.

    python -m benchmarks.recorded FOLDER [--list]

FOLDER has a `KIND.jsonl.gz` for each protocol. `--list` names each answer and request that differs.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections import Counter
from pathlib import Path

from benchmarks.recorded.replay import DIALECTS, NATIVE, Replay, differences, replaying
from benchmarks.recorded.telling import told_by_provider
from benchmarks.recorded.traffic import KINDS, read_exchanges
from benchmarks.tables import table


async def answers(replay: Replay, folder: Path, kind: str, listed: bool) -> list[list[str]]:
    """Return a row for each client dialect: how many recorded answers it is told as they were."""
    rows = []
    exchanges = [exchange for exchange in read_exchanges(folder, kind) if exchange.status == 200]
    for name, dialect in DIALECTS.items():
        right, total = 0, 0
        for exchange in exchanges:
            for stream in {kind != "bedrock", exchange.is_stream}:
                total += 1
                try:
                    expected = told_by_provider(exchange)
                    told = await replay.told(exchange, dialect, stream=stream)
                    wrong = {
                        field: (value, getattr(told, field))
                        for field, value in vars(expected).items()
                        # An ending that the provider left blank follows from what it sent.
                        if value != getattr(told, field) and not (field in ("tokens", "finish") and not value)
                    }
                except (ValueError, LookupError, TypeError) as error:
                    wrong = {"error": (type(error).__name__, str(error))}
                right += not wrong
                if wrong and listed:
                    print(kind, name, "stream" if stream else "whole", exchange.name, str(wrong)[:400])
        rows.append([kind, name, f"{right} of {total}"])
    return rows


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
        print(table(["recorded answers of", "through", "told as recorded"], told), "\n")
        rows = [await requests(replay, folder, kind, listed) for kind in kinds if kind in NATIVE]
        print(table(["recorded requests to", "accepted", "arrive whole", "fields that differ"], rows))


def main() -> None:
    """Replay what the flags say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the recorded traffic")
    parser.add_argument("--kind", action="append", help="one protocol (default: all)")
    parser.add_argument("--list", action="store_true", help="name each answer and request that differs")
    flags = parser.parse_args()
    kinds = flags.kind or [kind for kind in KINDS if kind != "cohere"]
    asyncio.run(_main(flags.folder, kinds, flags.list))


if __name__ == "__main__":
    main()
