"""Panels beside people's labels: policies of an arena by few labels, and verdicts on pairs whose truth is known.

python -m benchmarks.coeval_people --data ../shared/data [--draws 100] [--cje PYTHON]

`--cje` names the Python of an environment that has the package `cje-eval`, which then estimates the same draws.

* `cje_arena_scores`: four policies (one of them twice) scored by one judge, a fifth written to please nobody. Of the
  answers with an oracle label 5 % are drawn; a draw is right about the policy that is last, told apart from all others.
* `judgebench_verdicts`: six judges on pairs of which one answer is right. A panel's verdict on a pair is the sign of
  the weighted sum of its judges' verdicts; accuracy is on pairs without labels, a tie counting half.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.tables import share, table
from coeval.analysis.fit import Fit, fit_table
from coeval.analysis.panel import ScoreTable, effective_number
from coeval.analysis.people import corrected_scores, labelled_weights, worth_by_labels

Floats = npt.NDArray[np.float64]
_WORST = "unhelpful"
_TWINS = ("base", "base_logged")
_LABELS_OF_PAIRS = 30
_OUTCOMES = {"A>B": 1.0, "B>A": -1.0, "A=B": 0.0}


_CJE = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from cje import analyze_dataset
for line in sys.stdin:
    result = analyze_dataset(fresh_draws_data=json.loads(line))
    lower, upper = result.confidence_interval(0.05)
    rows = zip(result.estimates.tolist(), lower.tolist(), upper.tolist())
    print("RESULT " + json.dumps(dict(zip(result.target_policies, rows))), flush=True)
"""


def _by_cje(python: str, draws: Sequence[dict[str, list[dict[str, object]]]]) -> list[dict[str, list[float]]]:
    """Return estimate and limits of each policy by cje-eval, for each draw."""
    text = "".join(json.dumps(draw) + "\n" for draw in draws)
    done = subprocess.run([python, "-W", "ignore", "-c", _CJE], input=text, capture_output=True, text=True, check=True)
    return [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]


def policies(path: Path, draws: int, cje: str | None) -> str:
    """Return how often few labels put the policies right, beside the labels alone, the judge alone, and cje-eval."""
    import pandas as pd

    rows = pd.read_parquet(path)
    names = sorted(rows.model.unique())
    student = rows.model.map(names.index).to_numpy()
    cluster = np.unique(rows.question_id, return_inverse=True)[1]
    panel, oracle = rows.judge_score.to_numpy(dtype=np.float64), rows.oracle_label.to_numpy(dtype=np.float64)
    labelled = np.flatnonzero(np.isfinite(oracle))
    truth = np.array([oracle[labelled][student[labelled] == code].mean() for code in range(len(names))])
    worst, twins = names.index(_WORST), [names.index(name) for name in _TWINS]
    last, told, tied, alone = [], [], [], []
    tables = []
    hits: dict[str, list[npt.NDArray[np.bool_]]] = {"corrected": [], "of the judge": []}
    for seed in range(draws):
        chosen = np.random.default_rng(seed).choice(labelled, size=max(1, round(0.05 * len(labelled))), replace=False)
        corrected = corrected_scores(panel, student, cluster, len(names), chosen, oracle[chosen])
        lower, upper = corrected.limits()
        apart = corrected.is_apart()
        last.append(int(corrected.score.argmin()) == worst)
        told.append(bool(np.delete(apart[worst], worst).all()))
        tied.append(not apart[twins[0], twins[1]])
        hits["corrected"].append((lower <= truth) & (truth <= upper))
        if cje is not None:
            label = {int(row): float(oracle[row]) for row in chosen}
            draw: dict[str, list[dict[str, object]]] = {name: [] for name in names}
            for row, (code, prompt) in enumerate(zip(student.tolist(), rows.question_id, strict=True)):
                entry: dict[str, object] = {"prompt_id": str(prompt), "judge_score": float(panel[row])}
                draw[names[code]].append(entry | ({"oracle_label": label[row]} if row in label else {}))
            tables.append(draw)
        counts = np.bincount(student[chosen], minlength=len(names))
        sums = np.bincount(student[chosen], oracle[chosen], minlength=len(names))
        alone.append(bool((counts > 0).all()) and int(np.argmin(sums / np.maximum(counts, 1))) == worst)
    judged = np.array([panel[student == code] for code in range(len(names))], dtype=object)
    for values in judged:
        reach = 1.96 * values.std(ddof=1) / np.sqrt(len(values))
        hits["of the judge"].append(np.abs(values.mean() - truth[len(hits["of the judge"])]) <= reach)
    lines = [
        ("the worst policy is last", share(float(np.mean(last))), share(float(np.mean(alone)))),
        ("it is told apart from all others", share(float(np.mean(told))), ""),
        ("the policy that is there twice is told as tied", share(float(np.mean(tied))), ""),
        (
            "95 % intervals hold the mean of all labels",
            share(float(np.mean(hits["corrected"]))),
            f"{share(float(np.mean(hits['of the judge'])))} (the judge alone)",
        ),
    ]
    if cje is None:
        return table([f"{draws} draws of 5 % of the labels", "corrected", "labels alone"], lines)
    theirs = _by_cje(cje, tables)
    theirs_last = [min(result, key=lambda name: result[name][0]) == _WORST for result in theirs]
    theirs_hold = [
        result[name][1] <= truth[code] <= result[name][2] for result in theirs for code, name in enumerate(names)
    ]
    beside = [share(float(np.mean(theirs_last))), "", "", share(float(np.mean(theirs_hold)))]
    rows_of_table = [(*line, text) for line, text in zip(lines, beside, strict=True)]
    return table([f"{draws} draws of 5 % of the labels", "corrected", "labels alone", "cje-eval"], rows_of_table)


def _of_pairs(path: Path) -> tuple[Floats, Floats, list[str]]:
    """Return verdicts of judges on pairs (N, J) from -1 to 1, the truth (N,), and the judges' names."""
    import pandas as pd

    rows = pd.read_parquet(path)
    by_pair = rows.groupby("pair_id")["judge"].transform("count")
    rows = rows[by_pair == by_pair.max()]  # pairs that all six have judged
    rows["verdict"] = (rows["first"].map(_OUTCOMES).fillna(0.0) + rows["second"].map(_OUTCOMES).fillna(0.0)) / 2.0
    matrix = rows.pivot(index="pair_id", columns="judge", values="verdict")
    truth = rows.groupby("pair_id")["label"].first().map(_OUTCOMES).loc[matrix.index]
    return matrix.to_numpy(dtype=np.float64), truth.to_numpy(dtype=np.float64), list(matrix.columns)


def _fit(verdicts: Floats) -> Fit:
    """Fit the panel: a pair is an item with two answers, which are of nobody."""
    pairs, judges = verdicts.shape
    scores = np.stack([(1.0 + verdicts) / 2.0, (1.0 - verdicts) / 2.0], axis=1).reshape(2 * pairs, judges)
    item = np.repeat(np.arange(pairs), 2)
    fit = fit_table(
        ScoreTable(
            student=np.tile([0, 1], pairs),
            item=item,
            task=np.zeros(2 * pairs, dtype=np.int64),
            scores=scores,
            own=np.zeros(scores.shape, dtype=bool),
            wrote=np.zeros(len(scores), dtype=bool),
            length=np.zeros(2 * pairs),
            cluster=np.arange(pairs),
            items=np.arange(pairs),
            students=2,
            tasks=1,
        )
    )
    assert fit is not None
    return fit


def _right(signs: Floats, truth: Floats) -> float:
    return float(((np.sign(signs) * truth + 1.0) / 2.0).mean())


def _span(values: Sequence[float]) -> str:
    low, high = np.quantile(values, [0.025, 0.975])
    return f"{np.mean(values):.1f} ({low:.1f} to {high:.1f})"


def verdicts(path: Path, draws: int) -> str:
    """Return how often panels are right about pairs, without labels and with thirty."""
    given, truth, names = _of_pairs(path)
    fit = _fit(given)
    single = [_right(column, truth) for column in given.T]
    free = given @ fit.judges.evidence
    hits = (np.sign(free) * truth + 1.0) / 2.0
    reach = 1.96 * hits.std(ddof=1) / np.sqrt(len(hits))
    moments = given.T @ given / len(given)
    with_labels, best, worths = [], [], []
    for seed in range(draws):
        rows = np.random.default_rng(seed).choice(len(truth), size=_LABELS_OF_PAIRS, replace=False)
        rest = np.setdiff1d(np.arange(len(truth)), rows)
        follows = given[rows].T @ truth[rows] / len(rows)
        labels = np.full(len(names), float(len(rows)))
        weights = labelled_weights(moments, follows, labels, fit.judges.sharpness)
        with_labels.append(_right(given[rest] @ weights, truth[rest]))
        worths.append(worth_by_labels(given[rows], truth[rows]) or 0.0)
        best.append(max(_right(column[rest], truth[rest]) for column in given.T))
    worth = float(effective_number(fit.judges.errors, fit.judges.noise))
    lines = [
        ("majority", f"{_right(np.sign(given).sum(axis=1), truth):.3f}"),
        ("the fit without labels", f"{_right(free, truth):.3f} +- {reach:.3f}"),
        (f"with {_LABELS_OF_PAIRS} labels, mean of {draws} draws", f"{np.mean(with_labels):.3f}"),
        ("best single judge on the same pairs", f"{np.mean(best):.3f} ({names[int(np.argmax(single))]})"),
        (f"{len(names)} judges, worth without labels", f"{worth:.1f}"),
        (f"the same with {_LABELS_OF_PAIRS} labels, 2.5 to 97.5 % of draws", _span(worths)),
        ("the same with all labels", f"{worth_by_labels(given, truth):.1f}"),
    ]
    return table([f"{len(truth)} pairs", "right"], lines)


def build_parser() -> argparse.ArgumentParser:
    """Return the flags of the benchmark."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    flags.add_argument("--draws", type=int, default=100)
    flags.add_argument("--cje", metavar="PYTHON", help="of an environment with cje-eval, to compare with")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table for each data set."""
    args = build_parser().parse_args(argv)
    print(policies(args.data / "cje_arena_scores.parquet", args.draws, args.cje), end="\n\n")
    print(verdicts(args.data / "judgebench_verdicts.parquet", args.draws))


if __name__ == "__main__":
    main()
