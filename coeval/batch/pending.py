"""`pending_batches.json`: the jobs whose answers are not stored yet, replaced whole, under a lock of all processes."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coeval.batch.job import Job, questions_file
from coeval.errors import RunInputError
from coeval.storage.jsonl import read_json, write_json
from coeval.storage.layout import Run

__all__ = ["Pending"]


class Pending:
    """The jobs of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def jobs(self, phase: str | None = None, model: str | None = None) -> list[Job]:
        """The jobs, of one phase and model or all, in the order in which they were sent.

        Raises:
            RunInputError: the file cannot be read: what it held may still be paid for, so it is not passed over.
        """
        found = [self._job(name, value) for name, value in self._read().items()]
        return [job for job in found if phase in (None, job.phase) and model in (None, job.model)]

    def put(self, *jobs: Job, instead: Job | None = None) -> None:
        """Add jobs, or renew them, and take another away, all at once; on the disk when this returns."""
        with self._changing() as data:
            gone = {job.token for job in jobs} | ({instead.token} if instead is not None else set())
            for name in [name for name, value in data.items() if value.get("token") in gone]:
                del data[name]
            data.update({job.name: job.to_json() for job in jobs})
        if instead is not None:
            self.tidy(instead.token)

    def remove(self, job: Job) -> None:
        """Take a job away, and its questions."""
        self.put(instead=job)

    def results_file(self, job: Job) -> Path:
        """Where the answers lie that were fetched."""
        return questions_file(self.run, job.token).with_suffix(".results.jsonl")

    def start_file(self, job: Job) -> Path:
        """Where it is noted how long the files of records were before this job's were added."""
        return questions_file(self.run, job.token).with_suffix(".start.json")

    def tidy(self, token: str) -> None:
        """Remove the files of a job that is not noted."""
        folder = questions_file(self.run, token).parent
        for pattern in (f"{token}.*", f".{token}.*"):  # the latter were being written when a process was killed
            for path in folder.glob(pattern):
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others are in there
            folder.rmdir()

    def _job(self, name: str, value: Any) -> Job:
        try:
            return Job.from_json(value)
        except TypeError:
            raise RunInputError(
                f"{self.run.pending}: job {name!r} was not written by this program; fetch its answers with the program "
                "that sent it, then remove the entry"
            ) from None

    def _read(self) -> dict[str, Any]:
        if not self.run.pending.exists():
            return {}
        data = read_json(self.run.pending)
        if not isinstance(data, dict):
            raise RunInputError(
                f"{self.run.pending}: is no JSON object; restore it, or remove it to send its jobs anew"
            )
        return data

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        self.run.locks.mkdir(parents=True, exist_ok=True)
        with (self.run.locks / "pending").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            data = self._read()
            yield data
            if data:
                write_json(self.run.pending, data)
            else:
                self.run.pending.unlink(missing_ok=True)
