"""The reader: words, form and sentence states under one hidden layer."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from p2l.common.errors import CheckpointError, InputError
from p2l.common.prompts import FORM_FEATURES, form_of
from p2l.inference import P2L
from p2l.likelihood import vote_losses
from p2l.model import heads
from p2l.model.batching import collate
from p2l.model.bert import Bert
from p2l.model.checkpoint import P2LRecord
from p2l.model.encoding import PromptTokenizer
from p2l.model.model import P2LModel
from p2l.model.precision import choose_dtype
from p2l.model.reader import ReaderBackbone, keep_states
from p2l.model.reader_inputs import ReaderConfig
from p2l.model.scratch import make_reader, make_transformer
from p2l.model.tokenizer import load_tokenizer

WORDS = ["red", "green", "blue", "prove", "poem", "code", "sum", "list"]
PROMPTS = [[f"{WORDS[n % 8]} {WORDS[n // 8 % 8]} {n}?\n" + "x = 1 + 2\n" * (n % 3)] for n in range(64)]
NAMES = [f"model-{number}" for number in range(5)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A tiny sentence encoder as sentence-transformers lays one out: mean of the tokens, normalised."""
    folder = tmp_path_factory.mktemp("encoder")
    sizes = {"vocab_size": 300, "hidden_size": 16, "layers": 2, "heads": 2, "max_positions": 64}
    make_transformer(folder, PROMPTS, model_type="bert", seed=1, **sizes)
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{name}"}
        for path, name in (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32}))
    return folder


def make(folder: Path, encoder: Path | None, **options) -> tuple[P2LModel, PromptTokenizer]:
    folder.mkdir()
    sizes = {"hidden_size": 8, "members": 3, "max_features": 50, "min_df": 1, "directions": 6}
    make_reader(folder, PROMPTS, encoder=encoder, **{**sizes, **options})
    tokenizer = load_tokenizer(folder)
    model = P2LModel.create(
        folder, model_type="reader", head_type="rk", loss_type="grk", model_list=NAMES, tokenizer=tokenizer
    )
    return model, tokenizer


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("P2L_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "states"


def batch_of(tokenizer, prompts=PROMPTS, packed=True):
    return collate(tokenizer.encode(prompts), tokenizer.pad_token_id, packed=packed)


@pytest.mark.parametrize("with_encoder", [True, False])
def test_a_saved_folder_answers_alike_and_needs_nothing_else(tmp_path, encoder, with_encoder):
    own = shutil.copytree(encoder, tmp_path / "encoder")
    model, tokenizer = make(tmp_path / "reader", own if with_encoder else None)
    shutil.rmtree(own)
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shutil.rmtree(tmp_path / "reader")
    p2l = P2L.from_pretrained(folder, dtype="float32")
    coefs = p2l.predict(PROMPTS).coefs
    with torch.no_grad():
        exact = model.eval()(batch_of(tokenizer)).coefs.numpy()
    np.testing.assert_allclose(coefs, exact, atol=1e-6)
    assert np.ptp(coefs, axis=0).max() > 1e-3  # prompts differ
    alone = np.concatenate([p2l.predict([prompt]).coefs for prompt in PROMPTS[:5]])
    np.testing.assert_allclose(alone, coefs[:5], atol=2e-4)  # states are rounded to float16


def test_states_are_those_of_the_encoder_as_its_folder_says(tmp_path, encoder):
    model, tokenizer = make(tmp_path / "reader", encoder)
    states = model.model.states(batch_of(tokenizer, PROMPTS[:9])).numpy()
    reference = AutoModel.from_pretrained(encoder, add_pooling_layer=False).eval()
    own = AutoTokenizer.from_pretrained(encoder)
    for state, prompt in zip(states, PROMPTS[:9], strict=True):
        ids = own(prompt[0], add_special_tokens=False)["input_ids"][-32:]
        with torch.no_grad():
            hidden = reference(torch.tensor([ids])).last_hidden_state[0].mean(0).numpy()
        np.testing.assert_allclose(state, hidden / np.linalg.norm(hidden), atol=2e-3)


def test_training_reads_a_prompt_once_and_the_next_run_not_at_all(tmp_path, encoder, cache, monkeypatch):
    model, tokenizer = make(tmp_path / "reader", encoder)
    assert len(list(cache.glob("*.bin"))) == 1
    keep_states(model.model)
    passes = []

    def count(backbone: ReaderBackbone) -> None:
        read = backbone.read
        monkeypatch.setattr(backbone, "read", lambda tokens, device: passes.append(len(tokens)) or read(tokens, device))

    count(model.model)
    exact = model.model.states(batch_of(tokenizer))
    assert not passes  # they were read when the backbone was made
    new = [["another prompt that nobody has read before"], PROMPTS[0]]
    first = model.model.states(batch_of(tokenizer, new))
    assert passes == [1]
    again, _ = make(tmp_path / "again", encoder)
    keep_states(again.model)
    count(again.model)
    assert torch.equal(again.model.states(batch_of(tokenizer, new)), first)
    assert torch.equal(again.model.states(batch_of(tokenizer, packed=False)), exact)
    assert passes == [1]


def test_what_training_reads_is_what_torch_reads_but_for_rounding(tmp_path, encoder):
    model, tokenizer = make(tmp_path / "reader", encoder)
    tokens = [encoding.ids for encoding in tokenizer.encode(PROMPTS)]
    states = model.model.read(tokens, torch.device("cpu"))
    exact = model.model.read_by_torch(tokens, torch.device("cpu"))
    assert states.dtype == exact.dtype == np.float16
    np.testing.assert_allclose(states, exact, atol=2e-2)


def test_states_of_8_bits_are_near_those_of_32(tmp_path, encoder):
    model, tokenizer = make(tmp_path / "reader", encoder)
    weights = {name: weight.numpy() for name, weight in model.model.encoder.state_dict().items()}
    tokens = [encoding.ids for encoding in tokenizer.encode(PROMPTS)]
    exact, rounded = (
        Bert(weights, model.model.config.encoder, pooling="mean", normalise=True, precision=precision).states(tokens)
        for precision in ("float32", "int8")
    )
    assert 0 < np.abs(rounded - exact).max() < 0.03


def test_a_frozen_encoder_stays_as_it_is_and_one_that_is_not_learns(tmp_path, encoder):
    for frozen in (True, False):
        model, tokenizer = make(tmp_path / str(frozen), encoder, frozen=frozen)
        model.train()
        labels = torch.tensor([[0, 1, 0]] * len(PROMPTS))
        model(batch_of(tokenizer), labels=labels).loss.backward()
        grads = [parameter.grad for parameter in model.model.encoder.parameters()]
        assert all(grad is None for grad in grads) == frozen
        assert model.model.layer.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("keys", [{}, {"activation": "softmax"}, {"with_inputs": True}])
def test_members_train_apart_and_predict_the_mean_of_what_each_predicts(tmp_path, keys):
    _, tokenizer = make(tmp_path / "reader", None)
    config = json.loads((tmp_path / "reader" / "config.json").read_text())
    keys = keys | {
        "dropout": 0.0,
        "input_dropout": 0.0,
        "hidden_size": 24 + (6 + FORM_FEATURES) * ("with_inputs" in keys),
    }
    backbone = ReaderBackbone(ReaderConfig(**{**config, **keys}), None)
    record = P2LRecord("reader", "rk", "grk")
    model = P2LModel(backbone, heads.build("rk", backbone.config.hidden_size, len(NAMES)), NAMES, record)
    batch = batch_of(tokenizer)
    apart, mean = model.train()(batch), model.eval()(batch)
    assert apart.coefs.shape == (3 * len(PROMPTS), len(NAMES))
    for name in ("coefs", "eta"):
        by_member = getattr(apart, name).view(3, len(PROMPTS), -1)
        assert (by_member[0] - by_member[1]).abs().max() > 1e-4
        torch.testing.assert_close(by_member.mean(0).flatten(), getattr(mean, name).flatten(), atol=1e-5, rtol=0)
    labels = torch.tensor([[0, 1, 0]] * len(PROMPTS))
    loss = model.train()(batch, labels=labels).loss
    of_each = vote_losses(model.likelihood, apart.coefs, labels.repeat(3, 1), apart.eta)
    assert loss.item() == pytest.approx(of_each.mean().item(), rel=1e-6)
    assert model.eval()(batch, labels=labels).loss < loss  # the loss is convex along the way to the mean


def test_a_member_that_does_not_read_an_input_never_does(tmp_path, encoder):
    model, tokenizer = make(tmp_path / "reader", encoder)
    layer = model.model.layer
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(3):
        loss = model.train()(batch_of(tokenizer), labels=torch.tensor([[0, 1, 0]] * len(PROMPTS))).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    by_member = layer.weight.detach().view(3, 8, 16 + 6 + FORM_FEATURES)
    reads = [(part != 0).any(0) for part in by_member]
    assert [bool(part[:16].any()) for part in reads] == [True, False, True]  # the state
    assert [bool(part[16:22].any()) for part in reads] == [False, True, True]  # words
    assert all(part[22:].any() for part in reads)


def test_a_folder_without_members_is_one_network(tmp_path):
    model, tokenizer = make(tmp_path / "reader", None, members=1)
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["members"]  # as folders were written before there were any
    (folder / "config.json").write_text(json.dumps(config))
    with torch.no_grad():
        exact = model.eval()(batch_of(tokenizer)).coefs.numpy()
    np.testing.assert_allclose(P2L.from_pretrained(folder).predict(PROMPTS).coefs, exact, atol=1e-5)
    config["members"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="hidden_size 8 leaves 8 units, no multiple of 3 members"):
        P2L.from_pretrained(folder)


def test_it_is_served_as_it_answers(tmp_path, encoder):
    model, tokenizer = make(tmp_path / "reader", encoder)
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    exact = P2LModel.from_pretrained(folder)
    choice = choose_dtype(P2LModel.from_pretrained(folder), tokenizer)
    with torch.no_grad():
        np.testing.assert_allclose(choice.model(batch_of(tokenizer)).coefs, exact(batch_of(tokenizer)).coefs, atol=5e-3)


def test_form_counts_what_it_says():
    form = form_of(["Is 2+2=4?\n```A```"])
    assert len(form) == FORM_FEATURES
    assert form[7] == 1.0
    assert form[3] == pytest.approx(3 / 18)
    assert form_of(["ünï"])[4] == pytest.approx(2 / 4)
    assert all(np.isfinite(form_of([""])))


def test_form_tells_the_newest_turn_from_the_others():
    alone, first, both = form_of(["bc 1?"]), form_of(["a"]), form_of(["a", "bc 1?"])
    of_text = (FORM_FEATURES - 2) // 2
    assert not any(alone[of_text:])
    assert not any(first[of_text:])
    assert both[:of_text] == form_of(["a\n\nbc 1?"])[:of_text]
    assert both[of_text : of_text + 2] == pytest.approx([np.log(2), np.log(7 / 6)])
    np.testing.assert_allclose(np.add(both[:of_text], both[-of_text:]), alone[:of_text], atol=1e-12)
    assert form_of(["bc 1?", "a"])[-of_text:] != both[-of_text:]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("words.safetensors", "x", "words.safetensors: missing or damaged"),
        ("tokenizer.json", "{}", "tokenizer.json: missing or damaged"),
        ("config.json", '{"model_type": "reader"}', "is not the configuration of a reader"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(tmp_path, encoder, file, content, message):
    make(tmp_path / "reader", encoder)
    (tmp_path / "reader" / file).write_text(content)
    with pytest.raises((CheckpointError, InputError), match=message):
        load_tokenizer(tmp_path / "reader", cls_token_if_none=None)
