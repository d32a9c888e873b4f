import pytest
import torch

from p2l.training.deepspeed_config import parameter_groups
from tests.p2l.training.test_deepspeed_config import config


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
        self.head = torch.nn.Linear(4, 3)


def test_biases_and_norms_do_not_decay_and_the_head_has_its_rate() -> None:
    model = Model()
    groups = parameter_groups(model, config(learning_rate=1e-4, head_learning_rate=1e-2, weight_decay=0.1)) or []
    settings = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert {name: settings[id(parameter)] for name, parameter in model.named_parameters()} == {
        "model.0.weight": (1e-4, 0.1),
        "model.0.bias": (1e-4, 0.0),
        "model.1.weight": (1e-4, 0.0),
        "model.1.bias": (1e-4, 0.0),
        "head.weight": (1e-2, 0.1),
        "head.bias": (1e-2, 0.0),
    }
    assert groups[0]["lr"] == 1e-4  # the rate that is reported


def test_frozen_weights_are_in_no_group() -> None:
    model = Model()
    model.model.requires_grad_(False)
    groups = parameter_groups(model, config(weight_decay=0.1)) or []
    assert sum(len(group["params"]) for group in groups) == 2


@pytest.mark.parametrize("changes", [{}, {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "weight_decay": 0.1}])
def test_where_all_weights_are_alike_there_are_no_groups(changes: dict[str, object]) -> None:
    assert parameter_groups(Model(), config(**changes)) is None
