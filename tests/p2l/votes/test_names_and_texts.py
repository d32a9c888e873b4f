"""Names and texts as people see them: what is one name, what is text, and what each door says of what is not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from p2l.commands.leaderboard import main as leaderboard
from p2l.commands.votes import main
from p2l.common.errors import InputError, VoteError
from p2l.votes import open_votes, read_columns
from p2l.votes.checking import check_votes
from p2l.votes.importing import ImportOptions, import_votes
from p2l.votes.kinds.texts import unquoted
from tests.p2l.votes_helpers import vote

SPELLINGS = ["ant", "ant ", "\u200bant", "a\u00adnt", "\u00a0ant\t", "an\u2060t"]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()


def lines_file(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_spellings_of_one_name_are_one_model_and_told(tmp_path: Path) -> None:
    rows = [vote(0, model_a=name, model_b="bee") for name in SPELLINGS]
    path = lines_file(tmp_path / "v.jsonl", rows)
    columns = read_columns(path, ["model_a"])
    assert set(columns["model_a"].to_pylist()) == {"ant"}
    report = check_votes(path)
    assert report.models == {"ant": 6, "bee": 6}
    assert any("without invisible letters and blank ends: 'ant ' -> 'ant'" in note for note in report.notes)
    with open_votes(path) as store:
        assert store.model_list == ["ant", "bee"]
    composed = [vote(0, model_a="caf\u00e9", model_b="bee"), vote(1, model_a="cafe\u0301", model_b="bee")]
    assert check_votes(lines_file(path, composed)).models == {"caf\u00e9": 2, "bee": 2}
    twin = lines_file(path, [vote(0, model_a="ant", model_b="ant ")])
    assert any("model_a and model_b are both 'ant'" in problem for problem in check_votes(twin).problems)
    nobody = lines_file(path, [vote(0, model_a="\u200b \u00a0", model_b="ant")])
    assert any("model_a has no name" in problem for problem in check_votes(nobody).problems)


def test_leaderboards_and_stores_tell_the_names_that_they_read_as_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [vote(number, model_a=name, model_b="bee") for number, name in enumerate(("ant", "ant ", "ant\U000e0101"))]
    path = lines_file(tmp_path / "v.jsonl", rows)
    said = "2 names of models read without invisible letters and blank ends: 'ant ' -> 'ant'"
    leaderboard(["--votes", str(path), "--quiet"])
    assert said in "".join(capsys.readouterr())
    open_votes(path).close()
    assert f"{path}: {said}" in capsys.readouterr().err


def test_letters_of_another_script_look_alike(tmp_path: Path) -> None:
    rows = [vote(number, model_a=name, model_b="bee") for number, name in enumerate(("ant", "\u0430nt", "\uff41nt"))]
    (note,) = [note for note in check_votes(lines_file(tmp_path / "v.jsonl", rows)).notes if "differ in" in note]
    assert note.endswith("with the line of FILE: \u0430nt,ant; \uff41nt,ant")


def test_a_rename_of_what_no_model_is_called_is_told(tmp_path: Path) -> None:
    path = lines_file(tmp_path / "v.jsonl", [vote(0, model_a="ant", model_b="bee")])
    (tmp_path / "names.csv").write_text("Bee,bee\nant,cat\n", encoding="utf-8")
    done = import_votes([path], tmp_path / "o.parquet", ImportOptions(rename=tmp_path / "names.csv"))
    assert done.notes == ("--rename: no model is called 'Bee'",)
    assert rows_of(tmp_path / "o.parquet")[0]["model_a"] == "cat"


def test_names_that_look_alike_are_merged_by_the_line_that_check_prints(tmp_path: Path) -> None:
    rows = [
        vote(0, model_a=name, model_b="bee") for name in ("gpt-4o", "gpt-4o", "GPT-4o", "gpt_4o, mini", "gpt 4o mini")
    ]
    path = lines_file(tmp_path / "v.jsonl", rows)
    notes = [note for note in check_votes(path).notes if "differ in case" in note]
    assert len(notes) == 2
    assert notes[0].endswith("with the line of FILE: GPT-4o,gpt-4o")
    rename = tmp_path / "names.csv"
    rename.write_text("\n".join(note.rpartition("FILE: ")[2] for note in notes) + "\n", encoding="utf-8")
    done = import_votes([path], tmp_path / "merged.parquet", ImportOptions(rename=rename))
    assert done.models == 3
    assert {row["model_a"] for row in rows_of(tmp_path / "merged.parquet")} == {"gpt-4o", "gpt 4o mini"}
    rename.write_text("only one name\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"names.csv: line 1: must be two names"):
        import_votes([path], tmp_path / "merged.parquet", ImportOptions(rename=rename))


FAULTY = {
    '"[""Hi \\ud83d"", ""x""]"': "prompt holds half of a surrogate pair",
    '"[""Hi"", null]"': "turn 2 of prompt is null",
    '"a\0b"': "prompt holds a NUL character",
    '"[{""role"": ""user"", ""content"": 3}]"': "a message holds neither text nor parts with text",
}


@pytest.mark.parametrize("cell", FAULTY)
def test_a_prompt_that_is_no_text_is_named_or_dropped_by_every_command(
    cell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "v.csv"
    path.write_text(f"prompt,model_a,model_b,winner\nfine,ant,bee,tie\n{cell},ant,bee,tie\nalso,ant,bee,tie\n")
    said = FAULTY[cell]
    assert main(["check", str(path), "--quiet"]) == 2
    assert f"row 3: {said}" in capsys.readouterr().out
    sides = ["--train-output", str(tmp_path / "t.csv"), "--val-output", str(tmp_path / "w.csv")]
    for argv in (
        ["import", "--output", str(tmp_path / "o.csv"), str(path)],
        ["split", "--by", "prompt", "--val", "1", *sides, str(path)],
    ):
        with pytest.raises(VoteError, match=rf"row 3: {said}.*; add --drop-bad"):
            main([*argv, "--quiet"])
    assert main(["import", str(path), "--output", str(tmp_path / "o.csv"), "--drop-bad", "--quiet"]) == 0
    assert "2 votes, 2 models (1 row that is not a vote left out)" in capsys.readouterr().out


def test_surrogates_in_any_json_of_a_cell_are_one_row_refused(tmp_path: Path) -> None:
    talk = '"[{""role"": ""user"", ""content"": ""%s""}, {""role"": ""assistant"", ""content"": ""yes""}]"'
    text = "conversation_a,conversation_b,model_a,model_b,winner\n"
    for said in ("hi", "half \\ud83d"):
        text += f"{talk % said},{talk % said},ant,bee,tie\n"
    (tmp_path / "v.csv").write_text(text)
    with pytest.raises(VoteError, match="row 3: conversation_a holds half of a surrogate pair"):
        import_votes([tmp_path / "v.csv"], tmp_path / "o.parquet")
    assert import_votes([tmp_path / "v.csv"], tmp_path / "o.parquet", drop_bad=True).dropped == 1


ANSWERS = {
    "response_a,response_b,prompt,model_a,model_b,winner": '"[""half \\ud83d""]",x,q,ant,bee,tie',
    "prompt,chosen,chosen_model,rejected,rejected_model": (
        'q,"[{""role"":""assistant"",""content"":""\\uDEAD""}]",ant,x,bee'
    ),
    "id,model_a,model_b,prompt,response_a,response_b,winner_model_a,winner_model_b,winner_tie": (
        '1,ant,bee,"[""q""]",x,"[""half \\ud83d""]",1,0,0'
    ),
    "conversation_a,conversation_b,model_a,model_b,winner": (
        '"[{""role"":""user"",""content"":""q""}]","[{""role"":""assistant"",""content"":""\\ud83d""}]",ant,bee,tie'
    ),
    "instruction,output_1,generator_1,output_2,generator_2,preference": 'q,"[""half \\ud83d""]",ant,x,bee,1',
}


@pytest.mark.parametrize("header", ANSWERS)
def test_an_answer_with_half_of_a_letter_is_no_vote(header: str, tmp_path: Path) -> None:
    cells = ANSWERS[header]
    path = tmp_path / "v.csv"
    path.write_text(f"{header}\n{cells.replace('ud83d', 'u0041').replace('uDEAD', 'u0041')}\n{cells}\n")
    with pytest.raises(VoteError, match=r"row 3: \w+ holds half of a surrogate pair, which is not text"):
        import_votes([path], tmp_path / "o.parquet")
    done = import_votes([path], tmp_path / "o.parquet", drop_bad=True)
    assert (done.rows, done.dropped) == (1, 1)


def test_an_escape_in_an_answer_that_is_a_text_of_json_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text(
        'prompt,model_a,model_b,response_a,response_b,winner\nq,ant,bee,"{""emoji"": ""\\ud83d""}",x,tie\n'
    )
    import_votes([tmp_path / "v.csv"], tmp_path / "o.parquet")
    assert [row["length_a"] for row in rows_of(tmp_path / "o.parquet")] == [len('{"emoji": "\\ud83d"}')]


def test_a_list_of_turns_that_is_cut_is_no_words_of_a_prompt(tmp_path: Path) -> None:
    columns = "id,model_a,model_b,prompt,response_a,response_b,winner_model_a,winner_model_b,winner_tie"
    (tmp_path / "v.csv").write_text(f'{columns}\n1,ant,bee,"[""Hi"", ""th",x,y,1,0,0\n2,ant,bee,"[""Hi""]",x,y,1,0,0\n')
    with pytest.raises(VoteError, match="row 2: prompt begins like a list of turns, and is not JSON"):
        import_votes([tmp_path / "v.csv"], tmp_path / "o.parquet")
    assert import_votes([tmp_path / "v.csv"], tmp_path / "o.parquet", drop_bad=True).dropped == 1


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_row_that_is_too_long_is_named_or_dropped(ending: str, tmp_path: Path) -> None:
    rows = [vote(0), vote(1, prompt="x" * (17 << 20)), vote(2)]
    path = tmp_path / f"v.{ending}"
    if ending == "csv":
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    else:
        lines_file(path, rows)
    with pytest.raises(VoteError, match=r"(line 2|row 3): .*is longer than 16 MiB; leave it out"):
        import_votes([path], tmp_path / "o.parquet")
    done = import_votes([path], tmp_path / "o.parquet", drop_bad=True)
    assert (done.rows, done.dropped) == (2, 1)


def test_prompts_of_several_types_are_dropped_one_by_one(tmp_path: Path) -> None:
    prompts: list[Any] = ["Hi", ["Hi", {"role": "user", "content": 3}], ["Hi", "half \ud83d"], ["Hi", "then?"]]
    rows = [vote(number, prompt=prompt) for number, prompt in enumerate(prompts)]
    path = lines_file(tmp_path / "v.jsonl", rows)
    with pytest.raises(VoteError, match=r"line 2: prompt must be a list of .role, content. messages"):
        import_votes([path], tmp_path / "o.parquet")
    assert import_votes([path], tmp_path / "o.parquet", drop_bad=True).dropped == 2
    assert [row["prompt"] for row in rows_of(tmp_path / "o.parquet")] == [["Hi"], ["Hi", "then?"]]
    assert len(read_columns(path, ["model_a"])["model_a"]) == 4  # what is not asked for is no fault


def test_a_line_that_is_no_text_is_dropped_from_rows_of_any_kind(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
    row = {"question_id": 81, "model_a": "ant", "model_b": "bee", "winner": "tie", "judge": "gpt-4", "turn": 1}
    rows = [{**row, "conversation_a": talk, "conversation_b": talk}, {**row, "judge": "\udc00"}]
    done = import_votes([lines_file(tmp_path / "v.jsonl", rows)], tmp_path / "o.parquet", drop_bad=True)
    assert (done.rows, done.dropped) == (1, 1)
    graded = [{"question": "Q", "model": "ant", "score": 1}, {"question": "half \ud83d", "model": "ant", "score": 1}]
    path = lines_file(tmp_path / "s.jsonl", graded)
    with pytest.raises(VoteError, match="line 2: question holds half of a surrogate pair"):
        import_votes([path], tmp_path / "o.parquet")
    assert import_votes([path], tmp_path / "o.parquet", drop_bad=True).dropped == 1


def test_turns_that_are_no_text_leave_a_marker_and_are_counted(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": "data:..."}}]
    rows = [vote(0, prompt=[{"role": "user", "content": parts}, {"role": "assistant", "content": "A cat"}]), vote(1)]
    rows[1]["prompt"] = [{"role": "user", "content": "Hi"}]
    done = import_votes([lines_file(tmp_path / "v.jsonl", rows)], tmp_path / "o.parquet")
    assert [row["prompt"] for row in rows_of(tmp_path / "o.parquet")] == [["Look\n[image]"], ["Hi"]]
    assert done.notes == ("1 prompt with parts that are no text: markers such as [image] stand for them",)


LISTS = {  # as pandas and NumPy write lists into a cell
    "['Hi there' 'then?']": ["Hi there", "then?"],
    "['Hi'\n 'a \"word\"' \"it's\"]": ["Hi", 'a "word"', "it's"],
    "[{'content': 'Hi', 'role': 'user'}\n {'content': 'Yo', 'role': 'assistant'}]": ["Hi"],
    "[{'content': array(['Hi', 'you'], dtype=object), 'role': 'user'}]": ["Hi\nyou"],
    '["two\nlines"]': ["two\nlines"],
    "['a, b', 'c: {d}']": ["a, b", "c: {d}"],
    "[it's fine]": ["[it's fine]"],
}


def test_lists_of_numpy_are_lists_of_turns(tmp_path: Path) -> None:
    quoted = ['"' + cell.replace('"', '""') + '"' for cell in LISTS]
    (tmp_path / "v.csv").write_text(
        "prompt,model_a,model_b,winner\n" + "".join(f"{cell},ant,bee,tie\n" for cell in quoted)
    )
    import_votes([tmp_path / "v.csv"], tmp_path / "o.parquet")
    assert [row["prompt"] for row in rows_of(tmp_path / "o.parquet")] == list(LISTS.values())


def test_words_that_only_look_like_json_stay_the_words_of_a_prompt(tmp_path: Path) -> None:
    cells = ["[1, 2, 3]", "[see below]", '{"name": "x"}', '[{"id": 1}]', "[]"]
    quoted = ['"' + cell.replace('"', '""') + '"' for cell in cells]
    (tmp_path / "v.csv").write_text(
        "prompt,model_a,model_b,winner\n" + "".join(f"{cell},ant,bee,tie\n" for cell in quoted)
    )
    import_votes([tmp_path / "v.csv"], tmp_path / "o.parquet")
    assert [row["prompt"] for row in rows_of(tmp_path / "o.parquet")] == [[cell] for cell in cells]


def test_prompts_of_ten_megabytes_are_read_or_refused_by_one_line(tmp_path: Path) -> None:
    long = "word " * 2_000_000
    (tmp_path / "v.jsonl.gz").write_bytes(gzip.compress(json.dumps(vote(0, prompt=[long])).encode() + b"\n", 1))
    assert import_votes([tmp_path / "v.jsonl.gz"], tmp_path / "o.parquet").rows == 1
    (tmp_path / "v.csv").write_text(f"prompt,model_a,model_b,winner\n{long},ant,bee,tie\n")
    assert import_votes([tmp_path / "v.csv"], tmp_path / "o.parquet").rows == 1


@pytest.mark.parametrize("quotes", ["\\'", "'", "'a", "\"'"])
def test_a_long_cell_of_quotes_without_an_end_is_read_in_one_pass(quotes: str) -> None:
    """To look for the end of each anew would take minutes."""
    cell = "['" + quotes * 20_000 + "x]"
    assert unquoted(cell) == cell
