"""The sample of real votes in the package: 2,500 votes between fourteen LLMs, and graded answers with what they cost.

Both were drawn by `python -m tools.public_sample` from the sets that `sources.yaml` names, under their licences.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from p2l.common.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

_FOLDER = Path(__file__).parent


def public_sample(votes: int, seed: int) -> pa.RecordBatch:
    """Return some of the votes, drawn with a seed and in the order of the file; InputError for more than there are."""
    table = _read("sample.parquet")
    if not 1 <= votes <= len(table):
        raise InputError(
            f"--votes {votes}: the sample has {len(table):,} real votes; --made-up draws any number, with a known truth"
        )
    rows = np.arange(len(table))
    if votes < len(table):
        rows = np.sort(np.random.default_rng(seed).permutation(len(table))[:votes])
    return _one_batch(table.take(rows))


def public_scores() -> pa.RecordBatch:
    """Return graded answers of eleven LLMs to some prompts, with the dollars of each call."""
    return _one_batch(_read("sample_scores.parquet"))


def _read(name: str) -> Any:
    import pyarrow.parquet as pq

    # Without pandas' notes of how the table was, which a reader of votes has no use for.
    return pq.read_table(_FOLDER / name).replace_schema_metadata(None)


def _one_batch(table: Any) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    assert len(batches) == 1
    return batches[0]
