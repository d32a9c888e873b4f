"""Training on a card beside its reference on the CPU; skips itself without one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import Command, Configure
from tests.e2e.test_train import largest_difference, lines, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# Plain Adam turns the rounding of a gradient near zero into a step of full size.
SETTINGS: dict[str, Any] = {"adam_epsilon": 1e-3, "num_train_epochs": 2, "max_grad_norm": 1.0}


def run(command: Command, configure: Configure, name: str, *, stage: int = 0, **changes: Any) -> Path:
    settings = {"device": "cuda", "dtype": "float32", "gradient_checkpointing": False, "proj_name": name}
    zero = {"zero_optimization": {"stage": stage}}
    return train(command, configure(zero=zero, **(SETTINGS | settings | changes)), "--no-eval", "--quiet")


def losses(folder: Path) -> np.ndarray:
    return np.array([row["loss"] for row in lines(folder / "metrics.jsonl")])


@pytest.fixture
def on_cpu(command: Command, configure: Configure) -> Path:
    """The reference."""
    return run(command, configure, "cpu", device="cpu")


def test_float32_on_a_card_is_float32_on_the_cpu(command: Command, configure: Configure, on_cpu: Path) -> None:
    on_card = run(command, configure, "card")
    np.testing.assert_allclose(losses(on_card), losses(on_cpu), rtol=1e-3)
    assert largest_difference(on_card, on_cpu) < 1e-3


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bfloat16_on_a_card_follows_the_reference(
    command: Command, configure: Configure, on_cpu: Path, stage: int
) -> None:
    if not torch.cuda.is_bf16_supported():
        pytest.skip("this card has no bfloat16")
    on_card = run(command, configure, "card", dtype="bfloat16", stage=stage)
    np.testing.assert_allclose(losses(on_card), losses(on_cpu), rtol=5e-2)


SAVINGS: dict[str, dict[str, Any]] = {
    "checkpointing": {"gradient_checkpointing": True},
    "stage1": {"stage": 1},
    "stage3": {"stage": 3},
    "padded": {"packing": False},
    "compile": {"compile": True},
    "compile-checkpointing": {"compile": True, "gradient_checkpointing": True},
}


@pytest.mark.parametrize("name", SAVINGS)
def test_what_saves_memory_or_time_changes_no_step(command: Command, configure: Configure, name: str) -> None:
    plain = run(command, configure, "plain")
    found = run(command, configure, name, **SAVINGS[name])
    np.testing.assert_allclose(losses(found), losses(plain), rtol=1e-3)


@pytest.mark.parametrize("stage", [2, 3])
def test_offload_from_a_card_changes_no_step(command: Command, configure: Configure, stage: int) -> None:
    plain = run(command, configure, "plain")
    offload: dict[str, Any] = {"stage": stage, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    if stage == 3:
        offload["offload_param"] = {"device": "cpu", "pin_memory": True}
    settings = {"device": "cuda", "dtype": "float32", "proj_name": "offload"}
    config = configure(zero={"zero_optimization": offload}, **(SETTINGS | settings))
    found = train(command, config, "--no-eval", "--quiet")
    np.testing.assert_allclose(losses(found), losses(plain), rtol=1e-3)


@pytest.mark.launcher
@pytest.mark.parametrize("stage", [0, 3])
def test_two_cards_take_the_steps_of_the_cpu(command: Command, configure: Configure, on_cpu: Path, stage: int) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    settings = {"device": "cuda", "dtype": "float32", "proj_name": "cards", "gradient_accumulation_steps": 2}
    config = configure(zero={"zero_optimization": {"stage": stage}}, **(SETTINGS | settings))
    done = command("deepspeed", "--num_gpus=2", "p2l.train", "--config", config, "--no-eval", "--quiet")
    assert done.returncode == 0, done.stderr[-3000:]
    cards = config.parent / "out" / "cards"
    np.testing.assert_allclose(losses(cards), losses(on_cpu), rtol=1e-3)
    assert largest_difference(cards, on_cpu) < 1e-3
