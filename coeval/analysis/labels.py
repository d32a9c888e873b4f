"""How often students name the label that an item was made with; no judge is asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from statistics import mean

from coeval.analysis.results import HammingRow, LabelRow, LabelValueRow
from coeval.analysis.units import Loaded
from coeval.judges.label import hamming_accuracy, label_accuracy, predicted_label

__all__ = ["hamming_rows", "label_rows"]

_Said = dict[tuple[str, str, str], list[tuple[object, str | None]]]


def label_rows(loaded: Loaded) -> tuple[tuple[LabelRow, ...], tuple[LabelValueRow, ...]]:
    """Accuracy by (student, task, attribute), and by label."""
    rows, values = [], []
    for key, said in sorted(_said(loaded).items()):
        found = label_accuracy(said)
        accuracy = found.accuracy if found.n_total else None
        rows.append(LabelRow(*key, accuracy, found.strict_accuracy, found.n_total, found.n_matched, found.n_skipped))
        support = [str(truth) for truth, _ in said]
        for label, rates in sorted(found.per_label.items()):
            numbers = (rates["precision"], rates["recall"], rates["f1"])
            values.append(LabelValueRow(*key, label, *numbers, support=support.count(label)))
    return tuple(rows), tuple(values)


def hamming_rows(rows: Iterable[LabelRow]) -> tuple[HammingRow, ...]:
    """Mean accuracy of each (student, task) over its label attributes, where it has several."""
    groups: dict[tuple[str, str], list[LabelRow]] = defaultdict(list)
    for row in rows:
        groups[row.student, row.task].append(row)
    return tuple(
        HammingRow(
            *key,
            len(group),
            hamming_accuracy(group),
            round(mean(row.strict_accuracy for row in group), 4),
        )
        for key, group in groups.items()
        if len(group) > 1
    )


def _said(loaded: Loaded) -> _Said:
    """(student, task, attribute) -> the right label and the one said, of each response."""
    found: _Said = defaultdict(list)
    for key, truth, said in _labels(loaded):
        found[key].append((truth, said))
    return found


def _labels(loaded: Loaded) -> Iterator[tuple[tuple[str, str, str], str, str | None]]:
    for response, text in sorted(loaded.texts.items()):
        datapoint = int(loaded.response_datapoint[response])
        if datapoint < 0:
            continue
        task = loaded.tasks[loaded.datapoint_task[datapoint]]
        student = loaded.students[loaded.response_student[response]]
        for attribute in loaded.about.tasks[task].label_attributes:
            truth = loaded.attributes[datapoint].get(attribute)
            if truth is not None:
                yield (student, task, attribute), truth, predicted_label(text, attribute)
