import json

import pytest
import torch
from safetensors.torch import load_file

from p2l.commands.model import init_main
from p2l.common.errors import ConfigError, InputError
from p2l.model.scratch import sample_prompts
from p2l.model.tokenizer import load_tokenizer
from p2l.votes import read_votes

SMALL = ["--vocab-size", "280", "--hidden-size", "16", "--layers", "1", "--heads", "2", "--max-positions", "64"]


def init(votes, output, *flags):
    init_main(["--votes", str(votes), "--output", str(output), "--quiet", *flags])
    return output


def test_the_same_seed_makes_the_same_folder(votes_file, tmp_path, capsys):
    one, two, other = (
        init(votes_file, tmp_path / name, *SMALL, "--seed", seed) for name, seed in (("a", "1"), ("b", "1"), ("c", "2"))
    )
    assert "use it as pretrain_model_name" in capsys.readouterr().out
    assert (one / "tokenizer.json").read_bytes() == (two / "tokenizer.json").read_bytes()
    weights = [load_file(folder / "model.safetensors") for folder in (one, two, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert any(not torch.equal(weights[0][name], weights[2][name]) for name in weights[0])


def test_sizes_are_those_asked_for(votes_file, tmp_path):
    folder = init(votes_file, tmp_path / "x", *SMALL, "--model-type", "llama")
    config = json.loads((folder / "config.json").read_text())
    asked = {"vocab_size": 280, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 48}
    assert {name: config[name] for name in asked} == asked
    tokenizer = load_tokenizer(folder)
    assert tokenizer.max_length == 64
    assert tokenizer.text(["hi"]) == "<|im_start|>user\nhi<|im_end|>\n<|cls|>"
    assert tokenizer.added_ids == ()


def test_tfidf_takes_its_own_flags(votes_file, tmp_path):
    folder = init(
        votes_file,
        tmp_path / "x",
        "--model-type",
        "tfidf",
        "--ngrams",
        "1",
        "1",
        "--max-features",
        "20",
        "--min-df",
        "1",
    )
    assert json.loads((folder / "config.json").read_text()) == {
        "feature_dropout": 0.5,
        "vocab_size": 20,
        "hidden_size": 32,
        "model_type": "tfidf",
    }
    assert not any(" " in term for term in json.loads((folder / "tfidf.json").read_text())["terms"])


def test_every_byte_can_be_written(votes_file, tmp_path):
    folder = init(votes_file, tmp_path / "x", *SMALL)
    tokenizer = load_tokenizer(folder).tokenizer
    text = "日本 \x00\t é🎉"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model-type", "gpt9"], "model_type 'gpt9' is unknown"),
        (["--ngrams", "1", "2"], "--ngrams does not go with --model-type qwen2"),
        (["--model-type", "tfidf", "--layers", "3"], "--layers does not go with --model-type tfidf"),
        (["--model-type", "tfidf", "--ngrams", "2", "1"], "must be a range"),
        (["--vocab-size", "100"], "--vocab-size must be at least 261"),
        (["--layers", "0"], "--layers must be at least 1"),
        (["--hidden-size", "30"], "even multiple of --heads 4"),
        (["--max-prompts", "0"], "--max-prompts must be at least 1"),
    ],
)
def test_wrong_flags_are_named(votes_file, tmp_path, flags, message):
    with pytest.raises(ConfigError, match=message):
        init(votes_file, tmp_path / "x", *flags)
    assert not (tmp_path / "x").exists()


def test_an_output_that_holds_something_is_left_alone(votes_file, tmp_path):
    (tmp_path / "note").write_text("mine")
    with pytest.raises(InputError, match="is not an empty folder"):
        init(votes_file, tmp_path)


def test_missing_votes_are_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.jsonl"):
        init(tmp_path / "none.jsonl", tmp_path / "x")


def test_the_sample_is_even_and_distinct(tmp_path):
    path = tmp_path / "votes.jsonl"
    rows = [
        {"prompt": f"prompt {number // 2}", "model_a": "a", "model_b": "b", "winner": "model_a"}
        for number in range(400)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def sample(count, seed=42):
        return sample_prompts((votes.batch for votes in read_votes(path, batch_size=64)), count, seed=seed)

    assert sample(1000) == [[f"prompt {number}"] for number in range(200)]
    assert len(sample(1)) == 1  # most batches give none
    some = sample(50, seed=3)
    assert 40 <= len(some) <= 50
    assert some == sample(50, seed=3)
    numbers = [int(prompt[0].split()[1]) for prompt in some]
    assert len(set(numbers)) == len(numbers)
    assert 60 < sum(numbers) / len(numbers) < 140


def test_help_is_quick_to_import(command):
    done = command(
        "python", "-c", "import p2l.commands.model, sys; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert done.stdout.strip() == "[]"
