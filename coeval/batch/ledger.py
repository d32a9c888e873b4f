"""What jobs count for in `meta.json`, by token, so that a kill between two files counts nothing twice and nothing not.

A job is counted before it is noted among the pending ones, and settled before it is noted there no more; each of these
is one replacement of `meta.json`, and `reconcile` makes good what a kill left between it and the other file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coeval.batch.job import Job
from coeval.batch.pending import Pending
from coeval.config.schema import Phase
from coeval.storage.meta import Meta

__all__ = ["charge", "charge_more", "charge_most", "drop", "give_back", "reconcile", "settle"]

_KEY = "batches"
Data = dict[str, Any]


def charge_most(
    meta: Meta, token: str, phase: Phase, model: str, limit: int | None, marks: Sequence[tuple[int, float]]
) -> int:
    """Count a job's calls and dollars, of as many of its first questions as there are calls left.

    Args:
        meta: where they are counted.
        token: the job's.
        phase: the phase that it is of.
        model: the model that it is for.
        limit: calls that the model may make in all.
        marks: calls and dollars up to each question.

    Returns:
        Calls that were counted; none is counted for no question.
    """

    def change(data: Data) -> int:
        left = max(limit - data["quota_used"].get(model, 0), 0) if limit is not None else None
        calls, usd = max(((calls, usd) for calls, usd in marks if left is None or calls <= left), default=(0, 0.0))
        if calls:
            _add(data, token, phase, model, calls, usd)
        return calls

    return meta.change(change)


def charge_more(meta: Meta, token: str, phase: Phase, model: str, limit: int | None, calls: int, usd: float) -> bool:
    """Count further calls and dollars of a job that is being filled; False, and nothing is, where calls are used up."""

    def change(data: Data) -> bool:
        if limit is not None and data["quota_used"].get(model, 0) + calls > limit:
            return False
        before = _remove(data, token) or {"calls": 0, "usd": 0.0}
        _count(data, model, -before["calls"], -before["usd"])
        _add(data, token, phase, model, before["calls"] + calls, before["usd"] + usd)
        return True

    return meta.change(change)


def charge(meta: Meta, *jobs: Job, instead: Job | None = None) -> None:
    """Count jobs, in the place of another one."""

    def change(data: Data) -> None:
        if instead is not None:
            _undo(data, instead.token)
        for job in jobs:
            _add(data, job.token, job.phase, job.model, job.n_requests, job.held_usd)

    meta.change(change)


def settle(meta: Meta, job: Job, unasked: int, usd: float) -> None:
    """Count what a job cost for what was set aside, and give back the calls that were not made; done once."""

    def change(data: Data) -> None:
        entry = (data.get(_KEY) or {}).get(job.token)
        if entry is not None and not entry["settled"]:
            _count(data, entry["model"], -unasked, usd - entry["usd"])
            entry["settled"] = True

    meta.change(change)


def give_back(meta: Meta, token: str) -> None:
    """Undo what was counted for a job of which nothing was asked."""
    meta.change(lambda data: _undo(data, token))


def drop(meta: Meta, job: Job) -> None:
    """Forget a job that is settled, and noted nowhere else."""
    meta.change(lambda data: _remove(data, job.token))


def reconcile(meta: Meta, pending: Pending, phase: Phase, model: str) -> None:
    """Bring both files together; only for a process that nobody else is at work on the model's phase beside."""
    jobs = pending.jobs(phase, model)
    noted = {job.token for job in jobs}

    def change(data: Data) -> set[str]:
        counted = {
            token: entry
            for token, entry in (data.get(_KEY) or {}).items()
            if (entry["phase"], entry["model"]) == (phase, model)
        }
        for token in counted.keys() - noted:
            _remove(data, token) if counted[token]["settled"] else _undo(data, token)
        for job in jobs:
            if job.token not in counted:
                _add(data, job.token, phase, model, job.n_requests, job.held_usd)
        return counted.keys() - noted

    for token in meta.change(change):
        pending.tidy(token)


def _add(data: Data, token: str, phase: str, model: str, calls: int, usd: float) -> None:
    _count(data, model, calls, usd)
    entry = {"phase": phase, "model": model, "calls": calls, "usd": usd, "settled": False}
    data[_KEY] = {**(data.get(_KEY) or {}), token: entry}


def _undo(data: Data, token: str) -> None:
    entry = _remove(data, token)
    if entry is not None:
        _count(data, entry["model"], -entry["calls"], -entry["usd"])


def _remove(data: Data, token: str) -> Data | None:
    entries = dict(data.pop(_KEY, None) or {})
    entry: Data | None = entries.pop(token, None)
    if entries:
        data[_KEY] = entries
    return entry


def _count(data: Data, model: str, calls: int, usd: float) -> None:
    data["quota_used"][model] = max(data["quota_used"].get(model, 0) + calls, 0)
    data["spent_usd"] = round(data["spent_usd"] + usd, 9)
