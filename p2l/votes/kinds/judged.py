"""Verdicts of models as judges: FastChat's pairs and grades, Arena-Hard, AlpacaEval, JudgeBench."""

from __future__ import annotations

import re
from collections.abc import Iterator

from p2l.votes.kinds.kind import Kind, Row, Sample
from p2l.votes.kinds.tables import one_text
from p2l.votes.kinds.texts import RowError, prompt_turns
from p2l.votes.kinds.traces import mapping
from p2l.votes.kinds.values import (
    NoVerdictError,
    answer_text,
    grade,
    identifier,
    measures,
    name_of,
    seconds,
    voter_and_source,
    whole_number,
    winner_of,
)

# The judge is shown the question between these marks.
_QUESTION = re.compile(
    r"(?:\[User Question\]|\[Question\]|<\|User Prompt\|>)\s*(?P<text>.*?)\s*"
    r"(?:\[The Start of Assistant|<\|The Start of Assistant|<\|The Start of Answer)",
    re.DOTALL,
)
_FIRST_BASELINE = "gpt-4-0314"  # of Arena-Hard v0.1, whose judgements do not name it
_VERDICTS = {"a>>b", "a>b", "a=b", "b=a", "b>a", "b>>a", "a<b", "a<<b", "b<a", "b<<a"}


def _question(text: object) -> Row:
    match = _QUESTION.search(text) if isinstance(text, str) else None
    return {"prompt": [match["text"]]} if match else {}


def _fastchat_pair(row: Row) -> Iterator[Row]:
    """Yield the verdict of a judge who saw both orders: a model wins that won one and did not lose the other."""
    points = 0
    for key in ("g1_winner", "g2_winner"):
        word = str(row.get(key)).strip().lower()
        if word not in {"model_1", "model_2", "tie"}:
            if word in {"error", "none"}:
                raise NoVerdictError("judge gave no verdict")
            raise RowError(f"{key} {word[:40]!r} is none of model_1, model_2, tie")
        points += {"model_1": 1, "model_2": -1, "tie": 0}[word]
    yield {
        **_question(row.get("g1_user_prompt")),
        "model_a": name_of(row.get("model_1"), "model_1"),
        "model_b": name_of(row.get("model_2"), "model_2"),
        # FastChat calls a verdict that turns with the order a tie.
        "winner": "model_a" if points >= 2 else "model_b" if points <= -2 else "tie",
        "question_id": identifier(row.get("question_id")),
        "turn": whole_number(row.get("turn")),
        "tstamp": seconds(row.get("tstamp")),
        **voter_and_source(row.get("judge")),
    }


def _fastchat_single(row: Row) -> Iterator[Row]:
    score = grade(row.get("score"))
    if score < 0:  # where no rating was found in the judge's words
        raise NoVerdictError("judge gave no rating")
    question, turn = identifier(row.get("question_id")), identifier(row.get("turn"))
    yield {
        "prompt": "\n\n".join(_question(row.get("user_prompt")).get("prompt", [])) or None,
        "model": name_of(row.get("model"), "model"),
        "score": score / 10.0,
        "question_id": f"{question} turn {turn}" if turn else question,
        "category": f"turn {turn}" if turn else None,
    }


def _arena_hard(row: Row) -> Iterator[Row]:
    """Yield a vote for each game: the baseline answers first in the first game and second in the second."""
    model, baseline = name_of(row.get("model"), "model"), row.get("baseline") or _FIRST_BASELINE
    games = row.get("games")
    if not isinstance(games, list) or not games:
        raise RowError("games must be a list of {judgment, score}")
    shown = (_question(game.get("user_prompt") or _shown_prompt(game)) for game in games if isinstance(game, dict))
    prompt = next((question for question in shown if question), {})
    verdicts = 0
    for number, game in enumerate(games):
        word = str((game or {}).get("score")).replace(" ", "").lower().strip("[]")
        if word in {"none", ""}:
            continue
        if word not in _VERDICTS:
            raise RowError(f"score {word[:40]!r} of game {number + 1} is no verdict such as 'A>B'")
        verdicts += 1
        first, second = (baseline, model) if number % 2 == 0 else (model, baseline)
        left, right = re.split(r"[<>=]+", word)
        better = left if ">" in word else right
        yield {
            **prompt,
            "model_a": first,
            "model_b": second,
            "winner": "tie" if "=" in word else f"model_{better}",
            "question_id": identifier(row.get("question_id") or row.get("uid")),
            "category": identifier(row.get("category")),
            "source": identifier(row.get("judge")),
        }
    if not verdicts:
        raise NoVerdictError("judge gave no verdict")


def _shown_prompt(game: Row) -> object:
    """Return what the judge was shown, of a game of v2."""
    messages = game.get("prompt")
    return messages[-1].get("content") if isinstance(messages, list) and messages else messages


def _annotator(annotator: object) -> Row:
    """Return who voted: the people of AlpacaEval's human annotations are numbers, its judges names."""
    if isinstance(annotator, int | float):
        return {"voter": identifier(annotator), "source": "human"}
    return voter_and_source(annotator)


def _alpaca(row: Row) -> Iterator[Row]:
    value = row.get("preference")
    if value is None:
        raise NoVerdictError("no preference")
    preference = grade(value, "preference")
    if not (preference == 0 or 1 <= preference <= 2):
        raise RowError(f"preference is {preference:g}; it is between 1 (first output) and 2 (second), or 0 for a tie")
    # A weighted annotator gives probabilities: those of both outputs are even at 1.5.
    winner = "tie" if preference in (0, 1.5) else "model_a" if preference < 1.5 else "model_b"
    vote: Row = {
        "prompt": prompt_turns(row.get("instruction"), "instruction"),
        "model_a": name_of(row.get("generator_1"), "generator_1"),
        "model_b": name_of(row.get("generator_2"), "generator_2"),
        "winner": winner,
        "category": identifier(row.get("dataset")),
        **_annotator(row.get("annotator")),
    }
    yield vote | measures(answer_text(row.get("output_1")), "a") | measures(answer_text(row.get("output_2")), "b")


def _judge_bench(row: Row) -> Iterator[Row]:
    """Yield how each judge did, as the benchmark counts: 1 where more orders are right than wrong."""
    label = str(row.get("label")).strip().upper()
    judgments = row.get("judgments")
    if label not in {"A>B", "B>A"} or not isinstance(judgments, list):
        raise RowError("label must be A>B or B>A, and judgments a list")
    flipped = {"A>B": "B>A", "B>A": "A>B"}
    # A judge is a way of asking and the model that is asked, which a judgment that failed does not name.
    asked = [mapping(mapping(judgment).get("judgment")).get("judge_model") for judgment in judgments]
    model = next((name for name in asked if isinstance(name, str)), None)
    points: dict[str, int] = {}
    for number, judgment in enumerate(judgments):
        judge = name_of(mapping(judgment).get("judge_name") or row.get("judge_name") or model, "judge_name")
        expected = label if number % 2 == 0 else flipped[label]
        decision = mapping(judgment).get("decision")
        points[judge] = points.get(judge, 0) + (decision == expected) - (decision == flipped[expected])
    for judge, point in points.items():
        yield {
            "prompt": one_text(row.get("question"), "question"),
            "model": judge if model in (None, judge) else f"{model} ({judge})",
            "score": float(point > 0),
            "question_id": identifier(row.get("pair_id")),
            "category": identifier(row.get("source")),
        }


def _verdict_words(row: Row) -> Iterator[Row]:
    """Yield the vote of a row of `model_1`, `model_2` and a winner."""
    vote: Row = {
        "model_a": name_of(row.get("model_1"), "model_1"),
        "model_b": name_of(row.get("model_2"), "model_2"),
        "question_id": identifier(row.get("question_id")),
        **voter_and_source(row.get("judge")),
    }
    names = {row["model_1"]: "model_a", row["model_2"]: "model_b"}
    vote["winner"] = names.get(row.get("winner")) or winner_of(row.get("winner"))
    if row.get("prompt") is not None:
        vote["prompt"] = prompt_turns(row["prompt"])
    yield vote


def _has_games(sample: Sample) -> bool:
    return sample.has("model", "judge", "games") and bool({"question_id", "uid"} & sample.columns)


KINDS = (
    Kind(
        name="fastchat-pairs",
        about="FastChat's judgements of pairs",
        gives="votes",
        recognise=lambda sample: sample.has("model_1", "model_2", "g1_winner", "g2_winner"),
        marks=("model_1", "model_2", "g1_winner"),
        needs=("g2_winner",),
        reads="model_1, model_2 -> model_a, model_b, g1_winner, g2_winner -> winner (a tie where they differ), judge "
        "-> source",
        convert=_fastchat_pair,
        sample='{"question_id": 81, "model_1": "ant", "model_2": "bee", "g1_winner": "model_1", "g2_winner": '
        '"model_1", '
        '"judge": ["gpt-4", "pair-v2"], "turn": 1, "tstamp": 1687222222.0}\n...',
    ),
    Kind(
        name="model-pairs",
        about="votes between model_1 and model_2",
        gives="votes",
        recognise=lambda sample: sample.has("model_1", "model_2", "winner"),
        marks=("model_1", "model_2"),
        needs=("winner",),
        reads="model_1, model_2 -> model_a, model_b, judge -> voter for people, else source",
        convert=_verdict_words,
        sample="prompt,model_1,model_2,winner\nName a colour,ant,bee,model_1",
    ),
    Kind(
        name="fastchat-grades",
        about="FastChat's grades of single answers",
        gives="scores",
        recognise=lambda sample: sample.has("question_id", "model", "judge", "score", "turn"),
        reads="score / 10 -> score, turn -> category",
        convert=_fastchat_single,
        sample='{"question_id": 81, "model": "ant", "judge": ["gpt-4", "single-v1"], "score": 8, "turn": 1}\n...',
    ),
    Kind(
        name="arena-hard",
        about="Arena-Hard judgements",
        gives="votes",
        recognise=_has_games,
        marks=("games", "judge"),
        needs=("model",),
        reads=f"each game -> a vote, baseline -> the other model ({_FIRST_BASELINE} where none is named), judge -> "
        f"source",
        convert=_arena_hard,
        sample='{"question_id": "q1", "model": "ant", "judge": "gpt-4-1106-preview", "games": [{"user_prompt": '
        '"<|User Prompt|>\\nHi\\n\\n<|The Start of Assistant A\'s Answer|>", "judgment": "...", "score": "B>A"}, '
        '{"judgment": "...", "score": "A>>B"}]}\n...',
    ),
    Kind(
        name="alpaca-eval",
        about="AlpacaEval annotations",
        gives="votes",
        recognise=lambda sample: sample.has("instruction", "generator_1", "generator_2", "preference"),
        marks=("instruction", "output_1", "output_2"),
        needs=("generator_1", "generator_2", "preference"),
        reads="preference below 1.5 -> model_a, annotator -> source, or voter where it is a person, output_1, "
        "output_2 -> lengths",
        convert=_alpaca,
        sample='[{"instruction": "Name a colour", "output_1": "Blue", "generator_1": "ant", "output_2": "Red", '
        '"generator_2": "bee",\n  "dataset": "helpful_base", "annotator": "alpaca_eval_gpt4", "preference": 2.0}]',
    ),
    Kind(
        name="judge-bench",
        about="JudgeBench judgements",
        gives="scores",
        recognise=lambda sample: sample.has("pair_id", "question", "label", "judgments"),
        marks=("pair_id", "response_A", "response_B"),
        needs=("judgments",),
        reads="judge_model and judge_name -> model, decision right in more orders than wrong -> score",
        convert=_judge_bench,
        sample='{"pair_id": "p1", "source": "mmlu", "question": "2 + 2?", "label": "A>B", "judgments": [{"judge_name": '
        '"ant", "decision": "A>B"}, {"judge_name": "ant", "decision": "B>A"}]}\n...',
    ),
)
