"""A Llama checkpoint as once published: the plain backbone's old config.json, a tokenizer that adds its own BOS."""

import json

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import LlamaConfig, LlamaModel, LlamaPreTrainedModel, PreTrainedTokenizerFast

from p2l.inference import P2L
from p2l.model.checkpoint import save_weights

BOS, EOT, PAD, CLS = "<|begin_of_text|>", "<|eot_id|>", "<|finetune_right_pad_id|>", "<|reserved_special_token_3|>"
SPECIAL = (BOS, EOT, PAD, CLS, "<|start_header_id|>", "<|end_header_id|>")
TEMPLATE = (
    "{{- bos_token }}"
    "{%- if not date_string is defined %}{%- set date_string = strftime_now('%d %b %Y') %}{%- endif %}"
    "{{- '<|start_header_id|>system<|end_header_id|>\n\nToday Date: ' + date_string + '<|eot_id|>' }}"
    "{%- for message in messages %}"
    "{{- '<|start_header_id|>user<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}{%- endfor %}"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256 + len(SPECIAL),
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "transformers_version": "4.44.0",
}
PROMPTS = [f"hi {BOS} there", ["first", f"second {EOT}"], "", "long " * 60]


class PlainHead(nn.Module):
    def __init__(self, hidden, num_models):
        super().__init__()
        self.head = nn.Linear(hidden, num_models)
        self.eta_head = nn.Linear(hidden, 1)


class Plain(LlamaPreTrainedModel):
    """What the checkpoint itself says that it is."""

    def __init__(self, config, num_models):
        super().__init__(config)
        self.model = LlamaModel(config)
        self.head = PlainHead(config.hidden_size, num_models)
        self.post_init()

    def forward(self, ids):
        state = self.model(torch.as_tensor(ids)[None], use_cache=False).last_hidden_state[0, -1]
        return self.head.head(state), self.head.eta_head(state)


def save_tokenizer(folder):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    built = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    built.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, built.token_to_id(BOS))]
    )
    plain = PreTrainedTokenizerFast(
        tokenizer_object=built, bos_token=BOS, eos_token=EOT, pad_token=PAD, cls_token=CLS, model_max_length=131072
    )
    plain.chat_template = TEMPLATE
    plain.save_pretrained(folder)


@pytest.fixture
def published(tmp_path):
    torch.manual_seed(0)
    options = {key: value for key, value in CONFIG.items() if key not in ("torch_dtype", "architectures")}
    plain = Plain(LlamaConfig(**options), num_models=3)
    stored = {name: tensor.bfloat16() for name, tensor in plain.state_dict().items()}
    save_weights(stored, tmp_path, max_shard_size="5KB")
    save_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model_list.json").write_text('["c", "a", "b"]')
    plain.load_state_dict(stored)
    return tmp_path, plain.float().eval()


def test_it_gives_the_coefficients_of_its_own_definition(published):
    folder, plain = published
    loaded = P2L.from_pretrained(folder, model_type="llama", head_type="rk", loss_type="rk", device="cpu")
    assert loaded.model_list == ["c", "a", "b"]
    said = loaded.predict(PROMPTS)
    for row, encoding in enumerate(loaded.tokenizer.encode(PROMPTS)):
        with torch.no_grad():
            coefs, eta = plain(encoding.ids)
        assert said.coefs[row] == pytest.approx(coefs.numpy(), abs=1e-5)
        assert said.eta[row] == pytest.approx(eta.item(), abs=1e-5)


def test_a_prompt_has_one_beginning_and_no_date_of_today(published):
    tokenizer = P2L.from_pretrained(published[0], device="cpu").tokenizer
    bos, cls = tokenizer.tokenizer.convert_tokens_to_ids([BOS, CLS])
    for encoding in tokenizer.encode(PROMPTS):
        ids = encoding.ids.tolist()
        assert (ids.count(bos), ids.index(bos)) == (1, 0)
        assert (ids.count(cls), ids.index(cls)) == (1, len(ids) - 1)
    assert "Today Date: 26 Jul 2024<|eot_id|>" in tokenizer.text(["x"])
