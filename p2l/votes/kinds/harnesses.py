"""Logs of evaluation harnesses: lm-eval's samples, HELM's run folders, LiveBench's judgements."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from p2l.common.errors import VoteError
from p2l.common.files import MAX_LINE_BYTES, bounded_lines, json_reason, parse_json
from p2l.votes.kinds.kind import Kind, Record, Row, Sample, read_document
from p2l.votes.kinds.tables import graded
from p2l.votes.kinds.texts import RowError, turns
from p2l.votes.kinds.values import NoVerdictError, first_of, grade, identifier

_SAMPLES = re.compile(r"samples_(?P<task>.+?)(?:_\d{4}-\d{2}-\d{2}T[\d.:-]+)?\.jsonl$")
_RESULTS = re.compile(r"results(_.*)?\.json$")
_METRICS = (
    *("exact_match", "acc", "quasi_exact_match", "final_number_exact_match", "math_equiv_chain_of_thought"),
    *("math_equiv", "chain_of_thought_correctness", "omni_math_accuracy", "ifeval_strict_accuracy"),
    *("wildbench_score_rescaled", "model_judged_score", "safety_score", "quasi_prefix_exact_match", "pass@1"),
    *("pass_at_1", "pass", "prompt_level_strict_acc", "accuracy", "f1", "f1_score", "rouge_l", "bleu_4", "mc2"),
)
"""Metrics that say how good an answer is, the clearest first."""
_LESS_IS_BETTER = frozenset(
    {"word_perplexity", "byte_perplexity", "bits_per_byte", "perplexity", "ter", "wer", "cer", "brier_score", "mse"}
)
_HELM_FILES = ("run_spec.json", "scenario_state.json", "per_instance_stats.json")


def lines_of(path: Path, name: str) -> Iterator[Record]:
    """Yield the objects of JSON lines with their places."""
    with path.open("rb") as file:
        for number, (line, length) in enumerate(bounded_lines(file), 1):
            place = f"{name}: line {number}"
            if length > MAX_LINE_BYTES:
                raise VoteError(f"{place}: is longer than {MAX_LINE_BYTES >> 20} MiB; leave it out, or cut its prompt")
            if not line.strip():
                continue
            try:
                content = parse_json(line)
            except UnicodeDecodeError as error:
                raise VoteError(f"{place}: is not UTF-8 (byte {error.start + 1})") from error
            except ValueError as error:
                raise VoteError(f"{place}: is not JSON: {json_reason(error)}") from error
            if not isinstance(content, dict):
                raise VoteError(f"{place}: is not an object")
            yield Record(place, content)


def _sample_files(sample: Sample) -> list[tuple[Path, str]]:
    if not sample.files:
        return [(sample.path, sample.name)]
    return [(sample.path / name, f"{sample.name}/{name}") for name in sample.files if _SAMPLES.search(name)]


def _lm_eval_run(path: Path) -> tuple[str, Row]:
    """Return the model of a file of samples, by the results beside it, else the folder's name, and these results."""
    results = [file for file in sorted(path.parent.iterdir()) if _RESULTS.fullmatch(file.name)]
    date = path.name.rsplit("_", 1)[-1].removesuffix(".jsonl")
    for file in sorted(results, key=lambda file: date not in file.name):
        content = read_document(file, str(file))
        config = content.get("config") if isinstance(content, dict) else None
        named = content.get("model_name") if isinstance(content, dict) else None
        arguments = config.get("model_args") if isinstance(config, dict) else None
        if isinstance(arguments, str):  # of versions before 0.4.9: "pretrained=NAME,dtype=auto"
            arguments = dict(pair.split("=", 1) for pair in arguments.split(",") if "=" in pair)
        if isinstance(arguments, Mapping):
            named = named or arguments.get("model") or arguments.get("pretrained")
        if isinstance(named, str) and named:
            return named, content
    return path.resolve().parent.name, {}


def _lm_eval_records(sample: Sample) -> Iterator[Record]:
    for path, name in _sample_files(sample):
        match = _SAMPLES.search(path.name)
        task = match["task"] if match else path.stem
        sample.check_named()
        model, results = _lm_eval_run(path)
        is_more_better = (results.get("higher_is_better") or {}).get(task) or {}
        worse = _LESS_IS_BETTER | {metric for metric, is_better in is_more_better.items() if is_better is False}
        first_filter: Any = None
        for place, content, _ in lines_of(path, name):
            first_filter = content.get("filter") if first_filter is None else first_filter
            marked = {"p2l_model": model, "p2l_task": task, "p2l_filter": first_filter, "p2l_worse": worse}
            yield Record(place, content | marked)


def best_metric(values: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the metric of an answer that says most plainly how good it is; NoVerdictError where there is none."""
    chosen = next((name for name in _METRICS if name in values), next(iter(values), None))
    if chosen is None:
        raise NoVerdictError("no metric")
    return chosen, values[chosen]


def _lm_eval(row: Row) -> Iterator[Row]:
    if row.get("filter") != row["p2l_filter"]:
        raise NoVerdictError(f"answer by a second filter ({row.get('filter')})")
    named = [
        name
        for name in row
        if name in _METRICS or name in (row.get("metrics") or ()) or name.startswith(("acc", "exact_match"))
    ]
    # Some metrics of an answer are lists or sums of what is counted over the whole task.
    metrics = {name: row[name] for name in named if not isinstance(row[name], list | Mapping)}
    if named and not metrics.keys() - row["p2l_worse"]:
        raise NoVerdictError(f"{named[0]} is no grade of an answer")
    metric, value = best_metric({name: value for name, value in metrics.items() if name not in row["p2l_worse"]})
    yield {
        "question_id": f"{row['p2l_task']} {identifier(row.get('doc_id'))}",
        "category": row["p2l_task"],
        "prompt": _lm_eval_prompt(row),
        "model": row["p2l_model"],
        "score": grade(value, metric),
    }


def _lm_eval_prompt(row: Row) -> str:
    """Return the text that the model was given: the first argument of the first request."""
    arguments = row.get("arguments")
    if isinstance(arguments, Mapping):  # since 0.4.3: {"gen_args_0": {"arg_0": text, ...}}
        arguments = [list(call.values()) for call in arguments.values() if isinstance(call, Mapping)]
    text = arguments[0][0] if isinstance(arguments, list) and arguments and arguments[0] else None
    if isinstance(text, list):
        text = "\n\n".join(str(part) for part in text)
    if not isinstance(text, str) or not text:
        raise RowError("arguments hold no text that the model was given")
    if text.startswith('[{"role"'):  # with --apply_chat_template and an API, messages as JSON
        messages = json.loads(text)
        return "\n\n".join(str(message.get("content")) for message in messages if message.get("role") == "user")
    return text


def _is_lm_eval(sample: Sample) -> bool:
    if sample.files:
        return any(_SAMPLES.search(name) for name in sample.files)
    return sample.has("doc_id", "doc", "target", "arguments")


# HELM: a folder for each run, with what was asked and how each answer did.


def _helm_runs(sample: Sample) -> list[str]:
    names = set(sample.files)
    folders = sorted(name.rpartition("/")[0] for name in names if name.rpartition("/")[2] == "per_instance_stats.json")
    return [folder for folder in folders if f"{folder}/run_spec.json".lstrip("/") in names]


def _helm_records(sample: Sample) -> Iterator[Record]:
    for folder in _helm_runs(sample):
        place = f"{sample.name}/{folder}".rstrip("/")
        spec, state, stats = (_helm_file(sample.path / folder / name, f"{place}/{name}") for name in _HELM_FILES)
        adapter = spec.get("adapter_spec") or {}
        model = adapter.get("model") or adapter.get("model_deployment")
        task = str(spec.get("name") or folder).partition(":")[0]
        prompts = {
            state["instance"].get("id"): _helm_text(state["instance"].get("input") or {})
            for state in (state.get("request_states") or [])
            if isinstance(state.get("instance"), dict)
        }
        # Each metric of a run has written an entry of its own for an instance.
        answers: dict[tuple[Any, Any], list[Any]] = {}
        for entry in stats:
            if not entry.get("perturbation"):  # a perturbed copy measures robustness, not the answer
                key = (entry.get("instance_id"), entry.get("train_trial_index"))
                answers.setdefault(key, []).extend(entry.get("stats") or [])
        for (instance, trial), of_answer in answers.items():
            marked = {"model": model, "task": task, "prompt": prompts.get(instance)}
            where = f"{place}/per_instance_stats.json: instance {instance}, trial {trial}"
            yield Record(where, {**marked, "instance_id": instance, "stats": of_answer})


def _helm_text(given: Row) -> str | None:
    """Return the words of an input: its text, or where it is a chat what the user says."""
    if given.get("text") or not isinstance(given.get("messages"), list):
        return given.get("text")
    return "\n\n".join(turns(given["messages"], "user", "input"))


def _helm_file(path: Path, name: str) -> Any:
    if not path.is_file():
        raise VoteError(f"{name}: is missing; a run folder of HELM holds {', '.join(_HELM_FILES)}")
    content = read_document(path, name)
    is_list = path.name == "per_instance_stats.json"
    if not isinstance(content, list if is_list else dict):
        raise VoteError(f"{name}: must hold {'a list' if is_list else 'an object'}")
    return content


def _helm(row: Row) -> Iterator[Row]:
    values: dict[str, Any] = {}
    for stat in row.get("stats") or []:
        name = stat.get("name") or {}
        if not name.get("perturbation") and stat.get("count") and name.get("name") in _METRICS:
            values.setdefault(name["name"], stat.get("mean", stat.get("sum")))
    metric, value = best_metric(values)
    yield {
        "question_id": f"{row['task']} {identifier(row.get('instance_id'))}",
        "category": row["task"],
        "prompt": row.get("prompt"),
        "model": row.get("model"),
        "score": grade(value, metric),
    }


# LiveBench: a folder for each task, whose judgements name questions by identifiers.


def _live_bench_files(sample: Sample) -> list[str]:
    return [name for name in sample.files if name.endswith("model_judgment/ground_truth_judgment.jsonl")]


def _live_bench_records(sample: Sample) -> Iterator[Record]:
    for name in _live_bench_files(sample):
        questions = f"{name.removesuffix('model_judgment/ground_truth_judgment.jsonl')}question.jsonl"
        prompts: dict[str | None, Any] = {}
        if questions in sample.files:
            for place, row, fault in sample.rows_of(questions):
                if fault:
                    raise VoteError(f"{place}: {fault}")
                prompts[identifier(row.get("question_id"))] = row.get("turns")
        for place, row, fault in sample.rows_of(name):
            yield Record(place, {**row, "prompt": prompts.get(identifier(row.get("question_id")))}, fault)


def _live_bench(row: Row) -> Iterator[Row]:
    yield from graded({**row, "id": row.get("question_id"), "task": first_of(row, ("category", "task"))})


KINDS = (
    Kind(
        name="live-bench",
        about="LiveBench's folder",
        gives="scores",
        recognise=lambda sample: bool(_live_bench_files(sample)),
        reads="ground_truth_judgment.jsonl -> model, score and category, question.jsonl beside -> prompt",
        convert=_live_bench,
        records=_live_bench_records,
        sample="a folder with CATEGORY/TASK/question.jsonl\n"
        "and CATEGORY/TASK/model_judgment/ground_truth_judgment.jsonl",
    ),
    Kind(
        name="lm-eval",
        about="lm-eval samples",
        gives="scores",
        recognise=_is_lm_eval,
        marks=("doc_id", "doc"),
        needs=("target", "arguments"),
        reads="results_*.json beside them or the folder -> model, file name -> category, exact_match, acc or the "
        "first metric "
        "-> score, first argument -> prompt",
        convert=_lm_eval,
        records=_lm_eval_records,
        sample='{"doc_id": 0, "doc": {"question": "2 + 2?"}, "target": "4", "arguments": {"gen_args_0": {"arg_0": "2 '
        '+ 2?"}}, '
        '"resps": [["4"]], "filtered_resps": ["4"], "filter": "none", "metrics": ["exact_match"], "exact_match": '
        "1.0}\n...",
    ),
    Kind(
        name="helm",
        about="HELM runs",
        gives="scores",
        recognise=lambda sample: any(name.rpartition("/")[2] == "per_instance_stats.json" for name in sample.files),
        reads="run_spec.json -> model and category, exact_match or the first known metric -> score, input -> prompt",
        convert=_helm,
        records=_helm_records,
        sample="a folder with RUN/run_spec.json, RUN/scenario_state.json,\nRUN/per_instance_stats.json for each run",
    ),
)
