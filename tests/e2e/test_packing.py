"""However prompts lie in memory, a step is the same step."""

import numpy as np
import pytest

from tests.conftest import Command, Configure
from tests.e2e.test_train import lines, train_in_turn, weights

GRADIENT_STEP = {"type": "SGD", "params": {"lr": 1.0}}


@pytest.mark.parametrize("weighted", [False, True])
def test_packed_padded_and_one_by_one_give_the_same_losses_and_gradients(
    weighted: bool, command: Command, configure: Configure
) -> None:
    """With plain descent at rate one, what a single step takes off the weights is the gradient."""
    changes = {"learning_rate": None, "adam_epsilon": None, "optimizer": GRADIENT_STEP, "max_grad_norm": 0}
    changes |= {"batch_size": 60, "gradient_accumulation_steps": 2, "weighted_loss": weighted}
    layouts: list[dict[str, object]] = [{"micro_batch_tokens": 1}, {}, {"micro_batch_tokens": 90}, {"packing": False}]
    found = []
    configs = [[configure(f"{number}.yaml", **changes, **layout)] for number, layout in enumerate(layouts)]
    for folder in train_in_turn(command, *configs):
        [step] = lines(folder / "metrics.jsonl")
        found.append((step["loss"], weights(folder)))
    (alone_loss, alone), *others = found
    for loss, after in others:
        assert loss == pytest.approx(alone_loss, abs=1e-5)
        assert max(float(np.abs(after[name] - alone[name]).max()) for name in alone) < 1e-5
