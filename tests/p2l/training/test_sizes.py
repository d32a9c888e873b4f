"""The dial as arithmetic: what is derived from votes, backbone and machine."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from p2l.common.errors import ConfigError, InputError
from p2l.likelihood import outcome_model
from p2l.training.deepspeed_config import resolve_deepspeed
from p2l.training.recipe import (
    BAG_OF_WORDS,
    SIZES,
    BackboneFacts,
    Machine,
    Plan,
    VoteFacts,
    check_machine,
    choose_size,
    derive,
    plan_lines,
    scratch_shape,
    to_yaml,
)
from p2l.training.train_config import load_config

GIB = 2**30
LAPTOP = Machine(processes=1, memory=16 * GIB, gpu=False)
CARD = Machine(processes=1, memory=80 * GIB, gpu=True, bfloat16=True)
VOTES = VoteFacts(votes=30_000, prompts=29_000, ties=3_000, both_bad=1_000, lengths=[20] * 90 + [150] * 10)
SCRATCH = BackboneFacts("backbone", "qwen2", 150_000, 1024)
QWEN = BackboneFacts("Qwen/Qwen2.5-1.5B-Instruct", "qwen2", 1_540_000_000, 32_768, "chatml")


def plan(size: str = "tiny", machine: Machine = LAPTOP, backbone: BackboneFacts = SCRATCH, **votes: Any) -> Plan:
    return derive(SIZES[size], replace(VOTES, **votes), backbone, machine)


def test_the_demo_gets_the_settings_that_were_found_for_it() -> None:
    made = plan(votes=30_000, prompts=30_000)
    assert made.settings["batch_size"] * made.settings["gradient_accumulation_steps"] == 128
    assert made.settings["num_train_epochs"] == 3
    assert made.settings["shuffle"] is True
    assert made.settings["dtype"] == "float32"
    assert made.steps == 3 * 235
    assert scratch_shape(30_000)["hidden_size"] == 64


@pytest.mark.parametrize(
    ("ties", "both_bad", "votes", "head", "loss"),
    [
        (0, 0, 100, "bt", "bt"),
        (5, 0, 100, "rk", "rk"),
        (5, 0, 3000, "bt", "bt-tie"),
        (30, 0, 3000, "rk", "rk"),
        (5, 1, 3000, "rk", "grk"),
        (0, 1, 100, "rk", "grk"),
    ],
)
def test_the_outcomes_that_occur_choose_the_likelihood(
    ties: int, both_bad: int, votes: int, head: str, loss: str
) -> None:
    found = outcome_model(ties, both_bad, votes)
    assert found[:2] == (head, loss)
    made = plan(ties=ties, both_bad=both_bad, votes=votes)
    assert (made.settings["head_type"], made.settings["loss_type"]) == (head, loss)
    assert made.reasons["loss_type"]


def test_lengths_follow_the_longest_prompts_but_one_in_a_hundred() -> None:
    assert plan(lengths=[20] * 100).settings["max_length"] == 32
    assert plan(lengths=[20] * 90 + [150] * 10).settings["max_length"] == 160
    outlier = plan(lengths=[20] * 999 + [5000])
    assert outlier.settings["max_length"] == 32
    assert "0.1%" in outlier.reasons["max_length"]
    assert plan(lengths=[5000] * 10).settings["max_length"] == SIZES["tiny"].longest
    assert plan(lengths=[5000] * 10, backbone=replace(SCRATCH, positions=512)).settings["max_length"] == 512


def test_votes_that_share_prompts_are_trained_on_together() -> None:
    made = plan(votes=20_000, prompts=1_000)
    assert made.settings["shuffle"] == "by_prompt"
    assert made.settings["batch_size"] == 16 * 20
    assert made.settings["num_train_epochs"] == SIZES["tiny"].grouped.epochs
    # A prompt is encoded once an epoch, not once a vote.
    assert made.tokens == pytest.approx(made.settings["num_train_epochs"] * 1_000 * 33)
    assert plan(votes=20_000, prompts=19_000).settings["shuffle"] is True


@given(
    size=st.sampled_from(sorted(SIZES)),
    votes=st.integers(100, 3_000_000),
    share=st.floats(0.001, 1.0),
    processes=st.sampled_from([1, 2, 3, 8]),
    gpu=st.booleans(),
    length=st.integers(2, 20_000),
)
def test_every_plan_can_be_trained(size: str, votes: int, share: float, processes: int, gpu: bool, length: int) -> None:
    facts = replace(VOTES, votes=votes, prompts=max(1, round(share * votes)), lengths=[length])
    machine = Machine(processes, 80 * GIB, gpu=gpu, bfloat16=gpu)
    made = derive(SIZES[size], facts, SCRATCH, machine)
    chosen = made.settings
    assert 2 <= chosen["max_length"] <= min(SCRATCH.positions, SIZES[size].longest)
    assert chosen["batch_size"] >= 1
    step = chosen["batch_size"] * chosen["gradient_accumulation_steps"] * processes
    assert made.steps == chosen["num_train_epochs"] * -(-votes // step)
    assert 1 <= chosen["warmup_steps"] <= max(1, made.steps)
    assert 1 <= made.save_steps <= made.steps
    assert 1 <= made.eval_steps <= made.steps
    assert made.tokens >= 1
    assert derive(SIZES[size], facts, SCRATCH, machine) == made


@given(first=st.integers(100, 1_000_000), second=st.integers(100, 1_000_000))
def test_more_votes_never_mean_smaller_steps(first: int, second: int) -> None:
    few, many = sorted((first, second))
    steps = [plan(votes=votes, prompts=votes).settings["batch_size"] for votes in (few, many)]
    assert steps[0] <= steps[1]


def test_a_reader_learns_what_models_share_apart_or_has_a_low_rank() -> None:
    reader = BackboneFacts("backbone", "reader", 20_000_000, 256)
    by_prompt = plan("reader", backbone=reader, prompts=1_000, models=50).settings
    assert by_prompt["shared_level"] is True
    assert by_prompt["batch_size"] == 16 * 30
    assert "linear_head_downsize_factor" not in by_prompt
    single = plan("reader", backbone=reader, models=50).settings
    assert single["linear_head_downsize_factor"] == 3
    assert "shared_level" not in single
    assert "shared_level" not in plan(models=50).settings


def test_weights_of_votes_are_used() -> None:
    assert "weighted_loss" not in plan().settings
    made = plan(weighted=True)
    assert made.settings["weighted_loss"] is True
    assert "column 'weight'" in made.reasons["weighted_loss"]


def test_several_processes_share_a_step() -> None:
    alone, four = plan(), plan(machine=replace(LAPTOP, processes=4))
    assert four.settings["batch_size"] * 4 == alone.settings["batch_size"]
    assert four.steps == alone.steps


def test_a_written_plan_is_a_configuration(tmp_path: Path) -> None:
    made = plan()
    paths = {"output_dir": "out", "train_data_path": "a: b #c.parquet", "deepspeed_config_path": "ds.json"}
    text = to_yaml({**paths, **made.settings}, made.reasons, ["made by hand", ""])
    path = tmp_path / "training.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(path)
    assert config.train_data_path == "a: b #c.parquet"
    assert {key: getattr(config, key) for key in made.settings} == made.settings
    assert text.startswith("# made by hand\n#\n")
    assert made.reasons["loss_type"] in text
    assert yaml.safe_load(text)["adam_epsilon"] == 1e-8
    (tmp_path / "ds.json").write_text(json.dumps(made.deepspeed), encoding="utf-8")
    resolve_deepspeed(config, tmp_path / "ds.json", world_size=1, on_gpu=False)
    assert all("\n" not in line for line in plan_lines(made))


def test_a_large_backbone_is_spread_over_as_many_processes_as_it_needs() -> None:
    stages = {
        gigabytes: derive(SIZES["base"], VOTES, QWEN, Machine(8, gigabytes * GIB, gpu=True, bfloat16=True)).deepspeed[
            "zero_optimization"
        ]["stage"]
        for gigabytes in (80, 16, 10, 5)
    }
    assert stages == {80: 1, 16: 1, 10: 2, 5: 3}
    assert derive(SIZES["base"], VOTES, QWEN, CARD).settings["dtype"] == "bfloat16"
    with pytest.raises(InputError, match=r"26 GiB a process, of 16 GiB here.*--size") as caught:
        derive(SIZES["base"], VOTES, QWEN, replace(CARD, memory=16 * GIB))
    assert "\n" not in str(caught.value)


def test_a_gpu_without_bfloat16_trains_in_float32() -> None:
    made = plan("small", replace(CARD, bfloat16=False))
    assert made.settings["dtype"] == "float32"
    assert made.deepspeed["zero_optimization"]["stage"] == 0


def test_a_bag_of_words_has_a_recipe_of_its_own() -> None:
    made = plan("small", CARD, BackboneFacts("tfidf", "tfidf", 2_000_000, 8192), lengths=[4000])
    assert made.settings["learning_rate"] == BAG_OF_WORDS.learning_rate
    assert made.settings["dtype"] == "float32"
    assert made.settings["max_length"] >= 4000


def test_the_default_size_fits_the_machine_and_the_votes() -> None:
    assert choose_size(None, votes=10**6, gpu=False).name == "reader"
    assert choose_size(None, votes=10**6, gpu=True).name == "reader"
    assert choose_size(None, votes=10**6, gpu=True, model_type="tfidf").name == "tiny"
    assert choose_size(None, votes=10**6, gpu=True, model_type="bert").name == "base"
    assert choose_size(None, votes=10**4, gpu=True, model_type="bert").name == "small"
    assert choose_size(None, votes=10**6, gpu=False, model_type="bert").name == "small"
    assert choose_size("small", votes=10, gpu=False).name == "small"
    assert choose_size("tiny", votes=10, gpu=False, model_type="bert").name == "tiny"
    with pytest.raises(ConfigError, match=r"'tine' is unknown \(did you mean 'tiny'\?\)"):
        choose_size("tine", votes=10, gpu=False)


def test_a_size_for_gpus_needs_one() -> None:
    with pytest.raises(InputError, match=r"--size base.*needs a GPU.*--size tiny or small.*--backbone"):
        check_machine(SIZES["base"], LAPTOP, own_backbone=False)
    check_machine(SIZES["base"], LAPTOP, own_backbone=True)
    check_machine(SIZES["base"], CARD, own_backbone=False)
    check_machine(SIZES["small"], LAPTOP, own_backbone=False)
