"""`experiment` of the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from coeval.config.interfaces import BATCHING, INTERFACES, LATER
from coeval.config.problems import Problems
from coeval.config.reading import Fields, kind_of, shown
from coeval.config.schema import BATCH_PHASES, MODES, PHASES, Experiment, Mode
from p2l.command import nearest

__all__ = ["EXPERIMENT_KEYS", "read_experiment"]

EXPERIMENT_KEYS = (
    "id",
    "storage_folder",
    "resume_from",
    "phases",
    "log_level",
    "quota",
    "generation_retries",
    "batch",
    "batch_poll_seconds",
    "probe_mode",
    "probe_on_fail",
    "estimate_cost",
    "estimate_samples",
    "seed",
    "concurrency",
    "rate_limit",
    "request_timeout",
    "budget_usd",
    "cache",
)
_ID = re.compile(r"[A-Za-z0-9._-]+")
_LONGEST_ID = 200  # of the 255 that a folder's name may have
_STORAGE = "the folder that runs are kept in"


def read_experiment(value: object, problems: Problems, resume: str | None) -> Experiment:
    """The experiment; `resume` takes the place of its `resume_from`."""
    fields = Fields({} if value is None else value, ("experiment",), problems, EXPERIMENT_KEYS)
    resume_from = resume or fields.text("resume_from")
    written = _modes(fields)
    default: Mode = "Keep" if resume_from else "New"
    if value is None:
        problems.add(("experiment",), "is missing; add it with an id and a storage_folder", "V-01")
    return Experiment(
        id=_id(fields) if value is not None else "",
        storage_folder=fields.folder("storage_folder", needed=_STORAGE) if value is not None else Path(),
        resume_from=resume_from,
        phases={phase: written.get(phase, default) for phase in PHASES},
        written_phases=frozenset(written),
        log_level=fields.choice("log_level", ("DEBUG", "INFO", "WARNING", "ERROR"), "INFO"),
        quota=_quota(fields),
        generation_retries=fields.whole("generation_retries", 2, rule="V-12"),
        batch=_batch(fields),
        batch_poll_seconds=fields.above_zero("batch_poll_seconds"),
        probe_mode=fields.choice("probe_mode", ("full", "resume", "disable"), "full", "V-15"),
        probe_on_fail=fields.choice("probe_on_fail", ("abort", "warn"), "abort", "V-16"),
        estimate_cost=fields.truth("estimate_cost", False),
        estimate_samples=fields.whole("estimate_samples", 2),
        seed=fields.whole("seed", 0),
        concurrency=_concurrency(fields),
        rate_limit=_rates(fields),
        request_timeout=fields.above_zero("request_timeout") or 120.0,
        budget_usd=fields.above_zero("budget_usd"),
        cache=fields.truth("cache", True),
    )


def _id(fields: Fields) -> str:
    text = fields.text("id", needed="the name of the run's folder")
    if text and (not _ID.fullmatch(text) or set(text) == {"."}):
        fields.wrong("id", f"{text[:60]!r} may hold letters, digits, '.', '_' and '-' alone", "V-04")
    elif len(text) > _LONGEST_ID:
        fields.wrong("id", f"may have {_LONGEST_ID} characters, and has {len(text)}", "V-04")
    return text


def _modes(fields: Fields) -> dict[str, Mode]:
    inner = fields.fields("phases", PHASES)
    written: dict[str, Mode] = {}
    for phase in inner.values:
        if not inner.has(phase):
            inner.wrong(phase, f"is empty; choose from {', '.join(MODES)}")
            continue
        mode = inner.choice(phase, MODES, "New")
        if mode == "Model" and phase in PHASES[:2]:
            inner.wrong(phase, "`Model` is for the last three phases; choose New, Keep or Extend", "V-08")
        written[phase] = mode
    return written


def _quota(fields: Fields) -> dict[str, int]:
    inner = fields.fields("quota")
    quota: dict[str, int] = {}
    for model, value in inner.values.items():
        quota[model] = 0  # whose model's name is looked at, whatever the entry says
        if not isinstance(value, Mapping):
            inner.wrong(model, f"must be `{{max_calls: N}}`, and is {kind_of(value)}")
            continue
        limit = inner.fields(model, ("max_calls",))
        if limit.required("max_calls", "`max_calls: N`"):
            quota[model] = limit.whole("max_calls", 0)
    return quota


def _batch(fields: Fields) -> dict[str, dict[str, bool]]:
    inner = fields.fields("batch")
    batch: dict[str, dict[str, bool]] = {}
    for interface in inner.values:
        if interface not in BATCHING:
            known = interface in INTERFACES or interface in LATER
            why = "has no batches here" if known else f"is no interface{nearest(interface, BATCHING)}"
            inner.wrong(interface, f"{why}; those with batches are {', '.join(BATCHING)}", "V-13")
            continue
        phases = inner.fields(interface)
        for phase in phases.values:
            if phase not in BATCH_PHASES:
                hint = nearest(phase, BATCH_PHASES)
                phases.wrong(phase, f"is no phase with batches{hint}; those are {', '.join(BATCH_PHASES)}", "V-13")
        batch[interface] = {phase: phases.truth(phase, False) for phase in phases.values if phase in BATCH_PHASES}
    return batch


def _interfaces(inner: Fields) -> list[str]:
    """Those of a mapping's keys that are interfaces."""
    for name in inner.values:
        if name not in INTERFACES:
            inner.wrong(name, f"is no interface{nearest(name, INTERFACES)}")
    return [name for name in inner.values if name in INTERFACES and inner.has(name)]


def _concurrency(fields: Fields) -> int | dict[str, int]:
    value = fields.values.get("concurrency")
    if value is None or isinstance(value, int):
        return fields.whole("concurrency", 10, least=1)
    if not isinstance(value, Mapping):
        fields.wrong("concurrency", f"must be a whole number, or a map of interfaces to numbers; is {shown(value)}")
        return 10
    inner = fields.fields("concurrency")
    return {name: inner.whole(name, 10, least=1) for name in _interfaces(inner)}


def _rates(fields: Fields) -> dict[str, float]:
    inner = fields.fields("rate_limit")
    return {name: inner.above_zero(name) or 1.0 for name in _interfaces(inner)}
