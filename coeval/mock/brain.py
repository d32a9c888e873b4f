"""What a mock model answers to each of the prompts: as a teacher, a student or a judge.

A student's answer says how good it is, in words (`quality 0.73`); a judge reads that, adds its noise and grades by it.
So the order that was planted comes back from a run, and a test can say whether it did. Equal questions to equal models
have equal answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from coeval.mock.grading import alternatives, as_logprobs, grade_at, wanted_in
from coeval.mock.persona import Persona
from coeval.mock.recognising import Recognised, recognise

__all__ = ["answer", "logprobs", "quality_of"]

_QUALITY = re.compile(r"quality (\d(?:\.\d+)?)")
_HINT = re.compile(r"\[([^\[\]:]+): ([^\[\]]*)\]")
_UNMARKED = 0.5  # the quality of an answer that does not say it
_EVEN = 0.05  # two answers as close as this are equally good
_USELESS = 0.2  # neither of two answers that are worse is of any use

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


def answer(prompt: str, system: str, parameters: Mapping[str, Any]) -> str:
    """What a mock model of these parameters answers.

    Args:
        prompt: the last that the user says.
        system: what the system says; another system prompt is another draw.
        parameters: those of `Persona`; others are passed over.

    Raises:
        ConfigError: a parameter of the wrong kind.
    """
    persona = Persona.of(parameters)
    if persona.text is not None:
        return persona.text
    asked = recognise(prompt)
    said = _ANSWERS[asked.prompt](asked, persona, f"{system}\n{prompt}")
    is_malformed = persona.malformed_rate and persona.uniform("form", system, prompt) < persona.malformed_rate
    return _malformed(said) if is_malformed else said


def quality_of(text: str) -> float:
    """The quality that an answer says it has; 0.5 where it says nothing."""
    found = _QUALITY.search(text)
    return min(float(found[1]), 1.0) if found else _UNMARKED


def _malformed(said: str) -> str:
    """Half a JSON object, or words where one was asked for."""
    return said[: len(said) // 2] if said.startswith("{") else "That is hard to say."


def _attributes(pool: Mapping[str, list[str]]) -> Callable[[Recognised, Persona, str], str]:
    def chosen(asked: Recognised, persona: Persona, text: str) -> str:  # noqa: ARG001
        return json.dumps({name: pool[name] for name in _some(pool, persona, text)})

    return chosen


def _rubric(asked: Recognised, persona: Persona, text: str) -> str:  # noqa: ARG001
    return json.dumps({name: _FACTORS[name] for name in _some(_FACTORS, persona, text)})


def _some(pool: Mapping[str, Any], persona: Persona, text: str) -> list[str]:
    """Three of a pool, in its order."""
    drawn = sorted(pool, key=lambda name: persona.uniform(name, text))[:3]
    return [name for name in pool if name in drawn]


def _item(asked: Recognised, persona: Persona, text: str) -> str:
    """An item that names its attributes, so that labels can be found in it."""
    topic = _TOPICS[int(persona.uniform("topic", text) * len(_TOPICS))]
    number = int(persona.uniform("number", text) * 1e6)
    wanted = _mapping(asked.values.get("target_attributes", ""))
    hints = "".join(f" [{name}: {value}]" for name, value in wanted.items())
    task = asked.values.get("task_description", "").strip().rstrip(".")
    prompt = f"{task}: {topic}, case {number}.{hints}"
    response = json.dumps(wanted) if "JSON" in asked.values.get("output_description", "") else f"All about {topic}."
    return json.dumps({"prompt": prompt, "response": response}, ensure_ascii=False)


def _mapping(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _student(asked: Recognised, persona: Persona, text: str) -> str:  # noqa: ARG001
    """An answer that says how good it is; where JSON is asked for, an object with labels, right or not."""
    quality = min(max(persona.skill_at(text) + persona.error("quality", text), 0.0), 1.0)
    words = "This is what I make of it. " * (1 + int(3 * persona.uniform("length", text)))
    said = f"{words}(quality {quality:.2f})"
    if "JSON" not in text:
        return said
    labels = {
        name: value if persona.uniform(name, text) < quality else "unknown" for name, value in _HINT.findall(text)
    }
    return json.dumps({**labels, "remark": said}, ensure_ascii=False)


def _grades(asked: Recognised, persona: Persona, text: str) -> str:
    wanted = wanted_in(asked.values.get("reply", ""))
    grades = {
        factor: wanted.said(grade_at(wanted.scale, _seen(factor, asked, persona, text))) for factor in asked.factors
    }
    return wanted.with_rationale("scores", grades) if wanted.rationale else json.dumps(grades, ensure_ascii=False)


def _grade(asked: Recognised, persona: Persona, text: str) -> str:
    wanted = wanted_in(asked.values.get("reply", ""))
    grade = grade_at(wanted.scale, _seen(_factor(asked), asked, persona, text))
    return wanted.with_rationale("score", wanted.said(grade)) if wanted.rationale else grade


def _factor(asked: Recognised) -> str:
    return asked.values.get("rubric_factor_name", "").strip()


def _seen(factor: str, asked: Recognised, persona: Persona, text: str) -> float:
    return quality_of(asked.values["response"]) + persona.error(factor, text)


def logprobs(prompt: str, system: str, parameters: Mapping[str, Any], said: str) -> Mapping[str, Any] | None:
    """What a grade that a mock judge gave could have been, as a choice of a chat completion has it; else None."""
    persona, asked = Persona.of(parameters), recognise(prompt)
    wanted = wanted_in(asked.values.get("reply", ""))
    if not parameters.get("logprobs") or asked.prompt != "evaluate_per_factor" or said not in wanted.scale.grades:
        return None
    seen = _seen(_factor(asked), asked, persona, f"{system}\n{prompt}")
    return as_logprobs(alternatives(wanted.scale, seen), said)


def _verdict(asked: Recognised, persona: Persona, text: str) -> str:
    verdict = _better(asked, persona, text)
    wanted = wanted_in(asked.values.get("reply", ""))
    return wanted.with_rationale("verdict", verdict) if wanted.rationale else verdict


def _better(asked: Recognised, persona: Persona, text: str) -> str:
    first = quality_of(asked.values["response_a"]) + persona.error("first", text) + persona.position_bias
    second = quality_of(asked.values["response_b"]) + persona.error("second", text)
    if max(first, second) < _USELESS:
        return "BAD"
    if abs(first - second) < _EVEN:
        return "TIE"
    return "A" if first > second else "B"


_ANSWERS: Mapping[str, Callable[[Recognised, Persona, str], str]] = {
    "map_target_attrs": _attributes(_TARGETS),
    "map_nuanced_attrs": _attributes(_NUANCES),
    "autorubric": _rubric,
    "sample": _item,
    "test": _student,
    "evaluate_single": _grades,
    "evaluate_per_factor": _grade,
    "compare": _verdict,
}
