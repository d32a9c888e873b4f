"""Pairs of answers compared by scripted judges, run as a user would."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from coeval.analysis.units import load_run
from coeval.mock.server import MockServer
from coeval.pairs.preferences import PreferenceFilter, gather
from coeval.parsing import MalformedAnswerError
from coeval.phases.pairwise import KINDS, Meeting, Schedule, combined, compare_question, draw, meetings, sides
from coeval.phases.question import Question
from coeval.schema import Model, Pairwise, Sampling, Task
from coeval.storage.records import read_records
from tests.coeval.helpers import STATIC_TASK, calls, coeval, model, records, run_of, write_config

STUDENTS = {"ant": 0.9, "bee": 0.5, "cow": 0.1}


def config(folder: Path, server: MockServer | None = None, *, judge: Any = None, **pairwise: Any) -> Path:
    task = {**STATIC_TASK, "evaluation_mode": "pairwise", "pairwise": pairwise}
    students = [model(name, server, skill=skill, noise=0.0) for name, skill in STUDENTS.items()]
    teacher = model("owl", server, roles=["teacher"])
    judge = judge or model("jay", server, roles=["judge"], noise=0.0)
    return write_config(folder, [teacher, *students, judge], [task])


def test_all_pairs_are_compared_in_both_orders_once(tmp_path: Path) -> None:
    with MockServer() as server:
        path = config(tmp_path, server)
        assert coeval("run", "--config", path) == 0
        assert calls(server)["jay compare"] == 4 * 3 * 2
        assert coeval("run", "--config", path, "--continue") == 0
        assert not calls(server)
    found = records(run_of(tmp_path), "pairwise")
    assert len({record["id"] for record in found}) == 12
    assert {record["source"] for record in found} == {"native"}
    for record in found:
        better = min(record["model_a"], record["model_b"])
        assert record["winner"] == ("model_a" if record["model_a"] == better else "model_b")
        assert record["order_consistent"] is True
    assert {record["model_a"] for record in found} == set(STUDENTS)  # the sides are drawn


def test_a_student_more_is_compared_with_all_the_others(tmp_path: Path) -> None:
    with MockServer() as server:
        path = config(tmp_path, server)
        lines = path.read_text()
        path.write_text(lines.replace("- interface: openai\n  name: cow", "- interface: openai\n  name: dog"))
        path.write_text(json.dumps(_without(path, "cow")))
        assert coeval("run", "--config", path) == 0
        assert calls(server)["jay compare"] == 4 * 1 * 2
        path.write_text(lines)
        assert coeval("run", "--config", path, "--continue") == 0
        assert calls(server) == {"cow test": 4, "jay compare": 4 * 2 * 2}


def _without(path: Path, name: str) -> Any:
    import yaml

    value = yaml.safe_load(path.read_text())
    value["models"] = [one for one in value["models"] if one["name"] not in (name, "dog")]
    return value


def test_a_judge_that_goes_by_the_order_gives_ties_and_is_reported(tmp_path: Path) -> None:
    judge = model("jay", roles=["judge"], noise=0.0, position_bias=0.6)
    assert coeval("run", "--config", config(tmp_path, judge=judge)) == 0
    found = records(run_of(tmp_path), "pairwise")
    far = [one for one in found if {one["model_a"], one["model_b"]} == {"ant", "cow"}]
    assert {one["winner"] for one in found if one not in far} == {"tie"}
    assert all(one["winner"] != "tie" for one in far)
    (flips,) = gather(load_run(run_of(tmp_path).folder), PreferenceFilter()).flips
    assert (flips.judge, flips.pairs, flips.flips, flips.inconsistent) == ("jay", 12, 8, 8)
    assert flips.flip_rate == pytest.approx(2 / 3)
    assert flips.first_share == pytest.approx((2 * 8 + 4) / 24)


def test_one_order_costs_half_and_says_nothing_of_flips(tmp_path: Path) -> None:
    with MockServer() as server:
        assert coeval("run", "--config", config(tmp_path, server, both_orders=False)) == 0
        assert calls(server)["jay compare"] == 12
    assert {record["order_consistent"] for record in records(run_of(tmp_path), "pairwise")} == {None}
    assert gather(load_run(run_of(tmp_path).folder), PreferenceFilter()).flips == ()


def test_an_active_schedule_keeps_to_its_budget_over_starts(tmp_path: Path) -> None:
    with MockServer() as server:
        path = config(tmp_path, server, schedule="active", pairs=7)
        assert coeval("run", "--config", path) == 0
        assert calls(server)["jay compare"] == 14
        whole = {one["id"] for one in records(run_of(tmp_path), "pairwise")}
        assert len(whole) == 7
        file = next(iter(run_of(tmp_path).record_files("pairwise")))
        kept = file.read_text().splitlines(keepends=True)[:4]
        file.write_text("".join(kept))
        assert coeval("run", "--config", path, "--continue") == 0
        assert calls(server)["jay compare"] == 6
    assert {one["id"] for one in read_records(file)} == whole


@pytest.mark.parametrize("schedule", ["all", "active"])
def test_a_judge_that_may_ask_no_more_is_told_once(tmp_path: Path, schedule: str) -> None:
    task = {**STATIC_TASK, "evaluation_mode": "pairwise", "pairwise": {"schedule": schedule, "pairs": 8}}
    models = [model(name, roles=["teacher", "student"]) for name in ("ant", "bee")]
    judge = model("jay", roles=["judge"])
    path = write_config(tmp_path, [*models, judge], [task, {**task, "name": "post"}], quota={"jay": {"max_calls": 2}})
    assert coeval("run", "--config", path) == 0
    assert len(records(run_of(tmp_path), "pairwise")) == 1
    assert run_of(tmp_path).log().read_text().count("raise experiment.quota") == 1


def test_a_malformed_verdict_is_never_a_winner(tmp_path: Path) -> None:
    judge = model("jay", roles=["judge"], text="Both have their merits.")
    assert coeval("run", "--config", config(tmp_path, judge=judge)) == 1
    assert {one["winner"] for one in records(run_of(tmp_path), "pairwise")} == {None}


def test_the_order_that_was_answered_is_not_asked_again(tmp_path: Path) -> None:
    judge = model("jay", roles=["judge"], noise=0.0, malformed_rate=0.75)
    path = config(tmp_path, judge=judge)
    assert coeval("run", "--config", path) == 1
    halves = {one["id"]: one["said"] for one in records(run_of(tmp_path), "pairwise") if "said" in one}
    assert {len(said) for said in halves.values()} == {1}
    for _ in range(20):
        if coeval("run", "--config", path, "--continue") == 0:
            break
    found = {one["id"]: one for one in records(run_of(tmp_path), "pairwise") if one["winner"]}
    assert len(found) == 12
    for identity, said in halves.items():
        for part, winner in said.items():
            assert found[identity]["verdicts"][part == "ba"] == winner
        assert "said" not in found[identity]

    # Only the other order is asked for, and both make the verdict.
    task = Task("t", "d", "o", {"x": ["y"]}, Sampling((1, 1), (0, 0), 1), {})
    item = {"id": "t__o__1", "prompt": "Sum?", "reference_response": "3", "teacher_model_id": "o"}
    p, q = ({"id": f"t__o__1__{name}", "student_model_id": name, "response": name} for name in ("p", "q"))
    asked = compare_question(task, Model("jay", "mock", ("judge",)), {}, item, (p, q), {}, {"ab": "model_a"})
    assert list(asked.prompts) == ["ba"]
    record = apply(asked, "B")
    assert (record["verdicts"], record["winner"], record["order_consistent"]) == (["model_a"] * 2, "model_a", True)
    assert apply(asked, "Neither.")["said"] == {"ab": "model_a"}


def apply(asked: Question, text: str) -> dict[str, Any]:
    """The record that an answer to the only part of a question makes."""
    kind = KINDS["pair"]
    (part,) = asked.prompts
    try:
        record = kind.record(asked.context, {part: kind.read(asked.context, part, text)}, {})
    except MalformedAnswerError as error:
        record = kind.record(asked.context, {}, {part: str(error)})
    assert record is not None
    return record


@pytest.mark.parametrize(
    ("text", "part", "winner"),
    [
        ("A", "ab", "model_a"),
        ("A", "ba", "model_b"),
        ("**b**.", "ab", "model_b"),
        ("Answer A", "ab", "model_a"),
        ("Verdict: TIE", "ba", "tie"),
        ("[[B]]", "ba", "model_a"),
        ("<think>A? no.</think>\nBAD", "ab", "tie (bothbad)"),
    ],
)
def test_how_a_verdict_is_read(text: str, part: str, winner: str) -> None:
    assert KINDS["pair"].read({}, part, text).winner == winner


@pytest.mark.parametrize(
    "text",
    ["", "A or B", "C", "A better answer would be short", "C" + " " * 1_000_000 + "A", "answer" + "*" * 1_000_000],
)
def test_what_is_no_verdict(text: str) -> None:
    with pytest.raises(MalformedAnswerError):
        KINDS["pair"].read({}, "ab", text)


def test_disagreement_is_a_tie() -> None:
    assert combined({"ab": "model_a", "ba": "model_a"}) == ("model_a", True)
    assert combined({"ab": "model_a", "ba": "tie"}) == ("tie", False)
    assert combined({"ab": "tie (bothbad)", "ba": "tie"}) == ("tie", False)
    assert combined({"ab": "model_b"}) == ("model_b", None)


def test_sides_are_even_and_always_the_same() -> None:
    drawn = [sides("b", "a", f"item{number}", 0) for number in range(400)]
    assert drawn == [sides("a", "b", f"item{number}", 0) for number in range(400)]
    assert 150 < sum(pair == ("a", "b") for pair in drawn) < 250
    assert draw(1, "x") != draw(2, "x")


def test_the_reference_is_shown_only_where_it_is_to_be() -> None:
    sampling = Sampling((1, 1), (0, 0), 1)
    judge = Model("jay", "mock", ("judge",))
    item = {"id": "t__o__1", "prompt": "Sum {1}?", "reference_response": "THREE", "teacher_model_id": "o"}
    answers = tuple({"id": f"t__o__1__{name}", "student_model_id": name, "response": name} for name in ("p", "q"))
    for shown in (True, False):
        task = Task("t", "d", "o", {"x": ["y"]}, sampling, {}, pairwise=Pairwise(reference=shown))
        asked = compare_question(task, judge, {"clear": "Is it?"}, item, (answers[0], answers[1]), {})
        assert ("THREE" in asked.prompts["ab"]) is shown
        assert asked.prompts["ab"] != asked.prompts["ba"]
        assert asked.id == "t__o__1__p__vs__q__jay"


def test_the_active_schedule_prefers_close_models() -> None:
    names = ["a", "b", "c", "d"]
    possible = meetings({f"item{number}": names for number in range(100)})
    strength = {"a": 4.0, "b": 0.1, "c": 0.0, "d": -4.0}

    def winner(one: Meeting) -> str:
        chance = 1 / (1 + 2.718281828 ** (strength[one.second] - strength[one.first]))
        return "model_a" if draw(5, one) < chance else "model_b"

    rounds = Schedule(possible, {}, 120, seed=3).rounds()
    told: dict[Meeting, str] = {}
    sizes = []
    while wanted := rounds.next():
        found = {one: winner(one) for one in wanted}
        rounds.tell(found)
        told.update(found)
        sizes.append(len(wanted))
    assert sum(sizes) == 120
    assert sizes[:6] == [4, 4, 4, 4, 4, 4]
    assert sizes[-2] == 18  # a fifth of what was before
    count = Counter((one.first, one.second) for one in told)
    assert max(count, key=lambda pair: count[pair]) == ("b", "c")
    assert set(count) == set(itertools.combinations(names, 2))
    # Stopped at any point, or with a smaller budget at first, it goes on to the same meetings.
    half = dict(list(told.items())[:65])
    again = Schedule(possible, half, 120, seed=3)
    assert again.left == 55
    rounds = again.rounds()
    while wanted := rounds.next():
        found = {one: winner(one) for one in wanted}
        rounds.tell(found)
        half.update(found)
    assert half == told


def test_verdicts_that_come_out_otherwise_do_not_break_the_budget() -> None:
    names = [f"m{number}" for number in range(5)]
    possible = meetings({f"item{number}": names for number in range(8)})
    chance = random.Random(4)
    for _ in range(2):
        known: dict[Meeting, str] = {}
        while True:  # each start ends within a round, whose other verdicts are lost and asked for again
            rounds = Schedule(possible, known, 40, seed=2).rounds()
            for _ in range(chance.randint(1, 3)):
                wanted = rounds.next()
                assert not known.keys() & set(wanted)
                found = {one: chance.choice(["model_a", "model_b", "tie"]) for one in wanted}
                known.update(found)
                rounds.tell(found)
            if not wanted:
                break
            for one in wanted[chance.randint(0, len(wanted)) :]:
                del known[one]
        assert len(known) == 40


@pytest.mark.parametrize(("models", "limit"), [(2, 5), (30, 20), (30, 90)])
def test_a_small_budget_is_spread_over_all_models(models: int, limit: int) -> None:
    names = [f"m{number:02}" for number in range(models)]
    rounds = Schedule(meetings({f"item{number}": names for number in range(10)}), {}, limit, seed=1).rounds()
    met: Counter[str] = Counter()
    while wanted := rounds.next():
        rounds.tell(dict.fromkeys(wanted, "tie"))
        met.update(name for one in wanted for name in (one.first, one.second))
    assert met.total() == 2 * limit
    assert max(met.values()) - min(met[name] for name in names) <= 2


def test_a_judge_compares_its_own_answers_last() -> None:
    possible = meetings({f"item{number}": ["a", "b", "c"] for number in range(5)})
    for limit, own in ((4, 0), (7, 2), (15, 10)):  # five of the fifteen meetings are between the others
        rounds = Schedule(possible, {}, limit, seed=1, judge="b").rounds()
        seen: list[Meeting] = []
        while wanted := rounds.next():
            rounds.tell(dict.fromkeys(wanted, "tie"))
            seen += wanted
        every = Schedule(possible, {}, limit, seed=1, judge="b").everything()
        for found in (seen, every):
            assert (len(found), sum("b" in (one.first, one.second) for one in found)) == (limit, own)


def test_ties_say_that_models_are_close() -> None:
    names = ["a", "b", "c"]
    rounds = Schedule(meetings({f"item{number}": names for number in range(100)}), {}, 90, seed=1).rounds()
    met: Counter[tuple[str, str]] = Counter()
    while wanted := rounds.next():
        rounds.tell({one: "tie" if one.second == "b" else "model_a" for one in wanted})  # a and b beat c
        met.update((one.first, one.second) for one in wanted)
    assert met["a", "b"] > 2 * max(met["a", "c"], met["b", "c"])


def test_verdicts_of_no_use_are_asked_for_again(tmp_path: Path) -> None:
    with MockServer() as server:
        path = config(tmp_path, server)
        assert coeval("run", "--config", path) == 0
        calls(server)
        (file,) = run_of(tmp_path).record_files("pairwise")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        lines[0]["winner"] = "A"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]) + '{"id": "torn')
        assert coeval("run", "--config", path, "--continue") == 0
        assert calls(server) == {"jay compare": 4}
    assert len(gather(load_run(run_of(tmp_path).folder), PreferenceFilter()).preferences) == 12
