from __future__ import annotations

import asyncio
import logging
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from coeval.calling.caller import Caller
from coeval.calling.calls import CallError, Reason, Reply
from coeval.calling.local import _MEMORY, LocalModels
from coeval.schema import Model
from route.providers.base import JSON, Account, Timeouts
from tests.coeval.calling.calling_helpers import call, caller_of, replies, run

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> Path:
    """A causal model with a chat template, made of the tiny backbone."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("local") / "tiny-chat"
    torch.manual_seed(0)
    make: Any = AutoModelForCausalLM.from_config  # untyped there
    make(AutoConfig.from_pretrained(backbone)).save_pretrained(folder)
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


def variant(
    tiny: Path, folder: Path, *, template: str | None = TEMPLATE, half: bool = False, **generation: Any
) -> Path:
    """The tiny model with another template, other defaults or other numbers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    made: Any = GenerationConfig  # untyped there
    model: Any = AutoModelForCausalLM.from_pretrained(tiny)
    model.generation_config = made(**generation)
    (model.to(torch.float16) if half else model).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    tokenizer.chat_template = template
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    return folder


def completion_of(folder: Path, *messages: tuple[str, str], **request: Any) -> JSON:
    """What the provider itself gives."""
    told = [{"role": role, "content": text} for role, text in messages or [("user", "what is 2 plus 2")]]
    given = {
        "model": str(folder),
        "device": "cpu",
        "max_new_tokens": 6,
        "temperature": 0.0,
        "messages": told,
        **request,
    }
    provider = LocalModels(Account("https://huggingface.co"))
    return asyncio.run(provider.chat(given, Timeouts(1, 1, 1, 1)))


def text_of(found: JSON) -> str:
    return str(found["choices"][0]["message"]["content"])


def test_the_defaults_of_a_model_do_not_draw_where_nothing_is_to_be_drawn(
    tmp_path: Path, tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = variant(tiny, tmp_path / "m", do_sample=True, temperature=0.6, top_p=0.5, top_k=7, max_length=20)
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        assert completion_of(folder, top_p=0.9)["choices"] == completion_of(tiny)["choices"]
        assert completion_of(folder, temperature=1.5, top_p=0.9)["usage"]["completion_tokens"] == 6
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.records == []


def test_an_answer_ends_at_its_last_token_or_at_the_limit(tmp_path: Path, tiny: Path) -> None:
    from transformers import AutoTokenizer

    assert completion_of(tiny, max_new_tokens=1)["choices"][0]["finish_reason"] == "length"
    first = AutoTokenizer.from_pretrained(tiny).encode(text_of(completion_of(tiny, max_new_tokens=1)))[-1]
    ended = completion_of(variant(tiny, tmp_path / "m", eos_token_id=[first]), max_new_tokens=1)
    assert (ended["choices"][0]["finish_reason"], ended["usage"]["completion_tokens"]) == ("stop", 1)


def test_a_model_without_a_template_or_a_system_is_asked_all_the_same(tmp_path: Path, tiny: Path) -> None:
    plain = variant(tiny, tmp_path / "plain", template=None)
    strict = TEMPLATE.replace("<{{", "{% if m['role'] == 'system' %}{{ raise_exception('none') }}{% endif %}<{{")
    told = (("system", "be short"), ("user", "what is 2"))
    assert text_of(completion_of(plain, *told))
    found = completion_of(variant(tiny, tmp_path / "strict", template=strict), *told)
    same = completion_of(tiny, ("user", "be short\n\nwhat is 2"))
    assert (text_of(found), found["usage"]) == (text_of(same), same["usage"])


def test_weights_of_half_precision_are_computed_on_a_processor(tmp_path: Path, tiny: Path) -> None:
    assert completion_of(variant(tiny, tmp_path / "m", half=True))["usage"]["completion_tokens"] == 6


def test_a_prompt_that_is_too_long_is_no_accident(tmp_path: Path, tiny: Path) -> None:
    found, room = replies(caller_of(tmp_path), [call(local(tiny), "a " * 200), call(local(tiny, max_new_tokens=500))])
    assert isinstance(found, CallError)
    assert found.reason is Reason.FAILED
    assert "tokens of 128 that it may have" in str(found)
    assert isinstance(room, Reply)
    assert room.prompt_tokens + room.completion_tokens <= 128


def test_whoever_goes_away_ends_the_answer(tmp_path: Path, tiny: Path) -> None:
    """Otherwise an interrupted run would wait for the last token."""
    import torch
    from transformers import AutoConfig

    folder = variant(tiny, tmp_path / "m")
    config = AutoConfig.from_pretrained(folder)
    config.max_position_embeddings = 1_000_000
    config.save_pretrained(folder)
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    async def work(caller: Caller) -> None:
        await caller.ask(call(local(folder)))
        assert _MEMORY.loaded is not None
        _MEMORY.loaded.model.register_forward_hook(count)
        endless = asyncio.create_task(caller.ask(call(local(folder, max_new_tokens=900_000))))
        while steps < 3:
            await asyncio.sleep(0.01)
        endless.cancel()
        await asyncio.gather(endless, return_exceptions=True)
        await caller.ask(call(local(folder)))

    run(work, caller_of(tmp_path))
    assert steps < 900_000
    assert not torch.is_inference_mode_enabled()


def test_models_of_two_accounts_are_not_in_memory_together(tmp_path: Path, tiny: Path) -> None:
    other = variant(tiny, tmp_path / "m")

    async def both() -> None:
        for folder, key in ((tiny, "one"), (other, "two")):
            request = {"model": str(folder), "device": "cpu", "messages": [{"role": "user", "content": "hi"}]}
            await LocalModels(Account("https://huggingface.co", key)).chat(request, Timeouts(1, 1, 1, 1))
            assert _MEMORY.loaded is not None
            assert _MEMORY.loaded.key[0] == str(folder)
            found.append(weakref.ref(_MEMORY.loaded.model))

    found: list[Any] = []
    asyncio.run(both())
    assert found[0]() is None
    assert found[1]() is not None


@pytest.mark.gpu
@pytest.mark.parametrize(
    "parameters",
    [{"device": "auto"}, {"device": "cuda:0"}, {"load_in_8bit": True}, {"load_in_4bit": True}],
    ids=["auto", "cuda", "8bit", "4bit"],
)
def test_a_model_on_a_card(tmp_path: Path, tiny: Path, parameters: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if "device" not in parameters:
        pytest.importorskip("bitsandbytes")
        pytest.importorskip("accelerate")
        parameters = {"device": "auto", **parameters}
    before = torch.cuda.memory_allocated()
    caller = caller_of(tmp_path)
    first, again = replies(caller, [call(local(tiny, max_new_tokens=8, **parameters)) for _ in range(2)])
    assert isinstance(first, Reply), first
    assert isinstance(again, Reply), again
    assert first.text == again.text
    assert torch.cuda.memory_allocated() == before


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
