from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2l.commands.votes import main
from p2l.common.cli import run
from p2l.common.errors import InputError
from p2l.votes import open_votes
from p2l.votes.checking import check_votes
from p2l.votes.importing import import_votes
from p2l.votes.splitting import split_votes
from tests.p2l.votes_helpers import ENDINGS, MODELS, save, vote


def rows_of(path: Path) -> list[dict[str, Any]]:
    with open_votes(path) as store:
        return store.rows()


def message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def battle(n: int, *turns: Any, **changes: Any) -> dict[str, Any]:
    talk = [
        part for turn in turns or (f"question {n}",) for part in (message("user", turn), message("assistant", "ok"))
    ]
    return {
        "question_id": f"q{n}",
        "model_a": MODELS[n % 4],
        "model_b": MODELS[(n + 1) % 4],
        "winner": ["model_a", "model_b", "tie", "tie (bothbad)"][n % 4],
        "conversation_a": talk,
        "conversation_b": talk,
        "turn": len(turns) or 1,
        "anony": True,
        "tstamp": 1.7e9 + n,
        **changes,
    }


# check


def test_check_prints_what_is_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        vote(n, prompt=[f"p{n % 3}"], language=["日本語", "English"][n % 2], weight=2.0, tstamp=n) for n in range(8)
    ]
    path = save(tmp_path / "v.parquet", rows)
    assert main(["check", str(path)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        str(path),
        "votes 8",
        "models 4",
        "votes per model min 4, median 4, max 4",
        "fewest votes alpha 4, beta 4, delta 4",
        "winner model_a 2 (25.0%)",
        "winner model_b 2 (25.0%)",
        "winner tie 2 (25.0%)",
        "winner tie (bothbad) 2 (25.0%)",
        "distinct prompts 3; 5 votes repeat one",
        "turns 1 8 (100.0%)",
        "languages 日本語 4 (50.0%), English 4 (50.0%)",
        "time 1970-01-01 00:00:00 to 1970-01-01 00:00:07, sorted",
        "weights min 2, mean 2, max 2",
        "no problems",
    ]
    assert main(["check", str(save(tmp_path / "v.parquet", rows[:4]))]) == 0
    assert "3; 1 vote repeats one" in capsys.readouterr().out


def test_check_lists_every_problem_up_to_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [vote(n) for n in range(6)] + [vote(6, winner="A"), vote(7, model_a="alpha")] + [vote(0, winner="B")] * 5
    path = save(tmp_path / "v.jsonl", rows)
    assert main(["check", str(path), "--limit", "3", "--quiet"]) == 2
    out = capsys.readouterr().out
    assert "problems: 7 (winner 6, same model twice 1)" in out
    assert "line 7: unknown winner 'A'" in out
    assert "line 8: model_a and model_b are both 'alpha'" in out
    assert out.endswith("... and 4 more\n")
    with pytest.raises(SystemExit, match="2"):
        main(["check", str(path), "--limit", "-1", "--quiet"])
    assert "--limit: must be a whole number of at least 0, got '-1'" in capsys.readouterr().err
    report = check_votes(path)
    assert (report.votes, report.bad_rows, len(report.problems)) == (6, 7, 7)


def test_check_counts_across_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2l.votes.json_lines._BLOCK_BYTES", 400)
    rows = [vote(n, prompt=[f"p{n % 7}"], tstamp=100 - n, weight=n + 1) for n in range(40)]
    report = check_votes(save(tmp_path / "v.jsonl", rows))
    assert (report.votes, report.prompts, report.time_sorted) == (40, 7, False)
    assert report.models == dict.fromkeys(MODELS, 20)
    assert (report.times, report.weights) == ((61, 100), (1, 820, 40))
    assert "votes are not sorted by time" in report.notes


def test_check_names_the_column_that_may_be_the_prompt(tmp_path: Path) -> None:
    rows = [{"promt" if key == "prompt" else key: value for key, value in vote(n).items()} for n in range(3)]
    note = "no prompt column (did you mean 'promt'?): good for leaderboards, not for training"
    assert note in check_votes(save(tmp_path / "misspelt.jsonl", rows)).notes
    rows = [{key: value for key, value in vote(n).items() if key != "prompt"} for n in range(3)]
    assert note.replace(" (did you mean 'promt'?)", "") in check_votes(save(tmp_path / "without.jsonl", rows)).notes


def test_check_of_nothing_and_of_odd_times(tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text("prompt,model_a,model_b,winner\n")
    report = check_votes(tmp_path / "v.csv")
    assert (report.problems, report.is_fit) == (["holds no votes"], False)
    report = check_votes(save(tmp_path / "v.jsonl", [vote(0, prompt=None, tstamp=1.7e12)]))
    assert report.is_fit
    assert any("milliseconds" in note for note in report.notes)
    assert any("no prompt" in note for note in report.notes)


def test_a_faulty_command_line_ends_with_2_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path / "v.jsonl", [vote(n) for n in range(4)])
    (tmp_path / "bad.json").write_text('{"a": 1}')
    split = ["split", str(path), "--train-output", str(tmp_path / "t.csv"), "--val-output"]
    for argv, says in [
        (["check", str(tmp_path / "no.jsonl")], "no such file"),
        (["check", str(path), "--model-list", str(tmp_path / "bad.json")], "a model list is a JSON list of names"),
        (["import", str(path), "--output", str(tmp_path / "v.txt")], "unknown kind of file"),
        ([*split, str(tmp_path / "v.csv"), "--by", "time", "--val", "2"], "no column 'tstamp' to split by"),
        (
            [*split, str(tmp_path / "v.csv"), "--by", "prompt", "--val", "4"],
            "4 validation votes cannot be taken",
        ),
        ([*split, str(tmp_path / "t.csv"), "--by", "prompt", "--val", "1"], "name two files"),
    ]:
        with pytest.raises(SystemExit) as caught:
            run(main, argv)
        assert caught.value.code == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        assert says in error
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bad.json", "v.jsonl"]


# import


@pytest.mark.parametrize("output", ENDINGS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_an_arena_export_becomes_votes(ending: str, output: str, tmp_path: Path) -> None:
    battles = [battle(0), battle(1, "first", "second\nline"), battle(2, ""), battle(3, winner="both_bad")]
    path = save(tmp_path / f"arena{ending}", battles)
    assert main(["import", str(path), "--output", str(tmp_path / f"votes{output}"), "--quiet"]) == 0
    rows = rows_of(tmp_path / f"votes{output}")
    assert [row["prompt"] for row in rows] == [["question 0"], ["first", "second\nline"], [""], ["question 3"]]
    assert [row["winner"] for row in rows] == ["model_a", "model_b", "tie", "tie (bothbad)"]
    kept = ("question_id", "model_a", "model_b", "turn", "anony", "tstamp")
    assert [[row[name] for name in kept] for row in rows] == [[row[name] for name in kept] for row in battles]
    measures = {f"{name}_{side}" for name in ("length", "headers", "lists", "bold", "code", "reveals") for side in "ab"}
    field = {"same_organisation", "repeated_prompt", "battle", "identity_revealed"}
    assert set(rows[0]) == {"prompt", "winner", *kept, *measures, *field}
    assert [(int(row["length_a"]), int(row["code_b"])) for row in rows] == [(2, 0), (6, 0), (2, 0), (2, 0)]


def test_an_import_measures_the_answers_of_both_sides(tmp_path: Path) -> None:
    answer = (
        "# Title\n\nSome **bold** and __more__ text.\n\n- one\n  * two\n3. three\n\n## Code\n\n"
        "```python\n# no header\n- no list\n**no** bold\n```\n\n#hashtag, 2.5 and **open\n~~~\nunclosed"
    )
    talks = {
        "conversation_a": [message("user", "# hi\n- a"), message("assistant", answer), message("assistant", "- four")],
        "conversation_b": [message("user", "hi"), message("assistant", 3)],
    }
    import_votes(save(tmp_path / "m.jsonl", [battle(0, **talks), battle(1)]), tmp_path / "v.parquet")
    first, second = rows_of(tmp_path / "v.parquet")
    assert first["length_a"] == len(answer) + len("\n\n- four")
    assert [first[f"{name}_a"] for name in ("headers", "lists", "bold", "code")] == [2, 3, 2, 2]
    assert first["length_b"] is None
    assert second["length_b"] == 2
    import_votes(tmp_path / "v.parquet", tmp_path / "w.parquet")
    assert rows_of(tmp_path / "w.parquet") == [first, second]


def test_an_export_in_parts_with_times_of_its_own_kind_becomes_votes(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image", "text": None}, {"type": "text", "text": "here"}]
    battles = [
        battle(n, timestamp=n, conversation_a=[message("user", parts), message("assistant", [])]) for n in range(3)
    ]
    table = pa.Table.from_pylist(battles).drop_columns(["tstamp"])
    table = table.set_column(
        table.schema.names.index("timestamp"), "timestamp", table["timestamp"].cast(pa.timestamp("s"))
    )
    pq.write_table(table.append_column("full_conversation", table["conversation_a"]), tmp_path / "a.parquet")
    import_votes(tmp_path / "a.parquet", tmp_path / "v.parquet")
    with open_votes(tmp_path / "v.parquet") as store:
        assert store.prompts() == [["look\n[image]\nhere"]] * 3
        assert store.tstamps().tolist() == [0, 1, 2]  # type: ignore[union-attr]
        assert "full_conversation" not in store.columns


def test_conversations_may_be_json_text_or_mix_kinds_of_content(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "in parts"}]
    mixed = [battle(0), battle(1, parts), battle(2, "a", parts)]
    import_votes(save(tmp_path / "m.jsonl", mixed), tmp_path / "v.jsonl")
    assert [row["prompt"] for row in rows_of(tmp_path / "v.jsonl")] == [["question 0"], ["in parts"], ["a", "in parts"]]


def test_a_time_that_cannot_be_read_is_named_and_one_that_is_missing_is_kept(tmp_path: Path) -> None:
    battles = [battle(0, timestamp="2024-01-01"), battle(1, timestamp=None), battle(2, timestamp="2024-13-01")]
    for one in battles:
        del one["tstamp"]
    out = tmp_path / "v.parquet"
    with pytest.raises(InputError, match="line 3: tstamp is nan; it must be seconds since 1970"):
        import_votes(save(tmp_path / "a.jsonl", battles), out)
    done = import_votes(tmp_path / "a.jsonl", out, drop_bad=True)
    assert (done.rows, done.dropped) == (2, 1)
    assert pq.read_table(out)["tstamp"].to_pylist() == [1704067200.0, None]


def test_a_row_that_cannot_become_a_vote_is_named_or_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    battles = [battle(0), battle(1, winner="both"), battle(2, conversation_a=[message("assistant", "hello")])]
    path = save(tmp_path / "a.jsonl", battles)
    out = tmp_path / "v.csv"
    with pytest.raises(InputError, match="line 2: unknown winner 'both'"):
        main(["import", str(path), "--output", str(out)])
    assert not out.exists()
    assert main(["import", str(path), "--output", str(out), "--drop-bad"]) == 0
    assert capsys.readouterr().out == f"{out}: 1 vote, 2 models (2 rows that are not votes left out)\n"
    for wrong in ("{", 3, [1]):
        path = save(tmp_path / "w.jsonl", [battle(0, conversation_a=wrong)])
        with pytest.raises(InputError, match="line 1: conversation_a"):
            import_votes(path, out)


# split


def split(path: Path, tmp_path: Path, *flags: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    outputs = [tmp_path / "train.parquet", tmp_path / "val.jsonl"]
    argv = ["split", str(path), "--train-output", str(outputs[0]), "--val-output", str(outputs[1]), "--quiet"]
    assert main([*argv, *flags]) == 0
    return rows_of(outputs[0]), rows_of(outputs[1])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=st.lists(st.integers(0, 20), min_size=20, max_size=60), val=st.integers(1, 15), seed=st.integers(0, 99))
def test_a_split_by_prompt_keeps_prompts_whole(groups: list[int], val: int, seed: int, tmp_path: Path) -> None:
    rows = [vote(n, prompt=[f"p{g}", "same"], model_a="a", model_b="b") for n, g in enumerate([*groups, 98, 99])]
    flags = ("--by", "prompt", "--val", str(val), "--seed", str(seed))
    train, held = split(save(tmp_path / "v.jsonl", rows), tmp_path, *flags)
    assert not {row["prompt"][0] for row in train} & {row["prompt"][0] for row in held}
    assert abs(len(held) - val) <= max(groups.count(g) for g in groups)
    # Each part keeps the order of the source, and nothing is lost.
    numbers = [[int(row["question_id"][1:]) for row in part] for part in (train, held)]
    assert all(part == sorted(part) for part in numbers)
    assert sorted(numbers[0] + numbers[1]) == list(range(len(rows)))


def test_a_split_by_time_takes_the_newest(tmp_path: Path) -> None:
    times = np.random.default_rng(0).integers(0, 30, 50)
    path = save(tmp_path / "v.csv", [vote(n, tstamp=int(time)) for n, time in enumerate(times)])
    train, held = split(path, tmp_path, "--by", "time", "--val", "13")
    assert (len(train), len(held)) == (37, 13)
    assert max(row["tstamp"] for row in train) <= min(row["tstamp"] for row in held)


def test_the_seed_decides_which_prompts_are_held_out(tmp_path: Path) -> None:
    path = save(tmp_path / "v.jsonl", [vote(n) for n in range(40)])
    flags = ("--by", "prompt", "--val", "10")
    first, again, other = (split(path, tmp_path, *flags, "--seed", seed)[1] for seed in ("1", "1", "2"))
    assert first == again != other
    assert len(first) == len(other) == 10


def test_models_with_few_train_votes_leave_both_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # `chained` has its two votes against `rare` alone, so it falls with it.
    rows = [vote(n, model_a="alpha", model_b="beta", tstamp=n) for n in range(20)]
    for n in (3, 4):
        rows[n] |= {"model_a": "rare", "model_b": "chained"}
    rows[19] |= {"model_a": "new", "model_b": "beta"}
    path = save(tmp_path / "v.jsonl", rows)
    train, held = split(path, tmp_path, "--by", "time", "--val", "4", "--min-votes-per-model", "3")
    assert (len(train), len(held)) == (14, 3)
    assert "removed 3 votes of 3 models with few train votes (chained, new, rare)" in capsys.readouterr().out
    train, held = split(path, tmp_path, "--by", "time", "--val", "4")
    assert (len(train), len(held)) == (16, 3)
    with pytest.raises(InputError, match="'new' is only in the validation part"):
        split(path, tmp_path, "--by", "time", "--val", "4", "--min-votes-per-model", "0")
    with pytest.raises(InputError, match="no train vote is left"):
        split(path, tmp_path, "--by", "time", "--val", "4", "--min-votes-per-model", "99")


def test_votes_of_one_prompt_cannot_be_split_by_it(tmp_path: Path) -> None:
    path = save(tmp_path / "v.jsonl", [vote(n, prompt=["p"]) for n in range(4)])
    with pytest.raises(InputError, match="all votes share one prompt"):
        split(path, tmp_path, "--by", "prompt", "--val", "2")
    path = save(tmp_path / "t.jsonl", [vote(0, tstamp=1), vote(1), vote(2, tstamp=2)])
    with pytest.raises(InputError, match="vote 2 has no tstamp"):
        split(path, tmp_path, "--by", "time", "--val", "1")


def test_an_interrupted_split_leaves_the_old_files(tmp_path: Path) -> None:
    path = save(tmp_path / "v.jsonl", [vote(n) for n in range(8)])
    (tmp_path / "train.jsonl").write_text("old")
    with open_votes(path) as store, pytest.raises(InputError):
        split_votes(
            store,
            by="prompt",
            val=2,
            train_output=tmp_path / "train.jsonl",
            val_output=tmp_path / "v.jsonl" / "val.csv",
        )
    assert (tmp_path / "train.jsonl").read_text() == "old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["train.jsonl", "v.jsonl"]


def test_a_split_states_labels_through_a_model_list(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{n}", "labels": f"[{n % 3} {(n + 1) % 3} 0]"} for n in range(12)]
    (tmp_path / "list.json").write_text(json.dumps(["x", "y", "z"]))
    flags = ("--by", "prompt", "--val", "3", "--model-list", str(tmp_path / "list.json"))
    train, held = split(save(tmp_path / "v.jsonl", rows), tmp_path, *flags)
    assert (len(train), len(held)) == (9, 3)
    assert all(row["model_a"] == "xyz"[int(row["labels"][1])] for row in train + held)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.csv", b"", "is empty"),
        ("v.jsonl", b"", "is empty"),
        ("v.parquet", b"", "is empty"),
        ("v.csv", "prompt,model_a,model_b,winner".encode("utf-16"), "holds no rows"),
        ("v.csv", b"prompt;model_a;model_b;winner", "holds no rows"),
        ("v.jsonl", b'{"n": ' + b"9" * 5000 + b"}", "line 1: is not JSON"),
        ("v.csv", b"model_a,model_b,winner\na,a,tie", "both 'a'; add --drop-bad to leave out"),
    ],
)
def test_a_file_that_cannot_be_read_gets_one_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        main(
            [
                "split",
                str(tmp_path / name),
                "--by",
                "time",
                "--val",
                "1",
                "--train-output",
                "a.csv",
                "--val-output",
                "b.csv",
            ]
        )
    assert "\n" not in str(caught.value)
