"""Which models rose or fell, and where."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from p2l.commands.drift import main
from p2l.common.errors import InputError
from p2l.common.report.reports import report_page
from p2l.insight.drift import Drift, DriftCell, Measured, adjusted, judge
from p2l.insight.drift_models import drift_of_models
from p2l.insight.drift_report import drift_report
from p2l.insight.drift_votes import between_times, between_versions, drift_of_votes
from p2l.leaderboard.board import POINTS_PER_LOGIT
from p2l.training.posterior import write_posterior
from p2l.votes import open_votes
from tests.conftest import seeds, write_votes
from tests.p2l.eval_helpers import make_model
from tests.p2l.evaluation.evaluation_results import EVIL
from tests.p2l.evaluation.test_evaluation_report import Page

MODELS = ("ant", "bee", "cat", "dog")
TOPICS = ("sql", "poetry", "law")


def vote_rows(count: int, *, drop: float = 1.5, seed: int = 0) -> list[dict[str, Any]]:
    """Votes of equal models, where from half-way on version 2 of cat is worse at SQL by `drop` logits."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        a, b = rng.choice(4, size=2, replace=False).tolist()
        topic, late = TOPICS[number % 3], number >= count // 2
        gap = sum(sign * drop for side, sign in ((a, -1), (b, 1)) if late and MODELS[side] == "cat" and topic == "sql")
        draw = rng.random()
        winner = "tie" if draw < 0.1 else "model_a" if rng.random() < 1 / (1 + np.exp(-gap)) else "model_b"
        versions = [str(1 + late) if MODELS[side] == "cat" else None for side in (a, b)]
        row = {"prompt": f"{topic} {number // 2}", "model_a": MODELS[a], "model_b": MODELS[b], "winner": winner}
        rows.append(row | {"tstamp": 1.7e9 + number, "model_version": versions, "topic": topic})
    return rows


@pytest.fixture(scope="module")
def votes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_votes(tmp_path_factory.mktemp("drift") / "votes.jsonl", vote_rows(3600))


def run(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    main([str(word) for word in (*words, "--quiet")])
    return capsys.readouterr().out


def changed(path: Path) -> set[tuple[str, str, str]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return {(cell["verdict"], cell["model"], cell["category"]) for cell in cells if cell["verdict"]}


def test_a_silent_update_that_made_a_model_worse_at_sql_is_found(
    votes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "drift.json"
    words = ["--votes", votes, "--model", "cat", "--versions", 1, 2, "--by", "topic", "--json", out]
    text = run(capsys, *words, "--plot", tmp_path / "drift.png")
    assert changed(out) == {("fell", "cat", "sql"), ("fell", "cat", "all")}
    assert "cells looked at: 4, of 1 model in 4 categories" in text
    cells = {cell["category"]: cell for cell in json.loads(out.read_text())["cells"]}
    assert cells["sql"]["lower"] < -1.5 * POINTS_PER_LOGIT * 0.9 < cells["sql"]["upper"]  # a tie in ten halves nothing
    assert cells["sql"]["rate_after"] < 0.3 < 0.4 < cells["sql"]["rate_before"]
    assert (tmp_path / "drift.png").read_bytes().startswith(b"\x89PNG")


def test_between_two_times_the_model_fell_against_all_others(
    votes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "drift.json"
    words = ["--votes", votes, "--before", 1.7e9 + 1800, "--by", "topic", "--json", out]
    run(capsys, *words, "--plot", tmp_path / "drift.svg")
    found = changed(out)
    assert {("fell", "cat", "sql"), ("fell", "cat", "all")} <= found
    assert {category for _, _, category in found} <= {"sql", "all"}
    sql = [cell["change"] for cell in json.loads(out.read_text())["cells"] if cell["category"] == "sql"]
    assert sum(sql) == pytest.approx(0, abs=1e-6)  # against the mean of the field
    run(capsys, *words, "--model", "cat")
    assert {model for _, model, _ in changed(out)} == {"cat"}


def test_dates_and_a_gap_between_the_periods(votes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "--votes", votes, "--before", "2023-11-14T22:30", "--after", 1.7e9 + 3000)
    assert "from votes before 2023-11-14T22:30 to votes from 1700003000.0 on" in text


@pytest.mark.parametrize("seed", seeds(3))
def test_where_nothing_changed_next_to_nothing_is_found(seed: int) -> None:
    import pandas as pd

    frame = pd.DataFrame(vote_rows(1200, drop=0.0, seed=seed))
    found = drift_of_votes(frame, between_times(1.7e9 + 600, 1.7e9 + 600), by=["topic"])
    cells = judge(found.measured, level=0.95, fdr=0.05)
    assert len(cells) == 16
    assert sum(bool(cell.verdict) for cell in cells) == 0
    assert sum(cell.p < 0.05 for cell in cells) <= 4


def test_votes_on_one_prompt_count_as_one_observation() -> None:
    import pandas as pd

    rows = vote_rows(1200)
    repeated = pd.DataFrame(rows * 4)
    rule = between_versions("cat", "1", "2")
    (once,), (often,) = (drift_of_votes(frame, rule).measured for frame in (pd.DataFrame(rows), repeated))
    assert often.prompts == once.prompts
    assert often.change == pytest.approx(once.change, rel=0.02)
    assert often.error == pytest.approx(once.error, rel=0.05)
    (alone,) = drift_of_votes(repeated.drop(columns="prompt"), rule).measured
    assert alone.error == pytest.approx(often.error / 2, rel=0.1)


def test_versions_in_csv_are_read_too(tmp_path: Path) -> None:
    from p2l.votes import open_votes
    from p2l.votes.writing import write_votes as write

    source = write_votes(tmp_path / "votes.jsonl", vote_rows(900))
    with open_votes(source) as store:
        write((batch for _, batch in store.batches()), store.schema, tmp_path / "votes.csv")
    rule = [between_versions("cat", "1", "2") for _ in range(2)]
    first, second = (
        drift_of_votes(str(tmp_path / f"votes.{end}"), one) for end, one in zip(("csv", "jsonl"), rule, strict=True)
    )
    assert first.measured == second.measured


def test_the_page_begins_with_the_largest_change(
    votes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, page = tmp_path / "drift.json", tmp_path / "drift.html"
    words = ["--votes", votes, "--before", 1.7e9 + 1800, "--by", "topic", "--json", out]
    run(capsys, *words, "--report", page)
    text = page.read_text(encoding="utf-8")
    cells = json.loads(out.read_text(encoding="utf-8"))["cells"]
    largest = max((cell for cell in cells if cell["verdict"]), key=lambda cell: abs(cell["change"]))
    assert (largest["model"], largest["category"]) == ("cat", "sql")
    ends = f"95% interval −{-largest['lower']:.0f} to −{-largest['upper']:.0f}"
    assert f"cat in topic = sql fell by {-largest['change']:.0f} points ({ends})" in text
    assert 'class="verdict bad"' in text
    assert f"{len(cells)} changes were looked at" in text
    for mark in ("to votes from", "on votes.jsonl", 'id="figure-1"', "<h2>Changes found</h2>", "<h2>By category</h2>"):
        assert mark in text
    assert not Page(text).wrong
    run(capsys, "--votes", votes, "--before", 1.7e9 + 1800, "--model", "ant", "--least-change", 500, "--report", page)
    text = page.read_text(encoding="utf-8")
    assert "No model rose or fell as far as these prompts show: the largest change, that of ant over all" in text
    assert "None: every change that was looked at may be chance." in text


def test_a_page_of_names_that_are_no_names_is_text() -> None:
    cells = [DriftCell(EVIL, EVIL, EVIL, 30, 40.0, 20.0, 60.0, 0.5, 0.6, 0.001, 0.002, "rose")]
    text = report_page(drift_report(Drift(EVIL, EVIL, "bt", 0.95, 0.05, cells, [EVIL]), EVIL))
    assert "<script>alert" not in text
    assert text.count("<script>") == 1


# two models


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Two models, of which the second thinks less of cat where bees are mentioned; and prompts."""
    from p2l.inference import P2L
    from p2l.model.model import P2LModel
    from p2l.model.tokenizer import load_tokenizer

    root = tmp_path_factory.mktemp("pair")
    before = make_model(root / "before", names=["ant", "bee", "cat", "dog"])
    tokenizer = load_tokenizer(before)
    later = P2LModel.from_pretrained(before)

    rows: list[dict[str, object]] = [{"prompt": f"{text} {'and ' * (n % 5)}", "topic": topic} for n in range(60)
            for topic, text in (("bees", "write a poem about bees"), ("sums", "what is 2 plus 2"))]  # fmt: skip
    model = P2L.from_pretrained(before, device="cpu")
    states = model.predict([str(row["prompt"]) for row in rows[:2]], hidden=True).hidden
    assert states is not None
    head: Any = later.head.head
    with torch.no_grad():
        direction = torch.tensor(states[0] - states[1])
        head.weight[2] -= direction / direction.square().sum()
        head.bias[2] += float((direction * torch.tensor(states[1])).sum() / direction.square().sum())
    later.save_pretrained(root / "after")
    tokenizer.save_pretrained(root / "after")
    return before, root / "after", write_votes(root / "prompts.jsonl", rows)


def test_between_two_models_the_mean_change_over_prompts_is_found(
    pair: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from p2l.inference import P2L

    before, after, prompts = pair
    words = [before, after, "--prompts", prompts, "--by", "topic", "--min-prompts", 5]
    text = run(capsys, *words, "--json", tmp_path / "d.json", "--least-change", 20)
    found = {(cell["category"], cell["model"]): cell for cell in json.loads((tmp_path / "d.json").read_text())["cells"]}
    texts = sorted({json.loads(line)["prompt"] for line in prompts.read_text().splitlines() if "bees" in line})
    said = [P2L.from_pretrained(path, device="cpu").predict(texts).coefs for path in (before, after)]
    centred = [coefs - coefs.mean(axis=1, keepdims=True) for coefs in said]
    expected = (centred[1] - centred[0]).mean(axis=0) * POINTS_PER_LOGIT
    assert_allclose([found["bees", name]["change"] for name in MODELS], expected, rtol=1e-4)
    assert found["bees", "cat"]["prompts"] == len(texts) == 5
    assert found["bees", "cat"]["verdict"] == "fell"
    assert found["sums", "cat"]["verdict"] == ""
    assert "by more than 20 points" in text


def test_a_model_has_not_drifted_from_itself(pair: tuple[Path, Path, Path]) -> None:
    before, _, prompts = pair
    found = drift_of_models(str(before), str(before), str(prompts), by=["topic"], least=5)
    cells = judge(found.measured, level=0.95, fdr=0.05)
    assert {(cell.change, cell.p, cell.verdict) for cell in cells} == {(0.0, 1.0, "")}


def write_kept(folder: Path, votes: list[dict[str, Any]], *columns: str) -> str:
    """Give a model folder these votes with these columns too, as training does at its end."""
    names = ("prompt", "model_a", "model_b", "winner", *columns)
    rows: list[dict[str, object]] = [{name: row[name] for name in names} for row in votes]
    file = write_votes(folder.with_name(f"{folder.name}.jsonl"), rows)
    with open_votes(str(file), model_list=sorted(MODELS)) as store:
        write_posterior(folder, store, torch.device("cpu"), weighted=False)
    return str(folder)


def sides(pair: tuple[Path, Path, Path], tmp_path: Path, *votes: list[dict[str, Any]]) -> tuple[list[str], str]:
    """Two folders of the same weights that keep different votes, and the prompts of all votes with their topics."""
    folders = []
    for number, rows in enumerate(votes):
        folder = Path(shutil.copytree(pair[0], tmp_path / f"side-{number}"))
        (folder / "manifest.json").unlink(missing_ok=True)
        folders.append(write_kept(folder, rows))
    prompts = [{"prompt": row["prompt"], "topic": row["topic"]} for rows in votes for row in rows]
    return folders, str(write_votes(tmp_path / "asked.jsonl", prompts))


def test_votes_behind_two_models_tell_a_fall_on_one_topic_in_full(
    pair: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = vote_rows(3600)
    folders, prompts = sides(pair, tmp_path, rows[:1800], rows[1800:])
    out = tmp_path / "d.json"
    text = run(capsys, *folders, "--prompts", prompts, "--by", "topic", "--json", out)
    found = changed(out)
    assert ("fell", "cat", "sql") in found
    assert {category for _, _, category in found} <= {"sql", "all"}
    cells = {(cell["category"], cell["model"]): cell for cell in json.loads(out.read_text())["cells"]}
    sql = cells["sql", "cat"]
    fall = -1.5 * POINTS_PER_LOGIT * 3 / 4  # against the mean of four models, of which it is one
    assert sql["lower"] < 0.95 * fall < sql["upper"] < 0
    assert sql["rate_after"] < 0.35 < 0.4 < sql["rate_before"]
    assert sum(cell["change"] for (category, _), cell in cells.items() if category == "sql") == pytest.approx(0)
    assert "1,800 of 1,800 votes before and 1,800 of 1,800 votes after" in text


def cells_of_strange_prompts(
    pair: tuple[Path, Path, Path], tmp_path: Path, seed: int, *columns: str
) -> list[DriftCell]:
    """Changes between votes that keep these columns, asked about prompts of no vote, whose places tell nothing."""
    rows = vote_rows(3600, seed=seed)
    folders = []
    for number, half in enumerate((rows[:1800], rows[1800:])):
        folder = Path(shutil.copytree(pair[0], tmp_path / f"side-{number}"))
        folders.append(write_kept(folder, half, *columns))
    asked: list[dict[str, object]] = [{"prompt": f"other {n}", "topic": TOPICS[n % 3]} for n in range(90)]
    prompts = str(write_votes(tmp_path / "asked.jsonl", asked))
    return judge(drift_of_models(*folders, prompts, by=["topic"]).measured, level=0.95, fdr=0.05)


@pytest.mark.parametrize("seed", seeds(3))
def test_votes_that_hold_the_column_need_no_prompt_of_theirs_asked(
    pair: tuple[Path, Path, Path], tmp_path: Path, seed: int
) -> None:
    cells = cells_of_strange_prompts(pair, tmp_path, seed, "topic")
    assert ("fell", "cat", "sql") in {(cell.verdict, cell.model, cell.category) for cell in cells}
    assert not any(cell.verdict for cell in cells if cell.category in ("poetry", "law"))


def test_where_nothing_tells_the_category_of_votes_no_change_is_found_in_it(
    pair: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    cells = cells_of_strange_prompts(pair, tmp_path, 0)
    assert {(cell.verdict, cell.model, cell.category) for cell in cells if cell.verdict} == {("fell", "cat", "all")}
    assert all(cell.upper - cell.lower > 1000 for cell in cells if cell.category in TOPICS)


def test_a_model_that_goes_on_learning_is_compared_by_its_new_votes(
    pair: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    rows = vote_rows(1800)
    folders, prompts = sides(pair, tmp_path, rows[:900], rows)
    apart, prompts_apart = sides(pair, tmp_path / "apart", rows[:900], rows[900:])
    either = [drift_of_models(*names, asked, by=["topic"]).measured
              for names, asked in ((folders, prompts), (apart, prompts_apart))]  # fmt: skip
    assert_allclose([cell.change for cell in either[0]], [cell.change for cell in either[1]], atol=0.02)


@pytest.mark.parametrize("seed", seeds(2))
def test_between_votes_of_one_truth_next_to_nothing_is_found(
    pair: tuple[Path, Path, Path], tmp_path: Path, seed: int
) -> None:
    rows = vote_rows(2400, drop=0.0, seed=seed)
    folders, prompts = sides(pair, tmp_path, rows[:1200], rows[1200:])
    cells = judge(drift_of_models(*folders, prompts, by=["topic"]).measured, level=0.95, fdr=0.05)
    assert len(cells) == 16
    assert not any(cell.verdict for cell in cells)
    assert sum(cell.p < 0.05 for cell in cells) <= 4


def test_two_trainings_on_the_same_votes_are_no_drift(pair: tuple[Path, Path, Path], tmp_path: Path) -> None:
    from p2l.model.checkpoint import edit_weights

    rows = vote_rows(1200)
    folders, prompts = sides(pair, tmp_path, rows, rows)
    edit_weights(Path(folders[1]), {"head.head.bias": lambda bias: bias.add_(torch.tensor([0.2, -0.2, 0.1, -0.1]))})
    found = drift_of_models(*folders, prompts, by=["topic"])
    assert {round(cell.change, 9) for cell in found.measured} == {0.0}
    assert not any(cell.verdict for cell in judge(found.measured, level=0.95, fdr=0.05))


def test_a_folder_without_votes_is_compared_by_its_predictions_with_a_warning(
    pair: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders, prompts = sides(pair, tmp_path, vote_rows(600))
    text = run(capsys, folders[0], pair[1], "--prompts", prompts)
    assert f"warning: {pair[1]} does not keep its votes, so that intervals are over prompts alone" in text
    assert "p2l posterior" in text


def test_models_with_few_votes_are_left_out_and_told(pair: tuple[Path, Path, Path], tmp_path: Path) -> None:
    rows = [row for row in vote_rows(2400, drop=0.0) if "dog" not in (row["model_a"], row["model_b"])]
    few = [row | {"model_a": "dog", "prompt": f"law of dogs {n}", "topic": "law"} for n, row in enumerate(rows[:5])]
    few = [row for row in few if row["model_b"] != "dog"]
    folders, prompts = sides(pair, tmp_path, rows[:800] + few, rows[800:])
    found = drift_of_models(*folders, prompts)
    assert {cell.model for cell in found.measured} == {"ant", "bee", "cat"}
    assert any("votes on fewer than 20 prompts" in note for note in found.notes)


def test_models_of_one_side_only_are_named_and_left_out(pair: tuple[Path, Path, Path], tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", names=["cat", "eel", "ant"], seed=3)
    found = drift_of_models(str(pair[0]), str(other), str(pair[2]), least=5)
    assert [one.model for one in found.measured] == ["ant", "cat"]
    assert any("bee, dog, eel" in note for note in found.notes)


# judging


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_adjusted_p_values_are_those_of_the_step_up_procedure(values: list[float]) -> None:
    p = np.array(values)
    q = adjusted(p)
    for rate in (0.01, 0.05, 0.3):
        ranked = np.sort(p)
        below = np.flatnonzero(ranked <= rate * np.arange(1, len(p) + 1) / len(p) * (1 + 1e-12))
        bound = ranked[below[-1]] if len(below) else -1.0
        assert ((q <= rate * (1 + 1e-12)) == (p <= bound)).all()


def test_intervals_are_those_of_student() -> None:
    (cell,) = judge([Measured("", "all", "ant", 11, 1.0, 0.5, 0.4, 0.6)], level=0.95, fdr=0.05)
    assert cell.lower == pytest.approx((1.0 - 0.5 * 2.228139) * POINTS_PER_LOGIT, rel=1e-5)
    assert cell.p == pytest.approx(0.0733880, rel=1e-4)  # two-sided, 10 degrees of freedom, t = 2


# bad input


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "compare two models with A B --prompts FILE"),
        (["A", "B"], "--prompts FILE"),
        (["A", "B", "--prompts", "p", "--before", "3"], "go with --votes"),
        (["A", "B", "--votes", "v", "--before", "3"], "exclude --votes"),
        (["--votes", "v"], "needs either"),
        (["--votes", "v", "--before", "3", "--versions", "1", "2"], "needs either"),
        (["--votes", "v", "--versions", "1", "2"], "needs one --model"),
        (["--votes", "v", "--versions", "1", "1", "--model", "cat"], "name two"),
        (["--votes", "v", "--after", "1", "--model", "cat", "--versions", "1", "2"], "goes with --before"),
        (["--votes", "v", "--before", "soon"], "'soon' is not a time"),
        (["--votes", "v", "--before", "5", "--after", "4"], "must not be later"),
        (["--votes", "v", "--before", "5", "--fdr", "0"], "between 0 and 1"),
        (["--votes", "v", "--before", "5", "--plot", "x.doc"], "the ending must be"),
        (["--votes", "v", "--before", "5", "--report", "x.pdf"], "must be .html"),
        (["--votes", "v", "--before", "5", "--likelihood", "elo"], "elo"),
        (["--votes", "VOTES", "--before", "5"], "no model has votes both before and after"),
        (["--votes", "VOTES", "--before", "1700001800", "--model", "eel"], "'eel' cannot be compared"),
        (["--votes", "VOTES", "--model", "cat", "--versions", "1", "3"], "there are 1 .*, 2 "),
        (["--votes", "VOTES", "--model", "eel", "--versions", "1", "2"], "no vote on model 'eel'"),
        (["--votes", "VOTES", "--before", "5", "--by", "topics"], "no column 'topics'"),
        (["--votes", "PLAIN", "--before", "5"], "no column 'tstamp'"),
        (["--votes", "PLAIN", "--model", "ant", "--versions", "1", "2"], "no column 'model_version'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_writes_nothing(votes: Path, tmp_path: Path, words: list[str], message: str) -> None:
    plain = write_votes(tmp_path / "plain.jsonl", [{"model_a": "ant", "model_b": "bee", "winner": "tie"}])
    names = {"VOTES": str(votes), "PLAIN": str(plain)}
    with pytest.raises(InputError, match=message) as error:
        main([*(names.get(word, word) for word in words), "--json", str(tmp_path / "d.json"), "--quiet"])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "d.json").exists()


def test_versions_that_are_no_pair_are_refused(tmp_path: Path) -> None:
    row: dict[str, object] = {"model_a": "ant", "model_b": "bee", "winner": "tie", "model_version": "7"}
    with pytest.raises(InputError, match=r"line 1: model_version must be \[of model_a, of model_b\]"):
        drift_of_votes(str(write_votes(tmp_path / "v.jsonl", [row])), between_versions("ant", "1", "2"))


def test_a_vote_without_time_is_named(tmp_path: Path) -> None:
    row: dict[str, object] = {"model_a": "ant", "model_b": "bee", "winner": "tie", "tstamp": 1.0}
    votes = write_votes(tmp_path / "v.jsonl", [row, row | {"tstamp": None}])
    with pytest.raises(InputError, match=r"line 2: has no tstamp"):
        drift_of_votes(str(votes), between_times(5.0, 5.0))


def test_models_that_cannot_be_compared_are_refused(pair: tuple[Path, Path, Path], tmp_path: Path) -> None:
    before, _, prompts = pair
    other = make_model(tmp_path / "bt", head="bt", loss="bt")
    strangers = make_model(tmp_path / "strangers", names=["eel", "fox"])
    for model, message in ((other, "has likelihood grk"), (strangers, "have 0 models in common")):
        with pytest.raises(InputError, match=message):
            drift_of_models(str(before), str(model), str(prompts))
    with pytest.raises(InputError, match="no category has 99 different prompts"):
        drift_of_models(str(before), str(before), str(prompts), least=99)
