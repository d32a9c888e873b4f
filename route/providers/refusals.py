"""What a provider refuses, in its own words: a feature, a parameter, or a size, and the limit that it names.

The words are those of the providers' messages; `tests/route/providers/test_refusals.py` has some of each.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

_FEATURE_WORDS = {
    "images": r"image_url|\bimages?\b|vision|multi-?modal|`?content`? must be a string|mmproj"
    r"|enum chatcompletionrequestcontent|sequence, expected a string",
    "audio": r"input_audio|audio",
    "video": r"video",
    "files": r"\bpdfs?\b|\bfiles?\b|documents?\b",
    "parallel_tools": r"parallel_tool|parallel (tool|function)",
    "tools": r"\btools?\b|tool[_ -]?(use|call|choice)|function[_ ]call",
    "json_schema": r"json_schema|response_?format|json mode|structured output",
    "logprobs": r"log_?probs?",
    "n": r"['`\"]n['`\"]|\bn (above|must|greater)|multiple (candidates|choices|completions)|candidate_?count",
    "reasoning": r"reasoning|thinking",
}
"""By feature of the router; the first words that fit count, so that parallel tools go before tools."""
_FEATURES = {feature: re.compile(words) for feature, words in _FEATURE_WORDS.items()}
_OUTPUT = re.compile(r"output modalit")
_SIZE = r"[`'\"]?([0-9][0-9,_]{0,11})"
_WINDOW = re.compile(
    rf"maximum context length is {_SIZE}|> {_SIZE} maximum|limit is {_SIZE}|token limit:? {_SIZE}"
    rf"|tokens?`? must be <= {_SIZE}|(?:less|fewer) than {_SIZE} tokens|input length should be \[\d+, {_SIZE}"
    rf"|context (?:size|window|length)(?: of| is|:)? \(?{_SIZE}|exceeds the maximum number of tokens allowed \(?{_SIZE}"
)
_LONGEST = re.compile(
    rf"supports at most {_SIZE}(?: completion| output)? tokens|> {_SIZE}, which is the maximum"
    rf"|max_(?:completion_|output_)?tokens.{{0,60}}(?:less than or equal to|at most|<=|no more than) {_SIZE}"
    rf"|max_(?:completion_|output_)?tokens.{{0,60}}\[\d+, {_SIZE}\]|supported range is from \d+ .{{0,20}}to {_SIZE}"
)
_QUOTED = re.compile(
    r"['`\"]([A-Za-z_][A-Za-z0-9_.\[\]]{1,60})['`\"]|(?:argument|parameter)s? (?:supplied: )?(\w{2,60})"
)


class Refused(NamedTuple):
    """What is not accepted; all empty where the words say nothing of it."""

    features: tuple[str, ...] = ()
    parameter: str = ""
    """The name of a field of the request."""
    window: int | None = None
    """Tokens of the longest prompt."""
    longest: int | None = None
    """Tokens of the longest answer."""


def read_refusal(text: str, needed: Collection[str], fields: Collection[str]) -> Refused:
    """Return what a message refuses of a request that needs these features and has these fields."""
    text = text.lower()
    longest, window = _number(_LONGEST, text), _number(_WINDOW, text)
    if longest is not None or window is not None:
        return Refused(window=window if longest is None else None, longest=longest)
    output = {"audio": "audio_output", "images": "image_output"} if _OUTPUT.search(text) else {}
    for feature, words in _FEATURES.items():
        feature = output.get(feature, feature)
        if feature in needed and words.search(text):
            return Refused(features=(feature,))
    names = (name.partition(".")[0].partition("[")[0] for match in _QUOTED.finditer(text) for name in match.groups(""))
    parameter = next((name for name in names if name in fields and name not in ("messages", "model", "stream")), "")
    return Refused(parameter=parameter)


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    digits = next((group for group in match.groups() if group), "") if match else ""
    return int(re.sub("[,_]", "", digits)) if digits else None
