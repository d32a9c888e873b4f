"""The configuration of online training, and the ones that are shipped."""

from pathlib import Path

import pytest

from p2l.common.errors import ConfigError
from p2l.model.tokenizer import resolve_template
from p2l.online_training.buffers import make_buffer
from p2l.online_training.online_config import OnlineConfig
from p2l.training.deepspeed_config import find_deepspeed_file, resolve_deepspeed
from p2l.training.train_config import load_config, load_config_as
from tests.conftest import ROOT, Configure
from tests.p2l.online_training.online_helpers import online

SHIPPED = sorted((ROOT / "training_configs" / "online").rglob("*.yaml"))


def test_shipped_configurations_are_sound() -> None:
    names = {path.stem.removeprefix("qwen2.5-1.5b-") for path in SHIPPED}
    grid = {f"geometric-{g}-{e}" for g in (0.99, 0.995, 0.999, 0.9995, 0.9999) for e in ("0.01", "0.001", "0.0001")}
    assert names >= grid | {"chronological", "tiny", "replay-0.016", "replay-0.2", "replay-0.5"}
    for path in SHIPPED:
        config = load_config_as(OnlineConfig, path)
        resolve_deepspeed(config, find_deepspeed_file(config, path), world_size=8, on_gpu=True)
        assert resolve_template(config.chat_template)
        settings = config.buffer_settings
        words = path.stem.split("-")
        if "replay" in words:
            assert (settings.type, settings.epsilon) == ("replay", float(words[-1]))
            total = {0.016: 520, 0.032: 529, 0.06: 545, 0.112: 577, 0.2: 640, 0.32: 753, 0.5: 1024}
            assert make_buffer(settings, 512, 0).full_size == total[float(words[-1])]
        if "geometric" in words:
            assert (settings.gamma, settings.epsilon) == tuple(map(float, words[-2:]))
        assert f"--config {path.relative_to(ROOT)} " in path.read_text(encoding="utf-8")


def test_the_older_key_means_a_replay_buffer(configure: Configure, votes_file: Path) -> None:
    replay = {"limit": 100, "ratio": 0.75, "min_iter": 3}
    path = online(configure, votes_file, "older", buffer="absent", experience_replay=replay)
    settings = load_config_as(OnlineConfig, path).buffer_settings
    assert (settings.type, settings.limit, settings.epsilon, settings.min_batches) == ("replay", 100, 0.25, 3)
    assert make_buffer(settings, 16, 0).full_size == 16
    assert make_buffer(settings, 16, 0).batch_size == 12


@pytest.mark.parametrize("ratio", [0, 1.5, -0.1])
def test_a_share_of_new_votes_lies_above_zero(configure: Configure, votes_file: Path, ratio: float) -> None:
    replay = {"limit": 100, "ratio": ratio}
    path = online(configure, votes_file, "older", buffer="absent", experience_replay=replay)
    with pytest.raises(ConfigError, match=r"experience_replay\.ratio"):
        load_config_as(OnlineConfig, path)


def test_offline_training_says_whose_the_key_is(configure: Configure, votes_file: Path) -> None:
    with pytest.raises(ConfigError, match="'buffer' belongs to p2l"):
        load_config(online(configure, votes_file, "online"))
