"""`p2l train --votes` on votes of people, some of them rigged, and verdicts of biased judges, as a user does it."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from p2l import P2L
from p2l.common.errors import InputError
from p2l.train import main
from tests.conftest import Command, write_votes
from tests.p2l.people.people_votes import MODELS, SHARP, SIDED, TRUTH, cast


def rows_of(seed: int = 0) -> list[dict[str, object]]:
    rng = np.random.default_rng(seed)
    rows = cast(400, "human", rng)
    for row in rows:
        if row["voter"] in {"voter-3", "voter-11"}:
            row["winner"] = "model_b"
    return [*rows, *cast(500, SHARP, rng), *cast(500, SIDED, rng)]


@pytest.fixture(scope="module")
def run(command: Command, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and stdout of a whole run."""
    folder = tmp_path_factory.mktemp("judged")
    votes = write_votes(folder / "votes.jsonl", rows_of())
    flags = ("--votes", votes, "--size", "reader", "--encoder", "none", "--output", folder / "run", "--quiet")
    done = command("python", "-m", "p2l.cli", "train", *flags)
    assert done.returncode == 0, done.stderr
    return folder / "run", done.stdout


@pytest.mark.slow
def test_judges_teach_and_people_decide(run: tuple[Path, str]) -> None:
    folder, out = run
    settings = yaml.safe_load((folder / "training.yaml").read_text(encoding="utf-8"))
    assert (settings["people"], settings["weigh_voters"], settings["cross_fit"]) == ("human", True, 5)
    comparison = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    assert comparison["votes"] == 400
    rows = [json.loads(line) for line in (folder / "eval_output.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {row["source"] for row in rows} == {"human"}
    assert "people's votes on prompts not trained on" in out
    found = json.loads((folder / "sources.json").read_text(encoding="utf-8"))
    assert found["loss"]["people alone"] > 0
    weights = {one["name"]: one["weight"] for one in found["voters"]}
    assert max(weights["voter-3"], weights["voter-11"]) < 0.05 < 0.5 < np.mean(list(weights.values()))
    if found["judges"]:
        assert [one["judge"] for one in found["judges"]] == [SHARP, SIDED]
        assert found["judges"][1]["side"] > 0.4
        assert SHARP in out
    coefs = P2L.from_pretrained(folder).predict(["prompt 17"]).coefs[0]
    assert np.corrcoef(coefs, TRUTH)[0, 1] > 0.9
    assert P2L.from_pretrained(folder).model_list == sorted(MODELS)


def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path) -> None:
    rows = rows_of()
    votes = write_votes(tmp_path / "votes.jsonl", rows)
    few = write_votes(tmp_path / "few.jsonl", [*rows[:50], *rows[400:]])
    for flags, text in (
        (["--votes", votes, "--people", "crowd"], "no vote has the source 'crowd'; sources: "),
        (["--votes", few], "holds 50 votes of people"),
    ):
        with pytest.raises(InputError, match=text) as caught:
            main([*map(str, flags), "--output", str(tmp_path / "run"), "--quiet"])
        assert "\n" not in str(caught.value)
