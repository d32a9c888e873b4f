"""Answers that were made elsewhere: plain rows, and the logs of HELM, lm-evaluation-harness and Inspect.

| format | file | item | model |
|---|---|---|---|
| `jsonl` | rows with `item`, `model`, `answer`, and maybe `prompt`, `reference_response` | `item` | `model` |
| `helm` | `scenario_state.json` | `instance.id` | `request.model` |
| `lm-eval` | `samples_{task}_{time}.jsonl` of `--log_samples` | `doc_id` | the folder's name |
| `inspect` | a log, `.json` or `.eval` | `id` of the sample, and its epoch where there are several | `eval.model` |
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coeval.errors import RunInputError
from coeval.ingest.benchmarks import BadRowError, text_of
from coeval.ingest.rows import rows_of
from coeval.parsing import split_thoughts
from p2l.common.files import parse_json

LONGEST_LOG = 2 << 30  # bytes of a log that is one JSON document, and of all samples of an archive


@dataclass(frozen=True)
class ReadyAnswer:
    """An answer that was made elsewhere."""

    item: str
    model: str
    answer: str
    prompt: str = ""  # empty where the item has to be in the run already
    reference: str = ""


def format_of(path: Path) -> str:
    """Return the format that a file's name suggests."""
    if path.suffix == ".eval":
        return "inspect"
    if path.suffix == ".json":
        return "helm" if path.stem == "scenario_state" else "inspect"
    return "lm-eval" if path.name.startswith("samples_") else "jsonl"


def read_answers(path: Path, form: str | None = None, model: str | None = None) -> Iterator[ReadyAnswer]:
    """Yield the answers of a file; those without a model's name are `model`'s. Raise RunInputError for a bad one."""
    is_empty = True
    for place, row in FORMATS[form or format_of(path)](path, model):
        is_empty = False
        try:
            answer = row()
            if answer.answer and not split_thoughts(answer.answer)[0]:
                raise BadRowError("has thoughts and no answer; leave it out")
            yield answer
        except (BadRowError, KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            why = str(error) if isinstance(error, BadRowError) else f"is not in this format ({error!r:.60})"
            raise RunInputError(f"{path}: {place}: {why}") from None
    if is_empty:
        raise RunInputError(f"{path}: holds no answers")


_Rows = Iterator[tuple[str, Callable[[], ReadyAnswer]]]  # places in a file, with what reads the answer there


def _plain(path: Path, model: str | None) -> _Rows:
    for number, row in rows_of(path):
        yield f"line {number}", lambda row=row: _plain_row(row, model)  # type: ignore[misc]


def _plain_row(row: Mapping[str, Any], model: str | None) -> ReadyAnswer:
    optional = {
        name: text_of(row, *keys) if any(row.get(key) for key in keys) else ""
        for name, keys in {"prompt": ("prompt",), "reference": ("reference_response", "reference")}.items()
    }
    name = model or text_of(row, "model", "student_model_id")
    return ReadyAnswer(
        item=text_of(row, "item", "datapoint_id", "id"),
        model=name,
        answer=text_of(row, "answer", "response"),
        **optional,
    )


def _document(path: Path) -> Any:
    try:
        if path.stat().st_size > LONGEST_LOG:
            raise RunInputError(f"{path}: is larger than {LONGEST_LOG >> 30} GiB; write its answers as JSON lines")
        return parse_json(path.read_bytes())
    except OSError as error:
        raise RunInputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise RunInputError(f"{path}: no JSON: {error}") from None


def _helm(path: Path, model: str | None) -> _Rows:
    states = _list(_document(path), "request_states", path)
    for number, state in enumerate(states, start=1):
        yield f"request state {number}", lambda state=state: _helm_row(state, model)  # type: ignore[misc]


def _helm_row(state: Mapping[str, Any], model: str | None) -> ReadyAnswer:
    instance, request = state["instance"], state["request"]
    references = instance.get("references") or ()
    right = [entry["output"]["text"] for entry in references if "correct" in (entry.get("tags") or ())]
    prompt = request.get("prompt") or instance["input"]["text"]
    answer = state["result"]["completions"][0]["text"]
    return ReadyAnswer(
        item=str(instance["id"]),
        model=model or request["model"],
        answer=_checked_answer(answer),
        prompt=prompt.strip(),
        reference=right[0] if right else "",
    )


def _lm_eval(path: Path, model: str | None) -> _Rows:
    name = model or path.resolve().parent.name.replace("__", "/")
    for number, row in rows_of(path):
        yield f"line {number}", lambda row=row: _lm_eval_row(row, name)  # type: ignore[misc]


def _lm_eval_row(row: Mapping[str, Any], model: str) -> ReadyAnswer:
    arguments = row["arguments"]
    # Newer releases write mappings where older ones wrote lists.
    calls = [list(call.values()) for call in arguments.values()] if isinstance(arguments, Mapping) else arguments
    prompt, replies = str(calls[0][0]), row.get("filtered_resps") or row["resps"]
    first = _unwrapped(replies[0])
    if isinstance(first, str):
        answer = first
    else:  # log-likelihoods of continuations: the likeliest is the answer
        scores = [float(_unwrapped(reply)[0]) for reply in replies]
        answer = str(calls[scores.index(max(scores))][1])
    target = row.get("target")
    reference = str(target) if isinstance(target, str | int | float) else ""
    if isinstance(target, int) and not isinstance(first, str) and 0 <= target < len(calls):
        reference = str(calls[target][1])
    return ReadyAnswer(
        item=str(row["doc_id"]),
        model=model,
        answer=_checked_answer(answer),
        prompt=prompt.strip(),
        reference=reference.strip(),
    )


def _unwrapped(reply: Any) -> Any:
    """Return the text of a generated reply, or (log-likelihood, ...) of a scored one, from the lists around it."""
    while isinstance(reply, list) and reply and isinstance(reply[0], list):
        reply = reply[0]
    is_text = isinstance(reply, list) and len(reply) == 1 and isinstance(reply[0], str)
    return reply[0] if is_text else reply


def _inspect(path: Path, model: str | None) -> _Rows:
    if path.suffix == ".eval":
        head, samples = _inspect_archive(path)
    else:
        head = _document(path)
        samples = _list(head, "samples", path)
    try:
        name = model or str(head["eval"]["model"])
    except (KeyError, TypeError):
        raise RunInputError(f"{path}: names no model under eval; name it with --model") from None
    epochs = len({sample.get("epoch", 1) for sample in samples if isinstance(sample, dict)}) > 1
    for number, sample in enumerate(samples, start=1):
        yield f"sample {number}", lambda sample=sample: _inspect_row(sample, name, epochs)  # type: ignore[misc]


def _inspect_archive(path: Path) -> tuple[Any, list[Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if member.filename.startswith("samples/")]
            if sum(member.file_size for member in archive.infolist()) > LONGEST_LOG:
                raise RunInputError(f"{path}: unfolds to more than {LONGEST_LOG >> 30} GiB")
            head = "header.json" if "header.json" in archive.namelist() else "_journal/start.json"
            return parse_json(archive.read(head)), [parse_json(archive.read(member)) for member in members]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise RunInputError(f"{path}: is not a log of Inspect: {error}") from None


def _inspect_row(sample: Mapping[str, Any], model: str, epochs: bool) -> ReadyAnswer:
    target, output = sample.get("target") or "", sample["output"]
    answer = output.get("completion")
    if not isinstance(answer, str):
        answer = _content(output["choices"][0]["message"]["content"])
    identity = f"{sample['id']}-{sample.get('epoch', 1)}" if epochs else str(sample["id"])
    reference = target if isinstance(target, str) else " | ".join(map(str, target))
    prompt = sample["input"]
    if not isinstance(prompt, str):
        turns = [(message["role"], _content(message["content"])) for message in prompt]
        texts = [f"{role}: {text}" for role, text in turns] if len(turns) > 1 else [text for _, text in turns]
        prompt = "\n\n".join(texts)
    return ReadyAnswer(item=identity, model=model, answer=_checked_answer(answer), prompt=prompt, reference=reference)


def _content(content: Any) -> str:
    """Return the text of a message's content, a text or a list of parts."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if isinstance(part, Mapping) and part.get("type") == "text")


def _checked_answer(answer: Any) -> str:
    if not isinstance(answer, str) or not answer.strip():
        raise BadRowError("has no answer; leave it out")
    return answer.strip()


def _list(document: Any, key: str, path: Path) -> list[Any]:
    entries = document.get(key) if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise RunInputError(f"{path}: has no {key}; name its format with --answers-format")
    return entries


FORMATS: Mapping[str, Callable[[Path, str | None], _Rows]] = {
    "jsonl": _plain,
    "helm": _helm,
    "lm-eval": _lm_eval,
    "inspect": _inspect,
}


def model_name(name: str) -> str:
    """Return a model's name as names in a run are: letters, digits, `.`, `_`, `-`, and no `__`."""
    text = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in name)
    while "__" in text:
        text = text.replace("__", "_")
    return text.strip("-")[:72] or "model"
