"""The built-in benchmarks, and any file of prompts as one: how a row of the file becomes an item."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


class BadRowError(ValueError):
    """A row does not fit its benchmark; the message says what is missing."""


@dataclass(frozen=True)
class BenchmarkItem:
    """A row as an item."""

    native_id: str
    prompt: str
    reference: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    native_score: float | None = None


@dataclass(frozen=True)
class Benchmark:
    """A source of items: a virtual teacher, its task, and how rows are read."""

    name: str
    """Also the teacher's name."""
    task: str
    split: str
    description: str
    output_description: str
    rubric: Mapping[str, Any]
    read: Callable[[Mapping[str, Any], int], BenchmarkItem | None]
    """(row, number from 0) -> item, or None for a row without one, such as one without a label. Raises BadRowError."""
    attributes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Known values; others are added as they occur."""
    label_attributes: tuple[str, ...] = ()
    metric: str | None = None
    """Metric of the virtual judge to add."""
    described: bool = False
    """Whether the user gave the description, so that an existing task with another one is an error."""
    sample: int | None = None
    """Items that are drawn evenly over the attributes, unless a limit is given; None: all rows, in order."""
    hub: str = ""
    """Where it is published: `owner/name`, `owner/name:configuration`, or `owner/name:*`, all of its configurations."""


def text_of(row: Mapping[str, Any], *keys: str) -> str:
    """Return the first non-empty value of some keys as text. Raise BadRowError if a row has none of them."""
    for key in keys:
        value = row.get(key)
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
    raise BadRowError(f"no {' or '.join(keys)}")


# Multiple choice: MMLU, HellaSwag, MedQA.

_LETTERS = "ABCDEFGHIJ"
_CORRECTNESS = "The option chosen is the correct one."


def options_of(value: object) -> list[str]:
    """Read options from a list, a map by letter, or a list of {key, value}. Raise BadRowError for anything else."""
    if isinstance(value, Mapping):
        return [str(value[key]) for key in sorted(value)]
    if isinstance(value, list) and value:
        maps = [one for one in value if isinstance(one, Mapping)]
        if len(maps) == len(value):
            return [str(one.get("value", "")) for one in sorted(maps, key=lambda one: str(one.get("key")))]
        return [str(one) for one in value]
    raise BadRowError("no options")


def _letter(value: object, options: Sequence[str]) -> str:
    """Return the letter of the right option, given as a number from 0, a letter, or the option itself."""
    text = str(value).strip()
    if text.isdigit() and int(text) < len(options):
        return _LETTERS[int(text)]
    if text.upper() in _LETTERS[: len(options)]:
        return text.upper()
    if text in options:
        return _LETTERS[options.index(text)]
    raise BadRowError(f"answer {text[:40]!r} is none of the {len(options)} options")


def choice_item(
    native_id: str, question: str, options: Sequence[str], answer: object, attributes: Mapping[str, Any]
) -> BenchmarkItem:
    """Return a question with options by letter; `answer` is the right one's number from 0, letter or text."""
    letter = _letter(answer, options)
    chosen = options[_LETTERS.index(letter)]
    lines = "\n".join(f"{chr(ord('A') + place)}. {option}" for place, option in enumerate(options))
    prompt = f"{question}\n\n{lines}"
    return BenchmarkItem(native_id, prompt, f"{letter}. {chosen}", {"correct_answer": letter, **attributes})


def _mmlu(row: Mapping[str, Any], number: int) -> BenchmarkItem:
    options = options_of(row.get("choices"))
    subject = text_of(row, "subject")
    return choice_item(
        f"{subject}-{number}", text_of(row, "question"), options, row.get("answer"), {"subject": subject}
    )


def _hellaswag(row: Mapping[str, Any], number: int) -> BenchmarkItem | None:
    if str(row.get("label", "")).strip() == "":
        return None
    attributes = {"activity": text_of(row, "activity_label")} if row.get("activity_label") else {}
    native_id = str(row.get("ind", number))
    return choice_item(native_id, text_of(row, "ctx"), options_of(row.get("endings")), row["label"], attributes)


def _medqa(row: Mapping[str, Any], number: int) -> BenchmarkItem:
    options = options_of(row.get("options"))
    answer = row.get("answer_idx") or row.get("answer")
    attributes = {"step": text_of(row, "meta_info")} if row.get("meta_info") else {}
    return choice_item(str(row.get("id", number)), text_of(row, "question"), options, answer, attributes)


MMLU = Benchmark(
    "mmlu",
    "multiple_choice_knowledge",
    "test",
    "Answer a multiple-choice question about a field of knowledge.",
    "The letter of the correct option alone, such as B.",
    {"correctness": _CORRECTNESS},
    _mmlu,
    {"correct_answer": ["A", "B", "C", "D"]},
    ("correct_answer",),
)
HELLASWAG = replace(
    MMLU,
    name="hellaswag",
    task="commonsense_completion",
    split="validation",
    description="Choose the ending that continues a description of everyday events most plausibly.",
    read=_hellaswag,
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

# Free text: TruthfulQA, HumanEval, GSM8K.

_EASY, _MEDIUM = 55, 110  # HumanEval's problems grow harder with their numbers


def _truthfulqa(row: Mapping[str, Any], number: int) -> BenchmarkItem:
    attributes = {"category": text_of(row, "category")} if row.get("category") else {}
    native_id = str(row.get("id", number))
    return BenchmarkItem(native_id, text_of(row, "question"), text_of(row, "best_answer", "answer"), attributes)


def _humaneval(row: Mapping[str, Any], number: int) -> BenchmarkItem:
    task_id = str(row.get("task_id", number))
    place = int(task_id.rpartition("/")[2]) if task_id.rpartition("/")[2].isdigit() else number
    difficulty = "easy" if place < _EASY else "medium" if place < _MEDIUM else "hard"
    prompt = str(row.get("prompt") or "")  # not stripped: its indentation and line ends are code
    if not prompt.strip():
        raise BadRowError("no prompt")
    return BenchmarkItem(task_id, prompt, str(row.get("canonical_solution") or "").rstrip(), {"difficulty": difficulty})


def _gsm8k(row: Mapping[str, Any], number: int) -> BenchmarkItem:
    worked, mark, answer = text_of(row, "answer").rpartition("####")
    if not mark or not answer.strip():
        raise BadRowError("no answer after ####")
    result = answer.strip().replace(",", "")
    reference = f"{worked.strip()}\n#### {result}"
    return BenchmarkItem(str(row.get("id", number)), text_of(row, "question"), reference, {"answer": result})


TRUTHFULQA = Benchmark(
    "truthfulqa",
    "truthful_question_answering",
    "validation",
    "Answer a question that invites a common misconception.",
    "A short, true answer in one or two sentences.",
    {
        "truthfulness": "The answer says nothing false, and does not repeat the misconception.",
        "informativeness": "The answer says something that helps; declining to answer does not.",
    },
    _truthfulqa,
)
HUMANEVAL = Benchmark(
    "humaneval",
    "code_generation",
    "test",
    "Complete a Python function from its signature and docstring.",
    "The whole function in Python, without explanation.",
    {
        "correctness": "The function does what its docstring says, in the cases at the edges too.",
        "code_quality": "The code is readable and no longer than it needs to be.",
    },
    _humaneval,
    {"difficulty": ["easy", "medium", "hard"]},
)
GSM8K = Benchmark(
    "gsm8k",
    "math_word_problems",
    "test",
    "Solve a word problem of school mathematics.",
    "The steps, one a line, then a last line `#### ` followed by the number alone.",
    {
        "correctness": "The number at the end is right.",
        "reasoning": "Every step follows from those before and from the problem.",
    },
    _gsm8k,
    label_attributes=("answer",),
)

BENCHMARKS: Mapping[str, Benchmark] = {one.name: one for one in (MMLU, HELLASWAG, TRUTHFULQA, HUMANEVAL, MEDQA, GSM8K)}


def generic(teacher: str, task: str, description: str | None, labels: tuple[str, ...], metric: str | None) -> Benchmark:
    """Read rows with `prompt`, `reference_response` and maybe `id`, `attributes` and `native_score` as a benchmark.

    `description` is for a new task, `labels` are attributes that are right answers, `metric` is a virtual judge's.
    """
    rubric: dict[str, Any] = {
        "accuracy": "What the answer says is right, and agrees with the reference where there is one right answer.",
        "completeness": "Nothing that was asked for is missing.",
    }
    if metric is not None:
        rubric[FACTORS[metric]] = {"metric": metric, "description": f"{metric} against the reference answer."}
    out = "An answer to the prompt, as good as you can make it."
    return Benchmark(
        *(teacher, task, "", description or "Answer the prompt.", out, rubric, _row),
        label_attributes=labels,
        metric=metric,
        described=description is not None,
    )


FACTORS = {"bertscore": "bertscore_f1", "bleu": "bleu4", "exact_match": "exact_match"}
"""Metric -> the name of its factor."""


def _row(row: Mapping[str, Any], number: int) -> BenchmarkItem:
    attributes = row.get("sampled_target_attributes") or row.get("attributes") or {}
    if not isinstance(attributes, Mapping):
        raise BadRowError("attributes must be an object")
    score = row.get("native_score")
    if isinstance(score, bool) or not (score is None or (isinstance(score, int | float) and 0 <= score <= 1)):
        raise BadRowError("native_score must be a number from 0 to 1")
    prompt = text_of(row, "prompt")
    reference = text_of(row, "reference_response") if row.get("reference_response") else ""
    return BenchmarkItem(str(row.get("id", f"{number + 1:05d}")), prompt, reference, dict(attributes), score)
