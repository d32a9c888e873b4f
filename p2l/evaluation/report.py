"""The HTML report of an evaluation: one page for one output; for several, one each and a page that compares them.

Everything is in the pages themselves: style, tables that sort, figures as SVG. They work offline and print.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from p2l.command import check_can_write
from p2l.errors import InputError, P2LError
from p2l.evaluation import report_figures as figures
from p2l.evaluation import report_tables as tables
from p2l.evaluation.results import CategoryResult, OutputResult
from p2l.explaining import Explanation, explain
from p2l.explaining.plot import MOST_MODELS
from p2l.report import Table, render, write_page

__all__ = ["check_report", "write_report"]

_PAGE, _INDEX = "p2l.evaluation/output.html", "p2l.evaluation/outputs.html"


@dataclass(frozen=True)
class _Category:
    """A category as the page shows it; parts that it lacks are None."""

    result: CategoryResult
    id: str
    board: Table | None
    metrics: Table | None
    comparison: Table | None
    models: Table | None
    reliability: str | None


@dataclass(frozen=True)
class _Strengths:
    """Strengths and weaknesses as the page shows them; `problem` says why there are none."""

    problem: str | None
    made: Explanation | None = None
    map: str | None = None
    caption: str = ""
    clusters: Table | None = None
    models: Table | None = None
    found: Table | None = None


def check_report(folder: str | Path) -> None:
    """Refuse a report that cannot be written, before any work is done.

    Raises:
        InputError: jinja2 or matplotlib is missing, or the folder cannot be written.
    """
    for name, extra in (("jinja2", "data"), ("matplotlib", "plot")):
        if find_spec(name) is None:
            raise InputError(f"a report needs {name}, which is not installed; pip install 'p2l[{extra}]'")
    check_can_write(Path(folder) / "index.html")


def write_report(results: Sequence[OutputResult], folder: str | Path) -> Path:
    """Write `index.html` into a folder, and a page for each output where there are several.

    Returns:
        The path of `index.html`.

    Raises:
        InputError: a file cannot be written.
    """
    home = Path(folder) / "index.html"
    if len(results) == 1:
        return write_page(_output_page(results[0], None), home)
    names = _file_names([one.name for one in results])
    for one, name in zip(results, names, strict=True):
        write_page(_output_page(one, home.name), home.with_name(name))
    page = render(
        _INDEX,
        title="Evaluation",
        outputs=list(zip(results, names, strict=True)),
        loss=tables.across(results, "Loss"),
        accuracy=tables.across(results, "Accuracy"),
        lines=figures.across(results, "Loss"),
    )
    return write_page(page, home)


def _file_names(names: Sequence[str]) -> list[str]:
    """A file name for each output, none of them twice and none `index.html`."""
    made: list[str] = []
    for number, name in enumerate(names, 1):
        plain = re.sub(r"[^\w.-]+", "-", name).strip("-.")[:80] or "output"
        taken = {"index.html", *(one.casefold() for one in made)}
        made.append(f"{plain}-{number}.html" if f"{plain}.html".casefold() in taken else f"{plain}.html")
    return made


def _output_page(result: OutputResult, home: str | None) -> str:
    categories = [_category(one, number, result) for number, one in enumerate(result.categories)]
    strengths = _strengths(result)
    return render(
        _PAGE,
        title=f"Evaluation of {result.name}",
        home=home,
        result=result,
        facts=_facts(result),
        summary=tables.summary(result),
        categories=categories,
        scale=figures.subsets(result, "scale"),
        scale_tables=tables.subsets(result, "scale"),
        subsets=figures.subsets(result, "subsets"),
        subset_tables=tables.subsets(result, "subsets"),
        strengths=strengths,
    )


def _facts(result: OutputResult) -> list[tuple[str, str]]:
    return [
        ("model type", result.model_type),
        ("likelihood", result.likelihood),
        ("ground truth", result.ground_truth),
        ("models", f"{len(result.models):,}"),
        ("votes", f"{result.votes:,}"),
        ("prompts", f"{result.prompts:,}"),
        ("intervals", f"{result.level:.0%}, over prompts"),
        ("read from", result.source),
    ]


def _category(one: CategoryResult, number: int, result: OutputResult) -> _Category:
    if one.problem is not None:
        return _Category(one, f"category-{number}", None, None, None, None, None)
    return _Category(
        result=one,
        id=f"category-{number}",
        board=tables.board(one, result.level),
        metrics=tables.metrics(one),
        comparison=tables.comparison(one),
        models=tables.models(one),
        reliability=figures.reliability(one),
    )


def _strengths(result: OutputResult) -> _Strengths:
    """What the output says models are good at; a leaderboard that is the same for all prompts says nothing of that."""
    if result.model_type != "p2l" or len(result.coefs) < 2 or result.texts is None:
        why = "prompts are not in the file" if result.texts is None else "it is one leaderboard for all prompts"
        return _Strengths(f"Nothing can be said of strengths and weaknesses from this output: {why}.")
    sides: dict[str, Any] = {"eta": result.eta, "gamma": result.gamma, "texts": result.texts}
    try:
        made = explain(result.coefs, result.models, likelihood=result.likelihood, **sides)
    except P2LError as error:
        return _Strengths(f"Nothing can be said of strengths and weaknesses: {error}.")
    return _Strengths(
        None,
        made,
        figures.strengths(made),
        f"The {MOST_MODELS} of {len(made.models)} models with the largest differences."
        * (len(made.models) > MOST_MODELS),
        tables.clusters(made),
        tables.strengths_of_models(made),
        tables.found(made),
    )
