"""Metrics of an answer against its reference: BLEU-4, exact match, and BERTScore (`bertscore.py`).

BLEU-4 is the sentence form of Papineni et al. (2002): the geometric mean of the n-gram precisions for n = 1 to 4 times
the brevity penalty, over lower-cased words between spaces, smoothed by "method 1" of Chen and Cherry (2014): a count of
zero becomes 0.1. An answer that shares no word with the reference has 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coeval.errors import RunInputError
from coeval.judging.bertscore import OPTIONS, bertscore, missing, wrong_options
from coeval.judging.labels import label_scores
from coeval.schema import Model, Task
from p2l.common.cli import nearest

METRICS = ("bertscore", "bleu", "exact_match")
_ORDER = 4
_SMOOTHED_ZERO = 0.1
_COMMON_KEYS = ("metric", "description", "weight")


def metric_scores(
    rubric: Mapping[str, Any], references: Sequence[str], responses: Sequence[str]
) -> list[dict[str, float]]:
    """Compute the metrics of a rubric: for each answer factor -> value in [0, 1]. Raise RunInputError if one cannot."""
    rows: list[dict[str, float]] = [{} for _ in responses]
    for factor, definition in rubric.items():
        if isinstance(definition, Mapping) and "metric" in definition:
            options = {key: value for key, value in definition.items() if key not in _COMMON_KEYS}
            metric = str(definition["metric"])
            if metric not in METRICS:
                raise RunInputError(f"there is no metric {metric!r}; choose from {', '.join(METRICS)}")
            if metric == "bertscore":  # a model computes many at once
                values: Iterable[float] = bertscore(references, responses, options)
            else:
                values = map({"bleu": bleu4, "exact_match": exact_match}[metric], references, responses)
            for scores, value in zip(rows, values, strict=True):
                scores[factor] = value
    return rows


def missing_package(definition: Mapping[str, Any]) -> str | None:
    """Return a sentence on what to install or download before a factor can be computed, if anything."""
    return missing(definition) if definition["metric"] == "bertscore" else None


def wrong_definition(definition: Mapping[str, Any]) -> str | None:
    """Return a sentence on what is wrong with the options of a factor with a known metric, if anything."""
    metric = str(definition["metric"])
    options = (*_COMMON_KEYS, *(OPTIONS if metric == "bertscore" else ()))
    for key in definition:
        if key not in options:
            hint = nearest(str(key), options) or f"; there are {', '.join(options)}"
            return f"{key!r} is not an option of {metric}{hint}"
    return wrong_options(definition) if metric == "bertscore" else None


def bleu4(reference: str, response: str) -> float:
    """Compute the smoothed sentence BLEU-4 of an answer."""
    expected, words = reference.lower().split(), response.lower().split()
    if not set(expected) & set(words):
        return 0.0
    logs = (math.log(_precision(expected, words, n)) for n in range(1, _ORDER + 1))
    brevity = min(0.0, 1.0 - len(expected) / len(words))
    return math.exp(brevity + sum(logs) / _ORDER)


def _precision(expected: Sequence[str], words: Sequence[str], n: int) -> float:
    """Return the share of an answer's n-grams in the reference, each counted at most as often as there."""
    expected_ngrams, ngrams = _ngrams(expected, n), _ngrams(words, n)
    shared = sum((expected_ngrams & ngrams).values())
    return (shared or _SMOOTHED_ZERO) / max(1, ngrams.total())


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + n]) for start in range(len(words) - n + 1))


def exact_match(reference: str, response: str) -> float:
    """Return 1 if the answer is the reference or one of its alternatives between `|`, regardless of case and space."""
    answer = _plain(response)  # the whole reference counts too: it may have a `|` of its own
    return float(any(answer == _plain(one) for one in (reference, *reference.split("|"))))


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


_Pair = tuple[Mapping[str, Any], Mapping[str, Any]]


def scores_for(judge: Model, task: Task, rubric: Mapping[str, Any], pairs: Sequence[_Pair]) -> list[dict[str, str]]:
    """Compute the scores of a `metric` or `label` judge: for each answer factor -> a number in [0, 1] as text.

    `metric` scores the metric factors of the rubric, `label` the label attributes of the items; `pairs` are items and
    answers as stored. Raise RunInputError if a metric cannot be computed, or the judge is a language model.
    """
    texts = [str(response["response"]) for _, response in pairs]
    if judge.interface == "label":
        truths = [item.get("sampled_target_attributes") or {} for item, _ in pairs]
        rows = [label_scores(task.label_attributes, truth, text) for truth, text in zip(truths, texts, strict=True)]
    elif judge.interface == "metric":
        rows = metric_scores(rubric, [str(item.get("reference_response") or "") for item, _ in pairs], texts)
    else:
        raise RunInputError(f"{judge.name}: interface {judge.interface!r} calls a model, it does not compute")
    return [{factor: str(round(min(max(value, 0.0), 1.0), 4)) for factor, value in scores.items()} for scores in rows]
