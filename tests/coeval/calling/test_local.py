from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from coeval.calling.call import CallError, Reason, Reply
from coeval.config.schema import Model
from tests.coeval.calling.calling_helpers import Caller, call, caller_of, replies, run

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> Path:
    """A causal model with a chat template, made of the tiny backbone."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("local") / "tiny-chat"
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(backbone)).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(backbone)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def local(folder: Path | str, name: str = "tiny", **parameters: Any) -> Model:
    given = {"model": str(folder), "device": "cpu", "max_new_tokens": 4, "temperature": 0.0, **parameters}
    return Model(name, "huggingface", ("student",), given)


def test_a_local_model_answers_with_its_last_turn(tmp_path: Path, tiny: Path) -> None:
    first, again, longer = replies(
        caller_of(tmp_path),
        [
            call(local(tiny), "what is 2 plus 2"),
            call(local(tiny), "what is 2 plus 2"),
            call(local(tiny, max_new_tokens=9), "what is 2 plus 2"),
        ],
    )
    assert isinstance(first, Reply), first
    assert isinstance(again, Reply)
    assert isinstance(longer, Reply)
    assert first.text == again.text  # at no temperature nothing is drawn
    assert (first.completion_tokens, longer.completion_tokens, first.counted) == (4, 9, True)
    assert "<assistant>" not in first.text


def test_other_models_are_asked_while_a_local_one_computes(tmp_path: Path, tiny: Path) -> None:
    async def work(caller: Caller) -> tuple[float, float]:
        clock = time.monotonic
        slow = asyncio.create_task(caller.ask(call(local(tiny, max_new_tokens=64))))
        await asyncio.sleep(0)
        await caller.ask(call(Model("bee", "mock", ("student",))))
        answered = clock()
        await slow
        return answered, clock()

    answered, done = run(work, caller_of(tmp_path))
    assert answered < done


def test_one_model_is_in_memory_at_a_time(tmp_path: Path, tiny: Path) -> None:
    models = [local(tiny), local(tiny, "other", load_in_8bit=False, device="cpu", model=f"{tiny}/")]
    caller = caller_of(tmp_path)
    found = replies(caller, [call(models[n % 2], f"Hello {n}") for n in range(4)])
    assert all(isinstance(one, Reply) for one in found), found


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"device": "auto"}, "no CUDA device here; run it on one, or write `device: cpu`"),
        ({"load_in_4bit": True}, "need bitsandbytes"),
        ({"model": "/"}, "cannot be loaded"),
    ],
)
def test_what_cannot_run_here_is_said_in_one_line(
    tmp_path: Path, tiny: Path, parameters: dict[str, Any], why: str
) -> None:
    import importlib.util

    import torch

    if (torch.cuda.is_available() and "device" in parameters) or importlib.util.find_spec("bitsandbytes"):
        pytest.skip("this machine can")
    found = replies(caller_of(tmp_path), [call(local(tiny, **parameters))])[0]
    assert isinstance(found, CallError)
    assert found.reason is Reason.FATAL
    assert why in str(found)
    assert "\n" not in str(found)
