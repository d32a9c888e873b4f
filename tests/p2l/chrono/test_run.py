"""Checkpoints against slices, as the command does it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2l.chrono.run import ChronoOptions, evaluate_chrono
from p2l.common.errors import InputError, P2LError
from p2l.eval_chrono import build_parser, main
from p2l.inference import P2L
from p2l.metrics import simple_metrics
from p2l.model.checkpoint import read_model_list
from tests.p2l.eval_helpers import make_model

HEADER = "question_id,prompt,model_a,model_b,winner\n"
WINNERS = ["model_a", "model_b", "tie", "tie (bothbad)"]
TEXTS = ["write a poem", "what is 2 plus 2", "bees", "what is 3"]


def write_slice(path: Path, models: list[str], count: int = 8) -> Path:
    rows = [
        f"{n},{TEXTS[n % 4]},{models[n % len(models)]},{models[(n + 1) % len(models)]},{WINNERS[n % 4]}\n"
        for n in range(count)
    ]
    path.write_text(HEADER + "".join(rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints, of which the second knows one model more; `checkpoint-2` sorts after `checkpoint-10` as text."""
    root = tmp_path_factory.mktemp("models")
    make_model(root / "checkpoint-2", names=["ant", "bee"], seed=1)
    make_model(root / "checkpoint-10", names=["bee", "ant", "cat"], seed=2)
    return root


@pytest.fixture
def run(models: Path, tmp_path: Path) -> Path:
    for name in ("checkpoint-2", "checkpoint-10"):
        shutil.copytree(models / name, tmp_path / "run" / name)
    return tmp_path / "run"


@pytest.fixture
def slices(tmp_path: Path) -> Path:
    folder = tmp_path / "slices"
    folder.mkdir()
    write_slice(folder / "val-1.csv", ["ant", "bee"])
    write_slice(folder / "val-9.csv", ["ant", "bee", "cat"])
    (folder / "README.md").write_text("notes of 2024", encoding="utf-8")
    return folder


Evaluate = Callable[..., None]


@pytest.fixture
def evaluate(run: Path, slices: Path, tmp_path: Path) -> Evaluate:
    def call(**changes: Any) -> None:
        given: dict[str, Any] = {"model_repo": str(run), "val_dir": str(slices), "output_dir": str(tmp_path / "out")}
        evaluate_chrono(ChronoOptions(**(given | {"device": "cpu"} | changes)))

    return call


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def files_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.json"))


def test_each_checkpoint_is_asked_about_the_slices_up_to_it(evaluate: Evaluate, tmp_path: Path) -> None:
    evaluate()
    assert files_below(tmp_path / "out") == [
        "checkpoint-10/checkpoint-10-val-1.info.json",
        "checkpoint-10/checkpoint-10-val-1.json",
        "checkpoint-10/checkpoint-10-val-9.info.json",
        "checkpoint-10/checkpoint-10-val-9.json",
        "checkpoint-10/model_list.json",
        "checkpoint-2/checkpoint-2-val-1.info.json",
        "checkpoint-2/checkpoint-2-val-1.json",
        "checkpoint-2/model_list.json",
    ]


def test_the_page_is_of_all_that_is_there(evaluate: Evaluate, tmp_path: Path) -> None:
    evaluate(html=str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.search(r"run (does not show that it forgets|has forgotten|has not forgotten|ends with)", text)
    assert "/slices" in text
    assert "Loss: checkpoints over the slices" in text
    with pytest.raises(InputError, match=r"must be \.html"):
        evaluate(html=str(tmp_path / "page.pdf"))


def test_rows_hold_what_the_model_says_and_labels_of_its_own_list(
    evaluate: Evaluate, run: Path, tmp_path: Path
) -> None:
    evaluate()
    folder = tmp_path / "out" / "checkpoint-10"
    rows, names = read(folder / "checkpoint-10-val-9.json"), read_model_list(folder)
    assert [row["question_id"] for row in rows] == [str(n) for n in range(8)]
    for row in rows:
        first, second, tie = row["labels"]
        pair = (row["model_b"], row["model_a"]) if row["winner"] == "model_b" else (row["model_a"], row["model_b"])
        assert (names[first], names[second]) == pair
        assert tie == max(0, WINNERS.index(row["winner"]) - 1)
    said = P2L.from_pretrained(run / "checkpoint-10", device="cpu").predict([row["prompt"] for row in rows])
    np.testing.assert_allclose([row["coefs"][0] for row in rows], said.coefs, atol=1e-6)
    assert said.eta is not None
    np.testing.assert_allclose([row["eta"][0][0] for row in rows], said.eta, atol=1e-6)
    info = read(folder / "checkpoint-10-val-9.info.json")
    labels = np.array([row["labels"] for row in rows])
    expected = simple_metrics(said.coefs, labels, said.eta, likelihood="grk")
    assert info["metrics"]["Loss"] == pytest.approx(expected["Loss"], abs=1e-6)
    assert (info["votes"], info["left_out"], info["prompts"]) == (8, 0, 4)


def test_votes_on_models_that_a_checkpoint_does_not_know_are_left_out_and_counted(
    evaluate: Evaluate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(all_slices=True)
    info = read(tmp_path / "out" / "checkpoint-2" / "checkpoint-2-val-9.info.json")
    assert (info["votes"], info["left_out"], info["unknown_models"]) == (3, 5, ["cat"])
    rows = read(tmp_path / "out" / "checkpoint-2" / "checkpoint-2-val-9.json")
    assert all({row["model_a"], row["model_b"]} == {"ant", "bee"} for row in rows)
    assert "5 left out, with models that it does not know (cat)" in capsys.readouterr().err


def test_a_slice_of_unknown_models_alone_is_an_empty_cell(evaluate: Evaluate, slices: Path, tmp_path: Path) -> None:
    write_slice(slices / "val-0.csv", ["eel", "fox"])
    evaluate()
    assert read(tmp_path / "out" / "checkpoint-2" / "checkpoint-2-val-0.json") == []
    assert read(tmp_path / "out" / "checkpoint-2" / "checkpoint-2-val-0.info.json")["metrics"]["Loss"] is None


def test_a_prompt_is_read_once_by_each_checkpoint(evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    predict = P2L.predict

    def watched(self: P2L, prompts: Any, **options: Any) -> Any:
        asked.extend(prompts)
        return predict(self, prompts, **options)

    monkeypatch.setattr(P2L, "predict", watched)
    evaluate()
    assert sorted(asked) == sorted([[text] for text in TEXTS] * 2)


def test_what_is_complete_is_not_computed_again(evaluate: Evaluate, slices: Path, tmp_path: Path) -> None:
    evaluate()
    folder = tmp_path / "out" / "checkpoint-10"
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*val-*")}
    (folder / "checkpoint-10-val-1.info.json").unlink()  # as a kill between rows and info leaves it
    (folder / "checkpoint-10-val-9.info.json").write_bytes(b"{\xff")
    write_slice(slices / "val-9.csv", ["ant", "bee", "cat"], count=9)
    evaluate()
    assert len(read(folder / "checkpoint-10-val-9.json")) == 9
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("*val-*")}
    evaluate()
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob("*val-*")} == after
    assert [name for name in after if after[name] == before[name]] == []
    untouched = tmp_path / "out" / "checkpoint-2" / "checkpoint-2-val-1.json"
    assert untouched.stat().st_mtime_ns < min(after.values())


def test_another_model_under_the_same_name_replaces_the_first(
    evaluate: Evaluate, models: Path, run: Path, tmp_path: Path
) -> None:
    evaluate(all_slices=True)
    shutil.rmtree(run / "checkpoint-2")
    shutil.copytree(models / "checkpoint-10", run / "checkpoint-2")
    evaluate()
    assert files_below(tmp_path / "out" / "checkpoint-2") == [
        "checkpoint-2-val-1.info.json",
        "checkpoint-2-val-1.json",
        "model_list.json",
    ]
    assert read_model_list(tmp_path / "out" / "checkpoint-2") == ["bee", "ant", "cat"]


def test_a_broken_checkpoint_is_left_out_and_named(evaluate: Evaluate, run: Path, tmp_path: Path) -> None:
    (run / "checkpoint-2" / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(
        P2LError, match=r"1 of 2 checkpoints cannot be used.*checkpoint-2; the first: .*safetensors"
    ) as e:
        evaluate()
    assert not isinstance(e.value, InputError)  # exit code 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["checkpoint-10"]


def test_when_no_checkpoint_can_be_used_nothing_is_written(evaluate: Evaluate, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no checkpoint can be used"):
        evaluate(head_type="ba")
    assert not (tmp_path / "out").exists()


def test_a_model_list_for_all_checkpoints_may_lie_beside_them(evaluate: Evaluate, run: Path, tmp_path: Path) -> None:
    shutil.rmtree(run / "checkpoint-2")
    shutil.move(run / "checkpoint-10" / "model_list.json", run / "model_list.json")
    evaluate()
    assert read_model_list(tmp_path / "out" / "checkpoint-10") == ["bee", "ant", "cat"]


def test_a_checkpoint_without_any_model_list_is_named(evaluate: Evaluate, run: Path) -> None:
    for number in (2, 10):
        (run / f"checkpoint-{number}" / "model_list.json").unlink()
    with pytest.raises(InputError, match=r"run/checkpoint-2: is not a complete model: neither it nor .*run holds"):
        evaluate()


def test_labels_of_a_stated_list_stand_in_for_names(evaluate: Evaluate, slices: Path, tmp_path: Path) -> None:
    (slices / "val-9.csv").write_text('prompt,labels\nbees,[ 2 0 1]\nwrite,"[1, 2, 0]"\n', encoding="utf-8")
    (tmp_path / "names.json").write_text('["ant", "bee", "cat"]', encoding="utf-8")
    with pytest.raises(InputError, match="not stated"):
        evaluate()
    evaluate(label_list=str(tmp_path / "names.json"))
    rows = read(tmp_path / "out" / "checkpoint-10" / "checkpoint-10-val-9.json")
    assert [row["labels"] for row in rows] == [[2, 1, 1], [0, 2, 0]]


def test_a_repository_on_the_hub_is_a_run(
    evaluate: Evaluate, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()]
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", lambda _, repo: names if repo == "me/run" else [])
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(run))
    evaluate(model_repo="me/run")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["checkpoint-10", "checkpoint-2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--time-align"], "--time-align needs both --train-time and --val-time"),
        (["--time-align", "--train-time", "t.json"], "needs both"),
        (["--val-time", "t.json"], "go with --time-align"),
        (["--checkpoint-prefix", "step-"], "holds no folder step-N"),
        (["--val-dir", "nowhere"], "nowhere: no such folder"),
        (["--model-repo", "./nowhere"], "no such folder"),
        (["--label-list", "nowhere.json"], "label list cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    words: list[str], message: str, run: Path, slices: Path, tmp_path: Path
) -> None:
    given = ["-m", str(run), "-v", str(slices), "-od", str(tmp_path / "out"), *words]
    with pytest.raises(InputError, match=message) as error:
        main(given)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("val-3.csv", "prompt,model_a\nx,ant\n", "no column 'model_b'"),
        ("late-1.csv", HEADER, "has the number 1 of val-1.csv|has the number 1 of late-1.csv"),
    ],
)
def test_slices_that_are_none_are_refused(
    evaluate: Evaluate, slices: Path, tmp_path: Path, name: str, text: str, message: str
) -> None:
    (slices / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        evaluate()
    assert not (tmp_path / "out").exists()


def test_alignment_by_time(evaluate: Evaluate, run: Path, tmp_path: Path) -> None:
    (run / "checkpoint-10").rename(run / "checkpoint-4")
    (tmp_path / "train.json").write_text(json.dumps({n: {"end_tstamp": n + 1.0} for n in range(4)}), encoding="utf-8")
    (tmp_path / "val.json").write_text('{"1": {"end_tstamp": 2.5}, "9": {"end_tstamp": 3.5}}', encoding="utf-8")
    evaluate(time_align=True, train_time=str(tmp_path / "train.json"), val_time=str(tmp_path / "val.json"))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["checkpoint-4"]
    assert len(list((tmp_path / "out" / "checkpoint-4").glob("*val-*"))) == 4


def test_times_of_smaller_batches_are_pointed_out(
    evaluate: Evaluate, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "checkpoint-10").rename(run / "checkpoint-4")
    train, val = tmp_path / "train.json", tmp_path / "val.json"
    val.write_text('{"1": 0.5, "9": 0.5}', encoding="utf-8")
    for last, noted in ((5, False), (6, True)):  # 5 is still before the next checkpoint
        train.write_text(json.dumps(dict.fromkeys(range(last + 1), 1.0)), encoding="utf-8")
        evaluate(time_align=True, train_time=str(train), val_time=str(val))
        assert ("goes on to batch 6, but the last checkpoint was made after 4" in capsys.readouterr().err) is noted


def test_what_a_kill_left_is_swept_and_a_second_run_refused(evaluate: Evaluate, tmp_path: Path) -> None:
    from p2l.chrono.cells import claimed

    folder = tmp_path / "out" / "checkpoint-2"
    folder.mkdir(parents=True)
    (folder / ".checkpoint-2-val-1.json.77.tmp").write_text("[", encoding="utf-8")
    with claimed(folder), pytest.raises(InputError, match="another run is writing there"):
        evaluate()
    evaluate()
    assert [path.name for path in folder.glob(".*")] == []


def test_coefficients_that_are_no_numbers_are_left_out(evaluate: Evaluate, run: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = run / "checkpoint-2" / "model.safetensors"
    weights = load_file(file)
    weights["head.head.bias"][0] = float("inf")
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(P2LError, match="1 of 2 checkpoints cannot be used"):
        evaluate()
    assert not list((tmp_path / "out" / "checkpoint-2").glob("*-val-*"))


@pytest.mark.parametrize("flag", ["--model", "-m", "--model-repo", "--model_repo"])
@pytest.mark.parametrize("page", ["--html", "--report"])
def test_older_spellings_of_flags_are_accepted(flag: str, page: str) -> None:
    options = build_parser().parse_args([flag, "run", "--val-dir", "slices", page, "page.html"])
    assert (options.model_repo, options.html) == ("run", "page.html")
