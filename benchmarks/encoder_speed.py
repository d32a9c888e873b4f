"""How many prompts a second the encoder of a reader reads for training: OpenVINO, beside torch, in one run.

    python -m benchmarks.encoder_speed DATA_DIR [--prompts 400]

Prompts are those of `zeroeval_scores` and `oasst_vicuna_gpt4_battles`, read by turns in chunks of 256 as training does,
with no cache. The last column is the least rank correlation of the public model's boards on these prompts with those
from states in float32: what the rounding of states costs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy.stats import spearmanr

from p2l.common.cli import parser, positive
from p2l.model.bert import Bert, Precision, has_int8_products
from p2l.model.encoding import Encoding
from p2l.model.light import LightReader
from p2l.model.model import P2LModel
from p2l.model.reader_inputs import read_config
from p2l.model.tokenizer import load_tokenizer
from p2l.public.model import public_folder

SETS = ("zeroeval_scores", "oasst_vicuna_gpt4_battles")
_CHUNK = 256  # prompts that training hands to the encoder together
Tokens = list[npt.NDArray[np.int64]]
Read = Callable[[Tokens], npt.NDArray[Any]]


def prompts_of(data: Path, name: str, count: int) -> list[list[str]]:
    """Return some prompts of a set, each the list of its turns."""
    rows = pd.read_parquet(data / f"{name}.parquet").drop_duplicates("question_id")
    drawn = rows["prompt"].sample(min(count, len(rows)), random_state=0)
    return [[prompt] if isinstance(prompt, str) else list(prompt) for prompt in drawn]


def seconds(read: Read, tokens: Tokens) -> float:
    """Return the seconds that it takes to read prompts, chunk by chunk."""
    start = time.perf_counter()
    for first in range(0, len(tokens), _CHUNK):
        read(tokens[first : first + _CHUNK])
    return time.perf_counter() - start


def ways() -> dict[str, Read]:
    """Return how prompts are read: by torch, and by OpenVINO in each precision of this processor."""
    model: Any = P2LModel.from_pretrained(public_folder()).model
    weights = {name: weight.numpy() for name, weight in model.encoder.state_dict().items()}
    precisions: tuple[Precision, ...] = ("float32", "int8") if has_int8_products() else ("float32",)
    encoders = {
        precision: Bert(weights, model.config.encoder, pooling="mean", normalise=True, precision=precision)
        for precision in precisions
    }
    torch_reads: Read = partial(model.read_by_torch, device=torch.device("cpu"))
    return {"torch": torch_reads} | {f"OpenVINO, {name}": encoder.states for name, encoder in encoders.items()}


class GivenStates(LightReader):
    """A reader whose encoder's states are given."""

    given: npt.NDArray[np.float32]

    def states(self, tokens: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.float32]:
        """Return the given states."""
        assert len(tokens) == len(self.given)
        return self.given


def boards(reader: GivenStates, encodings: list[Encoding], states: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return the coefficients (N, M) of prompts from these states of the encoder."""
    reader.given = states.astype(np.float16).astype(np.float32)
    return reader.outputs(encodings).coefs


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = parser("python -m benchmarks.encoder_speed", "Count the prompts a second that a reader's encoder reads.")
    flags.add_argument("data", metavar="DATA_DIR", type=Path, help=f"folder with {' and '.join(SETS)} in Parquet")
    flags.add_argument("--prompts", type=positive, default=400, help="prompts of each set")
    flags.add_argument("--repeat", type=positive, default=3, help="times that each way reads them, by turns")
    return flags


def main() -> None:
    """Print a table: set, way, prompts a second, ratio to torch, rank correlation of boards."""
    flags = build_parser().parse_args()
    folder = public_folder()
    tokenizer, reads = load_tokenizer(folder), ways()
    print("| set | encoder by | prompts a second | against torch | least rank correlation |\n|---|---|--:|--:|--:|")
    for name in SETS:
        encodings = tokenizer.encode(prompts_of(flags.data, name, flags.prompts))
        tokens = [encoding.ids for encoding in encodings]
        times: dict[str, list[float]] = {way: [] for way in reads}
        for _ in range(flags.repeat):
            for way, read in reads.items():
                times[way].append(seconds(read, tokens))
        reader = GivenStates(folder, read_config(folder))
        exact = boards(reader, encodings, reads["torch"](tokens))
        for way, read in reads.items():
            coefs = boards(reader, encodings, read(tokens))
            least = min(float(spearmanr(*rows).statistic) for rows in zip(coefs, exact, strict=True))
            speed = len(tokens) / statistics.median(times[way])
            ratio = statistics.median(times["torch"]) / statistics.median(times[way])
            print(f"| {name} | {way} | {speed:.1f} | {ratio:.2f} | {least:.5f} |", flush=True)


if __name__ == "__main__":
    main()
