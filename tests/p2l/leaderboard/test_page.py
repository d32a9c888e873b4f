"""The page of a leaderboard: the verdict holds what the numbers allow, every part is there, and it stays small."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2l.common.report.reports import report_page
from p2l.leaderboard.board import Named
from p2l.leaderboard.report import Leaderboards, leaderboard_report
from p2l.leaderboard.report.ranking import Ranking
from tests.p2l.evaluation.evaluation_results import EVIL
from tests.p2l.leaderboard.page_boards import board, leaderboards

MODELS = ["ant", "bee", "cat", "dog", "elk"]


def page_of(computed: Leaderboards, subject: str = "", data: str = "votes.parquet") -> str:
    return report_page(leaderboard_report(computed, subject, data))


def text_of(page: str) -> str:
    body = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def headings(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def verdict(computed: Leaderboards) -> Any:
    return leaderboard_report(computed, "", "votes").verdict


def test_a_page_has_every_part_in_the_order_of_reports() -> None:
    page = page_of(leaderboards(MODELS, {"topic": ["code", "law"]}, periods=3))
    assert headings(page) == [
        "Leaderboard",
        "Categories",
        "History",
        "How sure the order is",
        "Win rates",
        "What else decides votes",
        "About this report",
    ]
    text = text_of(page)
    assert "Leaderboard of 5 models on votes.parquet" in text
    assert "A note." in text
    assert "12,345 votes" in text
    assert page.index('class="verdict') < page.index("<figure") < page.index("<h2>")


def test_the_verdict_names_a_sure_leader_and_else_who_may_be_better() -> None:
    sure = verdict(leaderboards(MODELS, sd=0.05))
    assert sure.tone == "good"
    assert sure.sentence.startswith("ant is the best of 5 models, with a score of 1,261 (95% interval 1,244 to 1,278)")
    open_ended = verdict(leaderboards(MODELS, sd=0.4))
    assert open_ended.tone == ""
    assert "but bee may be better" in open_ended.sentence
    assert "may be as good or better" in verdict(leaderboards(MODELS, sd=2.0)).sentence
    assert "bee, cat, dog and 1 more" in verdict(leaderboards(MODELS, sd=2.0)).sentence
    none = verdict(leaderboards(MODELS, sd=None))
    assert "comes first" in none.sentence
    assert "No intervals" in none.reason


def test_models_that_were_never_compared_are_not_ranked_against_each_other() -> None:
    apart = board(MODELS, np.linspace(1, -1, 5), likelihood="bt", parts=2)
    computed = Leaderboards("t", "votes", [Named("", "all", 100, apart)])
    assert "scores of different parts cannot be ranked" in verdict(computed).sentence
    assert "Part" in text_of(page_of(computed))
    assert all(np.isnan(step.chance) and np.isnan(step.rate) for step in Ranking.of(apart).steps)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=8, unique=True), st.floats(0.01, 3))
def test_a_model_is_above_the_next_with_a_chance_of_half_or_more(coefs: list[float], sd: float) -> None:
    models = [f"m{number}" for number in range(len(coefs))]
    ranking = Ranking.of(board(models, np.array(coefs), sd))
    for step in ranking.steps:
        assert 0.5 <= step.chance <= 1
        assert 0.5 <= step.rate <= 1
        assert step.lower <= step.points <= step.upper
        assert step.is_sure == (step.chance > 0.975) or abs(step.chance - 0.975) < 1e-6
    names = [ranking.steps[0].above, *(step.below for step in ranking.steps)]
    assert names == ranking.names
    assert all(before.below == after.above for before, after in pairwise(ranking.steps))


def test_win_rates_of_a_pair_add_up_and_agree_with_the_fields() -> None:
    made = board(MODELS, np.linspace(1, -1, 5))
    rates = made.pair_rates()
    np.testing.assert_allclose(rates + rates.T, 1.0)
    np.testing.assert_allclose((rates.sum(axis=1) - 0.5) / 4, made.win_rates())


def test_few_models_have_win_rates_as_numbers_and_many_an_image() -> None:
    few, many = page_of(leaderboards(MODELS)), page_of(leaderboards([f"m{number}" for number in range(30)]))
    assert "<img" not in few
    assert 'src="data:image/png;base64,' in many
    assert "Numbers of figure" in many


def test_groups_stand_beside_each_other_by_column_and_only_sure_changes_have_a_colour() -> None:
    page = page_of(leaderboards(MODELS, {"topic": ["code", "law"], "language": ["English"]}))
    assert "By topic" in page
    assert "By language" in page
    section = page[page.index("<h2>Categories") : page.index("<h2>How sure")]
    assert re.search(r'class="number heat [rf]\d"', section)
    calm = leaderboards(MODELS, {"topic": ["code"]})
    same = replace(calm, boards=[calm.boards[0], calm.boards[1]._replace(board=calm.boards[0].board)])
    section = page_of(same).split("<h2>Categories")[1].split("<h2>How sure")[0]
    assert not re.search(r'class="number heat [rf]\d"', section)


def test_prompts_stand_beside_each_other() -> None:
    boards = [
        Named(
            "prompt",
            f"a prompt {number} {EVIL}",
            1,
            replace(board(MODELS, np.roll(np.arange(5.0), number), None), votes=None),
        )
        for number in range(3)
    ]
    page = page_of(Leaderboards("t", "prompts", boards))
    assert headings(page)[:2] == ["Prompts side by side", "Leaderboard of each prompt"]
    assert "Of 3 prompts, these models come first: " in text_of(page)
    one = page_of(Leaderboards("t", "prompts", boards[:1]))
    assert headings(one)[0] == "Leaderboard"
    assert "Prompt: a prompt 0" in text_of(one)


def test_a_history_alone_is_headed_by_its_newest_leaderboard() -> None:
    computed = replace(leaderboards(MODELS, periods=4), boards=[])
    page = page_of(computed)
    assert headings(page)[0] == "Leaderboard"
    assert "2025-01 to 2025-04" in text_of(page)
    assert "A note of the history." in page
    assert len(re.findall(r'<polyline class="line c\d"', page)) == 5


def test_a_gap_breaks_the_lines_of_a_history() -> None:
    computed = leaderboards(MODELS, periods=4)
    assert computed.history is not None
    periods = [
        replace(period, index=period.index + 2 * (place > 1)) for place, period in enumerate(computed.history.periods)
    ]
    page = page_of(replace(computed, history=replace(computed.history, periods=periods)))
    assert page.count('<polyline class="line c0"') == 2


def test_a_history_of_many_periods_is_thinned() -> None:
    computed = leaderboards(MODELS, periods=400)
    page = page_of(computed)
    longest = max(len(points.split()) for points in re.findall(r'<polyline [^>]*points="([^"]*)"', page))
    assert longest <= 150


@pytest.mark.parametrize("min_votes", [0, 121, 140, 1000])
def test_models_with_few_votes_are_left_out(min_votes: int) -> None:
    computed = replace(leaderboards(MODELS, {"topic": ["code"]}, periods=6), min_votes=min_votes)
    page = page_of(computed)
    text = text_of(page)
    assert ("ant" in text) == (min_votes == 0)
    assert ("elk" in text) == (min_votes <= 140)
    if min_votes == 1000:
        assert "No model has 1,000 votes" in text


def test_a_page_of_130_models_with_everything_is_under_500_kb() -> None:
    models = [f"organisation-{number}/model-{number}-instruct-2026-07-30" for number in range(130)]
    columns = {
        "language": [f"language {number}" for number in range(40)],
        "topic": [f"topic {number}" for number in range(9)],
    }
    page = page_of(leaderboards(models, columns, periods=130))
    assert len(page.encode()) < 500_000
    assert all(model in page for model in models)
    assert "files (--output) hold all" in page


def test_hostile_names_are_text_and_nothing_is_loaded() -> None:
    models = [EVIL, f"{EVIL}2", "中文模型", "x" * 300, "a\x00b", "\u202eright to left"]
    page = page_of(leaderboards(models, {EVIL: [EVIL, "</title>"]}, periods=4), EVIL, EVIL)
    assert "<script>alert" not in page
    assert page.count("<script>") == 1
    assert "\x00" not in page
    assert not re.search(r"https?://|@import", page)
    assert not re.search(r"\bnan\b|\binf\b", re.sub(r"<script>.*</script>", "", page, flags=re.DOTALL))


@pytest.mark.parametrize("likelihood", ["bt", "rk", "grk"])
@pytest.mark.parametrize("number", [1, 2, 13])
def test_any_number_of_models_has_a_page(likelihood: str, number: int) -> None:
    models = [f"m{place}" for place in range(number)]
    made = Leaderboards("t", "votes", [Named("", "all", 9, board(models, np.zeros(number), likelihood=likelihood))])
    assert headings(page_of(made))[0] == "Leaderboard"
