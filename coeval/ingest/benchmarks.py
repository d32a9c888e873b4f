"""Benchmarks: published data sets, each an entry of `benchmarks.yaml`, and any file of prompts as one.

Attributes are what a row says of itself (subject, language, level) or what can be read off it (length); a sample is
drawn evenly over them. Labels and numbers are compared without a judge, names with the reference's alternatives.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import yaml

from coeval.errors import RunInputError
from p2l.common.cli import nearest

TABLE = Path(__file__).parent / "benchmarks.yaml"
_SAMPLE_ITEMS = 620  # items drawn from a published data set, unless `--limit` says otherwise
_SAMPLE_SEED = 42
Row = Mapping[str, Any]


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

    name: str  # also the teacher's name
    task: str
    split: str
    description: str
    output_description: str
    rubric: Mapping[str, Any]
    # (row, number from 0) -> item, or None for a row without one, such as one without a label. Raises BadRowError.
    read: Callable[[Row, int], BenchmarkItem | None]
    attributes: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # known values; others are added as they come
    label_attributes: tuple[str, ...] = ()
    metric: str | None = None  # metric of the virtual judge to add
    described: bool = False  # whether the user gave the description: a task with another one is an error then
    # Items that are drawn evenly over the attributes, unless a limit is given; None: all rows, in order.
    sample: int | None = None
    hub: str = ""  # address on the hub: `owner/name`, `owner/name:configuration`, or `owner/name:*` for all of these


@lru_cache(maxsize=1)
def benchmarks() -> Mapping[str, Benchmark]:
    """Return every benchmark of the table by its name."""
    entries = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return {name: _benchmark(name, entry) for name, entry in entries.items() if not name.startswith(".")}


def benchmark(name: str) -> Benchmark:
    """Return a benchmark by its name. Raise RunInputError if there is none."""
    table = benchmarks()
    if name not in table:
        hint = nearest(name, table) or f"; there are {', '.join(table)}"
        raise RunInputError(f"--benchmarks: there is no adapter {name!r}{hint}; for a file of your own use --dataset")
    return table[name]


# Metric -> the name of its factor.
_METRIC_FACTORS = {"bertscore": "bertscore_f1", "bleu": "bleu4", "exact_match": "exact_match"}
_METRIC_DESCRIPTIONS = {
    "bertscore": "closeness in meaning to the reference.",
    "bleu": "words in common with the reference.",
    "exact_match": "the reference, or one of its alternatives, word for word.",
}


def _benchmark(name: str, entry: Mapping[str, Any]) -> Benchmark:
    rubric, metric, hub = dict(entry["rubric"]), entry.get("metric"), entry.get("hub", "")
    if metric is not None:
        rubric[_METRIC_FACTORS[metric]] = {"metric": metric, "description": _METRIC_DESCRIPTIONS[metric]}
    return Benchmark(
        name=name,
        task=entry["task"],
        split=entry.get("split", "test"),
        description=entry["description"],
        output_description=entry["output"],
        rubric=rubric,
        read=partial(_item, entry),
        attributes=entry.get("known_values", {}),
        label_attributes=tuple(entry.get("labels_of_items", ())),
        metric=metric,
        sample=_SAMPLE_ITEMS if hub else None,
        hub=hub,
    )


def own_benchmark(
    teacher: str, task: str, description: str | None, labels: tuple[str, ...], metric: str | None
) -> Benchmark:
    """Read rows with `prompt`, `reference_response` and maybe `id`, `attributes` and `native_score` as a benchmark.

    `description` is for a new task, `labels` are attributes that are right answers, `metric` is a virtual judge's.
    """
    rubric: dict[str, Any] = {
        "accuracy": "What the answer says is right, and agrees with the reference where there is one right answer.",
        "completeness": "Nothing that was asked for is missing.",
    }
    if metric is not None:
        rubric[_METRIC_FACTORS[metric]] = {"metric": metric, "description": f"{metric} against the reference answer."}
    return Benchmark(
        name=teacher,
        task=task,
        split="",
        description=description or "Answer the prompt.",
        output_description="An answer to the prompt, as good as you can make it.",
        rubric=rubric,
        read=_own_item,
        label_attributes=labels,
        metric=metric,
        described=description is not None,
    )


def _own_item(row: Row, number: int) -> BenchmarkItem:
    attributes = row.get("sampled_target_attributes") or row.get("attributes") or {}
    if not isinstance(attributes, Mapping):
        raise BadRowError("attributes must be an object")
    score = row.get("native_score")
    if isinstance(score, bool) or not (score is None or (isinstance(score, int | float) and 0 <= score <= 1)):
        raise BadRowError("native_score must be a number from 0 to 1")
    prompt = text_of(row, "prompt")
    reference = text_of(row, "reference_response") if row.get("reference_response") else ""
    return BenchmarkItem(str(row.get("id", f"{number + 1:05d}")), prompt, reference, dict(attributes), score)


# Columns of a row: `a`, `a.b` inside another, `a|b` the first that is not empty.


def text_of(row: Row, *columns: str) -> str:
    """Return the first non-empty value of some columns as text. Raise BadRowError if a row has none of them."""
    for column in columns:
        value = _column(row, column)
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
    raise BadRowError(f"no {' or '.join(columns)}")


def _column(row: Row, path: str) -> Any:
    """Return the value at a path, of a list of objects the values of each; None where there is none."""
    value: Any = row
    for key in path.split("."):
        if isinstance(value, list):
            value = [entry.get(key) for entry in value if isinstance(entry, Mapping)]
        else:
            value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _value(row: Row, columns: str) -> Any:
    """Return the first value of the columns `a|b` that is not empty; None where all are."""
    values = (_column(row, column) for column in columns.split("|"))
    return next((value for value in values if value not in (None, "")), None)


def _filled(template: str, row: Row) -> str:
    """Return a template with its columns filled in. Raise BadRowError for an empty one."""
    return re.sub(r"{([^}]+)}", lambda match: _shown(row, match[1]), template)


def _shown(row: Row, columns: str) -> str:
    value = _value(row, columns)
    if isinstance(value, Mapping):
        if not value.get("header"):
            raise BadRowError("no table with a header")
        rows = [value["header"], ["---"] * len(value["header"]), *value.get("rows", ())]
        return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in rows)
    return "\n".join(map(str, value)) if isinstance(value, list) else text_of(row, *columns.split("|"))


# Functions of the table: what is read off columns.

_WORDS_OF_LENGTHS = {"short": 150, "medium": 500}  # fewer words than these
_PROBLEMS_OF_DIFFICULTIES = {"easy": 55, "medium": 110}  # HumanEval's problems grow harder with their numbers


def _length(row: Row, columns: str) -> str:
    words = len(text_of(row, *columns.split("|")).split())
    return next((name for name, limit in _WORDS_OF_LENGTHS.items() if words < limit), "long")


def _difficulty(row: Row, column: str) -> str | None:
    digits = str(row.get(column)).rpartition("/")[2]
    if not digits.isdigit():
        return None
    number = int(digits)
    return next((name for name, limit in _PROBLEMS_OF_DIFFICULTIES.items() if number < limit), "hard")


def _table_size(row: Row, column: str) -> str:
    return "small" if len(row[column].get("rows", ())) < 10 else "large"


def _school(row: Row, column: str) -> str | None:
    match = re.match(r"high|middle", str(row.get(column, "")))
    return match[0] if match else None


def _boxed(row: Row, column: str) -> str:
    """Return what is in the last box of a solution in LaTeX, which may hold braces itself."""
    solution = text_of(row, column)
    start = solution.rfind("\\boxed{")
    depth, end = 1, start + len("\\boxed{")
    while start >= 0 and depth and end < len(solution):
        depth += {"{": 1, "}": -1}.get(solution[end], 0)
        end += 1
    if start < 0 or depth:
        raise BadRowError("no answer in \\boxed{}")
    return solution[start + len("\\boxed{") : end - 1].strip()


def _plain_number(row: Row, column: str) -> str:
    return text_of(row, column).replace(",", "").strip()


def _after_hashes(row: Row, column: str) -> str:
    _, hashes, answer = text_of(row, column).rpartition("####")
    if not hashes or not answer.strip():
        raise BadRowError("no answer after ####")
    return answer.strip().replace(",", "")


READ: Mapping[str, Callable[[Row, str], Any]] = {
    "after_hashes": _after_hashes,
    "before_hashes": lambda row, column: text_of(row, column).rpartition("####")[0].strip(),
    "boxed": _boxed,
    "difficulty": _difficulty,
    "length": _length,
    "plain_number": _plain_number,
    "school": _school,
    "table_size": _table_size,
    "text": lambda row, column: str(row.get(column) or "").strip(),
    "yes_or_no": lambda row, column: "yes" if _column(row, column) else "no",
}
"""Function of the table -> (row, columns) -> value; None for an attribute that a row lacks."""


def _read(row: Row, source: str | Mapping[str, str]) -> Any:
    """Return the value of a column, or of a function of the table."""
    if isinstance(source, str):
        return _value(row, source)
    ((name, columns),) = source.items()
    return READ[name](row, columns)


# A row as an item.


def _item(entry: Mapping[str, Any], row: Row, number: int) -> BenchmarkItem | None:
    """Return the item of a row as an entry of the table says, None for a row whose answer is not published."""
    if "answer" in entry and "hidden" in entry and _value(row, entry["answer"]) in (None, *entry["hidden"]):
        return None
    if "label" in entry and _label(entry, row) is None:
        return None
    right: dict[str, Any] = {}
    if entry.get("verbatim"):
        prompt, reference = (str(_value(row, entry[part].strip("{}")) or "") for part in ("question", "reference"))
        if not prompt.strip():
            raise BadRowError(f"no {entry['question'].strip('{}')}")
        reference = reference.rstrip()
    else:
        prompt = _filled(entry["question"], row).strip()
        lines, reference, right = _answer(entry, row)
        prompt = f"{prompt}\n\n{lines}" if lines else prompt
    read = {name: _read(row, source) for name, source in entry.get("attributes", {}).items()}
    attributes = {name: value for name, value in read.items() if value not in (None, "")}

    def column_text(match: re.Match[str]) -> str:
        value = _value(row, match[1])
        return str(number if value is None else value)

    native_id = re.sub(r"{([^}]+)}", column_text, entry.get("id", "{row}"))
    return BenchmarkItem(native_id, prompt, reference, {**right, **attributes})


def _answer(entry: Mapping[str, Any], row: Row) -> tuple[str, str, dict[str, Any]]:
    """Return the lines of the options, the reference answer, and the attributes that are right answers."""
    if "options" in entry or "right" in entry:
        options, place = _options(entry, row)
        letter = _OPTION_LETTERS[place]
        lines = "\n".join(f"{chr(ord('A') + index)}. {option}" for index, option in enumerate(options))
        return lines, f"{letter}. {options[place]}", {"correct_answer": letter}
    if "number" in entry:
        number, worked = _read(row, entry["number"]), _read(row, entry["worked"])
        return "", f"{worked}\n#### {number}".strip(), {"answer": number}
    if "label" in entry:
        label = _label(entry, row)
        return "", str(label), {"label": label}
    if "answers" in entry:
        return "", _alternatives(entry, row), {}
    return "", _filled(entry["reference"], row).strip(), {}


def _label(entry: Mapping[str, Any], row: Row) -> str | None:
    # An empty text is a label of scifact, a missing column is none.
    value = next((row[column] for column in entry["label"].split("|") if row.get(column) is not None), None)
    labels = {str(name): label for name, label in entry["labels"].items()}
    return None if value is None else labels.get(str(value))


def _alternatives(entry: Mapping[str, Any], row: Row) -> str:
    """Return all right answers, parted as `exact_match` reads them."""
    texts: list[str] = []
    for column in entry["answers"]:
        value = _column(row, column)
        texts += [str(text).strip() for text in (value if isinstance(value, list) else [value]) if text is not None]
    distinct = list(dict.fromkeys(text for text in texts if text))
    if not distinct and "unanswerable" not in entry:
        raise BadRowError("no answers")
    return " | ".join(distinct) or str(entry["unanswerable"])


_OPTION_LETTERS = "ABCDEFGHIJ"
_LETTERED = re.compile(r"([a-e]) \) (.*?)(?= , [a-e] \) |$)")  # options in one text: `a ) 4 , b ) 5`


def _options(entry: Mapping[str, Any], row: Row) -> tuple[list[str], int]:
    """Return the options, and the place of the right one."""
    if "right" in entry:
        right = text_of(row, entry["right"])
        options = sorted([right, *(text_of(row, column) for column in entry["wrong"])])  # else it would be the first
        return options, options.index(right)
    columns = entry["options"]
    options = (
        _option_list(_column(row, columns))
        if isinstance(columns, str)
        else [text_of(row, column) for column in columns]
    )
    answer = _value(row, entry["answer"])
    if "option_names" in entry:
        names = [str(name) for name in _column(row, entry["option_names"]) or ()]
        if str(answer) not in names:
            raise BadRowError(f"{entry['answer']} {str(answer)[:10]!r} is not a label")
        return options, names.index(str(answer))
    return options, _place(answer, options, entry.get("first", 0))


def _option_list(value: object) -> list[str]:
    """Read options from a list, a map by letter, a list of {key, value}, or a text; BadRowError for anything else."""
    if isinstance(value, str):
        value = dict(_LETTERED.findall(value))
    if isinstance(value, Mapping) and value:
        return [str(value[key]).strip() for key in sorted(value)]
    if isinstance(value, list) and value:
        maps = [option for option in value if isinstance(option, Mapping)]
        if len(maps) == len(value):
            return [str(option.get("value", "")) for option in sorted(maps, key=lambda option: str(option.get("key")))]
        return [str(option) for option in value]
    raise BadRowError("no options")


def _place(answer: object, options: Sequence[str], first: int) -> int:
    """Return the place of the right option, given as a number from `first`, a letter, or the option itself."""
    text = str(answer).strip()
    if text.isdigit() and 0 <= int(text) - first < len(options):
        return int(text) - first
    if text and text.upper() in _OPTION_LETTERS[: len(options)]:
        return _OPTION_LETTERS.index(text.upper())
    if text in options:
        return options.index(text)
    raise BadRowError(f"answer {text[:40]!r} is none of the {len(options)} options")


def stratified(items: Iterable[BenchmarkItem], number: int, labels: Sequence[str] = ()) -> list[BenchmarkItem]:
    """Return a sample spread evenly over the combinations of attributes, labels aside, in the order of the rows.

    What a combination lacks the others give; a larger sample holds a smaller one of the same rows.
    """
    rows = list(items)
    strata: dict[tuple[tuple[str, str], ...], list[int]] = defaultdict(list)
    for place, item in enumerate(rows):
        named = ((name, str(value)) for name, value in item.attributes.items() if name not in labels)
        strata[tuple(sorted(named))].append(place)
    rng = random.Random(_SAMPLE_SEED)
    ranked: list[tuple[int, int, int]] = []  # rank within its stratum, stratum, row
    for stratum, key in enumerate(sorted(strata)):
        places = strata[key]
        rng.shuffle(places)
        ranked += [(rank, stratum, place) for rank, place in enumerate(places)]
    return [rows[place] for place in sorted(place for _, _, place in sorted(ranked)[:number])]
