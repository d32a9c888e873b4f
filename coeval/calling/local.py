"""Models that run here, through transformers: the interface `huggingface`.

One model is in memory at a time, and one prompt in a model. Answers are made in a thread, so that other models are
asked meanwhile. Without CUDA a model runs only where its `device` is `cpu`.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import threading
from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple

from p2l.errors import ConfigError
from route.providers.base import JSON, Account, Fault, ProviderError, Timeouts
from route.providers.chunks import asks_for_usage, chunks_of, completion, usage

__all__ = ["LocalModels"]

_MAX_NEW_TOKENS = 512
_PASSED_ON = ("top_p", "top_k", "min_p", "repetition_penalty", "num_beams")


class _Loaded(NamedTuple):
    """A model in memory."""

    wanted: tuple[object, ...]
    model: Any
    tokenizer: Any


class LocalModels:
    """All local models of a run."""

    def __init__(self, account: Account) -> None:
        """Nothing is loaded before the first question; the account's key is the hub's token."""
        self._token = account.api_key
        self._loaded: _Loaded | None = None
        self._one_at_a_time = threading.Lock()

    async def chat(self, request: JSON, timeouts: Timeouts) -> JSON:  # noqa: ARG002
        """A whole chat completion; computing takes as long as it takes.

        Raises:
            ProviderError: the model cannot be loaded here, or not answer.
        """
        return await asyncio.to_thread(self._answer, request)

    async def stream(self, request: JSON, timeouts: Timeouts) -> AsyncGenerator[JSON, None]:
        """The whole answer as one chunk.

        Raises:
            ProviderError: there is none.
        """
        for chunk in chunks_of(await self.chat(request, timeouts), with_usage=asks_for_usage(request)):
            yield chunk

    async def close(self) -> None:
        """Free the memory."""
        await asyncio.to_thread(self._free)

    def _answer(self, request: JSON) -> JSON:
        with self._one_at_a_time:
            loaded = self._load(request)
            try:
                return _generated(loaded, request)
            except Exception as error:  # torch raises whatever it likes
                raise _failure(str(request["model"]), error) from None

    def _load(self, request: JSON) -> _Loaded:
        bits = (bool(request.get("load_in_4bit")), bool(request.get("load_in_8bit")))
        wanted = (request["model"], str(request.get("device") or "auto"), *bits)
        if self._loaded is None or self._loaded.wanted != wanted:
            self._free_now()
            try:
                self._loaded = _Loaded(wanted, *_load(str(request["model"]), str(wanted[1]), bits, self._token))
            except ConfigError as error:
                raise ProviderError(Fault.UNSUPPORTED, str(error)) from None
            except Exception as error:
                why = " ".join(str(error).split())[:200]
                raise ProviderError(Fault.UNSUPPORTED, f"{request['model']} cannot be loaded: {why}") from None
        return self._loaded

    def _free(self) -> None:
        with self._one_at_a_time:
            self._free_now()

    def _free_now(self) -> None:
        if self._loaded is None:
            return
        import torch

        self._loaded = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


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
    tokenizer = AutoTokenizer.from_pretrained(name, token=token)
    model: Any = AutoModelForCausalLM.from_pretrained(name, token=token, dtype="auto", **placed)
    if "device_map" not in placed:
        model = model.to(_one_device(device))
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
        quantized = {"quantization_config": make(load_in_4bit=bits[0], load_in_8bit=bits[1])}
    # Several devices, and weights in few bits, are placed while they are read.
    is_placed = any(bits) or (device == "auto" and importlib.util.find_spec("accelerate") is not None)
    return quantized | ({"device_map": device} if is_placed else {})


def _one_device(device: str) -> str:
    return "cuda" if device == "auto" else device


def _generated(loaded: _Loaded, request: JSON) -> JSON:
    """The last turn of the assistant, with the tokens that it took."""
    import torch

    inputs = _inputs(loaded.tokenizer, request["messages"]).to(loaded.model.device)
    read = inputs["input_ids"].shape[1]
    with torch.inference_mode():
        tokens = loaded.model.generate(**inputs, **_generation(loaded.tokenizer, request))[0][read:]
    text = loaded.tokenizer.decode(tokens, skip_special_tokens=True)
    limit = _limit(request)
    message = {"role": "assistant", "content": text}
    return completion(
        str(request["model"]), message, "length" if len(tokens) >= limit else "stop", usage(read, len(tokens))
    )


def _inputs(tokenizer: Any, messages: list[JSON]) -> Any:
    """The conversation in the model's own form; in plain paragraphs where it has none."""
    if tokenizer.chat_template:
        return tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    text = "\n\n".join(str(message["content"]) for message in messages)
    return tokenizer(f"{text}\n", return_tensors="pt")


def _generation(tokenizer: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    warmth = float(request.get("temperature") or 0.0)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    is_drawn = warmth > 0 and bool(request.get("do_sample", True))
    settings: dict[str, Any] = {"max_new_tokens": _limit(request), "do_sample": is_drawn, "pad_token_id": pad}
    if is_drawn:
        settings["temperature"] = warmth
    return settings | {key: request[key] for key in _PASSED_ON if key in request}


def _limit(request: Mapping[str, Any]) -> int:
    return int(request.get("max_new_tokens") or request.get("max_tokens") or _MAX_NEW_TOKENS)


def _failure(name: str, error: Exception) -> ProviderError:
    import torch

    if isinstance(error, torch.cuda.OutOfMemoryError):
        return ProviderError(Fault.CONTEXT_LENGTH, f"{name}: no memory left on the device for this prompt")
    return ProviderError(Fault.REQUEST, f"{name} failed ({type(error).__name__})", detail=str(error))
