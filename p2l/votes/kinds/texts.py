"""Texts of prompts and answers, and names of models, as every door of votes reads them.

A prompt may be a text, a list of the user's turns, or messages; in CSV each of these may stand as JSON, or as Python
writes it. Names are compared as people see them: composed letters, without invisible ones or blanks at the ends.
"""

from __future__ import annotations

import ast
import contextlib
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from p2l.common.files import parse_json

_MAX_LITERAL_CHARS = 100_000  # of a Python list: its parser takes a kilobyte a letter
# A quote that is not closed takes the rest: to try anew at each of many would take the square of a text's length.
_QUOTED = r"""(?P<text>'(?:[^'\\]|\\.)*(?:'|\Z)|"(?:[^"\\]|\\.)*(?:"|\Z))"""
_TOKEN = re.compile(rf"{_QUOTED}|[\[\]{{}}(),:'\"]|[^\s\[\]{{}}(),:'\"]+", re.DOTALL)
_ARRAY_CALL = re.compile(rf"{_QUOTED}|\barray\(|,\s*dtype=\w+\)", re.DOTALL)
_PYTHON_NAMES = {"nan": "None", "NaN": "None", "null": "None", "true": "True", "false": "False"}
# Letters that show nothing and are no control or format characters by Unicode's categories.
_SELECTORS = [*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0" + "".join(map(chr, _SELECTORS)))
# Letters of other scripts that look like Latin ones, small or as capitals.
_LATIN = str.maketrans("авекмнорстухіјѕһԁԛԝαβεζηικμνορτυχ", "abekmhopctyxijshdqwabezhikmnoptyx")


HOLDS_NUL = "prompt holds a NUL character, which is not text"


class RowError(ValueError):
    """A row that cannot be read; the text says why."""


def clean_name(name: str) -> str:
    """Return a model's name as people see it."""
    if name.isascii() and name.isprintable() and name == name.strip():
        return name
    letters = []
    for letter in unicodedata.normalize("NFC", name):
        category = unicodedata.category(letter)
        if category == "Zs" or letter in "\t\n\r":
            letters.append(" ")
        elif category not in {"Cc", "Cf"} and letter not in _BLANKS:
            letters.append(letter)
    return "".join(letters).strip()


def look_alike(name: str) -> str:
    """Return what names share that differ in case, width, blanks, punctuation or the script of a letter alone."""
    folded = unicodedata.normalize("NFKC", clean_name(name)).casefold().translate(_LATIN)
    return "".join(letter for letter in folded if letter.isalnum()) or folded


def has_surrogate(value: Any) -> bool:
    """Return whether half of a surrogate pair stands somewhere in a value of JSON."""
    if isinstance(value, str):
        if value.isascii():
            return False
        try:
            value.encode()
        except UnicodeEncodeError:
            return True
        return False
    if isinstance(value, dict):
        return any(has_surrogate(key) or has_surrogate(element) for key, element in value.items())
    return isinstance(value, list) and any(map(has_surrogate, value))


def unquoted(value: Any) -> Any:
    """Return a value that a cell of CSV holds as JSON or as Python writes it; every other value as it is."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if not text.startswith(("[", "{")) or not text.endswith(("]", "}")):
        return value
    try:
        return parse_json(text)
    except ValueError:
        pass
    if len(text) <= _MAX_LITERAL_CHARS:
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return ast.literal_eval(_as_literal(text))
    return value


def _as_literal(text: str) -> str:
    """Return what str() of Python or NumPy wrote as a literal of Python.

    NumPy sets no commas between the elements of an array, where Python would read two texts as one, and names arrays;
    NaN, which pandas has for what is missing, and the names of JSON become those of Python.
    """
    tokens: list[str] = []
    ends_value = False
    for match in _TOKEN.finditer(_ARRAY_CALL.sub(lambda call: call["text"] or "", text)):
        token = _PYTHON_NAMES.get(match[0], match[0])
        if match["text"]:
            token = token.replace("\n", "\\n").replace("\r", "\\r")  # lines that a text goes on in
        begins_value = token not in (",", ":", "]", "}", ")")
        tokens += [","] * (begins_value and ends_value) + [token]
        ends_value = token not in (",", ":", "[", "{", "(")
    return "".join(tokens)


def content_text(content: Any) -> str:
    """Return the text of a message; a part that is no text leaves a marker such as `[image]`."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list | tuple) else [content]
    return "\n".join(text for text in map(_part_text, parts) if text)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise RowError("a message holds neither text nor parts with text")
    for key in ("text", "content"):
        if isinstance(part.get(key), str):
            return str(part[key])
    kind = str(part.get("type") or next((key for key in part if key in {"image", "audio", "file"}), "part"))
    return f"[{kind.removeprefix('input_').removesuffix('_url').replace('_', ' ')}]"


def _messages(conversation: Any, what: str) -> list[Mapping[str, Any]]:
    messages = unquoted(conversation)
    if isinstance(messages, Mapping):
        messages = messages.get("messages", [messages])
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise RowError(f"{what} must be a list of {{role, content}} messages")
    rows: list[Mapping[str, Any]] = []
    for message in messages:
        if isinstance(message, list | tuple) and len(message) == 2:  # FastChat: [role, text]
            message = {"role": message[0], "content": message[1]}
        if not isinstance(message, Mapping):
            raise RowError(f"{what} must be a list of {{role, content}} messages")
        rows.append(message)
    return rows


def turns(conversation: Any, role: str, what: str = "conversation") -> list[str]:
    """Return the texts of the messages of `user` or `assistant`."""
    names = {"user": ("user", "human", "prompter"), "assistant": ("assistant", "gpt", "model", "ai")}[role]
    texts = [
        content_text(message.get("content", message.get("value")))
        for message in _messages(conversation, what)
        if str(message.get("role", message.get("from", ""))).lower() in names
    ]
    if has_surrogate(texts):
        raise RowError(f"{what} holds half of a surrogate pair, which is not text")
    return texts


def prompt_turns(value: Any, what: str = "prompt") -> list[str]:
    """Return the user's turns of a prompt: a text, a list of texts, messages, or any of these as text of JSON."""
    parsed = unquoted(value)
    if parsed is None:
        raise RowError(f"{what} is missing")
    is_written = isinstance(value, str)
    if isinstance(parsed, str) or (is_written and not holds_turns(parsed)):
        return [value if is_written else parsed]
    if isinstance(parsed, Mapping):
        return turns(parsed, "user", what)
    if not isinstance(parsed, list):
        return [str(parsed)]
    missing = next((number for number, turn in enumerate(parsed, 1) if _is_missing(turn)), 0)
    if missing:
        raise RowError(f"turn {missing} of {what} is null; a prompt is a list of the user's turns")
    if any(isinstance(turn, Mapping) and ("role" in turn or "from" in turn) for turn in parsed):
        texts = turns(parsed, "user", what)
    else:
        texts = [turn if isinstance(turn, str) else content_text(turn) for turn in parsed]
    if has_surrogate(texts):
        raise RowError(f"{what} holds half of a surrogate pair, which is not text")
    return texts


def holds_turns(parsed: Any) -> bool:
    """Return whether the value of a text that is JSON is meant as turns, rather than as the words of a prompt."""
    if isinstance(parsed, Mapping):
        return isinstance(parsed.get("messages"), list)
    if not isinstance(parsed, list) or not parsed:
        return False
    if all(map(_is_missing, parsed)):
        return True
    if all(isinstance(turn, Mapping) for turn in parsed):
        return all({"role", "from", "content", "text"} & turn.keys() for turn in parsed)
    return any(isinstance(turn, str) for turn in parsed) and all(
        isinstance(turn, str) or _is_missing(turn) for turn in parsed
    )


def _is_missing(turn: Any) -> bool:
    """Return whether a turn is null, or the NaN that pandas has for it."""
    return turn is None or (isinstance(turn, float) and math.isnan(turn))
