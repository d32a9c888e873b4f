"""How familiar a prompt is: said in Python, by `p2l leaderboard`, over HTTP, by the client and on the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from p2l.client import P2LClient
from p2l.commands.leaderboard import main
from p2l.common.prompts import familiarity_note, unfamiliar_note
from p2l.inference import P2L
from p2l.model.posterior import SHAPES, Posterior
from p2l.model.tfidf import fit_vocabulary
from tests.p2l.serving.conftest import NAMES, Running, Start
from tests.p2l.serving.test_page import post
from tests.p2l.serving.test_uncertainty import PROMPT, with_posterior

STRANGE = "zyxw vutsr <b>qponm</b>"
OVERALL = "This is the overall board: nothing like this prompt was voted on."


def with_words(folder: Path, target: Path) -> Path:
    """A copy of a model folder whose posterior knows the words of `PROMPT` alone."""
    with_posterior(folder, target)
    posterior = Posterior.load(target, len(NAMES))
    assert posterior is not None
    tensors = {name: getattr(posterior, name) for name in SHAPES} | {"words": torch.tensor([0.0, 0.9])}
    Posterior(tensors, fit_vocabulary([[PROMPT]], min_df=1)).save(target)
    return target


@pytest.fixture(scope="module")
def known(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_words(folder, tmp_path_factory.mktemp("known") / "model")


@pytest.fixture
def server(start: Start, known: Path) -> Iterator[Running]:
    return start(model_path=str(known))


@pytest.mark.parametrize(
    ("familiarity", "note"),
    [
        (0.0, OVERALL),
        (0.04, OVERALL),
        (0.3, "Mostly the overall board: little like this prompt was voted on."),
        (0.5, "Partly the overall board: only prompts somewhat like this one were voted on."),
        (0.95, ""),
        (1.0, ""),
        (None, ""),
    ],
)
def test_the_sentence_of_a_familiarity(familiarity: float | None, note: str) -> None:
    assert familiarity_note(familiarity) == note


def test_the_sentence_of_several_prompts() -> None:
    assert unfamiliar_note([0.0, 0.3, 0.6, 1.0]).startswith("2 of 4 prompts (50.0%) get mostly the overall board")
    assert unfamiliar_note([0.5, 1.0]) == unfamiliar_note([]) == ""
    assert unfamiliar_note([0.0]) == OVERALL


def test_a_prediction_says_how_familiar_each_prompt_is(known: Path, folder: Path) -> None:
    model = P2L.from_pretrained(known, device="cpu")
    both = model.predict([PROMPT, STRANGE])
    assert both.familiarity is not None
    assert both.familiarity.dtype == np.float32
    assert both.familiarity[0] > 0.5
    assert both.familiarity[1] == 0.0
    assert "1 of 2 prompts (50.0%) gets mostly the overall board" in repr(both)
    assert "1 of 2 prompts (50.0%)" in both._repr_html_()
    strange, own = model.predict(STRANGE), model.predict(PROMPT)
    assert OVERALL in repr(strange)
    assert OVERALL in strange._repr_html_()
    assert OVERALL in strange.plot().axes[0].get_title(loc="left").replace("\n", " ")
    assert "overall board" not in repr(own) + own._repr_html_()
    without = P2L.from_pretrained(folder, device="cpu").predict(STRANGE)
    assert without.familiarity is None
    assert "overall board" not in repr(without) + without._repr_html_()


def test_the_command_says_it_of_each_prompt(known: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    json_file, page, plot = (tmp_path / name for name in ("out.json", "out.html", "out.png"))
    outputs = ["--output", str(json_file), "--html", str(page), "--plot", str(plot), "--quiet"]
    main(["--model", str(known), PROMPT, STRANGE, *outputs])
    printed = capsys.readouterr().out
    own, strange = printed.split(f'"{STRANGE}"')
    assert "overall board" not in own
    assert OVERALL in strange
    boards = json.loads(json_file.read_text())
    assert boards[0]["familiarity"] > 0.5
    assert boards[1]["familiarity"] == 0.0
    assert page.read_text().count(OVERALL) == 1
    assert "1 of 2 prompts (50.0%) gets mostly the overall board" in page.read_text()
    main(["--model", str(known), STRANGE, "--html", str(page), "--quiet"])
    assert OVERALL in page.read_text()


def test_the_command_says_which_part_of_a_file_of_prompts_is_strange(
    known: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    rows = [(PROMPT, "math")] * 3 + [(STRANGE, "other")]
    prompts.write_text("".join(json.dumps({"prompt": text, "kind": kind}) + "\n" for text, kind in rows))
    main(["--model", str(known), "--prompts", str(prompts), "--by", "kind", "--output", str(out), "--quiet"])
    printed = capsys.readouterr().out
    assert "1 of 4 prompts (25.0%) gets mostly the overall board: little like it was voted on." in printed
    assert OVERALL in printed  # of the group of one
    boards = {board["group"]: board["familiarity"] for board in json.loads(out.read_text())}
    assert boards == {"all": pytest.approx(0.75), "math": pytest.approx(1.0), "other": 0.0}


def test_the_endpoint_and_the_client_say_it(server: Running) -> None:
    assert server.predict([PROMPT]).json()["familiarity"] > 0.5
    assert server.predict([STRANGE]).json()["familiarity"] == 0.0
    batch = server.client.post("/predict_batch", json={"prompts": [[STRANGE], [PROMPT]]}).json()["predictions"]
    assert [row["familiarity"] > 0.5 for row in batch] == [False, True]
    assert server.client.post("/leaderboard", json={"prompt": STRANGE}).json()["familiarity"] == 0.0
    with P2LClient(server.url) as client:
        strange, board = client.predict(STRANGE), client.leaderboard(STRANGE)
        assert strange.familiarity == board.familiarity == 0.0
        assert strange.familiarity_note == board.familiarity_note == OVERALL
        own = client.predict(PROMPT)
        assert own.familiarity is not None
        assert own.familiarity > 0.5
        assert own.familiarity_note == ""


def test_a_model_without_posterior_says_nothing(shared: Running) -> None:
    assert "familiarity" not in shared.predict([STRANGE]).json()
    assert "familiarity" not in shared.client.post("/leaderboard", json={"prompt": STRANGE}).json()
    with P2LClient(shared.url, "a key") as client:
        answer = client.predict(STRANGE)
        assert answer.familiarity is None
        assert answer.familiarity_note == ""


def test_the_page_says_it_beside_each_board(server: Running) -> None:
    def shown(form: str) -> Any:
        return post(server, form)

    assert OVERALL in shown(f"turn={STRANGE}").text
    assert "overall board" not in shown(f"turn={PROMPT}").text
    assert shown(f"turn={STRANGE}&other={STRANGE} more").text.count(OVERALL) == 2
    assert shown(f"turn={PROMPT}&other={STRANGE}").text.count(OVERALL) == 1
    assert shown(f"turn={STRANGE}&as=json").json()["familiarity"] == 0.0


def test_a_board_of_one_prompt_has_intervals_against_the_field(known: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "board.json"
    main(["--model", str(known), PROMPT, "--level", "0.8", "--output", str(out)])
    assert "80% interval" in capsys.readouterr().out
    (board,) = json.loads(out.read_text())
    assert board["intervals_of"] == "model"
    prediction = P2L.from_pretrained(known, device="cpu").predict([PROMPT])
    sd = dict(zip(NAMES, prediction.field_sd()[0].tolist(), strict=True))
    for row in board["models"]:
        # 80 % of a normal lie within 1.2816 deviations.
        assert row["coef_upper"] - row["coef_lower"] == pytest.approx(2 * 1.2816 * sd[row["model"]], rel=1e-3)
