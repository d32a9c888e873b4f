from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coeval.calling.calls import Call, CallError, Reason, Reply
from coeval.phases.asking import drive
from coeval.phases.progress import Outcome, Stage
from coeval.phases.question import Question, apply
from coeval.schema import Config, Model
from coeval.storage.run import Run
from coeval.storage.store import Log, Store
from tests.coeval.helpers import Scripted, records, scripted_config

PHASE = "evaluation"
CONTEXT = {
    "response_id": "mail__ant__00001__bee",
    "datapoint_id": "mail__ant__00001",
    "task_id": "mail",
    "teacher_model_id": "ant",
    "student_model_id": "bee",
    "judge_model_id": "cow",
    "factors": ["clarity", "tone"],
    "scores": {},
}
GOOD = '{"clarity": "High", "tone": "Low"}'


def questions(count: int, kind: str = "scores") -> Iterator[Question]:
    parts = {"": "all"} if kind == "scores" else {"clarity": "clarity", "tone": "tone"}
    for number in range(count):
        yield Question(kind, PHASE, "judge", "cow", "mail", {**CONTEXT, "id": f"x{number}"}, parts)  # type: ignore[arg-type]


def judge(folder: Path, asking: Scripted, count: int, kind: str = "scores", config: Config | None = None) -> Outcome:
    """Drive some questions of one judge."""
    config = config or scripted_config(folder, "cow")
    with Store(Run(folder)) as store:
        stage = Stage(config, Run(folder), store, asking, Log(None, "ERROR"), {})
        return asyncio.run(drive(stage, PHASE, config.models[0], questions(count, kind)))


def test_every_answer_becomes_a_record_with_what_it_cost(tmp_path: Path) -> None:
    outcome = judge(tmp_path, Scripted(lambda _: GOOD), 3)
    assert (outcome.stored, outcome.failed) == (3, 0)
    found = records(Run(tmp_path), "evaluation")
    assert [record["id"] for record in found] == ["x0", "x1", "x2"]
    assert found[0]["scores"] == {"clarity": "High", "tone": "Low"}
    assert found[0]["raw"] == GOOD
    assert found[0]["usage"] == {"prompt_tokens": 0, "completion_tokens": 8, "cost_usd": 0.001}
    assert "factors" not in found[0]


def test_few_questions_wait_at_once_however_many_there_are(tmp_path: Path) -> None:
    asking = Scripted(lambda _: GOOD)
    config = replace(scripted_config(tmp_path, "cow", concurrency=4))
    assert judge(tmp_path, asking, 500, config=config).stored == 500
    assert 4 <= asking.most_in_flight <= 16


@pytest.mark.parametrize("text", ["High", '{"clarity": "High"}', '{"clarity": "High", "tone": "Fine"}', "{}"])
def test_a_malformed_judgement_is_asked_for_again_and_then_failed_without_a_score(tmp_path: Path, text: str) -> None:
    asking = Scripted(lambda _: text)
    outcome = judge(tmp_path, asking, 1)
    assert (outcome.stored, outcome.failed, outcome.complete) == (0, 1, False)
    assert [call.attempt for call in asking.asked] == [0, 1, 2]
    (record,) = records(Run(tmp_path), "evaluation")
    assert (record["status"], record["scores"]) == ("failed", {})
    assert record["usage"]["cost_usd"] == 0.003


def test_a_judge_that_never_answers_usably_rests_and_is_asked_again_by_the_next_start(tmp_path: Path) -> None:
    asking = Scripted(lambda _: "I would rather not say.")
    outcome = judge(tmp_path, asking, 120)
    assert 20 <= len(asking.asked) <= 60  # in place of 360; some were on their way
    (why,) = outcome.refused.values()
    assert "none that can be used" in why
    assert "'I would rather not say.'" in why
    assert "coeval repair" in why
    assert judge(tmp_path, Scripted(lambda _: GOOD), 120).stored == 120


def test_a_judge_that_answers_now_and_then_is_asked_on(tmp_path: Path) -> None:
    asking = Scripted(lambda call: GOOD if call.key[1] == "x0" else "?")
    outcome = judge(tmp_path, asking, 40)
    assert (outcome.stored, outcome.failed, outcome.refused) == (1, 39, {})


def test_thoughts_are_kept_apart_from_what_a_judge_says(tmp_path: Path) -> None:
    judge(tmp_path, Scripted(lambda _: f'Perhaps {{"clarity": "Low", "tone": "Low"}}.\n</think>\n{GOOD}'), 1)
    (record,) = records(Run(tmp_path), "evaluation")
    assert record["scores"] == {"clarity": "High", "tone": "Low"}
    assert record["raw"] == GOOD
    assert record["thoughts"] == 'Perhaps {"clarity": "Low", "tone": "Low"}.'


def test_a_second_attempt_may_succeed(tmp_path: Path) -> None:
    outcome = judge(tmp_path, Scripted(lambda call: GOOD if call.attempt else "?"), 2)
    assert (outcome.stored, outcome.failed) == (2, 0)


def test_a_factor_without_a_word_is_left_out_and_the_others_kept(tmp_path: Path) -> None:
    outcome = judge(tmp_path, Scripted(lambda call: "Medium" if call.prompt == "tone" else "so so"), 1, "factors")
    assert outcome.failed == 1
    (record,) = records(Run(tmp_path), "evaluation")
    assert record["scores"] == {"tone": "Medium"}
    assert "status" not in record


def test_a_question_without_an_answer_fails_alone(tmp_path: Path) -> None:
    failing = CallError(Reason.FAILED, "timed out")
    asking = Scripted(lambda call: failing if call.key[1] == "x1" else GOOD)
    outcome = judge(tmp_path, asking, 4)
    assert (outcome.stored, outcome.failed) == (3, 1)
    assert len(asking.asked) == 4
    failed = [record for record in records(Run(tmp_path), "evaluation") if record.get("status") == "failed"]
    assert [(record["id"], record["error"]) for record in failed] == [("x1", "timed out")]


@pytest.mark.parametrize("reason", [Reason.QUOTA, Reason.BUDGET, Reason.FATAL])
def test_a_model_that_may_not_be_asked_is_left_alone(tmp_path: Path, reason: Reason) -> None:
    asking = Scripted(lambda call: CallError(reason, "no more") if int(call.key[1][1:]) >= 3 else GOOD)
    outcome = judge(tmp_path, asking, 1000)
    assert len(records(Run(tmp_path), "evaluation")) == outcome.stored == 3
    assert (outcome.failed, outcome.complete) == (0, False)
    assert len(asking.asked) < 60
    assert bool(outcome.refused) == (reason is Reason.FATAL)
    assert bool(outcome.stopped) == (reason is not Reason.FATAL)


def test_a_part_that_came_before_a_stop_is_not_asked_again(tmp_path: Path) -> None:
    def first(call: Call) -> str | CallError:
        return "High" if call.prompt == "clarity" else CallError(Reason.QUOTA, "used up")

    judge(tmp_path, Scripted(first), 1, "factors")
    assert records(Run(tmp_path), "evaluation") == []
    asking = Scripted(lambda _: "Low")
    judge(tmp_path, asking, 1, "factors")
    assert [call.prompt for call in asking.asked] == ["tone"]
    assert records(Run(tmp_path), "evaluation")[0]["scores"] == {"clarity": "High", "tone": "Low"}
    assert not list((tmp_path / ".parts").iterdir())


def test_a_disk_that_cannot_be_written_ends_the_phase(tmp_path: Path) -> None:
    (tmp_path / "phase5_evaluations").touch()
    with pytest.raises(OSError, match="phase5_evaluations"):
        judge(tmp_path, Scripted(lambda _: GOOD), 100)


def test_where_one_part_breaks_nobody_waits_for_the_others(tmp_path: Path) -> None:
    ended = []

    class Breaks(Scripted):
        async def ask(self, call: Call) -> Reply:
            if call.prompt == "clarity":
                raise OSError("broken")
            try:
                return await asyncio.Event().wait()  # type: ignore[return-value]
            finally:
                ended.append(call.prompt)

    async def ask(stage: Stage, model: Model) -> list[str]:
        with pytest.raises(OSError, match="broken"):
            await drive(stage, PHASE, model, questions(1, "factors"))
        return list(ended)

    config = scripted_config(tmp_path, "cow")
    with Store(Run(tmp_path)) as store:
        stage = Stage(config, Run(tmp_path), store, Breaks(lambda _: GOOD), Log(None, "ERROR"), {})
        assert asyncio.run(ask(stage, config.models[0])) == ["tone"]


def test_an_answer_that_comes_in_another_process_makes_the_same_record(tmp_path: Path) -> None:
    question = next(questions(1))
    sent = Question(**question.to_json())
    reply = asyncio.run(Scripted(lambda _: GOOD).ask(question.call(Model("cow", "mock", ("judge",)))))
    with Store(Run(tmp_path)) as store:
        settled = apply(store, sent, {"": reply})
    assert settled.record is not None
    assert settled.failures == {}
    assert records(Run(tmp_path), "evaluation")[0]["scores"] == {"clarity": "High", "tone": "Low"}
