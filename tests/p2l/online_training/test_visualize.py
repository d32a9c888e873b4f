"""Figures and tables of loss matrices, as the command makes them."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path

import pytest

from p2l.common.errors import InputError
from p2l.online_training.visualize import main
from tests.p2l.evaluation.evaluation_results import EVIL
from tests.p2l.evaluation.test_evaluation_report import Page


def make_run(folder: Path, worse: float = 0.0, *, ahead: bool = True) -> Path:
    """Three checkpoints and slices."""
    for checkpoint in (10, 20, 30):
        for number in (10, 20, 30):
            if number > checkpoint and not ahead:
                continue
            file = folder / f"checkpoint-{checkpoint}" / f"checkpoint-{checkpoint}-val-{number}.info.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            metrics = {"Loss": 1.2 + worse + abs(number - checkpoint) / 1000, "Accuracy": 0.5 - worse}
            info = {"metrics": metrics, "votes": 7, "loss_type": "grk", "later": number > checkpoint}
            file.write_text(json.dumps(info), encoding="utf-8")
            file.with_name(file.name.replace(".info", "")).write_text("[]", encoding="utf-8")
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    parts = {"naive": (0.1, False), "best": (0.02, True), "oracle": (0.0, True)}
    return [str(make_run(tmp_path / name, worse, ahead=ahead)) for name, (worse, ahead) in parts.items()]


def test_all_files_and_the_summary(runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = [runs[1], runs[0]]
    main(["--eval-folder", *pair, "--output-file", str(tmp_path / "f"), "--oracle", "best", "--naive", "naive"])
    made = sorted((tmp_path / "f" / "loss").iterdir())
    ends = [".csv", ".json", "-heat-map.png", "-heat-map.svg", "-lines.png", "-lines.svg"]
    names = [f"{run}{end}" for run in ("naive", "best") for end in ends]
    names += ["comparison.png", "comparison.svg", "summary.csv", "summary.json"]
    assert [file.name for file in made] == sorted(names)
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in made if file.suffix == ".png")
    with (tmp_path / "f" / "loss" / "summary.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], float(row["closed"])) for row in rows] == [("best", 1.0), ("naive", 0.0)]
    assert rows[1]["next"] == ""
    assert "100.0%" in capsys.readouterr().out


def test_what_rounds_to_zero_has_no_sign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(make_run(tmp_path / name, worse)) for name, worse in (("near", -0.00001), ("oracle", 0.0))]
    main(["--eval-folder", *runs, "--output-file", str(tmp_path / "f"), "--oracle", "oracle"])
    assert "-0.0000" not in capsys.readouterr().out


def test_one_run_and_accuracy_the_same_bytes_each_time(runs: list[str], tmp_path: Path) -> None:
    for out in ("one", "two"):
        words = ["--eval-folder", runs[1], "--output-file", str(tmp_path / out)]
        main([*words, "--extract-accuracy", "--names", "mine"])
    first, second = (sorted((tmp_path / out / "accuracy").iterdir()) for out in ("one", "two"))
    assert json.loads((tmp_path / "one" / "accuracy" / "mine.json").read_text())["10"]["10"] == pytest.approx(0.48)
    assert "comparison.png" not in [file.name for file in first]
    assert [
        file.name for file, other in zip(first, second, strict=True) if file.read_bytes() != other.read_bytes()
    ] == []


def page_of(tmp_path: Path, *words: str) -> str:
    page = tmp_path / "page.html"
    main([*words, "--output-file", str(tmp_path / "f"), "--report", str(page)])
    return page.read_text(encoding="utf-8")


def test_the_page_says_how_far_the_best_run_is_from_the_oracle(runs: list[str], tmp_path: Path) -> None:
    text = page_of(tmp_path, "--eval-folder", *runs, "--oracle", "oracle", "--naive", "naive")
    assert "best ends 0.0200 worse than oracle, which saw the votes shuffled" in text
    assert "95% interval over 3 slices 0.0200 to 0.0200" in text
    assert "naive ends 0.1000 worse." in text
    assert "Loss: last checkpoint of each run over the slices" in text
    assert '<th scope="row">Closed</th><td class="number">0.0% to 100.0%</td>' in text
    assert not Page(text).wrong


def test_without_an_oracle_the_first_two_are_compared(runs: list[str], tmp_path: Path) -> None:
    text = page_of(tmp_path, "--eval-folder", runs[1], runs[0], "--names", EVIL.replace("/", ""), "naive")
    assert "naive follows with 1.3100, 0.0800 worse (95% interval over 3 slices" in text
    assert "<script>alert" not in text


def test_the_page_of_one_run_says_whether_it_forgets(runs: list[str], tmp_path: Path) -> None:
    text = page_of(tmp_path, "--eval-folder", runs[1], "--extract-accuracy")
    assert (
        "best does not show that it forgets: on earlier slices the accuracy of its last checkpoint is 0.0% higher"
        in text
    )
    assert "checkpoint 30" in text
    assert '<th scope="row">Kept</th>' in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--names", "a", "b"], "2 names for 3 folders"),
        (["--names", "a", "a", "b"], "two runs are called 'a'"),
        (["--names", "a/b", "c", "d"], "cannot name files"),
        (["--names", "summary", "c", "d"], "cannot name files"),
        (["--oracle", "orakel"], "no run is called 'orakel'"),
        (["--naive", "naive"], "--naive goes with --oracle"),
        (["--naive", "naive", "--oracle", "naive"], "both 'naive'"),
        (["--extract-accuracy", "--metric", "Brier"], "exclude each other"),
        (["--metric", "Brier-Score"], "unknown metric"),
        (["--loss-type", "bt"], "was written under grk"),
        (["--report", "page.pdf"], "must be .html"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    runs: list[str], tmp_path: Path, words: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        main(["--eval-folder", *runs, "--output-file", str(tmp_path / "f"), *words])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "f").exists()


def test_runs_of_different_slices_are_noted(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in Path(runs[0]).rglob("*-val-20*"):
        file.unlink()
    for file in Path(runs[1]).rglob("*-val-10.info.json"):
        file.write_text(file.read_text().replace('"votes": 7', '"votes": 6'))
    main(["--eval-folder", *runs[:2], "--output-file", str(tmp_path / "f")])
    out = capsys.readouterr().out
    assert "different slices" in out
    assert "different votes" in out


def test_without_matplotlib_the_numbers_are_written(
    runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "matplotlib" else find(name))
    main(["--eval-folder", runs[1], "--output-file", str(tmp_path / "f")])
    names = sorted(file.name for file in (tmp_path / "f" / "loss").iterdir())
    assert names == ["best.csv", "best.json", "summary.csv", "summary.json"]
    assert "pip install 'p2l[plot]'" in capsys.readouterr().out
