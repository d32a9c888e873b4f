"""Readers that answer without torch: the same answers as with it, the same refusals of damaged folders."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from p2l.common.errors import CheckpointError
from p2l.inference import P2L
from p2l.model import openvino
from p2l.model.light import LightReader
from p2l.model.model import P2LModel, write_folder
from p2l.model.posterior import Posterior
from p2l.model.scratch import make_reader
from p2l.model.sentence import packaged_encoder
from p2l.model.tokenizer import load_tokenizer
from tests.p2l.model.test_posterior import tensors
from tests.p2l.model.test_reader import NAMES, PROMPTS, cache, encoder  # noqa: F401 (fixtures)

pytestmark = pytest.mark.skipif(not openvino.is_installed(), reason="no OpenVINO")
SIZES = {"hidden_size": 8, "members": 3, "max_features": 50, "min_df": 1, "directions": 6}
ASKED = [*PROMPTS[:20], ["red green " * 200], ["one", "two turns?"], ["unheard-of words"]]


def trained(folder: Path, sentences: Path | None, *, head: str = "rk", loss: str = "grk", **options: object) -> Path:
    """A reader's folder with weights that are not those of the start, and a posterior."""
    (folder / "start").mkdir()
    make_reader(folder / "start", PROMPTS, encoder=sentences, **SIZES)
    tokenizer = load_tokenizer(folder / "start")
    model = P2LModel.create(
        folder / "start",
        model_type="reader",
        head_type=head,
        loss_type=loss,
        model_list=NAMES,
        tokenizer=tokenizer,
        **options,
    )
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in [*model.head.parameters(), *model.model.layer.parameters()]:
            parameter.add_(torch.randn(parameter.shape, generator=draw) / 4)
        width = model.eval().read(_batch(tokenizer))[1].shape[1]
    gamma = torch.tensor(0.1 if head == "ba" else float("nan"))
    parts = {"centre": torch.zeros(width), "points": torch.randn(4, width, generator=draw), "gamma": gamma}
    posterior = Posterior({**tensors(), **parts})
    write_folder(folder / "model", model, tokenizer, add_files=posterior.save)
    return folder / "model"


def _batch(tokenizer):
    from p2l.model.batching import collate

    return collate(tokenizer.encode(PROMPTS[:2]), 0, packed=True)


@pytest.mark.parametrize("with_encoder", [True, False])
@pytest.mark.parametrize(
    "head",
    [
        {},
        {"head_config": {"eta_dim": 3}, "linear_head_downsize_factor": 2},
        {"head": "bt", "loss": "bt"},
        {"head": "ba", "loss": "ba"},
    ],
)
def test_answers_are_those_of_torch(tmp_path, encoder, with_encoder, head):  # noqa: F811
    folder = trained(tmp_path, encoder if with_encoder else None, **head)
    light = P2L.from_pretrained(folder)
    assert "without torch" in repr(light)
    answers = light.predict(ASKED, hidden=True)
    with_torch = P2L.from_pretrained(folder, dtype="float32")
    assert "without torch" not in repr(with_torch)
    expected = with_torch.predict(ASKED, hidden=True)
    for name in ("coefs", "eta", "gamma", "hidden", "variances", "familiarity"):
        exact = getattr(expected, name)
        if exact is None:
            assert getattr(answers, name) is None
        else:
            np.testing.assert_allclose(getattr(answers, name), exact, atol=2e-2)
    assert answers.truncated.tolist() == expected.truncated.tolist()


def test_prompts_are_answered_alike_alone_and_among_others(tmp_path, encoder):  # noqa: F811
    light = P2L.from_pretrained(trained(tmp_path, encoder))
    together = light.predict(ASKED).coefs
    alone = np.concatenate([light.predict([prompt]).coefs for prompt in ASKED])
    np.testing.assert_allclose(together, alone, atol=1e-3)


def test_whoever_asks_for_the_module_gets_it_and_answers_from_then_on(tmp_path, encoder):  # noqa: F811
    light = P2L.from_pretrained(trained(tmp_path, encoder))
    before = light.predict(PROMPTS).coefs
    with torch.no_grad():
        light.model.head.head.bias.add_(1.0)
    after = light.predict(PROMPTS)
    kept = after.familiarity[:, None]
    np.testing.assert_allclose(after.coefs, before + kept, atol=2e-2)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda weights: weights.pop("head.head.bias"), "lacks the weights head.head.bias"),
        (lambda weights: weights.update(more=np.ones(1, np.float32)), "has unknown weights more"),
        (lambda weights: weights.update({"model.layer.bias": np.ones(2, np.float32)}), "has shape"),
        (lambda weights: weights["model.encoder.embeddings.LayerNorm.bias"].fill(np.nan), "are not finite"),
    ],
)
def test_damaged_folders_are_refused(tmp_path, encoder, change, fault):  # noqa: F811
    folder = trained(tmp_path, encoder)
    weights = {name: part.copy() for name, part in load_file(folder / "model.safetensors").items()}
    change(weights)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=fault):
        P2L.from_pretrained(folder)


def test_weights_that_are_cut_short_are_refused(tmp_path, encoder):  # noqa: F811
    file = trained(tmp_path, encoder) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        P2L.from_pretrained(file.parent)


def test_other_models_are_left_to_torch(tmp_path, encoder):  # noqa: F811
    folder = trained(tmp_path, encoder)
    assert LightReader.open(folder) is not None
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"hidden_act": "gelu"', '"hidden_act": "relu"'))
    assert LightReader.open(folder) is None


COMMAND = """
from p2l.cli import main
sys.argv[1:] = {words}
try:
    main()
except SystemExit as end:
    assert not end.code
"""
BOARD = COMMAND.format(words=["leaderboard", "How do I make pancakes?"])
BOARDS = COMMAND.format(words=["leaderboard", "--prompts", "prompts.jsonl", "--by", "kind", "--quiet"])
EXPLAIN = COMMAND.format(words=["explain", "--model", "p2l-public", "--prompts", "prompts.jsonl", "--by", "words"])
PUBLIC = """
from p2l import P2L
print(P2L.public().predict("hi"))
"""
ROUTER = """
import asyncio
from route.routing.scoring import LocalScorer
async def ask():
    scorer = LocalScorer("p2l-public", family="grk")
    await scorer.start()
    print(await scorer.coefficients(["Prove that 17 is prime."], 60.0))
    await scorer.close()
asyncio.run(ask())
"""


@pytest.mark.skipif(packaged_encoder() is None, reason="needs the extra encoder")
@pytest.mark.parametrize(
    "code", [BOARD, BOARDS, EXPLAIN, PUBLIC, ROUTER], ids=["board", "boards", "explain", "public", "router"]
)
def test_the_public_model_answers_where_neither_torch_nor_transformers_is_installed(tmp_path: Path, code: str) -> None:
    asked = [{"prompt": f"{kind} {number}", "kind": kind} for kind in ("Sum to", "Poem number") for number in range(60)]
    (tmp_path / "prompts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in asked), encoding="utf-8")
    program = f"import sys\nsys.modules.update(torch=None, transformers=None)  # as if they were not there\n{code}"
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip()
