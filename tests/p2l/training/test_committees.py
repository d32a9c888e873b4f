"""A committee is offered where it would win on votes that its members did not train on, by a command that works."""

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from p2l.inference import P2L
from p2l.likelihood import get
from p2l.training.committees import offer
from p2l.training.facts import Forecast
from p2l.training.loop import write_results
from p2l.votes import VoteStore, open_votes
from tests.conftest import Command, write_votes
from tests.p2l.serving.conftest import NAMES, make_model

PROMPTS = 800


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """Votes by known coefficients, one on each prompt."""
    rng = np.random.default_rng(0)
    coefs = rng.normal(0, 1.5, (PROMPTS, len(NAMES)))
    rows: list[dict[str, object]] = []
    for number, row in enumerate(coefs):
        a, b = rng.permutation(len(NAMES))[:2]
        outcome = rng.choice(4, p=get("grk").probs(row[a], row[b], np.array(0.0)))
        winner = ("model_a", "model_b", "tie", "tie (bothbad)")[outcome]
        rows.append({"prompt": f"prompt {number}", "model_a": NAMES[a], "model_b": NAMES[b], "winner": winner})
    return write_votes(tmp_path_factory.mktemp("votes") / "held_out.jsonl", rows), coefs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("one"), seed=1)


def a_run(folder: Path, model: Path, votes: VoteStore, coefs: np.ndarray) -> Path:
    """The folder of a finished run that forecasts these coefficients."""
    shutil.copytree(model, folder)
    write_results(folder, Forecast(coefs, np.zeros(len(coefs))), votes, get("grk"))
    return folder


def test_models_that_err_apart_are_joined_by_the_printed_command(
    command: Command, tmp_path: Path, held_out: tuple[Path, np.ndarray], model: Path
) -> None:
    file, coefs = held_out
    rng = np.random.default_rng(1)
    with open_votes(str(file), model_list=list(NAMES)) as votes:
        runs = [
            a_run(tmp_path / name, model, votes, coefs + rng.normal(0, spread, coefs.shape))
            for name, spread in (("it's one", 1.2), ("two", 1.2), ("noise", 9.0))
        ]
        alone = offer(runs[2])
    assert alone is None or runs[2] not in alone.members
    found = offer(runs[0])
    assert found is not None
    assert set(found.members) == {runs[0], runs[1]}
    assert found.gain.lower > 0
    line = found.to_text()
    assert "\n" not in line
    printed = shlex.split(line[line.index("p2l committee") :])
    done = command("python", "-m", "p2l.cli", *printed[1:])
    assert done.returncode == 0, done.stderr
    assert len(P2L.from_pretrained(tmp_path / "it's one-committee", device="cpu").members) == 2
    again = offer(runs[0])
    assert again is not None
    assert again.output.name == "it's one-committee_1"


def test_nothing_is_offered_that_does_not_win(tmp_path: Path, held_out: tuple[Path, np.ndarray], model: Path) -> None:
    file, coefs = held_out
    with open_votes(str(file), model_list=list(NAMES)) as votes:
        best = a_run(tmp_path / "best", model, votes, coefs)
        a_run(tmp_path / "same", model, votes, coefs)
        a_run(tmp_path / "worse", model, votes, -coefs)
        half = votes.subset(np.arange(PROMPTS // 2))
        a_run(tmp_path / "of other votes", model, half, coefs[: PROMPTS // 2])
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "eval_output.jsonl").write_text("{", encoding="utf-8")
    assert offer(best) is None
    assert offer(tmp_path / "nothing here") is None
