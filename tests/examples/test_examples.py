"""The examples run: small here, whole in the slow tests, where what their pages claim has to come out."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2l.model.sentence import packaged_encoder
from tests.conftest import ROOT

FOLDER = ROOT / "examples"
FILES = sorted(FOLDER.glob("*.py"))
LONGEST = 200  # lines
needs_encoder = pytest.mark.skipif(packaged_encoder() is None, reason="the extra `encoder` is not installed")


def run(name: str, *args: Any, **options: Any) -> Any:
    """What `main` of an example returns."""
    return runpy.run_path(str(FOLDER / f"{name}.py"))["main"](*args, **options)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_is_one_short_file_that_imports_the_package_and_is_listed(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= LONGEST
    assert re.search(r"^from (p2l|route|coeval)\b", text, re.MULTILINE)
    assert f"python examples/{path.name}" in text
    assert f"`examples/{path.name}`" in (ROOT / "docs" / "start" / "results.md").read_text(encoding="utf-8")


@needs_encoder
def test_boards_of_prompts_differ_from_the_overall_one() -> None:
    moves = run("board_for_a_prompt", ["What is 17 times 23?", "Write a haiku about rain."], 40)
    assert len(moves) == 2
    assert min(moves) > 10


@needs_encoder
def test_a_route_keeps_to_its_budget_and_more_buys_no_less(capsys: pytest.CaptureFixture[str]) -> None:
    decisions = run("budgeted_route", ["What is 17 times 23?"])
    dollars = [decision.expected_cost for decision in decisions]
    budgets = [0.0002, 0.002, 0.006]
    assert all(cost <= budget + 1e-9 for cost, budget in zip(dollars, budgets, strict=False))
    scores = [decision.expected_score for decision in decisions]
    assert scores == sorted(scores)
    assert capsys.readouterr().out.count("; score ") == 4


def test_length_control_finds_the_better_model_and_what_length_is_worth() -> None:
    boards = run("style_control")
    assert boards.plain.models[boards.plain.coefs.argmax()] == "wordy"
    assert boards.controlled.models[boards.controlled.coefs.argmax()] == "plain"
    (effect,) = boards.controlled.effects
    assert effect.lower < 0.9 < effect.upper


def test_drift_finds_the_change_and_its_size() -> None:
    found = run("drift")
    (changed,) = [cell for cell in found if (cell.model, cell.category) == ("cy", "code")]
    assert changed.verdict == "fell"
    assert changed.lower < -1.2 * 0.8 * 400 / np.log(10) < changed.upper
    assert [cell for cell in found if cell.by and cell.category != "code"] == []


def test_routing_on_a_table_names_its_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    results = run("route_your_table", reads_sentences=False)
    assert results.questions > 50
    assert set(results.policies) >= {"p2l", "single", "oracle"}
    assert re.match(r"(Undecided|Do not route|Routing)", capsys.readouterr().out.splitlines()[0])


def test_votes_of_a_coeval_run_name_the_best_student_of_each_task() -> None:
    best = run("coeval_votes", 8)
    assert {best["writing"], best["solving"], best["translating"]} == {"writer", "solver", "linguist"}


def test_forecasts_are_measured_beside_leaderboards() -> None:
    losses = run("evaluate_forecasts", 200)
    assert len(losses) == 3
    assert all(0.5 < loss < 2.0 for loss in losses.values())


@pytest.mark.slow
def test_a_simulated_arena_has_forecasts_between_one_leaderboard_and_the_truth() -> None:
    learned = run("known_truth", 500)
    assert learned.losses["the truth itself"] == min(learned.losses.values())
    assert len(learned.agreement) == 3


def test_a_newcomer_is_forecast_as_its_votes_arrive() -> None:
    losses = run("live_newcomer", 400, (5,), 1)
    assert list(losses) == [0, 5]
    assert all(np.isfinite(loss) for loss in losses.values())


def test_online_runs_are_judged_on_every_period() -> None:
    runs = run("online_buffers", 500)
    assert set(runs) == {"plain", "replay"}
    assert all(len(losses.at_the_end) == 5 for losses in runs.values())


@pytest.mark.slow
def test_plain_training_forgets_what_replay_keeps() -> None:
    runs = run("online_buffers")
    assert runs["plain"].change > 0.05
    assert runs["replay"].change < runs["plain"].change / 2


@pytest.mark.slow
def test_training_beats_one_leaderboard_and_one_for_each_topic_where_the_truth_is_known() -> None:
    learned = run("known_truth")
    model = learned.losses["P2L, a bag of words"]
    assert learned.losses["the truth itself"] < model < learned.losses["one leaderboard"]
    assert min(learned.agreement.values()) > 0.7


@pytest.mark.slow
def test_training_on_real_votes_beats_one_leaderboard() -> None:
    losses = run("evaluate_forecasts")
    assert losses["P2L, a bag of words"] < losses["one leaderboard"]


@pytest.mark.slow
def test_a_newcomer_is_forecast_better_after_twenty_votes_than_before() -> None:
    losses = run("live_newcomer")
    assert losses[80] < losses[20] < losses[0]


@pytest.mark.slow
@needs_encoder
def test_the_other_examples_run_whole() -> None:
    assert min(run("board_for_a_prompt")) > 10
    assert len(run("budgeted_route")) == 12
    assert len(run("coeval_votes")) == 4
    assert run("route_your_table").questions > 50
