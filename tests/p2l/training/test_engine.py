from collections.abc import Iterator
from typing import Any

import pytest
import torch

from p2l.common.errors import ConfigError, PeerError
from p2l.model import backbones
from p2l.training.deepspeed_config import make_scheduler
from p2l.training.engine import peers
from p2l.training.loop import choose_threads
from tests.p2l.training.test_deepspeed_config import config


def rates(steps: int = 6, **changes: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make_scheduler(config(**changes), steps)(optimizer)
    found = []
    for _ in range(steps):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return found


def test_schedules_warm_up_and_decay() -> None:
    assert rates() == [1.0] * 6
    assert rates(warmup_steps=2) == [0.0, 0.5, 1.0, 1.0, 1.0, 1.0]
    assert rates(lr_schedule="linear", warmup_steps=2) == pytest.approx([0.0, 0.5, 1.0, 0.75, 0.5, 0.25])
    least = rates(lr_schedule="cosine_with_min_lr", lr_schedule_params={"min_lr_rate": 0.4})
    assert least[0] == 1.0
    assert 0.4 <= least[-1] < 0.6


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"lr_schedule": "sawtooth"}, "sawtooth"),
        ({"lr_schedule": "cosin"}, "did you mean 'cosine'"),
        ({"lr_schedule": "reduce_lr_on_plateau"}, "reduce_lr_on_plateau"),
        ({"lr_schedule_params": {"num_cycles": 2}}, "num_cycles"),
        ({"lr_schedule": "cosine_with_min_lr", "lr_schedule_params": {"min_lr_rat": 2}}, "did you mean 'min_lr_rate'"),
        ({"lr_schedule": "warmup_stable_decay"}, "num_decay_steps"),
    ],
)
def test_a_schedule_that_cannot_be_made_is_refused(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match="lr_schedule") as caught:
        make_scheduler(config(**changes), 10)
    assert name in str(caught.value)


def test_only_the_error_of_a_lost_process_is_taken_for_one() -> None:
    with pytest.raises(PeerError), peers():
        raise RuntimeError("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:11234")
    with pytest.raises(RuntimeError, match="shapes"), peers():
        raise RuntimeError("shapes differ")


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that began with two threads and without the variable that tests are run with."""
    threads = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS")
    torch.set_num_threads(2)
    backbones.all_threads.cache_clear()
    yield
    torch.set_num_threads(threads)
    backbones.all_threads.cache_clear()


def threads_for(model: torch.nn.Module) -> int:
    choose_threads(model)
    return torch.get_num_threads()


@pytest.mark.usefixtures("two_threads")
def test_a_small_model_is_trained_by_one_thread_and_a_large_one_by_all() -> None:
    small, large = torch.nn.Linear(8, 8), torch.nn.Linear(2048, 2048)
    words = torch.nn.ModuleDict({"embeddings": torch.nn.Embedding(100_000, 64), "layer": torch.nn.Linear(64, 64)})
    assert [threads_for(model) for model in (small, large, words, large)] == [1, 2, 1, 2]
    assert threads_for(large.requires_grad_(False)) == 1


@pytest.mark.usefixtures("two_threads")
def test_a_number_of_threads_that_the_user_sets_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads_for(torch.nn.Linear(8, 8)) == 2
