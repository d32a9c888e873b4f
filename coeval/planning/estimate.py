"""Estimates of the cost and duration of a run, or of the rest of one.

Dollars are calls x tokens x list price, with the batch discount for calls in batches. Seconds are seconds a call x
calls / calls in flight at an interface, or calls / its rate limit if that is slower; interfaces run in parallel, phases
one after the other. A batch job takes the same time however many calls it has.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coeval.calling.calls import Asking, Call, CallError, Reply
from coeval.interfaces import INTERFACES, PRICES, batch_discount, in_flight, is_listed, price_of
from coeval.planning.counting import TOKENS, Remaining, Work, remaining
from coeval.schema import PHASES, ROLE_OF, Config, Mode, Model, Phase, Role
from coeval.storage.run import Run
from p2l.common.report.tables import dollars_text
from p2l.common.text_table import text_table


@dataclass(frozen=True)
class Speed:
    """The speed of a model, usual for its provider or measured with a few small questions."""

    latency_s: float  # seconds of a short answer
    tokens_per_second: float
    error: str | None = None  # why the measurement failed

    def seconds(self, output_tokens: float) -> float:
        """Return the seconds of a call by the tokens of its answer."""
        return max(self.latency_s, output_tokens / self.tokens_per_second)


_QUESTIONS = (
    "Name three primary colours and say in one sentence each where you see them in nature.",
    "Explain in about eighty words why the sky is blue.",
)


def guessed(model: Model) -> Speed:
    """Return the usual speed at a model's provider."""
    return Speed(*INTERFACES[model.interface].speed)


async def measure(config: Config, asking: Asking, samples: int) -> dict[str, Speed]:
    """Measure each model with `samples` questions; local and virtual models are left out."""
    models = [model for model in config.models if not model.is_virtual and model.interface != "huggingface"]
    speeds = await asyncio.gather(*(_measured(model, asking, samples) for model in models))
    return {model.name: speed for model, speed in zip(models, speeds, strict=True)}


async def _measured(model: Model, asking: Asking, samples: int) -> Speed:
    replies: list[Reply] = []
    guess = guessed(model)
    roles = [roles[0] for roles in model.asked_for.values()]  # in turn: each may have a model of its own
    for number in range(samples):
        question, role = _QUESTIONS[number % len(_QUESTIONS)], roles[number % len(roles)]
        call = Call(model, role, None, "", ("estimate", model.name, str(number)), question, attempt=number)
        try:
            replies.append(await asking.ask(call))
        except CallError as error:
            return replace(guess, error=str(error))
    seconds = sum(reply.seconds for reply in replies)
    tokens = sum(reply.completion_tokens for reply in replies)
    return Speed(seconds / len(replies), tokens / seconds) if seconds > 0 and tokens else guess


def estimate_text(estimate: Mapping[str, Any]) -> str:
    """Format an estimate as tables: totals, then by phase, provider and model."""
    what = "What is left" if estimate["is_remaining_estimate"] else "Estimate"
    head = (
        f"{what}: {estimate['total_calls']:,} calls, {dollars_text(estimate['total_cost_usd'])}, "
        f"about {minutes(estimate['total_time_min'])}"
    )
    if estimate["batch_savings_usd"]:
        head += f"; batches save {dollars_text(estimate['batch_savings_usd'])}"
    models = [row for name, part in estimate["per_model"].items() for row in _model_rows(name, part)]
    parts = [
        head,
        *(
            grid(
                (kind, "calls", "cost", "time"),
                [
                    (name, f"{part['calls']:,}", dollars_text(part["cost_usd"]), minutes(part["time_min"]))
                    for name, part in estimate[f"per_{kind}"].items()
                ],
            )
            for kind in ("phase", "provider")
        ),
        grid(("model", "calls", "cost", "$/M in", "$/M out", "tokens/s", ""), models),
        "\n".join(_notes(estimate["per_model"])),
    ]
    return "\n\n".join(part for part in parts if part)


def _model_rows(name: str, part: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row for a model, or for each of its provider's models if roles have their own."""
    for provider_name, share in part["models"].items() if len(part["models"]) > 1 else [("", part)]:
        marks = ["price guessed"] * share["price_is_default"] + ["speed guessed"] * bool(part["sample_error"])
        yield (
            f"{name}: {provider_name}" if provider_name else name,
            f"{share['estimated_calls']:,}",
            dollars_text(share["cost_usd"]),
            f"{share['price_input_per_m']:g}",
            f"{share['price_output_per_m']:g}",
            f"{part['tokens_per_second']:,.0f}",
            ", ".join(marks),
        )


def _notes(models: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the meaning of the marks: each reason once, with its models."""
    if any(share["price_is_default"] for part in models.values() for share in (part, *part["models"].values())):
        yield "price guessed: no price list here has the model; write its usual name, or read the cost as a rough one"
    reasons: dict[str, list[str]] = {}
    for name, part in models.items():
        if part["sample_error"]:
            reasons.setdefault(part["sample_error"], []).append(name)
    yield from (f"speed guessed of {', '.join(names)}: {why}" for why, names in reasons.items())


def minutes(amount: float) -> str:
    """Format a number of minutes in the unit that fits."""
    if amount >= 90:
        return f"{amount / 60:.1f} h"
    return f"{amount:.1f} min" if amount >= 1.5 else f"{60 * amount:.0f} s"


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table of numbers behind a column of names; an unnamed last column is text."""
    left = {0} if head[-1] else {0, len(head) - 1}
    return "\n".join(text_table(head, rows, left=left, joined_rule=True)) if rows else ""


def text_grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table of texts."""
    return "\n".join(text_table(head, rows, left=range(len(head)), joined_rule=True))


BATCH_SECONDS = 3600.0  # assumed for a batch job; providers promise a day and mostly need less than an hour


async def estimate(
    config: Config,
    asking: Asking | None = None,
    *,
    samples: int | None = None,
    run: Run | None = None,
    modes: Mapping[Any, Mode] | None = None,
    only: Collection[str] | None = None,
) -> dict[str, Any]:
    """Return the estimate of a run, or of the rest of one, as `cost_estimate.json` holds it.

    `asking` measures the speed of each model that has calls left, with `samples` questions
    (`experiment.estimate_samples`); without it speeds are the usual ones. The others are arguments of `remaining`.
    """
    count = config.experiment.estimate_samples if samples is None else samples
    left = remaining(config, run, modes, only)
    busy = {entry.model.name for entry in left.work}
    models = tuple(model for model in config.models if model.name in busy and (only is None or model.name in only))
    speeds = await measure(replace(config, models=models), asking, count) if asking is not None and count else {}
    return _estimate(config, left, run=run, speeds=speeds, samples=count if speeds else 0)


def static_estimate(
    config: Config,
    *,
    run: Run | None = None,
    modes: Mapping[Any, Mode] | None = None,
    only: Collection[str] | None = None,
) -> dict[str, Any]:
    """Return the estimate with usual speeds: no model is called."""
    return _estimate(config, remaining(config, run, modes, only), run=run, speeds={}, samples=0)


def _estimate(
    config: Config, left: Remaining, *, run: Run | None, speeds: Mapping[str, Speed], samples: int
) -> dict[str, Any]:
    work = left.work
    all_speeds = {model.name: speeds.get(model.name) or guessed(model) for model in config.models}
    phases = {
        phase: _phase(config, phase, [entry for entry in work if entry.phase == phase], all_speeds) for phase in PHASES
    }
    seconds = sum(estimate["time_s"] for estimate in phases.values())
    cost = sum(_cost(config, entry) for entry in work)
    interfaces = sorted({model.interface for model in config.models})
    return {
        "is_remaining_estimate": run is not None,
        "completed_phases": list(left.stored.completed) if run else [],
        "total_cost_usd": round(cost, 4),
        "total_calls": sum(entry.calls for entry in work),
        "total_time_min": round(seconds / 60, 2),
        "batch_savings_usd": round(sum(_cost(config, entry, discount=False) for entry in work) - cost, 4),
        "per_phase": phases,
        "per_provider": _providers(config, work, all_speeds),
        "per_model": {model.name: _model(config, model, work, all_speeds[model.name]) for model in config.models},
        "assumptions": {
            "token_counts": {name: {"input": count.input, "output": count.output} for name, count in TOKENS.items()},
            "price_table": {
                name: list(price_of(model, roles[0]))
                for model in config.models
                if not model.is_virtual
                for name, roles in model.asked_for.items()
            },
            "batch_discount": {name: batch_discount(name) for name in interfaces},
            "batch_turnaround_s": BATCH_SECONDS,
            "concurrency": {name: in_flight(config.experiment.concurrency, name) for name in interfaces},
            "pricing_yaml": PRICES.name,
            "n_samples_per_model": samples,
        },
    }


def _cost(config: Config, work: Work, *, discount: bool = True) -> float:
    batched = discount and config.is_batched(work.model, work.phase)
    price = price_of(work.model, ROLE_OF[work.phase], batched=batched)
    return work.calls * price.cost(*work.tokens)


def _phase(config: Config, phase: Phase, work: list[Work], speeds: Mapping[str, Speed]) -> dict[str, Any]:
    calls: dict[str, int] = defaultdict(int)
    for entry in work:
        calls[entry.model.name] += entry.calls
    by_interface = _by_interface(work)
    seconds = max((_seconds(config, phase, group, speeds) for group in by_interface.values()), default=0.0)
    return {
        "calls": sum(calls.values()),
        "calls_per_model": dict(calls),
        "total_input_tokens": sum(entry.calls * entry.tokens.input for entry in work),
        "total_output_tokens": sum(entry.calls * entry.tokens.output for entry in work),
        "cost_usd": round(sum(_cost(config, entry) for entry in work), 4),
        "time_s": round(seconds, 1),
        "time_min": round(seconds / 60, 2),
    }


def _by_interface(work: Iterable[Work]) -> dict[str, list[Work]]:
    groups: dict[str, list[Work]] = defaultdict(list)
    for entry in work:
        groups[entry.model.interface].append(entry)
    return groups


def _seconds(config: Config, phase: Phase, work: list[Work], speeds: Mapping[str, Speed]) -> float:
    """Return the seconds of an interface for its calls of one phase."""
    single = [entry for entry in work if not config.is_batched(entry.model, phase)]
    serial = sum(entry.calls * speeds[entry.model.name].seconds(entry.tokens.output) for entry in single)
    calls = sum(entry.calls for entry in single)
    interface = work[0].model.interface
    seconds = serial / min(in_flight(config.experiment.concurrency, interface), max(calls, 1))
    rate = config.experiment.rate_limit.get(interface)
    if rate:
        seconds = max(seconds, 60.0 * calls / rate)
    return max(seconds, BATCH_SECONDS) if len(single) < len(work) else seconds


def _providers(config: Config, work: list[Work], speeds: Mapping[str, Speed]) -> dict[str, Any]:
    """Return the estimates of the interfaces, the most expensive first."""
    providers: dict[str, dict[str, Any]] = {}
    for interface, group in _by_interface(work).items():
        # Phases come one after the other, as in the whole run.
        by_phase: dict[Phase, list[Work]] = defaultdict(list)
        for entry in group:
            by_phase[entry.phase].append(entry)
        seconds = sum(_seconds(config, phase, entries, speeds) for phase, entries in by_phase.items())
        providers[interface] = {
            "calls": sum(entry.calls for entry in group),
            "cost_usd": round(sum(_cost(config, entry) for entry in group), 4),
            "time_min": round(seconds / 60, 2),
            "models": sorted({entry.model.name for entry in group}),
        }
    return dict(sorted(providers.items(), key=lambda pair: -pair[1]["cost_usd"]))


def _model(config: Config, model: Model, work: list[Work], speed: Speed) -> dict[str, Any]:
    own = [entry for entry in work if entry.model.name == model.name]
    return {
        "interface": model.interface,
        "roles": list(model.roles),
        "latency_s": round(speed.latency_s, 3),
        "tokens_per_second": round(speed.tokens_per_second, 1),
        **_priced(config, model, model.roles[0], own),
        "sample_error": speed.error,
        "models": {
            name: {
                "roles": list(roles),
                **_priced(config, model, roles[0], [entry for entry in own if ROLE_OF[entry.phase] in roles]),
            }
            for name, roles in model.asked_for.items()
            if not model.is_virtual
        },
    }


def _priced(config: Config, model: Model, role: Role, work: Sequence[Work]) -> dict[str, Any]:
    price = price_of(model, role)
    return {
        "price_input_per_m": price.input,
        "price_output_per_m": price.output,
        "price_is_default": not is_listed(model.interface, model.model_id(role)),
        "estimated_calls": sum(entry.calls for entry in work),
        "cost_usd": round(sum(_cost(config, entry) for entry in work), 4),
    }
