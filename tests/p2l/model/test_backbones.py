import json

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from p2l.common.errors import CheckpointError, ConfigError, InputError
from p2l.model import backbones
from p2l.model.batching import collate
from p2l.model.checkpoint import local_folder, read_json, read_model_list
from p2l.model.model import P2LModel
from p2l.model.scratch import make_transformer
from p2l.model.tokenizer import load_tokenizer


def test_another_transformer_registers_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(backbones, "BACKBONES", dict(backbones.BACKBONES))
    backbones.register(backbones.transformer("mistral"))
    sizes = {"vocab_size": 270, "hidden_size": 16, "layers": 1, "heads": 2, "max_positions": 48}
    make_transformer(tmp_path, [["a b c"]], model_type="mistral", seed=1, **sizes)
    tokenizer = load_tokenizer(tmp_path)
    model = P2LModel.create(
        tmp_path, model_type="mistral", head_type="bt", loss_type="bt", model_list=["a", "b"], tokenizer=tokenizer
    )
    assert model(collate(tokenizer.encode([["x"]]), tokenizer.pad_token_id)).coefs.shape == (1, 2)


def test_the_shipped_backbones_are_known():
    for name in ("qwen2", "qwen3", "llama", "bert", "modernbert", "tfidf"):
        assert backbones.get(name).name == name
    assert backbones.get("bert").learned_positions
    with pytest.raises(ConfigError, match="did you mean 'modernbert'"):
        backbones.get("modern_bert")


def test_no_init_leaves_the_random_generator_alone():
    before = torch.random.get_rng_state()
    with backbones.no_init():
        torch.nn.Linear(300, 300)
    assert torch.equal(before, torch.random.get_rng_state())


def test_folders_and_lists_that_cannot_be_used_are_named(tmp_path):
    file = tmp_path / "model_list.json"
    for text, message in (
        ('{"a": 1}', "must be a JSON list"),
        ('["a", "b", "a"]', "names 'a' twice"),
        # Looked for by comparing each with all before it, this takes the better part of a minute.
        (json.dumps([*(f"model-{number}" for number in range(60_000)), "model-59999"]), "names 'model-59999' twice"),
        ("[", "as JSON"),
    ):
        file.write_text(text)
        with pytest.raises(CheckpointError, match=message):
            read_model_list(tmp_path)
    with pytest.raises(CheckpointError, match="is a file"):
        local_folder(file)
    with pytest.raises(CheckpointError, match="no such folder"):
        local_folder("~nobody-of-this-name/model")
    with pytest.raises(InputError, match="neither a local folder nor a hub id") as caught:
        local_folder("someone/no-such-model")
    assert "Got:" not in str(caught.value)
    assert "Errno" not in str(caught.value)
    assert read_json(tmp_path / "none.json", missing={}) == {}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            LocalEntryNotFoundError("Got: ConnectError: [Errno -2] Name or service not known\nAn error happened"),
            "no connection to the hub: Name or service not known",
        ),
        (ConnectionError("[Errno 111] Connection refused"), "no connection to the hub: Connection refused"),
        (OfflineModeIsEnabled("Offline mode is enabled."), "HF_HUB_OFFLINE is set, and the cache does not have it"),
        (
            type("RepositoryNotFoundError", (Exception,), {})("404 Client Error. (Request ID: Root=1-2)\n\nNot found"),
            "the hub has none of this name, or it is private: `hf auth login` lets you in",
        ),
        (ValueError("404 Client Error. (Request ID: Root=1-2)\n\nNot found"), "404 Client Error."),
        (ValueError(), "ValueError"),
    ],
)
def test_why_the_hub_does_not_have_a_model_is_told_in_plain_words(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(InputError) as caught:
        local_folder("someone/model")
    assert str(caught.value) == (f"someone/model: neither a local folder nor a hub id that can be reached ({reason})")
