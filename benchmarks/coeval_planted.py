"""Runs of CoEval with planted truths: what its analysis finds of them, beside what plain means and their tests find.

python -m benchmarks.coeval_planted [--runs 100] [--only balance duplicates ranking votes families coverage missing
    own-items own-items-of-pairs]

Runs are written to a temporary folder in the format of `coeval run` and analysed by the reports of `coeval analyze`.
Each table has a column for what was done before: plain means of all scores, with percentile intervals of a bootstrap
that draws single items. Seeds are 0, 1, 2, ...
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.tables import share, table
from coeval.analysis.bias import family_rows, self_preference_rows
from coeval.analysis.fit import Fit, fit_table, fit_verdicts
from coeval.analysis.judge_tests import bias_tests
from coeval.analysis.panel import ScoreTable, verdict_table
from coeval.analysis.statistics import holm, kendall
from coeval.analysis.students import StudentPair, by_datapoint, fitted_pairs, student_pairs, student_rows
from coeval.analysis.teachers import teacher_rows
from coeval.analysis.units import LoadedRun, load_run
from coeval.analysis.variance import advantage_tests, missing_rows, verdict_own_items
from coeval.analysis.votes import Rule, leaderboard_of, run_board, votes_of
from p2l.common.bootstrap import bootstrap_mean

Floats = npt.NDArray[np.float64]
FACTORS = ("accuracy", "clarity", "style")
LEVELS = ("Low", "Medium", "High")
JUDGES = ("honest-1", "random", "verbose", "honest-2", "selfish", "constant")
"""All six judge and answer; in the order of their true skill as students, best first."""
STRONG = {"teacher-0", "teacher-1"}
PLANTED = {"selfish": "self-preference", "verbose": "verbosity", "constant": "constant", "random": "random"}
HONEST = ("honest-1", "honest-2")
ESTIMATES = (
    "the fit",
    "the fit at equal length",
    "mean of all scores (before)",
    "mean of the two honest judges, if one knew them",
)
Row = tuple[str, str, str]


@dataclass
class Planted:
    """A run to be written: score levels (D, S, J, F) with -1 where there is none."""

    levels: npt.NDArray[np.int64]
    students: Sequence[str]
    judges: Sequence[str]
    teachers: Sequence[str]
    """Of each item."""
    prompts: Sequence[str]
    tokens: npt.NDArray[np.int64]  # (D, S)
    truth: Mapping[str, float] = field(default_factory=dict)
    is_compared: bool = False
    """Whether judges compare answers by these levels, in place of telling them."""


def write(folder: Path, run: Planted) -> LoadedRun:
    """Write a run and read it as `coeval analyze` does."""
    for part in ("phase2_rubric", "phase3_datapoints", "phase4_responses", "phase5_evaluations", "phase5_pairwise"):
        (folder / part).mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"experiment_id": "planted", "status": "completed"}))
    (folder / "phase2_rubric" / "t.rubric.json").write_text(json.dumps(dict.fromkeys(FACTORS, "text")))
    items, answers, scores, verdicts = [], [], [], []
    for place, (teacher, prompt) in enumerate(zip(run.teachers, run.prompts, strict=True)):
        point = {"task_id": "t", "teacher_model_id": teacher}
        item = f"t__{teacher}__{place + 1:05d}"
        items.append({**point, "id": item, "prompt": prompt, "reference_response": "-"})
        for s, student in enumerate(run.students):
            about = {**point, "datapoint_id": item, "student_model_id": student}
            tokens = int(run.tokens[place, s])
            answers.append({**about, "id": f"{item}__{student}", "response": "words", "token_count": tokens})
            for j, judge in enumerate(run.judges):
                levels = run.levels[place, s, j]
                if levels[0] >= 0 and not run.is_compared:
                    given = {name: LEVELS[level] for name, level in zip(FACTORS, levels.tolist(), strict=True)}
                    key = {"id": f"{item}__{student}__{judge}", "response_id": f"{item}__{student}"}
                    scores.append({**about, **key, "judge_model_id": judge, "scores": given, "evaluated_at": ""})
        if run.is_compared:
            verdicts += _verdicts(run, place, {**point, "datapoint_id": item})
    _lines(folder / "phase3_datapoints/t.all.datapoints.jsonl", items)
    _lines(folder / "phase4_responses/t.all.responses.jsonl", answers)
    _lines(folder / "phase5_evaluations/t.all.all.evaluations.jsonl", scores)
    _lines(folder / "phase5_pairwise/t.all.all.pairwise.jsonl", verdicts)
    return load_run(folder)


def _verdicts(run: Planted, place: int, about: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what each judge prefers of each two answers to an item: the one whose levels add up to more."""
    totals = run.levels[place].sum(axis=-1)
    for a, b in combinations(range(len(run.students)), 2):
        for j, judge in enumerate(run.judges):
            winner = ("tie", "model_a", "model_b")[int(np.sign(totals[a, j] - totals[b, j]))]
            models = {"model_a": run.students[a], "model_b": run.students[b]}
            key = {"id": f"{about['datapoint_id']}__{a}__{b}__{judge}", "judge_model_id": judge}
            if (run.levels[place, [a, b], j] < 0).any():
                yield {**about, **models, **key, "status": "failed", "error": "no verdict"}
                continue
            yield {**about, **models, **key, "winner": winner, "verdicts": [winner, winner], "order_consistent": True}


def _lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def words(rng: np.random.Generator, number: int) -> str:
    """A prompt that resembles no other."""
    letters = rng.integers(97, 123, size=(number, 6)).astype(np.uint8)
    return " ".join(bytes(row).decode() for row in letters)


def graded(seen: Floats, rng: np.random.Generator, cuts: tuple[float, float], noise: float) -> npt.NDArray[np.int64]:
    """Levels (..., F) of what a judge sees (...) of answers, each factor with noise of its own."""
    each = seen[..., None] + noise * rng.normal(size=(*seen.shape, len(FACTORS)))
    return (each > cuts[0]).astype(np.int64) + (each > cuts[1])


def arena(seed: int, high: float, items: int = 160) -> Planted:
    """Six models that answer and judge, two of them honestly; half of four teachers weak; a share `high` of High."""
    rng = np.random.default_rng(seed)
    students = list(JUDGES)
    skill = np.linspace(1.0, -1.0, len(students))
    teachers = [f"teacher-{place % 4}" for place in range(items)]
    weak = np.array([place % 4 >= 2 for place in range(items)])
    spread, noise = np.where(weak, 0.4, 1.4), np.where(weak, 0.9, 0.5)
    quality = spread[:, None] * skill + 0.5 * rng.normal(size=(items, 1))
    quality = quality + noise[:, None] * rng.normal(size=(items, len(students)))
    wordy = rng.permutation(np.linspace(-0.5, 0.5, len(students))) - 0.7 * skill
    length = wordy + 0.6 * rng.normal(size=quality.shape)
    tokens = np.maximum(5, np.rint(150 * 2.0**length)).astype(np.int64)
    share = (high - 1.0 / len(JUDGES)) / (1.0 - 1.0 / len(JUDGES))  # of all but the constant judge
    centre = float(np.quantile(quality + 0.5 * rng.normal(size=quality.shape), 1.0 - share))
    levels = np.empty((*quality.shape, len(JUDGES), len(FACTORS)), dtype=np.int64)
    for j, judge in enumerate(JUDGES):
        severity = {"honest-1": 0.15, "honest-2": -0.15}.get(judge, 0.0)
        cuts = (centre + severity - 0.7, centre + severity)
        own = np.arange(len(students)) == students.index(judge)
        seen = quality + {"honest-1": 0.3, "honest-2": 0.6}.get(judge, 0.5) * rng.normal(size=quality.shape)
        if judge == "selfish":
            seen = seen + 1.6 * own
        if judge == "verbose":
            seen = seen + 1.5 * length
        levels[:, :, j] = graded(seen, rng, cuts, 0.3)
        if judge == "constant":
            levels[:, :, j] = 2
        if judge == "random":
            levels[:, :, j] = rng.choice(3, p=[(1 - high) / 2, (1 - high) / 2, high], size=levels[:, :, j].shape)
    prompts = [words(rng, 12) for _ in range(items)]
    return Planted(levels, students, JUDGES, teachers, prompts, tokens, dict(zip(students, skill, strict=True)))


KIN = ("gpt-a", "gpt-b", "gpt-c", "claude-a", "claude-b", "gemini-a")
FAVOURED = "gpt-a"
"""The one judge that favours its family."""


def kin(seed: int, items: int = 120) -> Planted:
    """Six models of three families that answer and judge; one of them favours the others of its family."""
    rng = np.random.default_rng(seed)
    skill = rng.permutation(np.linspace(0.8, -0.8, len(KIN)))
    quality = skill + 0.5 * rng.normal(size=(items, 1)) + 0.5 * rng.normal(size=(items, len(KIN)))
    severity = rng.permutation(np.linspace(-0.3, 0.3, len(KIN)))
    levels = np.empty((*quality.shape, len(KIN), len(FACTORS)), dtype=np.int64)
    for j, judge in enumerate(KIN):
        seen = quality + rng.uniform(0.3, 0.7) * rng.normal(size=quality.shape)
        if judge == FAVOURED:
            seen = seen + 1.2 * np.array([name.startswith("gpt") and name != judge for name in KIN])
        levels[:, :, j] = graded(seen, rng, (severity[j] - 0.7, severity[j] + 0.1), 0.3)
    prompts, tokens = [words(rng, 12) for _ in range(items)], np.full(quality.shape, 50)
    return Planted(levels, KIN, KIN, ["ada"] * items, prompts, tokens, dict(zip(KIN, skill.tolist(), strict=True)))


def repeated(seed: int, distinct: int, items: int = 60) -> Planted:
    """Three students of equal skill, two judges; sixty items that have so many distinct prompts, drawn unevenly."""
    rng = np.random.default_rng(seed)
    of = np.concatenate([np.arange(distinct), rng.integers(distinct, size=items - distinct)])
    texts = [words(rng, 15) for _ in range(distinct)]
    prompts = [
        texts[place] + ("" if number < distinct else " " + "?" * (number % 3)) for number, place in enumerate(of)
    ]
    quality = (0.8 * rng.normal(size=(distinct, 1)) + rng.normal(size=(distinct, 3)))[of]  # answers repeat, too
    quality = quality + 0.3 * rng.normal(size=quality.shape)
    seen = quality[..., None] + 0.4 * rng.normal(size=(*quality.shape, 2))
    levels = graded(seen, rng, (-0.6, 0.4), 0.3)
    students, tokens = ("a", "b", "c"), np.full(quality.shape, 50)
    return Planted(levels, students, ("j1", "j2"), ["ada"] * items, prompts, tokens)


def gapped(seed: int, items: int = 60) -> Planted:
    """Three students of equal skill; a lenient and a severe judge, whose quota ended it: it scored only two of them."""
    rng = np.random.default_rng(seed)
    quality = 0.7 * rng.normal(size=(items, 1)) + 0.7 * rng.normal(size=(items, 3))
    levels = np.stack(
        [graded(quality + 0.4 * rng.normal(size=quality.shape), rng, cuts, 0.3) for cuts in ((-0.9, 0.1), (0.4, 1.4))],
        axis=2,
    )
    levels[:, 2, 1] = -1  # the severe judge scored nothing of the third,
    levels[items // 2 :, 1, 1] = -1  # and half of the second
    prompts = [words(rng, 12) for _ in range(items)]
    tokens = np.full(quality.shape, 50)
    return Planted(levels, ("a", "b", "c"), ("lenient", "severe"), ["ada"] * items, prompts, tokens)


def sampled(seed: int, items: int, high: float = 0.65) -> Planted:
    """Two students, four judges, so many items; `truth` has each student's mean score over all possible items."""
    rng = np.random.default_rng(seed)
    skill = np.array([0.25, -0.25])
    cut = float(np.quantile(np.random.default_rng(0).normal(size=200_000) * np.sqrt(0.5 + 0.5 + 0.25 + 0.09), 1 - high))

    def draw(rng: np.random.Generator, items: int) -> npt.NDArray[np.int64]:
        quality = skill + np.sqrt(0.5) * (rng.normal(size=(items, 1)) + rng.normal(size=(items, 2)))
        return graded(quality[..., None] + 0.5 * rng.normal(size=(items, 2, 4)), rng, (cut - 0.8, cut), 0.3)

    means = draw(np.random.default_rng(10_000), 100_000).mean(axis=(0, 2, 3)) / 2.0
    levels, prompts = draw(rng, items), [words(rng, 12) for _ in range(items)]
    truth = dict(zip(("a", "b"), means.tolist(), strict=True))
    return Planted(levels, ("a", "b"), tuple("jklm"), ["ada"] * items, prompts, np.full((items, 2), 50), truth)


def at_home(seed: int, advantage: float, students: str = "abc", *, skilled: bool = False, items: int = 80) -> Planted:
    """Students of whom all but the last, or both of two, wrote the items in turn; the first is better at its own.

    They are alike at items of others, or `skilled`: evenly from -0.4 to 0.4.
    """
    rng = np.random.default_rng(seed)
    names, writers = tuple(students), students if len(students) == 2 else students[:-1]
    teachers = [writers[place % len(writers)] for place in range(items)]
    skill = rng.permutation(np.linspace(-0.4, 0.4, len(names))) if skilled else np.zeros(len(names))
    quality = 0.6 * rng.normal(size=(items, 1)) + 0.7 * rng.normal(size=(items, len(names)))
    quality[:, 0] += advantage * (np.arange(items) % len(writers) == 0)
    quality += skill
    levels = np.stack([graded(quality + 0.4 * rng.normal(size=quality.shape), rng, (-0.6, 0.5), 0.3)] * 2, axis=2)
    levels[:, :, 1] = graded(quality + 0.5 * rng.normal(size=quality.shape), rng, (-0.5, 0.6), 0.3)
    prompts, tokens = [words(rng, 12) for _ in range(items)], np.full(quality.shape, 50)
    return Planted(levels, names, ("j", "k"), teachers, prompts, tokens, dict(zip(names, skill.tolist(), strict=True)))


# What was done before: plain means of all scores, and draws of single items.


def old_p_values(loaded: LoadedRun) -> list[float]:
    """P-values of all pairs of students by the bootstrap of items, whatever their prompts and judges."""
    scores = by_datapoint(loaded)
    pairs = [(a, b) for a in range(scores.shape[1]) for b in range(a)]
    drawn = [bootstrap_mean((gap := scores[:, a] - scores[:, b])[~np.isnan(gap)]) for a, b in pairs]
    return [math.erfc(abs(one.estimate) / max(one.standard_error, 1e-12) / math.sqrt(2.0)) for one in drawn]


def plain_means(loaded: LoadedRun) -> Floats:
    """Mean of all scores of each student."""
    units = loaded.units
    return np.asarray(np.bincount(units.student, units.norm) / np.bincount(units.student))


def runs_of(make: Callable[[int], Planted], runs: int) -> Iterator[tuple[Planted, LoadedRun]]:
    """Yield the runs of as many seeds, written and read."""
    for seed in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            run = make(seed)
            yield run, write(Path(folder) / "run", run)


def differences(loaded: LoadedRun) -> tuple[StudentPair, ...]:
    """Return the differences of students, with their tests."""
    return student_pairs(loaded, by_datapoint(loaded))


def balance(runs: int) -> Iterator[Row]:
    """Three students of equal skill, of whom a severe judge scored one, half of one and none."""
    old, new, ranges = [], [], []
    for _, loaded in runs_of(gapped, runs):
        old += [p < 0.05 for p in old_p_values(loaded)]
        new += [pair.p_value < 0.05 for pair in differences(loaded)]
        fitted = [row.fit or 0.0 for row in student_rows(loaded)]
        ranges.append((np.ptp(plain_means(loaded)), np.ptp(fitted)))
    plain, fit = np.mean(ranges, axis=0)
    about = "equal students, of whom a severe judge with a quota scored one, half of one and none"
    yield f"{about}: false positives at 5 %", share(np.mean(new), 1), share(np.mean(old), 1)
    yield "range of their three scores", f"{fit:.3f}", f"{plain:.3f}"


def duplicates(runs: int) -> Iterator[Row]:
    """Equal students on sixty items that repeat prompts; before, items were drawn singly."""
    for distinct in (40, 20, 10):
        old, new = [], []
        for _, loaded in runs_of(partial(repeated, distinct=distinct), runs):
            old += [p < 0.05 for p in old_p_values(loaded)]
            new += [pair.p_value < 0.05 for pair in differences(loaded)]
        about = f"equal students, sixty items of {distinct} distinct prompts: false positives at 5 %"
        yield about, share(np.mean(new), 1), share(np.mean(old), 1)


def ranking(runs: int) -> Iterator[Row]:
    """Six students, two honest judges among six: Kendall's tau to the truth, and the biases found."""
    columns = [_ranking(runs, high) for high in (0.65, 0.82)]
    for name in columns[0]:
        yield name, *(column[name] for column in columns)


def _ranking(runs: int, high: float) -> dict[str, str]:
    """Return what was measured, by what it is of."""
    taus: dict[str, list[float]] = {name: [] for name in ESTIMATES}
    found, flagged, sharp, teachers = (Counter[str]() for _ in range(4))
    for run, loaded in runs_of(partial(arena, high=high), runs):
        truth = np.array([run.truth[name] for name in loaded.students])
        rows = {row.student: row for row in student_rows(loaded)}
        honest = np.isin(loaded.units.judge, [loaded.judges.index(name) for name in HONEST])
        estimates = (
            [rows[name].fit for name in loaded.students],
            [rows[name].length_controlled for name in loaded.students],
            plain_means(loaded),
            plain_means(loaded.with_units(loaded.units.where(honest))),
        )
        for name, values in zip(ESTIMATES, estimates, strict=True):
            taus[name].append(kendall(truth, np.array(values, dtype=np.float64)) or 0.0)
        tests = [row for row in bias_tests(loaded) if row.flagged]
        found.update(name for name, bias in PLANTED.items() if any((t.judge, t.bias) == (name, bias) for t in tests))
        flagged.update({test.judge for test in tests} - set(PLANTED))
        teachers["separation"] += leads(loaded, "v1")
        teachers["spread"] += leads(loaded, "s2")
        for name in ("v1", "s2"):
            best = sorted(teacher_rows(loaded), key=lambda row: -getattr(row, name))[:2]
            teachers[name] += {row.teacher for row in best} == STRONG
        sharp.update(row.judge for row in self_preference_rows(loaded) if row.lower > 0 or row.upper < 0)
    cells = {f"Kendall's tau to the truth, {name}": f"{np.mean(values):.3f}" for name, values in taus.items()}
    shares = {f"planted {PLANTED[name]} found": [found[name]] for name in PLANTED}
    shares["honest judges flagged, by any test"] = [flagged[name] for name in HONEST]
    shares["honest judges whose raw self-preference leaves zero out (before)"] = [sharp[name] for name in HONEST]
    for name in ("separation", "spread", "v1", "s2"):
        shares[f"the two strong teachers lead, by {name}"] = [teachers[name]]
    return cells | {name: ", ".join(share(one / runs) for one in counts) for name, counts in shares.items()}


def votes(runs: int) -> Iterator[Row]:
    """Kendall's tau of a leaderboard of the votes to the ranking of the report; before, every judge's counted alike."""
    for high in (0.65, 0.82):
        now, before, first = [], [], []
        for _, loaded in runs_of(partial(arena, high=high), runs):
            fitted = {row.student: row.fit or 0.0 for row in student_rows(loaded)}
            report = np.array([fitted[name] for name in loaded.students])
            every, _ = votes_of(loaded, Rule())
            judge = loaded.student_codes("judge")[every.judge]
            others = every.where((judge != every.model_a) & (judge != every.model_b))
            alike = replace(others, weight=np.ones(len(others)))
            boards = [run_board(loaded), leaderboard_of(alike, loaded.students, intervals=None)]
            coefs = [
                np.array([dict(zip(b.models, b.coefs, strict=True))[n] for n in loaded.students]) for b in boards if b
            ]
            now.append(kendall(report, coefs[0]) or 0.0)
            before.append(kendall(report, coefs[1]) or 0.0)
            first.append(int(coefs[0].argmax()) == int(report.argmax()))
        about = f"Kendall's tau of votes to the report, {share(high)} High"
        yield about, f"{np.mean(now):.3f}", f"{np.mean(before):.3f}"
        yield f"one first place in votes and report, {share(high)} High", share(float(np.mean(first))), ""


def families(runs: int) -> Iterator[Row]:
    """Six judges of three families, of whom one favours its own."""
    found, flagged, raw = 0, Counter[str](), Counter[str]()
    for _, loaded in runs_of(kin, runs):
        tests = {(test.judge, test.bias) for test in bias_tests(loaded) if test.flagged}
        found += (FAVOURED, "family-preference") in tests
        flagged.update({judge for judge, _ in tests} - {FAVOURED})
        raw.update(row.judge for row in family_rows(loaded) if row.lower > 0 or row.upper < 0)
    honest = [raw[name] / runs for name in KIN[:-1] if name != FAVOURED]  # the last has no family
    yield "a judge that favours its family, of six judges of three families: found", share(found / runs), ""
    yield "honest judges flagged", share(sum(flagged.values()) / runs / (len(KIN) - 1), 1), share(np.mean(honest))


def own_items(runs: int) -> Iterator[Row]:
    """Students of whom all but one wrote the items; the first has an advantage at its own."""
    for students in ("abc", "abcd"):
        for advantage in (0.0, 0.3, 0.6, 1.2):
            yield from own_items_of_students(runs, students, advantage)


def own_items_of_students(runs: int, students: str, advantage: float) -> Iterator[Row]:
    """Return the rows of these students and this advantage."""
    found, columns, plain = 0, [_OwnItems(), _OwnItems()], []
    for seed in range(runs):
        for skilled in (False, True):
            run = at_home(seed, advantage, students, skilled=skilled)
            truth, whole = np.array(list(run.truth.values())), as_table(run)
            blind = fit_table(replace(whole, wrote=np.zeros_like(whole.wrote)))
            for column, fit in zip(columns, (fit_table(whole), blind), strict=True):
                if fit is not None:
                    column.add(fit, truth, skilled=skilled)
                    if column is columns[0] and not skilled:
                        found += advantage_tests(fit)[0].flagged
            if skilled:
                plain.append(kendall(truth, run.levels.mean(axis=(0, 2, 3))) or 0.0)
    about = f"{len(students)} students, all but one wrote items, the first better by {advantage} at its own"
    yield f"{about}: found", share(found / runs), ""
    yield from _told(about, columns)
    yield f"{about}: the same of plain means", "", f"{np.mean(plain):.3f}"


def _compared(make: Callable[[int], Planted], seed: int) -> Planted:
    """Return a run whose judges compare answers, in place of scoring them."""
    return replace(make(seed), is_compared=True)


def own_items_of_pairs(runs: int) -> Iterator[Row]:
    """The same students, whose answers judges compare; before, the fit took no account of who wrote an item."""
    for students in ("abc", "abcd"):
        for advantage in (0.0, 0.6, 1.2):
            yield from own_items_compared(runs, students, advantage)


def own_items_compared(runs: int, students: str, advantage: float) -> Iterator[Row]:
    """Return the rows of these students and this advantage."""
    alike = partial(at_home, students=students, advantage=advantage)
    found, columns = 0, [_OwnItems(), _OwnItems()]
    for skilled in (False, True):
        for run, loaded in runs_of(partial(_compared, partial(alike, skilled=skilled)), runs):
            truth = np.array([run.truth[name] for name in loaded.students])
            whole = verdict_table(loaded)
            blind = fit_table(replace(whole, wrote=np.zeros_like(whole.wrote)))
            for column, fit in zip(columns, (fit_verdicts(loaded), blind), strict=True):
                if fit is not None:
                    column.add(fit, truth, skilled=skilled)
            if skilled:
                board = run_board(loaded)
                columns[0].boards.append(kendall(truth, board.coefs) or 0.0 if board is not None else 0.0)
            else:
                found += any(row.flagged for row in verdict_own_items(loaded) if row.student == "a")
    wrote = f"{len(students)} students compared, all but one wrote items"
    about = f"{wrote}, the first better by {advantage} at its own"
    yield f"{about}: found", share(found / runs), ""
    yield from _told(about, columns)
    yield f"{about}: the same of the leaderboard of votes", f"{np.mean(columns[0].boards):.3f}", ""


def as_table(run: Planted) -> ScoreTable:
    """Return the scores of a run as the fit takes them, without writing them: every judge has scored every answer."""
    items, students, judges = run.levels.shape[:3]
    wrote = np.array([[teacher == student for student in run.students] for teacher in run.teachers])
    return ScoreTable(
        student=np.tile(np.arange(students), items),
        item=np.repeat(np.arange(items), students),
        task=np.zeros(items * students, dtype=np.int64),
        scores=(run.levels.mean(axis=3) / (len(LEVELS) - 1)).reshape(-1, judges),
        own=np.zeros((items * students, judges), dtype=bool),
        wrote=wrote.ravel(),
        length=np.zeros(items * students),
        cluster=np.arange(items),
        items=np.arange(items),
        students=students,
        tasks=1,
    )


def _told(about: str, columns: Sequence[_OwnItems]) -> Iterator[Row]:
    """Return what fits with and without advantages told."""
    now, before = columns
    yield f"{about}: stars for equals", share(np.mean(now.stars), 1), share(np.mean(before.stars), 1)
    yield f"{about}: intervals of differences that hold zero", f"{np.mean(now.hits):.3f}", f"{np.mean(before.hits):.3f}"
    yield f"{about}: Kendall's tau where they differ", f"{np.mean(now.taus):.3f}", f"{np.mean(before.taus):.3f}"


@dataclass
class _OwnItems:
    """What fits say of students who are alike at items of others (stars, hits), and who are not."""

    stars: list[bool] = field(default_factory=list)
    hits: list[bool] = field(default_factory=list)
    taus: list[float] = field(default_factory=list)
    boards: list[float] = field(default_factory=list)

    def add(self, fit: Fit, truth: Floats, *, skilled: bool) -> None:
        """Add a run."""
        if skilled:
            self.taus.append(kendall(truth, fit.score) or 0.0)
            return
        tests = [pair for _, pair in fitted_pairs(fit)]
        self.stars.append(bool((holm([test.p_value for test, _ in tests]) < 0.05).any()))
        for test, spread in tests:
            lower, upper = test.limits(spread, 1.0 if test.difference >= 0 else -1.0)
            self.hits.append(lower <= 0.0 <= upper)


def worst_left_out(seed: int) -> Planted:
    """Return three equal students, of whom no judge scored the worst fifth of one's answers."""
    run = at_home(seed, 0.0)
    worst = np.argsort(run.levels[:, 2].sum(axis=(1, 2)), kind="stable")[: len(run.levels) // 5]
    run.levels[worst, 2] = -1
    return run


def missing(runs: int) -> Iterator[Row]:
    """Scores that are missing because of what they would have been."""
    told, stars, starred_untold, old = 0, 0, 0, 0
    for _, loaded in runs_of(worst_left_out, runs):
        is_told = any(row.student == "c" for row in missing_rows(loaded))
        has_star = any(pair.significant for pair in differences(loaded))
        told, stars = told + is_told, stars + has_star
        starred_untold += has_star and not is_told
        old += any(p < 0.05 for p in old_p_values(loaded))
    about = "equal students, the worst fifth of one's answers left out by all judges"
    yield f"{about}: stars", share(stars / runs, 1), share(old / runs, 1)
    yield f"{about}: told that scores are missing", share(told / runs), ""
    yield f"{about}: stars without its being told", share(starred_untold / runs, 1), ""


def leads(loaded: LoadedRun, formula: str) -> bool:
    """Whether the two strong teachers come first."""
    return {row.teacher for row in teacher_rows(loaded, formula)[:2]} == STRONG


def coverage(runs: int) -> Iterator[Row]:
    """How often 95 % intervals hold the truth; before, percentiles of 1,000 draws of items."""
    for high in (0.65, 0.82):
        for items in (5, 10, 20):
            hits: dict[str, list[bool]] = {"mean": [], "fit": [], "difference": [], "before": []}
            for run, loaded in runs_of(partial(sampled, items=items, high=high), runs):
                for row in student_rows(loaded):
                    truth = run.truth[row.student]
                    hits["mean"].append(row.lower <= truth <= row.upper)
                    hits["fit"].append((row.fit_lower or 0.0) <= truth <= (row.fit_upper or 0.0))
                    drawn = bootstrap_mean(by_datapoint(loaded)[:, loaded.students.index(row.student)])
                    hits["before"].append(bool(drawn.lower <= truth <= drawn.upper))
                pair = differences(loaded)[0]
                gap = run.truth[pair.better] - run.truth[pair.worse]
                hits["difference"].append(pair.lower <= gap <= pair.upper)
            about = f"95 % intervals that hold the truth, {items} items, {share(high)} High"
            for name, column in {"means": "mean", "fits": "fit", "differences": "difference"}.items():
                before = f"{np.mean(hits['before']):.3f}" if column == "mean" else ""
                yield f"{about}, of {name}", f"{np.mean(hits[column]):.3f}", before


SECTIONS: Mapping[str, Callable[[int], Iterator[Row]]] = {
    "ranking": ranking,
    "balance": balance,
    "duplicates": duplicates,
    "votes": votes,
    "families": families,
    "coverage": coverage,
    "missing": missing,
    "own-items": own_items,
    "own-items-of-pairs": own_items_of_pairs,
}


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--runs", type=int, default=100)
    flags.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print every bar beside what was done before."""
    args = build_parser().parse_args(argv)
    beside: list[Row] = []
    for name in SECTIONS:
        if name not in args.only:
            continue
        rows = []
        for row in SECTIONS[name](args.runs):
            print("  ".join(row), file=sys.stderr, flush=True)
            rows.append(row)
        if name == "ranking":
            print(f"{table(['six students, two honest judges of six', '65 % High', '82 % High'], rows)}\n")
        else:
            beside += rows
    if beside:
        print(table(["", "now", "before"], beside))


if __name__ == "__main__":
    main()
