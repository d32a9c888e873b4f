"""How often students name the label that an item was made with; no judge is asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from coeval.analysis.results import LabelRow, LabelValueRow
from coeval.analysis.units import Loaded
from coeval.judges.label import label_accuracy, predicted_label

__all__ = ["label_rows"]

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
