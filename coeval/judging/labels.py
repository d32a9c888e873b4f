"""Labels: the label in an answer, whether it is that of the item, and how often it is.

A label is the value of a target attribute. An answer gives it as a value in a JSON object, after a marker (`#### 42`,
`Answer: B`), or as its only line. Labels are compared regardless of case, as numbers (`1,000` and `1000.0`), and with
or without the letter of an option (`B`, `(B)`, `B. a cat`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from coeval.parsing import MalformedAnswerError, read_object
from coeval.schema import LABEL_PREFIX

_ALIASES = ("label", "prediction", "class", "category", "answer", "output", "result", "type", "value")
_MAX_LABEL_LETTERS = 60
_MARKED = re.compile(r"####\s*(.+)|\\boxed\{([^{}]+)\}|\b(?:final )?answer(?: is|:)(?:\s*:)?\s*(.+)", re.IGNORECASE)
_OPTION = re.compile(r"\(?([a-z])(?:\)|[.:])(?:\s+(.*))?|\(?([a-z])\)?", re.DOTALL)
_MARKS_AROUND_A_LABEL = " \t\"'`*"


@dataclass(frozen=True)
class _LabelAccuracy:
    """How often answers have the right label, rates to four places."""

    accuracy: float
    """Of the answers that give a label."""
    strict_accuracy: float
    """Of all answers; one without a label is wrong."""
    n_total: int
    """Answers that give a label."""
    n_matched: int
    n_skipped: int
    """Answers that give none."""
    per_label: Mapping[str, Mapping[str, float]]
    """Label -> precision, recall, f1; an answer without a label counts against recall."""


def predicted_label(text: str, attribute: str) -> str | None:
    """Return the label that an answer gives for an attribute, if it gives one."""
    try:
        named = {str(key).strip().casefold(): value for key, value in read_object(text).items()}
    except MalformedAnswerError:
        return _marked(text) or _only_line(text)
    for key in (attribute.casefold(), *_ALIASES):
        if key in named:
            return _as_text(named[key])
    return None


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, dict | list):
        return None
    return value if isinstance(value, str) else json.dumps(value)


def _marked(text: str) -> str | None:
    """Return the text after the last marker, up to the end of its line."""
    labels = [next(filter(None, groups)) for groups in _MARKED.findall(text)]
    return labels[-1].strip() if labels and len(labels[-1].strip()) <= _MAX_LABEL_LETTERS else None


def _only_line(text: str) -> str | None:
    text = text.strip()
    return text if text and "\n" not in text and len(text) <= _MAX_LABEL_LETTERS else None


def matches(prediction: str, truth: object) -> bool:
    """Whether a label is the right one."""
    guess, right = _plain(prediction), _plain(truth if isinstance(truth, str) else json.dumps(truth))
    if guess == right:
        return True
    said_number, right_number = _number(guess), _number(right)
    if said_number is not None and right_number is not None:
        return said_number == right_number
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
    per_label = {label: _rates(right[label], wrong[label], missed[label]) for label in truths}
    return _LabelAccuracy(
        accuracy=_share(matched, total),
        strict_accuracy=_share(matched, len(pairs)),
        n_total=total,
        n_matched=matched,
        n_skipped=skipped,
        per_label=per_label,
    )


def _rates(right: int, wrong: int, missed: int) -> dict[str, float]:
    """Return precision, recall and their harmonic mean."""
    return {
        "precision": _share(right, right + wrong),
        "recall": _share(right, right + missed),
        "f1": _share(2 * right, 2 * right + wrong + missed),
    }


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def hamming_accuracy(accuracies: Sequence[float | None]) -> float:
    """Return the mean accuracy over label attributes; an attribute that no answer names counts as 0."""
    return round(sum(accuracy or 0.0 for accuracy in accuracies) / len(accuracies), 4) if accuracies else 0.0
