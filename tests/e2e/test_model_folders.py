"""Every command that writes a model folder leaves one that loads, predicts and trains on, whatever the backbone is."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from p2l.commands.model import init_main, posterior_main, rollback_main
from p2l.inference import P2L
from p2l.model import backbones
from p2l.model.checkpoint import check_complete, check_contents, digests_of
from p2l.newcomers.command import add_main
from p2l.online_training.online_train import main as online_main
from p2l.serving.watching import newest_model
from p2l.train import main as train_main
from tests.conftest import MODELS, vote_rows, write_votes
from tests.p2l.model.test_packaged import unpacked_encoder

DEFAULT = "reader"
"""The backbone of `p2l train --votes`."""
SIZES = {
    "reader": ["--hidden-size", "4", "--members", "2", "--max-features", "50"],
    "tfidf": ["--hidden-size", "4"],
}
TRANSFORMER_SIZES = ["--vocab-size", "300", "--hidden-size", "16", "--layers", "1", "--heads", "2"]
MULTILINGUAL = "reader, multilingual"
"""The same with an encoder in the form of the extra `multilingual`."""
WORDS_ALONE = "reader, without an encoder"
"""Quick: with an encoder a folder holds 90 MB or more, which each run copies."""
# Benchmarks may have registered one of theirs in this process.
REGISTERED = {name for name, kind in backbones.BACKBONES.items() if kind.pretrained.__module__.startswith("p2l.")}
KINDS = [DEFAULT, MULTILINGUAL, WORDS_ALONE, *sorted(REGISTERED - {DEFAULT})]
PROMPTS = ["what is 7 plus 5", ["write a poem about ants", "now about bees"]]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """A run sets a launcher's variables, and takes signals; what comes after it has its own."""
    kept, signals = dict(os.environ), {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    os.environ.clear()
    os.environ.update(kept)
    for number, handler in signals.items():
        signal.signal(number, handler)


class Workshop:
    """Votes, a backbone and a configuration of one kind, and what is done to a folder to see that it is whole."""

    def __init__(self, root: Path, kind: str) -> None:
        self.root, self.kind = root, kind.partition(",")[0]
        self.votes = write_votes(root / "votes.jsonl", vote_rows(48))
        self.backbone = root / "backbone"
        sizes = SIZES.get(self.kind, TRANSFORMER_SIZES)
        if kind == MULTILINGUAL:
            sizes = [*sizes, "--encoder", str(unpacked_encoder(root / "encoder"))]
        elif kind == WORDS_ALONE:
            sizes = [*sizes, "--encoder", "none"]
        self.run(
            init_main, "--model-type", self.kind, *sizes, "--votes", self.votes, "--output", self.backbone, "--quiet"
        )

    @staticmethod
    def run(main: object, *words: str | Path) -> None:
        main([str(word) for word in words])  # type: ignore[operator]

    def train(self, name: str, *flags: str | Path, main: object = train_main, **changes: object) -> Path:
        """Train for a few steps with these flags and keys; return the folder of the trained model."""
        (self.root / "engine.json").write_text('{"zero_optimization": {"stage": 0}}', encoding="utf-8")
        settings = {
            "proj_name": name,
            "output_dir": str(self.root / "out"),
            "train_data_path": str(self.votes),
            "pretrain_model_name": str(self.backbone),
            "model_type": self.kind,
            "head_type": "rk",
            "loss_type": "grk",
            "learning_rate": 3e-3,
            "adam_epsilon": 1e-8,
            "batch_size": 16,
            "gradient_accumulation_steps": 1,
            "max_length": 32,
            "deepspeed_config_path": "engine.json",
            "device": "cpu",
            **changes,
        }
        config = self.root / f"{name}.yaml"
        config.write_text(yaml.safe_dump(settings), encoding="utf-8")
        self.run(main, "--config", config, "--no-eval", "--quiet", *flags)
        return self.root / "out" / name

    def check(self, folder: Path, models: int = len(MODELS)) -> None:
        """The folder is complete, its model predicts, and training goes on from it."""
        check_complete(folder)
        check_contents(folder, digests_of(folder))
        model = P2L.from_pretrained(folder, device="cpu")
        coefs = model.predict(PROMPTS).coefs
        assert coefs.shape == (len(PROMPTS), models)
        assert np.isfinite(coefs).all()
        onwards = self.train(f"on-from-{folder.parent.name}-{folder.name}", "--checkpoint", folder)
        assert P2L.from_pretrained(onwards, device="cpu").model_list == model.model_list


@pytest.mark.parametrize(
    "kind",
    [kind if kind in {WORDS_ALONE, "tfidf", "qwen2"} else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS],
)
def test_what_a_command_writes_loads_predicts_and_trains_on(tmp_path: Path, kind: str) -> None:
    shop = Workshop(tmp_path, kind)  # p2l init, whose backbone every run below begins with
    trained = shop.train("trained")
    shop.check(trained)

    shop.run(posterior_main, "--model", trained, "--votes", shop.votes)
    shop.check(trained)

    newcomer = [row | {"model_a": "eel"} for row in vote_rows(20, seed=3)]
    votes = write_votes(tmp_path / "newcomer.jsonl", newcomer)
    larger = tmp_path / "larger"
    shop.run(add_main, "--model", trained, "--name", "eel", "--votes", votes, "--output", larger)
    shop.votes = votes
    shop.check(larger, models=len(MODELS) + 1)

    served = tmp_path / "served"
    publish = ["--follow", votes, "--publish", served, "--publish-votes", "16", "--stop-when-idle", "0.1"]
    shop.train("followed", *publish, main=online_main, buffer={"type": "replay", "epsilon": 0.2})
    newest = newest_model(served)
    assert newest is not None
    shop.check(newest, models=len(MODELS) + 1)

    shop.run(rollback_main, served)
    before = newest_model(served)
    assert before is not None
    assert before != newest
    shop.check(before, models=len(MODELS) + 1)
