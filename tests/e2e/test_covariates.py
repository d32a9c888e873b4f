"""Covariates trained with a model, as a user does it: planted effects come back, and predictions leave them out."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from p2l import P2L
from p2l.common.errors import CheckpointError, InputError
from p2l.model.checkpoint import check_complete, check_contents, digests_of
from p2l.model.model import P2LModel
from tests.conftest import MODELS, Command, Configure, write_votes
from tests.in_turn import run_in_turn

SIDE, LENGTH, LEAN = 0.9, -1.2, 0.8
TRUTH = {"side": SIDE, "length": LENGTH, "judge = bob": LEAN}


def biased_rows(count: int, *, seed: int = 0) -> list[dict[str, object]]:
    """Votes that prompt and models decide, with the side, the lengths and a judge who leans to the first answer."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for number in range(count):
        a, b = (int(code) for code in rng.choice(len(MODELS), size=2, replace=False))
        is_sum = bool(rng.integers(2))
        longer, judge = rng.integers(1, 900, 2), str(rng.choice(["ann", "ann", "bob"]))
        lead = 0.4 * (b - a if is_sum else a - b) + SIDE + LEAN * (judge == "bob")
        lead += LENGTH * float(longer[0] - longer[1]) / float(longer.sum())
        winner = "model_a" if rng.random() < 1.0 / (1.0 + np.exp(-lead)) else "model_b"
        text = f"what is {rng.integers(999)} plus 1" if is_sum else f"write a poem about {rng.integers(999)} flowers"
        row = {"prompt": text, "model_a": MODELS[a], "model_b": MODELS[b], "winner": winner, "judge": judge}
        row |= {"length_a": int(longer[0]), "length_b": int(longer[1]), "tstamp": 1000.0 + number}
        rows.append(row)
    return rows


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Votes to train on and votes held out."""
    folder = tmp_path_factory.mktemp("biased")
    held_out = write_votes(folder / "held_out.jsonl", biased_rows(400, seed=1))
    return write_votes(folder / "train.jsonl", biased_rows(1_500)), held_out


def check_effects(folder: Path, *, slack: float = 0.0) -> None:
    """The planted effects lie in intervals of five standard errors, and the file agrees with the weights."""
    stored = {row["name"]: row for row in json.loads((folder / "covariates.json").read_text())["covariates"]}
    weights = load_file(folder / "model.safetensors")["covariates.effects"]
    for weight, (name, truth) in zip(weights, TRUTH.items(), strict=True):
        row = stored[name]
        assert abs(row["effect"] - truth) < 5 * row["error"] + slack
        assert row["lower"] < row["effect"] < row["upper"]
        assert row["error"] < 0.35
        assert weight == pytest.approx(row["effect"] * row["scale"], rel=1e-3)


def check_predictions(folder: Path, worth: dict[str, float]) -> P2L:
    """Predictions leave covariates out unless asked for, and give the losses that training printed."""
    model = P2L.from_pretrained(folder)
    rows = [json.loads(line) for line in (folder / "eval_output.jsonl").read_text().splitlines()]
    prompts = [row["prompt"] for row in rows]
    np.testing.assert_allclose(model.predict(prompts).coefs, [row["betas"] for row in rows], atol=1e-5)
    sides = [row["model_a"] for row in rows], [row["model_b"] for row in rows]
    columns = {"side": 1, "judge = bob": [row["judge"] == "bob" for row in rows]}
    columns["length"] = [(row["length_a"] - row["length_b"]) / (row["length_a"] + row["length_b"]) for row in rows]
    observed, plain = model.vote_probs(prompts, *sides, columns), model.vote_probs(prompts, *sides)
    won = np.array([row["winner"] != "model_a" for row in rows], dtype=int)
    for probs, loss in ((observed, worth["Loss"]), (plain, worth["Loss without"])):
        assert -np.log(probs[np.arange(len(won)), won]).mean() == pytest.approx(loss, abs=1e-5)
    with pytest.raises(InputError, match=r"covariate 'sid' is unknown.*side"):
        model.vote_probs(prompts[:1], [MODELS[0]], [MODELS[1]], {"sid": 1})
    return model


def check_losses(folder: Path) -> dict[str, float]:
    """What training says of held-out votes is the loss of forecasts with their covariates; return their worth."""
    rows = [json.loads(line) for line in (folder / "eval_output.jsonl").read_text().splitlines()]
    results = json.loads((folder / "eval_results.json").read_text())
    comparison = json.loads((folder / "comparison.json").read_text())
    pairs = np.array([[row["betas"][model] for model in row["labels"][:2]] for row in rows])
    shifted = pairs + np.array([row["shift"][:2] for row in rows])
    loss, plain = (np.logaddexp(0.0, side[:, 1] - side[:, 0]).mean() for side in (shifted, pairs))
    worth: dict[str, float] = results["covariates"]
    assert results["Loss"] == pytest.approx(loss, abs=1e-5)
    assert worth["Loss"] == pytest.approx(loss, abs=1e-5)
    assert comparison["model"]["Loss"] == pytest.approx(worth["Loss"], abs=1e-9)
    assert worth["Loss without"] == pytest.approx(plain, abs=1e-5)
    board = worth["one_leaderboard"]
    assert board["Loss without"] - 0.03 > board["Loss"]
    assert comparison["one_leaderboard"]["Loss"] == pytest.approx(board["Loss"], abs=1e-9)
    return worth


@pytest.mark.slow
def test_planted_effects_come_back_and_predictions_leave_them_out(
    command: Command, configure: Configure, files: tuple[Path, Path], tmp_path: Path
) -> None:
    kinds = {"head_type": "bt", "loss_type": "bt", "init_type": "marginal", "shuffle": True, "num_train_epochs": 2}
    places = {"train_data_path": str(files[0]), "val_data_path": str(files[1]), "batch_size": 64}
    rates = {"gradient_accumulation_steps": 1, "learning_rate": 1e-3, "zero": {"zero_optimization": {"stage": 1}}}
    config = configure(covariates=["side,length", "judge"], **kinds, **places, **rates)
    done = command(
        "python", "-m", "p2l.train", "--config", config, "--save-steps", "10", "--eval-steps", "20", "--quiet"
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "out" / "run"
    printed = done.stdout.splitlines()
    assert printed[0].split() == ["covariate", "of", "effect", "95%", "interval", "odds"]
    assert any(line.startswith("judge = bob  difference") for line in printed)
    assert any(line.startswith("this model  ") for line in printed)
    assert printed[-1] == f"trained model: {folder}"
    check_effects(folder)
    check_complete(folder)
    check_contents(folder, digests_of(folder))

    worth = check_losses(folder)
    gain = worth["Loss without"] - worth["Loss"]
    assert 0.05 < worth["gain"]["lower"] < worth["gain"]["estimate"] == pytest.approx(gain)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    during = [line["validation/Loss"] for line in lines if "validation/Loss" in line]
    assert during[-1] == pytest.approx(worth["Loss"], abs=0.05)

    check_predictions(folder, worth)
    resumed = tmp_path / "resumed"
    shutil.copytree(folder / "checkpoint-20", resumed / "checkpoint-20")
    again = command("python", "-m", "p2l.train", "--config", config, "--quiet", "--checkpoint", resumed)
    assert again.returncode == 0, again.stderr
    for name in ("model.safetensors", "covariates.json", "eval_results.json"):
        assert (resumed / name).read_bytes() == (folder / name).read_bytes()
    other = configure("other.yaml", **kinds, **places, **rates)
    refused = command("python", "-m", "p2l.train", "--config", other, "--quiet", "--checkpoint", resumed)
    assert refused.returncode == 2
    assert "was trained with covariates" in refused.stderr

    one = command(
        "python", "-m", "p2l.cli", "leaderboard", "--model", folder, "--control", "side,judge", "what is 1 plus 1"
    )
    assert one.returncode == 0, one.stderr
    assert any(line.startswith("side         difference") for line in one.stdout.splitlines())
    assert "length" not in one.stdout
    none = command("python", "-m", "p2l.cli", "leaderboard", "--model", folder, "--control", "bold", "what is 1 plus 1")
    assert none.returncode == 2
    assert "was trained with side, length, judge, not bold" in none.stderr

    damaged = folder / "covariates.json"
    damaged.write_text(damaged.read_text().replace('"difference"', '"slope"'))
    with pytest.raises(CheckpointError, match=r"covariates\.json: covariates\.0\.role"):
        P2LModel.from_pretrained(folder)


def test_a_file_of_votes_is_enough(command: Command, tmp_path: Path) -> None:
    votes = write_votes(tmp_path / "votes.jsonl", biased_rows(700))
    flags = ["--votes", votes, "--encoder", "none", "--quiet"]
    controls = ["--control", "side,length", "--control", "judge"]
    done = command("python", "-m", "p2l.train", *flags, "--output", tmp_path / "run", *controls)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "run"
    check_effects(folder, slack=0.1)
    assert "covariates:" in (folder / "training.yaml").read_text()
    worth = check_losses(folder)  # of votes in folds
    assert worth["gain"]["lower"] > 0.03
    assert any(line.startswith("this model  ") for line in done.stdout.splitlines())
    page = tmp_path / "page.html"
    report = command("python", "-m", "p2l.cli", "report", folder, "--html", page)
    assert report.returncode == 0, report.stderr
    text = page.read_text()
    assert text.count(f"{worth['Loss']:.4f}") >= 2  # in the comparison and among the metrics
    assert "are counted in forecasts" in text
    kept = P2L.from_pretrained(folder).kept_votes
    assert kept is not None
    assert kept.shift is not None
    assert np.abs(kept.shift[:, :2]).max() > SIDE / 4
    refused = command("python", "-m", "p2l.train", *flags, "--output", tmp_path / "other", "--control", "bold")
    assert refused.returncode == 2
    assert "--control bold needs columns bold_a and bold_b" in refused.stderr


@pytest.mark.slow
def test_a_stream_trains_them_while_models_join(
    command: Command, configure: Configure, files: tuple[Path, Path], tmp_path: Path
) -> None:
    """A head that has to grow on the way, the mean of the weights, a resumed run, and a growing file."""
    rows = biased_rows(1_500)
    rows.sort(key=lambda row: MODELS[3] in (row["model_a"], row["model_b"]))
    stream = write_votes(tmp_path / "stream.jsonl", rows)
    kinds = {"head_type": "bt", "loss_type": "bt", "covariates": ["side", "length", "judge"], "vote_order": "given"}
    rates = {"batch_size": 32, "gradient_accumulation_steps": 1, "learning_rate": 1e-2, "average_steps": 20}
    settings = {"train_data_path": str(stream), "val_data_path": str(files[1]), **kinds, **rates}
    config = configure("online.yaml", model_capacity=2, zero={"zero_optimization": {"stage": 1}}, **settings)
    (folder,) = run_in_turn(command, tmp_path / "plan", [["online", "--config", config, "--save-steps", "40"]])
    check_effects(folder, slack=0.1)
    assert json.loads((folder / "eval_results.json").read_text())["covariates"]["gain"]["lower"] > 0.03
    resumed = tmp_path / "resumed"
    shutil.copytree(folder / "checkpoint-40", resumed / "checkpoint-40")
    follow = configure(
        "follow.yaml", model_capacity=2, zero={"zero_optimization": {"stage": 1}}, proj_name="live", **settings
    )
    runs = [
        ["online", "--config", config, "--checkpoint", resumed],
        ["online", "--config", follow, "--no-eval", "--follow", stream, "--stop-when-idle", "0.2"],
    ]
    _, live = run_in_turn(command, tmp_path / "plan", runs)
    assert (resumed / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    check_effects(live, slack=0.1)
