"""Results of agents and function calls: SWE-bench, Terminal-Bench, BFCL. Their tasks have identifiers and no
prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from p2l.common.errors import VoteError
from p2l.votes.kinds.harnesses import lines_of
from p2l.votes.kinds.kind import Kind, Record, Row, Sample, read_document
from p2l.votes.kinds.tables import graded
from p2l.votes.kinds.values import NoVerdictError, first_of, identifier

_UNSOLVED = (
    "unresolved_ids",
    "error_ids",
    "empty_patch_ids",
    "unresolved",
    "no_generation",
    "no_logs",
    "completed_ids",
    "submitted_ids",
)
_BFCL_SCORE, _BFCL_RESULT = "_score.json", "_result.json"


def _swe_records(sample: Sample) -> Iterator[Record]:
    """Yield a record for each instance, of reports of whole runs or of the reports of single instances."""
    if not sample.files:
        yield from _swe_report(
            sample.table_path.name, sample.name, read_document(sample.table_path, sample.name), sample.path.name
        )
        return
    for name in sample.files:
        place, path = f"{sample.name}/{name}", sample.path / name
        parts = name.split("/")
        if parts[-1] == "report.json" and len(parts) >= 2:  # RUN/MODEL/INSTANCE/report.json
            content = read_document(path, place)
            model = parts[-3] if len(parts) >= 3 else sample.path.resolve().name
            for instance, report in content.items() if isinstance(content, dict) else ():
                resolved = report.get("resolved") if isinstance(report, dict) else None
                yield Record(place, {"id": instance, "model": model.replace("__", "/"), "score": resolved})
        elif _is_swe_report(name):
            content = read_document(path, place)
            if isinstance(content, dict) and ("resolved_ids" in content or "resolved" in content):
                yield from _swe_report(name, place, content, parts[-1])


def _is_swe_report(name: str) -> bool:
    return name.endswith(".json") and not name.rpartition("/")[2].startswith(("report", "preds", "run_metadata"))


def _swe_report(path: str, place: str, content: Any, file_name: str) -> Iterator[Record]:
    """Yield a record for each instance of MODEL.RUN.json, or of results/results.json of a submission."""
    parts = path.split("/")
    model = file_name.removesuffix(".json").rpartition(".")[0] or file_name.removesuffix(".json")
    if file_name in {"results.json", "result.json"}:
        model = parts[-3] if len(parts) >= 3 and parts[-2] == "results" else parts[-2] if len(parts) >= 2 else model
    solved = first_of(content, ("resolved_ids", "resolved"))
    if not isinstance(solved, list):
        raise VoteError(f"{place}: resolved_ids must be a list of instances")
    unsolved = [name for key in _UNSOLVED if isinstance(content.get(key), list) for name in content[key]]
    for instance in dict.fromkeys([*solved, *unsolved]):
        yield Record(place, {"id": instance, "model": model.replace("__", "/"), "score": instance in set(solved)})


def _is_swe(sample: Sample) -> bool:
    if not sample.files:
        return sample.has("resolved_ids") and bool(
            sample.columns & {"submitted_ids", "unresolved_ids", "total_instances"}
        )
    if any(name.endswith("/report.json") for name in sample.files):
        return True
    candidates = [name for name in sample.files if _is_swe_report(name)]
    return any(b'"resolved_ids"' in _head(sample, name) for name in candidates[:50]) or any(
        name.endswith("results/results.json") and b'"resolved"' in _head(sample, name) for name in candidates
    )


def _head(sample: Sample, name: str) -> bytes:
    with (sample.path / name).open("rb") as file:
        return file.read(1 << 20)


def _terminal_records(sample: Sample) -> Iterator[Record]:
    """Yield a record for each trial: of results.json of a run, or of result.json of each trial (Harbor)."""
    files = [name for name in sample.files if name.rpartition("/")[2] in {"results.json", "result.json"}]
    for name in files or [""]:
        path = sample.path / name if name else sample.table_path
        place = f"{sample.name}/{name}".rstrip("/")
        content = read_document(path, place)
        if not isinstance(content, dict):
            raise VoteError(f"{place}: is not an object")
        results = content.get("results")
        if isinstance(results, list):
            metadata = path.parent / "run_metadata.json" if name else sample.path.parent / "run_metadata.json"
            about = read_document(metadata, str(metadata)) if metadata.is_file() else {}
            model = first_of(about, ("model_name", "model", "agent_name")) or sample.path.resolve().parent.name
            for number, result in enumerate(results, 1):
                fields = {
                    "id": result.get("task_id"),
                    "prompt": result.get("instruction"),
                    "score": result.get("is_resolved"),
                }
                yield Record(f"{place}: result {number}", {**fields, "model": model})
        elif "task_name" in content:
            agent = content.get("agent_info") or {}
            model = (agent.get("model_info") or {}).get("name") or agent.get("name")
            rewards = (content.get("verifier_result") or {}).get("rewards") or {}
            score = first_of(rewards, ("reward", *rewards))
            yield Record(place, {"id": content["task_name"], "model": model, "score": score})


def _is_terminal(sample: Sample) -> bool:
    if not sample.files:
        rows = [result for row in sample.rows for result in (row.get("results") or []) if isinstance(result, dict)]
        return any("is_resolved" in result for result in rows)
    names = [name for name in sample.files if name.rpartition("/")[2] in {"results.json", "result.json"}]
    heads = [_head(sample, name) for name in names[:50]]
    return any(b'"is_resolved"' in head or b'"task_name"' in head for head in heads)


def _bfcl_records(sample: Sample) -> Iterator[Record]:
    """Yield a record for each test: those that a score file lists failed, the others of the result file passed."""
    scores = [name for name in sample.files if name.endswith(_BFCL_SCORE)]
    results = {_bfcl_key(name): name for name in sample.files if name.endswith(_BFCL_RESULT)}
    for name in scores:
        place = f"{sample.name}/{name}"
        lines = [record.content for record in lines_of(sample.path / name, place)]
        failed = {identifier(line.get("id")) for line in lines if "accuracy" not in line}
        counts = next((line for line in lines if "accuracy" in line), {})
        model, category = _bfcl_key(name)
        answers = results.get((model, category))
        if answers is None and counts.get("correct_count") != 0:
            raise VoteError(
                f"{place}: lists the tests that failed; name the folder that holds BFCL's result folder too, whose "
                f"{model}/*{category}{_BFCL_RESULT} lists all"
            )
        tests = failed
        if answers is not None:
            tests = {identifier(record.content.get("id")) for record in lines_of(sample.path / answers, answers)}
        for test in sorted(test for test in tests | failed if test is not None):
            yield Record(place, {"id": test, "task": category, "model": model, "score": test not in failed})


def _bfcl_key(name: str) -> tuple[str, str]:
    """Return the model and the category of a file .../MODEL[/GROUP]/BFCL_v3_CATEGORY_score.json."""
    parts = name.split("/")
    stem = parts[-1].removesuffix(_BFCL_SCORE).removesuffix(_BFCL_RESULT)
    category = stem.split("_", 2)[2] if stem.startswith("BFCL_v") else stem
    folders = [part for part in parts[:-1] if part not in {"score", "result"}]
    groups = {"non_live", "live", "multi_turn", "agentic", "format_sensitivity", "memory", "web_search", "kv", "vector"}
    folders = [part for part in folders if part not in groups]
    return (folders[-1] if folders else "model"), category


def _refuse_empty(row: Row) -> Iterator[Row]:
    if row.get("score") is None:
        raise NoVerdictError("no result")
    yield from graded(row)


KINDS = (
    Kind(
        name="bfcl",
        about="BFCL results",
        gives="scores",
        recognise=lambda sample: any(name.endswith(_BFCL_SCORE) for name in sample.files),
        reads="folder -> model, file -> category, tests that are not listed as failed -> 1",
        convert=graded,
        records=_bfcl_records,
        sample="a folder with result/MODEL/BFCL_v3_simple_result.json\nand score/MODEL/BFCL_v3_simple_score.json",
    ),
    Kind(
        name="terminal-bench",
        about="Terminal-Bench results",
        gives="scores",
        recognise=_is_terminal,
        reads="run_metadata.json or agent_info -> model, task_id -> question_id, is_resolved or reward -> score",
        convert=_refuse_empty,
        records=_terminal_records,
        sample='{"id": "run", "results": [{"task_id": "hello-world", "trial_name": "hello-world.1-of-1", '
        '"instruction":\n'
        '"Write a file", "is_resolved": true}], "n_resolved": 1, "accuracy": 1.0}',
    ),
    Kind(
        name="swe-bench",
        about="SWE-bench results",
        gives="scores",
        recognise=_is_swe,
        reads="file or folder name -> model, instances -> question_id, resolved -> 1",
        convert=_refuse_empty,
        records=_swe_records,
        sample='{"total_instances": 2, "submitted_ids": ["django__django-1", "django__django-2"],\n'
        '"resolved_ids": ["django__django-1"], "unresolved_ids": ["django__django-2"], "schema_version": 2}',
    ),
)
