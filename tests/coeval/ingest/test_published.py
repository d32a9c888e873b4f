"""Published data sets: rows in their published form, samples, and where rows are read from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset

from coeval.commands.ingest import benchmark_names
from coeval.errors import RunInputError
from coeval.ingest.benchmarks import BadRowError, BenchmarkItem, benchmarks, stratified
from coeval.ingest.rows import find_rows, hub_rows, rows_at
from coeval.ingest.writing import read_items
from coeval.judging.labels import predicted_label
from coeval.judging.metrics import METRICS
from tests.coeval.helpers import coeval, model, records, run_of, write_config
from tests.coeval.ingest.hub import CONVERTED, Hub, branch_folder

PUBLISHED = {name: entry for name, entry in benchmarks().items() if entry.hub}
ROWS: dict[str, tuple[dict[str, Any], str, str]] = {
    "xsum": ({"document": "It rained.", "summary": "Rain.", "id": "3"}, "It rained.", "Rain."),
    "cnn_dailymail": ({"article": "It rained.", "highlights": "Rain .", "id": "a"}, "It rained.", "Rain ."),
    "samsum": ({"id": "1", "dialogue": "A: Hi\r\nB: Hi", "summary": "They greet."}, "A: Hi\r\nB: Hi", "They greet."),
    "codesearchnet": (
        {"func_code_string": "def f(): pass", "func_documentation_string": "Nothing.", "language": "python"},
        "def f(): pass",
        "Nothing.",
    ),
    "aeslc": ({"email_body": "Dear all", "subject_line": "Lunch"}, "Subject: Lunch", "Dear all"),
    "mbpp": (
        {"task_id": 601, "text": "Add one.", "code": "def f(x):\r\n  return x+1", "test_list": ["assert f(1) == 2"]},
        "Add one.\n\nIt has to pass:\nassert f(1) == 2",
        "def f(x):\r\n  return x+1",
    ),
    "narrativeqa": (
        {
            "document": {"kind": "movie", "summary": {"text": "Ann leaves."}},
            "question": {"text": "Who leaves?"},
            "answers": [{"text": "Ann"}, {"text": "Ann does"}],
        },
        "Ann leaves.\n\nWho leaves?",
        "Ann | Ann does",
    ),
    "wikitablequestions": (
        {
            "id": "nt-0",
            "question": "who won?",
            "answers": ["Ann"],
            "table": {"header": ["Year", "Won"], "rows": [["1", "Ann"]]},
        },
        "| Year | Won |\n| --- | --- |\n| 1 | Ann |\n\nwho won?",
        "Ann",
    ),
    "bigbench_hard": ({"input": "not ( True ) is", "target": "False"}, "not ( True ) is", "False"),
    "trivia_qa": (
        {"question": "Who?", "question_id": "tc_1", "answer": {"value": "Ann", "aliases": ["Ann", "Anna"]}},
        "Who?",
        "Ann | Anna",
    ),
    "squad_v2": (
        {"id": "5", "context": "Ann won.", "question": "Who lost?", "answers": {"text": [], "answer_start": []}},
        "Ann won.\n\nWho lost?",
        "unanswerable",
    ),
    "nq_open": ({"question": "who won", "answer": ["Ann", "Anna"]}, "who won", "Ann | Anna"),
    "arc_challenge": (
        {
            "id": "M1",
            "question": "Which?",
            "choices": {"text": ["air", "sun"], "label": ["1", "2"]},
            "answerKey": "2",
        },
        "Which?\n\nA. air\nB. sun",
        "B. sun",
    ),
    "race": (
        {"example_id": "high1.txt", "article": "Won.", "question": "Who?", "options": ["Bo", "Ann"], "answer": "B"},
        "Won.\n\nWho?\n\nA. Bo\nB. Ann",
        "B. Ann",
    ),
    "sciq": (
        {
            "question": "What?",
            "correct_answer": "sun",
            "distractor1": "air",
            "distractor2": "sea",
            "distractor3": "tea",
        },
        "What?\n\nA. air\nB. sea\nC. sun\nD. tea",
        "C. sun",
    ),
    "logiqa": (
        {"context": "All do.", "query": "Who?", "options": ["None", "All"], "correct_option": 1},
        "All do.\n\nWho?\n\nA. None\nB. All",
        "B. All",
    ),
    "winogrande": (
        {"sentence": "Ann beat Bo; _ won.", "option1": "Ann", "option2": "Bo", "answer": "1"},
        "Which fits the gap?\n\nAnn beat Bo; _ won.\n\nA. Ann\nB. Bo",
        "A. Ann",
    ),
    "copa": (
        {"premise": "It rained.", "choice1": "Wet.", "choice2": "Dry.", "question": "effect", "label": 0, "idx": 4},
        "It rained.\n\nWhich is the more likely effect?\n\nA. Wet.\nB. Dry.",
        "A. Wet.",
    ),
    "cosmos_qa": (
        {"id": "x", "context": "C", "question": "Q?", **{f"answer{n}": f"a{n}" for n in range(4)}, "label": 2},
        "C\n\nQ?\n\nA. a0\nB. a1\nC. a2\nD. a3",
        "C. a2",
    ),
    "bbq": (
        {
            "example_id": 0,
            "context": "A and B met.",
            "question": "Who?",
            "ans0": "A",
            "ans1": "B",
            "ans2": "Unknown",
            "label": 2,
            "category": "Age",
            "context_condition": "ambig",
        },
        "A and B met.\n\nWho?\n\nA. A\nB. B\nC. Unknown",
        "C. Unknown",
    ),
    "mathqa": (
        {
            "Problem": "2 + 3 ?",
            "options": "a ) 4 , b ) 5 , c ) 1,000 , d ) none",
            "correct": "b",
            "category": "general",
        },
        "2 + 3 ?\n\nA. 4\nB. 5\nC. 1,000\nD. none",
        "B. 5",
    ),
    "math": (
        {"problem": "Half?", "level": "Level 1", "type": "Algebra", "solution": "It is $\\boxed{\\frac{1}{2}}$."},
        "Half?",
        "It is $\\boxed{\\frac{1}{2}}$.\n#### \\frac{1}{2}",
    ),
    "mgsm": ({"question": "40+2?", "answer": None, "answer_number": 42}, "40+2?", "#### 42"),
    "multinli": (
        {"pairID": "1n", "premise": "It rains.", "hypothesis": "It is wet.", "label": 0, "genre": "travel"},
        "Premise: It rains.\nHypothesis: It is wet.",
        "entailment",
    ),
    "fever": ({"id": 7, "label": "REFUTES", "claim": "It rains."}, "Claim: It rains.", "REFUTES"),
    "scifact": ({"id": 7, "evidence_label": "SUPPORT", "claim": "It rains."}, "Claim: It rains.", "SUPPORTS"),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_row_in_its_published_form_becomes_an_item(name: str) -> None:
    row, prompt, reference = ROWS[name]
    item = PUBLISHED[name].read(row, 0)
    assert item is not None
    assert (item.prompt, item.reference) == (prompt, reference)
    for label in PUBLISHED[name].label_attributes:  # an answer in the words of the reference is right
        assert str(item.attributes[label]) in (predicted_label(item.reference, label) or "")
    assert PUBLISHED[name].metric in (None, *METRICS)
    with pytest.raises(BadRowError):
        PUBLISHED[name].read({"label": {"fever": "REFUTES", "scifact": ""}.get(name, 0), "answer": "1"}, 0)


def test_the_command_names_every_benchmark() -> None:
    assert benchmark_names() == list(benchmarks())
    assert len(PUBLISHED) == 26


def test_rows_without_a_label_are_passed_over() -> None:
    hidden = {**ROWS["multinli"][0], "label": -1}
    assert PUBLISHED["multinli"].read(hidden, 0) is None
    assert PUBLISHED["winogrande"].read({**ROWS["winogrande"][0], "answer": ""}, 0) is None


def test_samples_are_even_over_attributes_and_grow() -> None:
    kinds = ["a"] * 80 + ["b"] * 15 + ["c"] * 5
    items = [BenchmarkItem(str(n), "p", "r", {"kind": kind, "right": n}) for n, kind in enumerate(kinds)]
    sample = stratified(items, 30, ("right",))
    assert Counter(item.attributes["kind"] for item in sample) == {"a": 13, "b": 12, "c": 5}
    assert {item.native_id for item in sample} <= {item.native_id for item in stratified(items, 40, ("right",))}
    assert stratified(items, 30, ("right",)) == sample
    assert len(stratified(items, 1000)) == 100


@pytest.mark.parametrize("form", ["jsonl", "parquet", "saved", "dict"])
def test_rows_are_read_wherever_they_were_stored(tmp_path: Path, form: str) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [ROWS["mgsm"][0], ROWS["mgsm"][0]]
    folder = tmp_path / "mgsm"
    folder.mkdir()
    table = datasets.Dataset.from_list(rows)
    if form == "jsonl":
        (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif form == "parquet":
        table.to_parquet(str(folder / "test.parquet"))
    else:
        (table if form == "saved" else datasets.DatasetDict({"test": table})).save_to_disk(str(folder))
    path = find_rows(PUBLISHED["mgsm"], tmp_path)
    assert [dict(row) for _, row in rows_at(path, "test")] == rows
    if form == "dict":
        with pytest.raises(RunInputError, match="has no split 'dev'; there are test"):
            list(rows_at(path, "dev"))


def test_what_is_published_nowhere_is_not_loaded_from_the_hub() -> None:
    with pytest.raises(RunInputError, match="mmlu is read from files alone"):
        list(hub_rows(benchmarks()["mmlu"]))


# Sets whose own branch has a script alone, which `datasets` does not run any more: their rows are in the hub's Parquet.
SCRIPTS = ("xsum", "wikitablequestions", "logiqa", "cosmos_qa", "bbq", "fever", "scifact")
EVERY = {"bigbench_hard": ("boolean_expressions", "word_sorting"), "bbq": ("Age", "Religion")}


def publish(root: Path, name: str) -> list[dict[str, Any]]:
    """Lay out a repository as that of a published data set is laid out; its rows."""
    bench, published = PUBLISHED[name], []
    repository, _, configuration = bench.hub.partition(":")
    main, converted = branch_folder(root, repository), branch_folder(root, repository, CONVERTED)
    main.mkdir(parents=True)
    configs = []
    for part in EVERY.get(name, (configuration or "default",)):
        for split in ("train", bench.split):
            row = {**ROWS[name][0], **({"category": part} if name == "bbq" else {})}
            file = main / part / f"{split}-00000-of-00001.parquet"
            if name in SCRIPTS:
                file = converted / part / split / "0000.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            Dataset.from_list([row] * (1 if split == bench.split else 3)).to_parquet(str(file))
            published += [row] * (split == bench.split)
        configs.append(
            {
                "config_name": part,
                "data_files": [{"split": one, "path": f"{part}/{one}-*"} for one in ("train", bench.split)],
            }
        )
    if name in SCRIPTS:
        (main / f"{repository.partition('/')[2]}.py").write_text("raise SystemExit('no script is run')\n")
    else:
        (main / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n")
    return published


def from_hub(folder: Path, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """What `coeval ingest --from-hub` takes into a run, by name; in a process that knows no other hub."""
    config = write_config(folder, [model("ant"), model("jay", roles=["judge"])], [])
    words = ["ingest", "--config", str(config), "--from-hub", "--benchmarks", *names]
    with Hub(folder / "hub") as hub:
        settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "0"}
        settings |= {"HF_UPDATE_DOWNLOAD_COUNTS": "0", "NO_PROXY": "127.0.0.1"}
        line = [sys.executable, "-m", "coeval", *words]
        done = subprocess.run(line, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    taken: dict[str, list[dict[str, Any]]] = {}
    for record in records(run_of(folder), "data_generation"):
        taken.setdefault(record["teacher_model_id"], []).append(record)
    return taken


@pytest.mark.parametrize("names", [("bbq", "mgsm"), pytest.param(sorted(PUBLISHED), marks=pytest.mark.slow)])
def test_a_set_is_loaded_from_a_hub_as_it_is_published(tmp_path: Path, names: Sequence[str]) -> None:
    rows = {name: publish(tmp_path / "hub", name) for name in names}
    taken = from_hub(tmp_path, names)
    assert taken.keys() == rows.keys()
    for name, items in taken.items():
        assert len(items) == len(rows[name])
        assert {(item["prompt"], item["reference_response"]) for item in items} == {ROWS[name][1:]}
    assert {item["sampled_target_attributes"]["category"] for item in taken["bbq"]} == set(EVERY["bbq"])
    for item in taken.get("bigbench_hard", []):
        assert item["sampled_target_attributes"]["subject"] in EVERY["bigbench_hard"]


def test_a_claim_with_several_pieces_of_evidence_is_one_item(tmp_path: Path) -> None:
    rows = [{**ROWS["fever"][0], "id": n // 3, "claim": f"Claim {n // 3}", "evidence_id": n} for n in range(12)]
    items, skipped = read_items(PUBLISHED["fever"], tmp_path, enumerate(rows, start=1))
    assert ([item.prompt for item in items], skipped) == ([f"Claim: Claim {n}" for n in range(4)], 8)


def test_an_odd_row_of_a_published_set_is_skipped_and_many_are_an_error(tmp_path: Path) -> None:
    good, odd = ROWS["samsum"][0], {"id": "x", "dialogue": None, "summary": "None."}
    rows = [{**good, "id": str(n)} for n in range(30)]
    assert read_items(PUBLISHED["samsum"], tmp_path, enumerate([*rows, odd]))[1] == 1
    with pytest.raises(RunInputError, match=r"line 30: no dialogue; 3 of 33 rows cannot be used"):
        read_items(PUBLISHED["samsum"], tmp_path, enumerate([*rows, odd, odd, odd]))


def test_a_published_set_is_taken_into_a_run(tmp_path: Path) -> None:
    config = write_config(tmp_path, [model("ant"), model("jay", roles=["judge"])], [])
    rows = [{**ROWS["fever"][0], "id": n, "claim": f"Claim number {n}"} for n in range(9)]
    (tmp_path / "fever").mkdir()
    (tmp_path / "fever" / "labelled_dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ("ingest", "--config", config, "--benchmarks", "fever", "--data-dir", tmp_path, "--limit", "4")
    assert coeval(*flags) == coeval(*flags) == 0
    run = run_of(tmp_path)
    assert len(records(run, "data_generation")) == 4
    assert coeval("run", "--config", run.config, "--continue") == 0
    assert {one["judge_model_id"] for one in records(run, "evaluation")} == {"jay", "label"}
