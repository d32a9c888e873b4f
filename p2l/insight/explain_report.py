"""Strengths and weaknesses shown: the largest difference, the map, clusters, models, and what votes say.

One set of tables and figures serves the terminal, the page and pictures.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2l import likelihood as likelihoods
from p2l.common.cli import counted
from p2l.common.report.heat import Heat
from p2l.common.report.reports import Figure, Fold, Forest, ForestRow, Part, Prose, Report, Section, Verdict, today
from p2l.common.report.tables import Cell, Column, Scale, Table, Value, number_text
from p2l.common.report.text import notes_text, table_text
from p2l.common.text_table import cut, formatted
from p2l.insight.strengths import Explanation, Strength

MAX_MAP_MODELS = 60
"""Models of a map; of more those with the largest differences are shown."""
_MODELS_IN_TEXT = 20
_MODELS_WITH_FIGURE = 8  # each with every cluster
_DIFFERENCES_IN_FIGURE = 12
_DIFFERENCES_IN_TABLE = 300  # of 130 models there may be thousands
_CLUSTERS_NAMED = 3  # on either side, by the table of models
_NAME_LENGTH = 60  # characters
_TONES = {"better": "good", "worse": "bad"}
_CHANCE = "chance of winning against another model drawn at random"


def explanation_text(
    explanation: Explanation,
    *,
    models: Sequence[str] = (),
    every: bool = False,
    of_each: int = 3,
    top: int | None = None,
) -> str:
    """Return the clusters, and what each model is better and worse at, as tables for a terminal.

    Without `models`, the first are listed, in the order of the overall leaderboard; of each the `of_each` largest
    strengths and as many weaknesses, or `every` cell. Tables have at most `top` rows.
    """
    selected = [name for name in explanation.models if not models or name in models]
    named = selected if every else selected[:_MODELS_IN_TEXT]
    cells: list[Strength | str] = []
    for name in named:
        of_model = explanation.of(name)
        better = [cell for cell in of_model if cell.verdict == "better"][:of_each]
        worse = [cell for cell in of_model if cell.verdict == "worse"][-of_each:]
        cells += (of_model if every else [*better, *worse]) or [name]
    left = len(selected) - len(named)
    more = [f"{counted(left, 'more model')}: --models NAME, or --output FILE"] if left else []
    found = sum(cell.model in set(selected) for cell in explanation.found)
    least = f", by more than {explanation.least_change:g} points" if explanation.least_change else ""
    nouns = "strength or weakness" if found == 1 else "strengths and weaknesses"
    words = "" if explanation.recovered is None else f"; words alone place {explanation.recovered:.0%} of prompts"
    lines = [
        f"{explanation.prompts:,} prompts measured, in {len(explanation.clusters)} clusters found on "
        f"{explanation.chosen_from:,} others; likelihood {explanation.likelihood}",
        f"the clusters explain {max(explanation.explained, 0.0):.0%} of the variance of the coefficients{words}",
        "",
        # `--top` of this command is the number of strengths of each model.
        *table_text(clusters_table(explanation), top, flag="--rows"),
        "",
        *table_text(differences_table(cells, explanation.level), top, flag="--rows"),
        *more,
        f"found: {found} {nouns}{least}, at a false discovery rate of {explanation.fdr:.0%}",
        *_agreement_sentences(explanation),
        *notes_text(explanation.notes),
    ]
    return "\n".join(lines)


def explanation_report(explanation: Explanation, subject: str, data: str, models: Sequence[str] = ()) -> Report:
    """Return the report of an explanation.

    Args:
        explanation: what was found.
        subject: the model that forecast.
        data: name of the prompts.
        models: those that are shown; all if there are none.
    """
    names = [name for name in explanation.models if not models or name in models]
    found = [cell for cell in explanation.found if cell.model in set(names)]
    words = "" if explanation.recovered is None else f" Words alone place {explanation.recovered:.0%} of prompts."
    about_clusters = (
        f"Found on {explanation.chosen_from:,} other prompts by what the model says of each, and named by their most "
        f"typical words; they explain {max(explanation.explained, 0.0):.0%} of the variance of the coefficients.{words}"
    )
    sections = [
        _map_section(explanation, names, found),
        _models_section(explanation, names),
        Section("Clusters", [clusters_table(explanation)], about_clusters),
    ]
    picture = None
    if found:
        lead = f"Points against the model's own score over all prompts, with {explanation.level:.0%} intervals."
        sections.insert(1, Section("Largest differences", [differences_table(found, explanation.level)], lead))
        rows = [
            _row(cell, cell.model, f"on {cut(cell.cluster, _NAME_LENGTH)}") for cell in found[:_DIFFERENCES_IN_FIGURE]
        ]
        title = "The differences" if len(rows) == len(found) else f"The {len(rows)} largest differences"
        caption = "Right of the line a model is better on these prompts than overall, left of it worse."
        picture = Figure(_forest(explanation, rows, "Model"), title, caption)
    if sentences := _agreement_sentences(explanation):
        sections.append(Section("What votes say", [Prose(f"{text[:1].upper()}{text[1:]}.") for text in sentences]))
    return Report(
        kind="Strengths and weaknesses",
        subject=subject,
        data=data,
        made=today(),
        verdict=_verdict(explanation, found),
        picture=picture,
        sections=sections,
        facts=_facts(explanation),
        notes=explanation.notes,
    )


def explanation_figure(explanation: Explanation, models: Sequence[str] = ()) -> Figure:
    """Return a map of models and clusters, or one model's clusters with their intervals."""
    names = [name for name in explanation.models if not models or name in models]
    if len(names) == 1:
        return model_figure(explanation, names[0])
    names, clusters = map_models(explanation, names), [cluster.name for cluster in explanation.clusters]
    change = {(cell.model, cell.cluster): cell.change for cell in explanation.found}
    values = np.array([[change.get((name, cluster), np.nan) for cluster in clusters] for name in names])
    title = "Points against the model's own score (blank: none found)"
    heat = Heat(names, values, title, middle=0.0, text=_points, across=clusters)
    return Figure(heat, title)


def model_figure(explanation: Explanation, name: str) -> Figure:
    """Return a model's clusters, the best on top, each with its interval and what votes say."""
    rows = []
    for cell in explanation.of(name):
        votes = "" if cell.observed is None else f", {_points(cell.observed.change)} by votes"
        rows.append(_row(cell, cut(cell.cluster, _NAME_LENGTH), f"rank {cell.rank}{votes}"))
    return Figure(_forest(explanation, rows, "Cluster"), f"{cut(name, _NAME_LENGTH)} by cluster")


def map_models(explanation: Explanation, names: Sequence[str]) -> list[str]:
    """Return the models of a map, the best overall first: of more than 60 those with the largest differences."""
    if len(names) <= MAX_MAP_MODELS:
        return list(names)
    largest: dict[str, float] = {}
    for cell in explanation.found:
        largest[cell.model] = max(largest.get(cell.model, 0.0), abs(cell.change))
    shown = set(sorted(names, key=lambda name: -largest.get(name, 0.0))[:MAX_MAP_MODELS])
    return [name for name in names if name in shown]


def clusters_table(explanation: Explanation) -> Table:
    """Return the kinds of prompts."""
    clusters = explanation.clusters
    examples = [cluster.examples[0] if cluster.examples else None for cluster in clusters]
    return Table.of(
        (Column("Cluster", number=False), [cluster.name for cluster in clusters]),
        (Column("Prompts"), [cluster.prompts for cluster in clusters]),
        (Column("Share"), [_share(cluster.share) for cluster in clusters]),
        (Column("Typical words", number=False, wide=True), [", ".join(cluster.terms) for cluster in clusters]),
        (Column("For example", number=False, wide=True, page_only=True), examples),
    )


def map_table(explanation: Explanation, names: Sequence[str]) -> Table:
    """Return a row for each model, a column for each cluster, coloured where a difference was found."""
    clusters = [cluster.name for cluster in explanation.clusters]
    changes = {(cell.model, cell.cluster): cell.change for cell in explanation.found}
    most = max(map(abs, changes.values()), default=1.0)

    def colour(model: str, cluster: str) -> Cell:
        change = changes.get((model, cluster), 0.0)
        return Cell(_points(change), round(change, 1), heat=change / most) if change else Cell("", 0.0)

    rows: list[list[Value]] = [[name, *(colour(name, cluster) for cluster in clusters)] for name in names]
    heads = [Column(name, is_map=True) for name in clusters]
    return Table([Column("Model", number=False), *heads], rows, shown=20, filter="models")


def models_table(explanation: Explanation, names: Sequence[str] = ()) -> Table:
    """Return a row for each model, by default of all: the clusters it does best and worst in."""
    shown = [(place, name) for place, name in enumerate(explanation.models, 1) if not names or name in names]
    cells = [explanation.of(name) for _, name in shown]
    return Table.of(
        (Column("#", 0, note="place overall"), [place for place, _ in shown]),
        (Column("Model", number=False), [name for _, name in shown]),
        (Column("Better at", number=False, wide=True), [_named(of_model, "better") for of_model in cells]),
        (Column("Worse at", number=False, wide=True), [_named(of_model[::-1], "worse") for of_model in cells]),
        shown=10,
        filter="models",
    )


def differences_table(cells: Sequence[Strength | str], level: float) -> Table:
    """Return strengths and weaknesses beside what votes say where they were asked.

    A name in place of a cell is a model that does everywhere as overall.
    """
    caption = f"The {_DIFFERENCES_IN_TABLE} largest of {len(cells):,}." if len(cells) > _DIFFERENCES_IN_TABLE else ""
    shown = cells[:_DIFFERENCES_IN_TABLE]
    measured = [cell for cell in shown if isinstance(cell, Strength)]
    scale = Scale.around([end for cell in measured for end in (cell.lower, cell.upper)], 0.0)
    columns = [
        Column("Model", number=False),
        Column("Expected", number=False),
        Column("Cluster", number=False, wide=True),
        Column("Points", 0, f"against overall, with {level:.0%} interval", scale),
        Column(f"{level:.0%} interval"),
        Column("Rank here", 0),
        Column("Overall", 0, "rank over all prompts"),
        Column("Beats the field overall", note=_CHANCE),
        Column("Here", note=_CHANCE),
    ]
    if any(cell.observed is not None for cell in measured):
        columns.append(Column("Points by the votes", note="against all votes of the model"))
    rows = [
        _difference(cell)[: len(columns)]
        if isinstance(cell, Strength)
        else [cell, "", "(as overall everywhere)", *[""] * (len(columns) - 3)]
        for cell in shown
    ]
    return Table(columns, rows, shown=10, caption=caption, filter="models")


def _difference(cell: Strength) -> list[Value]:
    interval = f"{_points(cell.lower)} to {_points(cell.upper)}"
    bar = (cell.lower, cell.change, cell.upper)
    tone = _TONES.get(cell.verdict, "")
    by_votes, observed = None, cell.observed
    if observed is not None:
        # Orange where votes move in the other direction.
        disagrees = "bad" if (observed.change > 0) != (cell.change > 0) else ""
        text = f"{_points(observed.change)} ({observed.votes:,} votes)"
        ends = f"{_points(observed.lower)} to {_points(observed.upper)}"
        by_votes = Cell(text, round(observed.change, 1), disagrees, ends)
    return [
        cell.model,
        cell.verdict,
        cut(cell.cluster, _NAME_LENGTH),
        Cell(_points(cell.change), round(cell.change, 1), tone, interval, bar),
        interval,
        Cell(f"{cell.rank} ({cell.rank_lower}-{cell.rank_upper})", cell.rank),
        cell.overall_rank,
        _share(cell.overall_win_rate),
        _share(cell.win_rate),
        by_votes,
    ]


def _named(cells: Sequence[Strength], verdict: str) -> Cell:
    named = [cell for cell in cells if cell.verdict == verdict][:_CLUSTERS_NAMED]
    if not named:
        return Cell("–", 0.0, "quiet")
    text = "; ".join(f"{cell.cluster} ({_points(cell.change)})" for cell in named)
    return Cell(text, round(abs(named[0].change), 1), _TONES[verdict])


def _verdict(explanation: Explanation, found: Sequence[Strength]) -> Verdict:
    """Return the largest difference, and how many there are."""
    size = f"{explanation.prompts:,} prompts in {len(explanation.clusters)} clusters"
    least = f" by more than {explanation.least_change:g} points" if explanation.least_change else ""
    if not found:
        sentence = f"No model was found to be better or worse on any kind of prompts than overall{least}."
        return Verdict(sentence, "", f"{size} were measured; more prompts may tell.")
    first = found[0]
    ends = f"{explanation.level:.0%} interval {_points(first.lower)} to {_points(first.upper)}"
    sentence = (
        f"Which model is best depends on the prompt: {cut(first.model, _NAME_LENGTH)} is "
        f"{abs(first.change):.0f} points {first.verdict} on “{cut(first.cluster, _NAME_LENGTH)}” than overall ({ends})."
    )
    number = f"{len(found)} strengths and weaknesses were found" if len(found) > 1 else "It is the one difference found"
    reason = f"{number}{least}, at a false discovery rate of {explanation.fdr:.0%}: {size}."
    agreement = explanation.agreement
    if agreement is not None and agreement.found:
        reason += f" Votes move {agreement.same_sign} of {agreement.found} in the same direction."
    return Verdict(sentence, "good", reason)


def _forest(explanation: Explanation, rows: Sequence[ForestRow], name: str) -> Forest:
    return Forest(rows, name, f"Points against overall with {explanation.level:.0%} interval", _points)


def _row(cell: Strength, name: str, note: str) -> ForestRow:
    return ForestRow(name, cell.lower, cell.change, cell.upper, _TONES.get(cell.verdict, ""), note)


def _map_section(explanation: Explanation, names: Sequence[str], found: Sequence[Strength]) -> Section:
    title = "Models and clusters"
    if not found:
        return Section(title, [Prose("No difference was found.", "quiet")])
    shown = map_models(explanation, names)
    lead = "Points against the model's own score: blue is better than overall, orange worse, blank not found."
    if len(shown) < len(names):
        lead += f" The {len(shown)} of {len(names)} models with the largest differences."
    return Section(title, [map_table(explanation, shown)], lead)


def _models_section(explanation: Explanation, names: Sequence[str]) -> Section:
    """Return what each model is better and worse at; of a few models with every cluster."""
    parts: list[Part] = [models_table(explanation, names)]
    for name in names if len(names) <= _MODELS_WITH_FIGURE else ():
        cells = explanation.of(name)
        note = f"rank {cells[0].overall_rank} overall" if cells else ""
        parts.append(Fold(cut(name, _NAME_LENGTH), [model_figure(explanation, name)], note, is_open=len(names) == 1))
    return Section("By model", parts, "Models in the order of the leaderboard over all prompts.")


def _agreement_sentences(explanation: Explanation) -> list[str]:
    """Return whether votes bear the differences out; nothing where they were not asked."""
    agreement = explanation.agreement
    if agreement is None:
        return []
    enough = f"{agreement.cells:,} pairs of a model and a cluster have enough of them"
    sentences = [f"votes: {agreement.votes:,} lie in clusters; {enough}"]
    if agreement.correlation is not None:
        correlation = number_text(agreement.correlation, 2)
        sentences.append(f"over these, predicted and observed changes correlate by {correlation}")
    if agreement.found:
        sentences.append(
            f"of {agreement.found} strengths and weaknesses among them, votes move {agreement.same_sign} in the same "
            "direction"
        )
    return sentences


def _facts(explanation: Explanation) -> list[tuple[str, str]]:
    likelihood = likelihoods.get(explanation.likelihood)
    return [
        ("likelihood", likelihood.title or explanation.likelihood),
        ("models", f"{len(explanation.models):,}"),
        ("prompts measured", f"{explanation.prompts:,}"),
        ("prompts that chose the clusters", f"{explanation.chosen_from:,}"),
        ("prompts come into clusters by", explanation.by),
        ("least change", f"{explanation.least_change:g} points"),
        ("false discovery rate", f"{explanation.fdr:.0%}"),
        ("intervals", f"{explanation.level:.0%}"),
        ("seed", str(explanation.seed)),
    ]


def _points(value: float) -> str:
    return formatted(value, "+,.0f").replace("-", "−")


def _share(value: float) -> Cell:
    return Cell(f"{value:.1%}", round(value, 5))
