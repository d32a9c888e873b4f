"""Command: `p2l-route compare-policies`: which policy of an experiment, or of a shadow, is worth more, by the log.

p2l-route compare-policies router.log --experiment cheaper
p2l-route compare-policies logs/*.jsonl --judged verdicts.jsonl --html cheaper.html

Intervals hold however often one looks: an experiment may be ended on the day on which one leaves zero out.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from p2l.common.cli import add_html, add_level, counted, number_of, parser, run
from p2l.common.errors import InputError
from p2l.common.files import check_can_write, write_json

if TYPE_CHECKING:
    from p2l.common.bootstrap import Interval
    from p2l.common.report.reports import Report, Verdict
    from route.evaluation.policy_values import PolicyValues
    from route.evaluation.trial_log import Trials

_MEASURES = {
    "judged": ("judged score", True),
    "votes": ("share of thumbs up", True),
    "cost": ("cost of a request", False),
    "seconds": ("seconds to the whole answer", False),
    "failures": ("share that failed", False),
}
"""Measure: (its name in words, whether more is better); the first that is known decides."""
_NET_WINS = "judged pairs, won less lost"
_POWER_ERRORS = 0.84
"""Standard errors beyond the limit of an interval at which it leaves zero out with a chance of 80 %."""
_MOST_FORESEEN = 10_000_000
"""Requests; that more would be needed says nothing."""
_ALMOST_ALL = 0.999


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    flags = parser(
        "p2l-route compare-policies", "Compare the policies of an experiment or of a shadow by the router's log."
    )
    flags.add_argument(
        "log", nargs="+", metavar="LOG", help="what routers wrote to standard error; - is standard input"
    )
    flags.add_argument("--experiment", metavar="NAME", help="its name in the configuration, or shadow")
    flags.add_argument(
        "--judged",
        metavar="FILE",
        help="verdicts by question_id, which is the request's id: a score of the answer, or votes between pairs",
    )
    add_level(flags)
    flags.add_argument("--json", metavar="FILE", help="also write all figures")
    add_html(flags)
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    flags = build_parser().parse_args(argv)
    number_of(str(flags.level), float, lambda level: 0.5 <= level < 1, "--level: a number from 0.5 up to 1")
    if flags.json is not None:
        check_can_write(flags.json, *flags.log)
    from p2l.common.report.reports import check_page, save_report
    from p2l.common.report.text import report_json, report_text
    from route.evaluation.policy_values import estimate, net_wins
    from route.evaluation.trial_log import read_log, trials_of

    if flags.html is not None:
        check_page(flags.html, *flags.log)
    requests, votes = read_log(flags.log)
    trials = trials_of(requests, votes, flags.experiment)
    pairs = {} if flags.judged is None else _read_judged(flags.judged, trials)
    values = [estimate(trials, measure, level=flags.level) for measure in _MEASURES if measure in trials.outcomes]
    report = _report(trials, values, net_wins(trials, pairs, level=flags.level))
    print(report_text(report))
    if flags.json is not None:
        write_json(flags.json, report_json(report))
    if flags.html is not None:
        save_report(report, flags.html)


def _read_judged(path: str, trials: Trials) -> Mapping[str, float]:
    """Take scores of answers over into the trials, or return by request how much better the unseen answer is."""
    import numpy as np

    from p2l.votes.door import read_frame
    from p2l.votes.sources import open_source

    frame = read_frame(open_source(path), {"question_id", "score", "model_a", "model_b", "winner"})
    has_pairs = {"model_a", "model_b", "winner"} <= set(frame.columns)
    if "question_id" not in frame or not (has_pairs or "score" in frame):
        raise InputError(f"{path}: needs question_id, and score, or model_a, model_b and winner")
    ids = [str(request) for request in frame["question_id"]]
    place = {request: number for number, request in enumerate(trials.requests)}
    if place.keys().isdisjoint(ids):
        raise InputError(f"{path}: no question_id is the id of a request of {trials.experiment}")
    if not has_pairs:
        scores = np.full(len(place), np.nan)
        for request, score in zip(ids, frame["score"].astype(float), strict=True):
            if request in place:
                scores[place[request]] = score
        trials.outcomes["judged"] = scores
        return {}
    verdicts = {}
    columns = (frame[name].astype(str) for name in ("model_a", "model_b", "winner"))
    for request, model_a, model_b, winner in zip(ids, *columns, strict=True):
        if request in place:
            better = {"model_a": model_a, "model_b": model_b}.get(winner)
            verdicts[request] = 0.0 if better is None else 1.0 if better == trials.unseen[place[request]] else -1.0
    return verdicts


def _report(trials: Trials, values: Sequence[PolicyValues], wins: Interval | None) -> Report:
    from p2l.common.report.reports import Report, Section, today
    from p2l.common.report.tables import Column, Table

    first = trials.policies[0]
    names = [Column("Measure", number=False, key="measure"), Column("Policy", number=False, key="policy")]
    ends = [Column("From", 4, key="lower"), Column("To", 4, key="upper")]
    worth_rows, difference_rows = [], []
    for each in values:
        words = _MEASURES[each.measure][0]
        for policy, value in zip(trials.policies, each.values, strict=True):
            worth_rows.append([words, policy, value.estimate, value.lower, value.upper, each.requests])
        for policy, gap in zip(trials.policies[1:], each.differences, strict=True):
            difference_rows.append([words, policy, gap.estimate, gap.lower, gap.upper, each.requests])
    if wins is not None:
        difference_rows.append(
            [_NET_WINS, trials.policies[-1], *wins[:3], sum(each is not None for each in trials.unseen)]
        )
    count = Column("Requests", key="requests")
    worths = Table([*names, Column("Value", 4, key="value"), *ends, count], worth_rows)
    differences = Table([*names, Column("Difference", 4, key="difference"), *ends, count], difference_rows)
    sections = [
        Section(f"Less what {first} has", [differences]),
        Section("What each is worth, had it chosen for all requests", [worths]),
    ]
    units = int(trials.units.max()) + 1
    data = f"{counted(len(trials.requests), 'request')} of {counted(units, 'unit')}"
    return Report(
        "Comparison of policies",
        trials.experiment,
        data,
        today(),
        _verdict(trials, values, wins),
        None,
        sections,
        (),
        _notes(trials),
    )


def _verdict(trials: Trials, values: Sequence[PolicyValues], wins: Interval | None) -> Verdict:
    """Return which policies are told apart in the first measure that is known, and how many requests would tell."""
    from p2l.common.report.reports import Verdict

    name, more_is_better, gaps, requests = _deciding(trials, values, wins)
    first = trials.policies[0]
    sentences, tones = [], set()
    for policy, gap in zip(trials.policies[1:], gaps, strict=True):
        span = f"{gap.estimate:+.4g} [{gap.lower:+.4g}, {gap.upper:+.4g}] in {name}"
        if gap.lower <= 0 <= gap.upper:
            sentences.append(f"Not decided: {policy} less {first} is {span}.{_further(gap, requests)}")
            continue
        is_better = (gap.estimate > 0) == more_is_better
        tones.add("good" if is_better else "bad")
        sentences.append(f"Decided: {policy} is {'better' if is_better else 'worse'} than {first}, {span}.")
    tone = tones.pop() if len(tones) == 1 else ""
    reason = "These intervals hold however often one looks; nothing is switched but by a change of the configuration."
    return Verdict(" ".join(sentences), tone, reason)


def _deciding(
    trials: Trials, values: Sequence[PolicyValues], wins: Interval | None
) -> tuple[str, bool, Sequence[Interval], int]:
    """Return the measure that decides: its name, whether more is better, differences, and requests behind them."""
    if wins is not None:
        return _NET_WINS, True, [wins], len(trials.requests)
    first = values[0]
    return *_MEASURES[first.measure], first.differences, first.requests


def _further(gap: Interval, requests: int) -> str:
    """Return how many requests more decide with a chance of 80 %, if the difference is what it seems."""
    import math

    if not gap.estimate or not math.isfinite(gap.upper):
        return ""
    errors = (gap.upper - gap.estimate) / gap.standard_error + _POWER_ERRORS if gap.standard_error else 0.0
    needed = math.ceil(requests * (errors * gap.standard_error / gap.estimate) ** 2)
    if needed <= requests or needed > _MOST_FORESEEN:
        return ""
    return (
        f" About {counted(needed - requests, 'further request')} would decide it, if the difference is what it seems."
    )


def _notes(trials: Trials) -> Sequence[str]:
    """Return what a reader must know: requests left out, votes that few gave, choices that nobody saw."""
    import numpy as np

    notes = list(trials.notes)
    rated = int(np.isfinite(trials.outcomes.get("votes", np.empty(0))).sum())
    if rated:
        notes.append(
            f"{rated:,} of {len(trials.requests):,} requests have thumbs; who rates may differ from who does not."
        )
    asked = trials.chances[0] > 0
    seen = float((trials.chances[-1] * asked).sum(axis=1).mean())
    if trials.experiment == "shadow" and seen < _ALMOST_ALL:
        notes.append(
            f"{1 - seen:.0%} of what the shadow would choose is never asked by the router for such requests: there its "
            "values are what P2L's scores lead to expect, not what was seen. explore, or key and pairs of the shadow, "
            "show it."
        )
    if len(trials.policies) > 2:
        notes.append("Each interval holds by itself; of several policies one may seem different by chance more often.")
    return notes


if __name__ == "__main__":
    run(main)
