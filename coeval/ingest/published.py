"""Published data sets as benchmarks: a row, in the form in which it is published, becomes an item.

Attributes are what a row says of itself (subject, language, level) or what can be read off it (length); a sample is
drawn evenly over them. Labels and numbers are compared without a judge, names with the reference's alternatives.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from coeval.errors import RunInputError
from coeval.ingest.adapters import (
    BENCHMARKS,
    FACTORS,
    MMLU,
    BadRowError,
    Benchmark,
    BenchmarkItem,
    choice_item,
    options_of,
    text_of,
)
from p2l.common.cli import nearest

SAMPLE = 620
"""Items of a published data set, unless `--limit` says otherwise."""
_SEED = 42
Row = Mapping[str, Any]
Read = Callable[[Row, int], BenchmarkItem | None]
_LENGTHS = ((150, "short"), (500, "medium"))  # words


def _length(text: str) -> str:
    words = len(text.split())
    return next((name for most, name in _LENGTHS if words < most), "long")


def _id(row: Row, number: int, *keys: str) -> str:
    value = next((row[key] for key in keys if row.get(key) not in (None, "")), number)
    return str(value)


def _free(prompt: str, reference: str, identity: str, **attributes: Any) -> BenchmarkItem:
    named = {name: value for name, value in attributes.items() if value not in (None, "")}
    return BenchmarkItem(identity, prompt.strip(), reference.strip(), named)


def _alternatives(values: Any) -> str:
    texts = [str(value).strip() for value in values or () if str(value).strip()]
    if not texts:
        raise BadRowError("no answers")
    return " | ".join(dict.fromkeys(texts))


def _summary(source: str, target: str) -> Read:
    def read(row: Row, number: int) -> BenchmarkItem:
        text = text_of(row, source)
        return _free(text, text_of(row, target), _id(row, number, "id"), length=_length(text))

    return read


def _code(row: Row, number: int) -> BenchmarkItem:
    code = text_of(row, "func_code_string", "whole_func_string", "code")
    about = text_of(row, "func_documentation_string", "docstring")
    return _free(code, about, str(number), language=row.get("language"), length=_length(code))


def _email(row: Row, number: int) -> BenchmarkItem:
    body = text_of(row, "email_body")
    return _free(f"Subject: {text_of(row, 'subject_line')}", body, str(number), length=_length(body))


def _table(row: Row, number: int) -> BenchmarkItem:
    table = row.get("table")
    if not isinstance(table, Mapping) or not table.get("header"):
        raise BadRowError("no table with a header")
    rows = [table["header"], ["---"] * len(table["header"]), *table.get("rows", ())]
    text = "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in rows)
    size = "small" if len(rows) < 12 else "large"
    return _free(
        f"{text}\n\n{text_of(row, 'question')}", _alternatives(row.get("answers")), _id(row, number, "id"), table=size
    )


def _arc(row: Row, number: int) -> BenchmarkItem:
    choices = row.get("choices")
    if not isinstance(choices, Mapping):
        raise BadRowError("no choices")
    texts, labels = [str(one) for one in choices.get("text", ())], [str(one) for one in choices.get("label", ())]
    answer = str(row.get("answerKey"))
    if answer not in labels:
        raise BadRowError(f"answerKey {answer[:10]!r} is not a label")
    return choice_item(_id(row, number, "id"), text_of(row, "question"), texts, labels.index(answer), {})


def _race(row: Row, number: int) -> BenchmarkItem:
    question = f"{text_of(row, 'article')}\n\n{text_of(row, 'question')}"
    level = re.split(r"\d", str(row.get("example_id", "")))[0]
    identity = f"{_id(row, number, 'example_id')}-{number}"  # a text has several questions
    attributes = {"level": level} if level in ("high", "middle") else {}
    return choice_item(identity, question, options_of(row.get("options")), row.get("answer"), attributes)


def _sciq(row: Row, number: int) -> BenchmarkItem:
    right = text_of(row, "correct_answer")
    options = sorted([right, *(text_of(row, f"distractor{place}") for place in (1, 2, 3))])
    return choice_item(str(number), text_of(row, "question"), options, options.index(right), {})


def _logiqa(row: Row, number: int) -> BenchmarkItem:
    question = f"{text_of(row, 'context')}\n\n{text_of(row, 'query', 'question')}"
    answer = row.get("correct_option", row.get("answer"))
    return choice_item(str(number), question, options_of(row.get("options")), answer, {})


def _winogrande(row: Row, number: int) -> BenchmarkItem | None:
    if str(row.get("answer")) not in ("1", "2"):
        return None  # of the test split, whose answers are kept secret
    options = [text_of(row, "option1"), text_of(row, "option2")]
    question = f"Which fits the gap?\n\n{text_of(row, 'sentence')}"
    return choice_item(str(number), question, options, int(str(row["answer"])) - 1, {})


def _copa(row: Row, number: int) -> BenchmarkItem | None:
    if row.get("label") not in (0, 1):
        return None
    kind = text_of(row, "question")
    question = f"{text_of(row, 'premise')}\n\nWhich is the more likely {kind}?"
    options = [text_of(row, "choice1"), text_of(row, "choice2")]
    return choice_item(_id(row, number, "idx"), question, options, row["label"], {"asked": kind})


def _cosmos(row: Row, number: int) -> BenchmarkItem | None:
    if row.get("label") not in (0, 1, 2, 3):
        return None
    question = f"{text_of(row, 'context')}\n\n{text_of(row, 'question')}"
    options = [text_of(row, f"answer{place}") for place in range(4)]
    return choice_item(_id(row, number, "id"), question, options, row["label"], {})


def _bbq(row: Row, number: int) -> BenchmarkItem:
    question = f"{text_of(row, 'context')}\n\n{text_of(row, 'question')}"
    options = [text_of(row, f"ans{place}") for place in range(3)]
    names = {"category": "category", "context_condition": "context", "question_polarity": "polarity"}
    attributes = {name: str(row[key]) for key, name in names.items() if row.get(key)}
    identity = "-".join(part for part in (str(row.get("category", "")), _id(row, number, "example_id")) if part)
    return choice_item(identity, question, options, row.get("label"), attributes)


_OPTION = re.compile(r"([a-e]) \) (.*?)(?= , [a-e] \) |$)")


def _mathqa(row: Row, number: int) -> BenchmarkItem:
    options = dict(_OPTION.findall(text_of(row, "options")))
    answer = text_of(row, "correct")
    if answer not in options:
        raise BadRowError(f"correct {answer[:10]!r} is none of the options")
    attributes = {"category": str(row["category"])} if row.get("category") else {}
    letters = sorted(options)
    texts = [options[letter].strip() for letter in letters]
    return choice_item(str(number), text_of(row, "Problem"), texts, letters.index(answer), attributes)


def _math(row: Row, number: int) -> BenchmarkItem:
    solution = text_of(row, "solution")
    answer = _boxed(solution)
    attributes = {"answer": answer, "level": row.get("level"), "subject": row.get("type", row.get("subject"))}
    return _free(text_of(row, "problem"), f"{solution}\n#### {answer}", _id(row, number, "unique_id"), **attributes)


def _boxed(solution: str) -> str:
    """Return what is in the last box of a solution in LaTeX."""
    start = solution.rfind("\\boxed{")
    depth, end = 1, start + len("\\boxed{")
    while start >= 0 and depth and end < len(solution):
        depth += {"{": 1, "}": -1}.get(solution[end], 0)
        end += 1
    if start < 0 or depth:
        raise BadRowError("no answer in \\boxed{}")
    return solution[start + len("\\boxed{") : end - 1].strip()


def _mgsm(row: Row, number: int) -> BenchmarkItem:
    answer = str(row.get("answer_number", "")).replace(",", "").strip()
    if not answer:
        raise BadRowError("no answer_number")
    worked = str(row.get("answer") or "").strip()
    question = text_of(row, "question")
    return _free(question, f"{worked}\n#### {answer}", str(number), answer=answer, length=_length(question))


def _mbpp(row: Row, number: int) -> BenchmarkItem:
    tests = "\n".join(map(str, row.get("test_list") or ()))
    prompt = f"{text_of(row, 'text', 'prompt')}\n\nIt has to pass:\n{tests}"
    return _free(prompt, text_of(row, "code"), _id(row, number, "task_id"), length=_length(text_of(row, "code")))


def _bbh(row: Row, number: int) -> BenchmarkItem:
    return _free(text_of(row, "input"), text_of(row, "target"), str(number), subject=row.get("task"))


def _nli(row: Row, number: int) -> BenchmarkItem | None:
    labels = ("entailment", "neutral", "contradiction")
    value = row.get("label")
    label = labels[value] if isinstance(value, int) and 0 <= value < 3 else value
    if label not in labels:
        return None
    prompt = f"Premise: {text_of(row, 'premise')}\nHypothesis: {text_of(row, 'hypothesis')}"
    return _free(prompt, str(label), _id(row, number, "pairID"), label=label, genre=row.get("genre"))


def _claim(labels: Mapping[str, str], *keys: str) -> Read:
    def read(row: Row, number: int) -> BenchmarkItem | None:
        value = next((row[key] for key in keys if row.get(key) is not None), None)
        if value is None or str(value) not in labels:
            return None
        label = labels[str(value)]  # of the claim, which has a row for each piece of evidence
        return _free(f"Claim: {text_of(row, 'claim')}", label, _id(row, number, "id"), label=label)

    return read


def _trivia(row: Row, number: int) -> BenchmarkItem:
    answer = row.get("answer")
    if not isinstance(answer, Mapping):
        raise BadRowError("no answer with a value")
    names = _alternatives([answer.get("value"), *(answer.get("aliases") or ())])
    return _free(text_of(row, "question"), names, _id(row, number, "question_id"))


def _squad(row: Row, number: int) -> BenchmarkItem:
    answers = row.get("answers")
    texts = answers.get("text") if isinstance(answers, Mapping) else None
    reference = _alternatives(texts) if texts else "unanswerable"
    prompt = f"{text_of(row, 'context')}\n\n{text_of(row, 'question')}"
    return _free(prompt, reference, _id(row, number, "id"), answerable="yes" if texts else "no")


def _nq(row: Row, number: int) -> BenchmarkItem:
    return _free(text_of(row, "question"), _alternatives(row.get("answer")), str(number))


def _narrative(row: Row, number: int) -> BenchmarkItem:
    document, question = row.get("document"), row.get("question")
    if not isinstance(document, Mapping) or not isinstance(question, Mapping):
        raise BadRowError("no document and question")
    plot = document.get("summary")
    prompt = f"{text_of(plot if isinstance(plot, Mapping) else {}, 'text')}\n\n{text_of(question, 'text')}"
    answers = [one.get("text") for one in row.get("answers") or () if isinstance(one, Mapping)]
    return _free(prompt, _alternatives(answers), str(number), kind=document.get("kind"))


_ONE_WORD = "The label alone."
_SHORT = "The answer alone: a name, a number or a few words."
_RIGHT = {"correctness": "The answer is the right one."}
_GOOD_SUMMARY = {
    "faithfulness": "Nothing is said that the text does not say.",
    "coverage": "What matters most in the text is there.",
    "brevity": "It is as short as what it says allows.",
}
_METRICS = {
    "bertscore": "closeness in meaning to the reference",
    "bleu": "words in common with the reference",
    "exact_match": "the reference, or one of its alternatives, word for word",
}


def _set(
    name: str,
    hub: str,
    task: str,
    read: Read,
    about: tuple[str, str],
    rubric: Mapping[str, str],
    *,
    split: str = "test",
    metric: str | None = None,
    label: str | None = None,
) -> Benchmark:
    whole: dict[str, Any] = dict(rubric)
    if metric is not None:
        whole[FACTORS[metric]] = {"metric": metric, "description": f"{_METRICS[metric]}."}
    labels = () if label is None else (label,)
    return Benchmark(name, task, split, *about, whole, read, {}, labels, metric, sample=SAMPLE, hub=hub)


def _choose(name: str, hub: str, task: str, about: str, read: Read, split: str = "test") -> Benchmark:
    return _set(
        name, hub, task, read, (about, MMLU.output_description), MMLU.rubric, split=split, label="correct_answer"
    )


def _name(name: str, hub: str, task: str, about: str, read: Read, split: str = "test") -> Benchmark:
    return _set(name, hub, task, read, (about, _SHORT), _RIGHT, split=split, metric="exact_match")


def _shorten(name: str, hub: str, about: str, read: Read) -> Benchmark:
    out = "A summary of one to three sentences."
    return _set(name, hub, "text_summarization", read, (about, out), _GOOD_SUMMARY, metric="bertscore")


_NUMBER = (
    "Solve a problem of mathematics.",
    "The steps, one a line, then a last line `#### ` followed by the answer alone.",
)
_WORKED = {**_RIGHT, "reasoning": "Every step follows from those before and from the problem."}
_FEVER = {one: one for one in ("SUPPORTS", "REFUTES", "NOT ENOUGH INFO")}
_SCIFACT = {"SUPPORT": "SUPPORTS", "CONTRADICT": "REFUTES", "": "NOT ENOUGH INFO"}
_VERDICT = f"One of {', '.join(_FEVER)}."
_SETS = (
    _shorten("xsum", "EdinburghNLP/xsum", "Sum up a news article in one sentence.", _summary("document", "summary")),
    _shorten(
        "cnn_dailymail", "abisee/cnn_dailymail:3.0.0", "Sum up a news article.", _summary("article", "highlights")
    ),
    _shorten("samsum", "knkarthick/samsum", "Sum up a conversation of messages.", _summary("dialogue", "summary")),
    _set(
        "codesearchnet",
        "code-search-net/code_search_net:all",
        "code_explanation",
        _code,
        ("Explain what a function does.", "One paragraph, as in a docstring."),
        {"accuracy": "What is said of the code is true.", "completeness": "Arguments, result and purpose are told."},
        metric="bleu",
    ),
    _set(
        "aeslc",
        "Yale-LILY/aeslc",
        "email_composition",
        _email,
        ("Write the e-mail that belongs to a subject line.", "The body of the e-mail."),
        {"relevance": "It is about its subject.", "tone": "It reads as one colleague writes to another."},
        metric="bertscore",
    ),
    _set(
        "mbpp",
        "google-research-datasets/mbpp:full",
        "python_problems",
        _mbpp,
        ("Write a Python function.", "The function alone, without explanation."),
        {"correctness": "The function passes the tests.", "code_quality": "The code is readable and short."},
        metric="bleu",
    ),
    _set(
        "narrativeqa",
        "deepmind/narrativeqa",
        "story_questions",
        _narrative,
        ("Answer a question about a story.", _SHORT),
        _RIGHT,
        metric="bleu",
    ),
    _name(
        "wikitablequestions",
        "stanfordnlp/wikitablequestions:random-split-1",
        "data_interpretation",
        "Answer from a table.",
        _table,
    ),
    _name("bigbench_hard", "SaylorTwift/bbh:*", "hard_reasoning", "Solve a puzzle of reasoning.", _bbh),
    _name(
        "trivia_qa", "mandarjoshi/trivia_qa:rc.nocontext", "trivia", "Answer a trivia question.", _trivia, "validation"
    ),
    _name(
        "squad_v2",
        "rajpurkar/squad_v2",
        "reading_comprehension",
        "Answer from a passage, in its words; say `unanswerable` where it does not tell.",
        _squad,
        "validation",
    ),
    _name("nq_open", "google-research-datasets/nq_open", "open_questions", "Answer a question.", _nq, "validation"),
    _choose("arc_challenge", "allenai/ai2_arc:ARC-Challenge", "science_questions", "Answer a science question.", _arc),
    _choose("race", "ehovy/race:all", "exam_reading", "Answer a question about a text.", _race),
    _choose("sciq", "allenai/sciq", "school_science", "Answer a question of school science.", _sciq),
    _choose("logiqa", "lucasmccabe/logiqa", "logical_reasoning", "Draw the logical conclusion.", _logiqa),
    _choose(
        "winogrande",
        "allenai/winogrande:winogrande_xl",
        "pronoun_resolution",
        "Choose what fills the gap.",
        _winogrande,
        "validation",
    ),
    _choose("copa", "aps/super_glue:copa", "causes_and_effects", "Choose cause or effect.", _copa, "validation"),
    _choose(
        "cosmos_qa", "allenai/cosmos_qa", "reading_between_lines", "Read between the lines.", _cosmos, "validation"
    ),
    _choose("bbq", "heegyu/bbq:*", "social_bias", "Answer from what is told, and from nothing else.", _bbq),
    _choose("mathqa", "regisss/math_qa", "quantitative_problems", "Solve a problem of an exam.", _mathqa),
    _set("math", "nlile/hendrycks-MATH-benchmark", "competition_mathematics", _math, _NUMBER, _WORKED, label="answer"),
    _set("mgsm", "juletxara/mgsm:en", "multilingual_mathematics", _mgsm, _NUMBER, _WORKED, label="answer"),
    _set(
        "multinli",
        "nyu-mll/multi_nli",
        "natural_language_inference",
        _nli,
        ("Does the hypothesis follow from the premise? entailment, neutral or contradiction.", _ONE_WORD),
        _RIGHT,
        split="validation_matched",
        label="label",
    ),
    _set(
        "fever",
        "fever/fever:v1.0",
        "fact_checking",
        _claim(_FEVER, "label"),
        ("Check a claim against what an encyclopedia says.", _VERDICT),
        _RIGHT,
        split="labelled_dev",
        label="label",
    ),
    _set(
        "scifact",
        "allenai/scifact:claims",
        "scientific_claims",
        _claim(_SCIFACT, "evidence_label", "label"),
        ("Check a scientific claim against the literature.", _VERDICT),
        _RIGHT,
        split="validation",
        label="label",
    ),
)
PUBLISHED: Mapping[str, Benchmark] = {one.name: one for one in _SETS}
"""Name -> data set."""
ALL: Mapping[str, Benchmark] = {**BENCHMARKS, **PUBLISHED}
"""Name -> benchmark that `coeval ingest --benchmarks` takes."""


def benchmark(name: str) -> Benchmark:
    """Return a benchmark by its name. Raise RunInputError if there is none."""
    if name not in ALL:
        hint = nearest(name, ALL) or f"; there are {', '.join(ALL)}"
        raise RunInputError(f"--benchmarks: there is no adapter {name!r}{hint}; for a file of your own use --dataset")
    return ALL[name]


def stratified(items: Iterable[BenchmarkItem], number: int, labels: Sequence[str] = ()) -> list[BenchmarkItem]:
    """Return a sample spread evenly over the combinations of attributes, labels aside, in the order of the rows.

    What a combination lacks the others give; a larger sample holds a smaller one of the same rows.
    """
    rows = list(items)
    strata: dict[tuple[tuple[str, str], ...], list[int]] = defaultdict(list)
    for place, item in enumerate(rows):
        named = ((name, str(value)) for name, value in item.attributes.items() if name not in labels)
        strata[tuple(sorted(named))].append(place)
    rng = random.Random(_SEED)
    ranked: list[tuple[int, int, int]] = []  # rank within its stratum, stratum, row
    for stratum, key in enumerate(sorted(strata)):
        places = strata[key]
        rng.shuffle(places)
        ranked += [(rank, stratum, place) for rank, place in enumerate(places)]
    return [rows[place] for place in sorted(place for _, _, place in sorted(ranked)[:number])]
