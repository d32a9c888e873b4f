"""Pairs for preference training: chosen and rejected answers, ranks and ratings of several models' answers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from typing import NamedTuple

from p2l.votes.kinds.kind import Kind, Row, Sample
from p2l.votes.kinds.tables import one_text
from p2l.votes.kinds.texts import RowError, prompt_turns, unquoted
from p2l.votes.kinds.values import NoVerdictError, answer_text, first_of, grade, identifier, measures, name_of

_CHOSEN = ("chosen_model", "chosen-model", "chosen_model_name", "model_chosen", "chosen_policy", "chosen_source")
_REJECTED = (
    "rejected_model",
    "rejected-model",
    "rejected_model_name",
    "model_rejected",
    "rejected_policy",
    "rejected_source",
)
_STRONGEST = 3  # preference of HelpSteer
_NECTAR_TURN = re.compile(r"\s*(?:^|\n\n)(Human|Assistant):\s?")


def _sided(key: str, better: Row, worse: Row) -> Row:
    """Return a vote that the better answer won, on a side drawn by `key`: the file does not say who was shown where."""
    swapped = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[0] % 2 == 1
    sides = (worse, better) if swapped else (better, worse)
    vote: Row = {"winner": "model_b" if swapped else "model_a"}
    for side, answer in zip("ab", sides, strict=True):
        vote[f"model_{side}"] = answer["model"]
        vote |= measures(answer.get("text"), side)
    return vote


def _prompt_of(row: Row) -> list[str]:
    """Return the prompt, or what the user says in the chosen conversation."""
    prompt = first_of(row, ("prompt", "instruction", "question", "input"))
    return prompt_turns(prompt if prompt is not None else row.get("chosen"), "prompt")


def _chosen(row: Row) -> Iterator[Row]:
    prompt = _prompt_of(row)
    better = {"model": name_of(first_of(row, _CHOSEN), "chosen_model"), "text": answer_text(row.get("chosen"))}
    worse = {"model": name_of(first_of(row, _REJECTED), "rejected_model"), "text": answer_text(row.get("rejected"))}
    if better["model"] == worse["model"]:
        raise NoVerdictError("both answers are by one model")
    yield {
        "prompt": prompt,
        **_sided(repr((prompt, better["text"])), better, worse),
        "question_id": identifier(first_of(row, ("id", "prompt_id", "comparison_id"))),
        "category": identifier(first_of(row, ("subset", "category"))),
    }


def _reward_bench_2(row: Row) -> Iterator[Row]:
    """Yield a vote for each right answer over each wrong one; models stand in the order of chosen, then rejected."""
    answers = [unquoted(row.get(name)) for name in ("chosen", "rejected")]
    models = unquoted(row.get("models"))
    if not all(isinstance(texts, list) for texts in (*answers, models)):
        raise RowError("chosen, rejected and models must be lists")
    right, wrong = answers
    if len(models) != len(right) + len(wrong):
        raise RowError(f"models names {len(models)} models of {len(right) + len(wrong)} answers")
    given = [
        {"model": name_of(model, "one of models"), "text": answer_text(text)}
        for model, text in zip(models, [*right, *wrong], strict=True)
    ]
    prompt = prompt_turns(row.get("prompt"))
    pairs = list(product(given[: len(right)], given[len(right) :]))
    if all(better["model"] == worse["model"] for better, worse in pairs):
        raise NoVerdictError("all answers are by one model")
    for better, worse in pairs:
        if better["model"] != worse["model"]:
            yield {
                "prompt": prompt,
                **_sided(repr((prompt, better, worse)), better, worse),
                "question_id": identifier(row.get("id")),
                "category": identifier(row.get("subset")),
            }


def _rating(completion: Row) -> float | None:
    """Return a rating as a share of the best: overall it is of 10, and the mean of the aspects of 5."""
    for name, best in (("overall_score", 10.0), ("fine-grained_score", 5.0)):
        if completion.get(name) is not None:
            return grade(completion[name], name) / best
    return None


def _ultra_feedback(row: Row) -> Iterator[Row]:
    completions = row.get("completions")
    if not isinstance(completions, list):
        raise RowError("completions must be a list of {model, response, overall_score}")
    prompt = one_text(row.get("instruction"), "instruction")
    scores = [_rating(completion) for completion in completions]
    if all(score is None for score in scores):
        raise NoVerdictError("no overall_score")
    for completion, score in zip(completions, scores, strict=True):
        if score is not None:
            yield {
                "prompt": prompt,
                "model": name_of(completion.get("model"), "model of a completion"),
                "score": score,
                "category": identifier(row.get("source")),
            }


def _nectar(row: Row) -> Iterator[Row]:
    answers = row.get("answers")
    if not isinstance(answers, list) or len(answers) < 2:
        raise RowError("answers must be a list of {model, answer, rank}")
    pieces = _NECTAR_TURN.split(str(row.get("prompt")))
    human = [text.strip() for who, text in zip(pieces[1::2], pieces[2::2], strict=False) if who == "Human"]
    prompt = human or prompt_turns(row.get("prompt"))
    ranked = [
        (
            grade(answer.get("rank"), "rank"),
            {"model": name_of(answer.get("model"), "model"), "text": answer.get("answer")},
        )
        for answer in answers
    ]
    for (rank, first), (other_rank, second) in combinations(ranked, 2):
        if first["model"] == second["model"]:
            continue
        better, worse = (first, second) if rank <= other_rank else (second, first)
        vote = {"prompt": prompt, "source": "gpt-4", **_sided(repr((prompt, better, worse)), better, worse)}
        yield vote | ({"winner": "tie"} if rank == other_rank else {})


class _Pairs(NamedTuple):
    """Published pairs of answers with a preference, whose models are not named: columns of a user's name them."""

    prompt: str
    answers: tuple[str, str]
    preference: str
    # (preference) -> outcome: of a number from -3 (the first answer is much better) to 3, or of 1 for the first, else 0
    outcome: Callable[[float], str]
    category: str = ""


def _by_sign(preference: float) -> str:
    if not -_STRONGEST <= preference <= _STRONGEST:
        raise RowError(f"preference is {preference:g}; it is between -3 (the first answer) and 3 (the second)")
    return "tie" if preference == 0 else "model_b" if preference > 0 else "model_a"


def _by_first(preference: float) -> str:
    if preference not in (0, 1):
        raise RowError(f"labels is {preference:g}; it is 1 where the first answer was preferred, else 0")
    return "model_a" if preference == 1 else "model_b"


def _votes_of_pairs(pairs: _Pairs) -> Callable[[Row], Iterator[Row]]:
    """Return the reading of a row whose models stand in columns model_a and model_b."""

    def convert(row: Row) -> Iterator[Row]:
        vote: Row = {
            "prompt": prompt_turns(row.get(pairs.prompt), pairs.prompt),
            "model_a": name_of(row.get("model_a"), "model_a"),
            "model_b": name_of(row.get("model_b"), "model_b"),
            "winner": pairs.outcome(grade(row.get(pairs.preference), pairs.preference)),
            "category": identifier(row.get(pairs.category)),
        }
        if row.get(pairs.category) == "code":  # whose language is one of programs
            vote["language"] = None
        for side, answer in zip("ab", pairs.answers, strict=True):
            vote |= measures(answer_text(row.get(answer)), side)
        yield vote

    return convert


def _paired(name: str, about: str, pairs: _Pairs, sample: str) -> tuple[Kind, Kind]:
    """Return the kind of such pairs with the models in columns, and that without, which holds no votes."""
    columns = (pairs.prompt, *pairs.answers, pairs.preference)
    first, second = pairs.answers
    return (
        Kind(
            name=name,
            about=about,
            gives="votes",
            recognise=lambda table: table.has("model_a", "model_b", *columns),
            reads=f"{pairs.preference} -> winner, {pairs.prompt} -> prompt, {first}, {second} -> lengths",
            convert=_votes_of_pairs(pairs),
            sample=sample,
        ),
        _nameless(
            f"{name}-nameless",
            about,
            columns,
            sample.replace('"model_a": "ant", "model_b": "bee", ', ""),
            needs=f"add columns of the models that gave {first} and {second}, and name them by --columns "
            "model_a=NAME,model_b=NAME",
        ),
    )


def _names_chosen(sample: Sample) -> bool:
    columns = sample.columns
    return {"chosen", "rejected"} <= columns and bool(columns & {*_CHOSEN}) and bool(columns & {*_REJECTED})


def _nameless(name: str, about: str, columns: Sequence[str], sample: str, needs: str) -> Kind:
    """Return a kind of published answers that names no models, so that no leaderboard can be made of it."""
    return Kind(
        name=name,
        about=about,
        gives="votes",
        recognise=lambda table: table.has(*columns),
        sample=sample,
        refusal=f"does not say which models gave the answers, so it holds no votes between models; {needs}",
    )


KINDS = (
    Kind(
        name="chosen-rejected",
        about="chosen and rejected answers with their models",
        gives="votes",
        recognise=_names_chosen,
        reads="chosen_model and rejected_model -> models, on sides drawn by the row, chosen, rejected -> lengths",
        convert=_chosen,
        sample='{"prompt": "Name a colour", "chosen": "Blue", "chosen_model": "ant", "rejected": "Cow", '
        '"rejected_model": "bee"}\n...',
    ),
    Kind(
        name="reward-bench-2",
        about="RewardBench 2's right and wrong answers",
        gives="votes",
        recognise=lambda sample: sample.has("prompt", "chosen", "rejected", "models"),
        reads="models -> those of chosen, then of rejected, each right answer over each wrong one -> a vote, subset -> "
        "category",
        convert=_reward_bench_2,
        sample='{"id": "1", "prompt": "Name a colour", "chosen": ["Blue"], "rejected": ["Cow"], "num_correct": 1,\n'
        '"num_incorrect": 1, "total_completions": 2, "models": ["ant", "bee"], "subset": "Factuality"}',
    ),
    Kind(
        name="ultra-feedback",
        about="UltraFeedback's ratings",
        gives="scores",
        recognise=lambda sample: sample.has("instruction", "completions"),
        marks=("completions",),
        needs=("instruction",),
        reads="overall_score / 10, else fine-grained_score / 5 -> score, instruction -> prompt, source -> category",
        convert=_ultra_feedback,
        sample='{"source": "sharegpt", "instruction": "Name a colour", "completions": [{"model": "ant", "response": '
        '"Blue", "overall_score": 8.0}, {"model": "bee", "response": "Cow", "overall_score": 2.0}]}\n...',
    ),
    Kind(
        name="nectar",
        about="Nectar's ranks",
        gives="votes",
        recognise=lambda sample: (
            sample.has("prompt", "answers") and all(isinstance(row.get("answers"), list) for row in sample.rows)
        ),
        reads="ranks of answers -> a vote for each pair, Human turns -> prompt",
        convert=_nectar,
        sample='{"prompt": "\\n\\nHuman: Name a colour\\n\\nAssistant: ", "answers": [{"answer": "Blue", "model": '
        '"ant", '
        '"rank": 1.0}, {"answer": "Cow", "model": "bee", "rank": 2.0}]}\n...',
    ),
    *_paired(
        "help-steer2",
        "HelpSteer2's preferences",
        _Pairs("prompt", ("response_1", "response_2"), "preference_strength", _by_sign),
        '{"split": "train", "model_a": "ant", "model_b": "bee", "prompt": "Name a colour", "response_1": "Blue",\n'
        '"response_2": "Cow", "preference_strength": -2, "preference_statement": "Response 1 is better."}',
    ),
    *_paired(
        "help-steer3",
        "HelpSteer3's preferences",
        _Pairs("context", ("response1", "response2"), "overall_preference", _by_sign, category="domain"),
        '{"domain": "general", "language": "english", "model_a": "ant", "model_b": "bee", "context":\n'
        '[{"role": "user", "content": "Name a colour"}], "response1": "Blue", "response2": "Cow", '
        '"overall_preference": -2}',
    ),
    *_paired(
        "shp",
        "SHP's preferences between answers of people on Reddit",
        _Pairs("history", ("human_ref_A", "human_ref_B"), "labels", _by_first, category="domain"),
        '{"post_id": "1", "domain": "askbaking", "model_a": "ant", "model_b": "bee", "history": "How long?",\n'
        '"human_ref_A": "An hour", "human_ref_B": "Two", "labels": 1, "score_A": 9, "score_B": 4}',
    ),
    _nameless(
        "help-steer",
        "HelpSteer's ratings of single answers",
        ("prompt", "response", "helpfulness", "verbosity"),
        "prompt,response,helpfulness,correctness,coherence,complexity,verbosity\nName a colour,Blue,4,4,4,1,1",
        needs="add a column of the models, and name it and a rating by --columns model=NAME,score=helpfulness",
    ),
    _nameless(
        "chosen-rejected-nameless",
        "chosen and rejected answers",
        ("chosen", "rejected"),
        '{"prompt": "Name a colour", "chosen": "Blue", "rejected": "Cow"}\n...',
        needs="add columns of the models, and name them by --columns chosen_model=NAME,rejected_model=NAME",
    ),
)
