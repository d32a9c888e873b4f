"""benchmarks/RESULTS.md: each table is of a command that prints it; the summary in the docs says what they say."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal

import pytest

from benchmarks.all import PAGE
from tests.conftest import ROOT

TEXT = PAGE.read_text(encoding="utf-8")
SUMMARY = (ROOT / "docs" / "start" / "results.md").read_text(encoding="utf-8")
TABLE = re.compile(r"(?P<above>[^\n]*)\n\n?(?P<table>(?:^\|[^\n]*\n)+)", re.MULTILINE)
MEASURED = re.compile(
    r"<!-- measured: [^\n]*-->\n\n?(?:```text\n(.*?)^```\n|((?:^\|[^\n]*\n)+))", re.DOTALL | re.MULTILINE
)
FIGURE = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?!\w|[.,]\d)")


def sections() -> dict[str, str]:
    """The text of each section with those below it, by the name that links have of it."""
    heads = list(re.finditer(r"^(##+) (.+)$", TEXT, re.MULTILINE))
    ends = [
        next((later.start() for later in heads[n + 1 :] if len(later[1]) <= len(head[1])), len(TEXT))
        for n, head in enumerate(heads)
    ]
    names = [re.sub(r"[^\w\- ]", "", head[2].lower()).replace(" ", "-") for head in heads]
    return {name: TEXT[head.end() : end] for name, head, end in zip(names, heads, ends, strict=True)}


SECTIONS = sections()
ROWS = re.findall(r"^\| (.+) \| (.+) \| \[.+\]\([./\w]+#(.+)\) \|$", SUMMARY, re.MULTILINE)


def figures(text: str) -> set[Decimal]:
    """The numbers of a text, without their signs and units; no number is part of a word, as in 135M."""
    return {Decimal(one.replace(",", "")) for one in FIGURE.findall(text)}


def test_a_table_of_figures_is_of_a_command_or_says_why_not() -> None:
    tables = [match for match in TABLE.finditer(TEXT) if re.search(r"\d", match["table"])]
    assert len(tables) > 50
    by_hand = [match["table"].splitlines()[0] for match in tables if not match["above"].startswith("<!-- ")]
    assert not by_hand, "these tables stand under no comment `measured: COMMAND` or `not measured: REASON`"


def test_the_summary_has_questions() -> None:
    assert len(ROWS) > 5
    assert {name for *_, name in ROWS} <= set(SECTIONS)


@pytest.mark.parametrize(("question", "answer", "name"), ROWS, ids=[name for *_, name in ROWS])
def test_a_figure_of_the_summary_was_printed(question: str, answer: str, name: str) -> None:
    blocks = MEASURED.findall(SECTIONS[name])
    printed = set[Decimal]().union(*(figures("".join(block)) for block in blocks))
    for figure in figures(answer):
        rounded = {one.quantize(figure, ROUND_HALF_UP) for one in printed}
        assert figure in rounded, f"{question} {figure}: no table of #{name} has it"
