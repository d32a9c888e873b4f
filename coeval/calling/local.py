"""Models that run in this process, through transformers: the interface `huggingface`.

One model is in memory at a time, and answers one prompt at a time, in a thread, so that other models are asked
meanwhile. Without CUDA a model runs only if its `device` is `cpu`.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from p2l.common.errors import ConfigError
from route.providers.base import JSON, Account, Fault, ProviderError, Timeouts
from route.providers.completions import completion, usage, whole_stream

T = TypeVar("T")
_MAX_NEW_TOKENS = 512
_UNLIMITED = 1 << 30
_SAMPLING = ("top_p", "top_k", "min_p")
_DECODING = ("repetition_penalty", "num_beams")


class _Loaded(NamedTuple):
    """A model in memory."""

    key: tuple[object, ...]  # model, device, in 4 bits, in 8 bits
    model: Any
    tokenizer: Any


class _Memory:
    """The only loaded model of this process, and the only thread that uses it."""

    def __init__(self) -> None:
        self.loaded: _Loaded | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def do(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run work in the thread, after earlier work."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="local-models")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def free(self) -> None:
        """Unload the model."""
        if self.loaded is None:
            return
        import torch

        self.loaded = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


_MEMORY = _Memory()


class LocalModels:
    """The local models of one account, loaded on first use; the account's key is the hub's token."""

    def __init__(self, account: Account) -> None:
        self._token = account.api_key

    async def chat(self, request: JSON, timeouts: Timeouts) -> JSON:  # noqa: ARG002
        """Return a chat completion, computed without a timeout. Raise ProviderError if loading or computing fails."""
        cancelled = threading.Event()
        try:
            return await _MEMORY.do(self._answer, request, cancelled)
        finally:
            cancelled.set()

    stream = whole_stream

    async def close(self) -> None:
        """Free the memory."""
        await _MEMORY.do(_MEMORY.free)

    def _answer(self, request: JSON, cancelled: threading.Event) -> JSON:
        loaded = self._load(request)
        try:
            return _generate(loaded, request, cancelled)
        except ProviderError:
            raise
        except Exception as error:  # torch may raise anything
            import torch

            name = str(request["model"])
            if isinstance(error, torch.cuda.OutOfMemoryError):
                why = f"{name}: no memory left on the device for this prompt"
                raise ProviderError(Fault.CONTEXT_LENGTH, why) from None
            failed = f"{name} failed ({type(error).__name__})"
            raise ProviderError(Fault.REQUEST, failed, detail=str(error)) from None

    def _load(self, request: JSON) -> _Loaded:
        name, device = str(request["model"]), str(request.get("device") or "auto")
        bits = (bool(request.get("load_in_4bit")), bool(request.get("load_in_8bit")))
        key = (name, device, *bits)
        if _MEMORY.loaded is None or _MEMORY.loaded.key != key:
            _MEMORY.free()
            try:
                _MEMORY.loaded = _Loaded(key, *_load(name, device, bits, self._token))
            except ConfigError as error:
                raise ProviderError(Fault.UNSUPPORTED, str(error)) from None
            except Exception as error:
                why = " ".join(str(error).split())[:200]
                raise ProviderError(Fault.UNSUPPORTED, f"{name} cannot be loaded: {why}") from None
        return _MEMORY.loaded


def _load(name: str, device: str, bits: tuple[bool, bool], token: str | None) -> tuple[Any, Any]:
    """Load a model and its tokenizer. Raise ConfigError if it cannot run on this machine as configured."""
    placement = _placement(name, device, bits)
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    quiet: Any = logging.disable_progress_bar  # untyped there
    quiet()  # the run shows its own; downloads keep theirs
    # Explicitly without code from the hub: where nothing is stated, transformers asks on the terminal.
    settings: dict[str, Any] = {"token": token, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(name, **settings)
    model: Any = AutoModelForCausalLM.from_pretrained(name, dtype="auto", **settings, **placement)
    if "device_map" not in placement:
        model = model.to("cuda" if device == "auto" else device)
    if device == "cpu" and str(model.dtype) == "torch.float16":
        model = model.float()  # CPUs have no float16 arithmetic
    model.generation_config.max_length = None  # every answer has its own limit, and would be warned of this one
    return model.eval(), tokenizer


def _placement(name: str, device: str, bits: tuple[bool, bool]) -> dict[str, Any]:
    """Return the settings that decide where the weights go and in how many bits."""
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
        quantized["quantization_config"] = make(
            load_in_4bit=bits[0], load_in_8bit=bits[1], bnb_4bit_compute_dtype=compute, bnb_4bit_quant_type="nf4"
        )
    # Several devices, and quantized weights, are placed while they are read.
    is_placed = any(bits) or (device == "auto" and importlib.util.find_spec("accelerate") is not None)
    return quantized | ({"device_map": device} if is_placed else {})


def _generate(loaded: _Loaded, request: JSON, cancelled: threading.Event) -> JSON:
    """Return the assistant's turn as a completion."""
    import torch
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Cancelled(StoppingCriteria):
        """Ends an answer that nobody waits for any more."""

        def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:  # noqa: ARG002
            return torch.full((input_ids.shape[0],), cancelled.is_set(), dtype=torch.bool, device=input_ids.device)

    name, tokenizer, model = str(request["model"]), loaded.tokenizer, loaded.model
    inputs = _inputs(tokenizer, request["messages"])
    read = inputs["input_ids"].shape[1]
    # Models that see pictures have the settings of their text model one level further down.
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or _UNLIMITED
    if read >= positions:  # some devices fail for good if the prompt is tried all the same
        why = f"{name}: the prompt has {read} tokens of {positions} that it may have"
        raise ProviderError(Fault.CONTEXT_LENGTH, why)
    limit = int(request.get("max_new_tokens") or request.get("max_tokens") or _MAX_NEW_TOKENS)
    limit = min(limit, int(positions) - read)
    inputs = {key: inputs[key].to(model.device) for key in ("input_ids", "attention_mask")}
    settings = {**_generation(tokenizer, request), "stopping_criteria": StoppingCriteriaList([Cancelled()])}
    with torch.inference_mode():
        tokens = model.generate(**inputs, **settings, max_new_tokens=limit)[0][read:]
    message = {"role": "assistant", "content": tokenizer.decode(tokens, skip_special_tokens=True)}
    ends = model.generation_config.eos_token_id
    ends = {*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id}
    is_cut = len(tokens) >= limit and int(tokens[-1]) not in ends
    return completion(name, message, "length" if is_cut else "stop", usage(read, len(tokens)))


def _inputs(tokenizer: Any, messages: list[JSON]) -> Any:
    """Encode the conversation with the model's chat template; as plain paragraphs if it has none."""
    whole = "\n\n".join(str(message["content"]) for message in messages)
    if not tokenizer.chat_template:
        return tokenizer(f"{whole}\n", return_tensors="pt")
    from jinja2 import TemplateError

    template = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    try:
        return tokenizer.apply_chat_template(messages, **template)
    except TemplateError:
        if len(messages) == 1:
            raise
    # Some templates have no system message: its text is put before the question.
    return tokenizer.apply_chat_template([{"role": "user", "content": whole}], **template)


def _generation(tokenizer: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    temperature = float(request.get("temperature") or 0.0)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    is_sampled = temperature > 0 and bool(request.get("do_sample", True))
    settings: dict[str, Any] = {"do_sample": is_sampled, "pad_token_id": pad}
    if is_sampled:
        settings["temperature"] = temperature
    keys = (*(_SAMPLING if is_sampled else ()), *_DECODING)
    return settings | {key: request[key] for key in keys if key in request}
