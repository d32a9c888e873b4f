import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import p2l
from p2l.common.errors import CheckpointError, ConfigError, InputError
from p2l.inference import P2L, choose_device
from p2l.likelihood import win_rates
from p2l.model import heads
from p2l.model.model import P2LModel
from p2l.model.scratch import make_tfidf, make_transformer
from p2l.model.tokenizer import load_tokenizer

NAMES = ["ant", "bee", "cat", "dog"]
PROMPTS = ["what is 1 plus 2", ["write a poem", "shorter"], "", "long " * 300]


@pytest.fixture(scope="module", params=["qwen2", "bert", "tfidf"])
def folder(request, tmp_path_factory):
    backbone, saved = (tmp_path_factory.mktemp(name) for name in ("backbone", "saved"))
    texts = [["write a long poem"], ["what is 12 plus 34"]]
    if request.param == "tfidf":
        make_tfidf(backbone, texts, hidden_size=4, ngrams=(1, 2), max_features=50, min_df=1)
    else:
        sizes = {"vocab_size": 270, "hidden_size": 16, "layers": 1, "heads": 2, "max_positions": 48}
        make_transformer(backbone, texts, model_type=request.param, seed=1, intermediate_size=None, **sizes)
    tokenizer = load_tokenizer(backbone, max_length=48)
    model = P2LModel.create(
        backbone, model_type=request.param, head_type="rk", loss_type="grk", model_list=NAMES, tokenizer=tokenizer
    )
    model.save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    return saved


@pytest.fixture(scope="module")
def asked(folder):
    return P2L.from_pretrained(folder, device="cpu")


def test_predict_gives_arrays_in_the_order_of_the_prompts(asked):
    said = asked.predict(PROMPTS)
    assert said.coefs.shape == (4, 4)
    assert said.coefs.dtype == np.float32
    assert said.eta.shape == (4,)
    assert said.gamma is None
    assert said.truncated.tolist() == [False, False, False, True]
    for number, prompt in enumerate(PROMPTS):
        np.testing.assert_allclose(asked.predict([prompt]).coefs[0], said.coefs[number], atol=1e-5)


def test_predict_is_deterministic_and_does_not_depend_on_the_batch_size(asked):
    said = asked.predict(PROMPTS)
    assert np.array_equal(asked.predict(PROMPTS).coefs, said.coefs)
    np.testing.assert_allclose(asked.predict(PROMPTS, batch_size=1).coefs, said.coefs, atol=1e-5)
    np.testing.assert_allclose(asked.predict(PROMPTS, max_batch_tokens=60).coefs, said.coefs, atol=1e-5)


def test_one_text_is_one_prompt_and_none_is_none(asked):
    assert np.array_equal(asked.predict("hello").coefs, asked.predict(["hello"]).coefs)
    assert asked.predict([]).coefs.shape == (0, 4)
    with pytest.raises(InputError, match="prompt 1 has no turns"):
        asked.predict(["a", []])


@pytest.mark.parametrize("wrong", [None, 3, b"ab", {"a": "b"}])
def test_what_is_no_list_of_prompts_is_refused_in_one_line(asked, wrong):
    with pytest.raises(InputError, match="prompts must be a text or a list of prompts"):
        asked.predict(wrong)
    with pytest.raises(InputError, match="prompt 0 is neither a text nor a list of turns"):
        asked.predict([wrong])
    with pytest.raises(InputError, match="prompt 0 is neither"):
        asked.leaderboard(wrong)
    with pytest.raises(InputError, match="must be at least 1, not 0"):
        asked.predict(["a"], batch_size=0)


def test_any_iterable_of_prompts_is_a_list(asked):
    expected = asked.predict(["a", ["b", "c"]]).coefs
    for prompts in (("a", ("b", "c")), iter(["a", ["b", "c"]]), np.array([["a"], ["b"]])[:, 0]):
        np.testing.assert_allclose(asked.predict(prompts).coefs[0], expected[0], atol=1e-6)


def test_many_prompts_are_taken_a_part_at_a_time(asked, monkeypatch):
    prompts = [f"{number} long poems" * (number % 5) for number in range(23)]
    whole = asked.predict(prompts)
    monkeypatch.setattr("p2l.inference._PROMPTS_AT_ONCE", 4)
    parts = asked.predict(prompts)
    np.testing.assert_allclose(parts.coefs, whole.coefs, atol=1e-6)
    np.testing.assert_allclose(parts.eta, whole.eta, atol=1e-6)
    assert np.array_equal(parts.truncated, whole.truncated)
    with pytest.raises(InputError, match="prompt 9 has no turns"):
        asked.predict([*prompts[:9], []])


def test_the_leaderboard_is_ranked_with_win_rates(asked):
    table = asked.leaderboard("what is 1 plus 2")
    said = asked.predict("what is 1 plus 2")
    assert list(table.columns) == ["rank", "model", "score", "coef", "win_rate"]
    assert table["rank"].tolist() == [1, 2, 3, 4]
    assert sorted(table["model"]) == NAMES
    assert table["coef"].is_monotonic_decreasing
    assert table["win_rate"].is_monotonic_decreasing
    best = table.iloc[0]
    expected = win_rates(said.coefs, asked.likelihood, said.eta)[0]
    assert best["win_rate"] == pytest.approx(expected[NAMES.index(best["model"])])


@pytest.mark.parametrize("kind", ["bt", "ba"])
def test_other_heads_have_leaderboards_too(asked, kind):
    record = replace(asked.model.record, head_type=kind, loss_type=kind)
    head = heads.build(kind, asked.model.model.config.hidden_size, len(NAMES))
    other = P2L(P2LModel(asked.model.model, head, NAMES, record), asked.tokenizer, torch.device("cpu"))
    table = other.leaderboard("write a poem")
    assert sorted(table["model"]) == NAMES
    assert table["win_rate"].between(0, 1).all()
    assert (other.predict("a").gamma is None) == (kind == "bt")


def test_a_list_of_turns_is_one_prompt_of_the_leaderboard(asked):
    turns = ["write a poem", "shorter"]
    assert asked.leaderboard(turns)["coef"].max() == pytest.approx(asked.predict([turns]).coefs.max())


def test_serving_cuts_at_the_length_of_training(asked, folder):
    assert asked.tokenizer.max_length == 48
    assert P2L.from_pretrained(folder, device="cpu", max_length=12).tokenizer.max_length == 12


def test_names_are_those_of_the_folder(asked):
    assert asked.model_list == NAMES
    assert asked.likelihood.name == "grk"
    assert p2l.P2L is P2L


def test_a_contradicting_flag_is_refused(folder):
    with pytest.raises(CheckpointError, match="head_type is 'rk'"):
        P2L.from_pretrained(folder, head_type="bt")
    with pytest.raises(ConfigError, match="unknown"):
        P2L.from_pretrained(folder, dtype="float99")


def test_absent_devices_are_refused():
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(InputError, match="is unknown"):
        choose_device("gpu")
    with pytest.raises(InputError, match="'meta' cannot be used"):
        choose_device("meta")
    if not torch.cuda.is_available():
        assert choose_device(None) == torch.device("cpu")
        with pytest.raises(InputError, match="no CUDA device"):
            choose_device("cuda")


def test_a_tokenizer_that_is_larger_than_the_model_is_refused(folder, tmp_path):
    model = P2LModel.from_pretrained(folder)
    if model.record.model_type == "tfidf":
        pytest.skip("a vocabulary has no CLS token")
    tokenizer = load_tokenizer(folder)
    tokenizer.tokenizer.add_special_tokens({"cls_token": "<|other|>"})
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="the CLS token has id"):
        P2L.from_pretrained(tmp_path)
    json_file = tmp_path / "tokenizer.json"
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["zzz"] = 270  # any prompt may hold a token of the vocabulary
    load_tokenizer(folder).save_pretrained(tmp_path)
    json_file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="the tokenizer has 271 tokens, the model only 270"):
        P2L.from_pretrained(tmp_path)


def test_added_tokens_without_a_row_are_accepted_and_prompts_that_spell_them_answered(folder, asked, tmp_path):
    model = P2LModel.from_pretrained(folder)
    if model.record.model_type == "tfidf":
        pytest.skip("a vocabulary has no added tokens")
    tokenizer = load_tokenizer(folder)
    tokenizer.tokenizer.add_tokens(["<other>", "\u2603"])
    tokenizer.tokenizer.add_special_tokens({"pad_token": "<|new pad|>"})
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    larger = P2L.from_pretrained(tmp_path, device="cpu")
    texts = ["<other>", "a <other>b<|new pad|>", "\u2603", "\uff1cother\uff1e", "<oth", "er> <<other>other>"]
    prompts = [*PROMPTS, *texts, texts, ["<oth", "er>"]]
    predicted = larger.predict(prompts).coefs
    assert np.isfinite(predicted).all()
    np.testing.assert_allclose(predicted[: len(PROMPTS)], asked.predict(PROMPTS).coefs, atol=1e-5)
    for encoding in larger.tokenizer.encode([[prompt] if isinstance(prompt, str) else prompt for prompt in prompts]):
        assert encoding.ids.max() < model.num_embeddings
    trained = P2LModel.from_pretrained(tmp_path)
    trained.save_pretrained(tmp_path / "again")
    larger.tokenizer.save_pretrained(tmp_path / "again")
    np.testing.assert_array_equal(
        P2L.from_pretrained(tmp_path / "again", device="cpu").predict(prompts).coefs, predicted
    )


def test_a_published_qwen2_folder_to_which_transformers_adds_a_token_is_served(tmp_path):
    texts = [["write a long poem"], ["what is 12 plus 34"]]
    sizes = {"vocab_size": 270, "hidden_size": 16, "layers": 1, "heads": 2, "max_positions": 48}
    make_transformer(tmp_path, texts, model_type="qwen2", seed=1, intermediate_size=None, **sizes)
    # As its card builds it: the vocabulary of the training, and a tokenizer that names its family.
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "<|endoftext|>"]
    number = content["model"]["vocab"].pop("<|endoftext|>")
    content["model"]["vocab"]["\u0120zz"] = number
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    names = {"cls_token": "<|cls|>", "pad_token": "<|pad|>", "eos_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer", **names}))
    weights = load_file(tmp_path / "model.safetensors")
    weights = {f"model.{name}": tensor for name, tensor in weights.items()}
    weights |= {"head.head.weight": torch.randn(4, 16), "head.head.bias": torch.zeros(4)}
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "model_list.json").write_text(json.dumps(NAMES))
    (tmp_path / "training_config.json").write_text(json.dumps({"loss_type": "bt", "max_length": 48}))
    assert len(load_tokenizer(tmp_path).tokenizer) == 271  # transformers adds <|endoftext|>
    model = P2L.from_pretrained(tmp_path, device="cpu")
    predicted = model.predict(["what is 1 plus 2", "<|endoftext|>", ["a<|endoftext|>", "<|endoftext|>b"]]).coefs
    assert np.isfinite(predicted).all()


def test_reading_a_model_does_not_wait_for_arrow():
    code = "import sys, p2l.inference; assert 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
