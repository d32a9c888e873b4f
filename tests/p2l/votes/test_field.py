"""An import says of each vote what is known of its field, and a leaderboard controls for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from p2l.commands.leaderboard import main as leaderboard
from p2l.commands.votes import main
from p2l.votes.kinds.self_names import maker_of
from tests.conftest import write_votes


def export(number: int, answer: str = "Fine.", **changes: Any) -> dict[str, Any]:
    talk = [{"role": "user", "content": f"Question {number % 4}?"}]
    row = {"model_a": "gpt-4o", "model_b": "claude-3-opus", "winner": ["model_a", "model_b", "tie"][number % 3]}
    for side, text in (("a", answer), ("b", "Well.")):
        row[f"conversation_{side}"] = [*talk, {"role": "assistant", "content": text}]  # type: ignore[assignment]
    return {**row, "anony": True, "tstamp": 1000.0 + number, **changes}


def test_an_import_tells_organisations_repetitions_battles_and_names(tmp_path: Path) -> None:
    rows = [
        export(0),
        export(1, "I am ChatGPT, made by OpenAI.", anony=False),
        export(0, model_b="openai/o1-preview"),
        export(0, model_a="vendor/x-1", model_b="vendor/x-2"),
    ]
    path = write_votes(tmp_path / "export.jsonl", rows)
    main(["import", str(path), "--output", str(tmp_path / "votes.parquet"), "--quiet"])
    votes = pq.read_table(tmp_path / "votes.parquet").to_pylist()
    assert [vote["same_organisation"] for vote in votes] == ["different", "different", "same", "same"]
    assert [vote["repeated_prompt"] for vote in votes] == ["first", "first", "repeated", "repeated"]
    assert [vote["battle"] for vote in votes] == ["blind", "direct", "blind", "blind"]
    assert [vote["identity_revealed"] for vote in votes] == [False, True, False, False]
    assert [(vote["reveals_a"], vote["reveals_b"]) for vote in votes] == [(0, 0), (1, 0), (0, 0), (0, 0)]


def test_a_public_export_with_judges_says_which_battles_were_blind(tmp_path: Path) -> None:
    rows = [export(number, judge=f"user-{number}", turn=1, anony=number != 2) for number in range(4)]
    path = write_votes(tmp_path / "export.jsonl", rows)
    main(["import", str(path), "--output", str(tmp_path / "votes.parquet"), "--quiet"])
    votes = pq.read_table(tmp_path / "votes.parquet").to_pylist()
    assert [vote["battle"] for vote in votes] == ["blind", "blind", "direct", "blind"]


def test_a_log_of_battles_says_which_were_blind(tmp_path: Path) -> None:
    rows = []
    for number, models in enumerate((["", ""], ["ant", "bee"])):
        states = [
            {"model_name": name, "messages": [["USER", "Hi"], ["ASSISTANT", "Yo"]], "offset": 0, "conv_id": f"{number}"}
            for name in ("ant", "bee")
        ]
        rows.append({"tstamp": 1000.0 + number, "type": "leftvote", "models": models, "states": states, "ip": "::1"})
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    main(["import", str(path), "--output", str(tmp_path / "votes.parquet"), "--quiet"])
    votes = pq.read_table(tmp_path / "votes.parquet").to_pylist()
    assert [vote["battle"] for vote in votes] == ["blind", "direct"]


def test_a_leaderboard_controls_for_the_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["gpt-4o", "o1-mini", "claude-3-opus"]
    rows = [export(n, model_a=names[n % 3], model_b=names[(n + 1 + n % 2) % 3]) for n in range(120)]
    main(["import", str(write_votes(tmp_path / "e.jsonl", rows)), "--output", str(tmp_path / "v.parquet"), "--quiet"])
    leaderboard(["--votes", str(tmp_path / "v.parquet"), "--control", "same_organisation,repeated_prompt", "--quiet"])
    out = capsys.readouterr().out
    assert "same_organisation" in out
    assert "repeated_prompt" in out


@pytest.mark.parametrize(
    ("model", "maker"),
    [
        ("gpt-4o-2024-08-06", "openai"),
        ("o1-mini", "openai"),
        ("claude-3-opus", "anthropic"),
        ("meta-llama/Llama-3.1-70B", "meta"),
        ("vendor/x-1", "vendor"),
        ("ant-7b", "ant"),
    ],
)
def test_a_name_tells_its_maker(model: str, maker: str) -> None:
    assert maker_of(model) == maker
