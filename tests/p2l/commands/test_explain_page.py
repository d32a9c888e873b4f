"""The page of strengths and weaknesses: what was found comes first, and what others wrote is text."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from p2l.commands.explain import main
from p2l.common.errors import ConfigError
from p2l.common.report.reports import report_page
from p2l.insight import Cluster, Explanation, Observed, Rules, Strength, VoteAgreement, explain
from p2l.insight.explain_report import explanation_report
from tests.p2l.commands.test_explain import MODELS, answers_file, arena
from tests.p2l.evaluation.evaluation_results import EVIL


@pytest.fixture(scope="module")
def made() -> Explanation:
    coefs, texts, _ = arena()
    return explain(coefs, MODELS, likelihood="bt", texts=texts)


def page_of(explanation: Explanation, **more: Any) -> str:
    return report_page(explanation_report(explanation, "sample", "prompts.parquet", **more))


def text_of(page: str) -> str:
    body = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_the_verdict_is_the_largest_difference(made: Explanation) -> None:
    report = explanation_report(made, "sample", "prompts.parquet")
    first = made.found[0]
    assert report.verdict.tone == "good"
    assert (
        f"{first.model} is {abs(first.change):.0f} points {first.verdict} on “{first.cluster}”"
        in report.verdict.sentence
    )
    assert f"{len(made.found)} strengths and weaknesses were found" in report.verdict.reason
    titles = [section.title for section in report.sections]
    assert titles == ["Models and clusters", "Largest differences", "By model", "Clusters"]


def test_where_nothing_is_found_the_page_says_so() -> None:
    coefs, texts, _ = arena(noise=0.3)
    nothing = explain(coefs, MODELS, likelihood="bt", texts=texts, rules=Rules(least_change=5000.0))
    report = explanation_report(nothing, "sample", "prompts.parquet")
    assert report.verdict.sentence.startswith("No model was found to be better or worse")
    assert report.picture is None
    assert "No difference was found." in page_of(nothing)


def test_only_the_models_that_are_named_are_shown(made: Explanation) -> None:
    text = text_of(page_of(made, models=["bee", "cat"]))
    assert "bee by cluster" in text
    assert "dog" not in text


def test_what_votes_say_stands_beside_the_differences(made: Explanation) -> None:
    seen = Observed(40, 0.6, 0.5, -30.0, -60.0, 0.0)
    strengths = tuple(replace(cell, observed=seen) for cell in made.strengths)
    asked = replace(made, strengths=strengths, agreement=VoteAgreement(900, 15, 0.7, 5, 4))
    text = text_of(page_of(asked))
    assert "Points by the votes" in text
    assert "Of 5 strengths and weaknesses among them, votes move 4 in the same direction." in text


def many(models: int, clusters: int) -> Explanation:
    """An explanation in which every model differs in every cluster."""
    names = [f"organisation-{number}/model-{number}-instruct-2026" for number in range(models)]
    kinds = [
        Cluster(f"cluster {number}, {EVIL}", ("words", EVIL), 50, 1 / clusters, (EVIL,)) for number in range(clusters)
    ]
    strengths = tuple(
        Strength(kind.name, name, 50, 30.0 + row, 20.0, 90.0, 3, 1, 9, row + 1, 0.6, 0.5, 0.001, 0.01, "better")
        for row, name in enumerate(names)
        for kind in kinds
    )
    rules = {"level": 0.95, "fdr": 0.05, "least_change": 20.0, "seed": 0}
    return Explanation(tuple(names), tuple(kinds), strengths, "grk", 1000, 1000, "words", 0.6, 0.7, **rules)


def test_a_page_of_130_models_is_under_500_kb_and_shows_hostile_texts_as_they_are() -> None:
    page = page_of(many(130, 20))
    assert len(page.encode()) < 500_000
    assert "<script>alert" not in page
    assert page.count("<script>") == 1
    assert not re.search(r"https?://|@import", page)


def test_the_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, page = answers_file(tmp_path, "json"), tmp_path / "page.html"
    main(["--answers", str(path), "--min-prompts", "10", "--quiet", "--html", str(page)])
    assert "wrote" in capsys.readouterr().err
    assert 'answers <span class="on">on 200 prompts' in page.read_text("utf-8")
    with pytest.raises(ConfigError, match="same file"):
        main(["--answers", str(path), "--html", str(page), "--output", str(page)])
