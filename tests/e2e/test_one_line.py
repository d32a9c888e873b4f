"""`p2l train --votes FILE`: what a user without a configuration types, and what comes of it."""

import fcntl
import json
import shutil
from pathlib import Path

import pytest
import yaml

from p2l.common.errors import InputError
from p2l.train import main
from tests.conftest import Command, vote_rows, write_votes

VOTES = 200


@pytest.fixture(scope="module")
def votes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Votes of a small simulated arena with four outcomes."""
    from p2l.simulate import main as simulate

    path = tmp_path_factory.mktemp("arena") / "votes.parquet"
    simulate(f"--votes {VOTES} --output {path} --models 6 --topics 3 --languages 1 --seed 2 --quiet".split())
    return path


@pytest.fixture(scope="module")
def run(command: Command, votes: Path) -> tuple[Path, str, str]:
    """The folder, stdout and stderr of a whole run."""
    folder = votes.parent / "runs" / "first"
    done = command("python", "-m", "p2l.cli", "train", "--votes", votes, "--size", "tiny", "--output", folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout, done.stderr


def derived(capsys: pytest.CaptureFixture[str], *flags: str | Path) -> dict[str, object]:
    """The configuration that a dry run prints."""
    main(["--dry-run", *map(str, flags)])
    return dict(yaml.safe_load(capsys.readouterr().out))


def refused(*flags: str | Path) -> str:
    """The one line of a run that does not start."""
    with pytest.raises(InputError) as caught:
        main([*map(str, flags), "--quiet"])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_one_line_trains_and_says_what_came_of_it(run: tuple[Path, str, str]) -> None:
    folder, out, err = run
    settings = yaml.safe_load((folder / "training.yaml").read_text(encoding="utf-8"))
    assert settings["loss_type"] == "grk"
    assert "call both answers bad" in err
    assert f"trained model: {folder}" in out
    assert "one leaderboard for all prompts" in out
    found = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    assert (found["votes"], found["folds"]) == (VOTES, 5)
    assert not (folder / "held_out.parquet").exists()
    assert found["votes"] == json.loads((folder / "eval_results.json").read_text(encoding="utf-8"))["votes"]
    assert found["model"]["Loss"] == pytest.approx(json.loads((folder / "eval_results.json").read_text())["Loss"])
    assert found["gain"]["lower"] <= found["gain"]["estimate"] <= found["gain"]["upper"]
    # So few votes are too few for a transformer from scratch, and the table must not pretend otherwise.
    assert ("The model reads prompts" in out) == (found["gain"]["lower"] > 0)
    assert len(list(folder.glob("checkpoint-*"))) == 2


def test_its_page_says_the_same(run: tuple[Path, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    from p2l.commands.report import main as report

    report([str(run[0])])
    sentence = capsys.readouterr().out.strip()
    found = json.loads((run[0] / "comparison.json").read_text(encoding="utf-8"))
    assert f"95% interval {found['gain']['lower']:.4f} to {found['gain']['upper']:.4f}" in sentence
    text = (run[0] / "report.html").read_text(encoding="utf-8")
    assert text.index(sentence) < text.index('id="figure-1"')
    for mark in ("/votes.parquet", "Learning rate", "Calibration"):
        assert mark in text


def test_held_out_prompts_are_not_trained_on(votes: Path, backbone: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from p2l.training.planning import Request, plan_run

    prepared = plan_run(Request(str(votes), backbone=str(backbone), output=str(tmp_path / "run")), quiet=True)
    prepared.lock.close()
    folder = prepared.folder
    train, held = (
        pq.read_table(folder / f"{name}.parquet").column("prompt").to_pylist() for name in ("train", "held_out")
    )
    assert len(train) + len(held) == VOTES
    assert 0.075 * VOTES <= len(held) <= 0.125 * VOTES
    assert not set(map(str, train)) & set(map(str, held))


@pytest.mark.slow
def test_its_configuration_makes_the_same_model_again(run: tuple[Path, str, str], command: Command) -> None:
    folder = run[0]
    done = command("python", "-m", "p2l.train", "--config", folder / "training.yaml")
    assert done.returncode == 0, done.stderr
    again = folder.with_name("first_1")
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_the_same_line_goes_on_with_a_run_that_was_stopped(
    run: tuple[Path, str, str], command: Command, votes: Path
) -> None:
    finished, stopped = run[0], run[0].parent / "stopped"
    checkpoint = min(finished.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    shutil.copytree(finished, stopped)
    for path in stopped.iterdir():
        if path.name in {"config.json", "model.safetensors", "comparison.json"}:
            path.unlink()
        elif path.name.startswith("checkpoint-") and path.name != checkpoint.name:
            shutil.rmtree(path)
    done = command("python", "-m", "p2l.cli", "train", "--votes", votes, "--size", "tiny", "--output", stopped)
    assert done.returncode == 0, done.stderr
    assert f"resuming {stopped} from {checkpoint.name}" in done.stderr
    for name in ("model.safetensors", "comparison.json", "metrics.jsonl"):
        assert (stopped / name).exists()
    assert (stopped / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()
    assert not stopped.with_name("stopped_1").exists()


def test_a_folder_that_was_named_never_becomes_another_one(run: tuple[Path, str, str], votes: Path) -> None:
    folder = run[0]
    line, before = ("--votes", votes, "--size", "tiny", "--output", folder), set(folder.parent.iterdir())
    assert "was trained by this line already" in refused(*line)
    assert "exists and holds something other" in refused(*line, "--no-eval")
    assert set(folder.parent.iterdir()) == before


def test_an_empty_folder_is_as_good_as_none(votes: Path, tmp_path: Path) -> None:
    from p2l.training.planning import Request, plan_run

    (tmp_path / "made").mkdir()
    prepared = plan_run(Request(str(votes), "reader", encoder="none", output=str(tmp_path / "made")), quiet=True)
    prepared.lock.close()
    assert prepared.folder == tmp_path / "made"
    assert (prepared.folder / "training.yaml").is_file()


def test_a_run_is_gone_on_with_only_by_the_request_that_started_it(run: tuple[Path, str, str], votes: Path) -> None:
    folder = run[0]
    message = refused("--votes", votes, "--size", "small", "--checkpoint", folder)
    assert "size" in message
    assert "tiny" in message
    assert "backbone" in refused("--votes", votes, "--backbone", "x", "--checkpoint", folder)
    assert "--config" in refused("--votes", votes, "--checkpoint", folder / "backbone")
    other = folder.with_name("other")
    shutil.copytree(folder, other)
    record = json.loads((folder / "request.json").read_text())
    record["request"]["files"] = [[1, 2], None]
    (other / "request.json").write_text(json.dumps(record))
    assert "have changed" in refused("--votes", votes, "--size", "tiny", "--checkpoint", other)
    with (folder / "request.json").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "another process" in refused("--votes", votes, "--size", "tiny", "--checkpoint", folder)


def test_outcomes_choose_the_likelihood(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = vote_rows(200)
    for name, winners, loss in (("won", ("model_a", "model_b"), "bt"), ("tied", ("model_a", "model_b", "tie"), "rk")):
        path = write_votes(tmp_path / f"{name}.jsonl", [row for row in rows if row["winner"] in winners])
        assert derived(capsys, "--votes", path)["loss_type"] == loss


def test_votes_that_cannot_serve_leave_no_folder_behind(tmp_path: Path) -> None:
    rows = [row | {"winner": "model_a"} for row in vote_rows(120)]
    path, output = write_votes(tmp_path / "votes.jsonl", rows), tmp_path / "run"
    strangers = [row | {"model_a": "yak", "model_b": "zebu"} for row in rows]
    ties = [row | {"winner": "tie"} for row in rows]
    for name, bad, message in (("strangers", strangers, "no vote is left"), ("ties", ties, "holds ties alone")):
        val = write_votes(tmp_path / f"{name}.jsonl", bad)
        assert message in refused("--votes", path, "--val", val, "--output", output)
    light = write_votes(tmp_path / "light.jsonl", [row | {"weight": 0.0} for row in rows])
    assert "of weight zero" in refused("--votes", light, "--output", output)
    assert not output.exists()


def test_votes_of_ones_own_validate(capsys: pytest.CaptureFixture[str], votes: Path, tmp_path: Path) -> None:
    val = shutil.copy(votes, tmp_path / "val.parquet")
    found = derived(capsys, "--votes", votes, "--val", val, "--output", "out/named")
    assert found["train_data_path"] == str(votes)
    assert found["val_data_path"] == str(val)
    assert (found["output_dir"], found["proj_name"]) == ("out", "named")
    assert "val_data_path" not in derived(capsys, "--votes", votes, "--no-eval")


def test_one_process_of_several_prints_a_dry_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, votes: Path
) -> None:
    monkeypatch.setenv("RANK", "1")
    main(["--votes", str(votes), "--dry-run"])
    assert not capsys.readouterr().out


def test_a_backbone_of_ones_own_takes_the_place_of_the_sizes(
    capsys: pytest.CaptureFixture[str], votes: Path, backbone: Path
) -> None:
    found = derived(capsys, "--votes", votes, "--size", "small", "--backbone", backbone)
    assert found["pretrain_model_name"] == str(backbone)
    assert found["model_type"] == "qwen2"
    assert int(str(found["max_length"])) <= 128
    # Rates for random weights would spoil it.
    unnamed = derived(capsys, "--votes", votes, "--backbone", backbone)
    assert unnamed["learning_rate"] == found["learning_rate"] < 1e-3


def test_bad_input_is_one_line(votes: Path, tmp_path: Path) -> None:
    one = write_votes(tmp_path / "one.jsonl", vote_rows(1))
    assert "holds 1 vote, too few" in refused("--votes", one)
    few = write_votes(tmp_path / "few.jsonl", vote_rows(30))
    assert "30 votes, too few" in refused("--votes", few)
    same = write_votes(tmp_path / "same.jsonl", [row | {"prompt": "hi"} for row in vote_rows(150)])
    assert "all votes share one prompt" in refused("--votes", same)
    assert "none.parquet" in refused("--votes", tmp_path / "none.parquet")
    assert "'tiny'" in refused("--votes", votes, "--size", "tinny")
    message = refused("--votes", votes, "--size", "small", "--output", tmp_path / "out")
    assert "SmolLM2" in message
    assert "--backbone" in message
    assert "--size tiny" in message
    assert "no such folder" in refused("--votes", votes, "--backbone", tmp_path / "nothing", "--size", "tiny")
    assert "--size goes with --votes" in refused("--config", "c.yaml", "--size", "tiny")
    assert "exclude" in refused("--votes", votes, "--val", votes, "--no-eval")
    for name in ("", ".", ".."):
        assert "cannot name a new folder" in refused("--votes", votes, "--output", name)
    assert not list(tmp_path.glob("out*"))


def test_votes_and_configuration_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["--votes", "a", "--config", "b"], []):
        with pytest.raises(SystemExit) as caught:
            main(flags)
        assert caught.value.code == 2
    assert "--votes" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.launcher
def test_two_processes_share_what_the_first_prepares(command: Command, votes: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pair"
    line = (
        "deepspeed",
        "--num_gpus=2",
        "--module",
        "p2l.train",
        "--votes",
        votes,
        "--size",
        "tiny",
        "--output",
        folder,
    )
    done = command(*line)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("votes, in 5 folds, on") == 1
    assert json.loads((folder / "request.json").read_text())["request"]["processes"] == 2
    assert (folder / "comparison.json").exists()
    assert not folder.with_name("pair_1").exists()


def test_without_a_size_it_is_a_reader_that_holds_its_encoder(
    votes: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from p2l.inference import P2L
    from p2l.model.scratch import make_transformer

    encoder, folder = tmp_path / "encoder", tmp_path / "run"
    monkeypatch.setenv("P2L_CACHE", str(tmp_path / "cache"))
    sizes = {"vocab_size": 300, "hidden_size": 16, "layers": 1, "heads": 2, "max_positions": 64}
    make_transformer(encoder, [["some text"]], model_type="bert", seed=1, intermediate_size=None, **sizes)
    flags = ("--votes", votes, "--encoder", encoder, "--output", folder, "--quiet")
    done = command("python", "-m", "p2l.cli", "train", *flags)
    assert done.returncode == 0, done.stderr
    assert "one leaderboard for all prompts" in done.stdout
    settings = yaml.safe_load((folder / "training.yaml").read_text(encoding="utf-8"))
    assert settings["model_type"] == "reader"
    shutil.rmtree(encoder)
    again = command("python", "-m", "p2l.train", "--config", folder / "training.yaml")
    assert again.returncode == 0, again.stderr
    prompts = ["a first prompt", "another one"]
    coefs = [P2L.from_pretrained(path).predict(prompts).coefs.tolist() for path in (folder, tmp_path / "run_1")]
    assert coefs[0] == coefs[1]
