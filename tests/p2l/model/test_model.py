import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoTokenizer, Qwen2Config, Qwen2Model, Qwen2PreTrainedModel

from p2l.common.errors import CheckpointError, ConfigError
from p2l.likelihood import get, vote_losses
from p2l.model.batching import collate
from p2l.model.checkpoint import save_weights
from p2l.model.model import P2LModel
from p2l.model.scratch import make_tfidf, make_transformer
from p2l.model.tokenizer import load_tokenizer

NAMES = ["ant", "bee", "cat", "dog", "elk"]
PROMPTS = [["what is 1 plus 2"], ["write a poem", "now shorter <|cls|>"], [""]]
FAMILIES = ["qwen2", "qwen3", "llama", "bert", "modernbert", "tfidf"]


class PublishedHead(nn.Module):
    def __init__(self, hidden, num_models, has_eta):
        super().__init__()
        self.head = nn.Linear(hidden, num_models)
        self.eta_head = nn.Linear(hidden, 1) if has_eta else None


class Published(Qwen2PreTrainedModel):
    """A prompt-to-leaderboard model as a user of transformers alone writes it."""

    def __init__(self, config, num_models, cls_token_id, has_eta=True):
        super().__init__(config)
        self.model = Qwen2Model(config)
        self.head = PublishedHead(config.hidden_size, num_models, has_eta)
        self.cls_token_id = cls_token_id
        self.post_init()

    def forward(self, input_ids, attention_mask):
        states = self.model(input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        hidden = states[input_ids == self.cls_token_id]
        return self.head.head(hidden), None if self.head.eta_head is None else self.head.eta_head(hidden).squeeze(-1)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """One tiny folder from scratch per model type."""
    made = {}
    prompts = [["write a poem about ants"], ["what is 12 plus 34", "why"]]
    for name in FAMILIES:
        made[name] = tmp_path_factory.mktemp(name)
        if name == "tfidf":
            make_tfidf(made[name], prompts, hidden_size=4, ngrams=(1, 2), max_features=50, min_df=1)
        else:
            sizes = {"vocab_size": 270, "hidden_size": 16, "layers": 2, "heads": 2, "max_positions": 64}
            make_transformer(made[name], prompts, model_type=name, seed=1, **sizes)
    return made


def create(folder, model_type="qwen2", head_type="rk", loss_type="grk", names=NAMES, max_length=64, **options):
    tokenizer = load_tokenizer(folder, max_length=max_length)
    model = P2LModel.create(
        folder,
        model_type=model_type,
        head_type=head_type,
        loss_type=loss_type,
        model_list=names,
        tokenizer=tokenizer,
        **options,
    )
    if model_type == "tfidf":
        nn.init.normal_(model.model.embedding, generator=torch.Generator().manual_seed(0))
    return model, tokenizer


def batch_of(tokenizer, prompts=PROMPTS):
    return collate(tokenizer.encode(prompts), tokenizer.pad_token_id)


def coefs_of(model, tokenizer, prompts=PROMPTS):
    with torch.no_grad():
        out = model.eval()(batch_of(tokenizer, prompts))
    return out.coefs, out.eta


def save(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def saved(folders, tmp_path):
    return save(*create(folders["qwen2"]), tmp_path / "saved")


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("head_type", "loss_type"), [("bt", "bt"), ("ba", "ba")])
def test_saved_and_loaded_it_gives_the_same(folders, tmp_path, name, head_type, loss_type):
    model, tokenizer = create(folders[name], name, head_type, loss_type)
    save(model, tokenizer, tmp_path)
    again = P2LModel.from_pretrained(tmp_path)
    assert again.model_list == NAMES
    assert again.likelihood.name == loss_type
    assert again.record == model.record
    assert not again.training
    for one, other in zip(coefs_of(model, tokenizer), coefs_of(again, load_tokenizer(tmp_path)), strict=True):
        assert one is other is None or torch.equal(one, other)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    ("head_type", "loss_type", "head_config"),
    [("bt", "bt-tie", None), ("rk", "rk", {"eta_dim": 3}), ("ba", "ba", {"eta_downsize": 2})],
)
def test_low_rank_and_wide_heads_survive_a_folder(folders, tmp_path, name, head_type, loss_type, head_config):
    options = {"linear_head_downsize_factor": 2, "head_config": head_config, "init_type": "xavier_unif"}
    model, tokenizer = create(folders[name], name, head_type, loss_type, **options)
    save(model, tokenizer, tmp_path)
    again = P2LModel.from_pretrained(tmp_path)
    assert again.record == model.record
    batch = batch_of(tokenizer)
    for one, other in zip(model.eval()(batch).to_tuple(), again(batch).to_tuple(), strict=True):
        assert torch.equal(one, other)


def test_the_pooling_survives_a_folder_and_matters(folders, tmp_path):
    model, tokenizer = create(folders["bert"], "bert", pooling="mean")
    save(model, tokenizer, tmp_path)
    again = P2LModel.from_pretrained(tmp_path)
    assert again.record.pooling == "mean"
    assert torch.equal(coefs_of(model.eval(), tokenizer)[0], coefs_of(again, tokenizer)[0])
    at_cls = create(folders["bert"], "bert")[0].eval()
    assert not torch.allclose(coefs_of(model, tokenizer)[0], coefs_of(at_cls, tokenizer)[0])


@pytest.mark.parametrize(
    ("name", "pooling", "message"),
    [("bert", "max", "pooling 'max' is unknown"), ("tfidf", "mean", "does not go with model_type 'tfidf'")],
)
def test_a_pooling_that_cannot_be_is_refused(folders, name, pooling, message):
    with pytest.raises(ConfigError, match=message):
        create(folders[name], name, pooling=pooling)


@pytest.mark.parametrize("name", FAMILIES)
def test_company_in_a_batch_does_not_matter(folders, name):
    model, tokenizer = create(folders[name], name)
    together, _ = coefs_of(model, tokenizer)
    alone = torch.cat([coefs_of(model, tokenizer, [prompt])[0] for prompt in PROMPTS])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_few_steps_lower_the_loss(folders, name):
    model, tokenizer = create(folders[name], name)
    if name == "tfidf":
        nn.init.zeros_(model.model.embedding)
    model.gradient_checkpointing_enable()
    model.train()
    torch.manual_seed(0)  # dropout
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    prompts = [["write a poem about ants"], ["what is 12 plus 34"]]
    labels = torch.tensor([[0, 1, 0], [1, 0, 0]])
    losses = []
    for _ in range(12):
        loss = model(batch_of(tokenizer, prompts), labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("head_type", ["bt", "rk"])
def test_a_folder_saved_here_loads_into_a_plain_subclass(folders, tmp_path, head_type):
    model, tokenizer = create(folders["qwen2"], head_type=head_type, loss_type={"bt": "bt", "rk": "rk"}[head_type])
    save(model, tokenizer, tmp_path)
    names = json.loads((tmp_path / "model_list.json").read_text())
    plain_tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    plain, report = Published.from_pretrained(
        tmp_path,
        num_models=len(names),
        cls_token_id=plain_tokenizer.cls_token_id,
        has_eta=head_type == "rk",
        output_loading_info=True,
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    batch = batch_of(tokenizer)
    with torch.no_grad():
        plain_coefs, plain_eta = plain.eval()(**batch)
    coefs, eta = coefs_of(model, tokenizer)
    torch.testing.assert_close(coefs, plain_coefs, atol=1e-5, rtol=0)
    assert eta is plain_eta is None or torch.allclose(eta, plain_eta, atol=1e-5)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_published_folder_loads_with_the_documented_flags(folders, tmp_path, sharded, dtype):
    tokenizer = load_tokenizer(folders["qwen2"], max_length=64)
    config = Qwen2Config.from_pretrained(folders["qwen2"])
    torch.manual_seed(3)
    plain = Published(config, len(NAMES), tokenizer.cls_token_id).to(dtype)
    plain.save_pretrained(tmp_path, max_shard_size="20KB" if sharded else "5GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == sharded
    (tmp_path / "model_list.json").write_text(json.dumps(NAMES))
    tokenizer.save_pretrained(tmp_path)
    model = P2LModel.from_pretrained(tmp_path, model_type="qwen2", head_type="rk", loss_type="rk")
    exact = Published(config, len(NAMES), tokenizer.cls_token_id)
    exact.load_state_dict(plain.state_dict())
    with torch.no_grad():
        plain_coefs, plain_eta = exact.eval()(**batch_of(tokenizer))
    coefs, eta = coefs_of(model, tokenizer)
    torch.testing.assert_close(coefs, plain_coefs, atol=1e-5, rtol=0)
    torch.testing.assert_close(eta, plain_eta, atol=1e-5, rtol=0)
    for trained_with, loss in ({}, "grk"), ({"loss_type": "rk"}, "rk"), ({"loss_type": "bt"}, "grk"):
        (tmp_path / "training_config.json").write_text(json.dumps(trained_with))
        bare = P2LModel.from_pretrained(tmp_path)
        assert (bare.record.head_type, bare.likelihood.name) == ("rk", loss)


@pytest.mark.parametrize("head_config", [None, {"eta_dim": 3}])
def test_a_low_rank_head_is_recognised_without_a_record(folders, tmp_path, head_config):
    model, tokenizer = create(folders["qwen2"], linear_head_downsize_factor=2, head_config=head_config)
    save(model, tokenizer, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["p2l"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = P2LModel.from_pretrained(tmp_path)
    assert torch.equal(coefs_of(model, tokenizer)[0], coefs_of(again, tokenizer)[0])


def test_weight_names_are_those_of_published_models(saved):
    names = set(load_file(saved / "model.safetensors"))
    assert {name for name in names if not name.startswith("model.")} == {
        f"head.{part}.{kind}" for part in ("head", "eta_head") for kind in ("weight", "bias")
    }
    assert "model.layers.0.self_attn.q_proj.weight" in names


def test_large_weights_are_sharded_and_load(folders, tmp_path):
    model, tokenizer = create(folders["qwen2"])
    save(model, tokenizer, tmp_path)
    save_weights(model.state_dict(), tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert not (tmp_path / "model.safetensors").exists()
    assert torch.equal(coefs_of(model, tokenizer)[0], coefs_of(P2LModel.from_pretrained(tmp_path), tokenizer)[0])


def test_the_loss_is_the_weighted_mean_over_votes_that_count(folders):
    model, tokenizer = create(folders["qwen2"], head_type="bt", loss_type="bt")
    labels = torch.tensor([[0, 1, 0], [2, 3, 1], [4, 0, 0]])
    weights = torch.tensor([1.0, 5.0, 3.0])
    out = model.eval()(batch_of(tokenizer), labels, weights)
    each = vote_losses(get("bt"), out.coefs, labels)
    assert out.loss.item() == pytest.approx(((each[0] + 3 * each[2]) / 4).item(), rel=1e-6)
    assert out.vote_losses[1] == 0
    assert model(batch_of(tokenizer), labels[[1, 1, 1]]).loss == 0
    assert out.last_hidden_state.shape == (3, 16)


def test_the_seed_alone_draws_the_head(folders):
    before = torch.random.get_rng_state()
    heads = [create(folders["qwen2"], seed=seed)[0].head.head.weight for seed in (1, 1, 2)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert torch.equal(before, torch.random.get_rng_state())


def test_added_tokens_start_at_the_mean_embedding(folders, tmp_path):
    shutil.copytree(folders["llama"], tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del config["cls_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path, cls_token_if_none="<|new|>", max_length=64)
    model = P2LModel.create(
        tmp_path, model_type="llama", head_type="bt", loss_type="bt", model_list=NAMES, tokenizer=tokenizer
    )
    rows = model.model.get_input_embeddings().weight
    assert len(rows) == tokenizer.vocab_size == tokenizer.cls_token_id + 1
    torch.testing.assert_close(rows[-1], rows[:-1].mean(0))
    again = P2LModel.from_pretrained(save(model, tokenizer, tmp_path / "saved"))
    assert torch.equal(coefs_of(model, tokenizer)[0], coefs_of(again, tokenizer)[0])


def test_freezing_leaves_the_head(folders):
    model, tokenizer = create(folders["qwen2"])
    model.model.requires_grad_(False)
    model(batch_of(tokenizer), torch.tensor([[0, 1, 0]] * 3)).loss.backward()
    assert {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None} == {"head"}
    model.train()
    assert model.training
    assert not model.model.training  # a frozen text model has no dropout
    assert not model.train(False).head.training


def test_rotary_frequencies_stay_exact_in_bfloat16(folders, saved):
    exact = create(folders["qwen2"])[0].model.rotary_emb.inv_freq.clone()
    loaded = P2LModel.from_pretrained(saved, dtype="bfloat16")
    for model in (loaded, create(folders["qwen2"], dtype="bfloat16")[0], create(folders["qwen2"])[0].bfloat16()):
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
        assert torch.equal(model.model.rotary_emb.inv_freq, exact)
    coefs, _ = coefs_of(loaded, load_tokenizer(saved))
    assert coefs.dtype == torch.float32
    assert torch.allclose(coefs, coefs_of(P2LModel.from_pretrained(saved), load_tokenizer(saved))[0], atol=0.05)


def test_bfloat16_tfidf_trains(folders):
    model, tokenizer = create(folders["tfidf"], "tfidf", dtype="bfloat16")
    model(batch_of(tokenizer), torch.tensor([[0, 1, 0]] * 3)).loss.backward()
    assert model.model.embedding.grad.abs().sum() > 0


def test_loading_draws_no_random_numbers(saved):
    before = torch.random.get_rng_state()
    P2LModel.from_pretrained(saved)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"head_type": "bt"}, "head_type is 'rk' in this checkpoint, not 'bt'"),
        ({"model_type": "llama"}, "model_type is 'qwen2'"),
        ({"loss_type": "rk"}, "loss_type is 'grk'"),
        ({"loss_type": "bt"}, "cannot|go|head"),
    ],
)
def test_a_flag_that_contradicts_the_checkpoint_is_refused(saved, flags, message):
    with pytest.raises((CheckpointError, ConfigError), match=message):
        P2LModel.from_pretrained(saved, **flags)


def test_training_may_go_on_with_another_loss_of_the_same_head(folders, saved, tmp_path):
    model = P2LModel.from_pretrained(saved)
    model.retrain(loss_type="rk-reparam", max_length=40)
    model.save_pretrained(tmp_path)
    again = P2LModel.from_pretrained(tmp_path)
    assert again.likelihood.name == "rk-reparam"
    assert again.record.max_length == 40
    with pytest.raises(ConfigError, match="needs head_type 'bt'"):
        model.retrain(loss_type="bt", max_length=40)
    bidirectional, _ = create(folders["bert"], "bert")
    with pytest.raises(ConfigError, match="max_length 65 is beyond the 64 positions"):
        bidirectional.retrain(loss_type="grk", max_length=65)


def test_weights_of_votes_keep_the_loss_in_float32(folders):
    model, tokenizer = create(folders["qwen2"])
    labels = torch.tensor([[0, 1, 0], [2, 3, 1], [4, 0, 2]])
    for dtype in (torch.float64, torch.int64):
        out = model.eval()(batch_of(tokenizer), labels, torch.tensor([1, 2, 3], dtype=dtype))
        assert out.loss.dtype == out.vote_losses.dtype == torch.float32


def test_flags_that_agree_are_accepted(saved):
    P2LModel.from_pretrained(saved, model_type="qwen2", head_type="rk", loss_type="bag")


@pytest.mark.parametrize(("names", "word"), [(NAMES[:-1], "shorter"), ([*NAMES, "fox"], "longer")])
def test_a_model_list_of_another_length_is_refused(saved, names, word):
    (saved / "model_list.json").write_text(json.dumps(names))
    with pytest.raises(CheckpointError, match=f"{word} than the head: {len(names)} names for 5 coefficients"):
        P2LModel.from_pretrained(saved)


def test_broken_folders_are_named(saved, tmp_path):
    weights = saved / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        P2LModel.from_pretrained(saved)
    weights.unlink()
    with pytest.raises(CheckpointError, match="holds no weights"):
        P2LModel.from_pretrained(saved)
    (saved / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="convert them"):
        P2LModel.from_pretrained(saved)
    (saved / "model_list.json").unlink()
    with pytest.raises(CheckpointError, match=r"model_list\.json: no such file"):
        P2LModel.from_pretrained(saved)
    with pytest.raises(CheckpointError, match="no such folder"):
        P2LModel.from_pretrained(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop("model.norm.weight"), r"lacks the weights model\.norm\.weight"),
        (lambda weights: weights.update({"head.other": torch.zeros(1)}), r"unknown weights head\.other"),
        (
            lambda weights: weights.update({"model.norm.weight": torch.zeros(3)}),
            r"model\.norm\.weight has shape \(3,\)",
        ),
        (lambda weights: weights.pop("head.head.weight"), "not a trained P2L model"),
    ],
)
def test_weights_that_do_not_fit_are_named(saved, change, message):
    weights = load_file(saved / "model.safetensors")
    change(weights)
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=message):
        P2LModel.from_pretrained(saved)


def test_left_over_weights_of_a_generation_head_are_ignored(saved):
    weights = load_file(saved / "model.safetensors")
    weights |= {"lm_head.weight": torch.zeros(2, 2), "model.rotary_emb.inv_freq": torch.zeros(4)}
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    P2LModel.from_pretrained(saved)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "qwen"}, "did you mean 'qwen"),
        ({"model_type": "llama"}, "config.json has model_type 'qwen2'"),
        ({"loss_type": "bt"}, "bt"),
        ({"init_type": "zeros"}, "init_type 'zeros' is unknown"),
        ({"dtype": "int8"}, "dtype 'int8' is unknown"),
    ],
)
def test_wrong_settings_of_a_new_model_are_named(folders, options, message):
    with pytest.raises((ConfigError, CheckpointError), match=message):
        create(folders["qwen2"], **options)


def test_learned_positions_limit_the_length(folders):
    with pytest.raises(ConfigError, match="max_length 65 is beyond the 64 positions"):
        create(folders["bert"], "bert", max_length=65)
    create(folders["modernbert"], "modernbert", max_length=65)


def test_a_backbone_of_other_weights_is_refused(folders, tmp_path):
    shutil.copytree(folders["qwen2"], tmp_path, dirs_exist_ok=True)
    save_file({"other": torch.zeros(1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="its weights are not those of a qwen2 model"):
        create(tmp_path)


def test_a_trainers_weights_can_stand_in(folders, tmp_path):
    model, _ = create(folders["qwen2"])
    other = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    model.save_pretrained(tmp_path, state_dict=other)
    again = P2LModel.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(other[name], again[name]) for name in other)
