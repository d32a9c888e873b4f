"""Results of agents and function calls: SWE-bench, Terminal-Bench, BFCL. Their tasks have identifiers and no
prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from p2l.common.errors import VoteError
from p2l.votes.kinds.harnesses import lines_of
from p2l.votes.kinds.kind import Kind, Record, Row, Sample, read_document
from p2l.votes.kinds.tables import graded
from p2l.votes.kinds.values import NoVerdictError, first_of, identifier

# Lists of a report that hold instances which were not solved, those first that are of all that was tried.
_TRIED = ("unresolved_ids", "submitted_ids", "completed_ids", "unresolved", "generated", "with_logs", "applied")
_SOLVED_ALONE = (
    "names of what was tried only the instances that were solved; name the folder of several submissions, since those "
    "of others tell what there was to solve"
)
_UNSOLVED = (*_TRIED, "error_ids", "empty_patch_ids", "no_generation", "no_logs", "no_apply", "test_errored")
_TERMINAL_ENDINGS = ("results.json", "result.json")  # of leaderboards the time stands before
_BFCL_GROUPS = frozenset({"non_live", "live", "multi_turn", "agentic", "format_sensitivity"})
_BFCL_SCORE, _BFCL_RESULT = "_score.json", "_result.json"


def _swe_records(sample: Sample) -> Iterator[Record]:
    """Yield a record for each instance, of reports of whole runs or of the reports of single instances."""
    if not sample.files:
        sample.check_named()
        content = read_document(sample.table_path, sample.name)
        if not any(key in content for key in _TRIED):
            raise VoteError(f"{sample.name}: {_SOLVED_ALONE}")
        yield from _swe_report(str(sample.path.resolve()), sample.name, content, sample.path.name)
        return
    tried: dict[str, list[str]] = {}
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
                known = _tried_by_others(sample, name, content, tried)
                folder = sample.path.resolve().name
                yield from _swe_report(f"{folder}/{name}", place, content, parts[-1], known)


def _tried_by_others(sample: Sample, name: str, content: Row, tried: dict[str, list[str]]) -> list[str]:
    """Return the instances that submissions beside this one name, where it does not name what it did not solve.

    Submissions are of all instances, and their results list those that were solved. `tried` keeps what was read.
    """
    if any(key in content for key in _TRIED):
        return []
    above = name.rsplit("/", 3)[0] if name.count("/") > 2 else ""
    if above not in tried:
        beside = [other for other in sample.files if other.startswith(above) and other.endswith("results/results.json")]
        documents = [read_document(sample.path / other, f"{sample.name}/{other}") for other in beside]
        if len(documents) < 2:
            raise VoteError(f"{sample.name}/{name}: {_SOLVED_ALONE}")
        tried[above] = [
            instance for document in documents if isinstance(document, dict) for instance in _named(document)
        ]
    return tried[above]


def _named(report: Row) -> list[str]:
    """Return the instances that a report names."""
    lists = (report.get(key) for key in ("resolved_ids", "resolved", *_UNSOLVED))
    return [instance for names in lists if isinstance(names, list) for instance in names]


def _is_swe_report(name: str) -> bool:
    return name.endswith(".json") and not name.rpartition("/")[2].startswith(("report", "preds", "run_metadata"))


def _swe_report(path: str, place: str, content: Any, file_name: str, known: Sequence[str] = ()) -> Iterator[Record]:
    """Yield a record for each instance of MODEL.RUN.json, or of results/results.json of a submission."""
    parts = path.split("/")
    model = file_name.removesuffix(".json").rpartition(".")[0] or file_name.removesuffix(".json")
    if file_name in {"results.json", "result.json"}:
        model = parts[-3] if len(parts) >= 3 and parts[-2] == "results" else parts[-2] if len(parts) >= 2 else model
    solved = first_of(content, ("resolved_ids", "resolved"))
    if not isinstance(solved, list):
        raise VoteError(f"{place}: resolved_ids must be a list of instances")
    solved_ones = {*solved}
    for instance in dict.fromkeys([*_named(content), *known]):
        yield Record(place, {"id": instance, "model": model.replace("__", "/"), "score": instance in solved_ones})


def _is_swe(sample: Sample) -> bool:
    if not sample.files:
        is_report = bool(sample.columns & {"submitted_ids", "unresolved_ids", "total_instances"})
        return (sample.has("resolved_ids") and is_report) or sample.has("resolved", "no_generation")
    reports = [name for name in sample.files if name.endswith("/report.json")]
    if any(b'"resolved"' in _head(sample, name) for name in reports[:50]):
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
    for name in [name for name in sample.files if name.endswith(_TERMINAL_ENDINGS)] or [""]:
        path = sample.path / name if name else sample.table_path
        place = f"{sample.name}/{name}".rstrip("/")
        content = read_document(path, place)
        if not isinstance(content, dict):
            raise VoteError(f"{place}: is not an object")
        results = content.get("results")
        if isinstance(results, list):
            folder = path.parent if name else sample.path.parent
            metadata = folder / "run_metadata.json"
            about = read_document(metadata, str(metadata)) if metadata.is_file() else {}
            model = first_of(about, ("model_name", "model", "agent_name"))
            if model is None:
                sample.check_named()
                model = folder.resolve().name
            for number, result in enumerate(results, 1):
                # A trial that came to no end is not resolved, as the harness counts it.
                fields = {"id": result.get("task_id"), "score": result.get("is_resolved") or False}
                fields["prompt"] = result.get("instruction")
                yield Record(f"{place}: result {number}", {**fields, "model": model})
        elif "task_name" in content:
            agent = content.get("agent_info") or {}
            model = (agent.get("model_info") or {}).get("name") or agent.get("name")
            yield Record(place, {"id": content["task_name"], "model": model, "score": _reward(content)})


def _reward(trial: Row) -> Any:
    """Return the reward of a trial as Harbor's mean takes it: none is 0, and of several it is the one called so."""
    verdict = trial.get("verifier_result") or {}
    rewards = verdict.get("rewards") or {"reward": verdict.get("reward") or 0}
    return rewards.get("reward") if len(rewards) > 1 else next(iter(rewards.values()))


def _is_terminal(sample: Sample) -> bool:
    if not sample.files:
        rows = [result for row in sample.rows for result in (row.get("results") or []) if isinstance(result, dict)]
        return any("is_resolved" in result for result in rows)
    names = [name for name in sample.files if name.endswith(_TERMINAL_ENDINGS)]
    heads = [_head(sample, name) for name in names[:50]]
    return any(b'"is_resolved"' in head or b'"task_name"' in head for head in heads)


def _bfcl_records(sample: Sample) -> Iterator[Record]:
    """Yield a record for each test: those that a score file lists failed, the others of the result file passed."""
    scores = [name for name in sample.files if name.endswith(_BFCL_SCORE)]
    results = {_bfcl_key(sample, name): name for name in sample.files if name.endswith(_BFCL_RESULT)}
    for name in scores:
        place = f"{sample.name}/{name}"
        lines = [record.content for record in lines_of(sample.path / name, place)]
        failed = {identifier(line.get("id")) for line in lines if "accuracy" not in line}
        counts = next((line for line in lines if "accuracy" in line), {})
        model, category = _bfcl_key(sample, name)
        answers = results.get((model, category))
        if answers is None and counts.get("correct_count") != 0:
            raise VoteError(
                f"{place}: lists the tests that failed; name the folder that holds BFCL's result folder too, whose "
                f"{model}/*{category}{_BFCL_RESULT} lists all"
            )
        tests = failed
        if answers is not None:
            tests = {identifier(record.content.get("id")) for record in lines_of(sample.path / answers, answers)}
            tests = {test for test in tests if test is None or "_prereq" not in test}  # what fills a memory is no test
        for test in sorted(test for test in tests | failed if test is not None):
            yield Record(place, {"id": test, "task": category, "model": model, "score": test not in failed})


def _bfcl_key(sample: Sample, name: str) -> tuple[str, str]:
    """Return model and category of a file [score/]MODEL[/GROUP[/memory/BACKEND]]/BFCL_v4_CATEGORY_score.json."""
    *folders, file_name = name.split("/")
    stem = file_name.removesuffix(_BFCL_SCORE).removesuffix(_BFCL_RESULT)
    category = stem.split("_", 2)[2] if stem.startswith("BFCL_v") else stem
    below = next((place + 1 for place, folder in enumerate(folders) if folder in {"score", "result"}), 0)
    is_of_model = len(folders) > below and folders[below] not in _BFCL_GROUPS
    return (folders[below] if is_of_model else sample.path.resolve().name), category


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
