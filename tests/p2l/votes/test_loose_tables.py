"""Tables whose columns or winners are written another way than the schema has them: read, and said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from p2l.commands.votes import main
from p2l.common.errors import VoteError
from p2l.votes import read_votes
from p2l.votes.importing import ImportOptions, import_votes

VOTES = "prompt,model_a,model_b,winner"


def imported(path: Path, text: str, **options: Any) -> tuple[list[dict[str, Any]], tuple[str, ...], str]:
    path.write_text(text, encoding="utf-8")
    done = import_votes([path], path.with_name("o.parquet"), ImportOptions(**options))
    return pq.read_table(path.with_name("o.parquet")).to_pylist(), done.notes, done.about


@pytest.mark.parametrize(
    ("winners", "meant"),
    [
        (("ant", "bee", "tie"), ("model_a", "model_b", "tie")),
        (("A", "b", "Both bad"), ("model_a", "model_b", "tie (bothbad)")),
        (("left", "right", "draw"), ("model_a", "model_b", "tie")),
    ],
)
def test_winners_are_read_by_what_they_mean(winners: tuple[str, ...], meant: tuple[str, ...], tmp_path: Path) -> None:
    text = f"{VOTES},weight\n" + "".join(f"Hi {word},ant,bee,{word},2\n" for word in winners)
    rows, notes, _ = imported(tmp_path / "v.csv", text)
    assert [row["winner"] for row in rows] == list(meant)
    assert {row["weight"] for row in rows} == {2}
    assert notes == ("winners are names of models or words such as 'A' and 'left', read as the sides that they mean",)
    read = [
        row["winner"] for batch in read_votes(tmp_path / "v.csv", columns=["winner"]) for row in batch.batch.to_pylist()
    ]
    assert read == list(meant)


def test_a_name_comes_before_a_word(tmp_path: Path) -> None:
    rows, _, _ = imported(tmp_path / "v.csv", f"{VOTES}\nHi,b,a,a\nHo,a,b,a\n")
    assert [row["winner"] for row in rows] == ["model_b", "model_a"]


def test_a_word_that_means_nothing_among_names_is_a_bad_row(tmp_path: Path) -> None:
    text = f"{VOTES}\nHi,ant,bee,ant\nHo,ant,bee,neither\nHe,ant,bee,bee\n"
    with pytest.raises(VoteError, match=r"v\.csv: row 3: unknown winner 'neither'"):
        imported(tmp_path / "v.csv", text)
    rows, _, _ = imported(tmp_path / "v.csv", text, drop_bad=True)
    assert [row["winner"] for row in rows] == ["model_a", "model_b"]


def test_columns_in_capitals_or_with_blanks_are_those_of_votes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, notes, _ = imported(tmp_path / "v.csv", "Prompt,Model A,MODEL_B, Winner\nHi,ant,bee,tie\n")
    assert (rows[0]["prompt"], rows[0]["model_a"], rows[0]["winner"]) == (["Hi"], "ant", "tie")
    assert notes == ("names of columns are read in small letters",)
    assert main(["check", str(tmp_path / "v.csv"), "--quiet"]) == 0
    assert "names of columns are read in small letters" in capsys.readouterr().err


def test_columns_in_capitals_are_those_of_a_kind_and_names_of_models_stay(tmp_path: Path) -> None:
    rows, _, about = imported(tmp_path / "wide.csv", "Question,GPT-4,Claude\nQ,1,0\n")
    assert [(row["model"], row["score"]) for row in rows] == [("GPT-4", 1.0), ("Claude", 0.0)]
    assert "columns Question -> question" in about
    kaggle = "ID,MODEL_A,MODEL_B,PROMPT,RESPONSE_A,RESPONSE_B,WINNER_MODEL_A,WINNER_MODEL_B,WINNER_TIE\n"
    rows, _, about = imported(tmp_path / "k.csv", f"{kaggle}1,ant,bee,Hi,x,y,0,1,0\n")
    assert (rows[0]["model_a"], rows[0]["winner"]) == ("ant", "model_b")
    assert about.startswith("Kaggle's LMSYS table of votes")


def test_a_table_that_is_none_is_refused_by_its_own_columns(tmp_path: Path) -> None:
    with pytest.raises(VoteError, match="no column 'model_a'; columns: Prompt, Answer"):
        imported(tmp_path / "v.csv", "Prompt,Answer\nHi,Yo\n")
