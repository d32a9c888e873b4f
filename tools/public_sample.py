"""Draw the sample of real votes that `p2l votes sample` writes: `python -m tools.public_sample --data FOLDER`.

2,500 votes between fourteen LLMs on prompts of many kinds, one or two on each prompt, and graded answers with what they
cost, from the sets of `p2l/public/sources.yaml`. Both files together take less than a megabyte.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from p2l.public.names import Names
from tools.public_votes import PACKAGE, Frame, Source, of_set, sources

_SEED = 7
_LONGEST_PROMPT = 700  # characters: a person should see what is asked
_GRADED_PROMPTS = 450
_MODELS = (
    "claude-3-5-sonnet-20241022",
    "claude-3-haiku-20240307",
    "codegemma-7b",
    "gemma-2-9b-it",
    "gpt-3.5-turbo-0301",
    "gpt-4-0314",
    "gpt-4o-2024-08-06",
    "guanaco-65b",
    "llama-3.1-70b-instruct",
    "llama-3.1-8b-instruct",
    "mathstral-7b",
    "mixtral-8x7b-instruct-v0.1",
    "qwen2.5-7b-instruct",
    "vicuna-13b",
)
_SHARES = {"zeroeval": 800, "mmlu_pro": 300, "llmrouter": 700, "oasst": 700}
"""Votes of each set."""
_TOPICS = {
    "gsm": "mathematics",
    "gsm8k": "mathematics",
    "math-l5": "mathematics",
    "math": "mathematics",
    "crux": "code",
    "mbpp": "code",
    "human_eval": "code",
    "natural_qa": "trivia",
    "trivia_qa": "trivia",
    "commonsense_qa": "common sense",
    "openbook_qa": "science",
    "arc_challenge": "science",
    "gpqa": "science",
    "commongen": "writing",
    "agentverse-mgsm": "mathematics",
    "agentverse-logicgrid": "logic",
    "computer science": "code",
    "physics": "science",
    "chemistry": "science",
    "biology": "science",
}


def main() -> None:
    """Write both files into the package."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--data", type=Path, required=True, help="folder of the sets that p2l/public/sources.yaml names")
    args = flags.parse_args()
    votes = sample_votes(args.data)
    votes.to_parquet(PACKAGE / "sample.parquet", compression="zstd", index=False)
    sample_scores(args.data).to_parquet(PACKAGE / "sample_scores.parquet", compression="zstd", index=False)
    print(votes.groupby(["dataset", "topic"]).size().to_string())


def sample_votes(data: Path) -> Frame:
    """Return the votes, in random order."""
    rng, parts = np.random.default_rng(_SEED), []
    for source in sources():
        if source.name not in _SHARES:
            continue
        wanted = _SHARES[source.name]
        votes = of_set(data, replace(source, prompts=10**6, pairs=10**6), Names.load(), rng, only=_MODELS)
        votes = votes[votes.prompt.map(lambda turns: sum(map(len, turns))).le(_LONGEST_PROMPT)]
        votes = votes.iloc[rng.permutation(len(votes))]
        # Two votes on a prompt at most, so that many prompts are read; judges see both orders of a pair, which is once.
        votes = votes.groupby(votes.prompt.map(tuple), sort=False).head(2)
        parts.append(votes.iloc[rng.permutation(len(votes))[:wanted]])
    together: Frame = pd.concat(parts, ignore_index=True)
    topic = [_topic(dataset, category) for dataset, category in zip(together.dataset, together.category, strict=True)]
    votes = together.assign(topic=topic, question_id=[f"public-{number}" for number in range(len(together))])
    votes = votes.iloc[rng.permutation(len(votes))].reset_index(drop=True)
    return votes[["question_id", "prompt", "model_a", "model_b", "winner", "topic", "dataset"]]


def _topic(dataset: str, category: str) -> str:
    if dataset == "oasst":
        return "requests" if category == "English" else "requests in other languages"
    return _TOPICS.get(category, "knowledge")


def sample_scores(data: Path) -> Frame:
    """Return graded answers of eleven models to some prompts, with what each call cost in dollars."""
    source: Source = next(source for source in sources() if source.name == "routerbench")
    names = Names.load()
    answers: Frame = pd.read_parquet(data / source.file)
    answers = answers[answers.prompt.str.len().le(_LONGEST_PROMPT)]
    drawn = np.random.default_rng(_SEED).permutation(answers.question_id.unique())[:_GRADED_PROMPTS]
    answers = answers[answers.question_id.isin(drawn)].assign(
        model=[names.joined(name, source.name) for name in answers[answers.question_id.isin(drawn)].model]
    )
    answers = answers.assign(category=answers["category"].fillna(answers["source"]))
    return answers[["prompt", "category", "model", "score", "cost"]].reset_index(drop=True)


if __name__ == "__main__":
    main()
