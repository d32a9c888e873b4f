"""The report of an evaluation: every part is there, nothing is loaded, nothing breaks on odd names."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import pytest

from p2l.evaluation.report import write_report
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


def test_names_are_escaped_everywhere(text):
    assert "alert('x')" not in re.sub(r"&lt;script&gt;alert\((?:&#39;|')x(?:&#39;|')\)", "", text)
    assert "<script>alert" not in text


@pytest.mark.parametrize(
    "part",
    [
        "Leaderboard against the ground truth",
        "Reliability",
        "Aggregation scale",
        "Random subsets",
        "Skill over the leaderboard of train votes",
        "no vote has language=Klingon",
        "12 votes are of models",
        "better at",
        "Top-k-fraction, k = 3",
        "1.1800 to 1.2200",
        "Top-10 is of the 4 models",
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
    assert len(set(page.links)) == len(names)
    assert not page.wrong
    from urllib.parse import unquote

    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(["index.html", *map(unquote, page.links)])


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
