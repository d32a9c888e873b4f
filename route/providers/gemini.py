"""The client of Gemini's own protocol, generateContent.

System messages become the system instruction, the assistant is called `model`, and a tool's answer refers to the tool
by its name. Images and files go inline. Hints without a counterpart are dropped, what changes the answer is refused,
and other fields pass through (`safetySettings`, `generationConfig`, `cachedContent`). A stream is a sequence of
answers that each hold a further piece. Thoughts become `reasoning_content`; the signature of a tool call travels in
`extra_content`, as in Google's OpenAI-compatible interface, since it has to come back.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

from p2l.common.errors import ConfigError
from p2l.common.files import parse_json
from route.providers import completions, efforts, translation
from route.providers.base import JSON, USAGE_SO_FAR, Account, Fault, ProviderError
from route.providers.usage import of_generate

_WHO = "gemini"
_GENERATION = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
_TRANSLATED = translation.TRANSLATED | {*_GENERATION, "model"}
_HINTS = translation.HINTS | {"parallel_tool_calls"}
_UNSENT = _TRANSLATED | _HINTS | efforts.FIELDS
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
# From Gemini 3 on tool calls are signed; Google documents this value for calls of another model.
_UNSIGNED = "skip_thought_signature_validator"


def generate_request(request: JSON) -> JSON:
    """Translate a chat completion request, without its model, which is part of the path."""
    translation.refuse_the_impossible(_WHO, request)
    body = {key: value for key, value in request.items() if key not in _UNSENT}
    translation.note_hints(request, _HINTS)
    request = translation.unmarked(request)
    signed = not re.search(r"gemini-[12]\b", str(request.get("model")))
    parts = partial(_parts, names={}, signed=signed)
    body["contents"] = translation.turns_of(request.get("messages") or [], "model", "parts", parts)
    system = translation.system_text(request)
    if system:
        body["systemInstruction"] = {"parts": [{"text": system}]}
    generation = {name: request[key] for key, name in _GENERATION.items() if request.get(key) is not None}
    stops = completions.as_list(request.get("stop"))
    if stops:
        generation["stopSequences"] = stops
    answer_format = request.get("response_format") or {}
    if answer_format.get("type") in ("json_object", "json_schema"):
        generation["responseMimeType"] = "application/json"
    schema = (answer_format.get("json_schema") or {}).get("schema")
    if schema:
        generation["responseJsonSchema"] = schema
    thinking = efforts.of_gemini(request, str(request.get("model")))
    if thinking:
        generation["thinkingConfig"] = thinking
    generation |= body.get("generationConfig", {})
    if generation:
        body["generationConfig"] = generation
    return body | _tools(request)


def _parts(message: JSON, *, names: dict[Any, Any], signed: bool) -> Iterator[JSON]:
    """Yield the parts of a message; `names` of tools by call, of all messages so far, grows by those it calls."""
    names |= {call.get("id"): (call.get("function") or {}).get("name") for call in message.get("tool_calls") or []}
    role = message.get("role")
    if role == "tool":
        name = names.get(message.get("tool_call_id")) or message.get("name") or message.get("tool_call_id")
        text = completions.joined_text(message.get("content"))
        try:
            parsed = parse_json(text)
        except ValueError:
            parsed = None
        # Gemini takes objects alone.
        response = parsed if isinstance(parsed, dict) else {"result": text}
        yield {"functionResponse": {"name": name, "response": response}}
        # A function answers with an object; images and files follow it as the user's.
        yield from (_part(part) for part in translation.media_of(message))
        return
    if role not in ("user", "assistant"):
        raise translation.unsupported(_WHO, f"messages of the role {role}")
    yield from (_part(part) for part in completions.parts_of(message.get("content")))
    for number, call in enumerate(message.get("tool_calls") or []):
        signature = ((call.get("extra_content") or {}).get("google") or {}).get("thought_signature")
        if signature is None and signed and number == 0:
            signature = _UNSIGNED
        function = call.get("function") or {}
        called = {"functionCall": {"name": function.get("name"), "args": translation.arguments_of(function)}}
        yield called | ({"thoughtSignature": signature} if signature else {})


def _part(part: JSON) -> JSON:
    match part.get("type"):
        case "text":
            return {"text": part["text"]}
        case "refusal":
            return {"text": part["refusal"]}
        case "image_url":
            return _file(completions.image_url(part))
        case "file" if isinstance(part.get("file"), dict) and part["file"].get("file_data"):
            return _file(part["file"]["file_data"])
        case "input_audio":
            audio = part.get("input_audio") or {}
            return {"inlineData": {"mimeType": f"audio/{audio.get('format')}", "data": audio.get("data")}}
        case kind:
            raise translation.unsupported(_WHO, f"content of the type {kind}")


def _file(url: str) -> JSON:
    inline = completions.data_url(url)
    if inline is not None:
        return {"inlineData": dict(zip(("mimeType", "data"), inline, strict=True))}
    if url.startswith(("gs://", "https://generativelanguage.googleapis.com/")):
        return {"fileData": {"fileUri": url}}
    raise translation.unsupported(_WHO, "images by their address, only inline")


def _tools(request: JSON) -> JSON:
    tools = request.get("tools")
    if not tools:
        return {}
    declarations = []
    for tool in tools:
        if tool.get("type") != "function":
            continue
        function = tool.get("function") or {}
        declaration = {key: function[key] for key in ("name", "description") if function.get(key) is not None}
        if function.get("parameters"):
            declaration["parametersJsonSchema"] = function["parameters"]
        declarations.append(declaration)
    others = [tool for tool in tools if tool.get("type") != "function"]  # Google's own
    body: JSON = {"tools": [*([{"functionDeclarations": declarations}] if declarations else []), *others]}
    choice = request.get("tool_choice")
    if choice is None:
        return body
    if isinstance(choice, str) and choice in _MODES:
        calling: JSON = {"mode": _MODES[choice]}
    elif isinstance(choice, dict) and choice.get("type") == "function":
        calling = {"mode": "ANY", "allowedFunctionNames": [(choice.get("function") or {}).get("name")]}
    else:
        raise translation.unsupported(_WHO, "this tool_choice")
    return body | {"toolConfig": {"functionCallingConfig": calling}}


_FINISH = {"STOP": "stop", "MAX_TOKENS": "length", "OTHER": "stop", "FINISH_REASON_UNSPECIFIED": "stop"}
_BROKEN = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"})


def completion_of(answer: JSON, *, clock: Callable[[], float] = time.time) -> JSON:
    """Translate a whole answer that has a candidate into a chat completion."""
    candidate = answer["candidates"][0]
    parts = _answer_parts(candidate)
    texts = "".join(part.get("text") or "" for part in parts if not part.get("thought"))
    thoughts = "".join(part.get("text") or "" for part in parts if part.get("thought"))
    calls = [_answer_call(part) for part in parts if part.get("functionCall")]
    message = completions.answer_message(texts or (None if calls else ""), thoughts, calls)
    finish = finish_of(candidate.get("finishReason"), has_calls=bool(calls))
    counts = of_generate(answer.get("usageMetadata") or {})
    model, identifier = str(answer.get("modelVersion") or ""), answer.get("responseId")
    return completions.completion(model, message, finish, counts, identifier=identifier, clock=clock)


def finish_of(reason: object, *, has_calls: bool) -> str:
    """Return OpenAI's finish reason; every unusual reason of Gemini is some kind of safety filter."""
    finish = _FINISH.get(str(reason or "STOP"), "content_filter")
    return "tool_calls" if has_calls and finish == "stop" else finish


def why_not(answer: JSON) -> tuple[str, str]:
    """Return the reason why the prompt was blocked and the finish reason of a broken answer; empty if neither."""
    blocked = str((answer.get("promptFeedback") or {}).get("blockReason") or "")
    reasons = (str(candidate.get("finishReason")) for candidate in answer.get("candidates") or [])
    return blocked, next((reason for reason in reasons if reason in _BROKEN), "")


def _answer_parts(candidate: JSON) -> list[JSON]:
    return (candidate.get("content") or {}).get("parts") or []


def _answer_call(part: JSON) -> JSON:
    called = part["functionCall"]
    function = {"name": called.get("name"), "arguments": json.dumps(called.get("args") or {})}
    call: JSON = {"id": called.get("id") or f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}
    if part.get("thoughtSignature"):
        call["extra_content"] = {"google": {"thought_signature": part["thoughtSignature"]}}
    return call


class GeminiStream(translation.StreamTranslator):
    """Translates the answers of one stream into chunks."""

    _begun = False
    _reason: object = None

    def take(self, answer: JSON) -> list[JSON]:
        """Return the chunks of a piece."""
        candidate = (answer.get("candidates") or [{}])[0]
        self._counts |= answer.get("usageMetadata") or {}
        self._reason = candidate.get("finishReason") or self._reason
        self.finished = self._reason is not None
        chunks = []
        if not self._begun:
            self._begun = True
            self._frame["model"] = str(answer.get("modelVersion") or "")
            self._frame["id"] = answer.get("responseId") or self._frame["id"]
            chunks = self._chunk({"role": "assistant", "content": ""})
        for part in _answer_parts(candidate):
            if part.get("functionCall"):  # whole: Gemini streams no arguments
                chunks += self._chunk({"tool_calls": [{"index": self._calls, **_answer_call(part)}]})
                self._calls += 1
            elif part.get("text"):
                chunks += self._chunk({"reasoning_content" if part.get("thought") else "content": part["text"]})
        counts = of_generate(self._counts)
        if chunks and counts is not None:
            chunks[-1][USAGE_SO_FAR] = counts
        return chunks

    def end(self) -> list[JSON]:
        """Return the chunks after the last piece."""
        last = self._chunk({}, finish_of(self._reason, has_calls=self._calls > 0))
        return last + self._usage_chunk(of_generate(self._counts))


class Gemini(translation.TranslatingClient):
    """One account at Google."""

    protocol = _WHO
    stream_translator = GeminiStream

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._base = account.base_url.rstrip("/")

    def _url(self, request: JSON, *, stream: bool) -> str:
        model = quote(str(request.get("model")).removeprefix("models/"), safe="/")
        return f"{self._base}/models/{model}:{'streamGenerateContent?alt=sse' if stream else 'generateContent'}"

    def _translate(self, request: JSON) -> JSON:
        return generate_request(request)

    def _completion(self, answer: JSON) -> JSON:
        if not answer.get("candidates"):
            raise self._transport.malformed("an answer without candidates")
        return self._transport.understood(completion_of, answer)

    def _checked(self, answer: JSON) -> JSON:
        if answer.get("error"):
            raise self._transport.failure(answer)
        blocked, broken = self._transport.understood(why_not, answer)
        if blocked:
            raise ProviderError(Fault.CONTENT_FILTER, f"gemini refuses the content ({blocked[:64]})")
        if broken:
            raise self._transport.malformed(f"an answer that ended with {broken}")
        return answer


def vertex_base(account: Account) -> str:
    """Return the address of a project's models and jobs; with an API key that of express mode, which has no project.

    Raise ConfigError without a project.
    """
    project, location = (account.options.get(name) for name in ("project", "location"))
    if not account.api_key and not project:
        raise ConfigError("vertex: no project: set GOOGLE_CLOUD_PROJECT, or write `project`")
    where = "" if account.api_key else f"/projects/{quote(str(project))}/locations/{quote(str(location))}"
    return f"{account.base_url.rstrip('/')}/v1{where}"


class Vertex(Gemini):
    """One project at Google Cloud; with an API key, Vertex AI in express mode, which knows the project by the key."""

    protocol = "vertex"

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._base = vertex_base(account)

    def _url(self, request: JSON, *, stream: bool) -> str:
        model = str(request.get("model"))
        path = model if model.startswith(("projects/", "publishers/")) else f"publishers/google/models/{model}"
        verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
        return f"{self._base}/{quote(path, safe='/')}:{verb}"
