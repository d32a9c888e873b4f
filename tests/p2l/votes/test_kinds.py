"""Files of other tools: each kind by the sample that `--list-kinds` shows, and logs that the tools themselves wrote."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from p2l.commands.votes import main
from p2l.common.errors import InputError, VoteError
from p2l.votes import read_votes
from p2l.votes.importing import Imported, ImportOptions, import_votes
from p2l.votes.kinds import KINDS, Kind, register

LOGS = Path(__file__).parent / "logs"
SHARED = Path(__file__).parents[3].parent / "shared" / "files" / "inspect"

VOTES: dict[str, list[tuple[Any, ...]]] = {
    "lmsys-kaggle": [(["Name a colour"], "ant", "bee", "model_a")],
    "wsdm-kaggle": [(["Name a colour"], "ant", "bee", "model_a")],
    "arena-conversations": [(["Hi"], "ant", "bee", "tie (bothbad)")],
    "mt-bench": [(["Hi"], "ant", "bee", "model_a")],
    "fastchat-log": [(["Hi"], "ant", "bee", "model_a")],
    "comparia": [(["Bonjour"], "ant", "bee", "model_a")],
    "comparia-turns": [(["Bonjour"], "ant", "bee", "model_a")],
    "help-steer2": [(["Name a colour"], "ant", "bee", "model_a")],
    "help-steer3": [(["Name a colour"], "ant", "bee", "model_a")],
    "shp": [(["How long?"], "ant", "bee", "model_a")],
    "fastchat-pairs": [(None, "ant", "bee", "model_a")],
    "model-pairs": [(["Name a colour"], "ant", "bee", "model_a")],
    # Both games are won by ant: as the second answer, then as the first.
    "arena-hard": [(["Hi"], "gpt-4-0314", "ant", "model_b"), (["Hi"], "ant", "gpt-4-0314", "model_a")],
    "alpaca-eval": [(["Name a colour"], "ant", "bee", "model_b")],
    "chosen-rejected": [(["Name a colour"], "bee", "ant", "model_b")],
    "nectar": [(["Name a colour"], "bee", "ant", "model_b")],
    "reward-bench-2": [(["Name a colour"], "bee", "ant", "model_b")],
}
SCORES: dict[str, list[tuple[Any, ...]]] = {
    "inspect": [("2 + 2?", "ant", 1.0)],
    "lm-eval": [("2 + 2?", "folder", 1.0)],
    "terminal-bench": [("Write a file", "folder", 1.0)],
    "swe-bench": [(None, "ant", 1.0), (None, "ant", 0.0)],
    "promptfoo": [("2 + 2?", "ant", 1.0)],
    "openai-evals-log": [(None, "ant", 1.0)],
    "openai-evals-api": [("Hi", "ant", 1.0)],
    "deepeval": [("2 + 2?", "ant", 0.9)],
    "langfuse": [("2 + 2?", "ant", 1.0)],
    "langfuse-observations": [("2 + 2?", "ant", 1.0)],
    "braintrust": [("2 + 2?", "ant", 1.0)],
    "langsmith": [("2 + 2?", "ant", 1.0)],
    "langsmith-experiment": [("2 + 2?", "ant", 1.0)],
    "fastchat-grades": [(None, "ant", 0.8)],
    "judge-bench": [("2 + 2?", "ant", 1.0)],
    "ultra-feedback": [("Name a colour", "ant", 0.8), ("Name a colour", "bee", 0.2)],
    "router-bench": [("2 + 2?", "ant", 1.0), ("2 + 2?", "bee", 0.0)],
    "llm-router-bench": [("2 + 2?", "ant", 1.0)],
    "router-arena": [("2 + 2?", "ant", 1.0)],
    "score-table": [("2 + 2?", "ant", 1.0)],
    "wide-by-question": [("2 + 2?", "ant", 1.0), ("2 + 2?", "bee", 0.0)],
    "wide-by-model": [(None, "ant", 1.0), (None, "ant", 0.0)],
}
FOLDERS = {"helm", "bfcl", "langfuse-export", "live-bench"}
NAMELESS = {
    *("help-steer", "help-steer2-nameless", "help-steer3-nameless", "shp-nameless", "chosen-rejected-nameless"),
    *("leaderboard", "langfuse-scores", "langsmith-feedback"),
}


def imported(path: Path, **options: Any) -> tuple[Imported, list[dict[str, Any]]]:
    output = path.parent / "imported.parquet"
    done = import_votes([path], output, ImportOptions(**options))
    return done, pq.read_table(output).to_pylist()


def sample_file(kind: Kind, folder: Path) -> Path:
    place = folder / "folder"
    place.mkdir()
    text = kind.sample.replace("\n...", "").removeprefix("a .eval file, or ")
    (place / "ant.run.json").write_text(text + "\n", encoding="utf-8")
    return place / "ant.run.json"


def written(folder: Path, files: dict[str, Any]) -> Path:
    """Write files of JSON, or of JSON lines where the content is a list in a tuple, and return the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = content if isinstance(content, tuple) else (content,)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


def test_every_kind_has_a_test() -> None:
    assert {*VOTES, *SCORES, *FOLDERS, *NAMELESS} == {*KINDS}


@pytest.mark.parametrize("name", VOTES)
def test_the_sample_of_a_kind_of_votes_is_read(name: str, tmp_path: Path) -> None:
    done, rows = imported(sample_file(KINDS[name], tmp_path))
    assert (done.gives, done.about.partition(":")[0]) == ("votes", KINDS[name].about)
    assert [(row.get("prompt"), row["model_a"], row["model_b"], row["winner"]) for row in rows] == VOTES[name]


@pytest.mark.parametrize("name", SCORES)
def test_the_sample_of_a_kind_of_scores_is_read(name: str, tmp_path: Path) -> None:
    done, rows = imported(sample_file(KINDS[name], tmp_path))
    assert (done.gives, done.about.partition(":")[0]) == ("scores", KINDS[name].about)
    assert [(row.get("prompt"), row["model"], row["score"]) for row in rows] == SCORES[name]


@pytest.mark.parametrize("name", sorted(NAMELESS))
def test_a_file_without_votes_is_refused_by_what_it_is(name: str, tmp_path: Path) -> None:
    with pytest.raises(VoteError, match=KINDS[name].about):
        imported(sample_file(KINDS[name], tmp_path))


def test_a_judge_is_a_source_and_a_person_a_voter(tmp_path: Path) -> None:
    talk = [{"role": role, "content": f"{role} {n}"} for n in (1, 2) for role in ("user", "assistant")]
    row = {"question_id": 81, "model_a": "ant", "model_b": "bee", "conversation_a": talk, "conversation_b": talk}
    rows = [
        {**row, "winner": "model_a", "judge": "author_2", "turn": 1},
        {**row, "winner": "tie (inconsistent)", "judge": "gpt4_pair", "turn": 2},
        {**row, "winner": "error", "judge": "gpt4_pair", "turn": 2},
    ]
    written(tmp_path, {"mt.jsonl": tuple(rows)})
    done, votes = imported(tmp_path / "mt.jsonl")
    assert [vote["prompt"] for vote in votes] == [["user 1"], ["user 1", "user 2"]]
    assert [(vote["source"], vote["voter"]) for vote in votes] == [("human", "author_2"), ("gpt4", None)]
    assert [vote["length_a"] for vote in votes] == [11, 24]
    assert [vote["winner"] for vote in votes] == ["model_a", "tie"]
    assert "left out: 1 record (winner error)" in done.notes


def test_arena_hard_names_its_baseline(tmp_path: Path) -> None:
    games = [{"score": "A>>B", "judgment": {}}, {"score": "A=B", "judgment": {}}, {"score": None, "judgment": {}}]
    row = {
        "uid": "u",
        "category": "hard_prompt",
        "judge": "gpt-4.1",
        "model": "ant",
        "baseline": "o3-mini",
        "games": games,
    }
    written(tmp_path, {"ant.jsonl": (row,)})
    _, votes = imported(tmp_path / "ant.jsonl")
    assert [(vote["model_a"], vote["model_b"], vote["winner"]) for vote in votes] == [
        ("o3-mini", "ant", "model_a"),
        ("ant", "o3-mini", "tie"),
    ]
    assert {vote["source"] for vote in votes} == {"gpt-4.1"}


def test_alpaca_evals_weights_are_preferences_and_its_people_voters(tmp_path: Path) -> None:
    row = json.loads(KINDS["alpaca-eval"].sample)[0] | {"price_per_example": 0.01, "raw_completion": {"text": "m"}}
    weights = {1.99: "model_b", 1.46: "model_a", 1.5: "tie", 0.0: "tie", 1.0: "model_a"}
    written(tmp_path, {"annotations.json": [row | {"preference": weight} for weight in (*weights, None)]})
    done, votes = imported(tmp_path / "annotations.json")
    assert [vote["winner"] for vote in votes] == list(weights.values())
    assert done.notes == ("left out: 1 record (no preference)",)
    written(tmp_path, {"people.json": [row | {"annotator": 3}]})
    _, (vote,) = imported(tmp_path / "people.json")
    assert (vote["voter"], vote["source"]) == ("3", "human")


def test_each_right_answer_of_reward_bench_2_beats_each_wrong_one(tmp_path: Path) -> None:
    row = json.loads(KINDS["reward-bench-2"].sample)
    ties = row | {"chosen": ["r", "s"], "rejected": ["w", "x"], "models": ["ant", "bee", "cat", "bee"]}
    alone = row | {"models": ["ant", "ant"]}
    written(tmp_path, {"pairs.jsonl": (ties, alone)})
    done, votes = imported(tmp_path / "pairs.jsonl")
    winners = [(vote[vote["winner"]], *({vote["model_a"], vote["model_b"]} - {vote[vote["winner"]]})) for vote in votes]
    assert winners == [("ant", "cat"), ("ant", "bee"), ("bee", "cat")]
    assert done.notes == ("left out: 1 record (all answers are by one model)",)
    written(tmp_path, {"pairs.jsonl": (row | {"models": ["ant"]},)})
    with pytest.raises(VoteError, match="line 1: models names 1 models of 2 answers"):
        imported(tmp_path / "pairs.jsonl")


def test_a_folder_of_live_bench_gives_judgements_the_words_of_their_questions(tmp_path: Path) -> None:
    judged = {"question_id": "q1", "task": "spatial", "tstamp": 1.5, "category": "reasoning", "answer_id": "a"}
    files = {
        "reasoning/spatial/question.jsonl": ({"question_id": "q1", "turns": ["Where?"], "task": "spatial"},),
        "reasoning/spatial/model_answer/ant.jsonl": ({"question_id": "q1", "model_id": "ant", "choices": []},),
        "reasoning/spatial/model_judgment/ground_truth_judgment.jsonl": (
            {**judged, "model": "ant", "score": 1},
            {**judged, "model": "bee", "score": 0},
        ),
        "math/olympiad/model_judgment/ground_truth_judgment.jsonl": ({**judged, "model": "ant", "score": 0.5},),
    }
    done, rows = imported(written(tmp_path / "live_bench", files))
    assert [(row["prompt"], row["model"], row["score"]) for row in rows] == [
        (None, "ant", 0.5),
        ("Where?", "ant", 1.0),
        ("Where?", "bee", 0.0),
    ]
    assert done.about.partition(":")[0] == "LiveBench's folder"


def test_a_hash_of_who_voted_is_a_voter(tmp_path: Path) -> None:
    row = json.loads(KINDS["arena-conversations"].sample.partition("\n")[0])
    del row["judge"]
    written(tmp_path, {"export.jsonl": (row | {"judge_hash": "a1b2", "conv_metadata": {"turns": 1}},)})
    _, (vote,) = imported(tmp_path / "export.jsonl")
    assert (vote["voter"], vote["prompt"], vote["length_b"]) == ("a1b2", ["Hi"], 3)


def test_lines_of_promptfoo_are_read_as_its_document_is(tmp_path: Path) -> None:
    document = json.loads((LOGS / "promptfoo.json").read_text(encoding="utf-8"))
    written(tmp_path, {"results.jsonl": tuple(document["results"]["results"])})
    _, lines = imported(tmp_path / "results.jsonl")
    (tmp_path / "results.json").write_text(json.dumps(document), encoding="utf-8")
    _, rows = imported(tmp_path / "results.json")
    assert lines == rows


def helm_run(model: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    instance = {"id": "id1", "input": {"text": "2 + 2?"}, "references": [], "split": "test"}
    adapter = {"method": "generation", "model": model, "model_deployment": model}
    return {
        "run_spec.json": {"name": f"gsm:model={model}", "adapter_spec": adapter},
        "scenario_state.json": {"request_states": [{"instance": instance, "request": {"prompt": "..."}}]},
        "per_instance_stats.json": entries,
    }


def stat(name: str, mean: float) -> dict[str, Any]:
    return {"name": {"name": name, "split": "test"}, "count": 1, "sum": mean, "mean": mean}


def test_helm_runs_become_scores_by_their_metric(tmp_path: Path) -> None:
    entry = {"instance_id": "id1", "train_trial_index": 0}
    perturbed = {**entry, "perturbation": {"name": "typos"}, "stats": [stat("exact_match", 0.5)]}
    for model, mean in (("openai/ant", 1.0), ("openai/bee", 0.0)):
        # HELM writes an entry of an instance for each metric: first of time and tokens, then of the answer.
        runtime = {**entry, "stats": [stat("inference_runtime", 3.0), stat("num_output_tokens", 7.0)]}
        graded = {**entry, "stats": [stat("chain_of_thought_correctness", mean)]}
        run = helm_run(model, [runtime, graded, perturbed])
        written(tmp_path / "runs" / f"gsm:model={model.replace('/', '_')}", run)
    done, rows = imported(tmp_path / "runs")
    assert [(row["model"], row["score"], row["prompt"], row["category"]) for row in rows] == [
        ("openai/ant", 1.0, "2 + 2?", "gsm"),
        ("openai/bee", 0.0, "2 + 2?", "gsm"),
    ]
    assert (done.about.partition(":")[0], done.notes) == ("HELM runs", ())
    (tmp_path / "runs" / "gsm:model=openai_bee" / "scenario_state.json").unlink()
    with pytest.raises(VoteError, match=r"openai_bee/scenario_state.json: is missing"):
        imported(tmp_path / "runs")


def test_bfcl_takes_what_passed_from_the_results(tmp_path: Path) -> None:
    score = ({"accuracy": 0.5, "correct_count": 1, "total_count": 2}, {"id": "memory_rec_sum_1", "valid": False})
    result = (
        {"id": "memory_rec_sum_prereq_0-student-0", "result": "stored"},
        *({"id": "memory_rec_sum_0", "result": "f()"}, {"id": "memory_rec_sum_1", "result": "g()"}),
    )
    name = "org_ant-FC/agentic/memory/rec_sum/BFCL_v4_memory_rec_sum"
    written(tmp_path / "bfcl", {f"score/{name}_score.json": score})
    with pytest.raises(VoteError, match="lists the tests that failed"):
        imported(tmp_path / "bfcl")
    written(tmp_path / "bfcl", {f"result/{name}_result.json": result})
    _, rows = imported(tmp_path / "bfcl")
    assert [(row["question_id"], row["category"], row["model"], row["score"]) for row in rows] == [
        ("memory_rec_sum_0", "memory_rec_sum", "org_ant-FC", 1.0),
        ("memory_rec_sum_1", "memory_rec_sum", "org_ant-FC", 0.0),
    ]


def test_folders_of_agents_results_are_read(tmp_path: Path) -> None:
    reports = {
        f"run/org__{model}/django__1/report.json": {"django__1": {"resolved": model == "ant"}}
        for model in ("ant", "bee")
    }
    _, rows = imported(written(tmp_path / "swe", reports))
    assert {row["model"]: row["score"] for row in rows} == {"org/ant": 1.0, "org/bee": 0.0}
    # A trial of Harbor with an exception has no rewards, and counts as 0 in its mean.
    verdicts = {"ant": {"verifier_result": {"rewards": {"reward": 1.0, "speed": 0.2}}}, "bee": {"exception_info": {}}}
    trials = {
        f"job/{model}__1/result.json": {
            "task_name": "hello",
            "agent_info": {"name": "terminus", "version": "2", "model_info": {"name": model, "provider": "org"}},
            **verdict,
        }
        for model, verdict in verdicts.items()
    }
    _, rows = imported(written(tmp_path / "harbor", {**trials, "job/result.json": {"n_total_trials": 2, "stats": {}}}))
    assert {row["model"]: row["score"] for row in rows} == {"ant": 1.0, "bee": 0.0}


def test_runs_of_terminal_bench_are_read_as_the_harness_counts_them(tmp_path: Path) -> None:
    trial = {"trial_name": "t.1-of-1", "task_id": "t", "instruction": "Do it", "failure_mode": "none"}
    results = {"results": [{**trial, "is_resolved": True}], "resolved_ids": ["t"], "unresolved_ids": []}
    cut = {**trial, "is_resolved": None, "failure_mode": "agent_timeout"}
    files = {
        "runs/one/results.json": results,
        "runs/one/run_metadata.json": {"run_id": "one", "agent_name": "terminus", "model_name": "org/ant"},
        "runs/one/t/t.1-of-1/results.json": results["results"][0],
        # The leaderboard keeps runs in folders called by date, agent and model.
        "20250601_terminus_bee/2025-06-01__10-00-00__results.json": {**results, "results": [cut]},
    }
    _, rows = imported(written(tmp_path / "tb", files))
    assert {row["model"]: row["score"] for row in rows} == {"org/ant": 1.0, "20250601_terminus_bee": 0.0}


LANGFUSE_SCORES = (
    {"id": "1", "trace_id": "t1", "observation_id": "o1", "name": "correctness", "value": 1, "data_type": "NUMERIC"},
    {"id": "2", "trace_id": "t2", "observation_id": None, "name": "correctness", "value": 0, "data_type": "NUMERIC"},
    {"id": "3", "trace_id": "t2", "name": "tone", "string_value": "polite", "data_type": "CATEGORICAL"},
    {"id": "4", "trace_id": "t9", "name": "correctness", "value": 1, "data_type": "NUMERIC"},
)


def test_scores_of_langfuse_are_joined_with_what_they_are_of(tmp_path: Path) -> None:
    asked = '[{"role": "user", "content": "2 + 2?"}]'
    observations = tuple(
        {"id": f"o{n}", "trace_id": f"t{n}", "type": "GENERATION", "provided_model_name": model, "input": asked}
        for n, model in ((1, "ant"), (2, "bee"))
    )
    files = {"scores/2026-01-05.jsonl": LANGFUSE_SCORES, "observations_v2/2026-01-05.jsonl": observations}
    done, rows = imported(written(tmp_path / "langfuse", files))
    assert [(row["model"], row["prompt"], row["category"], row["score"]) for row in rows] == [
        ("ant", "2 + 2?", "correctness", 1.0),
        ("bee", "2 + 2?", "correctness", 0.0),
    ]
    said = "1 record (score in words), 1 record (score of something else than an answer of a model)"
    assert done.notes == (f"left out: {said}",)


def test_a_score_of_a_trace_with_several_answers_is_nobodys(tmp_path: Path) -> None:
    observations = tuple(
        {"id": f"o{n}", "trace_id": trace, "type": "GENERATION", "provided_model_name": model, "input": "2 + 2?"}
        for n, trace, model in ((1, "t1", "ant"), (2, "t1", "bee"), (3, None, "cow"), (4, "t4", "dog"))
    )
    whole = {"name": "correctness", "value": 1, "data_type": "NUMERIC", "observation_id": None}
    scores = ({"id": "1", "trace_id": "t1", **whole}, {"id": "2", **whole}, {"id": "3", "trace_id": "t4", **whole})
    files = {"scores/2026-01-05.jsonl": scores, "observations_v2/2026-01-05.jsonl": observations}
    done, rows = imported(written(tmp_path / "langfuse", files))
    assert [row["model"] for row in rows] == ["dog"]
    assert done.notes == ("left out: 2 records (score of something else than an answer of a model)",)


def test_deepeval_counts_no_answer_whose_metric_failed_to_run(tmp_path: Path) -> None:
    metric = {"name": "G-Eval", "threshold": 0.5, "success": False, "flaky": False}
    flaky = {"name": "Tone", "score": 0.0, "success": False, "flaky": True}
    cases = [
        {"name": "a", "input": "Q1", "success": False, "metricsData": [{**metric, "error": "no key"}]},
        {"name": "b", "input": "Q2", "success": True, "metricsData": [{**metric, "score": 0.8}, flaky]},
    ]
    run = {"testRunData": {"testCases": cases, "hyperparameters": {"model": "ant"}}}
    done, rows = imported(written(tmp_path, {".latest_test_run.json": run}) / ".latest_test_run.json")
    assert [(row["prompt"], row["model"], row["score"]) for row in rows] == [("Q2", "ant", 0.8)]
    assert done.notes == ("left out: 1 record (error of a metric)",)


def test_preferences_without_models_say_which_columns_would_do(tmp_path: Path) -> None:
    row = json.loads(KINDS["help-steer3"].sample) | {"overall_preference": 0}
    renamed = {{"model_a": "first", "model_b": "second"}.get(name, name): value for name, value in row.items()}
    written(tmp_path, {"pairs.jsonl": (renamed,)})
    with pytest.raises(VoteError, match=r"response1 and response2, and name them by --columns model_a=NAME,model_b"):
        imported(tmp_path / "pairs.jsonl")
    done, (vote,) = imported(tmp_path / "pairs.jsonl", columns={"model_a": "first", "model_b": "second"})
    assert (vote["model_a"], vote["model_b"], vote["winner"], vote["category"]) == ("ant", "bee", "tie", "general")
    assert (vote["length_a"], vote["length_b"]) == (4, 3)
    assert "columns first -> model_a, second -> model_b" in done.about


def test_a_router_benchmark_keeps_splits_apart_and_passes_over_demos(tmp_path: Path) -> None:
    record = {"index": 1, "origin_query": "2 + 2?", "prompt": "2 + 2?", "prediction": "4", "ground_truth": "4"}
    about = {"performance": 0.5, "dataset_name": "sums", "model_name": "ant", "demo": False}
    files = {
        "sums/test/ant/sums-test-ant-20260105_100000.json": {
            **about,
            "split": "test",
            "records": [{**record, "score": None, "cost": 0.1}, {**record, "index": 2, "score": 1.0}],
        },
        "sums/train/ant/sums-train-ant-20260105_100000.json": {
            **about,
            "split": "train",
            "records": [{**record, "score": 1.0}],
        },
        "sums/test/ant/sums-test-ant-20260104_100000.json": {**about, "demo": True, "records": [record]},
    }
    done, rows = imported(written(tmp_path / "bench", files))
    assert {row["question_id"]: row["score"] for row in rows} == {
        "sums test 1": 0.0,
        "sums test 2": 1.0,
        "sums train 1": 1.0,
    }
    assert done.notes == ("left out: 1 record (demo run)",)


@pytest.mark.parametrize(
    ("folder", "questions"), [("inspect", 24), ("lm_eval", 24), ("deepeval", 12), ("promptfoo.json", 6)]
)
def test_logs_of_the_tools_themselves_give_each_answer_its_grade(folder: str, questions: int, tmp_path: Path) -> None:
    done = import_votes([LOGS / folder], tmp_path / "scores.parquet")
    rows = pq.read_table(tmp_path / "scores.parquet").to_pylist()
    assert (done.rows, done.models, done.gives) == (4 * questions, 4, "scores")
    sums = [row for row in rows if "+" in row["prompt"]]
    right = {
        model: sum(row["score"] for row in sums if row["model"].endswith(model))
        for model in ("alpha", "beta", "gamma", "delta")
    }
    most = 6 if folder == "promptfoo.json" else 12
    assert right == {"alpha": min(11, most), "beta": min(8, most), "gamma": 5, "delta": 3}
    assert all(row["prompt"].startswith("What is") for row in rows)
    votes = import_votes([LOGS / folder], tmp_path / "votes.parquet", ImportOptions(as_votes=True))
    assert (votes.rows, votes.gives) == (6 * questions, "votes")


@pytest.mark.skipif(find_spec("inspect_ai") is None, reason="inspect_ai is not installed")
@pytest.mark.parametrize("folder", [LOGS / "inspect", SHARED])
def test_inspects_own_reader_and_ours_read_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not folder.is_dir():
        pytest.skip("logs of several versions of Inspect are not here")
    read = []
    for is_installed in (True, None):
        monkeypatch.setattr("p2l.votes.kinds.inspect_logs.find_spec", lambda _, found=is_installed: found)
        done = import_votes([folder], tmp_path / "scores.parquet")
        rows = pq.read_table(tmp_path / "scores.parquet").to_pylist()
        read.append((done.rows, done.notes, sorted(map(str, rows))))
    assert read[0] == read[1]


@pytest.mark.skipif(not SHARED.is_dir(), reason="logs of several versions of Inspect are not here")
def test_logs_of_several_versions_of_inspect_are_read(tmp_path: Path) -> None:
    done = import_votes([SHARED], tmp_path / "scores.parquet")
    assert (done.rows, done.models) == (18, 3)
    assert "left out: 10 records (no score)" in done.notes


def test_a_kind_of_a_user_is_read_by_its_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2l.votes.kinds.registry.KINDS", KINDS)
    kept = dict(KINDS)
    duel = Kind(
        name="duel",
        about="our duels",
        gives="votes",
        recognise=lambda sample: sample.has("left", "right", "better"),
        convert=lambda row: [{"model_a": row["left"], "model_b": row["right"], "winner": f"model_{row['better']}"}],
        sample="left,right,better\nant,bee,b",
    )
    try:
        register(duel, first=True)
        (tmp_path / "duels.csv").write_text(duel.sample + "\n", encoding="utf-8")
        done, votes = imported(tmp_path / "duels.csv")
        assert (done.about, votes[0]["winner"]) == ("our duels", "model_b")
    finally:
        KINDS.clear()
        KINDS.update(kept)


def test_columns_and_kind_override_what_is_recognised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "v.csv").write_text("q,left,right,vote\nHi,ant,bee,model_b\n", encoding="utf-8")
    output = str(tmp_path / "v.jsonl")
    columns = "prompt=q,model_a=left,model_b=right,winner=vote"
    assert main(["import", str(tmp_path / "v.csv"), "--output", output, "--columns", columns, "--quiet"]) == 0
    assert "read as columns q -> prompt" in capsys.readouterr().out
    assert json.loads((tmp_path / "v.jsonl").read_text()) == {
        "prompt": ["Hi"],
        "model_a": "ant",
        "model_b": "bee",
        "winner": "model_b",
        "same_organisation": "different",
        "repeated_prompt": "first",
    }
    with pytest.raises(InputError, match="no column 'lft' that --columns could name"):
        main(["import", str(tmp_path / "v.csv"), "--output", output, "--columns", "model_a=lft"])
    with pytest.raises(InputError, match=r"'model_a' is no NAME=COLUMN"):
        main(["import", str(tmp_path / "v.csv"), "--output", output, "--columns", "model_a"])
    with pytest.raises(InputError, match="kind 'mt-bnch' is unknown"):
        main(["import", str(tmp_path / "v.csv"), "--output", output, "--kind", "mt-bnch"])
    assert main(["import", "--list-kinds"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{name}: " in listed for name in KINDS)


def test_numbers_that_are_no_grades_make_no_models(tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text("question,chars_a,chars_b,verdict\nq,300,20,a\n", encoding="utf-8")
    with pytest.raises(VoteError, match="no column 'model_a'; columns: question, chars_a"):
        imported(tmp_path / "v.csv")
    (tmp_path / "w.csv").write_text("question,ant,bee,tokens,year\nq,1,0,300,2024\n", encoding="utf-8")
    _, rows = imported(tmp_path / "w.csv")
    assert [row["model"] for row in rows] == ["ant", "bee"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        # LiveBench's judgements name a question by its identifier alone.
        (
            {"question_id": "q1", "task": "olympiad", "model": "ant", "score": 0.5, "turn": 1, "category": "math"},
            (None, "ant", 0.5, "math"),
        ),
        ({"question": "Q", "model_name": "ant", "acc": "73%"}, ("Q", "ant", 0.73, None)),
        ({"prompt": "Q", "model": "ant", "verdict": "incorrect"}, ("Q", "ant", 0.0, None)),
        ({"instance_id": "django__1", "model_name_or_path": "ant", "resolved": True}, (None, "ant", 1.0, None)),
        ({"input": "Q", "model": "ant", "score": "C", "dataset": "sums"}, ("Q", "ant", 1.0, "sums")),
    ],
)
def test_a_graded_answer_is_read_by_the_names_that_people_use(
    row: dict[str, Any], expected: tuple[Any, ...], tmp_path: Path
) -> None:
    written(tmp_path, {"v.jsonl": (row,)})
    _, (answer,) = imported(tmp_path / "v.jsonl")
    assert (answer.get("prompt"), answer["model"], answer["score"], answer.get("category")) == expected


def test_numbers_of_rows_are_no_questions_where_these_have_words(tmp_path: Path) -> None:
    rows = [{"id": n, "question": f"Q{n // 2}", "model": ("ant", "bee")[n % 2], "score": n % 2} for n in range(4)]
    written(tmp_path, {"scores.jsonl": tuple(rows)})
    assert len(next(iter(read_votes(tmp_path / "scores.jsonl")))) == 2
    wordless = [{"id": n // 2, "model": row["model"], "score": row["score"]} for n, row in enumerate(rows)]
    written(tmp_path, {"scores.jsonl": tuple(wordless)})
    _, answers = imported(tmp_path / "scores.jsonl")
    assert [answer["question_id"] for answer in answers] == ["0", "0", "1", "1"]


def test_samples_of_older_versions_of_lm_eval_are_read(tmp_path: Path) -> None:
    line = {"doc_id": 0, "doc": {}, "target": "4", "arguments": [["2 + 2?", {"until": ["\n"]}]], "resps": [["4"]]}
    filters = (
        {**line, "filter": "strict-match", "exact_match": 0.0},
        {**line, "filter": "flexible", "exact_match": 1.0},
    )
    results = {"config": {"model": "hf", "model_args": "pretrained=org/ant,dtype=auto"}, "results": {}}
    date = "2024-05-01T10-00-00.000000"
    files = {f"org__ant/samples_sums_{date}.jsonl": filters, f"org__ant/results_{date}.json": results}
    done, (answer,) = imported(written(tmp_path / "out", files))
    assert (answer["model"], answer["category"], answer["score"]) == ("org/ant", "sums", 0.0)
    assert done.notes == ("left out: 1 record (answer by a second filter (flexible))",)


def test_graded_answers_serve_leaderboards_and_votes_directly(tmp_path: Path) -> None:
    rows = [
        {"question": f"Q{number}", "model": model, "score": float(number < right)}
        for number in range(10)
        for model, right in (("ant", 9), ("bee", 4), ("bee ", 4))
    ]
    written(tmp_path, {"scores.jsonl": tuple(rows)})
    with pytest.raises(InputError, match="this model has answered this question in an earlier row"):
        list(read_votes(tmp_path / "scores.jsonl"))
    written(tmp_path, {"scores.jsonl": tuple(row for row in rows if row["model"] != "bee ")})
    votes = [row for batch in read_votes(tmp_path / "scores.jsonl") for row in batch.batch.to_pylist()]
    outcomes = {frozenset((vote["model_a"], vote["model_b"])) for vote in votes}
    assert (len(votes), outcomes) == (10, {frozenset(("ant", "bee"))})
    winners = [vote[vote["winner"]] for vote in votes if vote["winner"].startswith("model")]
    assert winners == ["ant"] * 5
