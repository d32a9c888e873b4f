"""Batch inference over Ray Data: chunks of prompts go to workers with a model each, predictions come back.

Workers read the data set themselves, so it must be where each of them can read it; the folder of the output need not.
A worker that is lost is replaced by Ray, and its chunks are predicted again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import pyarrow as pa

from p2l.batch_inference.launch import EvalOptions, Predictor, Processes, load_model
from p2l.batch_inference.output import as_batch
from p2l.batch_inference.prompts import open_prompts
from p2l.common.errors import InputError
from p2l.serving.ray_cluster import any_cluster

_CHUNK = "chunk of the data set"  # a column that no prediction has


class _RayWorker:
    """One model in an actor, and a reader of the data set that goes forward."""

    def __init__(self, model: str, options: EvalOptions, threads: int) -> None:
        """Load the model, with `threads` for it where it computes on a CPU."""
        import torch

        torch.set_num_threads(threads)
        loaded = load_model(model, options, Processes(0, 1))
        self._predictor = Predictor(loaded, partial(print, file=sys.stderr), options.batch_size)
        self._options = options
        self._chunks: Iterator[tuple[int, Any]] = iter(())
        self._next = 0

    def __call__(self, batch: Mapping[str, Any]) -> Any:
        """Return the predictions of a chunk, each with the chunk's number."""
        (number,) = batch["id"]
        predictions = as_batch(
            self._predictor.predict(self._read(int(number)).to_pylist(), hidden=self._options.hidden)
        )
        numbers = pa.array([int(number)] * len(predictions), pa.int64())
        return pa.Table.from_batches([predictions]).append_column(_CHUNK, numbers)

    def _read(self, number: int) -> Any:
        if number < self._next or not self._next:
            data = open_prompts(self._options.dataset, split=self._options.split, limit=self._options.limit)
            self._chunks = enumerate(data.chunks())
        for chunk, turns in self._chunks:
            self._next = chunk + 1
            if chunk == number:
                return turns
        raise InputError(f"{self._options.dataset}: changed while it was read; run it again")


def predict_chunks(model: str, options: EvalOptions, chunks: Sequence[int]) -> Iterator[tuple[int, Any]]:
    """Yield chunks of the data set with their predictions (see `as_batch`), in any order.

    InputError where a worker cannot use the model or the data set.
    """
    if not chunks:
        return
    workers = options.workers
    cores = len(os.sched_getaffinity(0))
    with any_cluster(1 + (workers or cores)) as ray:  # one core for Ray Data itself
        resources = ray.cluster_resources()
        gpus = 0 if options.device == "cpu" else int(resources.get("GPU", 0))
        count = min(workers or gpus or max(1, int(resources.get("CPU", 1)) - 1), len(chunks))
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = False
        predictions = ray.data.from_items([{"id": chunk} for chunk in chunks]).map_batches(
            _RayWorker,
            fn_constructor_args=(model, options, max(1, cores // count)),
            batch_size=1,
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(size=count),
            num_cpus=1,
            num_gpus=1 if gpus else 0,
        )
        try:
            for table in predictions.iter_batches(batch_size=None, batch_format="pyarrow"):
                # Ray may have joined several chunks; a chunk is never in two tables.
                start = 0
                for number, rows in groupby(table.column(_CHUNK).to_pylist()):
                    size = len(list(rows))
                    chunk = table.slice(start, size).drop_columns([_CHUNK]).combine_chunks()
                    yield number, chunk.to_batches()[0]
                    start += size
        except ray.exceptions.RayError as error:
            # Ray wraps the error of a worker; a user's mistake is raised as such.
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, InputError):
                cause = getattr(cause, "cause", None) or cause.__cause__
            raise cause or error from None
