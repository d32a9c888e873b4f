"""Labels, values of a target attribute: the label in an answer, whether it is that of the item, and how often it is."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from coeval.parsing import MalformedAnswerError, after_thoughts, read_object
from coeval.schema import LABEL_PREFIX

_ALIASES = ("label", "prediction", "class", "category", "answer", "output", "result", "type", "value")
_MAX_LABEL_LETTERS = 60
_MARKED = re.compile(r"####\s*(.+)|\\boxed\{([^{}]+)\}|\b(?:final )?answer(?: is|:)(?:\s*:)?\s*(.+)", re.IGNORECASE)
_OPTION = re.compile(r"\(?([a-z])(?:\)|[.:])(?:\s+(.*))?|\(?([a-z])\)?", re.DOTALL)
_MARKS_AROUND_A_LABEL = " \t\"'`*"


@dataclass(frozen=True)
class _LabelAccuracy:
    """How often answers have the right label, rates to four places."""

    accuracy: float  # of the answers that give a label
    strict_accuracy: float  # of all answers; one without a label is wrong
    n_total: int  # answers that give a label
    n_matched: int
    n_skipped: int  # answers that give none
    # Label -> precision, recall, f1; an answer without a label counts against recall.
    per_label: Mapping[str, Mapping[str, float]]


def predicted_label(text: str, attribute: str) -> str | None:
    """Return the label that an answer gives for an attribute, if it gives one.

    It is a value in a JSON object, stands after a marker such as `#### 42` or `Answer: B`, or is the only line.
    """
    keys = (attribute.casefold(), *_ALIASES)
    try:
        reply = read_object(text, lambda value: any(str(key).strip().casefold() in keys for key in value))
        named = {str(key).strip().casefold(): value for key, value in reply.items()}
    except MalformedAnswerError:
        answer = after_thoughts(text)
        marked: list[str] = [next(filter(None, groups)).strip() for groups in _MARKED.findall(answer)]
        # The last one counts, since those before may belong to the way to the answer.
        if marked and 0 < len(marked[-1]) <= _MAX_LABEL_LETTERS:
            return marked[-1]
        line = answer.strip()
        return line if line and "\n" not in line and len(line) <= _MAX_LABEL_LETTERS else None
    for key in keys:
        if key in named:
            value = named[key]
            if value is None or isinstance(value, dict | list):
                return None
            return value if isinstance(value, str) else json.dumps(value)
    return None


def matches(prediction: str, truth: object) -> bool:
    """Return whether a label is the right one, as text, as a number, or with or without the letter of an option."""
    guess, right = _plain(prediction), _plain(truth if isinstance(truth, str) else json.dumps(truth))
    if guess == right:
        return True
    # `1,000` and `1000.0` are one number.
    number, right_number = _number(guess), _number(right)
    if number is not None and right_number is not None:
        return number == right_number
    # `B`, `(B)` and `B. a cat` are one option.
    (letter, rest), (right_letter, right_rest) = _option(guess), _option(right)
    if rest and right_rest:
        return rest == right_rest and (letter == right_letter or "" in (letter, right_letter))
    return bool(letter) and letter == right_letter


def _plain(text: str) -> str:
    stripped = " ".join(text.split()).strip(_MARKS_AROUND_A_LABEL)
    return stripped.removesuffix(".").strip(_MARKS_AROUND_A_LABEL).casefold()


def _number(text: str) -> Decimal | None:
    bare = text.lstrip("$€£ ").removesuffix("%").strip()
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", bare):
        bare = bare.replace(",", "")
    try:
        value = Decimal(bare)  # a float would make long numbers equal that are not
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


def _option(text: str) -> tuple[str, str]:
    """Return the letter of an option and the text after it, or ("", text) without a letter."""
    match = _OPTION.fullmatch(text)
    if match is None:
        return "", text
    return match[1] or match[3], (match[2] or "").strip()


def label_scores(attributes: Sequence[str], truth: Mapping[str, Any], text: str) -> dict[str, float]:
    """Return `label:{attribute}` -> 1 or 0 for the attributes of the item; 0 also where the answer has no label."""
    scores = {}
    for attribute in attributes:
        if attribute in truth:
            label = predicted_label(text, attribute)
            scores[f"{LABEL_PREFIX}{attribute}"] = float(label is not None and matches(label, truth[attribute]))
    return scores


def label_accuracy(labels: Iterable[tuple[object, str | None]]) -> _LabelAccuracy:
    """Return how often predictions are right, by each answer's right label and its own (`predicted_label`) or None."""
    right, wrong, missed = Counter[str](), Counter[str](), Counter[str]()
    skipped, pairs = 0, [(str(truth), prediction) for truth, prediction in labels]
    truths = sorted({truth for truth, _ in pairs})
    for truth, prediction in pairs:
        if prediction is not None and matches(prediction, truth):
            right[truth] += 1
            continue
        missed[truth] += 1
        if prediction is None:
            skipped += 1
        else:
            wrong[next((label for label in truths if matches(prediction, label)), prediction)] += 1
    matched, total = right.total(), len(pairs) - skipped
    per_label = {}
    for label in truths:
        hits = right[label]
        per_label[label] = {
            "precision": _share(hits, hits + wrong[label]),
            "recall": _share(hits, hits + missed[label]),
            "f1": _share(2 * hits, 2 * hits + wrong[label] + missed[label]),
        }
    return _LabelAccuracy(
        accuracy=_share(matched, total),
        strict_accuracy=_share(matched, len(pairs)),
        n_total=total,
        n_matched=matched,
        n_skipped=skipped,
        per_label=per_label,
    )


def _share(count: int, total: int) -> float:
    return round(count / total, 4) if total else 0.0


def hamming_accuracy(accuracies: Sequence[float | None]) -> float:
    """Return the mean accuracy over label attributes; an attribute that no answer names counts as 0."""
    return round(sum(accuracy or 0.0 for accuracy in accuracies) / len(accuracies), 4) if accuracies else 0.0
