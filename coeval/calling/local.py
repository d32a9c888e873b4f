"""Models that run here, through transformers: the interface `huggingface`.

One model is in memory at a time, and one prompt in a model. Answers are made in a thread, so that other models are
asked meanwhile. Without CUDA a model runs only where its `device` is `cpu`.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from p2l.common.errors import ConfigError
from route.providers.base import JSON, Account, Fault, ProviderError, Timeouts
from route.providers.chat import asks_for_usage, chunks_of, completion, usage

_Made = TypeVar("_Made")
_MAX_NEW_TOKENS = 512
_ENDLESS = 1 << 30
_OF_DRAWS = ("top_p", "top_k", "min_p")
_OF_ALL = ("repetition_penalty", "num_beams")


class _Loaded(NamedTuple):
    """A model in memory."""

    wanted: tuple[object, ...]
    model: Any
    tokenizer: Any


class _Memory:
    """The one place that models of this machine have, whoever asks for them, and the one thread that works there."""

    def __init__(self) -> None:
        self.loaded: _Loaded | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def do(self, work: Callable[..., _Made], *values: Any) -> _Made:
        """Work in the thread, when what came before is done."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="local-models")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *values)

    def free(self) -> None:
        """Forget the model."""
        if self.loaded is None:
            return
        import torch

        self.loaded = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


_MEMORY = _Memory()


class LocalModels:
    """All local models that one account reaches."""

    def __init__(self, account: Account) -> None:
        """Nothing is loaded before the first question; the account's key is the hub's token."""
        self._token = account.api_key

    async def chat(self, request: JSON, timeouts: Timeouts) -> JSON:  # noqa: ARG002
        """A whole chat completion; computing takes as long as it takes, unless whoever asked goes away.

        Raises:
            ProviderError: the model cannot be loaded here, or not answer.
        """
        gone = threading.Event()
        try:
            return await _MEMORY.do(self._answer, request, gone)
        finally:
            gone.set()

    async def stream(self, request: JSON, timeouts: Timeouts) -> AsyncGenerator[JSON, None]:
        """The whole answer as one chunk.

        Raises:
            ProviderError: there is none.
        """
        for chunk in chunks_of(await self.chat(request, timeouts), with_usage=asks_for_usage(request)):
            yield chunk

    async def close(self) -> None:
        """Free the memory."""
        await _MEMORY.do(_MEMORY.free)

    def _answer(self, request: JSON, gone: threading.Event) -> JSON:
        loaded = self._load(request)
        try:
            return _generated(loaded, request, gone)
        except ProviderError:
            raise
        except Exception as error:  # torch raises whatever it likes
            raise _failure(str(request["model"]), error) from None

    def _load(self, request: JSON) -> _Loaded:
        bits = (bool(request.get("load_in_4bit")), bool(request.get("load_in_8bit")))
        wanted = (request["model"], str(request.get("device") or "auto"), *bits)
        if _MEMORY.loaded is None or _MEMORY.loaded.wanted != wanted:
            _MEMORY.free()
            try:
                _MEMORY.loaded = _Loaded(wanted, *_load(str(request["model"]), str(wanted[1]), bits, self._token))
            except ConfigError as error:
                raise ProviderError(Fault.UNSUPPORTED, str(error)) from None
            except Exception as error:
                why = " ".join(str(error).split())[:200]
                raise ProviderError(Fault.UNSUPPORTED, f"{request['model']} cannot be loaded: {why}") from None
        return _MEMORY.loaded


def _load(name: str, device: str, bits: tuple[bool, bool], token: str | None) -> tuple[Any, Any]:
    """A model and its tokenizer.

    Raises:
        ConfigError: it cannot run on this machine as it is asked to.
    """
    placed = _placement(name, device, bits)
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    quiet: Any = logging.disable_progress_bar
    quiet()  # the run shows its own; downloads keep theirs
    # Said outright that no code of a model is run: where nothing is said, the terminal is asked.
    settings: dict[str, Any] = {"token": token, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(name, **settings)
    model: Any = AutoModelForCausalLM.from_pretrained(name, dtype="auto", **settings, **placed)
    if "device_map" not in placed:
        model = model.to(_one_device(device))
    if device == "cpu" and str(model.dtype) == "torch.float16":
        model = model.float()  # processors have no arithmetic of this kind
    model.generation_config.max_length = None  # every answer has its own limit, and would be warned of this one
    return model.eval(), tokenizer


def _placement(name: str, device: str, bits: tuple[bool, bool]) -> dict[str, Any]:
    """What decides where the weights go and in how many bits."""
    import torch

    if any(bits) and importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(f"{name}: load_in_4bit and load_in_8bit need bitsandbytes; pip install bitsandbytes")
    if device != "cpu" and not torch.cuda.is_available():
        raise ConfigError(f"{name}: no CUDA device here; run it on one, or write `device: cpu` in its parameters")
    quantized: dict[str, Any] = {}
    if any(bits):
        from transformers import BitsAndBytesConfig

        make: Any = BitsAndBytesConfig  # untyped there
        bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        compute = torch.bfloat16 if bf16 or device == "cpu" else torch.float16
        quantized = {
            "quantization_config": make(
                load_in_4bit=bits[0], load_in_8bit=bits[1], bnb_4bit_compute_dtype=compute, bnb_4bit_quant_type="nf4"
            )
        }
    # Several devices, and weights in few bits, are placed while they are read.
    is_placed = any(bits) or (device == "auto" and importlib.util.find_spec("accelerate") is not None)
    return quantized | ({"device_map": device} if is_placed else {})


def _one_device(device: str) -> str:
    return "cuda" if device == "auto" else device


def _generated(loaded: _Loaded, request: JSON, gone: threading.Event) -> JSON:
    """The last turn of the assistant, with the tokens that it took."""
    import torch

    inputs = _inputs(loaded.tokenizer, request["messages"])
    read = inputs["input_ids"].shape[1]
    limit = min(_limit(request), _room(loaded.model, str(request["model"]), read))
    inputs = {name: inputs[name].to(loaded.model.device) for name in ("input_ids", "attention_mask")}
    settings = _generation(loaded.tokenizer, request)
    with torch.inference_mode():
        tokens = loaded.model.generate(**inputs, **settings, max_new_tokens=limit, stopping_criteria=_ended_by(gone))[
            0
        ][read:]
    text = loaded.tokenizer.decode(tokens, skip_special_tokens=True)
    message = {"role": "assistant", "content": text}
    is_cut = len(tokens) >= limit and int(tokens[-1]) not in _ends(loaded)
    return completion(str(request["model"]), message, "length" if is_cut else "stop", usage(read, len(tokens)))


def _room(model: Any, name: str, read: int) -> int:
    """Tokens that an answer may have after so many of a prompt.

    Raises:
        ProviderError: the prompt leaves no room; some devices are lost to whoever tries all the same.
    """
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or _ENDLESS
    if read >= positions:
        raise ProviderError(
            Fault.CONTEXT_LENGTH, f"{name}: the prompt has {read} tokens of {positions} that it may have"
        )
    return int(positions) - read


def _ends(loaded: _Loaded) -> set[int]:
    """The tokens that end an answer."""
    said = loaded.model.generation_config.eos_token_id
    return {*(said if isinstance(said, list) else [said]), loaded.tokenizer.eos_token_id} - {None}


def _ended_by(gone: threading.Event) -> list[Any]:
    """Ends an answer that nobody waits for any more."""
    import torch
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Gone(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:  # noqa: ARG002
            return torch.full((input_ids.shape[0],), gone.is_set(), dtype=torch.bool, device=input_ids.device)

    return StoppingCriteriaList([Gone()])


def _inputs(tokenizer: Any, messages: list[JSON]) -> Any:
    """The conversation in the model's own form; in plain paragraphs where it has none."""
    if not tokenizer.chat_template:
        text = "\n\n".join(str(message["content"]) for message in messages)
        return tokenizer(f"{text}\n", return_tensors="pt")
    from jinja2 import TemplateError

    def templated(messages: list[JSON]) -> Any:
        return tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )

    try:
        return templated(messages)
    except TemplateError:
        if len(messages) == 1:
            raise
    # Some models know no system: what it would say comes before the question.
    whole = "\n\n".join(str(message["content"]) for message in messages)
    return templated([{"role": "user", "content": whole}])


def _generation(tokenizer: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    warmth = float(request.get("temperature") or 0.0)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    is_drawn = warmth > 0 and bool(request.get("do_sample", True))
    settings: dict[str, Any] = {"do_sample": is_drawn, "pad_token_id": pad}
    if is_drawn:
        settings["temperature"] = warmth
    return settings | {key: request[key] for key in (*(_OF_DRAWS if is_drawn else ()), *_OF_ALL) if key in request}


def _limit(request: Mapping[str, Any]) -> int:
    return int(request.get("max_new_tokens") or request.get("max_tokens") or _MAX_NEW_TOKENS)


def _failure(name: str, error: Exception) -> ProviderError:
    import torch

    if isinstance(error, torch.cuda.OutOfMemoryError):
        return ProviderError(Fault.CONTEXT_LENGTH, f"{name}: no memory left on the device for this prompt")
    return ProviderError(Fault.REQUEST, f"{name} failed ({type(error).__name__})", detail=str(error))
