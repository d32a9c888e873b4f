"""A run that is killed again and again ends as one that never was, and asks for nothing that it has stored."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from coeval.analysis.units import load_run
from coeval.analysis.verdicts import Preference
from coeval.config.keys import load_keys
from coeval.config.loading import load_config
from coeval.judging.prompts import render
from coeval.mock.server import MockServer
from coeval.pairs.export import export
from coeval.pairs.preferences import PreferenceFilter, gather
from coeval.phases.evaluation import judge_question
from coeval.phases.pairwise import compare_question
from coeval.schema import Config
from coeval.storage.records import read_json
from coeval.storage.run import Run
from p2l.votes import open_votes
from tests.coeval.helpers import STATIC_TASK, coeval, meta_of, model, records, run_of, write_config
from tests.faults import ended

ALL = ("teacher", "student", "judge")
KINDS = ("data_generation", "response_collection", "evaluation", "pairwise")
TASKS = [
    {**STATIC_TASK, "store_nuanced": True},
    {
        **STATIC_TASK,
        "name": "sum",
        "description": "Sum it up.",
        "nuanced_attributes": "auto",
        "rubric": "auto",
        "evaluation_mode": "per_factor",
        "store_nuanced": True,
    },
    *(
        {
            **STATIC_TASK,
            "name": schedule,
            "description": "Give advice.",
            "sampling": {"target": "all", "nuance": [1], "total": 2},
            "evaluation_mode": "pairwise",
            "pairwise": {"schedule": schedule, "pairs": 5},
            "store_nuanced": True,
        }
        for schedule in ("all", "active")
    ),
]
Asked = Counter[tuple[str, str]]


def asked(server: MockServer) -> Asked:
    """Questions since the last look, by model and text."""
    bodies = [server.bodies.popleft() for _ in range(len(server.bodies))]
    return Counter((body["model"], body["messages"][-1]["content"]) for body in bodies)


def answered(run: Run, config: Config) -> Asked:
    """The questions whose answers are stored."""
    tasks = {task.name: task for task in config.tasks}
    items = {record["id"]: record for record in records(run, KINDS[0])}
    responses = {record["id"]: record for record in records(run, KINDS[1])}
    found: Asked = Counter()
    for task in config.tasks:
        rubric = run.rubric(task.name).is_file() and task.rubric == "auto"
        nuanced = run.attributes(task.name, "nuanced").is_file() and task.nuanced_attributes == "auto"
        for name in ("ant", "bee"):
            if rubric:
                found[name, render(task, name, "autorubric")] += 1
            if nuanced:
                found[name, render(task, name, "map_nuanced_attrs", seed="{}")] += 1
    for item in items.values():
        drawn = {
            key: json.dumps(item[f"sampled_{key}"], ensure_ascii=False)
            for key in ("target_attributes", "nuanced_attributes")
        }
        found[item["teacher_model_id"], render(tasks[item["task_id"]], "", "sample", **drawn)] += 1
    for one in responses.values():
        found[one["student_model_id"], render(tasks[one["task_id"]], "", "test", input=one["input"])] += 1
    for score in records(run, KINDS[2]):
        task, judge = tasks[score["task_id"]], score["judge_model_id"]
        chosen = next(one for one in config.models if one.name == judge)
        of = items[score["datapoint_id"]], responses[score["response_id"]]
        question = judge_question(task, chosen, read_json(run.rubric(task.name)), *of, {}, {})
        found.update((judge, prompt) for prompt in question.prompts.values())
    for verdict in records(run, KINDS[3]):
        task, judge = tasks[verdict["task_id"]], verdict["judge_model_id"]
        chosen = next(one for one in config.models if one.name == judge)
        pair = responses[verdict["response_a_id"]], responses[verdict["response_b_id"]]
        rubric = read_json(run.rubric(task.name))
        question = compare_question(task, chosen, rubric, items[verdict["datapoint_id"]], pair, {})
        found.update((judge, prompt) for prompt in question.prompts.values())
    return found


def preferences(run: Run) -> list[Preference]:
    """From verdicts and from scores, without the time."""
    wanted = [PreferenceFilter(source=source, keep_self_judged=True) for source in ("native", "derived")]
    return [replace(one, at=0.0) for one in chain(*(gather(load_run(run.folder), each).preferences for each in wanted))]


def content(run: Run) -> dict[str, list[dict[str, Any]]]:
    """All records without what depends on the clock."""
    timed = ("generated_at", "evaluated_at", "created_at", "seconds", "usage")
    return {
        kind: sorted(
            ({key: value for key, value in record.items() if key not in timed} for record in records(run, kind)),
            key=lambda record: str(record["id"]),
        )
        for kind in KINDS
    }


def run_until(server: MockServer, config: Path, requests: int, *, go_on: bool) -> bool:
    """Run until so many requests have come, then kill; whether it was killed before its end."""
    target = server.requests + requests
    words = ["--continue"] if go_on else []
    command = [sys.executable, "-m", "coeval", "run", "--config", str(config), *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and server.requests < target:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        was_killed = process.wait() == -signal.SIGKILL
    before = -1
    while before != server.requests:  # what it sent before its end may still be on its way
        before = server.requests
        time.sleep(0.05)
    return was_killed


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, 20])
def test_a_run_killed_at_random_moments_ends_as_if_undisturbed(tmp_path: Path, kills: int) -> None:
    chance = random.Random(kills)
    with MockServer(latency=0.01) as server:
        server.bodies, server.redraws = deque(), False  # both runs get the same items
        models = [*(model(name, server, roles=ALL) for name in ("ant", "bee")), model("cow", server)]
        calm = write_config(tmp_path, models, TASKS, concurrency=4)
        assert coeval("run", "--config", calm) == 0
        expected = asked(server)
        config = write_config(tmp_path, models, TASKS, id="two", name="two.yaml", concurrency=4)
        checked = load_config(config, keys=load_keys(None, os.environ), fresh=False)
        run = run_of(tmp_path, "two")
        killed = 0
        while killed < kills:
            stored = answered(run, checked)
            most = max(1, 2 * (expected - stored).total() // (kills - killed + 1))
            killed += run_until(server, config, chance.randint(1, most), go_on=run.meta.exists())
            assert not asked(server) - (expected - stored)
            assert not answered(run, checked) - expected
        stored = answered(run, checked)
        assert coeval("run", "--config", config, *(["--continue"] if run.meta.exists() else [])) == 0
        assert not asked(server) - (expected - stored)
        assert content(run) == content(run_of(tmp_path))
        assert preferences(run) == preferences(run_of(tmp_path))
        assert meta_of(run)["status"] == "completed"
        assert coeval("run", "--config", config, "--continue") == 0
        assert not asked(server)
    ended("kill of a run of CoEval", "no answer lost, none asked for twice", kills)


def test_an_export_killed_at_any_moment_is_never_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with_votes(tmp_path)
    found, out = gather(load_run(run.folder), PreferenceFilter()), tmp_path / "out"
    export(run, found, out, "jsonl", 0.3)
    rename, whole = os.replace, check_export(out)
    for kills in range(20):
        left = kills

        def stopping(source: Path, target: Path) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            rename(source, target)

        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(os, "replace", stopping)
            export(run, found, out, "jsonl", 0.6)
            break
        check_export(out)
    assert 4 < kills < 20
    assert check_export(out) != whole


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "hf"])
def test_an_export_is_killed_in_earnest(tmp_path: Path, kind: str) -> None:
    run, out, chance = run_with_votes(tmp_path), tmp_path / "out", random.Random(7)
    command = [sys.executable, "-m", "coeval", "analyze", "export-preferences", "--run", str(run.folder)]
    command += ["--out", str(out), "--format", kind]
    begin = time.perf_counter()
    subprocess.run([*command, "--val-share", "0.3"], check=True, stdout=subprocess.DEVNULL)
    whole = time.perf_counter() - begin
    killed = 0
    while killed < 15:
        share = "0.6" if killed % 2 else "0.3"
        with subprocess.Popen([*command, "--val-share", share], stdout=subprocess.DEVNULL) as process:
            time.sleep(whole * chance.uniform(0.4, 1.0))
            process.send_signal(signal.SIGKILL)
        was_killed = process.returncode == -signal.SIGKILL
        killed, whole = killed + was_killed, whole if was_killed else 0.9 * whole
        if kind == "jsonl":
            check_export(out)
        elif out.exists():
            with open_votes(out) as votes:
                assert len(votes) == json.loads((out / "export.json").read_text())["train"]
    subprocess.run([*command, "--val-share", "0.6"], check=True, stdout=subprocess.DEVNULL)
    if kind == "jsonl":
        check_export(out)
    ended(f"kill of an export of votes as {kind}", "of one export, whole", killed)


def run_with_votes(folder: Path) -> Run:
    """A run of three students and a judge."""
    models = [*(model(name) for name in ("ant", "bee", "cow")), model("owl", roles=("teacher", "judge"))]
    task = {**STATIC_TASK, "sampling": {"target": "all", "nuance": [1], "total": 12}}
    assert coeval("run", "--config", write_config(folder, models, [task])) == 0
    return run_of(folder)


def check_export(folder: Path) -> dict[str, int]:
    """Votes by part; every file is whole, no prompt is in both parts, and a note that all is there tells the truth."""
    found = {path.stem: path.read_text().splitlines() for path in folder.glob("*.jsonl")}
    prompts = {part: {json.loads(line)["prompt"] for line in lines} for part, lines in found.items()}
    assert not prompts.get("train", set()) & prompts.get("val", set())
    counts = {part: len(lines) for part, lines in found.items()}
    note = folder / "export.json"
    if note.exists():
        told = json.loads(note.read_text())
        assert (told["train"], told["validation"]) == (counts["train"], counts["val"])
    assert json.loads((folder / "model_list.json").read_text()) == ["ant", "bee", "cow"]
    return counts
