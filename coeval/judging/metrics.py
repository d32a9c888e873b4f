"""Metrics of an answer against its reference: BLEU-4, exact match, and BERTScore.

BLEU-4 is the sentence form of Papineni et al. (2002): the geometric mean of the n-gram precisions for n = 1 to 4 times
the brevity penalty, over lower-cased words between spaces.

BERTScore follows Zhang et al. (2020): the tokens of both texts are embedded by one layer of a language model, as unit
vectors x_i of the reference and y_j of the answer, and matched greedily:

    R = mean_i max_j x_i . y_j        P = mean_j max_i x_i . y_j        F = 2 P R / (P + R)

There are no idf weights and no rescaling. T tokens, D hidden.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from coeval.errors import RunInputError
from coeval.judging.labels import label_scores
from coeval.schema import Model, Task
from p2l.common.cli import nearest

if TYPE_CHECKING:
    import torch

METRICS = ("bertscore", "bleu", "exact_match")
_BLEU_ORDER = 4
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
    return _missing_for_bertscore(definition) if definition["metric"] == "bertscore" else None


def wrong_definition(definition: Mapping[str, Any]) -> str | None:
    """Return a sentence on what is wrong with the options of a factor with a known metric, if anything."""
    metric = str(definition["metric"])
    options = (*_COMMON_KEYS, *(_BERT_OPTIONS if metric == "bertscore" else ()))
    for key in definition:
        if key not in options:
            hint = nearest(str(key), options) or f"; there are {', '.join(options)}"
            return f"{key!r} is not an option of {metric}{hint}"
    return _wrong_bert_options(definition) if metric == "bertscore" else None


def bleu4(reference: str, response: str) -> float:
    """Compute the smoothed sentence BLEU-4 of an answer."""
    expected, words = reference.lower().split(), response.lower().split()
    if not set(expected) & set(words):  # smoothing would give it a score all the same
        return 0.0
    logs = (math.log(_precision(expected, words, n)) for n in range(1, _BLEU_ORDER + 1))
    brevity = min(0.0, 1.0 - len(expected) / len(words))
    return math.exp(brevity + sum(logs) / _BLEU_ORDER)


def _precision(expected: Sequence[str], words: Sequence[str], n: int) -> float:
    """Return the share of an answer's n-grams in the reference, each counted at most as often as there."""
    expected_ngrams, ngrams = _ngrams(expected, n), _ngrams(words, n)
    shared = sum((expected_ngrams & ngrams).values())
    # A count of zero becomes 0.1: "method 1" of Chen and Cherry (2014), without which short answers have no BLEU.
    return (shared or _SMOOTHED_ZERO) / max(1, ngrams.total())


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + n]) for start in range(len(words) - n + 1))


def exact_match(reference: str, response: str) -> float:
    """Return 1 if the answer is the reference or one of its alternatives between `|`, regardless of case and space."""
    answer = _plain(response)
    # The whole reference counts too: it may have a `|` of its own.
    return float(any(answer == _plain(text) for text in (reference, *reference.split("|"))))


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


# Model -> the layer that agrees best with people, as published by the authors.
_BERT_LAYERS: Mapping[str, int] = {
    "distilbert-base-uncased": 5,
    "distilbert-base-multilingual-cased": 5,
    "distilroberta-base": 5,
    "bert-base-uncased": 9,
    "bert-large-uncased": 18,
    "bert-base-multilingual-cased": 9,
    "bert-base-chinese": 8,
    "roberta-base": 10,
    "roberta-large": 17,
    "roberta-large-mnli": 19,
    "microsoft/deberta-base-mnli": 9,
    "microsoft/deberta-large-mnli": 18,
    "microsoft/deberta-xlarge-mnli": 40,
}
_BERT_OPTIONS = ("model_type", "num_layers", "device")
_USUAL_BERT = "distilbert-base-uncased"
_BERT_BATCH_TEXTS = 32
_UNLIMITED_TOKENS = 100_000  # tokenizers without a limit give a huge number
_BERT_LOCK = threading.Lock()  # judges run in threads, and the model has to run one batch at a time


class _Scorer(NamedTuple):
    """A model in memory."""

    tokenizer: Any
    model: Any
    layer: int
    longest: int  # most tokens of a text; the rest is cut off


class _Text(NamedTuple):
    """The tokens of a text."""

    vectors: torch.Tensor  # (T, D), of length 1
    counts: torch.Tensor  # (T,), whether each counts in the mean


def _missing_for_bertscore(options: Mapping[str, Any]) -> str | None:
    """Return a sentence on what to install or download before BERTScore can be computed, if anything."""
    if not all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers")):
        return (
            "metric bertscore needs torch and transformers; `pip install p2l[huggingface]`, or use bleu or exact_match"
        )
    name = str(options.get("model_type") or _USUAL_BERT)
    if Path(name).is_dir():
        return None
    from huggingface_hub import try_to_load_from_cache

    with contextlib.suppress(ValueError):  # not a name that the hub could have
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return None
    return f"metric bertscore: {name} is not a folder, nor in the hub's cache; `hf download {name}` first"


def _wrong_bert_options(options: Mapping[str, Any]) -> str | None:
    """Return a sentence on what is wrong with the options of a factor, if anything."""
    name, layer, device = (options.get(key) for key in _BERT_OPTIONS)
    for key, value in (("model_type", name), ("device", device)):
        if value is not None and not (isinstance(value, str) and value.strip()):
            return f"its {key} must be text"
    if layer is None and (name or _USUAL_BERT) not in _BERT_LAYERS:
        return f"it needs `num_layers`, the layer of {name} to be read: no layer is published for it"
    if layer is not None and (isinstance(layer, bool) or not isinstance(layer, int) or layer < 1):
        return "its num_layers must be a whole number of at least 1"
    return None


def bertscore(references: Sequence[str], responses: Sequence[str], options: Mapping[str, Any]) -> list[float]:
    """Compute F of each answer; 0 where it or its reference has no words.

    Options are `model_type` (distilbert-base-uncased), a folder or a name in the hub's cache; `num_layers`, the layer,
    by default the published one; `device`, by default CUDA where there is one. Raise RunInputError if one is wrong, or
    the model or its layer is missing.
    """
    why = _wrong_bert_options(options) or _missing_for_bertscore(options)
    if why is not None:
        raise RunInputError(why)
    name = str(options.get("model_type") or _USUAL_BERT)
    with _BERT_LOCK:
        scorer = _scorer(name, options.get("num_layers") or _BERT_LAYERS[name], options.get("device"))
        # By length, so that texts of a batch need little padding.
        texts = _embedded(scorer, sorted({*references, *responses}, key=len))
        return [
            _f1(texts[reference], texts[response]) for reference, response in zip(references, responses, strict=True)
        ]


@lru_cache(maxsize=1)
def _scorer(name: str, layer: int, device: str | None) -> _Scorer:
    import torch
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    quiet: Any = logging.disable_progress_bar  # it has no types
    quiet()
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False, local_files_only=True)
        model: Any = AutoModel.from_pretrained(
            name, trust_remote_code=False, local_files_only=True, use_safetensors=True, dtype=torch.float32
        ).to(place)
    except Exception as error:  # the exception type depends on what is missing
        why = " ".join(str(error).split())[:200]
        raise RunInputError(
            f"metric bertscore: {name} cannot be loaded from its folder or the hub's cache: {why}"
        ) from None
    if layer > model.config.num_hidden_layers:
        raise RunInputError(f"metric bertscore: {name} has {model.config.num_hidden_layers} layers; lower num_layers")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    limit = tokenizer.model_max_length
    positions = getattr(model.config, "max_position_embeddings", 512) - 2  # some models reserve two positions
    return _Scorer(tokenizer, model.eval(), layer, limit if limit < _UNLIMITED_TOKENS else positions)


def _embedded(scorer: _Scorer, texts: Sequence[str]) -> dict[str, _Text]:
    """Embed each text; texts of similar length share a batch."""
    import torch

    embedded: dict[str, _Text] = {}
    ends = (scorer.tokenizer.cls_token_id, scorer.tokenizer.sep_token_id)
    outer = torch.tensor([token for token in ends if token is not None])
    for start in range(0, len(texts), _BERT_BATCH_TEXTS):
        batch = texts[start : start + _BERT_BATCH_TEXTS]
        # Tokenizers that mark a word by the space before it need one before the first word too.
        words = [f" {text.strip()}" if text.strip() else "" for text in batch]
        inputs = scorer.tokenizer(
            words, padding=True, truncation=True, max_length=scorer.longest, return_tensors="pt"
        ).to(scorer.model.device)
        with torch.inference_mode():
            hidden = scorer.model(**inputs, output_hidden_states=True).hidden_states[scorer.layer]
        vectors = torch.nn.functional.normalize(hidden, dim=-1).cpu()
        is_token, ids = inputs["attention_mask"].bool().cpu(), inputs["input_ids"].cpu()
        for row, text in enumerate(batch):
            mask = is_token[row]
            embedded[text] = _Text(vectors[row][mask], ~torch.isin(ids[row][mask], outer))
    return embedded


def _f1(reference: _Text, response: _Text) -> float:
    if not reference.counts.any() or not response.counts.any():
        return 0.0
    # As in the published figures, the tokens that open and close a text may be matched but do not count in the means.
    cosines = reference.vectors @ response.vectors.T
    recall = float(cosines.max(dim=1).values[reference.counts].mean())
    precision = float(cosines.max(dim=0).values[response.counts].mean())
    both = precision + recall
    return 2 * precision * recall / both if both > 0 else 0.0
