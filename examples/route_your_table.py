"""Whether routing by prompt pays on a table of your own scores and costs.

    python examples/route_your_table.py [TABLE]

TABLE has the columns question_id, prompt, model, score and cost (Parquet, JSON lines or CSV); without one it is 4,939
graded answers of eleven LLMs with the dollars of each call, which come with the package. A fifth of the prompts is held
out. The router is compared with the best single model, which is what anybody has without routing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from p2l.public.sample import public_scores
from route.evaluation.features import Encoder, packaged_encoder
from route.evaluation.measuring import Results, within
from route.evaluation.policies import Setup
from route.evaluation.report import routing_text
from route.evaluation.table import read_table


def main(table: str | None = None, *, reads_sentences: bool = True) -> Results:
    """Print and return the comparison; without sentences the router counts words, which is faster and worse."""
    encoder = packaged_encoder() if reads_sentences else None
    setup = Setup(encoder=None if encoder is None else Encoder(encoder))
    with TemporaryDirectory() as folder:
        path = table or _write_sample(Path(folder))
        results, _ = within(read_table(path), setup, share=0.2, folds=1, seed=0)
    print(routing_text(results, None))
    return results


def _write_sample(folder: Path) -> str:
    path = folder / "scores.parquet"
    pq.write_table(pa.Table.from_batches([public_scores()]), path)
    return str(path)


if __name__ == "__main__":
    main(*sys.argv[1:2])
