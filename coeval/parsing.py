"""Parse the answers of models: JSON among other words, a single word, values under usual names.

Lenient about form, never about content: a missing value is an error, not a guess.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from coeval.objects import FoundObject, objects_in
from p2l.common.files import DEEPEST_JSON, is_deeper

LEVELS = ("High", "Medium", "Low")
_PROMPT_KEYS = ("prompt", "input", "question", "task", "context", "user_input", "text", "scenario")
_RESPONSE_KEYS = ("response", "output", "answer", "completion", "result", "reference", "label")
_LETTERS_SHOWN = 60


class MalformedAnswerError(ValueError):
    """The text does not have the form that the prompt asked for."""


class NoVerdictError(MalformedAnswerError):
    """The text has no object with the grades that the prompt asked for."""


def read_object(text: str, accepts: Callable[[dict[str, Any]], bool] = bool) -> dict[str, Any]:
    """Return the last object of an answer that is accepted, or the last of all where none is; alone or among words.

    Raise MalformedAnswerError without one, for one that names a key twice, and where the last is not quite JSON and not
    the only one that could be meant.
    """
    objects = objects_in(after_thoughts(text))
    accepted = [found for found in objects if accepts(found.value)] or objects
    if not accepted:
        raise MalformedAnswerError(f"no JSON object in {shown(text)}")
    last = accepted[-1]
    _check_clash(last)
    if not last.is_strict and any(found.value != last.value for found in accepted):
        raise MalformedAnswerError("several objects, the last of which is not quite JSON")
    return last.value


def _check_clash(found: FoundObject) -> None:
    if found.clash:
        raise MalformedAnswerError(f"{shown(found.clash)} stands twice in one object, with two values")


# Thoughts. A closing mark may come without an opening one, which many templates put into the prompt.

_TAGS = "think(?:ing)?|thoughts?|reason(?:ing)?|reflection|seed:think|scratchpad"
_MARKS = (
    rf"<\s?(?:{_TAGS})\s?>|<(?:{_TAGS})\s[^<>\n]{{1,100}}>|\[THINK\]|◁think▷|<\|begin_of_thought\|>"
    r"|<\|START_THINKING\|>|<\|thinking\|>|<unused94>|<\|channel\|>(?:analysis|commentary)<\|message\|>",
    rf"<\s?/\s?(?:{_TAGS})\s?>|\[/THINK\]|◁/think▷|<\|end_of_thought\|>"
    r"|<\|END_THINKING\|>|<\|/thinking\|>|<unused95>|<\|channel\|>final<\|message\|>",
)
_THOUGHT_MARK = re.compile(f"(?P<opening>{_MARKS[0]})|(?P<closing>{_MARKS[1]})", re.IGNORECASE)
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


def after_thoughts(text: str) -> str:
    """Return what a judge says after its last closing thought mark; nothing where a later thought has no end.

    A mark within an object, or alone between backticks, is quoted, not meant.
    """
    marks = [mark for mark in _THOUGHT_MARK.finditer(text) if not _is_quoted(text, mark)]
    if not marks:
        return text
    quoting = [(found.start, found.end) for found in objects_in(text) if found.is_strict]
    last = next((mark for mark in reversed(marks) if not _is_within(mark.start(), quoting)), None)
    if last is None:
        return text
    return text[last.end() :] if last["closing"] else ""


def _is_quoted(text: str, mark: re.Match[str]) -> bool:
    return text.endswith("`", 0, mark.start()) and text.startswith("`", mark.end())


def _is_within(position: int, spans: Sequence[tuple[int, int]]) -> bool:
    """Return whether a position stands in one of several spans, which are in order."""
    place = bisect_right(spans, (position, sys.maxsize)) - 1
    return place >= 0 and position < spans[place][1]


def split_thoughts(text: str) -> tuple[str, str]:
    """Return an answer without its thoughts, and the thoughts.

    Thoughts stand between two marks, before a closing mark that has no opening one, or after an opening one that begins
    a line and has no end. A mark in code is part of the answer.
    """
    marks = list(_THOUGHT_MARK.finditer(text))
    code = [match.span() for match in _CODE.finditer(text)] if marks else []
    last_closing = max((mark.start() for mark in marks if mark["closing"]), default=-1)
    answer: list[str] = []
    thoughts: list[str] = []
    end = depth = 0
    for mark in marks:
        # Whatever stands within a thought, code as well, cannot hide the mark that ends it.
        if depth == 0 and _is_within(mark.start(), code):
            continue
        has_end = bool(mark["closing"]) or mark.start() < last_closing
        if not has_end and text[text.rfind("\n", 0, mark.start()) + 1 : mark.start()].strip():
            continue
        before = text[end : mark.start()]
        if mark["opening"]:
            (thoughts if depth else answer).append(before)
            depth += 1
        elif depth == 0:  # all so far was a thought
            thoughts += [*answer, before]
            answer = []
        else:
            thoughts.append(before)
            depth = 0
        end = mark.end()
    (thoughts if depth else answer).append(text[end:])
    return "".join(answer).strip(), "\n".join(thought.strip() for thought in thoughts if thought.strip())


def read_attributes(text: str) -> dict[str, list[Any]]:
    """Return attribute -> values, of those that have a list of plain values; MalformedAnswerError if none has."""
    attributes = {}
    named = read_object(text, lambda value: any(isinstance(entries, list) for entries in value.values()))
    for name, values in named.items():
        entries = values if isinstance(values, list) else []
        plain = [value for value in entries if isinstance(value, (str, int, float, bool))]
        if plain and name.strip():
            attributes[name.strip()] = plain
    if not attributes:
        raise MalformedAnswerError(f"no attribute with a list of values in {shown(text)}")
    return attributes


def read_rubric(text: str) -> dict[str, str]:
    """Return factor -> description; MalformedAnswerError if no factor is described."""
    rubric = {}
    named = read_object(text, lambda value: any(isinstance(entry, str) for entry in value.values()))
    for name, description in named.items():
        if isinstance(description, str) and description.strip() and name.strip():
            rubric[name.strip()] = description.strip()
    if not rubric:
        raise MalformedAnswerError(f"no factor with a description in {shown(text)}")
    return rubric


def read_item(text: str) -> tuple[str, str]:
    """Return the prompt of an item and its reference answer; MalformedAnswerError if one is missing or empty."""
    prompt, response, _ = read_quoting_item(text)
    return prompt, response


def read_quoting_item(text: str) -> tuple[str, str, Any]:
    """Return the same with what the item quotes, unchecked; None where it quotes nothing."""
    value = read_object(text, _is_item)
    return _named(value, _PROMPT_KEYS, "prompt"), _named(value, _RESPONSE_KEYS, "response"), value.get("quotes")


def _is_item(value: Mapping[str, Any]) -> bool:
    keys = {str(key).strip().lower() for key in value}
    return not keys.isdisjoint(_PROMPT_KEYS) and not keys.isdisjoint(_RESPONSE_KEYS)


def _named(value: Mapping[str, Any], keys: Iterable[str], what: str) -> str:
    lowered = {str(key).strip().lower(): text for key, text in value.items()}
    for key in keys:
        text = lowered.get(key)
        if isinstance(text, str) and text.strip():
            return text.strip()
        if text not in (None, "") and not isinstance(text, str):
            return json.dumps(text, ensure_ascii=False)
    raise MalformedAnswerError(f"the item has no {what}")


def read_scores(text: str, factors: Sequence[str]) -> dict[str, str]:
    """Return factor -> level, which may stand in an object with a reason; MalformedAnswerError unless all have one."""
    scores = {}
    for factor, value in read_verdict(text, factors, LEVELS).grades.items():
        if not isinstance(value, str):
            raise MalformedAnswerError(f"no level for {factor!r}")
        scores[factor] = read_level(value)
    return scores


@dataclass(frozen=True)
class Verdict:
    """What a judge says of every factor that it was asked for."""

    grades: Mapping[str, Any]  # factor -> value
    whole: Mapping[str, Any]  # the object in which they stand


_SCORE_KEYS = ("score", "level", "rating", "grade", "value")
_FACTOR_KEYS = ("factor", "name", "criterion")
_BEST_KEYS = ("out_of", "max", "max_score", "maximum")  # beside a grade: the best of the scale that a judge has in mind
_CALL_KEYS = ("arguments", "parameters")  # of a tool's call, whose object some servers write as text
_MAX_NESTING = 3  # objects around the grades
# Words that go on in the line of an object: it is named in passing, as a quotation is.
_GOES_ON = re.compile(r"[ \t]*+[\"'“”’)\],:]*+[ \t]*+\w")


def read_verdict(text: str, factors: Sequence[str], words: Sequence[str], key: str = "") -> Verdict:
    """Return the last complete verdict that a reply states after its thoughts.

    An object is complete if it has every factor, perhaps one level down; a single factor may stand under `key`, such as
    `score`, too. Raise MalformedAnswerError, which quotes nothing but names of factors, if there is none, or if the
    reply contradicts it: in the same object, in a later one that is not complete, or in words after it.
    """
    answer = _unquoted(after_thoughts(text))
    verdicts: list[tuple[FoundObject, dict[str, Any]]] = []
    partial: list[FoundObject] = []
    for found in objects_in(answer):
        if _is_in_quoted_line(answer, found.start):
            continue
        grades = _grades(found.value, factors, key)
        if grades is None:
            partial.append(found)
            continue
        if verdicts and verdicts[-1][1] != grades and answer[verdicts[-1][0].end : found.start].strip() == ",":
            raise MalformedAnswerError("a list of verdicts that differ")
        verdicts.append((found, grades))
    if not verdicts:
        return _verdict_in_parts(answer, partial, factors, words)
    last, grades = verdicts[-1]
    _check_clash(last)
    _check_scale(last.value, words)
    if any(earlier != grades for _, earlier in verdicts):
        _check_is_last(answer, last)
    for found in (found for found in partial if found.start > last.end):
        _check_same(_graded_in(found.value, factors), grades)
    rest = answer[last.end :]
    _check_same(_stated(rest, factors, words), grades)
    if len(factors) == 1:  # a word alone is of the one factor there is
        for word in _statements(rest, words):
            _check_same({factors[0]: word}, grades)
    return Verdict(grades, last.value)


def _check_is_last(answer: str, found: FoundObject) -> None:
    """Raise MalformedAnswerError unless an object, after one that differs, is plainly what the answer ends in."""
    if not found.is_strict:
        raise MalformedAnswerError("several verdicts, the last of which is not quite JSON")
    if _GOES_ON.match(answer, found.end):
        raise MalformedAnswerError("several verdicts that differ, the last of which is not the last thing said")


def _is_in_quoted_line(text: str, position: int) -> bool:
    """Return whether a position is in a line that Markdown shows as a quotation."""
    return text[text.rfind("\n", 0, position) + 1 : position].lstrip().startswith(">")


def _check_scale(value: Mapping[str, Any], words: Sequence[str]) -> None:
    """Raise MalformedAnswerError where an object names another best grade than that of a scale of numbers."""
    for level in _nested(value):
        for key in _BEST_KEYS:
            if words[-1].isdigit() and key in level and str(level[key]) != words[-1]:
                raise MalformedAnswerError(f"a grade of {level[key]} at best: {words[0]} to {words[-1]} was asked for")


def _unquoted(text: str) -> str:
    """Return the text in a JSON string, if the whole text is one: some servers write an object as text in a string."""
    bare = text.strip()
    if bare.startswith('{\\"'):  # the same without the string's quotes
        bare = f'"{bare}"'
    if not (bare.startswith('"') and bare.endswith('"')):
        return text
    try:
        value = json.loads(bare, strict=False)
    except ValueError:
        return text
    return value if isinstance(value, str) else text


def _verdict_in_parts(
    answer: str, objects: Sequence[FoundObject], factors: Sequence[str], words: Sequence[str]
) -> Verdict:
    """Return a verdict that stands in an object for each factor, or in a line for each, where there is no object.

    Raise NoVerdictError where a factor has none, and MalformedAnswerError where one has two.
    """
    error = NoVerdictError(f"no JSON object with a grade for {', '.join(map(repr, factors))}")
    if not objects:
        stated = _stated(answer, factors, words, whole_lines=True)
        if set(stated) != set(factors) or len(factors) < 2:
            raise error
        return Verdict(stated, stated)
    between = "".join(answer[first.end : second.start] for first, second in pairwise(objects))
    together = _joined([found.value for found in objects])
    if between.strip(" \t\r\n,;") or not together or any(found.clash for found in objects):
        raise error
    grades = _grades(together, factors, "")
    if grades is None:
        raise error
    return Verdict(grades, together)


def _grades(value: Mapping[str, Any], factors: Sequence[str], key: str) -> dict[str, Any] | None:
    """Return the grades of an object that has them all, itself or in what stands in it; None where it does not."""
    candidates = []
    for level in _nested(value):
        names = {_plain(name) for name in level}
        if all(_plain(factor) in names for factor in factors):
            candidates.append(_graded_in(level, factors))
        elif key and len(factors) == 1 and not names.isdisjoint((key, *_SCORE_KEYS)):
            named = {name: level[name] for name in level if _plain(name) in (key, *_SCORE_KEYS)}
            grade = _one_of([_unwrapped(value) for value in named.values()])
            candidates.append({factors[0]: grade})
    for other in candidates[1:]:
        _check_same(other, candidates[0])
    return candidates[0] if candidates else None


def _nested(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return an object and those in it; a list of objects of one factor each counts as one."""
    levels: list[Mapping[str, Any]] = []
    current: list[Mapping[str, Any]] = [value]
    for _ in range(_MAX_NESTING):
        levels += current
        entries = [entry for level in current for entry in level.values()]
        entries += [call for level in current for key in _CALL_KEYS if (call := _object_in(level.get(key)))]
        current = [entry for entry in entries if isinstance(entry, Mapping)]
        current += [joined for entry in entries if isinstance(entry, list) and (joined := _joined(entry))]
    return levels


def _object_in(text: Any) -> dict[str, Any]:
    """Return the object that a text is in JSON; empty where it is none."""
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) and not is_deeper(value, DEEPEST_JSON) else {}


def _joined(entries: Sequence[Any]) -> dict[str, Any]:
    """Return objects that name a factor each, or have no key in common, as one; empty where they are none."""
    joined: dict[str, Any] = {}
    for entry in entries:
        if not isinstance(entry, Mapping):
            return {}
        factor = next((entry[key] for key in _FACTOR_KEYS if key in entry), None)
        named = dict(entry) if factor is None else {str(factor): entry}
        if not joined.keys().isdisjoint(named):
            return {}
        joined |= named
    return joined


def _graded_in(reply: Mapping[str, Any], factors: Sequence[str]) -> dict[str, Any]:
    """Return factor -> its value in an object, of every factor; None where it has none.

    Raise MalformedAnswerError where a factor has two values.
    """
    graded: dict[str, Any] = dict.fromkeys(factors)
    for factor in factors:
        values = [_unwrapped(value) for name, value in reply.items() if _plain(name) == _plain(factor)]
        if any(value != values[0] for value in values):
            raise MalformedAnswerError(f"two grades for {factor!r}")
        graded[factor] = values[0] if values else None
    return graded


def _unwrapped(value: Any) -> Any:
    """Return a grade from the object with a reason, or the list of one, in which it may stand."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, Mapping):
        return value
    grades = [value[key] for key in _SCORE_KEYS if key in value and not isinstance(value[key], Mapping)]
    return _one_of(grades) if grades else value.get("verdict")


def _one_of(grades: Sequence[Any]) -> Any:
    """Return the grade that all are; None where there is none. Raise MalformedAnswerError where they differ."""
    if any(_comparable(grade) != _comparable(grades[0]) for grade in grades):
        raise MalformedAnswerError("two grades in one object")
    return grades[0] if grades else None


def _stated(text: str, factors: Sequence[str], words: Sequence[str], *, whole_lines: bool = False) -> dict[str, Any]:
    """Return the grades that a text states of factors in words, such as `accuracy: Low`, or a row of a table.

    `whole_lines`: only those that are all of a line. Raise MalformedAnswerError where a factor has two.
    """
    stated: dict[str, Any] = {}
    grades = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    start, end = (r"^[ \t>#|*_`\"'•-]{0,9}", r"[ \t|*_`\"'.]{0,9}\r?$") if whole_lines else (r"(?<!\w)", r"(?!\w)")
    for factor in factors:
        name = r"[\s_-]+".join(map(re.escape, re.split(r"[\s_-]+", factor.strip())))
        sign = r"[ \t*_`\"']{0,4}(?:[:=|：]|\b(?:is|should be)\b)[ \t*_`\"']{0,4}"
        pattern = rf"{start}{name}{sign}({grades}){end}"
        for match in re.finditer(pattern, text, re.IGNORECASE | re.MULTILINE):
            _check_same({factor: stated.get(factor)}, {factor: match[1]})
            stated[factor] = match[1]
    return stated


def _check_same(grades: Mapping[str, Any], verdict: Mapping[str, Any]) -> None:
    for factor, grade in grades.items():
        if grade is not None and _comparable(grade) != _comparable(verdict[factor]):
            raise MalformedAnswerError(f"two grades for {factor!r}")


def _comparable(grade: Any) -> str:
    return str(grade).strip(_MARKS_AROUND_A_WORD).lower()


def _plain(name: str) -> str:
    """Return a factor's name for comparison: models write spaces for underscores."""
    return re.sub(r"[\s_-]+", "_", str(name).strip().strip("*`\"'").lower())


def read_level(text: str) -> str:
    """Return High, Medium or Low; MalformedAnswerError for anything else."""
    return read_word(text, LEVELS)


_MARKS_AROUND_A_WORD = " \t\r\n*`\"'.[](){}:,!_“”\\\u200b\ufeff"
# How judges name their verdict; in other languages, too, since a prompt may be of the user's own.
_LABELS = (
    "verdict|answer|winner|grade|score|rating|level|judge?ment|gewinner|urteil|bewertung|punktzahl|gagnant|vainqueur"
    "|ganador|veredicto|vencedor|puntuación|pontuação|vincitore|punteggio|победитель|вердикт|оценка|胜者|获胜者|判定|结论"
    "|评分|得分|分数|勝者|評価|スコア|승자|판정|점수|الدرجة|الفائز"
)
# What an answer of two may be called.
_SIDE = re.compile(r"\A(?:the\s+)?(?:answer|response|assistant|option|model|candidate)[\s_]+", re.IGNORECASE)
# A verdict in the middle of a line, which may take back the one before it.
_IN_PASSING = (
    r"\b(?:verdict|winner|grade|score|rating|level|judge?ment)\b[\s*_`]*(?:[:=]|\b(?:is|should be)\b)[\s*_`\"'\[(]*"
)
_BEFORE_A_WORD = re.compile(
    rf"(?:#{{1,6}}\s+)?(?P<whose>(?:(?:my|the|final|overall)\s+)*)(?P<label>{_LABELS})\b(?P<sign>[\s*_`]*(?:[:=]|is\b))?",
    re.IGNORECASE,
)
# How a judge takes its verdict back, where all that follows in the line is another.
_TAKEN_BACK = re.compile(r"\A(?:no|wait|actually|sorry|correction|hmm|rather|hold on)\b[\s,.:;!–—-]+", re.IGNORECASE)
_BOXED = r"\$*\\boxed\{(?:\\(?:text|textbf|mathrm|mathbf)\{)?([^{}\n]{0,60})\}+\$*"
_ALL_BOXED, _SOME_BOXED = re.compile(rf"\A{_BOXED}\Z"), re.compile(_BOXED)
_TAGGED = re.compile(rf"\A<((?:final_)?(?:{_LABELS}))>(.*)</\1>\Z", re.IGNORECASE)
_IN_BRACKETS = re.compile(r"(?<![\"'“‘])\[\[([^\[\]\n]{1,60})\]\]")
_HEADING = re.compile(r":[*_`\s]*\Z")
# What servers leave at the end of an answer that ends there.
_END_TOKENS = re.compile(r"(?:\s|</s>|<\|\w{1,30}\|>|<end_of_turn>)+\Z")


def read_word(text: str, words: Sequence[str]) -> str:
    """Return the one word that a reply ends in, or that it states as its verdict; else MalformedAnswerError.

    It is all of the last line, perhaps in quotes, with a full stop or after `Verdict:` and the like; or it stands as
    `Verdict: word`, in a box, a tag or two brackets elsewhere. Statements that differ are a contradiction.
    """
    answer = _unquoted(after_thoughts(text))
    answer = answer[: len(answer) - len(end[0])] if (end := _END_TOKENS.search(answer[-200:])) else answer
    stated = _statements(answer, words)
    if not stated:
        raise MalformedAnswerError(f"{shown(text)} is none of {', '.join(words)}")
    if any(word != stated[0] for word in stated):
        raise MalformedAnswerError(f"{shown(text)} says {' and '.join(dict.fromkeys(stated))}")
    return stated[0]


def _statements(text: str, words: Sequence[str]) -> list[str]:
    """Return the words that a text states, in their order; empty where none is its verdict.

    A word alone in a line counts where another line states it as the verdict, or where it is the last. Lines that
    Markdown shows as a quotation state nothing.
    """
    lines = [
        line for line in text.splitlines() if line.strip(_MARKS_AROUND_A_WORD) and not line.lstrip().startswith(">")
    ]
    stated: list[str] = []
    is_verdict = False
    last_stated = 0
    for number, line in enumerate(lines, start=1):
        word, is_named = _word_of(line, words)
        is_last = number == len(lines)
        # `Answer A:` and `A:` are headings of what is said of an answer.
        if word is not None and (is_last or is_named or not _is_heading(line)):
            stated.append(word)
            is_verdict |= is_last or is_named
            last_stated = number
        elif word is None:
            marked = [*_IN_BRACKETS.findall(line), *_SOME_BOXED.findall(line)]
            found = [named for mark in marked if (named := _named_word(_SIDE.sub("", mark), words))]
            stated += found
            is_verdict |= bool(found)
            last_stated = number if found else last_stated
    if not is_verdict:
        return []
    return stated + [word for line in lines[last_stated:] for word in _named_in_passing(line, words)]


def _named_in_passing(line: str, words: Sequence[str]) -> list[str]:
    """Return the words that a line names as the verdict among other words; letters alone in their own case."""
    found = []
    for word in words:
        flags = "" if len(word) == 1 else "(?i:"
        pattern = (
            rf"(?i:{_IN_PASSING}(?:(?:answer|response|assistant)\s+)?){flags}{re.escape(word)}{')' * bool(flags)}(?!\w)"
        )
        found += [word] * bool(re.search(pattern, line))
    return found


def _is_heading(line: str) -> bool:
    start = _BEFORE_A_WORD.match(line.strip(_MARKS_AROUND_A_WORD))
    is_side = start is not None and not start["sign"] and start["label"].lower() == "answer"
    return bool(_HEADING.search(line)) or is_side or bool(_SIDE.match(line.strip(_MARKS_AROUND_A_WORD)))


def _named_word(text: str, words: Sequence[str]) -> str | None:
    plain = unicodedata.normalize("NFKC", text).strip(_MARKS_AROUND_A_WORD).lower()
    if words[-1].isdigit():  # `4/5` and `4 out of 5`, on a scale to 5
        plain = re.sub(rf"\s*(?:/|\bout of\b)\s*{words[-1]}\Z", "", plain)
    return next((word for word in words if word.lower() == plain), None)


def _word_of(line: str, words: Sequence[str]) -> tuple[str | None, bool]:
    """Return the word that a line states and nothing else, and whether the line names it as the verdict."""
    line = unicodedata.normalize("NFKC", line).strip()
    bare = _TAKEN_BACK.sub("", line.strip(_MARKS_AROUND_A_WORD))
    boxed, tagged = _ALL_BOXED.match(line.strip(" *.")), _TAGGED.match(line.strip(" *."))
    if boxed is not None or tagged is not None:
        inside = boxed[1] if boxed is not None else tagged[2] if tagged is not None else ""
        word = _named_word(_SIDE.sub("", inside.strip()), words)
        return word, word is not None
    if (word := _named_word(re.sub(r"\A#{1,6}\s+", "", bare), words)) is not None:
        return word, "[[" in line
    start = _BEFORE_A_WORD.match(bare)
    if start is None:
        return _named_word(_SIDE.sub("", bare), words), False
    word = _named_word(_SIDE.sub("", bare[start.end() :].strip(_MARKS_AROUND_A_WORD + "=–—")), words)
    return word, word is not None and bool(start["sign"] or start["whose"] or "[[" in line)


def shown(text: str) -> str:
    """Return the beginning of a text in quotes, on one line, for an error."""
    plain = " ".join(text.split())
    return repr(plain if len(plain) <= _LETTERS_SHOWN else f"{plain[:_LETTERS_SHOWN]}...")
