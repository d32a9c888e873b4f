"""Mock models: teachers, students and judges that answer CoEval's prompts in this process (interface `mock`).

A student's answer states its quality (`quality 0.73`); a judge reads that, adds its noise and grades by it, so a test
can check that a run recovers the planted order. Equal questions to equal models have equal answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from statistics import NormalDist
from typing import Any

from coeval.judging.prompts import PROMPTS
from coeval.parsing import LEVELS
from coeval.schema import DEFAULT, Phase, Scale, scale_of
from p2l.common.errors import ConfigError
from route.providers.base import JSON, Account, Fault, ProviderError, Timeouts
from route.providers.completions import answer_message, completion, joined_text, usage, whole_stream
from route.providers.translation import system_text

_NORMAL = NormalDist()
_SHARES = ("failure_rate", "malformed_rate")


@dataclass(frozen=True)
class _Persona:
    """A mock model."""

    # How good its answers are, in [0, 1]; or a map from parts of prompts to that: the first match counts, else
    # `default` (0.5).
    skill: float | Mapping[str, float] = 0.6
    # Standard deviation of an answer's quality around the skill, and of a judge's view around the quality.
    noise: float = 0.1
    position_bias: float = 0.0  # added by a judge to the quality of the answer that is shown first
    latency: float = 0.0  # seconds before an answer
    failure_rate: float = 0.0  # share of the requests that fail with a server error; each retry is a new draw
    malformed_rate: float = 0.0  # share of the answers in a form other than the requested one
    seed: int = 0
    text: str | None = None  # a fixed answer to everything
    model: str = ""
    attempt: int = 0  # number of a repeated question; each attempt is a new draw

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> _Persona:
        """Read a model's parameters, ignoring unknown ones, as providers do. Raise ConfigError for a wrong kind."""
        known = {key: parameters[key] for key in cls.__dataclass_fields__ if parameters.get(key) is not None}
        for key, value in known.items():
            if key == "skill" and isinstance(value, Mapping):
                for text, level in value.items():
                    _check_number(f"skill of {text!r}", level, highest=1.0)
            elif key not in ("text", "model"):
                _check_number(key, value, highest=1.0 if key in (*_SHARES, "skill") else None)
        return cls(**known)

    def skill_at(self, prompt: str) -> float:
        """Return the skill at a prompt."""
        if not isinstance(self.skill, Mapping):
            return float(self.skill)
        levels = (level for text, level in self.skill.items() if text.lower() in prompt.lower())
        return float(next(levels, self.skill.get("default", 0.5)))

    def uniform(self, *about: object) -> float:
        """Return a number in (0, 1) that only depends on the persona and the arguments."""
        text = repr((self.model, self.seed, self.attempt, *about)).encode("utf-8", "surrogatepass")
        return (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") + 0.5) / 2**64

    def error(self, *about: object) -> float:
        """Return a normal deviate times the noise, as `uniform` draws it."""
        # Neither end is in reach of `inv_cdf`, and rounding may bring a number of 64 bits there.
        return self.noise * _NORMAL.inv_cdf(min(max(self.uniform(*about), 1e-9), 1 - 1e-9)) if self.noise else 0.0


def _check_number(key: str, value: Any, highest: float | None) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    in_range = is_number and (highest is None or 0.0 <= value <= highest)
    if not in_range or (key in ("noise", "latency") and value < 0):
        expected = f"a number from 0 to {highest:g}" if highest else "a number of the right sign"
        raise ConfigError(f"mock: {key}: {value!r} is not {expected}")


_RANGE = re.compile(r"whole number from (\d+) \(worst\) to (\d+) \(best\)")
_NAMED = re.compile(r'levels, from worst to best: ((?:"[^"]+"(?:, | or )?)+)')
_SD_IN_GRADES = 0.5  # standard deviation of the alternatives to a grade, in widths of a grade
_ALTERNATIVES_SHOWN = 20


@dataclass(frozen=True)
class _ReplyForm:
    """The form and scale of reply that the last line of a judge's prompt asks for."""

    scale: Scale
    rationale: bool

    def json_grade(self, grade: str) -> Any:
        """Return a grade as a JSON value."""
        return int(grade) if self.scale.is_range else grade

    def with_rationale(self, key: str, value: Any) -> str:
        """Return a reply with a rationale first."""
        return json.dumps({"rationale": "That is how good it looks to me.", key: value}, ensure_ascii=False)


def _grade_at(scale: Scale, seen: float) -> str:
    """Return the grade for a quality: grades divide [0, 1] evenly."""
    size = len(scale.grades)
    return scale.grades[sum(seen >= place / size for place in range(1, size))]


def alternatives(scale: Scale, seen: float) -> list[tuple[str, float]]:
    """Return the likeliest grades for a quality with the logarithms of their probabilities, the likeliest first."""
    size = len(scale.grades)
    weights = [math.exp(-0.5 * ((seen * size - place - 0.5) / _SD_IN_GRADES) ** 2) for place in range(size)]
    total = sum(weights)
    grades = [(grade, math.log(weight / total)) for grade, weight in zip(scale.grades, weights, strict=True) if weight]
    return sorted(grades, key=lambda pair: -pair[1])[:_ALTERNATIVES_SHOWN]


# Prompts are recognised by the templates of `coeval.judging.prompts`, so their wording has one place.

PHASE_OF: Mapping[str, Phase] = {
    "map_target_attrs": "attribute_mapping",
    "map_nuanced_attrs": "attribute_mapping",
    "autorubric": "rubric_mapping",
    "sample": "data_generation",
    "sample_document": "data_generation",
    "test": "response_collection",
    "evaluate_single": "evaluation",
    "evaluate_per_factor": "evaluation",
    "compare": "evaluation",
}
"""Prompt -> the phase that sends it."""
_FACTOR = re.compile(r"^- ([^:\n]+):", re.MULTILINE)


@dataclass(frozen=True)
class _PromptMatch:
    """A prompt's id, with the values of its variables."""

    prompt: str
    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def factors(self) -> list[str]:
        """The names in its rubric."""
        return [name.strip() for name in _FACTOR.findall(self.values.get("rubric", ""))]

    @property
    def form(self) -> _ReplyForm:
        """The form and scale of reply that it asks for."""
        reply = self.values.get("reply", "")
        if match := _RANGE.search(reply):
            scale = scale_of(f"{match[1]}-{match[2]}")
        else:
            match = _NAMED.search(reply)
            scale = scale_of(re.findall(r'"([^"]+)"', match[1])) if match else DEFAULT
        return _ReplyForm(scale, '"rationale"' in reply)


def recognise(text: str) -> _PromptMatch:
    """Match a text with the built-in prompts.

    A text of the user's own counts as a judge's prompt if it names the three levels, else as a student's.
    """
    text = text.strip()
    for prompt in PROMPTS:
        opening, pattern = _pattern(prompt)
        match = pattern.fullmatch(text) if opening and text.startswith(opening) else None
        if match is not None:
            return _PromptMatch(prompt, match.groupdict())
    if all(level in text for level in LEVELS):
        kind = "evaluate_single" if "JSON" in text else "evaluate_per_factor"
        return _PromptMatch(kind, {"response": text, "rubric": text})
    return _PromptMatch("test", {"input": text})


@cache
def _pattern(prompt: str) -> tuple[str, re.Pattern[str]]:
    """Return the opening of a prompt, and a pattern for all of it with a group for each variable."""
    opening, parts, seen = "", list[str](), set[str]()
    for literal, name, _, _ in string.Formatter().parse(PROMPTS[prompt].strip()):
        opening = opening if parts else literal
        parts.append(re.escape(literal))
        if name is not None:
            anything = "[^\n]+" if name in ("reply", "fence") else ".*?"  # the form of a reply is the last line
            again = "(?P=fence)" if name == "fence" else f"(?:{anything})"
            parts.append(again if name in seen else f"(?P<{name}>{anything})")
            seen.add(name)
    return opening, re.compile("".join(parts), re.DOTALL)


_QUALITY = re.compile(r"quality (\d(?:\.\d+)?)")
_HINT = re.compile(r"\[([^\[\]:]+): ([^\[\]]*)\]")
_UNMARKED = 0.5  # quality of an answer that does not state it
_EQUAL_WITHIN = 0.05  # answers that differ by less are equally good
_USELESS = 0.2  # two answers below it are both useless
_TARGETS: Mapping[str, list[str]] = {
    "length": ["one line", "a paragraph", "a page"],
    "tone": ["neutral", "friendly", "formal"],
    "difficulty": ["easy", "medium", "hard"],
    "audience": ["children", "students", "experts"],
    "certainty": ["certain", "likely", "open"],
    "structure": ["prose", "list", "table"],
}
_NUANCES: Mapping[str, list[str]] = {
    "wording": ["plain", "wordy", "terse"],
    "typing": ["clean", "a few slips", "hasty"],
    "context": ["none", "some", "much"],
    "mood": ["calm", "hurried"],
    "form": ["question", "request", "statement"],
}
_FACTORS: Mapping[str, str] = {
    "accuracy": "What it says is true and follows from the input.",
    "completeness": "Nothing that was asked for is missing.",
    "clarity": "It can be understood at first reading.",
    "relevance": "It keeps to what was asked.",
    "style": "Its wording suits the reader.",
}
_TOPICS = (
    *("a bridge in the rain", "the price of bread", "a lost parcel", "the tides", "an old clock", "a school garden"),
    *("the night train", "a broken lamp", "the harvest", "a letter from abroad", "a chess problem", "the new library"),
)
_DETAILS = (
    *("wooden", "distant", "seventh", "forgotten", "crowded", "silver", "northern", "borrowed", "painted", "hollow"),
    *("midnight", "orchard", "harbour", "lantern", "violin", "copper", "granite", "meadow", "satchel", "thunder"),
)


def answer(prompt: str, system: str, parameters: Mapping[str, Any]) -> str:
    """Return a mock model's answer to the user's last message; another system prompt is a new draw."""
    persona = _Persona.of(parameters)
    if persona.text is not None:
        return persona.text
    question = recognise(prompt)
    reply = _ANSWERS[question.prompt](question, persona, f"{system}\n{prompt}")
    is_malformed = persona.malformed_rate and persona.uniform("form", system, prompt) < persona.malformed_rate
    if not is_malformed:
        return reply
    return reply[: len(reply) // 2] if reply.startswith("{") else "That is hard to say."


def quality_of(text: str) -> float:
    """Return the quality that an answer states; 0.5 without one."""
    match = _QUALITY.search(text)
    return min(float(match[1]), 1.0) if match else _UNMARKED


def _three_of(pool: Mapping[str, Any]) -> Callable[[_PromptMatch, _Persona, str], str]:
    """Return what draws three attributes or factors of a pool, in its order."""

    def drawn(question: _PromptMatch, persona: _Persona, text: str) -> str:  # noqa: ARG001
        names = sorted(pool, key=lambda name: persona.uniform(name, text))[:3]
        return json.dumps({name: pool[name] for name in pool if name in names})

    return drawn


def _item(question: _PromptMatch, persona: _Persona, text: str) -> str:
    """Return an item that shows its attributes, so that students can find the labels."""
    topic = _TOPICS[int(persona.uniform("topic", text) * len(_TOPICS))]
    number = int(persona.uniform("number", text) * 1e6)
    try:
        attributes = json.loads(question.values.get("target_attributes", ""))
    except ValueError:
        attributes = {}
    if not isinstance(attributes, dict):
        attributes = {}
    hints = "".join(f" [{name}: {value}]" for name, value in attributes.items())
    task = question.values.get("task_description", "").strip().rstrip(".")
    # Items that differ in one word would be taken for repeats of one another.
    details = " ".join(_DETAILS[int(persona.uniform("detail", place, text) * len(_DETAILS))] for place in range(6))
    prompt = f"{task}: {topic}, case {number} ({details}).{hints}"
    response = (
        json.dumps(attributes) if "JSON" in question.values.get("output_description", "") else f"All about {topic}."
    )
    return json.dumps({"prompt": prompt, "response": response}, ensure_ascii=False)


def _quoting_item(question: _PromptMatch, persona: _Persona, text: str) -> str:
    """Return an item that quotes the beginning of its passage."""
    passage = question.values.get("passage", "").strip()
    item = json.loads(_item(question, persona, text))
    return json.dumps({**item, "quotes": [passage[:80]]}, ensure_ascii=False)


def _student(question: _PromptMatch, persona: _Persona, text: str) -> str:  # noqa: ARG001
    """Return an answer that states its quality; if JSON is requested, an object with labels, right or wrong."""
    quality = min(max(persona.skill_at(text) + persona.error("quality", text), 0.0), 1.0)
    words = "This is what I make of it. " * (1 + int(3 * persona.uniform("length", text)))
    remark = f"{words}(quality {quality:.2f})"
    if "JSON" not in text:
        return remark
    labels = {
        name: value if persona.uniform(name, text) < quality else "unknown" for name, value in _HINT.findall(text)
    }
    return json.dumps({**labels, "remark": remark}, ensure_ascii=False)


def _grades(question: _PromptMatch, persona: _Persona, text: str) -> str:
    form = question.form
    grades = {
        factor: form.json_grade(_grade_at(form.scale, _seen(factor, question, persona, text)))
        for factor in question.factors
    }
    return form.with_rationale("scores", grades) if form.rationale else json.dumps(grades, ensure_ascii=False)


def _grade(question: _PromptMatch, persona: _Persona, text: str) -> str:
    form = question.form
    factor = question.values.get("rubric_factor_name", "").strip()
    grade = _grade_at(form.scale, _seen(factor, question, persona, text))
    return form.with_rationale("score", form.json_grade(grade)) if form.rationale else grade


def _seen(factor: str, question: _PromptMatch, persona: _Persona, text: str) -> float:
    """Return the quality that a judge sees in an answer, by one factor."""
    return quality_of(question.values["response"]) + persona.error(factor, text)


def logprobs(prompt: str, system: str, parameters: Mapping[str, Any], grade: str) -> Mapping[str, Any] | None:
    """Return the log-probabilities of a judge's grade as in a choice of a chat completion, or None."""
    persona, question = _Persona.of(parameters), recognise(prompt)
    form = question.form
    if not parameters.get("logprobs") or question.prompt != "evaluate_per_factor" or grade not in form.scale.grades:
        return None
    # The same draw as that of the grade, whose alternatives these are.
    factor = question.values.get("rubric_factor_name", "").strip()
    seen = _seen(factor, question, persona, f"{system}\n{prompt}")
    tops = [{"token": token, "logprob": logprob, "bytes": None} for token, logprob in alternatives(form.scale, seen)]
    first = next((top for top in tops if top["token"] == grade), {"token": grade, "logprob": 0.0, "bytes": None})
    return {"content": [{**first, "top_logprobs": tops}], "refusal": None}


def _verdict(question: _PromptMatch, persona: _Persona, text: str) -> str:
    first = quality_of(question.values["response_a"]) + persona.error("first", text) + persona.position_bias
    second = quality_of(question.values["response_b"]) + persona.error("second", text)
    if max(first, second) < _USELESS:
        verdict = "BAD"
    elif abs(first - second) < _EQUAL_WITHIN:
        verdict = "TIE"
    else:
        verdict = "A" if first > second else "B"
    form = question.form
    return form.with_rationale("verdict", verdict) if form.rationale else verdict


_ANSWERS: Mapping[str, Callable[[_PromptMatch, _Persona, str], str]] = {
    "map_target_attrs": _three_of(_TARGETS),
    "map_nuanced_attrs": _three_of(_NUANCES),
    "autorubric": _three_of(_FACTORS),
    "sample": _item,
    "sample_document": _quoting_item,
    "test": _student,
    "evaluate_single": _grades,
    "evaluate_per_factor": _grade,
    "compare": _verdict,
}


def question_of(request: JSON) -> tuple[str, str]:
    """Return the user's last message and the system prompt."""
    users = [message for message in request.get("messages") or [] if message.get("role") == "user"]
    return joined_text(users[-1].get("content")) if users else "", system_text(request)


def completion_for(request: JSON) -> JSON:
    """Return the chat completion of a mock model; four characters count as a token."""
    prompt, system = question_of(request)
    text = answer(prompt, system, request)
    counts = usage(max(1, (len(prompt) + len(system)) // 4), max(1, len(text) // 4))
    reply = completion(str(request.get("model")), answer_message(text), "stop", counts)
    reply["choices"][0]["logprobs"] = logprobs(prompt, system, request, text) if request.get("logprobs") else None
    return reply


class MockModel:
    """The client of all mock models of a run; their parameters are in the requests."""

    def __init__(self, account: Account) -> None:  # noqa: ARG002
        self._failures: dict[str, int] = {}  # question -> failures in a row, so that each retry is a new draw

    async def chat(self, request: JSON, timeouts: Timeouts) -> JSON:
        """Return a whole chat completion; the persona may fail or be too slow."""
        try:
            persona = _Persona.of(request)
        except ConfigError as error:
            raise ProviderError(Fault.UNSUPPORTED, str(error)) from None
        limit = min(timeouts.first_token, timeouts.total)
        await asyncio.sleep(min(persona.latency, limit))
        if persona.latency > limit:
            raise ProviderError(Fault.TIMEOUT, "mock took too long")
        if persona.failure_rate:
            question = f"{persona.model} {persona.attempt} {question_of(request)!r}"
            failures = self._failures.pop(question, 0)
            if persona.uniform("failure", failures, question) < persona.failure_rate:
                self._failures[question] = failures + 1
                raise ProviderError(Fault.SERVER, "mock failed, as its failure_rate says", status=500)
        return completion_for(request)

    stream = whole_stream

    async def close(self) -> None:
        """Do nothing: there are no connections."""
