"""BERTScore with a model whose vectors are known: every layer hands its input on."""

from __future__ import annotations

from pathlib import Path

import pytest

from coeval.errors import RunInputError
from coeval.judging.metrics import bertscore
from tests.coeval.helpers import STATIC_TASK, coeval, model, records, run_of, write_config

VECTORS = {
    "[PAD]": (1, 1, -1, -1),
    "[UNK]": (-1, 1, 1, -1),
    "[CLS]": (-1, 1, -1, 1),
    "[SEP]": (-1, 1, -1, 1),
    "cat": (1, -1, 0, 0),
    "dog": (1, 0, -1, 0),
    "mat": (0, 0, -1, 1),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    folder = tmp_path_factory.mktemp("bert") / "tiny"
    made = BertModel(
        BertConfig(
            vocab_size=len(VECTORS),
            hidden_size=4,
            num_hidden_layers=2,
            num_attention_heads=1,
            intermediate_size=4,
            max_position_embeddings=12,
        )
    )
    with torch.no_grad():
        for name, weights in made.named_parameters():
            if "LayerNorm" not in name:
                weights.zero_()
        made.embeddings.word_embeddings.weight.copy_(torch.tensor(list(VECTORS.values())))
    made.save_pretrained(folder)
    BertTokenizer(vocab={word: number for number, word in enumerate(VECTORS)}).save_pretrained(folder)
    return folder


def test_a_case_reckoned_by_hand(tiny: Path) -> None:
    # cat is nearest to dog (1/2), mat to the token that closes the answer (1/sqrt 2), dog to cat and to mat (1/2).
    precision, recall = 0.5, (0.5 + 0.5**0.5) / 2
    found = bertscore(
        ["cat mat", "cat mat", "cat", "", "cat " * 40],
        ["dog", " mat cat\n", "", "cat", "cat"],
        {"model_type": str(tiny), "num_layers": 1},
    )
    assert found == pytest.approx([2 * precision * recall / (precision + recall), 1, 0, 0, 1], abs=1e-6)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"model_type": "nobody/has-this", "num_layers": 1},
            "nobody/has-this is not a folder, nor in the hub's cache; `hf download nobody/has",
        ),
        ({"model_type": "/", "num_layers": 1}, "/ cannot be loaded from its folder or the hub's cache: "),
        ({"model_type": "nobody/has-this"}, "needs `num_layers`"),
        ({"num_layers": 3}, "has 2 layers; lower num_layers"),
    ],
)
def test_a_model_that_is_not_there_is_told_in_one_line(tiny: Path, options: dict[str, object], why: str) -> None:
    with pytest.raises(RunInputError, match=why) as caught:
        bertscore(["cat"], ["dog"], {"model_type": str(tiny), **options})
    assert "\n" not in str(caught.value)


def test_a_run_scores_a_factor_by_it(tmp_path: Path, tiny: Path) -> None:
    factor = {"metric": "bertscore", "description": "Alike.", "model_type": str(tiny), "num_layers": 2}
    tasks = [{**STATIC_TASK, "rubric": {"clarity": "Is it clear?", "alike": factor}}]
    judge = {"name": "computed", "interface": "metric", "roles": ["judge"]}
    models = [model("ant", roles=("teacher", "student", "judge"), text='{"prompt": "cat dog", "response": "dog mat"}')]
    assert coeval("run", "--config", write_config(tmp_path, [*models, judge], tasks)) in (0, 1)
    found = [one for one in records(run_of(tmp_path), "evaluation") if one["judge_model_id"] == "computed"]
    assert len(found) == 1  # a teacher that says the same each time makes one item
    assert all(one["scores"].keys() == {"alike"} and 0 < float(one["scores"]["alike"]) <= 1 for one in found)
