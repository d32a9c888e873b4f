"""One dial: the size, together with facts about votes and machine, decides every setting of a training run.

`derive` is pure arithmetic: the same facts give the same settings on every machine. Each choice comes with its reason,
which the written configuration holds as a comment. docs/train/training.md has the rules as a table, and
benchmarks/LOG.md the runs that they rest on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from p2l.common.cli import choose
from p2l.common.errors import InputError
from p2l.likelihood import outcome_model
from p2l.model.scratch import TRANSFORMER_DEFAULTS

GIB = 2**30
_STEPS_PER_PASS = 250
"""Steps per pass that the size of a step aims at: enough for the learning rate to rise and fall."""
_GROUPED_VOTES_PER_PROMPT = 1.5  # votes on a prompt
_FEW_PROMPTS = 2000
CHECKPOINTS_PER_RUN, READER_CHECKPOINTS_PER_RUN = 20, 5
"""Checkpoints of a run; a reader trains in about the time that twenty take to be written."""
_MOST_STEPS_BETWEEN_CHECKPOINTS = 250
_VALIDATIONS_PER_RUN = 4
_VOTES_FOR_DOUBLE_WIDTH = 200_000  # votes from which a tiny transformer has twice the width
_VOTES_FOR_BASE = 100_000  # votes from which a GPU is worth the larger size
FOLDS = 5
CROSS_FIT_BELOW, MOST_CROSS_FITTED_VOTES = 5000, 200_000
"""Prompts with fewer than which holding some out costs more than training in `FOLDS` folds as well: what is learned of
other prompts varies between prompts, however many votes each has. The votes bound memory and time."""


@dataclass(frozen=True)
class Recipe:
    """Training settings of a backbone and its head."""

    learning_rate: float
    head_learning_rate: float
    weight_decay: float
    """Weight decay of matrices; biases do not decay."""
    epochs: int
    """Passes over the votes: few where a prompt has many votes, or the model memorises them."""
    warm_up: float = 0.1
    """Share of the steps over which the rate rises."""
    init_type: str = "marginal"
    """Start of the head: drawn, or at one leaderboard (`marginal`)."""


@dataclass(frozen=True)
class Size:
    """One position of the dial."""

    name: str
    about: str
    backbone: str | None
    """Hub id; None: a transformer made from scratch on the votes' prompts."""
    single: Recipe
    """For votes that nearly all have a prompt of their own."""
    smallest_step: int
    """Prompts per step, at least and at most."""
    largest_step: int
    longest: int
    """Tokens of a prompt, at most."""
    smallest_grouped: int | None = None
    """Prompts per step, at least, where each has several votes; None: as elsewhere."""
    grouped: Recipe | None = None
    """For prompts with several votes, which a step trains on together; None: as `single`."""
    grouped_few: Recipe | None = None
    """The same with fewer than `_FEW_PROMPTS` prompts."""
    single_few: Recipe | None = None
    """As `single`, with fewer than `_FEW_PROMPTS` prompts; None: as `single`."""
    rank: int | None = None
    """Abilities that models share where prompts have single votes; None: each model has its own weights."""
    shared_level: bool = False
    """Whether a head of full rank learns apart what all models share."""
    chat_template: str | None = None
    """For its own backbone; None: the tokenizer's."""
    needs_gpu: bool = False

    @property
    def from_scratch(self) -> bool:
        """Whether its backbone starts with random weights."""
        return self.backbone is None


BAG_OF_WORDS = Recipe(1e-2, 1e-2, 0.01, epochs=6, init_type="reset_params")
_BAG_OF_WORDS_GROUPED = Recipe(3e-3, 3e-3, 0.1, epochs=6)
"""For a TF-IDF backbone, whatever the size."""
SIZES = {
    size.name: size
    for size in (
        Size(
            "reader",
            "a small network on words, form and, with the extra `encoder`, sentence states: a minute on a CPU",
            None,
            single=Recipe(2e-3, 2e-3, 1.0, epochs=4),
            single_few=Recipe(1e-3, 1e-3, 1.0, epochs=4),
            grouped=Recipe(2e-3, 2e-3, 1.0, epochs=6),
            grouped_few=Recipe(2e-3, 2e-3, 1.0, epochs=6),
            smallest_step=32,
            largest_step=256,
            longest=256,
            rank=16,
            shared_level=True,
            smallest_grouped=16,
        ),
        Size(
            "tiny",
            "a transformer of two layers from scratch: no download, minutes on a CPU",
            None,
            single=Recipe(2e-3, 2e-3, 0.01, epochs=3, warm_up=0.05, init_type="reset_params"),
            grouped=Recipe(1e-3, 1e-2, 1.0, epochs=2),
            grouped_few=Recipe(5e-4, 1e-2, 1.0, epochs=2),
            smallest_step=16,
            largest_step=256,
            longest=1024,
        ),
        Size(
            "small",
            "SmolLM2-135M-Instruct fine-tuned: for a GPU, hours on a CPU",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            single=Recipe(1e-4, 3e-3, 0.1, epochs=2),
            smallest_step=32,
            largest_step=512,
            longest=2048,
            chat_template="chatml",
        ),
        Size(
            "base",
            "Qwen2.5-1.5B-Instruct fine-tuned: needs GPUs with bfloat16",
            "Qwen/Qwen2.5-1.5B-Instruct",
            single=Recipe(2e-5, 1e-3, 0.1, epochs=1),
            smallest_step=64,
            largest_step=512,
            longest=8192,
            chat_template="chatml",
            needs_gpu=True,
        ),
    )
}
"""The sizes by name."""


@dataclass(frozen=True)
class VoteFacts:
    """Properties of the training votes that settings depend on."""

    votes: int
    prompts: int
    """Distinct prompts."""
    ties: int
    both_bad: int
    lengths: Sequence[int]
    """Tokens of a sample of prompts, CLS included, none cut."""
    weighted: bool = False
    """Whether the votes have weights."""
    models: int = 2

    @property
    def votes_per_prompt(self) -> float:
        """Mean number of votes on a prompt."""
        return self.votes / max(1, self.prompts)

    @property
    def grouped(self) -> bool:
        """Whether enough votes share a prompt for a step to take them together, and encode the prompt once."""
        return self.votes_per_prompt >= _GROUPED_VOTES_PER_PROMPT


@dataclass(frozen=True)
class Machine:
    """Properties of the machine that settings depend on."""

    processes: int
    memory: int
    """Bytes available to one process: its GPU's memory, or its share of the machine's."""
    gpu: bool
    bfloat16: bool = False


@dataclass(frozen=True)
class BackboneFacts:
    """The text model that carries the head."""

    name: str
    """Folder or hub id."""
    model_type: str
    parameters: int
    positions: int
    """Tokens that it can read."""
    chat_template: str | None = None
    pooling: str | None = None
    """Pooling of a folder of sentence-transformers; None for others."""


@dataclass(frozen=True)
class Plan:
    """Everything that decides a run."""

    settings: dict[str, Any]
    """Keys of the training configuration, except the places of votes and results."""
    reasons: dict[str, str]
    """The reason for a key's value."""
    deepspeed: dict[str, Any]
    steps: int
    """Optimizer steps of the whole run."""
    tokens: int
    """Approximate number of tokens of the whole run, without padding."""
    eval_steps: int
    save_steps: int


def choose_size(name: str | None, *, votes: int, gpu: bool, model_type: str | None = None) -> Size:
    """Return the size of this name, else the one that fits machine and votes; ConfigError for an unknown name."""
    if name is None:  # a text model of the user, of this `model_type`, takes the place of a larger size's
        cheap_sizes = {None: "reader", "reader": "reader", "tfidf": "tiny"}
        name = cheap_sizes.get(model_type) or ("base" if gpu and votes >= _VOTES_FOR_BASE else "small")
    return choose("--size", name, SIZES)


def folds_for(size: Size, votes: int, prompts: int, model_type: str | None = None) -> int | None:
    """Return the number of folds that choose step and shrinkage; None: prompts are held out for that."""
    # A model is trained for each fold, so folds are for backbones that train in seconds; `model_type` is the user's.
    cheap = model_type in {"reader", "tfidf"} or (model_type is None and size.from_scratch)
    return FOLDS if cheap and prompts < CROSS_FIT_BELOW and votes <= MOST_CROSS_FITTED_VOTES else None


def check_machine(size: Size, machine: Machine, *, own_backbone: bool) -> None:
    """Raise InputError for a size that would train for weeks on a CPU, unless the user chose the backbone."""
    if size.needs_gpu and not machine.gpu and not own_backbone:
        raise InputError(
            f"--size {size.name}: {size.backbone} needs a GPU, and torch sees none here; "
            "use --size tiny or small, or a smaller text model with --backbone"
        )


def scratch_shape(train_votes: int) -> dict[str, Any]:
    """Return the arguments of `scratch.make_transformer` for this number of votes."""
    vocabulary, width = (2000, 64) if train_votes < _VOTES_FOR_DOUBLE_WIDTH else (4000, 128)
    return {
        **TRANSFORMER_DEFAULTS,
        "vocab_size": vocabulary,
        "hidden_size": width,
        "max_positions": SIZES["tiny"].longest,
    }


def derive(size: Size, votes: VoteFacts, backbone: BackboneFacts, machine: Machine) -> Plan:
    """Derive every setting of a run; InputError if the backbone does not fit into this machine."""
    bag = backbone.model_type == "tfidf"
    read = backbone.model_type == "reader"
    recipe = _recipe(size, votes, bag=bag)
    small = bag or size.from_scratch
    half = machine.gpu and machine.bfloat16 and not small
    deepspeed, why_zero = _deepspeed(backbone, machine, half=half)
    length, why_length = _max_length(
        votes.lengths, backbone.positions if bag else min(backbone.positions, size.longest)
    )
    share, why_step = _step(size, votes, machine)
    steps = recipe.epochs * math.ceil(votes.votes / (share * machine.processes))
    encoded = recipe.epochs * (votes.prompts if votes.grouped else votes.votes)
    factor = _factor(size, votes, bag=bag)
    head, loss, why_loss = outcome_model(votes.ties, votes.both_bad, votes.votes)
    chosen: dict[str, tuple[Any, str]] = {
        "pretrain_model_name": (backbone.name, f"{backbone.parameters / 1e6:,.1f} million parameters"),
        "model_type": (backbone.model_type, ""),
        "head_type": (head, ""),
        "loss_type": (loss, why_loss),
        "chat_template": (backbone.chat_template, ""),
        "init_type": (recipe.init_type, ""),
        "linear_head_downsize_factor": factor,
        "shared_level": ((size.shared_level and read and factor[0] is None) or None, ""),
        "pooling": (backbone.pooling, ""),
        "max_length": (length, why_length),
        "shuffle": ("by_prompt", f"{votes.votes_per_prompt:.1f} votes on a prompt") if votes.grouped else (True, ""),
        "num_train_epochs": (recipe.epochs, f"{votes.votes:,} votes on {votes.prompts:,} prompts"),
        "batch_size": (share, why_step),
        "gradient_accumulation_steps": (1, "a step is split by tokens, not by votes"),
        "micro_batch_tokens": (_READER_MICRO_BATCH_TOKENS if read else _MICRO_BATCH_TOKENS[machine.gpu, small], ""),
        "learning_rate": (recipe.learning_rate, ""),
        "head_learning_rate": (recipe.head_learning_rate, ""),
        "lr_schedule": ("cosine", ""),
        "warmup_steps": (max(1, round(recipe.warm_up * steps)), f"{recipe.warm_up:.0%} of {steps:,} steps"),
        "weight_decay": (recipe.weight_decay, ""),
        "weighted_loss": (votes.weighted or None, "the votes have a column 'weight'; false counts all of them alike"),
        "adam_epsilon": (1e-8, ""),
        "dtype": ("bfloat16" if half else "float32", ""),
    }
    return Plan(
        settings={key: value for key, (value, _) in chosen.items() if value is not None},
        reasons={key: why for key, (value, why) in chosen.items() if value is not None and why}
        | {"deepspeed_config_path": why_zero},
        deepspeed=deepspeed,
        steps=steps,
        tokens=round(encoded * sum(min(tokens, length) for tokens in votes.lengths) / len(votes.lengths)),
        eval_steps=max(1, math.ceil(steps / _VALIDATIONS_PER_RUN)),
        save_steps=max(
            1,
            min(
                math.ceil(steps / (READER_CHECKPOINTS_PER_RUN if read else CHECKPOINTS_PER_RUN)),
                _MOST_STEPS_BETWEEN_CHECKPOINTS,
            ),
        ),
    )


def _recipe(size: Size, votes: VoteFacts, *, bag: bool) -> Recipe:
    if bag:
        return _BAG_OF_WORDS_GROUPED if votes.grouped else BAG_OF_WORDS
    if not votes.grouped:
        return (size.single_few if votes.prompts < _FEW_PROMPTS else None) or size.single
    return (size.grouped_few if votes.prompts < _FEW_PROMPTS else size.grouped) or size.single


def _factor(size: Size, votes: VoteFacts, *, bag: bool) -> tuple[int | None, str]:
    """Return the number of models over the rank of the head, with the reason; None for a head of full rank."""
    if size.rank is None or bag or votes.grouped or votes.models < 2 * size.rank:
        return None, ""
    factor = round(votes.models / size.rank)
    return factor, f"{votes.models // factor} abilities that {votes.models} models share"


def _max_length(lengths: Sequence[int], most: int) -> tuple[int, str]:
    """Return the 99th percentile of the lengths, rounded up to a multiple of 32, at most `most`, with the reason."""
    import numpy as np  # not above: `p2l train --help` reads the sizes

    length = max(32, 32 * math.ceil(float(np.quantile(lengths, 0.99)) / 32))
    cut = float((np.asarray(lengths) > min(length, most)).mean())
    return min(length, most), f"{cut:.1%} of {len(lengths):,} prompts looked at are longer and lose their oldest tokens"


def _step(size: Size, votes: VoteFacts, machine: Machine) -> tuple[int, str]:
    """Return a step's votes per process, with the reason: a step learns from prompts, however many votes each has."""
    nearest_power = 2 ** round(math.log2(max(1.0, votes.prompts / _STEPS_PER_PASS)))
    smallest = (size.smallest_grouped if votes.grouped else None) or size.smallest_step
    per_epoch = min(max(nearest_power, smallest), size.largest_step)
    each = votes.votes_per_prompt if votes.grouped else 1.0
    share = max(1, round(per_epoch * each / machine.processes))
    total = f"{share * machine.processes:,} votes a step"
    total += f", about {per_epoch} prompts" if votes.grouped else ""
    return share, total + (f", in {machine.processes} processes" if machine.processes > 1 else "")


_READER_MICRO_BATCH_TOKENS = 131_072  # of a reader, which looks most states up and divides the others itself
_MEMORY_SHARE_OF_STATE = 0.7  # share of the memory; the rest is for activations
# (on a GPU, from scratch): tokens of one micro-batch.
_MICRO_BATCH_TOKENS = {(False, True): 2048, (False, False): 2048, (True, True): 131_072, (True, False): 16_384}


def _deepspeed(backbone: BackboneFacts, machine: Machine, *, half: bool) -> tuple[dict[str, Any], str]:
    """Choose the lowest ZeRO stage at which weights, gradients and optimizer state fit; InputError if none does."""
    # Bytes of a weight, of its gradient while it is summed, and of AdamW's two moments (with a float32 copy in
    # bfloat16). ZeRO divides the moments among the processes from stage 1 on, gradients from 2 on, weights from 3 on.
    weight, gradient, state = (2, 4, 12) if half else (4, 4, 8)
    spread = machine.processes
    needed = {
        0: weight + gradient + state,
        1: weight + gradient + state / spread,
        2: weight + (gradient + state) / spread,
        3: (weight + gradient + state) / spread,
    }
    if half or spread == 1:
        # bfloat16 cannot do without stage 1; for one process in float32 that is the same as stage 0.
        needed.pop(0 if half else 1)
    room = _MEMORY_SHARE_OF_STATE * machine.memory
    for stage, each in needed.items():
        if each * backbone.parameters <= room:
            why = f"ZeRO stage {stage}: {each * backbone.parameters / GIB:.1f} GiB of state a process"
            return {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": stage}}, why
    least = min(needed.values()) * backbone.parameters / GIB
    raise InputError(
        f"{backbone.name}: its training state takes {least:.0f} GiB a process, of {machine.memory / GIB:.0f} GiB here; "
        "choose a smaller --size or --backbone, or start more processes with the deepspeed launcher"
    )


def to_yaml(settings: Mapping[str, Any], reasons: Mapping[str, str], header: Sequence[str]) -> str:
    """Write YAML with `header` as a comment on top, and the reason for a key's value behind it."""
    import yaml  # where it is needed: `--help` reads this module too

    lines = [f"# {line}" if line else "#" for line in header]
    for key, value in settings.items():
        text = yaml.safe_dump({key: value}, sort_keys=False, allow_unicode=True, width=10_000).rstrip()
        reason = reasons.get(key)
        if reason and "\n" in text:
            lines.append(f"# {reason}")
        lines.append(f"{text:<40}  # {reason}" if reason and "\n" not in text else text)
    return "\n".join(lines) + "\n"


def plan_lines(plan: Plan) -> list[str]:
    """Summarise the plan for the terminal, before training starts."""
    chosen = plan.settings
    return [
        f"backbone {chosen['pretrain_model_name']}: {plan.reasons['pretrain_model_name']}",
        f"loss {chosen['loss_type']}: {plan.reasons['loss_type']}",
        f"max_length {chosen['max_length']}: {plan.reasons['max_length']}",
        f"{plan.steps:,} steps, {plan.reasons['batch_size']}; {chosen['num_train_epochs']} epochs "
        f"({plan.reasons['num_train_epochs']})",
        f"about {plan.tokens:,} tokens; an estimate of the time follows after the first minute of training",
    ]
