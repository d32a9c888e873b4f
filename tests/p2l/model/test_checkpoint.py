"""Model folders that are damaged, or that another program wrote: each fault is one line that names the file."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from p2l.common.errors import CheckpointError
from p2l.inference import P2L
from p2l.model.checkpoint import save_weights
from p2l.model.model import P2LModel
from p2l.model.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def whole(backbone, tmp_path_factory):
    """A trained folder in one file, in a path with a blank."""
    folder = tmp_path_factory.mktemp("a model")
    tokenizer = load_tokenizer(backbone, max_length=64)
    model = P2LModel.create(
        backbone, model_type="qwen2", head_type="rk", loss_type="grk", model_list=["ant", "bee"], tokenizer=tokenizer
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


def rewrite(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", "{", r"config\.json: cannot be read as JSON"),
        ("config.json", "[]", r"config\.json: must be a JSON object, not list"),
        ("config.json", "{}", "model_type 'None' is unknown"),
        ("model_list.json", "[]", r"model_list\.json: must be a JSON list of model names"),
        ("model_list.json", '["ant", 1]', r"model_list\.json: must be a JSON list of model names"),
        ("model_list.json", '["ant", "ant"]', "names 'ant' twice"),
        ("model_list.json", r'["ant", "b\ud800"]', r"model_list\.json: name 1 has half a character"),
        ("model.safetensors", "", "damaged or cut short"),
        ("tokenizer.json", "{", "no tokenizer can be loaded"),
        ("tokenizer_config.json", "[]", "no tokenizer can be loaded"),
        ("chat_template.jinja", "{% if", "chat_template cannot format"),
        ("training_config.json", "[]", r"training_config\.json: must be a JSON object"),
    ],
)
def test_a_damaged_file_is_named(folder, file, content, message):
    (folder / file).write_text(content)
    with pytest.raises(Exception, match=message) as caught:
        P2L.from_pretrained(folder, device="cpu")
    assert type(caught.value).__module__ == "p2l.common.errors"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p2l": "x"}, "record 'p2l' cannot be used"),
        ({"p2l": {}}, "record 'p2l' cannot be used"),
        ({"p2l": {"head_type": "no"}}, "unknown head_type 'no'"),
        ({"p2l": {"loss_type": "no"}}, "unknown likelihood"),
        ({"p2l": {"head_type": "bt", "loss_type": "bt"}}, r"unknown weights head\.eta_head"),
        ({"p2l": {"linear_head_downsize_factor": "a"}}, "describes no model"),
        ({"p2l": {"linear_head_downsize_factor": 3}}, "leaves no inner width for 2 models"),
        ({"p2l": {"head_config": {"eta": 2}}}, "head_config key 'eta' is unknown"),
        ({"p2l": {"max_length": "long"}}, "max_length 'long'"),
        ({"p2l": {"model_type": "llama"}}, "config.json has model_type 'qwen2', not 'llama'"),
        ({"hidden_size": 32}, "config.json and flags ask for"),
        ({"hidden_act": "no"}, "describes no model"),
        ({"num_attention_heads": 0}, "config.json"),
    ],
)
def test_a_config_that_cannot_be_right_is_named(folder, change, message):
    def merge(config):
        for key, value in change.items():
            config[key] = config[key] | value if isinstance(value, dict) and value else value

    rewrite(folder / "config.json", merge)
    with pytest.raises(CheckpointError, match=message) as caught:
        P2L.from_pretrained(folder, device="cpu")
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["model.norm.weight", "head.head.bias"])
def test_weights_that_are_no_numbers_are_refused(folder, name, value):
    change_weights(folder, lambda weights: weights[name].view(-1)[-1:].fill_(value))
    with pytest.raises(CheckpointError, match=f"{name} holds values that are not finite"):
        P2LModel.from_pretrained(folder)


def test_large_finite_weights_are_no_fault(folder):
    change_weights(folder, lambda weights: weights["head.head.weight"].fill_(3e38))
    P2LModel.from_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.pop("weight_map"), "has no weight_map"),
        (lambda index: index["weight_map"].update({"model.norm.weight": 3}), "has no weight_map"),
        (lambda index: index["weight_map"].update({"other": index["weight_map"]["model.norm.weight"]}), "lacks other"),
        (lambda index: index["weight_map"].update({"other": "lost.safetensors"}), "lost.safetensors: no such file"),
    ],
)
def test_an_index_that_does_not_fit_its_shards_is_named(folder, change, message):
    save_weights(load_file(folder / "model.safetensors"), folder, max_shard_size="10KB")
    P2LModel.from_pretrained(folder)
    rewrite(folder / "model.safetensors.index.json", change)
    with pytest.raises(CheckpointError, match=message):
        P2LModel.from_pretrained(folder)


def test_a_shard_that_is_cut_short_or_missing_is_named(folder):
    save_weights(load_file(folder / "model.safetensors"), folder, max_shard_size="10KB")
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=f"{shard.name}: damaged or cut short"):
        P2LModel.from_pretrained(folder)
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"{shard.name}: no such file"):
        P2LModel.from_pretrained(folder)


def test_one_file_written_over_shards_leaves_no_shard(folder):
    weights = load_file(folder / "model.safetensors")
    save_weights(weights, folder, max_shard_size="10KB")
    save_weights(weights, folder)
    assert [file.name for file in folder.glob("*.safetensors*")] == ["model.safetensors"]


@pytest.mark.parametrize("max_shard_size", ["5GB", "10KB"])
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_written_weights_follow_the_umask(tmp_path, umask, mode, max_shard_size):
    before = os.umask(umask)
    try:
        save_weights({name: torch.zeros(2000) for name in "ab"}, tmp_path, max_shard_size=max_shard_size)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.glob("*")} == {mode}


def test_the_hubs_cache_of_links_loads(whole, tmp_path):
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "0a1b"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(whole.iterdir()):
        shutil.copy(file, blobs / str(number))
        (snapshot / file.name).symlink_to(blobs / str(number))
    linked, plain = (P2L.from_pretrained(folder, device="cpu").predict("hi").coefs for folder in (snapshot, whole))
    assert np.array_equal(linked, plain)


def test_a_backbone_that_is_damaged_is_named(backbone, tmp_path):
    tokenizer = load_tokenizer(backbone)
    kinds = {"model_type": "qwen2", "head_type": "bt", "loss_type": "bt", "model_list": ["a", "b"]}
    for name, change, message in (
        ("nan", lambda weights: weights["norm.weight"].fill_(float("nan")), "not finite"),
        ("shape", lambda weights: weights.update({"norm.weight": torch.zeros(3)}), "a qwen2 model cannot be loaded"),
    ):
        folder = shutil.copytree(backbone, tmp_path / name)
        change_weights(folder, change)
        with pytest.raises(CheckpointError, match=message):
            P2LModel.create(folder, tokenizer=tokenizer, **kinds)
    folder = shutil.copytree(backbone, tmp_path / "cut")
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:100])
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        P2LModel.create(folder, tokenizer=tokenizer, **kinds)
