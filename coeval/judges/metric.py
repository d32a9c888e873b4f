"""Metrics of an answer against its reference: BLEU-4, exact match, and BERTScore where its package is installed.

BLEU-4 is the sentence form of Papineni et al. (2002): the geometric mean of the n-gram precisions for n = 1 to 4 times
the brevity penalty, over lower-cased words between spaces, smoothed by "method 1" of Chen and Cherry (2014): a count of
zero becomes 0.1. An answer that shares no word with the reference has 0.
"""

from __future__ import annotations

import importlib.util
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from coeval.errors import RunInputError

__all__ = ["METRICS", "bleu4", "exact_match", "metric_scores", "missing_package"]

METRICS = ("bertscore", "bleu", "exact_match")
_ORDER = 4
_SMOOTHED_ZERO = 0.1
_BERT = "distilbert-base-uncased"
_LOCK = threading.Lock()  # one BERTScore at a time: a model on a device is no place to meet


def metric_scores(rubric: Mapping[str, Any], reference: str, response: str) -> dict[str, float]:
    """Factor -> value in [0, 1], of the factors of a rubric that are metrics.

    Raises:
        RunInputError: a metric's package is not installed, or there is no such metric.
    """
    found = {}
    for factor, definition in rubric.items():
        if isinstance(definition, Mapping) and "metric" in definition:
            options = {key: value for key, value in definition.items() if key not in ("metric", "description")}
            found[factor] = _metric(str(definition["metric"]))(reference, response, options)
    return found


def missing_package(metric: str) -> str | None:
    """What is to be installed before a metric can be computed, as a sentence; None where nothing is."""
    if metric != "bertscore" or importlib.util.find_spec("bert_score") is not None:
        return None
    return "metric bertscore needs the package bert-score; `pip install bert-score`, or use bleu or exact_match"


def bleu4(reference: str, response: str) -> float:
    """Smoothed sentence BLEU-4 of an answer."""
    expected, said = reference.lower().split(), response.lower().split()
    if not set(expected) & set(said):
        return 0.0
    logs = (math.log(_precision(expected, said, n)) for n in range(1, _ORDER + 1))
    brevity = min(0.0, 1.0 - len(expected) / len(said))
    return math.exp(brevity + sum(logs) / _ORDER)


def _precision(expected: Sequence[str], said: Sequence[str], n: int) -> float:
    """Share of an answer's n-grams that the reference has too, each as often as it has it at most."""
    known, given = _ngrams(expected, n), _ngrams(said, n)
    shared = sum((known & given).values())
    return (shared or _SMOOTHED_ZERO) / max(1, given.total())


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + n]) for start in range(len(words) - n + 1))


def exact_match(reference: str, response: str) -> float:
    """1 where the answer is the reference, or one of its alternatives between `|`; case and space do not count."""
    said = _plain(response)
    return float(any(said == _plain(one) for one in (reference, *reference.split("|"))))


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _bertscore(reference: str, response: str, options: Mapping[str, Any]) -> float:
    settings = {"model_type": _BERT, **options}
    with _LOCK:
        _, _, f1 = _scorer(tuple(sorted(settings.items()))).score([response], [reference])
    return float(f1[0])


@lru_cache(maxsize=4)
def _scorer(settings: tuple[tuple[str, Any], ...]) -> Any:
    why = missing_package("bertscore")
    if why is not None:
        raise RunInputError(why)
    return importlib.import_module("bert_score").BERTScorer(**dict(settings))


def _metric(name: str) -> Callable[[str, str, Mapping[str, Any]], float]:
    if name not in _COMPUTED:
        raise RunInputError(f"there is no metric {name!r}; choose from {', '.join(METRICS)}")
    return _COMPUTED[name]


_COMPUTED: Mapping[str, Callable[[str, str, Mapping[str, Any]], float]] = {
    "bertscore": _bertscore,
    "bleu": lambda reference, response, _: bleu4(reference, response),
    "exact_match": lambda reference, response, _: exact_match(reference, response),
}
