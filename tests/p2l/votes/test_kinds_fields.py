"""What the fields of other tools' files mean: who voted, which metric grades, and what a file does not say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from p2l.common.errors import VoteError
from p2l.votes.importing import Imported, ImportOptions, import_votes
from p2l.votes.kinds import KINDS

LOGS = Path(__file__).parent / "logs"


def imported(path: Path, **options: Any) -> tuple[Imported, list[dict[str, Any]]]:
    output = path.parent / "imported.parquet"
    done = import_votes([path], output, ImportOptions(**options))
    return done, pq.read_table(output).to_pylist()


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def document(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def sample(kind: str) -> dict[str, Any]:
    row = json.loads(KINDS[kind].sample.replace("\n...", ""))
    return row[0] if isinstance(row, list) else row


TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]


@pytest.mark.parametrize("columns", [{}, {"response_a": "Yo", "response_b": "Hey"}, {"conversation_a": TALK}])
def test_the_judge_of_any_table_of_votes_says_who_voted(columns: dict[str, Any], tmp_path: Path) -> None:
    vote = {"prompt": "Hi", "model_a": "ant", "model_b": "bee", "winner": "model_a", **columns}
    if "conversation_a" in columns:
        vote |= {"conversation_b": TALK}
    judges = {"gpt-4": ("gpt-4", None), "expert_3": ("human", "expert_3"), "human": ("human", None), None: (None, None)}
    _, votes = imported(lines(tmp_path / "v.jsonl", *({**vote, "judge": judge} for judge in judges)))
    assert [(row["source"], row["voter"]) for row in votes] == list(judges.values())


def test_a_source_of_its_own_is_kept_and_told(tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    path.write_text("prompt,model_a,model_b,winner,judge,source\nq,ant,bee,tie,human-7,koala\n", encoding="utf-8")
    done, (vote,) = imported(path)
    assert (vote["source"], vote["voter"]) == ("koala", "human-7")
    assert done.notes == ("judge -> voter where it is a person; source is kept as it stands",)


@pytest.mark.parametrize("prompt", ["q", '["q", "r"]', "['q', 'r']"])
def test_columns_of_the_schema_are_kept_beside_those_of_a_kind(prompt: str, tmp_path: Path) -> None:
    # The last prompt is a list as Python writes it, which is read one row at a time, and the others are not.
    names = "prompt,model_a,model_b,response_a,response_b,winner,voter,network,tstamp,weight,propensity,category"
    path = tmp_path / "own.csv"
    cell = '"' + prompt.replace('"', '""') + '"'
    path.write_text(f"{names}\n{cell},ant,bee,Yo,Hey,tie,v1,n1,2026-01-05T10:00:00Z,0.5,0.25,maths\n", encoding="utf-8")
    done, (vote,) = imported(path)
    assert done.about.startswith("Kaggle's WSDM")
    assert [vote[name] for name in ("voter", "network", "tstamp", "weight", "propensity", "category", "length_b")] == [
        *("v1", "n1", 1767607200.0, 0.5, 0.25, "maths", 3)
    ]


def test_a_table_of_promptfoo_is_read_as_its_document_is(tmp_path: Path) -> None:
    read = {}
    for ending in ("json", "csv"):
        import_votes([LOGS / f"promptfoo.{ending}"], tmp_path / "o.parquet")
        rows = pq.read_table(tmp_path / "o.parquet").to_pylist()
        read[ending] = [(row["prompt"], row["model"], row["score"]) for row in rows]
    assert sorted(read["csv"]) == sorted(read["json"])


def test_promptfoos_older_tables_say_the_verdict_before_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "old.csv"
    header = "Description,city,food,[openai:ant] polite,Grader Reason,Comment,[bee] polite,Grader Reason,Comment"
    rows = ["one,Rome,pasta,[PASS] Yes,,,[FAIL] No,wrong,", 'two,Oslo,,"[ERROR] down",,,[PASS] Yes,,']
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    done, answers = imported(path)
    assert [(row["prompt"], row["model"], row["score"]) for row in answers] == [
        ("city: Rome\nfood: pasta", "openai:ant", 1.0),
        ("city: Rome\nfood: pasta", "bee", 0.0),
        ("Oslo", "bee", 1.0),
    ]
    assert "left out: 1 record (error of the provider)" in done.notes


@pytest.mark.parametrize(
    ("text", "says"),
    [("evalId: e1\nresults:\n", "promptfoo's YAML"), ("<promptfoo>\n</promptfoo>\n", "promptfoo's XML")],
)
def test_promptfoos_other_formats_say_which_to_take(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text(text, encoding="utf-8")
    with pytest.raises(VoteError, match=rf"{says}; write its results as JSON \(`-o results.json`\)"):
        imported(tmp_path / "out.txt")


def test_judge_bench_counts_as_the_benchmark_does_and_tells_models_apart(tmp_path: Path) -> None:
    judged = {"judge_model": "claude", "prompt": "...", "response": "..."}
    row = {"pair_id": "p", "source": "mmlu", "question": "Q", "label": "A>B", "judge_name": "arena_hard"}
    pairs = {("A>B", "B>A"): 1.0, ("A>B", "A=B"): 1.0, ("A>B", "A>B"): 0.0, (None, "B>A"): 1.0, ("B>A", None): 0.0}
    rows = [
        {**row, "judgments": [None if word is None else {"judgment": judged, "decision": word} for word in words]}
        for words in pairs
    ]
    _, scores = imported(lines(tmp_path / "judged.jsonl", *rows))
    assert [score["score"] for score in scores] == list(pairs.values())
    assert {score["model"] for score in scores} == {"claude (arena_hard)"}


def test_ratings_of_ultra_feedback_are_shares_of_their_own_scale(tmp_path: Path) -> None:
    completions = [{"model": "ant", "overall_score": 8.0}, {"model": "bee", "fine-grained_score": 4.0}]
    row = sample("ultra-feedback") | {"completions": completions}
    _, scores = imported(lines(tmp_path / "u.jsonl", row))
    assert [score["score"] for score in scores] == [0.8, 0.8]


def test_equal_ranks_are_ties(tmp_path: Path) -> None:
    answers = [{"answer": "x", "model": model, "rank": rank} for model, rank in (("ant", 1.0), ("bee", 1.0))]
    _, votes = imported(lines(tmp_path / "n.jsonl", sample("nectar") | {"answers": answers}))
    assert [vote["winner"] for vote in votes] == ["tie"]


def test_a_preference_beyond_the_scale_is_refused(tmp_path: Path) -> None:
    path = lines(tmp_path / "h.jsonl", sample("help-steer3") | {"overall_preference": -100})
    with pytest.raises(VoteError, match="line 1: preference is -100; it is between -3"):
        imported(path)


def test_a_language_of_programs_is_none_of_people(tmp_path: Path) -> None:
    rows = [sample("help-steer3") | {"domain": domain} for domain in ("code", "general")]
    _, votes = imported(lines(tmp_path / "h.jsonl", *rows))
    assert [vote["language"] for vote in votes] == [None, "english"]


def test_the_address_of_a_log_becomes_a_voter_and_is_not_told(tmp_path: Path) -> None:
    rows = [sample("fastchat-log") | {"ip": address} for address in ("203.0.113.7", "203.0.113.8", "203.0.113.7", "")]
    _, votes = imported(lines(tmp_path / "log.json", *rows))
    first, second, again, nobody = (vote["voter"] for vote in votes)
    assert first == again
    assert len({first, second, nobody}) == 3
    assert nobody is None
    assert not any("203.0.113" in str(vote) for vote in votes)


def test_submissions_that_list_what_was_solved_are_wrong_where_others_were_right(tmp_path: Path) -> None:
    folder = tmp_path / "verified"
    document(folder / "1_ant" / "results" / "results.json", {"no_generation": ["d"], "no_logs": [], "resolved": ["a"]})
    with pytest.raises(VoteError, match="name the folder of several submissions"):
        imported(folder)
    document(folder / "2_bee" / "results" / "results.json", {"no_generation": [], "no_logs": [], "resolved": ["b"]})
    _, rows = imported(folder)
    scores = {(row["model"], row["question_id"]): row["score"] for row in rows}
    solved = [key for key, score in scores.items() if score]
    assert solved == [("1_ant", "a"), ("2_bee", "b")]
    assert {*scores} == {(model, instance) for model in ("1_ant", "2_bee") for instance in "abd"}
    with pytest.raises(VoteError, match="name the folder of several submissions"):
        imported(folder / "1_ant" / "results" / "results.json")


def test_metrics_of_lm_eval_of_which_less_is_better_are_no_grades(tmp_path: Path) -> None:
    row = {"doc_id": 0, "doc": {}, "target": "4", "arguments": {"gen_args_0": {"arg_0": "Q"}}, "filter": "none"}
    document(tmp_path / "ant" / "results_1.json", {"model_name": "ant", "higher_is_better": {"t": {"loss": False}}})
    lines(tmp_path / "ant" / "samples_t.jsonl", {**row, "metrics": ["loss", "gain"], "loss": 9.0, "gain": 0.5})
    lines(tmp_path / "ant" / "samples_w.jsonl", {**row, "metrics": ["word_perplexity"], "word_perplexity": [-9.0, 2]})
    done, (answer,) = imported(tmp_path / "ant")
    assert (answer["model"], answer["category"], answer["score"]) == ("ant", "t", 0.5)
    assert done.notes == ("left out: 1 record (word_perplexity is no grade of an answer)",)


def test_chats_of_helm_are_prompts_by_what_the_user_says(tmp_path: Path) -> None:
    given = {"text": "", "messages": [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hi"}]}
    stats = [{"name": {"name": "exact_match"}, "count": 1, "sum": 1.0, "mean": 1.0}]
    folder = tmp_path / "run"
    document(folder / "run_spec.json", {"name": "chat:x", "adapter_spec": {"model": "ant"}})
    document(folder / "scenario_state.json", {"request_states": [{"instance": {"id": "i", "input": given}}]})
    document(folder / "per_instance_stats.json", [{"instance_id": "i", "train_trial_index": 0, "stats": stats}])
    _, (answer,) = imported(folder)
    assert (answer["prompt"], answer["score"]) == ("Hi", 1.0)


def test_a_table_of_answers_says_which_column_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text("question,model,judge_score\nq,ant,0.5\n", encoding="utf-8")
    with pytest.raises(VoteError, match=r"graded answers, but has no 'score'; name the column by --columns score=NAME"):
        imported(path)
    _, (answer,) = imported(path, columns={"score": "judge_score"})
    assert answer["score"] == 0.5


def test_chats_with_a_model_each_are_no_table_of_models(tmp_path: Path) -> None:
    chat = {"conversation_hash": "a1", "conversation": TALK, "turn": 1, "language": "English", "toxic": False}
    rows = [{**chat, "model": model, "redacted": False} for model in ("ant", "bee", "ant")]
    with pytest.raises(VoteError, match="looks like chats with a model each, and holds neither votes nor scores"):
        imported(lines(tmp_path / "chats.jsonl", *rows))
    flat = [{"model": model, "toxic": 0.1, "redacted": 0.2, "language": "en"} for model in ("ant", "ant")]
    with pytest.raises(VoteError, match="no column 'model_a'"):
        imported(lines(tmp_path / "flat.jsonl", *flat))
    done, _ = imported(lines(tmp_path / "board.jsonl", *({**flat[0], "model": model} for model in ("ant", "bee"))))
    assert done.about.endswith("questions toxic, redacted")
