"""Benchmarks with options to choose from: MMLU, HellaSwag, MedQA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coeval.ingest.benchmark import BadRowError, Benchmark, Entry, option_text, text_of

__all__ = ["HELLASWAG", "MEDQA", "MMLU"]

_LETTERS = "ABCDEFGHIJ"
_CORRECTNESS = "The option chosen is the correct one."


def _options(value: object) -> list[str]:
    """Options as a list, a map by letter, or a list of {key, value}.

    Raises:
        BadRowError: they are none of these.
    """
    if isinstance(value, Mapping):
        return [str(value[key]) for key in sorted(value)]
    if isinstance(value, list) and value:
        maps = [one for one in value if isinstance(one, Mapping)]
        if len(maps) == len(value):
            return [str(one.get("value", "")) for one in sorted(maps, key=lambda one: str(one.get("key")))]
        return [str(one) for one in value]
    raise BadRowError("no options")


def _letter(value: object, options: Sequence[str]) -> str:
    """The letter of the right option, given as a number from 0, a letter, or the option itself.

    Raises:
        BadRowError: it is none of the options.
    """
    said = str(value).strip()
    if said.isdigit() and int(said) < len(options):
        return _LETTERS[int(said)]
    if said.upper() in _LETTERS[: len(options)]:
        return said.upper()
    if said in options:
        return _LETTERS[options.index(said)]
    raise BadRowError(f"answer {said[:40]!r} is none of the {len(options)} options")


def _choice(
    native_id: str, question: str, options: Sequence[str], answer: object, attributes: Mapping[str, Any]
) -> Entry:
    letter = _letter(answer, options)
    chosen = options[_LETTERS.index(letter)]
    prompt = f"{question}\n\n{option_text(options)}"
    return Entry(native_id, prompt, f"{letter}. {chosen}", {"correct_answer": letter, **attributes})


def _mmlu(row: Mapping[str, Any], number: int) -> Entry:
    options = _options(row.get("choices"))
    subject = text_of(row, "subject")
    return _choice(f"{subject}-{number}", text_of(row, "question"), options, row.get("answer"), {"subject": subject})


def _hellaswag(row: Mapping[str, Any], number: int) -> Entry | None:
    if str(row.get("label", "")).strip() == "":
        return None
    attributes = {"activity": text_of(row, "activity_label")} if row.get("activity_label") else {}
    native_id = str(row.get("ind", number))
    return _choice(native_id, text_of(row, "ctx"), _options(row.get("endings")), row["label"], attributes)


def _medqa(row: Mapping[str, Any], number: int) -> Entry:
    options = _options(row.get("options"))
    answer = row.get("answer_idx") or row.get("answer")
    attributes = {"step": text_of(row, "meta_info")} if row.get("meta_info") else {}
    return _choice(str(row.get("id", number)), text_of(row, "question"), options, answer, attributes)


_LETTER_OUT = "The letter of the correct option alone, such as B."
MMLU = Benchmark(
    "mmlu",
    "multiple_choice_knowledge",
    "test",
    "Answer a multiple-choice question about a field of knowledge.",
    _LETTER_OUT,
    {"correctness": _CORRECTNESS},
    _mmlu,
    {"correct_answer": ["A", "B", "C", "D"]},
    ("correct_answer",),
)
HELLASWAG = Benchmark(
    "hellaswag",
    "commonsense_completion",
    "validation",
    "Choose the ending that continues a description of everyday events most plausibly.",
    _LETTER_OUT,
    {"correctness": _CORRECTNESS},
    _hellaswag,
    {"correct_answer": ["A", "B", "C", "D"]},
    ("correct_answer",),
)
MEDQA = Benchmark(
    "medqa",
    "medical_question_answering",
    "test",
    "Answer a multiple-choice question from a medical licensing exam.",
    "The letter of the correct option on the first line, then the clinical reasoning in a few sentences, as JSON: "
    '{"correct_answer": "B", "reasoning": "..."}.',
    {
        "correctness": _CORRECTNESS,
        "clinical_reasoning": "The reasoning is medically sound and leads to the option chosen.",
    },
    _medqa,
    {"correct_answer": ["A", "B", "C", "D", "E"]},
    ("correct_answer",),
)
