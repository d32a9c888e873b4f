"""The page of a training run, as the command writes it from the run's folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from p2l.commands.report import main
from p2l.common.errors import InputError
from tests.p2l.evaluation.evaluation_results import EVIL
from tests.p2l.evaluation.test_evaluation_report import Page
from tests.p2l.evaluation.training_runs import make_run, publications, steps, write_lines


def page_of(folder: Path, *words: str) -> str:
    main([str(folder), *words])
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("outputs") / "sample")


@pytest.fixture(scope="module")
def text(run: Path) -> str:
    return page_of(run)


def test_it_begins_with_run_data_and_date_and_the_verdict_with_its_interval(text: str) -> None:
    body = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", text, flags=re.DOTALL)
    marks = ["<h1>", "/sample", "on data/train.parquet", "<time", 'class="verdict good"', "The model reads prompts"]
    marks += ["0.0300 nats a vote lower", "95% interval 0.0100 to 0.0500", "loss 1.0000 against 1.0300"]
    marks += ["accuracy 48.1% against 46.0%", 'id="figure-1"', "<h2>Leaderboard</h2>", "<h2>Held-out votes</h2>"]
    marks += ["<h2>Calibration</h2>", "<h2>Course of the training</h2>", "<h2>Configuration</h2>"]
    for mark in marks:
        before, found, body = body.partition(mark)
        assert found, (mark, before[-300:])


def test_the_picture_has_what_was_trained_on_chosen_by_and_held_out(text: str) -> None:
    figure = text[text.index('id="figure-1"') : text.index("<h2>Leaderboard")]
    for name in ("votes trained on, mean and range of 12 steps", "votes that choose the step", "held-out votes"):
        assert name in figure
    assert "one leaderboard, held-out votes" in figure
    assert "Means of the steps since the row before." in figure
    for panel in ("Learning rate", "Gradient norm", "Speed"):
        assert f'<p class="panel">{panel}</p>' in text
    assert "votes a second" not in text.partition("<h2>Course")[2].partition("<table")[0]  # tokens are recorded


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Gain", "0.0300"),
        ("Steps", "240"),
        ("Votes", "7,680"),
        ("Chosen step", "168"),
        ("Shrinkage", "80%"),
        ("Time", "24 s"),
    ],
)
def test_numbers_are_explained_where_they_stand(text: str, name: str, value: str) -> None:
    row = re.search(rf'<th scope="row">{name}</th><td class="number">{value}.*?</td><td class="wide">(.+?)</td>', text)
    assert row is not None, name
    assert len(row[1]) > 20


def test_the_page_is_whole_and_loads_nothing(text: str) -> None:
    page = Page(text)
    assert not page.wrong
    assert not page.open
    assert not page.loaded
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert not re.search(r"https?://|@import|url\((?!#)", text)


@pytest.mark.parametrize(
    ("found", "tone", "words"),
    [
        ({"gain": -0.05}, "bad", "is worse than one leaderboard"),
        ({"gain": 0.01}, "", "do not show that the model reads prompts"),
        ({"gain": 0.05, "factor": 0.0}, "", "so it is one leaderboard for all of them"),
        ({"gain": 0.05, "folds": 5}, "good", "votes in 5 folds"),
    ],
)
def test_the_verdict_is_what_the_interval_says(tmp_path: Path, found: dict[str, float], tone: str, words: str) -> None:
    said = page_of(make_run(tmp_path / "run", **found))
    verdict = re.search(r'<div class="verdict ?(\w*)">\n<p>(.*?)</p>', said)
    assert verdict is not None
    assert (verdict[1], words in verdict[2]) == (tone, True)


def test_names_of_others_are_text(tmp_path: Path) -> None:
    said = page_of(make_run(tmp_path / "a <b>run", ["ant", EVIL, "中文模型", "نموذج"]))
    assert "<script>alert" not in said
    assert "<b>run" not in said
    assert said.count("<script>") == 1
    assert "中文模型" in said


def test_without_a_comparison_the_forecasts_of_held_out_votes_decide(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "online")
    (folder / "comparison.json").unlink()
    said = page_of(folder)
    assert "The model forecasts votes better than one leaderboard fitted to these very votes" in said
    assert "95% interval of what it saves" in said


def test_a_run_that_still_goes_on_says_how_far_its_loss_fell(tmp_path: Path) -> None:
    lines = [json.dumps(line) for line in steps(80)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, "[]", "no JSON", '{"step": 81, "loss": 0.'])[:-3])
    said = page_of(tmp_path)
    assert re.search(r"loss of the votes trained on fell by 0\.\d{4} nats from the first 20 steps to the last 20", said)
    assert "The run has not written a finished model: 80 steps so far." in said
    assert "the run has written no forecasts of held-out votes" in said


def test_a_run_without_held_out_votes_says_that_nothing_shows_its_worth(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    for name in ("comparison.json", "eval_output.jsonl", "eval_results.json"):
        (folder / name).unlink()
    assert "No votes were held out, so nothing shows whether it reads prompts" in page_of(folder)


def test_an_online_run_shows_what_it_published_wherever_that_is(tmp_path: Path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    write_lines(served / "published.jsonl", [*publications(), {"event": EVIL}, {"time": "late"}])
    run = tmp_path / "live"
    run.mkdir()
    online = {"arrived": 100, "waiting": 3, "models": 5}
    write_lines(run / "metrics.jsonl", [line | online | {"waiting": line["step"]} for line in steps(40)])
    (run / "served.json").write_text(json.dumps({"folder": str(served)}), encoding="utf-8")
    for folder in (run, served):
        said = page_of(folder)
        assert "The newest candidate, checkpoint-80, forecasts as well as checkpoint-70" in said
        assert "95% interval of the gain −0.0046 to 0.0071" in said
        assert "rolled back to checkpoint-70" in said
        assert '<th scope="row">Refused</th><td class="number">1</td>' in said
        assert "Gain of each candidate over the model that was served" in said
    assert "Votes that wait in the buffer" in page_of(run)
    assert "Models known" not in page_of(run)  # they were the same five all the time


def test_a_folder_of_anything_else_is_one_line(tmp_path: Path) -> None:
    for folder, words in (
        (tmp_path, "is not a folder of a training run"),
        (tmp_path / "none", "is not a folder; name the folder of a training run"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            main([str(folder)])
        assert "\n" not in str(caught.value)
    (make_run(tmp_path / "run") / "checkpoint-3").mkdir()
    with pytest.raises(InputError, match=r"it is a checkpoint: name .*run"):
        main([str(tmp_path / "run" / "checkpoint-3")])


def test_the_page_goes_where_it_is_asked_for(
    run: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    main([str(run), "--output", str(tmp_path / "new" / "page.html")])
    out, err = capsysbinary.readouterr()
    assert b"The model reads prompts" in out
    assert b"wrote" in err
    main([str(run), "--output", "-"])
    assert capsysbinary.readouterr().out == (tmp_path / "new" / "page.html").read_bytes()
    with pytest.raises(InputError, match=r"must be \.html"):
        main([str(run), "--output", str(tmp_path / "page.pdf")])


def test_what_others_have_damaged_does_not_stop_it(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    for name in ("training_config.json", "comparison.json", "eval_results.json", "request.json", "served.json"):
        (folder / name).write_text("[" * 5000, encoding="utf-8")
    write_lines(folder / "eval_output.jsonl", [{"prompt": "x"}])
    huge = {"step": 1, "loss": 10**400, "tokens": True, "seconds": None}
    write_lines(folder / "metrics.jsonl", [huge, {"step": "1", "loss": 1.0}, {"step": 2, "loss": float("nan")}])
    said = page_of(folder)
    assert 'class="problem"' in said
    assert "too few to say anything of its loss" in said
