"""A compiled backbone computes what the plain one does."""

import functools
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from p2l.common.errors import ConfigError
from p2l.model.batching import collate
from p2l.model.encoding import PromptTokenizer
from p2l.model.model import P2LModel
from p2l.model.tokenizer import load_tokenizer
from p2l.training.deepspeed_config import compile_backbone
from tests.conftest import MODELS, Command, Configure
from tests.e2e.test_train import lines, train

CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
# The compiler's own imports and subprocesses warn of what nobody here can change.
noisy = pytest.mark.filterwarnings("ignore")


def model(backbone: Path, tokenizer: PromptTokenizer) -> P2LModel:
    names = {"model_type": "qwen2", "head_type": "rk", "loss_type": "grk"}
    return P2LModel.create(backbone, **names, model_list=MODELS, tokenizer=tokenizer)


def gradients(made: P2LModel, batch: dict[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
    made.zero_grad()
    loss = made(batch, labels).loss
    assert loss is not None
    loss.backward()
    found = {name: value.grad.clone() for name, value in made.named_parameters() if value.grad is not None}
    return {"loss": loss.detach(), **found}


@pytest.mark.slow
@needs_compiler
@noisy
@pytest.mark.parametrize("checkpointing", [False, True])
def test_losses_and_gradients_are_those_of_the_plain_backbone(backbone: Path, checkpointing: bool) -> None:
    tokenizer = load_tokenizer(backbone, max_length=64)
    plain, compiled = model(backbone, tokenizer), model(backbone, tokenizer)
    if checkpointing:
        compiled.gradient_checkpointing_enable()
        compiled.train()
    compile_backbone(compiled.model, CPU)
    assert compiled.state_dict().keys() == plain.state_dict().keys()
    for size in (1, 3, 8):
        prompts = [["what is 2 plus 2 " * (1 + number % 3)] for number in range(size)]
        labels = torch.tensor([[number % 4, (number + 1) % 4, number % 3] for number in range(size)])
        for packed in (True, False):
            batch = collate(tokenizer.encode(prompts), tokenizer.pad_token_id, packed=packed)
            one, other = gradients(plain, batch, labels), gradients(compiled, batch, labels)
            for name, value in one.items():
                torch.testing.assert_close(other[name], value, atol=1e-5, rtol=1e-5, msg=name)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_compiled_run_has_the_losses_of_a_plain_one(command: Command, configure: Configure, stage: int) -> None:
    zero = {"zero_optimization": {"stage": stage}}
    losses = []
    for compiled in (False, True):
        config = configure(compile=compiled, gradient_checkpointing=True, zero=zero)
        losses.append([row["loss"] for row in lines(train(command, config, "--no-eval", "--quiet") / "metrics.jsonl")])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


@needs_compiler
@noisy
@pytest.mark.parametrize("packed", [False, True])
def test_layers_are_compiled_within_gradient_checkpointing_too(
    backbone: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is recorded is run as it is here: making machine code of it would take a minute."""
    from torch._dynamo.utils import counters

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    tokenizer = load_tokenizer(backbone, max_length=64)
    batch = collate(tokenizer.encode([["what is 2 plus 2"], ["a poem"]]), tokenizer.pad_token_id, packed=packed)
    labels = torch.tensor([[0, 1, 0], [2, 3, 1]])
    plain, compiled = model(backbone, tokenizer), model(backbone, tokenizer)
    compiled.gradient_checkpointing_enable()
    compiled.train()
    compile_backbone(compiled.model, CPU)
    torch.compiler.reset()
    counters.clear()
    one, other = gradients(plain, batch, labels), gradients(compiled, batch, labels)
    assert counters["stats"]["unique_graphs"] > 0
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, atol=1e-5, rtol=1e-5, msg=name)


@needs_compiler
def test_a_backbone_without_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="compile"):
        compile_backbone(nn.Linear(1, 1), CPU)


def test_a_machine_without_a_compiler_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ConfigError, match=r"g\+\+"):
        compile_backbone(nn.ModuleList([nn.Linear(1, 1)]), CPU)
