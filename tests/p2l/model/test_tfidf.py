import math
import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from p2l.common.errors import CheckpointError, InputError
from p2l.common.prompts import split_words
from p2l.model.batching import collate
from p2l.model.model import P2LModel
from p2l.model.scratch import make_tfidf
from p2l.model.tfidf import TfidfTokenizer, fit_vocabulary
from p2l.model.tokenizer import load_tokenizer


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't STOP, it's 42!", ["don't", "stop", ",", "it's", "4", "2", "!"]),
        ("日本語のtext", ["日", "本", "語", "の", "text"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("สวัสดี", list("สวัสดี")),
        ("ﬁne\ud83d Ünïcode", ["fine", "\ufffd", "ünïcode"]),
        ("", []),
    ],
)
def test_words_of_many_scripts(text, words):
    assert split_words(text) == words


def test_marks_without_end_are_a_few():
    """Normalising marks takes the square of their number: 21 s for 80,000."""
    word = "a" + "\u0301\u0316" * 2000
    assert split_words(f"one {word} two") == split_words(f"one {word[:31]} two")
    words = split_words(f"one a{word * 20} two")  # longer than any word: it counts as several
    assert (words[0], words[-1]) == ("one", "two")
    assert len("".join(words)) < 2000


TEXT = st.lists(
    st.text(st.sampled_from("aZ'é_9-!<=≠\u0301\u0338\u0316हिन्दी中文字がｶﾞﾊﾟ각ᄀ각ﷺﬁ½"), max_size=20), max_size=30
).map(" ".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXT, gap=st.sampled_from([" ", "\n", "\t", "中", "7", "!"]))
def test_words_of_a_long_text_are_those_of_it_at_once(text, gap, monkeypatch):
    whole = split_words(f"{text}{gap}{text}")
    with monkeypatch.context() as patch:
        patch.setattr("p2l.common.prompts._PIECE_CHARS", 32)
        assert split_words(f"{text}{gap}{text}") == whole


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    turns=st.lists(st.text(st.sampled_from("ab ,中"), max_size=60), min_size=1, max_size=5), count=st.integers(1, 40)
)
def test_the_newest_words_are_those_of_the_whole_prompt(turns, count, monkeypatch):
    everything = [word for turn in turns for word in split_words(turn)]
    terms = ["a", "b", ",", "中", "ab", "ba"]
    tokenizer = TfidfTokenizer(terms, [1.0] * len(terms), max_length=count)
    with monkeypatch.context() as patch:
        patch.setattr("p2l.common.prompts._PIECE_CHARS", 16)
        encoding = tokenizer.encode([turns])[0]
    assert encoding.truncated == (len(everything) > count)
    known = {terms[number] for number in encoding.ids}
    assert known == {word for word in everything[-count:] if word in terms}


def test_no_more_of_a_prompt_is_split_than_counts(monkeypatch):
    normalised = []
    normalize = unicodedata.normalize
    monkeypatch.setattr(unicodedata, "normalize", lambda form, text: normalised.append(text) or normalize(form, text))
    tokenizer = TfidfTokenizer(["red", "blue"], [1.0, 1.0], max_length=10)
    encoding = tokenizer.encode([["red é " * 100_000, "blue é " * 100_000]])[0]
    assert (encoding.ids.tolist(), encoding.truncated) == ([1], True)
    assert sum(map(len, normalised)) < 10_000


def test_weights_are_those_of_the_formula():
    tokenizer = fit_vocabulary([["a a b"], ["a c"]], ngrams=(1, 1), min_df=1)
    encoding = tokenizer.encode([["a a b zzz"]])[0]
    idf = {"a": 1 + math.log(3 / 3), "b": 1 + math.log(3 / 2)}
    raw = np.array([(1 + math.log(2)) * idf["a"], idf["b"]])
    assert sorted(encoding.values) == pytest.approx(sorted(raw / np.linalg.norm(raw)), rel=1e-6)


def test_the_vocabulary_is_the_most_frequent_ngrams_within_turns():
    prompts = [["red car", "blue car"], ["red car"], ["red sky"]]
    tokenizer = fit_vocabulary(prompts, ngrams=(1, 2), min_df=2)
    assert len(tokenizer.encode([["red car"]])[0].ids) == 3
    assert len(tokenizer.encode([["car", "blue sky"]])[0].ids) == 1
    assert fit_vocabulary(prompts, max_features=1, min_df=1).encode([["red"]])[0].values.tolist() == [1.0]
    with pytest.raises(InputError, match="no word is in 9 of the 3 prompts"):
        fit_vocabulary(prompts, min_df=9)


def test_scripts_without_spaces_have_pairs_of_characters():
    tokenizer = fit_vocabulary([["日本 red car"]], min_df=1)
    assert len(tokenizer.encode([["日本"]])[0].ids) == 3
    assert len(tokenizer.encode([["red car"]])[0].ids) == 2


def test_the_newest_words_are_kept(tmp_path):
    make_tfidf(tmp_path, [["one two three"]], hidden_size=2, ngrams=(1, 1), max_features=9, min_df=1)
    tokenizer = load_tokenizer(tmp_path, max_length=2)
    cut, whole = tokenizer.encode([["one two", "three"], ["two", "three"]])
    assert cut.truncated
    assert not whole.truncated
    assert sorted(cut.ids) == sorted(whole.ids)


def test_saved_and_loaded_it_is_the_same(tmp_path):
    make_tfidf(tmp_path, [["one two three"], ["four"]], hidden_size=2, ngrams=(1, 2), max_features=9, min_df=1)
    tokenizer = load_tokenizer(tmp_path)
    copy = tmp_path / "copy"
    copy.mkdir()
    tokenizer.save_pretrained(copy)
    (copy / "config.json").write_text((tmp_path / "config.json").read_text())
    one, other = (found.encode([["one two four four"]])[0] for found in (tokenizer, load_tokenizer(copy)))
    assert np.array_equal(one.ids, other.ids)
    assert np.array_equal(one.values, other.values)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tfidf.json", "{}", "not a TF-IDF vocabulary"),
        ("tfidf.json", '{"ngrams": [1], "terms": [], "idf": []}', "not a TF-IDF vocabulary"),
        (
            "tfidf.json",
            '{"ngrams": [1, 1], "terms": ["a", "b"], "idf": [1.0]}',
            "one finite idf for each of its 2 terms",
        ),
        ("tfidf.json", '{"ngrams": [1, 1], "terms": ["a"], "idf": [NaN]}', "one finite idf for each of its 1 terms"),
        ("tfidf.json", '{"ngrams": [1, 1], "terms": "a", "idf": [1.0]}', "terms must be a list of different words"),
        ("tfidf.json", '{"ngrams": [1, 1], "terms": ["a", "a"], "idf": [1, 1]}', "terms must be a list of different"),
        ("tfidf.json", '{"ngrams": [1, 1], "terms": [["a"]], "idf": [1]}', "terms must be a list of different words"),
        ("tfidf.json", '{"ngrams": [1, 1], "terms": 7, "idf": []}', "terms must be a list of different words"),
        ("tfidf.json", '{"ngrams": [1, 1e999], "terms": ["a"], "idf": [1]}', "ngrams must be"),
        ("tfidf.json", '{"ngrams": [1, 99999999999], "terms": ["a"], "idf": [1]}', "ngrams must be"),
        ("tfidf.json", '{"ngrams": "ab", "terms": ["a"], "idf": [1]}', "ngrams must be"),
        ("tfidf.json", '{"ngrams": [1, 1], "terms": ["a"], "idf": [' + "9" * 400 + "]}", "not a TF-IDF vocabulary"),
        ("tfidf.json", "[" * 100_000, r"tfidf\.json: cannot be read as JSON: is nested deeper than 200 levels"),
        ("tfidf.json", '{"ngrams": ' + "[" * 300 + "]" * 300 + "}", "is nested deeper than 200 levels"),
        ("config.json", '{"model_type": "tfidf"}', "has no vocab_size"),
        ("config.json", '{"model_type": "tfidf", "vocab_size": 1000000000000}', "has shape"),
        ("config.json", '{"model_type": "tfidf", "vocab_size": 3, "hidden_size": "x"}', "must be numbers"),
        ("config.json", '{"model_type": "tfidf", "vocab_size": 3, "feature_dropout": 2}', "below 1"),
        ("config.json", '{"model_type": "tfidf", "vocab_size": 2}', "has shape"),
    ],
)
def test_a_damaged_folder_is_named(tmp_path, file, content, message):
    make_tfidf(tmp_path, [["one two three"]], hidden_size=2, ngrams=(1, 1), max_features=9, min_df=1)
    (tmp_path / file).write_text(content)
    with pytest.raises(CheckpointError, match=message):
        P2LModel.create(
            tmp_path,
            model_type="tfidf",
            head_type="bt",
            loss_type="bt",
            model_list=["a", "b"],
            tokenizer=load_tokenizer(tmp_path),
        )


def test_an_unknown_prompt_gets_the_bias_and_training_learns_words(tmp_path):
    rng = np.random.default_rng(0)
    colours = ["red", "green", "blue"]
    prompts = [[f"{colours[number % 3]} word{rng.integers(20)} word{rng.integers(20)}"] for number in range(300)]
    # The model of the colour's number wins nine times of ten.
    labels = torch.tensor(
        [[n % 3, (n + 1) % 3, 0] if rng.random() < 0.9 else [(n + 1) % 3, n % 3, 0] for n in range(300)]
    )
    make_tfidf(tmp_path, prompts, hidden_size=8, ngrams=(1, 2), max_features=500, min_df=2)
    tokenizer = load_tokenizer(tmp_path)
    model = P2LModel.create(
        tmp_path, model_type="tfidf", head_type="bt", loss_type="bt", model_list=colours, tokenizer=tokenizer
    )
    with torch.no_grad():
        unseen = model(collate(tokenizer.encode([["nothing known"], ["red"]]), 0)).coefs
    assert torch.equal(unseen[0], model.head.head.bias)
    assert torch.equal(unseen[1], model.head.head.bias)
    _train(model, tokenizer, prompts, labels)
    with torch.no_grad():
        coefs = model.eval()(collate(tokenizer.encode([[colour] for colour in colours]), 0)).coefs
    assert coefs.argmax(1).tolist() == [0, 1, 2]


def _train(model: nn.Module, tokenizer, prompts, labels):
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    encodings = tokenizer.encode(prompts)
    for _ in range(15):
        for start in range(0, len(prompts), 30):
            loss = model(collate(encodings[start : start + 30], 0), labels[start : start + 30]).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def test_what_would_be_known_of_prompts_that_were_not_read():
    prompts = [["red fox"]] * 3 + [["red bird"]] * 4 + [["red egg"]]
    words = fit_vocabulary(prompts, min_df=3)
    usage = words.usage(prompts)
    idf = {term: 1 + math.log(9 / (1 + count)) for term, count in {"red": 8, "fox": 3, "bird": 4}.items()}
    rarest, red = idf["fox"] ** 2, idf["red"] ** 2
    # A word that three prompts have is not known by two.
    alone = [red / (red + rarest)] * 3 + [1.0] * 4 + [red / (red + rarest)]
    assert np.allclose(usage.known_alone(), alone)
    assert np.allclose(words.usage([[""]]).known_alone(), 1.0)
