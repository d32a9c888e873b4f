"""Sample votes: real ones, or made-up ones where the planted best of a topic wins it; the same files again."""

import numpy as np
import pandas as pd
import pytest

from p2l.commands.votes import main
from p2l.common.errors import InputError
from p2l.public.sample import public_sample, public_scores
from p2l.simulation.samples import MODELS, TOPICS, sample_coefs, sample_prompts, sample_scores, sample_votes
from tests.conftest import ROOT, Command

PACKAGE = ROOT / "p2l" / "public"


def test_the_planted_best_of_each_topic_leads_it() -> None:
    votes = sample_votes(6000, 1).to_pandas()
    assert votes.tstamp.is_monotonic_increasing
    assert (votes.model_a != votes.model_b).all()
    coefs = sample_coefs()
    for number, topic in enumerate(TOPICS):
        won = votes[votes.topic == topic]
        wins = pd.concat([won.model_a[won.winner == "model_a"], won.model_b[won.winner == "model_b"]]).value_counts()
        shown = pd.concat([won.model_a, won.model_b]).value_counts()
        assert (wins / shown).idxmax() == MODELS[int(coefs[number].argmax())]


def test_prompts_are_readable_and_belong_to_one_topic() -> None:
    prompts = sample_prompts()
    everything = [prompt for some in prompts.values() for prompt in some]
    assert len(set(everything)) == len(everything) > 1000
    assert not any("{" in prompt or "  " in prompt for prompt in everything)


def test_scores_are_usable_answers_at_the_planted_rate() -> None:
    scores = sample_scores(3).to_pandas()
    rates = scores.pivot_table(index="category", columns="model", values="score").loc[list(TOPICS), list(MODELS)]
    chances = 1 / (1 + np.exp(-sample_coefs()))
    assert np.abs(rates.to_numpy() - chances).max() < 5 * np.sqrt(0.25 / 150)


@pytest.mark.parametrize(
    ("flags", "about"),
    [((), "50 votes between 13 LLMs on 8 topics"), (("--made-up",), "50 votes between 8 made-up models on 6 topics")],
)
def test_the_command_writes_the_same_files_again(
    command: Command, tmp_path, flags: tuple[str, ...], about: str
) -> None:
    written = []
    for name in ("one", "two"):
        votes, scores = tmp_path / f"{name}.jsonl", tmp_path / f"{name}.csv"
        done = command(
            *(
                "python",
                "-m",
                "p2l.cli",
                "votes",
                "sample",
                "--votes",
                "50",
                "--output",
                votes,
                "--scores",
                scores,
                *flags,
            )
        )
        assert done.returncode == 0, done.stderr
        assert about in done.stdout
        written.append((votes.read_bytes(), scores.read_bytes()))
    assert written[0] == written[1]


@pytest.mark.parametrize("flags", [("--scores", "same.parquet"), ("--votes", "0"), ("--votes", "2501")])
def test_a_mistake_is_one_line(command: Command, tmp_path, flags: tuple[str, ...]) -> None:
    done = command("python", "-m", "p2l.cli", "votes", "sample", "--output", "same.parquet", *flags, cwd=tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "same.parquet").exists()


@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ".jsonl.gz", ".csv"])
def test_a_file_that_holds_something_else_is_kept(tmp_path, ending: str) -> None:
    votes, scores = (tmp_path / f"{name}{ending}" for name in ("votes", "scores"))
    words = ["sample", "--votes", "50", "--output", str(votes), "--scores", str(scores)]
    assert main(words) == 0
    times = votes.stat().st_mtime_ns, scores.stat().st_mtime_ns
    assert main(words) == 0
    assert (votes.stat().st_mtime_ns, scores.stat().st_mtime_ns) == times
    for own, other in ((votes, scores), (scores, votes)):
        own.write_bytes(own.read_bytes() + b"mine")
        content, kept = own.read_bytes(), other.read_bytes()
        with pytest.raises(InputError, match=f"{own.name}: exists and holds something else; .* add --overwrite"):
            main(words)
        assert (own.read_bytes(), other.read_bytes()) == (content, kept)
        assert main([*words, "--overwrite"]) == 0
        assert own.read_bytes() != content


def test_votes_of_another_seed_are_not_replaced(command: Command, tmp_path) -> None:
    words = ("python", "-m", "p2l.cli", "votes", "sample", "--votes", "50", "--output", "votes.jsonl")
    assert command(*words, cwd=tmp_path).returncode == 0
    done = command(*words, "--seed", "1", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: votes.jsonl: exists and holds something else; choose another name, or add --overwrite"
    ]


def test_the_real_sample_is_of_real_llms_on_prompts_of_many_kinds() -> None:
    votes = public_sample(2500, 0).to_pandas()
    assert {"gpt-4-0314", "llama-3.1-8b-instruct", "claude-3-5-sonnet-20241022"} <= {*votes.model_a, *votes.model_b}
    assert {"code", "mathematics", "requests", "requests in other languages"} <= set(votes.topic)
    assert votes.prompt.map(tuple).nunique() > 2000
    assert set(votes.winner) == {"model_a", "model_b", "tie", "tie (bothbad)"}
    shown = pd.concat([votes.model_a, votes.model_b]).value_counts()
    assert shown.min() >= 100, "a model with fewer votes would be known from too few"


def test_some_of_the_real_sample_are_drawn_by_the_seed() -> None:
    drawn = [public_sample(100, seed).to_pandas() for seed in (1, 1, 2)]
    assert drawn[0].equals(drawn[1])
    assert not drawn[0].equals(drawn[2])
    everything = set(public_sample(2500, 0).to_pandas().question_id)
    assert set(drawn[2].question_id) < everything


def test_real_graded_answers_have_costs_by_which_routing_can_be_measured() -> None:
    scores = public_scores().to_pandas()
    assert scores.groupby("prompt").model.nunique().median() >= 10
    assert scores.score.between(0, 1).all()
    assert (scores.cost > 0).mean() > 0.99
    by_model = scores.groupby("model").agg({"score": "mean", "cost": "mean"})
    assert by_model.cost.max() / by_model.cost.min() > 10
    assert sum(file.stat().st_size for file in PACKAGE.glob("sample*.parquet")) < 1_000_000
