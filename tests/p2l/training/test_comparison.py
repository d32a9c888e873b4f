"""Whether a model reads prompts, on outputs whose answer is known."""

import json
from pathlib import Path

import numpy as np
import pytest

from p2l.training.facts import COMPARISON_FILE, compare, write_comparison
from tests.conftest import write_votes

MODELS = ["ant", "bee"]


def votes(count: int) -> list[dict[str, object]]:
    """Sums are won by ant, poems by bee: half of the votes each."""
    rows: list[dict[str, object]] = []
    for number in range(count):
        kind = "sum" if number % 2 else "poem"
        winner = "model_a" if kind == "sum" else "model_b"
        rows.append({"prompt": f"{kind} {number // 2}", "model_a": "ant", "model_b": "bee", "winner": winner})
    return rows


def finished(folder: Path, strength: float, *, noise: float = 0.0) -> tuple[Path, str]:
    """A run's folder whose model says `strength` for the right model of each held-out vote."""
    rng = np.random.default_rng(0)
    (folder / "model_list.json").write_text(json.dumps(MODELS), encoding="utf-8")
    lines = []
    for row in votes(200):
        won = row["winner"] == "model_a"
        right = (strength if won else -strength) + noise * float(rng.standard_normal())
        line = {**row, "labels": [0, 1, 0] if won else [1, 0, 0], "betas": [right, 0.0]}
        lines.append(json.dumps(line) + "\n")
    (folder / "eval_output.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder, str(write_votes(folder / "train.jsonl", votes(300)))


def test_a_model_that_reads_prompts_is_said_to(tmp_path: Path) -> None:
    found = write_comparison(*finished(tmp_path, 2.0), "bt")
    assert found.votes == found.prompts == 200
    assert found.one_leaderboard["Loss"] == pytest.approx(np.log(2), abs=1e-6)
    assert found.model["Loss"] == pytest.approx(np.log1p(np.exp(-2)), abs=1e-6)
    assert found.gain.estimate == pytest.approx(found.one_leaderboard["Loss"] - found.model["Loss"])
    assert found.model["Accuracy"] == 1.0
    assert "The model reads prompts" in found.to_text()
    assert json.loads((tmp_path / COMPARISON_FILE).read_text(encoding="utf-8")) == found.to_dict()


def test_a_model_that_is_worse_is_called_worse(tmp_path: Path) -> None:
    text = compare(*finished(tmp_path, -2.0), "bt").to_text()
    assert "worse than one leaderboard" in text
    assert "do not use it" in text


def test_a_model_that_may_be_lucky_is_not_praised(tmp_path: Path) -> None:
    found = compare(*finished(tmp_path, 0.0, noise=0.05), "bt")
    assert found.gain.lower < 0 < found.gain.upper
    assert "do not show" in found.to_text()


def test_votes_on_one_prompt_are_one_draw(tmp_path: Path) -> None:
    folder, train = finished(tmp_path, 0.1, noise=1.0)
    alone = compare(folder, train, "bt")
    rows = [json.loads(line) for line in (folder / "eval_output.jsonl").read_text(encoding="utf-8").splitlines()]
    text = "".join(json.dumps(row | {"prompt": row["prompt"].split()[0]}) + "\n" for row in rows)
    (folder / "eval_output.jsonl").write_text(text, encoding="utf-8")
    together = compare(folder, train, "bt")
    assert together.prompts == 2
    assert together.gain.estimate == pytest.approx(alone.gain.estimate)


def test_chance_in_a_leaderboard_is_no_merit_of_the_model(tmp_path: Path) -> None:
    """Few votes on many equal models: what calls all of them equal knows nothing, and must not beat one leaderboard."""
    rng = np.random.default_rng(1)
    models = [f"m{number:02}" for number in range(40)]

    def drawn(count: int) -> list[dict[str, object]]:
        pairs = [rng.choice(40, 2, replace=False) for _ in range(count)]
        sides = ("model_a", "model_b")
        return [
            {"prompt": f"p {n}", "model_a": models[a], "model_b": models[b], "winner": sides[rng.integers(2)]}
            for n, (a, b) in enumerate(pairs)
        ]

    train = write_votes(tmp_path / "train.jsonl", drawn(200))
    (tmp_path / "model_list.json").write_text(json.dumps(models), encoding="utf-8")
    lines = []
    for row in drawn(200):
        shown = [models.index(str(row[side])) for side in ("model_a", "model_b")]
        won = shown if row["winner"] == "model_a" else shown[::-1]
        lines.append(json.dumps({**row, "labels": [*won, 0], "betas": [0.0] * 40}) + "\n")
    (tmp_path / "eval_output.jsonl").write_text("".join(lines), encoding="utf-8")
    found = compare(tmp_path, str(train), "bt")
    assert found.one_leaderboard["Loss"] < np.log(2) + 0.01
    assert "do not show" in found.to_text()
