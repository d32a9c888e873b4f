"""Sample votes with prompts that a person can read, made on the spot: something to try every command on.

Eight made-up models, five of them the best at one kind of prompt each. Outcomes are drawn under grounded Rao-Kupper
from the coefficients below, so what a model should learn from them can be read here. Answers' scores and costs, for
`p2l eval-routing`, follow from the same coefficients.
"""

from __future__ import annotations

import itertools
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from p2l.common.errors import ConfigError
from p2l.likelihood import get
from p2l.votes import WINNERS

FloatArray: TypeAlias = NDArray[np.float64]

TOPICS = ("code", "math", "poetry", "translation", "cooking", "history")
# Coefficients by topic, in the order of TOPICS, and dollars for an answer.
_MODELS = {
    "chef-8b": ((-0.8, -0.7, 0.2, 0.0, 3.3, 0.4), 0.0004),
    "coder-32b": ((3.5, 1.4, -1.0, -0.2, -0.7, -0.3), 0.0016),
    "flagship": ((1.8, 1.7, 1.4, 1.6, 1.5, 2.2), 0.0120),
    "mathematician-14b": ((1.3, 3.4, -1.1, -0.4, -0.8, 0.1), 0.0008),
    "mini": ((0.5, 0.4, 0.5, 0.4, 0.6, 0.5), 0.0002),
    "nano": ((-0.6, -0.9, -0.2, -0.5, 0.0, -0.3), 0.0001),
    "poet-8b": ((-1.1, -1.0, 3.3, 0.9, 0.5, 0.3), 0.0004),
    "polyglot-14b": ((0.1, 0.0, 0.7, 3.3, 0.3, 0.9), 0.0008),
}
MODELS = tuple(_MODELS)
_ETA = -0.2  # of grk: about one vote in seven is a tie between good answers
_FIRST_DAY = 1_735_689_600.0  # 2025-01-01, in seconds
_DAYS = 90
_PROMPTS_GRADED = 150  # of each topic

# Each topic: templates, and what may stand in their places. A request may open and end in several ways, so that no
# wording belongs to one topic.
_OPENINGS = ("", "", "", "", "Please help: ", "Quick question. ", "Hello! ", "I am stuck. ", "For my homework: ")
_ENDINGS = ("", "", "", "", " Keep it short.", " Explain your answer.", " Thank you!", " In plain words, please.")
_TEMPLATES: dict[str, tuple[tuple[str, ...], dict[str, tuple[str, ...]]]] = {
    "code": (
        (
            "Write a SQL query that finds {find} in the table {table}.",
            "Write a Python function that reads {table}.csv and returns {find}.",
            "My SQL query for {find} in {table} is slow. Which index would help?",
            "Write a unit test for a function that counts {find} in {table}.",
            "How do I join {table} with another table and keep only {find}?",
            "What is wrong with my loop? It should print {find} of {table} but prints nothing.",
            "Turn this Python script for {table} into a class that stores {find}.",
            "Which data structure should hold {table} if I often need {find}?",
        ),
        {
            "find": (
                *(
                    "duplicate rows",
                    "missing values",
                    "the newest rows",
                    "customers without an order",
                    "the largest id",
                ),
                *("the average price", "all names that begin with A", "the first error"),
            ),
            "table": (
                *("orders", "customers", "invoices", "sensors", "payments", "employees", "shipments", "logins"),
                *("books", "flights", "students", "messages"),
            ),
        },
    ),
    "math": (
        (
            "Prove that {number} is {kind}.",
            "Is {number} {kind}? Show each step.",
            "How many integers below {number} are {kind}?",
            "Find the smallest integer above {number} that is {kind}.",
            "What is the chance that a random number up to {number} is {kind}?",
            "Solve x^2 - {number} = 0. Is x {kind}?",
            "The sum of two integers is {number} and one of them is {kind}. What can they be?",
            "Prove that there are infinitely many numbers like {number} that are {kind}.",
        ),
        {
            "number": ("17", "25", "91", "120", "256", "343", "500", "729", "1001", "2025", "4096", "10,000"),
            "kind": (
                *("prime", "a perfect square", "divisible by seven", "a sum of two squares", "a power of two"),
                *("even", "a perfect cube", "the product of two primes"),
            ),
        },
    ),
    "poetry": (
        (
            "Write a poem about {subject} in the style of {style}.",
            "Write four rhyming lines about {subject}.",
            "Write {style} about {subject}.",
            "Give me a first line for a song about {subject}.",
            "Rewrite 'the day was long' as {style} about {subject}.",
            "Write a sad poem about {subject} for my friend.",
            "What rhymes with the last word of 'I remember {subject}'? Make {style} of it.",
            "Finish this verse: 'And there was {subject}, waiting still,'",
        ),
        {
            "subject": (
                *("autumn rain", "a lost key", "the sea at night", "an old train", "my mother", "the first snow"),
                *("a city in summer", "the moon", "rain", "a quiet library", "love", "a winter morning"),
            ),
            "style": ("a lullaby", "a sonnet", "a haiku", "a sea shanty", "a ballad", "a nursery rhyme", "a limerick"),
        },
    ),
    "translation": (
        (
            "Translate into {language}: {text}",
            "How would a native speaker of {language} say: {text}",
            "Translate this notice into formal {language}: {text}",
            "Is there an idiom in {language} for: {text}",
            "Check my {language} translation of this sentence: {text}",
            "What is the {language} word for the main verb in: {text}",
            "Say this politely in {language}: {text}",
            "Translate into {language} and back into English: {text}",
        ),
        {
            "language": ("French", "Hindi", "Japanese", "Spanish", "Arabic", "German", "Swahili", "Italian", "Korean"),
            "text": (
                *("The museum is closed on Mondays.", "Please mind the step.", "Could you help me, please?"),
                *("We look forward to your visit.", "Better late than never.", "The meeting has been moved."),
                *("Where is the station?", "My luggage is lost.", "I would like a table for two."),
            ),
        },
    ),
    "cooking": (
        (
            "What can I cook with {first} and {second}?",
            "Give me a quick dinner recipe with {first} and {second}.",
            "How long should I roast {first} with {second}?",
            "What can I use instead of {first} in a soup with {second}?",
            "My {first} taste bitter. Would {second} help?",
            "Plan three lunches with {first}, {second} and bread.",
            "How do I store {first} so that they stay fresh?",
            "Which wine goes with {first} and {second}?",
        ),
        {
            "first": ("potatoes", "chickpeas", "salmon", "pumpkin", "rice", "aubergines", "mushrooms", "eggs", "beans"),
            "second": ("leeks", "ginger", "lemon", "yoghurt", "thyme", "peppers", "tomatoes", "cheese", "garlic"),
        },
    ),
    "history": (
        (
            "Why did {event} begin?",
            "Explain {event} to a pupil of {age}.",
            "Which three consequences of {event} should a pupil of {age} know?",
            "What do historians disagree about when they write of {event}?",
            "Who were the most important people of {event}?",
            "Write a timeline of {event}.",
            "How did {event} change everyday life?",
            "What would the world be like without {event}?",
        ),
        {
            "event": (
                *("the French Revolution", "the Bronze Age collapse", "the Black Death", "the Hanseatic League"),
                *("the Meiji Restoration", "the Silk Road", "the first Olympic Games", "the Industrial Revolution"),
                *("the fall of Rome", "the Second World War", "the Cold War", "the Renaissance"),
            ),
            "age": ("eight", "ten", "twelve", "fifteen"),
        },
    ),
}


def sample_prompts() -> dict[str, list[str]]:
    """Return all prompts of each topic, each once, in a fixed order."""
    prompts = {}
    for topic in TOPICS:
        templates, choices = _TEMPLATES[topic]
        fillings = [dict(zip(choices, words, strict=True)) for words in itertools.product(*choices.values())]
        # A template without one of the words gives the same prompt several times.
        prompts[topic] = list(
            dict.fromkeys(template.format(**filling) for template in templates for filling in fillings)
        )
    return prompts


def sample_coefs() -> FloatArray:
    """Return the true coefficients (topics, models), in the order of TOPICS and MODELS."""
    rows: list[tuple[float, ...]] = [coefs for coefs, _ in _MODELS.values()]
    coefs: FloatArray = np.array(rows, dtype=np.float64).T
    return coefs


def sample_votes(votes: int, seed: int) -> pa.RecordBatch:
    """Return votes on readable prompts, in the order of time, each by one of 200 voters; ConfigError below one."""
    if votes < 1:
        raise ConfigError(f"votes: {votes} asked for; at least 1 is needed")
    rng = np.random.default_rng(seed)
    prompts = sample_prompts()
    topic = rng.integers(len(TOPICS), size=votes)
    texts = []
    for number in topic:
        choices = prompts[TOPICS[number]]
        prompt = choices[rng.integers(len(choices))]
        opening = _OPENINGS[rng.integers(len(_OPENINGS))]
        ending = _ENDINGS[rng.integers(len(_ENDINGS))]
        texts.append(f"{opening}{prompt}{ending}")
    model_a = rng.integers(len(MODELS), size=votes)
    model_b = (model_a + rng.integers(1, len(MODELS), size=votes)) % len(MODELS)
    coefs = sample_coefs()
    probs = get("grk").probs(coefs[topic, model_a], coefs[topic, model_b], np.full(votes, _ETA))
    winner = (rng.random(votes)[:, None] > np.cumsum(probs, axis=1)[:, :-1]).sum(axis=1)
    columns = {
        "question_id": [f"sample-{number}" for number in range(votes)],
        "prompt": texts,
        "model_a": [MODELS[number] for number in model_a],
        "model_b": [MODELS[number] for number in model_b],
        "winner": [WINNERS[number] for number in winner],
        "tstamp": _FIRST_DAY + np.sort(rng.random(votes)) * _DAYS * 86_400,
        "topic": [TOPICS[number] for number in topic],
        "voter": [f"voter-{number}" for number in rng.integers(200, size=votes)],
    }
    return pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in columns.items()})


def sample_scores(seed: int) -> pa.RecordBatch:
    """Return a graded answer of each model to some prompts of each topic: 1 if it is usable, drawn by grk, else 0."""
    rng = np.random.default_rng(seed)
    coefs = sample_coefs()
    rows = []
    for topic, prompts in sample_prompts().items():
        chances = 1.0 / (1.0 + np.exp(-coefs[TOPICS.index(topic)]))
        for prompt in rng.permutation(prompts)[:_PROMPTS_GRADED]:
            scores = (rng.random(len(MODELS)) < chances).astype(float)
            for model, score, (_, cost) in zip(MODELS, scores.tolist(), _MODELS.values(), strict=True):
                rows.append({"prompt": prompt, "category": topic, "model": model, "score": score, "cost": cost})
    return pa.RecordBatch.from_pylist(rows)
