"""A new model joins a trained one without training, and the prompts that are worth asking it are written."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from p2l.common.errors import ConfigError, InputError, VoteError
from p2l.inference import P2L
from p2l.model.checkpoint import check_complete
from p2l.newcomers.adding import read_answers
from p2l.newcomers.command import add_main, probes_main
from p2l.training.posterior import write_posterior
from p2l.votes import open_votes
from p2l.votes.door import read_frame
from tests.conftest import write_votes
from tests.p2l.eval_helpers import NAMES, make_model

ASKED = [[f"what is {n} plus {n % 7}"] for n in range(60)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("known") / "model", seed=3, names=sorted(NAMES))


def strong_votes(path: Path, new: str = "bison", count: int = 60) -> Path:
    """A new model wins nine of ten votes against the known ones; others are between known models."""
    rows = []
    for number in range(count):
        other = sorted(NAMES)[number % len(NAMES)]
        winner = "model_b" if number % 10 == 3 else "model_a"
        rows.append({"prompt": ASKED[number % 60], "model_a": new, "model_b": other, "winner": winner})
        rows.append({"prompt": ASKED[number % 60], "model_a": NAMES[0], "model_b": NAMES[1], "winner": "tie"})
    return write_votes(path, rows)


def add(model: Path, output: Path, *flags: str | Path, name: str = "bison") -> P2L:
    add_main([str(word) for word in ("--model", model, "--name", name, "--output", output, *flags)])
    return P2L.from_pretrained(output, device="cpu")


def test_votes_give_a_row_and_change_no_other(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    votes = strong_votes(tmp_path / "votes.jsonl")
    before = P2L.from_pretrained(model, device="cpu").predict(ASKED).coefs
    larger = add(model, tmp_path / "larger", "--votes", votes)
    check_complete(tmp_path / "larger")
    assert larger.model_list == sorted([*NAMES, "bison"])
    after = larger.predict(ASKED).coefs
    place = larger.model_list.index("bison")
    np.testing.assert_allclose(np.delete(after, place, axis=1), before, atol=1e-5)
    assert (after[:, place] > before.mean(axis=1)).all()
    assert "60 votes" in (line := capsys.readouterr().out)
    assert "95 % interval" in line


def test_a_posterior_gets_the_row_too(model: Path, tmp_path: Path) -> None:
    votes = strong_votes(tmp_path / "votes.jsonl")
    sure = Path(shutil.copytree(model, tmp_path / "sure"))
    with open_votes(str(votes), model_list=sorted(NAMES), drop_unknown=True) as store:
        write_posterior(sure, store, "cpu", weighted=False)
    larger = add(sure, tmp_path / "larger", "--votes", votes)
    prediction = larger.predict(ASKED)
    place = larger.model_list.index("bison")
    sd = prediction.sd()
    assert sd.shape == (60, len(NAMES) + 1)
    assert 0.1 < sd[:, place].mean() < 3.0
    assert (prediction.coefs[:, place] > np.delete(prediction.coefs, place, axis=1).mean(axis=1)).mean() > 0.9


def test_graded_answers_do_as_well(model: Path, tmp_path: Path) -> None:
    """Everybody fails half of the prompts; the new model is right wherever one of the others is."""
    rows = []
    for number, prompt in enumerate(ASKED[:20]):
        for name in NAMES:
            rows.append({"prompt": prompt[0], "model": name, "score": float(number % 2 and name != NAMES[2])})
        rows.append({"prompt": prompt[0], "model": "bison", "score": float(number % 2)})
        rows.append({"prompt": prompt[0], "model": "stranger", "score": 0.0})
    answers = tmp_path / "answers.jsonl"
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    larger = add(model, tmp_path / "larger", "--answers", answers)
    coefs = larger.predict(ASKED).coefs
    place = larger.model_list.index("bison")
    assert coefs[:, place].mean() > np.delete(coefs, place, axis=1).mean()


def test_several_scores_of_a_model_on_a_prompt_count_as_their_mean(tmp_path: Path) -> None:
    answers = tmp_path / "answers.csv"
    answers.write_text("prompt,model,score\nhi,bison,1\nhi,ant,1\nhi,bison,0\nho,bison,1\n", encoding="utf-8")
    prompts, scores = read_answers(str(answers), ["ant", "bison"])
    assert prompts == [["hi"], ["ho"]]
    np.testing.assert_array_equal(scores, [[1.0, 0.5], [np.nan, 1.0]])


def test_rows_of_a_csv_file_are_counted_from_its_header_on(tmp_path: Path) -> None:
    answers = tmp_path / "answers.csv"
    answers.write_text("prompt,model,score\nhi,bison,1\nhi,ant,7\n", encoding="utf-8")
    with pytest.raises(InputError, match="row 3: score must lie between 0 and 1"):
        read_answers(str(answers), ["ant", "bison"])


@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
def test_scores_of_prompts_that_it_was_not_asked_are_forecast(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    """The known models fail every other prompt; so will a new one that did where it was asked."""
    rows = []
    for number, prompt in enumerate(ASKED):
        for name in NAMES:
            rows.append({"prompt": prompt[0], "model": name, "score": float(number % 2)})
        if number < 10:
            rows.append({"prompt": prompt[0], "model": "bison", "score": float(number % 2)})
    answers, forecasts = tmp_path / "answers.jsonl", tmp_path / f"forecasts{ending}"
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    add(model, tmp_path / "larger", "--answers", answers, "--forecasts", forecasts)
    written = read_frame(forecasts, {"prompt", "model", "expected"})
    assert len(written) == 50
    assert {*written["model"]} == {"bison"}
    expected = written["expected"].astype(float).to_numpy()
    assert expected[1::2].min() > 0.7
    assert expected[::2].max() < 0.3
    line = capsys.readouterr().out.splitlines()[-1]
    assert re.search(r"50 prompts that bison was not asked, expected score 0\.[45]\d, 95 % interval 0\.\d\d to", line)


def test_forecasts_need_answers_and_prompts_that_were_not_asked(model: Path, tmp_path: Path) -> None:
    votes = strong_votes(tmp_path / "votes.jsonl")
    with pytest.raises(ConfigError, match="goes with --answers"):
        add(model, tmp_path / "larger", "--votes", votes, "--forecasts", tmp_path / "f.jsonl")
    answers = tmp_path / "answers.jsonl"
    answers.write_text(json.dumps({"prompt": "a", "model": "bison", "score": 1.0}) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="has answered every prompt"):
        add(model, tmp_path / "larger", "--answers", answers, "--forecasts", tmp_path / "f.jsonl")
    with pytest.raises(VoteError, match="unknown kind of file"):
        add(model, tmp_path / "larger", "--answers", answers, "--forecasts", tmp_path / "f.txt")
    assert not (tmp_path / "larger").exists()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "a", "model": "bison", "score": 1.5}, "row 1: score must lie between 0 and 1"),
        ({"prompt": "a", "model": NAMES[0], "score": 1.0}, "no answer of 'bison'"),
        ({"prompt": "a", "model": "bison"}, "no column 'score'"),
    ],
)
def test_answers_that_cannot_be_used_are_one_line(
    model: Path, tmp_path: Path, row: dict[str, object], words: str
) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=words):
        add(model, tmp_path / "larger", "--answers", answers)
    assert not (tmp_path / "larger").exists()


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([5], "row 1: prompt is 5; it must be text, or a list of the user's turns"),
        ([{"content": "hi"}], "row 1: prompt is {'content': 'hi'}"),
        ([None, []], "holds no prompts; every prompt is missing or has no turns"),
    ],
)
def test_prompts_that_are_no_text_are_named(model: Path, tmp_path: Path, prompts: list[object], words: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(words)):
        probes_main(["--model", str(model), "--prompts", str(path), "--output", str(tmp_path / "probes.jsonl")])


def test_a_prompt_that_is_missing_is_passed_over(model: Path, tmp_path: Path) -> None:
    path, output = tmp_path / "prompts.jsonl", tmp_path / "probes.jsonl"
    path.write_text('{"prompt": "what is 1 plus 1"}\n{"prompt": null}\n', encoding="utf-8")
    probes_main(["--model", str(model), "--prompts", str(path), "--output", str(output)])
    assert len(output.read_text(encoding="utf-8").splitlines()) == 1


def test_what_cannot_be_added_is_refused(model: Path, tmp_path: Path) -> None:
    votes = strong_votes(tmp_path / "votes.jsonl")
    with pytest.raises(InputError, match="already"):
        add(model, tmp_path / "larger", "--votes", votes, name=NAMES[0])
    with pytest.raises(InputError, match="no vote between 'emu'"):
        add(model, tmp_path / "larger", "--votes", votes, name="emu")
    with pytest.raises(InputError, match="exists"):
        add(model, tmp_path, "--votes", votes)


def test_probes_are_prompts_of_the_file_each_once(model: Path, tmp_path: Path) -> None:
    source = write_votes(
        tmp_path / "votes.jsonl",
        [{"prompt": turns, "model_a": "a", "model_b": "b", "winner": "tie"} for turns in [*ASKED, *ASKED]],
    )
    output = tmp_path / "probes.jsonl"
    flags = ["--model", str(model), "--prompts", str(source), "--output", str(output)]
    probes_main([*flags, "--count", "7", "--limit", "30"])
    rows = [json.loads(line)["prompt"] for line in output.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 7
    assert len({turns[0] for turns in rows}) == 7
    assert all(turns in ASKED for turns in rows)
    with pytest.raises(ConfigError, match="more than --limit"):
        probes_main([*flags, "--count", "7", "--limit", "3"])


def test_probes_pass_over_prompts_that_every_known_model_solves(model: Path, tmp_path: Path) -> None:
    rows = [
        {"prompt": prompt[0], "model": name, "score": 1.0 if number < 50 else float(place % 2)}
        for number, prompt in enumerate(ASKED)
        for place, name in enumerate(NAMES)
    ]
    answers, output = tmp_path / "answers.jsonl", tmp_path / "probes.jsonl"
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    probes_main(["--model", str(model), "--prompts", str(answers), "--output", str(output), "--count", "8"])
    chosen = [json.loads(line)["prompt"] for line in output.read_text(encoding="utf-8").splitlines()]
    assert sum(turns in ASKED[50:] for turns in chosen) >= 6
