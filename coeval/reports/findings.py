"""The sentences with which the page of each report begins; a page without any is not written.

Registered in `coeval.reports.registry`. A function returns no sentence where the report has nothing to show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coeval.analysis.agreement import JudgeReport, Reliability
from coeval.analysis.coverage import CoverageSummary, SummaryReport
from coeval.analysis.distribution import InteractionMatrix, JudgeConsistency, ScoreDistribution
from coeval.analysis.judge_tests import PanelWorth
from coeval.analysis.people import Calibration
from coeval.analysis.robust import RobustSummary
from coeval.analysis.students import StudentPair, StudentReport, StudentRow
from coeval.analysis.teachers import TeacherReport
from coeval.analysis.variance import MissingRow, OwnItemsRow
from coeval.pairs.board import PairsReport
from p2l.common.report.tables import number_text

# Krippendorff's alpha, read as he does: 0.8 is reliable, 0.67 the least for tentative conclusions (Krippendorff 2004).
_MIN_ALPHA_IN_WORDS = (
    (0.8, "Judges agree well"),
    (0.67, "Judges agree well enough for tentative conclusions"),
    (0.4, "Judges agree only in part"),
    (-math.inf, "Judges hardly agree"),
)
_MAX_NAMES_LISTED = 4


def students(report: StudentReport) -> list[str]:
    """Say who answers best, how sure that is, and how far the judges agree."""
    if not report.students:
        return []
    return [
        *ranking_sentences(report.students, report.pairs),
        *panel_sentences(report.panel),
        *agreement_sentences(report.reliability),
        *own_items_sentences(report.own_items),
        *missing_sentences(report.missing),
    ]


def own_items_sentences(rows: Sequence[OwnItemsRow]) -> list[str]:
    """Return which students are better at items that they wrote themselves, beyond chance, or of whom none can tell."""
    sentences, in_common = [], [row for row in rows if row.in_common]
    for row in rows:
        if row.effect is not None and row.flagged and not row.in_common:
            figure = estimate_text(row.effect, row.lower, row.upper)
            sentences.append(
                f"{row.student} is better by {figure} at items that it wrote itself than at those of others; its score "
                "is without that."
            )
    if in_common:
        names = _names_text([row.student for row in in_common])
        if in_common[0].flagged and in_common[0].effect is not None:
            figure = estimate_text(in_common[0].effect, in_common[0].lower, in_common[0].upper)
            sentences.append(
                f"{names} are better by {figure} at items that they wrote themselves, taken for alike; their scores "
                "are without that."
            )
        sentences.append(
            f"{names} wrote the items that both answered: if one gains more than the other at its own, that looks like "
            "quality. Items of others, or a student who wrote none, would tell."
        )
    unknown = [row.student for row in rows if row.effect is None]
    if unknown:
        sentences.append(
            f"What {_names_text(unknown)} gained at items of its own cannot be told from quality: too few answers to "
            "items of others, or to its own, are there to compare; its score holds that."
        )
    return sentences


def missing_sentences(rows: Sequence[MissingRow], lacking: str = "score") -> list[str]:
    """Return whose answers lack scores, or verdicts, more often than others', beyond chance."""
    # Where all judges together left a student's answers out, each of them did: only what one left beyond them is news.
    of_all = {row.student: row.missing for row in rows if not row.judge}
    rows = [row for row in rows if not row.judge or row.missing > of_all.get(row.student, 0)]
    unscored: dict[str, list[str]] = {}
    for row in rows:
        if row.judge and row.missing == row.answers:
            unscored.setdefault(row.judge, []).append(row.student)
    sentences = [
        f"{judge} gave no answer of {_names_text(names)} a {lacking}: of them other judges alone tell."
        for judge, names in unscored.items()
    ]
    rows = [row for row in rows if row.student not in unscored.get(row.judge, [])]
    lacks = [
        f"{row.judge or 'Every judge'} left {row.missing / row.answers:.0%} of {row.student}'s answers without a "
        f"{lacking} and {row.elsewhere:.0%} of others'"
        for row in rows[:_MAX_NAMES_LISTED]
    ]
    more = f" ({len(rows) - len(lacks)} more such cases)" if len(rows) > len(lacks) else ""
    if lacks:
        sentences.append(f"{'; '.join(lacks)}: if these are its worst answers or its best, its score is wrong.{more}")
    if lacking == "score" and any(not row.judge for row in rows):
        sentences.append("Differences that answers without any score may explain count as chance.")
    return sentences


def summary(report: SummaryReport) -> list[str]:
    """Say the same without the tests of differences, which follow no choice of judges."""
    return [*ranking_sentences(report.students), *agreement_sentences(report.reliability)]


def ranking_sentences(rows: Sequence[StudentRow], pairs: Sequence[StudentPair] = ()) -> list[str]:
    """Return who answers best, and whether its lead may be chance; nothing without students."""
    if not rows:
        return []
    best = rows[0]
    figure = estimate_text(best.mean, best.lower, best.upper)
    if best.fit is not None:
        figure = estimate_text(best.fit, best.fit_lower, best.fit_upper)
    text = f"{best.student} answers best, with a score of {figure}"
    if len(rows) == 1:
        return [f"{best.student} is the only student, with a score of {figure}."]
    if not pairs:
        return [f"{text}."]
    apart = [(pair.better, pair.worse) for pair in pairs if pair.significant]
    return lead_sentences(text, [row.student for row in rows], apart)


def lead_sentences(text: str, order: Sequence[str], apart: Sequence[tuple[str, str]]) -> list[str]:
    """Return a sentence about the first of several students, and whether its lead on the others may be chance.

    `apart` are (better, worse), told apart beyond chance.
    """
    ahead = [name for name in order[1:] if (order[0], name) in apart]
    near = [name for name in order[1:] if name not in ahead]
    if not ahead:
        return [f"{text}; its lead on {_names_text(near)} may be chance."]
    others = "all others" if not near else f"{len(ahead)} of {len(order) - 1} others"
    text = f"{text}; it is ahead of {others} beyond chance."
    return [text, f"Its lead on {_names_text(near)} may be chance."] if near else [text]


def panel_sentences(panel: PanelWorth | None) -> list[str]:
    """Return how many independent judges a panel is worth, and who errs alike or carries it; nothing without two."""
    if panel is None:
        return []
    return [_worth_sentence(panel), *_weight_sentences(panel)]


def _worth_sentence(panel: PanelWorth) -> str:
    if not panel.shared:
        text = f"{panel.judges} judges, worth {panel.judges} independent ones as far as can be told"
        return f"{text}: no two err alike more than others, and errors that all share show in people's labels alone."
    figure = estimate_text(panel.effective, panel.lower, panel.upper, 1)
    alike = [f"{pair.first} and {pair.second} ({pair.correlation:.0%})" for pair in panel.shared[:_MAX_NAMES_LISTED]]
    more = f", and {len(panel.shared) - len(alike)} pairs more" if len(panel.shared) > len(alike) else ""
    text = f"{panel.judges} judges, worth about {figure} independent ones at most"
    return f"{text}; these err alike, by the correlation of their errors: {', '.join(alike)}{more}."


def _weight_sentences(panel: PanelWorth) -> list[str]:
    """Return whether judges of one family, or judges with a bias or fault, carry the weight."""
    sentences = []
    if panel.family is not None:
        names, share = _names_text(panel.family.judges), f"{panel.family.weight:.0%}"
        sentences.append(
            f"{names}, of one family ({panel.family.about}), carry {share} of the weight: a liking that they share "
            "decides the ranking."
        )
    if panel.flagged is not None:
        names, share = _names_text(panel.flagged.judges), f"{panel.flagged.weight:.0%}"
        verb = "carries" if len(panel.flagged.judges) == 1 else "carry"
        sentences.append(f"{names} {verb} {share} of the weight, with a bias beyond chance: {panel.flagged.about}.")
    return sentences


def agreement_sentences(row: Reliability | None) -> list[str]:
    """Return how far judges agree, in words and as alpha; nothing where no model judged."""
    if row is None or not row.judges:
        return []
    if row.judges == 1:
        return ["One judge alone scored: nobody else tells how far its scores can be trusted."]
    if row.alpha_interval is None:
        return ["How far judges agree is not known: what they scored in common does not vary."]
    figure = estimate_text(row.alpha_interval, row.alpha_lower, row.alpha_upper, 2)
    words = next(words for least, words in _MIN_ALPHA_IN_WORDS if row.alpha_interval >= least)
    return [f"{words}: Krippendorff's α of {row.judges} judges is {figure}."]


def estimate_text(value: float, lower: float | None, upper: float | None, digits: int = 3) -> str:
    """Return a figure with its interval, where it has one."""
    text = number_text(value, digits)
    if lower is None or upper is None or not (math.isfinite(lower) and math.isfinite(upper)):
        return text
    return f"{text} [{number_text(lower, digits)}, {number_text(upper, digits)}]"


def _names_text(names: Sequence[str]) -> str:
    """Return names as prose lists them, beyond a few as their number."""
    if len(names) > _MAX_NAMES_LISTED:
        return f"{len(names)} others"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def pairs(report: PairsReport) -> list[str]:
    """Say who is preferred most, and whether verdicts follow the order of the answers."""
    best = next((row for row in report.rows if row.rank == 1), None)
    if best is None:
        return []
    text = f"{best.student} is preferred most: it wins {best.win_rate:.0%} against the others"
    text = f"{text}, with a score of {estimate_text(best.score, best.lower, best.upper, 0)}"
    overall = [row.student for row in report.rows if row.task == best.task and not row.attribute]
    sentences = [f"{text}."]
    if report.apart is not None and len(overall) > 1:
        sentences = lead_sentences(text, overall, report.apart)
    sentences += [*own_items_sentences(report.own_items), *panel_sentences(report.panel)]
    sentences += missing_sentences(report.missing, "verdict")
    if len(report.header.judges) == 1:
        sentences.append("One judge alone compared: nobody else tells how far its verdicts can be trusted.")
    seen, flips = sum(row.pairs for row in report.flips), sum(row.flips for row in report.flips)
    if seen:
        sentences.append(f"{flips / seen:.0%} of {seen:,} verdicts flip when the order of the answers is turned.")
    return sentences


def teachers(report: TeacherReport) -> list[str]:
    """Say which teacher's items tell students apart best."""
    if not report.teachers:
        return []
    if report.one_student:
        return ["There is one student, whom no item tells from another."]
    if len(report.teachers) == 1:
        return [f"{report.teachers[0].teacher} wrote all items that were scored."]
    return [f"Items of {report.teachers[0].teacher} tell students apart best, by {report.formula.upper()}."]


def judges(report: JudgeReport) -> list[str]:
    """Say how far judges agree, and with whom peers agree most."""
    whole = next((row for row in report.reliability if row.scope == "all"), None)
    sentences = [*panel_sentences(report.panel), *agreement_sentences(whole)]
    ranked = [row for row in report.judges if row.rank is not None]
    if len(ranked) > 1 and not report.degenerate:
        best, second = ranked[:2]
        both = f"{best.judge} and {second.judge} gave equal scores to {best.spa or 0:.0%} of what both scored."
        # Of two judges each is the only peer of the other.
        sentences.append(both if len(ranked) == 2 else f"Peers agree most with {best.judge}.")
    flagged = [row.judge for row in report.scales if row.flags]
    if flagged:
        sentences.append(f"Biases or faults beyond chance: {_names_text(flagged)}.")
    if sentences:
        return sentences
    if report.bias.flips:
        return ["There are verdicts on pairs alone, which may depend on the order of the answers."]
    return ["All scores are computed: no model judged."] if any(row.units for row in report.judges) else []


def distribution(report: ScoreDistribution) -> list[str]:
    """Say how scores spread over the levels."""
    rows = [row for row in report.rows if row.role == "student" and row.dimension == "all"]
    units = sum(row.units for row in rows)
    if not units:
        return []
    mean = sum(row.mean * row.units for row in rows) / units
    counts = [(name, sum(getattr(row, name.lower()) for row in rows)) for name in ("High", "Medium", "Low")]
    shares = [f"{count / units:.0%} are {name}" for name, count in counts if count]
    return [
        f"Of {units:,} scores {', '.join(shares)}; their mean is {mean:.3f}."
        if shares
        else f"The mean of {units:,} scores is {mean:.3f}."
    ]


def interaction(report: InteractionMatrix) -> list[str]:
    """Say where a student departs most from its own mean."""
    cells = [cell for cell in report.cells if not cell.factor]
    if not cells:
        return []
    if len({cell.teacher for cell in cells}) == 1:
        return [f"All items are of {cells[0].teacher}: there is no other teacher to compare with."]
    most = max(cells, key=lambda cell: abs(cell.deviation))
    side = "above" if most.deviation >= 0 else "below"
    own = " its own" if most.is_self else f" {most.teacher}'s"
    return [
        f"{most.student} departs most from itself: on{own} items it lies {abs(most.deviation):.3f} {side} its mean."
    ]


def consistency(report: JudgeConsistency) -> list[str]:
    """Say which judges give one level to nearly everything."""
    if not report.calibration:
        return []
    flagged = [row.judge for row in report.calibration if row.flagged]
    if flagged:
        return [f"More than 90 % of the scores are one level, High or Low: {_names_text(flagged)}."]
    return ["No judge gives High, or Low, to more than 90 % of what it scores."]


def robust(report: RobustSummary) -> list[str]:
    """Say who is best on the items on which good judges agree, and whether the order is that on all items."""
    if not report.kept or not report.students:
        return []
    best = report.students[0]
    where = f"On the {report.kept:,} of {report.candidates:,} items on which the best judges agree"
    moved = [row.student for row in report.students if row.rank != row.full_rank]
    order = f"{_names_text(moved)} change their rank" if moved else "the order is that on all items"
    return [
        f"{where}, {best.student} answers best, with {estimate_text(best.robust, best.lower, best.upper)}; {order}."
    ]


def coverage(report: CoverageSummary) -> list[str]:
    """Say how much of what the run should hold is there and valid; of a run without scores, what there is."""
    expected, valid = (int(report.rows.values[name].sum()) for name in ("expected", "valid"))
    if expected:
        return [f"{valid:,} of {expected:,} evaluations that the run calls for are valid ({valid / expected:.0%})."]
    header = report.header
    kinds = (("items", header.datapoints), ("answers", header.responses), ("verdicts on pairs", header.verdicts))
    counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds if count)
    return [f"The run has {counts or 'no records that can be used'}."]


def people(report: Calibration) -> list[str]:
    """Say who answers best on people's scale, and how the judges' order differs."""
    if not report.students:
        return []
    best = report.students[0]
    figure = estimate_text(best.calibrated, best.lower, best.upper)
    moved = [row.student for row in report.students if row.rank != row.raw_rank]
    order = f"Corrected, {_names_text(moved)} change their rank." if moved else "The order is that of the judges."
    near = best.tied.split(", ") if best.tied else []
    lead = f"; it is not told from {_names_text(near)}" if near else ", beyond chance" if report.students[1:] else ""
    labels = sum(row.labels for row in report.students)
    if not labels:
        return [f"People have scored nothing: {best.student} is first by the judges alone{lead}."]
    sentences = [f"{best.student} answers best on people's scale, with {figure}{lead}.", order]
    if report.worth is not None:
        judges = len([row for row in report.judges if not row.factor])
        worth = number_text(report.worth, 1)
        sentences.append(
            f"By people's labels {judges} judges are worth about {worth} independent ones, or a little more."
        )
    return sentences
