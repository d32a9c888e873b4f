"""One dial: a size, what the votes are like and what the machine has give every setting of a training run.

`derive` is arithmetic and nothing else: the same facts give the same settings on every machine. Each setting that was
chosen comes with its reason, which the written configuration holds as a comment. docs/training.md has the rules as a
table, docs/experiments.md the runs that they rest on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from p2l.common.cli import nearest
from p2l.common.errors import ConfigError, InputError

GIB = 2**30
STEPS_PER_EPOCH = 250
"""Prompts per step are chosen for about so many steps a pass: enough for the rate to rise and fall."""
GROUPED_FROM = 1.5  # votes on a prompt
FEW_PROMPTS = 2000
SAVES = 20
MOST_BETWEEN_SAVES = 250
EVALUATIONS = 4
WIDER_FROM = 200_000  # votes from which a tiny transformer has twice the width
BASE_FROM = 100_000  # votes from which a GPU is worth the larger size


@dataclass(frozen=True)
class Recipe:
    """How a backbone and its head are trained."""

    learning_rate: float
    head_learning_rate: float
    weight_decay: float
    """Of weight matrices."""
    epochs: int
    """Passes over the votes: few where many votes come back to a prompt, or its answers are learned by heart."""
    warm_up: float = 0.1
    """Share of the steps over which the rate rises."""
    init_type: str = "marginal"
    """How the head starts."""


@dataclass(frozen=True)
class Size:
    """One position of the dial."""

    name: str
    about: str
    backbone: str | None
    """Hub id; None: a transformer made from scratch on the votes' prompts."""
    single: Recipe
    """Where nearly each vote has a prompt of its own."""
    grouped: Recipe
    """Where prompts have several votes, which then are trained on together."""
    grouped_few: Recipe
    """The same with fewer than `FEW_PROMPTS` prompts."""
    smallest_step: int
    """Prompts per step, at the least and at the most."""
    largest_step: int
    longest: int
    """Tokens of a prompt, at the most."""
    chat_template: str | None = None
    """For its own backbone; None: the tokenizer's."""
    needs_gpu: bool = False

    @property
    def from_scratch(self) -> bool:
        """Whether its backbone starts with random weights."""
        return self.backbone is None


BAG_OF_WORDS = Recipe(1e-2, 1e-2, 0.01, epochs=6, init_type="reset_params")
BAG_OF_WORDS_GROUPED = Recipe(3e-3, 3e-3, 0.1, epochs=6)
"""For a TF-IDF backbone, whatever the size."""
SIZES = {
    size.name: size
    for size in (
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
            "SmolLM2-135M-Instruct fine-tuned: hours on a CPU, minutes on a GPU",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            single=Recipe(1e-4, 3e-3, 0.1, epochs=2),
            grouped=Recipe(1e-4, 3e-3, 0.1, epochs=2),
            grouped_few=Recipe(1e-4, 3e-3, 0.1, epochs=2),
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
            grouped=Recipe(2e-5, 1e-3, 0.1, epochs=1),
            grouped_few=Recipe(2e-5, 1e-3, 0.1, epochs=1),
            smallest_step=64,
            largest_step=512,
            longest=8192,
            chat_template="chatml",
            needs_gpu=True,
        ),
    )
}
"""Name: what it stands for."""


@dataclass(frozen=True)
class VoteFacts:
    """What the settings depend on in the votes."""

    votes: int
    """To train on."""
    prompts: int
    """Different ones among them."""
    ties: int
    both_bad: int
    lengths: Sequence[int]
    """Tokens of the prompts of some votes, CLS included, none cut."""
    weighted: bool = False
    """Whether they have weights."""

    @property
    def votes_per_prompt(self) -> float:
        """Mean number of votes on a prompt."""
        return self.votes / max(1, self.prompts)

    @property
    def grouped(self) -> bool:
        """Whether so many votes share a prompt that a step takes them together, and encodes the prompt once."""
        return self.votes_per_prompt >= GROUPED_FROM


@dataclass(frozen=True)
class Machine:
    """What the settings depend on in the machine."""

    processes: int
    memory: int
    """Bytes that one process may use: of its GPU, or its share of the machine's."""
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


@dataclass(frozen=True)
class Plan:
    """Everything that decides a run."""

    settings: dict[str, Any]
    """Keys of the training configuration, where votes and results lie excepted."""
    reasons: dict[str, str]
    """Key: why it has its value."""
    deepspeed: dict[str, Any]
    steps: int
    """Optimizer steps of the whole run."""
    tokens: int
    """About so many tokens are trained on in the whole run, padding not counted."""
    eval_steps: int
    save_steps: int


def choose_size(name: str | None, *, votes: int, gpu: bool, text_model: bool = False) -> Size:
    """The size of this name; without a name, the one that fits the machine and the votes.

    A `text_model` of the user's own is never trained at the rates of tiny, which are for random weights, unasked.

    Raises:
        ConfigError: there is no such size.
    """
    if name is None:
        name = "small" if text_model else "tiny"
        if gpu:
            name = "base" if votes >= BASE_FROM else "small"
    if name not in SIZES:
        raise ConfigError(f"--size {name!r} is unknown{nearest(name, SIZES)}; use one of {', '.join(SIZES)}")
    return SIZES[name]


def check_machine(size: Size, machine: Machine, *, own_backbone: bool) -> None:
    """Refuse a size that would train for weeks here; a backbone of the user's own is the user's choice.

    Raises:
        InputError: the size needs a GPU and there is none.
    """
    if size.needs_gpu and not machine.gpu and not own_backbone:
        raise InputError(
            f"--size {size.name}: {size.backbone} needs a GPU, and torch sees none here; "
            "use --size tiny or small, or give a smaller text model with --backbone"
        )


def scratch_shape(train_votes: int) -> dict[str, Any]:
    """The transformer that is made from scratch for so many votes: arguments of `scratch.make_transformer`."""
    width = 64 if train_votes < WIDER_FROM else 128
    return {
        "vocab_size": 2000 if train_votes < WIDER_FROM else 4000,
        "hidden_size": width,
        "layers": 2,
        "heads": 4,
        "intermediate_size": None,
        "max_positions": SIZES["tiny"].longest,
    }


def outcome_model(ties: int, both_bad: int, votes: int) -> tuple[str, str, str]:
    """Head, likelihood and the reason for them, from how many of the votes are ties of either kind."""
    if both_bad:
        return "rk", "grk", f"{both_bad:,} of {votes:,} votes call both answers bad, which grk alone has an outcome for"
    if ties:
        return "rk", "rk", f"{ties:,} of {votes:,} votes are ties, none says that both answers are bad"
    return "bt", "bt", f"none of the {votes:,} votes is a tie"


def derive(size: Size, votes: VoteFacts, backbone: BackboneFacts, machine: Machine) -> Plan:
    """Every setting of a run.

    Raises:
        InputError: the backbone cannot be trained on this machine.
    """
    bag = backbone.model_type == "tfidf"
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
    head, loss, why_loss = outcome_model(votes.ties, votes.both_bad, votes.votes)
    chosen: dict[str, tuple[Any, str]] = {
        "pretrain_model_name": (backbone.name, f"{backbone.parameters / 1e6:,.1f} million parameters"),
        "model_type": (backbone.model_type, ""),
        "head_type": (head, ""),
        "loss_type": (loss, why_loss),
        "chat_template": (backbone.chat_template, ""),
        "init_type": (recipe.init_type, ""),
        "max_length": (length, why_length),
        "shuffle": ("by_prompt", f"{votes.votes_per_prompt:.1f} votes on a prompt") if votes.grouped else (True, ""),
        "num_train_epochs": (recipe.epochs, f"{votes.votes:,} votes on {votes.prompts:,} prompts"),
        "batch_size": (share, why_step),
        "gradient_accumulation_steps": (1, "a step is split by tokens, not by votes"),
        "micro_batch_tokens": (_TOKENS_AT_ONCE[machine.gpu, small], ""),
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
        tokens=round(encoded * float(np.minimum(votes.lengths, length).mean())),
        eval_steps=max(1, math.ceil(steps / EVALUATIONS)),
        save_steps=max(1, min(math.ceil(steps / SAVES), MOST_BETWEEN_SAVES)),
    )


def _recipe(size: Size, votes: VoteFacts, *, bag: bool) -> Recipe:
    if bag:
        return BAG_OF_WORDS_GROUPED if votes.grouped else BAG_OF_WORDS
    if not votes.grouped:
        return size.single
    return size.grouped_few if votes.prompts < FEW_PROMPTS else size.grouped


def _max_length(lengths: Sequence[int], most: int) -> tuple[int, str]:
    """The 99th percentile of the lengths, rounded up to a multiple of 32, and at most `most`."""
    wanted = max(32, 32 * math.ceil(float(np.quantile(lengths, 0.99)) / 32))
    cut = float((np.asarray(lengths) > min(wanted, most)).mean())
    return min(wanted, most), f"{cut:.1%} of {len(lengths):,} prompts looked at are longer and lose their oldest tokens"


def _step(size: Size, votes: VoteFacts, machine: Machine) -> tuple[int, str]:
    """Votes of a step and process, and why so many: a step learns from prompts, however many votes each has."""
    per_epoch = min(max(_power_of_two(votes.prompts / STEPS_PER_EPOCH), size.smallest_step), size.largest_step)
    each = votes.votes_per_prompt if votes.grouped else 1.0
    share = max(1, round(per_epoch * each / machine.processes))
    total = f"{share * machine.processes:,} votes a step"
    total += f", about {per_epoch} prompts" if votes.grouped else ""
    return share, total + (f", in {machine.processes} processes" if machine.processes > 1 else "")


# (on a GPU, from scratch): tokens of one micro-batch.
_TOKENS_AT_ONCE = {(False, True): 2048, (False, False): 2048, (True, True): 131_072, (True, False): 16_384}


def _power_of_two(number: float) -> int:
    """The nearest one, by ratio, and 1 at the least."""
    return int(2 ** max(0, round(math.log2(max(1.0, number)))))


def _deepspeed(backbone: BackboneFacts, machine: Machine, *, half: bool) -> tuple[dict[str, Any], str]:
    """The least spreading over processes with which weights, gradients and optimizer fit.

    In bfloat16 a weight takes 2 bytes, its gradient 4 while it is summed, and its float32 copy with AdamW's two moments
    12; ZeRO divides the last by the number of processes from stage 1 on, gradients from 2 on, weights from 3 on. In
    float32 they are 4, 4 and 8. Activations have the share of the memory that is left over.

    Raises:
        InputError: it does not fit however it is spread.
    """
    weight, gradient, state = (2, 4, 12) if half else (4, 4, 8)
    spread = machine.processes
    needed = {
        0: weight + gradient + state,
        1: weight + gradient + state / spread,
        2: weight + (gradient + state) / spread,
        3: (weight + gradient + state) / spread,
    }
    if half or spread == 1:
        needed.pop(0 if half else 1)
    room = _FOR_STATE * machine.memory
    for stage, each in needed.items():
        if each * backbone.parameters <= room:
            why = f"ZeRO stage {stage}: {each * backbone.parameters / GIB:.1f} GiB of state a process"
            return {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": stage}}, why
    least = min(needed.values()) * backbone.parameters / GIB
    raise InputError(
        f"{backbone.name}: its training state takes {least:.0f} GiB a process, of {machine.memory / GIB:.0f} GiB here; "
        "choose a smaller --size or --backbone, or start more processes with the deepspeed launcher"
    )


_FOR_STATE = 0.7

# A plan as the training configuration that it is, each choice with its reason, and as a few lines for the terminal.


def to_yaml(settings: Mapping[str, Any], reasons: Mapping[str, str], header: Sequence[str]) -> str:
    """YAML with `header` as a comment on top, and the reason of a key behind it."""
    lines = [f"# {line}" if line else "#" for line in header]
    for key, value in settings.items():
        text = yaml.safe_dump({key: value}, sort_keys=False, allow_unicode=True, width=10_000).rstrip()
        reason = reasons.get(key)
        if reason and "\n" in text:
            lines.append(f"# {reason}")
        lines.append(f"{text:<40}  # {reason}" if reason and "\n" not in text else text)
    return "\n".join(lines) + "\n"


def plan_lines(plan: Plan) -> list[str]:
    """What a user wants to know before training starts."""
    chosen = plan.settings
    return [
        f"backbone {chosen['pretrain_model_name']}: {plan.reasons['pretrain_model_name']}",
        f"loss {chosen['loss_type']}: {plan.reasons['loss_type']}",
        f"max_length {chosen['max_length']}: {plan.reasons['max_length']}",
        f"{plan.steps:,} steps, {plan.reasons['batch_size']}; {chosen['num_train_epochs']} epochs "
        f"({plan.reasons['num_train_epochs']})",
        f"about {plan.tokens:,} tokens; how long they take is said after the first minute of training",
    ]
