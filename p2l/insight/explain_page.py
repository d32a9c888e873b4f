"""The report of strengths and weaknesses: the largest difference, the map, clusters, models, and what votes say."""

from __future__ import annotations

from collections.abc import Sequence

from p2l import likelihood as likelihoods
from p2l.common.report.reports import Figure, Fold, Forest, ForestRow, Part, Prose, Report, Section, Verdict, today
from p2l.common.report.tables import number_text
from p2l.common.text_table import formatted
from p2l.insight import explain_tables as tables
from p2l.insight.explain_report import MOST_MODELS, drawn_models
from p2l.insight.strengths import Explanation, Strength

_DRAWN = 12
"""Differences of the picture below the verdict."""
_PICTURED = 8
"""Models with a picture of their own, with every cluster."""
_LONGEST = 60


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
    sections = [
        _map(explanation, names, found),
        _models(explanation, names),
        Section("Clusters", [tables.clusters(explanation)], _clusters_lead(explanation)),
    ]
    if found:
        lead = f"Points against the model's own score over all prompts, with {explanation.level:.0%} intervals."
        sections.insert(1, Section("Largest differences", [tables.differences(found, explanation.level)], lead))
    if (votes := _votes(explanation)) is not None:
        sections.append(votes)
    return Report(
        "Strengths and weaknesses",
        subject,
        data,
        today(),
        _verdict(explanation, found),
        _picture(explanation, found),
        sections,
        _facts(explanation),
        explanation.notes,
    )


def _verdict(explanation: Explanation, found: Sequence[Strength]) -> Verdict:
    """Return the largest difference, and how many there are."""
    size = f"{explanation.prompts:,} prompts in {len(explanation.clusters)} clusters"
    least = f" by more than {explanation.least_change:g} points" if explanation.least_change else ""
    if not found:
        sentence = f"No model was found to be better or worse on any kind of prompts than overall{least}."
        return Verdict(sentence, "", f"{size} were measured; more prompts may tell.")
    first = found[0]
    ends = f"{explanation.level:.0%} interval {_signed(first.lower)} to {_signed(first.upper)}"
    sentence = (
        f"Which model is best depends on the prompt: {_cut(first.model)} is {abs(first.change):.0f} points "
        f"{first.verdict} on “{_cut(first.cluster)}” than overall ({ends})."
    )
    number = f"{len(found)} strengths and weaknesses were found" if len(found) > 1 else "It is the one difference found"
    reason = f"{number}{least}, at a false discovery rate of {explanation.fdr:.0%}: {size}."
    agreement = explanation.agreement
    if agreement is not None and agreement.found:
        reason += f" Votes move {agreement.same_sign} of {agreement.found} in the same direction."
    return Verdict(sentence, "good", reason)


def _picture(explanation: Explanation, found: Sequence[Strength]) -> Figure | None:
    if not found:
        return None
    rows = [_row(cell, cell.model, f"on {_cut(cell.cluster)}") for cell in found[:_DRAWN]]
    title = "The differences" if len(rows) == len(found) else f"The {len(rows)} largest differences"
    caption = "Right of the line a model is better on these prompts than overall, left of it worse."
    return Figure(_forest(explanation, rows, "Model"), title, caption)


def _forest(explanation: Explanation, rows: Sequence[ForestRow], name: str) -> Forest:
    return Forest(rows, name, f"Points against overall with {explanation.level:.0%} interval", _signed)


def _row(cell: Strength, name: str, note: str) -> ForestRow:
    tone = {"better": "good", "worse": "bad"}.get(cell.verdict, "")
    return ForestRow(name, cell.lower, cell.change, cell.upper, tone, note)


def _map(explanation: Explanation, names: Sequence[str], found: Sequence[Strength]) -> Section:
    title = "Models and clusters"
    if not found:
        return Section(title, [Prose("No difference was found.", "quiet")])
    drawn = [name for name in drawn_models(explanation) if name in set(names)] if len(names) > MOST_MODELS else names
    left = f" The {len(drawn)} of {len(names)} models with the largest differences." * (len(drawn) < len(names))
    lead = f"Points against the model's own score: blue is better than overall, orange worse, blank not found.{left}"
    return Section(title, [tables.strengths_map(explanation, drawn)], lead)


def _models(explanation: Explanation, names: Sequence[str]) -> Section:
    """Return what each model is better and worse at; of a few models with every cluster."""
    parts: list[Part] = [tables.strengths_of_models(explanation, names)]
    if len(names) <= _PICTURED:
        for name in names:
            cells = explanation.of(name)
            rows = [_row(cell, _cut(cell.cluster), f"rank {cell.rank}") for cell in cells]
            figure = Figure(_forest(explanation, rows, "Cluster"), f"{_cut(name)} by cluster")
            note = f"rank {cells[0].overall_rank} overall" if cells else ""
            parts.append(Fold(_cut(name), [figure], note, is_open=len(names) == 1))
    return Section("By model", parts, "Models in the order of the leaderboard over all prompts.")


def _clusters_lead(explanation: Explanation) -> str:
    words = "" if explanation.recovered is None else f" Words alone place {explanation.recovered:.0%} of prompts."
    return (
        f"Found on {explanation.chosen_from:,} other prompts by what the model says of each, and named by their most "
        f"typical words; they explain {max(explanation.explained, 0.0):.0%} of the variance of the coefficients.{words}"
    )


def _votes(explanation: Explanation) -> Section | None:
    """Return whether votes bear the differences out; None where they were not asked."""
    agreement = explanation.agreement
    if agreement is None:
        return None
    sentences = [
        f"{agreement.votes:,} votes lie in clusters; {agreement.cells:,} pairs of a model and a cluster have enough."
    ]
    if agreement.correlation is not None:
        sentences.append(
            f"Over these, predicted and observed changes correlate by {number_text(agreement.correlation, 2)}."
        )
    if agreement.found:
        sentences.append(
            f"Of {agreement.found} strengths and weaknesses among them, votes move {agreement.same_sign} in the same "
            "direction."
        )
    return Section("What votes say", [Prose(sentence) for sentence in sentences])


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
        ("intervals", f"{explanation.level:.0%}, over prompts"),
        ("seed", str(explanation.seed)),
    ]


def _signed(value: float) -> str:
    return formatted(value, "+,.0f").replace("-", "−")


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1].rstrip()}…"
