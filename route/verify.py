"""Command: `p2l-route verify`: whether a deployment still answers as the model that it was on an earlier day.

p2l-route verify -c router.yaml --model frontier --record frontier.jsonl

Asks a fixed set of prompts at temperature 0, each several times, adds the answers to the record, and tests them against
those of the first day there (or of `--against`). Exit code 1: the model behind the name has changed.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2l.common.cli import add_config, nearest, parser, positive, print_note, run
from p2l.common.errors import ConfigError, InputError, UnavailableError
from p2l.common.files import atomic_path, check_can_write
from p2l.common.text_table import align

if TYPE_CHECKING:
    from route.evaluation.same_model import Reply
    from route.send.fleet import Deployment

_AT_ONCE = 4  # requests under way
_TOP_LOGPROBS = 5
_SEED = 7


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    flags = parser("p2l-route verify", "Test whether a deployment still answers as the model of an earlier day.")
    add_config(flags, "the router's configuration", "-c", required=True)
    flags.add_argument("--model", required=True, metavar="NAME", help="a model of the configuration")
    flags.add_argument("--deployment", metavar="NAME", help="one of its deployments (default: the first)")
    flags.add_argument(
        "--record", required=True, metavar="FILE", help="JSON lines, one a day; made where there is none"
    )
    flags.add_argument("--against", metavar="DATE", help="the day to compare with (default: the first of the record)")
    flags.add_argument("--repeats", type=positive, default=3, metavar="N", help="times that each prompt is asked")
    flags.add_argument("--max-tokens", type=positive, default=128, metavar="N", help="tokens of an answer at most")
    return flags


def main(argv: Sequence[str] | None = None) -> int | None:
    """Run the command."""
    flags = build_parser().parse_args(argv)
    from route.config import load_config
    from route.evaluation.same_model import LEVEL, differences
    from route.send.fleet import make_fleet

    check_can_write(flags.record)
    earlier = _read(Path(flags.record))
    fleet = make_fleet(load_config(flags.config), os.environ)
    if flags.model not in fleet.targets:
        raise ConfigError(f"--model: no model {flags.model!r} in {flags.config}{nearest(flags.model, fleet.targets)}")
    places = {each.label: each for each in fleet.targets[flags.model].deployments}
    label = next(iter(places)) if flags.deployment is None else flags.deployment
    if label not in places:
        raise ConfigError(f"--deployment: {flags.model} has no deployment {label!r}{nearest(label, places)}")
    reference = _reference(earlier, flags.against, flags.record, {"model": flags.model, "deployment": label})
    today, replies = asyncio.run(_asked(places[label], flags.repeats, flags.max_tokens))
    today = {"model": flags.model, "deployment": label, **today}
    lines = [json.dumps(day, ensure_ascii=False) for day in [*earlier, today]]
    with atomic_path(flags.record) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{flags.model} answers as {', '.join(today['served']) or 'a model that it does not name'}")
    if reference is None:
        print(f"{flags.record}: the first day is recorded; run this again on another day")
        return None
    found = differences(_replies(reference), replies)
    rows = [("compared with " + reference["date"], "between days", "within a day", "p", "")]
    for each in found:
        verdict = "changed" if each.is_change else "as before"
        rows.append((each.of, f"{each.apart:.3f}", f"{each.within:.3f}", f"{each.p_value:.4f}", verdict))
    print("\n".join(align(rows)))
    if set(reference["served"]) != set(today["served"]):
        print_note(f"note: it answered as {', '.join(reference['served']) or 'nothing'} on {reference['date']}")
    is_changed = any(each.is_change for each in found)
    print(f"{'ANOTHER MODEL answers' if is_changed else 'no change shows'} (false alarms: {LEVEL:.1%} of such checks)")
    return 1 if is_changed else None


async def _asked(deployment: Deployment, repeats: int, max_tokens: int) -> tuple[dict[str, Any], list[list[Reply]]]:
    """Return the line of the record, and the answers by prompt."""
    from route.evaluation.same_model import PROMPTS, Reply
    from route.providers.base import JSON, Fault, ProviderError, Timeouts
    from route.providers.registry import spec_of
    from route.send.served import Served

    places, served = asyncio.Semaphore(_AT_ONCE), dict[str, None]()
    fields: JSON = {**deployment.config.extra_fields, "model": deployment.config.name, "temperature": 0, "seed": _SEED}
    fields["max_tokens"] = max_tokens
    if spec_of(deployment.config.type).top_logprobs:
        fields |= {"logprobs": True, "top_logprobs": _TOP_LOGPROBS}

    async def ask(prompt: str) -> Reply:
        async with places:
            body = {**fields, "messages": [{"role": "user", "content": prompt}]}
            try:
                completion = await deployment.provider.chat(body, Timeouts())
            except ProviderError as error:
                if "logprobs" not in body or error.fault not in (Fault.REQUEST, Fault.UNSUPPORTED):
                    raise
                for name in ("logprobs", "top_logprobs"):  # which this model does not tell
                    fields.pop(name, None)
                    body.pop(name, None)
                completion = await deployment.provider.chat(body, Timeouts())
            who = Served().joined(completion)
            served[" ".join(part for part in (who.model, who.fingerprint) if part)] = None
            return Reply.of(completion)

    try:
        replies = await asyncio.gather(*(ask(prompt) for prompt in PROMPTS for _ in range(repeats)))
    except ProviderError as error:
        raise UnavailableError(f"{deployment.name}: {error}; nothing was recorded") from error
    finally:
        await deployment.provider.close()
    by_prompt = [replies[start : start + repeats] for start in range(0, len(replies), repeats)]
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    line = {"date": day, "served": [name for name in served if name]}
    return {**line, "replies": [[vars(reply) for reply in group] for group in by_prompt]}, by_prompt


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the days of a record; InputError, with the line, for what is none."""
    if not path.exists():
        return []
    days = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            day = json.loads(line)
            _replies(day)
            str(day["date"]), list(day["served"]), day["model"], day["deployment"]
        except (ValueError, LookupError, TypeError) as error:
            raise InputError(f"{path}:{number}: is no line of a record of `p2l-route verify`") from error
        days.append(day)
    return days


def _replies(day: dict[str, Any]) -> list[list[Reply]]:
    from route.evaluation.same_model import PROMPTS, Reply

    groups = [[Reply(**reply) for reply in group] for group in day["replies"]]
    if len(groups) != len(PROMPTS):
        raise ValueError("other prompts")
    return groups


def _reference(
    days: Sequence[dict[str, Any]], date: str | None, path: str, about: dict[str, str]
) -> dict[str, Any] | None:
    same = [day for day in days if all(day[name] == value for name, value in about.items())]
    if date is None:
        return same[0] if same else None
    found = next((day for day in same if day["date"] == date), None)
    if found is None:
        known = ", ".join(day["date"] for day in same) or "none"
        raise InputError(f"--against: {path} has no {date} of this deployment; it has {known}")
    return found


if __name__ == "__main__":
    run(main)
