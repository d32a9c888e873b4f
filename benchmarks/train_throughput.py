"""How many tokens a second does training take in, without padding and repeated work, beside what it replaces?

    python -m benchmarks.train_throughput [--shape 135m] [--prompts 24] [--rounds 3]

Prompts have log-normal lengths (median 60 tokens, sigma 1.5, cut at 2,048): quantiles at even steps, so that few
prompts are as mixed as many. Every way of training runs the same step on the same random model in the same dtype, in a
process of its own, the ways taking turns:

- padded: the plain loop of the Hugging Face Trainer, micro-batches of four prompts padded to the longest
- one by one: the trainer of this project, each prompt a micro-batch
- packed: the trainer of this project as it is

The last table is the input pipeline alone: reading votes, formatting and tokenising their prompts, packing.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm

from benchmarks.shapes import SHAPES
from benchmarks.tables import share, table
from p2l.common.cli import parser, positive, run
from p2l.likelihood import get
from p2l.model.backbones import P2L_ATTENTION, register_attention
from p2l.model.batching import collate
from p2l.model.checkpoint import P2LRecord
from p2l.model.encoding import PromptTokenizer
from p2l.model.heads import build
from p2l.model.model import P2LModel, to_dtype
from p2l.model.tokenizer import load_tokenizer
from p2l.training.engine import Engine, choose_device, start_processes
from p2l.training.trainer import Trainer, Windows
from p2l.votes import VoteStore, open_votes

SEED = 0
NUM_MODELS = 100
MAX_LENGTH = 2048
WAYS = ("padded", "one by one", "packed")


@dataclass(frozen=True)
class Measured:
    """One way of training, in one process."""

    tokens_per_second: float
    peak_memory_mb: float
    loss: float
    tokens: int


def build_parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    flags = parser("python -m benchmarks.train_throughput", "Time a training step, packed, one by one and padded.")
    flags.add_argument("--shape", choices=SHAPES, default="135m", help="size of the random Llama model")
    flags.add_argument("--prompts", type=positive, default=24, help="prompts of a step, one vote each")
    flags.add_argument("--rounds", type=positive, default=3, help="processes of each way")
    flags.add_argument("--steps", type=positive, default=1, help="steps timed in a process, after a small one")
    flags.add_argument("--micro-batch-tokens", type=positive, default=MAX_LENGTH, help="of the packed way")
    flags.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    flags.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    flags.add_argument("--peak-tflops", type=float, help="of the card in this dtype; the share reached is printed")
    flags.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    flags.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark, or one way of it."""
    flags = build_parser().parse_args(argv)
    if flags.way:
        print(json.dumps(asdict(measure(flags))))
        return
    with tempfile.TemporaryDirectory() as folder:
        flags.folder = Path(folder)
        lengths = write_prompts(flags.folder, flags.prompts)
        print(
            f"{flags.shape} shape, {flags.dtype}; a step of {len(lengths)} prompts, {lengths.sum():,} tokens: median "
            f"{np.median(lengths):.0f}, longest {lengths.max():,}"
        )
        given = sys.argv[1:] if argv is None else list(argv)
        rounds = [{way: _in_a_process(way, flags.folder, given) for way in WAYS} for _ in range(flags.rounds)]
        header = ["way", "tokens/s", "times padded", "times one by one", "peak memory", "loss"]
        header += ["share of the peak"] if flags.peak_tflops else []
        print(f"\n{table(header, [_row(way, rounds, flags) for way in WAYS])}\n", flush=True)
        print(
            table(
                ["the input pipeline alone", "tokens/s"], [[epoch, f"{rate:,.0f}"] for epoch, rate in pipeline(flags)]
            )
        )


def write_prompts(folder: Path, count: int) -> NDArray[np.int64]:
    """Votes on `count` prompts of random words and a tokenizer for them, in `folder`; returns the prompts' lengths."""
    from p2l.model.scratch import train_bpe

    rng = np.random.default_rng(SEED)
    sounds = ["ba", "de", "ki", "lo", "mu", "na", "pe", "ri", "so", "tu"]
    lexicon = np.array([" " + "".join(rng.choice(sounds, size=rng.integers(1, 4))) for _ in range(1500)])
    quantiles = norm.ppf((rng.permutation(count) + 0.5) / count)
    words = np.clip(60 * np.exp(1.5 * quantiles) - 1, 1, MAX_LENGTH).astype(int)
    prompts = ["".join(rng.choice(lexicon, size=number)).strip() for number in words]
    with (folder / "votes.jsonl").open("w", encoding="utf-8") as file:
        for number, prompt in enumerate(prompts):
            a, b = rng.choice(NUM_MODELS, 2, replace=False)
            row = {"prompt": prompt, "model_a": f"model-{a}", "model_b": f"model-{b}", "winner": "model_a"}
            file.write(json.dumps(row | {"question_id": str(number)}) + "\n")
    train_bpe([["".join(lexicon)]], 4000).save_pretrained(str(folder))
    tokenizer = _tokenizer(folder)
    return np.array([len(encoding.ids) for encoding in tokenizer.encode([[prompt] for prompt in prompts])])


def measure(flags: argparse.Namespace) -> Measured:
    """Train some steps in one way; peak memory is the card's, or else the process's."""
    device = choose_device(flags.device)
    tokenizer = _tokenizer(flags.folder)
    with open_votes(str(flags.folder / "votes.jsonl"), model_list=_models()) as votes:
        steps = (_padded if flags.way == "padded" else _ours)(flags, device, tokenizer, votes)
        seconds, losses = zip(*steps, strict=True)
        tokens = sum(len(encoding.ids) for encoding in tokenizer.encode(votes.prompts()))
    memory = (
        torch.cuda.max_memory_allocated() / 2**20
        if device.type == "cuda"
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    )
    return Measured(tokens / float(np.median(seconds)), memory, float(losses[0]), tokens)


def pipeline(flags: argparse.Namespace) -> list[tuple[str, float]]:
    """Tokens a second of reading, formatting, tokenising and packing, nothing else running; later epochs remember."""
    tokenizer = _tokenizer(flags.folder)
    with open_votes(str(flags.folder / "votes.jsonl")) as votes:
        rates = []
        for epoch, readers in (("first epoch", 20), ("later epochs, of encoded prompts", 1)):
            windows = [Windows(tokenizer, votes, True, flags.micro_batch_tokens) for _ in range(readers)]
            if readers == 1:
                windows[0].read(np.arange(len(votes)))
            started = time.perf_counter()
            tokens = sum(
                part.tokens for turn in range(20) for part in windows[turn % readers].read(np.arange(len(votes)))
            )
            rates.append((epoch, tokens / (time.perf_counter() - started)))
        return rates


@dataclass(frozen=True)
class _Steps:
    """A small step for warming up, then all votes at a time."""

    num_votes: int
    count: int

    @property
    def total_steps(self) -> int:
        return self.count + 1

    def steps(self, start: int = 0) -> Iterator[NDArray[np.int64]]:
        yield np.arange(2)
        for _ in range(start, self.count):
            yield np.arange(self.num_votes)


def _ours(
    flags: argparse.Namespace, device: torch.device, tokenizer: PromptTokenizer, votes: VoteStore
) -> Iterator[tuple[float, float]]:
    """Seconds and loss of each step of this project's trainer."""
    start_processes(device)
    model = _model(flags, P2L_ATTENTION)
    if device.type == "cuda":
        model.gradient_checkpointing_enable()
    half = flags.dtype == "bfloat16"
    settings: dict[str, Any] = {
        "train_batch_size": 1,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-9, "torch_adam": True}},
        "bf16": {"enabled": half},
        "zero_optimization": {"stage": 1 if half else 0},
        "steps_per_print": 10**9,
    }
    engine = Engine(model, settings, device, None)
    windows = Windows(tokenizer, votes, True, 1 if flags.way == "one by one" else flags.micro_batch_tokens)
    trainer = Trainer(engine, windows, _Steps(len(votes), flags.steps), model.likelihood)
    before = time.perf_counter()
    for result in trainer.steps():
        now = time.perf_counter()
        if result.step > 1:
            yield now - before, result.loss
        before = time.perf_counter()


class _Plain(torch.nn.Module):
    """What a user of the Hugging Face Trainer would wrap: padded tensors in, the loss out."""

    def __init__(self, model: P2LModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        output = self.model({"input_ids": input_ids, "attention_mask": attention_mask}, labels)
        return {"loss": output.loss}


def _padded(
    flags: argparse.Namespace, device: torch.device, tokenizer: PromptTokenizer, votes: VoteStore
) -> Iterator[tuple[float, float]]:
    """Seconds and loss of each step of the Hugging Face Trainer."""
    import transformers

    model = _model(flags, "sdpa").to(device)
    if device.type == "cuda":
        model.gradient_checkpointing_enable()
    rows = list(zip(tokenizer.encode(votes.prompts()), votes.labels(), strict=True))

    def collator(chosen: list[Any]) -> dict[str, torch.Tensor]:
        batch = collate([encoding for encoding, _ in chosen], tokenizer.pad_token_id)
        return {**batch, "labels": torch.from_numpy(np.array([label for _, label in chosen]))}

    model({name: tensor.to(device) for name, tensor in collator(rows[:2]).items()}).coefs.sum().backward()
    model.zero_grad()
    arguments = transformers.TrainingArguments(
        output_dir=str(flags.folder / "trainer"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=-(-len(rows) // 4),
        max_steps=flags.steps,
        learning_rate=1e-9,
        use_cpu=device.type == "cpu",
        save_strategy="no",
        logging_strategy="steps",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_pin_memory=device.type == "cuda",
    )
    clock = _Clock()
    callback = type("Clock", (transformers.TrainerCallback,), {"on_step_begin": clock.begin, "on_step_end": clock.end})
    loop = transformers.Trainer(
        _Plain(model), arguments, data_collator=collator, train_dataset=rows, callbacks=[callback()]
    )
    loop.train()
    losses = [entry["loss"] for entry in loop.state.log_history if "loss" in entry]
    yield from zip(clock.seconds, losses, strict=True)


class _Clock:
    """When the steps of the Hugging Face Trainer begin and end."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.began = 0.0

    def begin(self, *_: Any, **__: Any) -> None:
        self.began = time.perf_counter()

    def end(self, *_: Any, **__: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self.began)


def _model(flags: argparse.Namespace, attention: str) -> P2LModel:
    from transformers import AutoModel, LlamaConfig

    config = LlamaConfig(**{"vocab_size": 4096, **SHAPES[flags.shape]}, max_position_embeddings=MAX_LENGTH)
    config.use_cache = False
    register_attention()
    torch.manual_seed(SEED)
    dtype = to_dtype(flags.dtype)
    backbone = AutoModel.from_config(config, attn_implementation=attention).to(dtype)  # type: ignore[no-untyped-call]
    head = build("bt", config.hidden_size, NUM_MODELS, downsize_factor=None, head_config=None).to(dtype)
    record = P2LRecord(model_type="llama", head_type="bt", loss_type=get("bt").name, max_length=MAX_LENGTH)
    return P2LModel(backbone, head, _models(), record).train()


def _models() -> list[str]:
    return [f"model-{number}" for number in range(NUM_MODELS)]


def _tokenizer(folder: Path) -> PromptTokenizer:
    return load_tokenizer(folder, chat_template="plain", max_length=MAX_LENGTH)


def _in_a_process(way: str, folder: Path, given: list[str]) -> Measured:
    command = [sys.executable, "-m", "benchmarks.train_throughput", *given, "--way", way, "--folder", str(folder)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    measured = Measured(**json.loads(said.splitlines()[-1]))
    print(f"  {way}: {measured.tokens_per_second:,.0f} tokens/s", file=sys.stderr, flush=True)
    return measured


def _row(way: str, rounds: list[dict[str, Measured]], flags: argparse.Namespace) -> list[str]:
    def median(of: Callable[[dict[str, Measured]], float]) -> float:
        return float(np.median([of(r) for r in rounds]))

    rate = median(lambda r: r[way].tokens_per_second)
    ratios = sorted(r[way].tokens_per_second / r["padded"].tokens_per_second for r in rounds)
    beside = median(lambda r: r[way].tokens_per_second / r["one by one"].tokens_per_second)
    memory = f"{median(lambda r: r[way].peak_memory_mb) / 1e3:.1f} GB"
    padded = f"{np.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]"
    row = [way, f"{rate:,.0f}", padded, f"{beside:.2f}", memory, f"{median(lambda r: r[way].loss):.5f}"]
    if flags.peak_tflops:
        shape = SHAPES[flags.shape]
        width = shape["hidden_size"]
        grouped = shape.get("num_key_value_heads", shape["num_attention_heads"]) / shape["num_attention_heads"]
        weights = shape["num_hidden_layers"] * width * (width * (2 + 2 * grouped) + 3 * shape["intermediate_size"])
        row.append(share(6 * weights * rate / flags.peak_tflops / 1e12, 1))
    return row


if __name__ == "__main__":
    run(main)
