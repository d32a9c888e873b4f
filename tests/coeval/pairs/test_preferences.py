"""Preferences of a run: derived, gathered, exported, and the leaderboards fitted to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.coeval_planted import arena, write
from coeval.analysis.students import student_rows
from coeval.analysis.units import load_run
from coeval.analysis.verdicts import WINNERS, Preference, majority, seconds
from coeval.analysis.votes import Rule, outcome
from coeval.commands import export as export_preferences
from coeval.commands import export as pairs_leaderboard
from coeval.errors import RunInputError
from coeval.pairs.board import OVERALL, BoardOptions, Slice, boards, compared, pairs_report, rows_of
from coeval.pairs.export import Format, export
from coeval.pairs.preferences import PreferenceFilter, derived, gather
from coeval.storage.run import Run
from p2l.commands import leaderboard
from p2l.votes import open_votes
from tests.coeval.analysis.runs import both, write_lines, write_run
from tests.coeval.helpers import STATIC_TASK, coeval, model, run_of, write_config


def preference(a: str, b: str, winner: str, judge: str = "j", item: str = "t__o__1", **changes: Any) -> Preference:
    values: dict[str, Any] = {"source": "derived", "margin": None, "order_consistent": None, "at": 0.0, **changes}
    return Preference(item, values.pop("task", "t"), "o", a, b, f"{item}__{a}", f"{item}__{b}", winner, judge, **values)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of three students of known skill, one of which also judges."""
    folder = tmp_path_factory.mktemp("finished")
    students = [model(name, skill=skill, noise=0.02) for name, skill in {"ant": 0.95, "bee": 0.5}.items()]
    both = model("cow", roles=["student", "judge"], skill=0.05, noise=0.02)
    others = [model("owl", roles=["teacher"]), model("jay", roles=["judge"], noise=0.02)]
    tasks = [
        dict(STATIC_TASK),
        {
            **STATIC_TASK,
            "name": "code",
            "description": "Write code.",
            "category": "code",
            "evaluation_mode": "pairwise",
        },
    ]
    assert coeval("run", "--config", write_config(folder, [*others, *students, both], tasks)) == 0
    return run_of(folder)


@given(st.floats(0, 1), st.floats(0, 1))
def test_an_outcome_does_not_hang_on_sides(one: float, other: float) -> None:
    swapped = {"model_a": "model_b", "model_b": "model_a"}
    winner = WINNERS[outcome(one, other, Rule())]
    assert WINNERS[outcome(other, one, Rule())] == swapped.get(winner, winner)


@pytest.mark.parametrize(
    ("a", "b", "winner"),
    [
        (0.6, 0.5, "tie"),
        (0.61, 0.5, "model_a"),
        (0.5, 1.0, "model_b"),
        (0.25, 0.25, "tie (bothbad)"),
        (0.25, 0.35, "tie"),
        (0.0, 0.2, "model_b"),
        (0.15, 0.25, "tie (bothbad)"),
    ],
)
def test_margin_and_threshold(a: float, b: float, winner: str) -> None:
    assert WINNERS[outcome(a, b, Rule())] == winner


def test_scores_become_preferences_of_each_judge(finished: Run) -> None:
    found = derived(load_run(finished.folder), Rule())
    assert {one.task for one in found} == {"mail"}
    assert len(found) == 4 * 3 * 2
    for one in found:
        assert one.winner == ("model_a" if one.model_a < one.model_b else "model_b")
        assert one.margin is not None
        assert (one.margin > 0) == (one.winner == "model_a")
        assert one.at > 1e9
    assert {one.winner for one in derived(load_run(finished.folder), Rule(margin=1.0))} <= {
        "tie",
        "tie (bothbad)",
    }


def test_weights_name_factors_that_were_scored(finished: Run) -> None:
    assert len(derived(load_run(finished.folder), Rule(weights={"tone": 0.0}))) == 24
    assert derived(load_run(finished.folder), Rule(weights={"tone": 0.0, "clarity": 0.0})) == []
    with pytest.raises(RunInputError, match=r"'clearity' .*did you mean 'clarity'"):
        derived(load_run(finished.folder), Rule(weights={"clearity": 2.0}))


def test_verdicts_come_before_scores_and_own_answers_do_not_count(finished: Run) -> None:
    gathered = gather(load_run(finished.folder), PreferenceFilter())
    sources = {(one.task, one.source) for one in gathered.preferences}
    assert sources == {("mail", "derived"), ("code", "native")}
    assert gathered.self_judged == 2 * 4 * 2
    assert not any(one.is_self_judged for one in gathered.preferences)
    kept = gather(load_run(finished.folder), PreferenceFilter(keep_self_judged=True, source="derived"))
    assert (len(kept.preferences), kept.self_judged) == (24, 0)
    assert {one.judge for one in gather(load_run(finished.folder), PreferenceFilter(judges=["jay"])).preferences} == {
        "jay"
    }
    with pytest.raises(RunInputError, match="did you mean 'jay'"):
        gather(load_run(finished.folder), PreferenceFilter(judges=["jai"]))
    with pytest.raises(RunInputError, match="holds no run"):
        load_run(finished.folder / "nowhere")


def test_a_majority_is_one_row_and_no_leader_is_a_tie() -> None:
    votes = [
        preference("a", "b", "model_a", "j1", margin=0.5),
        preference("b", "a", "model_b", "j2", margin=-0.4),
        preference("a", "b", "model_b", "j3", margin=-0.3),
    ]
    (one,) = majority(votes)
    assert (one.model_a, one.winner, one.judge, one.margin) == ("a", "model_a", "majority", 0.2)
    assert majority(votes[1:])[0].winner == "tie"
    assert len(majority([*votes, preference("a", "b", "tie", item="t__o__2")])) == 2


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "hf"])
def test_an_export_is_what_p2l_reads(
    finished: Run, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--run", finished.folder, "--out", tmp_path, "--format", kind, "--val-share", "0.3"]
    assert export_preferences.preferences_main([str(flag) for flag in flags]) == 0
    said = capsys.readouterr()
    (left_out,) = said.err.splitlines()
    assert left_out == "16 self-judged preferences left out; --keep-self-judged keeps them"
    _, train, _, val = said.out.splitlines()[-1].removeprefix("train on them: p2l train ").split()
    names = json.loads((tmp_path / "model_list.json").read_text())
    assert names == ["ant", "bee", "cow"]
    prompts = {}
    for part, path in (("train", train), ("val", val)):
        with open_votes(path) as votes:
            assert votes.model_list == names or part == "val"
            prompts[part] = {tuple(turns) for turns in votes.prompts(range(len(votes)))}
            wanted = {"question_id", "labels", "tstamp", "language", "is_code", "category_tag", "weight", "judge"}
            assert wanted <= set(votes.columns)
    assert not prompts["train"] & prompts["val"]
    done = json.loads((tmp_path / "export.json").read_text())
    assert done["train"] + done["validation"] == 32
    assert done["prompts"] == len(prompts["train"]) + len(prompts["val"]) == 8


def test_the_columns_of_a_vote(finished: Run, tmp_path: Path) -> None:
    export(finished, gather(load_run(finished.folder), PreferenceFilter()), tmp_path, "jsonl", 0.0)
    assert not (tmp_path / "val.jsonl").exists()
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert {row["task"] for row in rows[:8]} == {"mail", "code"}  # a trainer should not see task after task
    names = json.loads((tmp_path / "model_list.json").read_text())
    for row in rows:
        winner = row["model_b"] if row["winner"] == "model_b" else row["model_a"]
        loser = row["model_a"] if row["winner"] == "model_b" else row["model_b"]
        tie = {"tie": 1, "tie (bothbad)": 2}.get(row["winner"], 0)
        assert row["labels"] == [names.index(winner), names.index(loser), tie]
        assert row["is_code"] is (row["task"] == "code")
        assert row["category_tag"]["task"] == {"code": row["task"] == "code", "mail": row["task"] == "mail"}
        assert row["question_id"].startswith(row["datapoint_id"])


def test_a_data_set_folder_is_read_too(finished: Run, tmp_path: Path) -> None:
    out = tmp_path / "set"
    formats: tuple[Format, ...] = ("jsonl", "parquet", "hf", "hf")  # each takes the place of the one before
    for kind in formats:
        export(finished, gather(load_run(finished.folder), PreferenceFilter()), out, kind, 0.3)
        assert kind != "parquet" or not list(out.glob("*.jsonl"))
    with open_votes(out) as votes:
        assert len(votes) > 0
    assert not list(out.glob("*.parquet"))
    (out / "mine.txt").write_text("mine")
    export(finished, gather(load_run(finished.folder), PreferenceFilter()), out, "jsonl", 0.0)
    assert {path.name for path in out.iterdir()} == {"train.jsonl", "model_list.json", "export.json", "mine.txt"}
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    for place in (other, other / "mine.txt"):
        with pytest.raises(RunInputError, match="holds other files"):
            export(finished, gather(load_run(finished.folder), PreferenceFilter()), place, "hf", 0.0)
    assert (other / "mine.txt").read_text() == "mine"


def test_leaderboards_overall_and_by_task(finished: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    aggregate = tmp_path / "aggregate.json"
    aggregate.write_text(json.dumps({"coefs": {"ant": 2.0, "bee": 0.0, "cow": -2.0}, "eta": 0.5}))
    flags = ["--run", finished.folder, "--out", tmp_path, "--replicates", "20", "--against", aggregate]
    assert pairs_leaderboard.leaderboard_main([str(flag) for flag in flags]) == 0
    said = json.loads((tmp_path / "pairs_leaderboard.json").read_text())
    ranks = {
        task: [row["model"] for row in said["rows"] if row["task"] == task] for task in ("overall", "mail", "code")
    }
    assert set(map(tuple, ranks.values())) == {("ant", "bee", "cow")}
    warm = [row for row in said["attributes"] if (row["task"], row["attribute"]) == ("mail", "tone=warm")]
    assert [row["rank"] for row in warm] == [1, 2, 3]
    assert said["against"]["Spearman-lbs"] == pytest.approx(1.0)
    assert said["flips"][-1]["judge"] == "jay"
    assert said["flips"][-1]["flip_rate"] == 0.0
    told = capsys.readouterr().out
    assert "ant" in told
    assert f"against {aggregate}: " in told
    assert "Spearman-lbs 1.000" in told
    assert told.endswith("pairs_leaderboard.json and .csv\n")
    assert (tmp_path / "pairs_leaderboard.csv").read_text().count("\n") == 1 + 3 * (1 + 2 + 2 * 4)


def test_intervals_are_of_items_not_of_votes() -> None:
    chance = np.random.default_rng(0)
    winners = {item: "model_a" if chance.random() < 0.7 else "model_b" for item in range(60)}
    votes = [preference("a", "b", winner, "j0", item=f"i{item}") for item, winner in winners.items()]
    copies = [
        preference("a", "b", winner, f"j{k}", item=f"i{item}") for item, winner in winners.items() for k in range(4)
    ]
    options = BoardOptions("bt", replicates=100)
    single, fourfold = (boards(found, options)[Slice("overall")] for found in (votes, copies))
    widths = [one.upper[0] - one.lower[0] for one in (single, fourfold)]
    assert widths[1] == pytest.approx(widths[0], rel=0.2)
    assert rows_of(Slice("overall"), single)[0]["model"] == "a"
    assert single.coefs[0] > 0
    with pytest.raises(RunInputError, match="fewer than two"):
        compared(single, {"a": 1.0})


def test_boards_hold_the_models_that_were_compared() -> None:
    votes = [preference("a", "b", "model_a", item=f"t__o__{number}") for number in range(4)]
    votes += [preference("c", "d", "tie", item=f"u__o__{number}", task="u") for number in range(4)]
    attributes = {f"t__o__{number}": {"tone": "warm" if number else "cold"} for number in range(4)}
    found = boards(votes, BoardOptions("bt", intervals=None), attributes)
    assert list(found) == [Slice("overall"), Slice("t"), Slice("t", "tone=cold"), Slice("t", "tone=warm")]
    assert [row["model"] for row in rows_of(Slice("overall"), found[Slice("overall")])] == ["a", "b"]  # ties are none
    assert [row["votes"] for row in rows_of(Slice("t", "tone=warm"), found[Slice("t", "tone=warm")])] == [3, 3]
    whole = boards(votes, BoardOptions("rk", intervals=None))[Slice("overall")]
    assert [row["component"] for row in rows_of(Slice("overall"), whole)] == [0, 1, 1, 0]


def test_prompts_of_several_turns_are_exported(tmp_path: Path) -> None:
    scores = {
        (f"t/o/{number}", student, "j"): both(level)
        for number in range(1, 6)
        for student, level in (("a", "High"), ("b", "Low"))
    }
    run = Run(write_run(tmp_path / "run", scores))
    (file,) = run.record_files("data_generation")
    items = [json.loads(line) for line in file.read_text().splitlines()]
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    prompts = ["Hi", ["Hi"], ["Hi", "And now?"], [*said, {"role": "assistant", "content": "Yes?"}, said[1]], [{"x": 1}]]
    write_lines(file, ({**item, "prompt": prompt} for item, prompt in zip(items, prompts, strict=True)))
    found = export(run, gather(load_run(run.folder), PreferenceFilter()), tmp_path / "out", "parquet", 0.5)
    assert (found.prompts, found.without_prompt, found.train + found.validation) == (3, 1, 4)
    parts = {}
    for part in ("train", "val"):
        with open_votes(tmp_path / "out" / f"{part}.parquet") as votes:
            parts[part] = [tuple(turns) for turns in votes.prompts(range(len(votes)))]
    assert sorted(parts["train"] + parts["val"]) == [("Hi",), ("Hi",), ("Hi", "And now?"), ("Hi", "Hi")]
    assert not {*parts["train"]} & {*parts["val"]}


def test_times_are_read_as_they_are_written() -> None:
    assert seconds("2026-01-01T00:00:00Z") == seconds("2026-01-01T00:00:00") == 1767225600.0
    assert seconds("yesterday") == 0.0


def test_votes_carry_the_weights_of_the_report_and_leave_flagged_judges_out(tmp_path: Path) -> None:
    loaded = write(tmp_path / "run", arena(1, 0.65))
    gathered = gather(load_run(tmp_path / "run"), PreferenceFilter())
    assert {"random", "constant", "selfish", "verbose"} == {*gathered.flagged}
    assert {vote.judge for vote in gathered.preferences} == {"honest-1", "honest-2"}
    judged = ("honest-1", "honest-2")
    sharper, blunter = (
        np.mean([vote.weight for vote in gathered.preferences if vote.judge == name]) for name in judged
    )
    assert sharper > blunter
    kept = gather(load_run(tmp_path / "run"), PreferenceFilter(keep_flagged=True))
    assert {*kept.flagged} == set()
    assert {vote.judge for vote in kept.preferences} == {*loaded.judges}


@pytest.mark.parametrize("high", [0.65, 0.82])
def test_three_places_name_one_winner_with_one_number(
    high: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = write(tmp_path / "run", arena(0, high))
    report = student_rows(loaded)
    overall = [row for row in pairs_report(loaded).rows if row.task == OVERALL and not row.attribute]
    assert [row.student for row in overall] == [row.student for row in report]
    assert [row.score for row in overall] == pytest.approx([row.rating for row in report], abs=0.1)
    # The distances are those of the fit.
    fit, rating = (np.array([getattr(row, name) for row in report]) for name in ("fit", "rating"))
    assert np.corrcoef(fit, rating)[0, 1] > 0.99999
    flags = ["--run", tmp_path / "run", "--out", tmp_path / "votes"]
    assert export_preferences.preferences_main([str(flag) for flag in flags]) == 0
    assert "report on students" not in capsys.readouterr().err
    result = tmp_path / "board.json"
    rank = ["--weighted", "--votes", tmp_path / "votes", "--output", result]
    leaderboard.main([str(flag) for flag in rank])
    (board,) = json.loads(result.read_text())
    assert [row["model"] for row in board["models"]] == [row.student for row in report]
    assert [row["score"] for row in board["models"]] == pytest.approx(rating, abs=0.1)


def test_a_student_whom_flagged_judges_alone_scored_keeps_its_votes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = arena(1, 0.65)
    honest = [place for place, name in enumerate(run.judges) if name.startswith("honest")]
    best = list(run.students).index("honest-1")
    run.levels[:, best, honest] = -1
    loaded = write(tmp_path / "run", run)
    report = student_rows(loaded)
    assert report[0].student == "honest-1"
    pairs = pairs_report(loaded)
    assert pairs.only_flagged == ("honest-1",)
    overall = [row for row in pairs.rows if row.task == OVERALL and not row.attribute]
    assert [(row.student, row.score) for row in overall] == [
        (row.student, pytest.approx(row.rating, abs=0.1)) for row in report
    ]
    flags = ["--run", tmp_path / "run", "--out", tmp_path / "votes"]
    assert export_preferences.preferences_main([str(flag) for flag in flags]) == 0
    stderr = capsys.readouterr().err
    assert "votes of verbose left out" in stderr
    assert "votes on honest-1 are kept all the same: no other judge compared these" in stderr
    result = tmp_path / "board.json"
    leaderboard.main(["--weighted", "--votes", str(tmp_path / "votes"), "--output", str(result)])
    (board,) = json.loads(result.read_text())
    assert [(row["model"], row["score"]) for row in board["models"]] == [
        (row.student, pytest.approx(row.rating, abs=0.1)) for row in report
    ]


def test_votes_follow_the_report_where_they_say_the_contrary(tmp_path: Path) -> None:
    # b is somewhat better mostly, a much better at times: a leads by the mean of scores, b by pairs won.
    scores = {}
    for number in range(1, 41):
        good, bad = ("High", "Low") if number <= 16 else ("Medium", "High")
        for judge in ("j", "k"):
            scores[f"t/o/{number}", "a", judge] = both(good)
            scores[f"t/o/{number}", "b", judge] = both(bad)
    loaded = load_run(write_run(tmp_path / "run", scores))
    board = boards(gather(loaded, PreferenceFilter()).preferences, BoardOptions(intervals=None))[Slice(OVERALL)]
    report = student_rows(loaded)
    assert report[0].student == board.models[int(board.coefs.argmax())] == "a"
    assert report[0].rating is not None


def test_votes_that_cannot_say_what_people_do_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = {}
    for number in range(1, 21):
        for student, level in (("a", "High"), ("b", "Low")):  # so that no weights put b first
            scores[f"t/o/{number}", student, "j"] = both(level)
    run = Run(write_run(tmp_path / "run", scores))
    people = [
        {"datapoint_id": f"t__o__{number}", "student": student, "factor": factor, "score": score}
        for number in range(1, 21)
        for factor in ("fit", "tone")
        for student, score in (("a", "Low"), ("b", "High"))
    ]
    write_lines(tmp_path / "people.jsonl", people)
    flags = ["--run", run.folder, "--out", tmp_path / "votes", "--annotations", tmp_path / "people.jsonl"]
    assert export_preferences.preferences_main([str(flag) for flag in flags]) == 0
    assert "these votes put a first, people and judges put b first" in capsys.readouterr().err
