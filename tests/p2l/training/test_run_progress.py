"""What a run says while it goes on, on a clock that the tests turn."""

import json
from pathlib import Path

import pytest

from p2l.training.trainer import StepReport, StepResult, TimeLeft


@pytest.mark.parametrize("quiet", [False, True])
def test_the_estimate_is_said_once_and_every_step_is_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    now = [0.0]
    shown = StepReport(tmp_path, total=20, first=0, num_votes=200, quiet=quiet, is_main=True)
    shown.time_left = TimeLeft(200, clock=lambda: now[0])
    for step in range(1, 11):
        now[0] += 20.0
        shown.step(StepResult(step, 1.0, 0.5, 1e-3, 10, 500), seconds=20.0)
    shown.evaluation(10, {"Loss": 0.5})
    shown.close()
    said = capsys.readouterr().err.splitlines()
    estimate = "training will take about 6 minutes more (15% done, 25 tokens/s)"
    assert said == ([] if quiet else [estimate, "step 10: validation loss 0.5000"])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in lines] == [*range(1, 11), 10]
    assert lines[0]["tokens_per_second"] == 25.0


def test_a_resumed_run_estimates_what_is_left_of_it(tmp_path: Path) -> None:
    shown = StepReport(tmp_path, total=20, first=15, num_votes=200, quiet=True, is_main=False)
    assert shown.time_left.votes == 50
    shown.close()
