"""The report of an evaluation: every part is there, nothing is loaded, nothing breaks on odd names."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import pytest

from p2l.evaluation.output_report import output_report, write_report
from p2l.metrics import Interval
from tests.p2l.evaluation.evaluation_results import EVIL, output

MODELS = ["ant", "bee", EVIL, "中文模型"]
VOID = {"meta", "br", "link", "input", "img", "hr", "path", "use", "rect", "image"}


class Page(HTMLParser):
    """Ids, links, whatever would be loaded, and tags that do not close in order."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loaded, self.open, self.wrong = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if tag == "a" else []
        self.loaded += [
            value for name, value in attrs if name in ("src", "srcset") or (tag == "link" and name == "href")
        ]
        self.open += [] if tag in VOID else [tag]

    def handle_startendtag(self, _tag, attrs):
        self.ids += [dict(attrs)["id"]] if "id" in dict(attrs) else []

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if self.open[-1] != tag:
            self.wrong.append((self.open[-1], tag))
        self.open.pop()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = write_report([output(MODELS, ["all", EVIL])], tmp_path_factory.mktemp("report"))
    assert path.name == "index.html"
    return path.read_text(encoding="utf-8")


def test_the_page_is_whole_and_loads_nothing(text):
    page = Page(text)
    assert not page.wrong
    assert not page.open
    assert not page.loaded
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    assert text.count("<script>") == 1


def test_ids_are_unique_and_links_lead_to_them(text):
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert page.links
    assert {link for link in page.links if not link.startswith("#")} == set()
    assert {link[1:] for link in page.links} <= set(page.ids)


def body_after(text, mark):
    return re.sub(r"<style>.*?</style>|<script>.*?</script>", "", text, flags=re.DOTALL).partition(mark)[2]


def test_the_verdict_comes_first_then_the_picture_the_leaderboard_and_the_metrics(text):
    order = [
        'class="verdict',
        'id="figure-1"',
        "<h2>Leaderboard</h2>",
        "<h2>Metrics</h2>",
        "<h2>About this report</h2>",
    ]
    rest = text
    for mark in order:
        rest = body_after(rest, mark) if rest is text else rest.partition(mark)[2]
        assert rest, mark
    assert "<title>outputs/sample on held_out.parquet, " in text
    assert "its loss is 5.0% lower (95% interval of what it saves 3.0% to 7.0%)" in text


@pytest.mark.parametrize(
    ("skill", "tone", "words"),
    [
        ((0.05, 0.03, 0.07), "good", "forecasts votes better than one leaderboard"),
        ((-0.05, -0.07, -0.03), "bad", "forecasts votes worse than one leaderboard"),
        ((-0.01, -0.03, 0.01), "", "do not show that the model forecasts better"),
    ],
)
def test_the_verdict_is_what_the_interval_says(skill, tone, words):
    whole = output(MODELS, ["all"], prompts=90)
    one = dataclasses.replace(whole.categories[0], skill=Interval(*skill, 0.01))
    verdict = output_report(dataclasses.replace(whole, categories=(one,), texts=None)).verdict
    assert verdict.tone == tone
    assert words in verdict.sentence
    assert f"{skill[1]:.1%} to {skill[2]:.1%}".replace("-", "−") in verdict.sentence


def test_without_a_skill_the_verdict_says_how_good_the_forecasts_are():
    whole = output(MODELS, ["all"], prompts=90)
    one = dataclasses.replace(whole.categories[0], skill=None)
    said = output_report(dataclasses.replace(whole, categories=(one,), texts=None)).verdict.sentence
    assert "48.0% of 4,321 votes" in said
    assert "46.0% to 50.0%" in said
    empty = dataclasses.replace(whole, categories=whole.categories[-1:], texts=None)
    assert "no vote has language=Klingon" in output_report(empty).verdict.sentence


def test_every_metric_is_explained_where_it_stands(text):
    assert text.count('class="wide">') >= 2 * 10
    for meaning in ("an even guess among four outcomes 1.39", "How often the likeliest outcome happened"):
        assert meaning in text


def test_names_are_escaped_everywhere(text):
    assert "alert('x')" not in re.sub(r"&lt;script&gt;alert\((?:&#39;|')x(?:&#39;|')\)", "", text)
    assert "<script>alert" not in text


@pytest.mark.parametrize(
    "part",
    [
        "Leaderboard against the ground truth",
        "Calibration of forecasts, all",
        "Aggregation scale",
        "Leaderboards of random subsets",
        "Measured against one leaderboard of the training votes",
        "no vote has language=Klingon",
        "12 votes are of models",
        "Better at",
        "Top models in common, k = 3",
        "1.1800 to 1.2200",
        "top-k metrics take k = 4",
    ],
)
def test_every_part_is_there(text, part):
    assert part in text


def test_several_outputs_have_a_page_each_and_one_that_compares_them(tmp_path):
    names = ["run/1", "run 1", "index", "run/1", EVIL]
    whole = output(["a", "b"], ["all"], prompts=90)
    light = dataclasses.replace(whole.categories[0], reliability=None, subsets=(), scale=())
    plain = dataclasses.replace(whole, model_type="marginal", categories=(light,))
    results = [dataclasses.replace(plain, name=name) for name in names]
    page = Page(write_report(results, tmp_path).read_text(encoding="utf-8"))
    files = {link for link in page.links if not link.startswith("#")}
    assert len(files) == len(names)
    assert not page.wrong
    from urllib.parse import unquote

    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(["index.html", *map(unquote, files)])


def test_what_an_output_lacks_is_said(tmp_path):
    whole = output(["a", "b"], ["all"], prompts=90)
    bare = dataclasses.replace(
        whole.categories[0], simple=None, intervals=None, skill=None, reliability=None, comparison=None,
        truth=None, model=None, subsets=(), scale=(), by_model=(), notes=(),
    )  # fmt: skip
    for result, said in (
        (dataclasses.replace(whole, texts=None, categories=(bare,)), "prompts are not in the file"),
        (
            dataclasses.replace(whole, model_type="marginal-gt", coefs=None, categories=()),
            "one leaderboard for all prompts",
        ),
        (dataclasses.replace(whole, coefs=whole.coefs[:30], eta=whole.eta[:30], texts=whole.texts[:30]), "too few"),
    ):
        text = write_report([result], tmp_path).read_text(encoding="utf-8")
        assert said in text
        assert not Page(text).wrong
