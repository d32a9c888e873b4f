"""Items that rest on the user's documents."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coeval.documents import Passage, check_quotes, passage_of, read_passages
from coeval.errors import RunError
from coeval.parsing import MalformedAnswerError
from tests.coeval.helpers import STATIC_TASK, coeval, model, records, run_of, write_config

MANUAL = "\n\n".join(
    f"Chapter {n}. The valve of pump {n} opens at {n} bar. It must be closed by hand. " + "Mind the gap. " * 80
    for n in range(1, 6)
)


def task_on(folder: Path, **keys: Any) -> dict[str, Any]:
    (folder / "manual.md").write_text(MANUAL)
    sampling = {"target": "all", "nuance": [1], "total": 5}
    return {**STATIC_TASK, "sampling": sampling, "documents": [str(folder / "*.md")], **keys}


def test_items_rest_on_passages_that_they_quote(tmp_path: Path) -> None:
    models = [model("ada", roles=["teacher"]), model("bee"), model("jay", roles=["judge"])]
    config = write_config(tmp_path, models, [task_on(tmp_path)])
    assert coeval("run", "--config", config) == 0
    items = records(run_of(tmp_path), "data_generation")
    for item in items:
        source = item["source"]
        passage = MANUAL[source["start"] : source["end"]]
        assert source["document"] == str(tmp_path / "manual.md")
        assert all(quote in passage for quote in item["quotes"])
        assert "passage" not in item
    assert len({item["source"]["start"] for item in items}) == len(read_passages([str(tmp_path / "*.md")])) == 5


def test_a_teacher_that_quotes_what_is_not_there_makes_no_item(tmp_path: Path) -> None:
    item = json.dumps(
        {"prompt": "When does it open?", "response": "At 9 bar.", "quotes": ["It opens at 9 bar, always."]}
    )
    models = [model("ada", roles=["teacher"], text=item), model("bee"), model("jay", roles=["judge"])]
    assert coeval("run", "--config", write_config(tmp_path, models, [task_on(tmp_path)])) == 1
    assert "the quote 'It opens at 9 bar, always.' is not in the passage" in run_of(tmp_path).errors.read_text()


def test_documents_that_are_not_there_are_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = [model("ada", roles=["teacher"]), model("bee"), model("jay", roles=["judge"])]
    config = write_config(tmp_path, models, [task_on(tmp_path, documents=[str(tmp_path / "*.pdf")])])
    assert coeval("run", "--config", config) == 1
    assert "tasks.mail.documents[0]: names no file" in capsys.readouterr().err
    (tmp_path / "a.pdf").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunError, match="no text in UTF-8"):
        read_passages([str(tmp_path / "a.pdf")])


@given(parts=st.lists(st.text("ab .!\n", max_size=900), max_size=9))
def test_passages_are_the_document_cut_in_order(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.txt"
    path.write_text(text := "\n\n".join(parts))
    if not text.strip():
        with pytest.raises(RunError, match="no text is there"):
            read_passages([str(path)])
        return
    passages = read_passages([str(path)])
    assert "".join("".join(one.text for one in passages).split()) == "".join(text.split())
    assert all(text[one.start : one.start + len(one.text)] == one.text for one in passages)


@pytest.mark.parametrize("text", ["x" * 9001, "a table " * 900, "|" + "-" * 5000, "阀门在两巴时打开。" * 900])
def test_no_passage_is_longer_than_a_teacher_reads(tmp_path: Path, text: str) -> None:
    (tmp_path / "long.txt").write_text(text)
    passages = read_passages([str(tmp_path / "long.txt")])
    assert "".join(one.text for one in passages) == text
    assert all(0 < len(one.text) <= 2000 for one in passages)


def test_every_passage_comes_before_one_comes_again() -> None:
    passages = [Passage("d", n, str(n)) for n in range(4)]
    drawn = [passage_of(passages, number, random.Random(3)).start for number in range(1, 9)]
    assert sorted(drawn[:4]) == [0, 1, 2, 3]
    assert drawn[4:] == drawn[:4]


@pytest.mark.parametrize(
    ("quotes", "why"),
    [
        (None, "quotes nothing"),
        ([], "quotes nothing"),
        ([3], "quotes nothing"),
        (["a valve"], "too short to rest on"),
        (["The valve opens at three bar."], "is not in the passage"),
    ],
)
def test_quotes_are_checked(quotes: Any, why: str) -> None:
    passage = "The “valve”  opens\nat two bar. Then it closes."
    assert check_quotes('the "valve" opens at two bar.', passage) == ['the "valve" opens at two bar.']
    with pytest.raises(MalformedAnswerError, match=why):
        check_quotes(quotes, passage)
