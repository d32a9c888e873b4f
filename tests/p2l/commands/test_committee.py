import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from p2l import P2L
from p2l.commands.model import committee_main
from p2l.common.errors import CheckpointError, InputError
from p2l.model.encoding import PromptTokenizer
from p2l.model.model import P2LModel
from p2l.model.scratch import make_tfidf, make_transformer

NAMES = ["ant", "bee", "cat"]
PROMPTS = [["write a poem about bees"], ["what is 2 plus 2", "and 3 plus 3"], ["a " * 99]]


def trained(folder: Path, kind: str, *, names: list[str] = NAMES, loss: str = "grk") -> Path:
    backbone = folder.with_name(folder.name + "-backbone")
    backbone.mkdir(parents=True)
    if kind == "tfidf":
        make_tfidf(backbone, PROMPTS, hidden_size=4, ngrams=(1, 1), max_features=99, min_df=1)
    else:
        shape = {"vocab_size": 300, "hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": None}
        make_transformer(backbone, PROMPTS, model_type=kind, seed=1, max_positions=64, **shape)
    tokenizer = PromptTokenizer.from_pretrained(backbone, max_length=32)
    model = P2LModel.create(
        backbone, model_type=kind, head_type="rk", loss_type=loss, model_list=names, tokenizer=tokenizer
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("members")
    return [trained(folder / kind, kind) for kind in ("qwen2", "bert", "tfidf")]


def test_a_committee_says_the_mean_of_its_members(members: list[Path], tmp_path: Path) -> None:
    committee_main([*map(str, members), "--output", str(tmp_path / "all")])
    said = [P2L.from_pretrained(member, device="cpu").predict(PROMPTS) for member in members]
    together = P2L.from_pretrained(tmp_path / "all", device="cpu")
    answer = together.predict(PROMPTS)
    np.testing.assert_allclose(answer.coefs, np.mean([one.coefs for one in said], axis=0), atol=1e-6)
    np.testing.assert_allclose(answer.eta, np.mean([one.eta for one in said], axis=0), atol=1e-6)
    assert answer.truncated.tolist() == [False, False, True]
    assert together.model_list == NAMES
    assert together.leaderboard(PROMPTS[0])["coef"].iloc[0] == pytest.approx(answer.coefs[0].max(), abs=1e-6)


def test_a_committee_needs_nothing_of_its_members_folders(members: list[Path], tmp_path: Path) -> None:
    copies = [Path(shutil.copytree(member, tmp_path / member.name)) for member in members[:2]]
    committee_main([*map(str, copies), "--output", str(tmp_path / "both")])
    for copy in copies:
        shutil.rmtree(copy)
    assert P2L.from_pretrained(tmp_path / "both", device="cpu").predict("x").coefs.shape == (1, 3)


def test_models_that_cannot_be_averaged_are_refused(members: list[Path], tmp_path: Path) -> None:
    others = trained(tmp_path / "others", "qwen2", names=["ant", "bee", "dog"])
    reads_ties = trained(tmp_path / "ties", "qwen2", loss="rk")
    for models, reason in (
        ([members[0]], "two members"),
        ([members[0], others], "other models"),
        ([members[0], reads_ties], "likelihood rk"),
        ([members[0], tmp_path / "nowhere"], "nowhere"),
    ):
        with pytest.raises(InputError, match=reason):
            committee_main([*map(str, models), "--output", str(tmp_path / "refused")])
    assert not (tmp_path / "refused").exists()
    with pytest.raises(InputError, match="exists"):
        committee_main([*map(str, members), "--output", str(tmp_path)])


@pytest.mark.parametrize("content", [{}, {"members": []}, {"members": ["../elsewhere"]}, {"members": ["member-9"]}])
def test_a_broken_committee_is_named(content: dict[str, object], members: list[Path], tmp_path: Path) -> None:
    committee_main([*map(str, members), "--output", str(tmp_path / "all")])
    (tmp_path / "all" / "committee.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"committee|member-9"):
        P2L.from_pretrained(tmp_path / "all", device="cpu")
    with pytest.raises(InputError, match="committee"):
        committee_main([str(tmp_path / "all"), str(members[0]), "--output", str(tmp_path / "more")])
