"""promptfoo's CSV, a row for each test and some columns for each prompt of a provider, as its JSON lines.

The header repeats names: `[PROVIDER] LABEL`, `Status`, `Score` and others stand there once for each prompt. Tables of
older versions have no column `Status`; their answers begin with `[PASS]`, `[FAIL]` or `[ERROR]` instead.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from p2l.common.errors import VoteError
from p2l.common.files import MAX_LINE_BYTES
from p2l.votes.kinds.kind import Row

PROMPTS_NOTE = "a table of promptfoo's holds no prompts: they are its templates with the variables, or these alone"
_PROMPT = re.compile(
    r"(?:\[eval-[^\]]+\] )?\[(?P<provider>.+?)\] (?P<label>.*)", re.DOTALL
)  # compared runs name theirs
_VERDICT = re.compile(r"\[(PASS|FAIL|ERROR)\](?: |$)")
_FOLLOWERS = ("Status", "Grader Reason")
_VARIABLE = re.compile(r"{{\s*([\w.-]+)\s*}}")
_DESCRIPTION = "Description"
_ERROR = 2  # promptfoo's failureReason of an answer that failed


class _Prompt(NamedTuple):
    """The columns of one prompt of one provider."""

    provider: str
    label: str
    column: int  # of the answer
    status: int | None
    score: int | None


def is_promptfoo_table(head: bytes, separator: str) -> bool:
    """Return whether a CSV file that begins so is one that promptfoo wrote."""
    try:
        text = io.StringIO(head.decode("utf-8-sig", errors="replace"), newline="")
        rows = csv.reader(text, delimiter=separator)
        header, first = next(rows, []), next(rows, [])
    except csv.Error:
        return False
    return bool(_prompts(header, first))


def _prompts(header: Sequence[str], first: Sequence[str]) -> list[_Prompt]:
    """Return the prompts of a header; none where it is not promptfoo's."""
    places = [place for place, name in enumerate(header) if _PROMPT.fullmatch(name)]
    prompts = []
    for place, end in zip(places, [*places[1:], len(header)], strict=False):
        named = _PROMPT.fullmatch(header[place])
        follows = header[place + 1] if place + 1 < end else ""
        has_verdict = len(first) > place and _VERDICT.match(first[place])
        if named is None or not (follows in _FOLLOWERS or has_verdict):
            return []
        columns = {header[column]: column for column in range(place + 1, end)}
        prompts.append(_Prompt(named["provider"], named["label"], place, columns.get("Status"), columns.get("Score")))
    return prompts


def promptfoo_results(path: Path, name: str, separator: str) -> Iterator[Row]:
    """Yield the results of such a file, called `name`, as JSON lines have them; VoteError where it cannot be read."""
    limit = csv.field_size_limit(MAX_LINE_BYTES)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield from _results(csv.reader(file, delimiter=separator))
    except UnicodeDecodeError as error:
        raise VoteError(f"{name}: is not UTF-8 text; save it as UTF-8") from error
    except (csv.Error, ValueError) as error:
        raise VoteError(f"{name}: is not CSV as promptfoo writes it: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _results(rows: Iterator[list[str]]) -> Iterator[Row]:
    header = next(rows, [])
    prompts: list[_Prompt] = []
    for number, row in enumerate(rows):
        if not row:
            continue
        if len(row) != len(header):
            raise ValueError(f"row {number + 2} has {len(row)} fields, and the header {len(header)}")
        prompts = prompts or _prompts(header, row)
        named = zip(header[: prompts[0].column], row, strict=False)
        variables = {name: value for name, value in named if name != _DESCRIPTION}
        for place, prompt in enumerate(prompts):
            shown = _VERDICT.match(row[prompt.column])
            verdict = row[prompt.status] if prompt.status is not None else shown[1] if shown else ""
            score = row[prompt.score] if prompt.score is not None else ""
            yield {
                "testIdx": number,
                "promptIdx": place,
                "provider": prompt.provider,
                "prompt": {"raw": _rendered(prompt.label, variables), "label": prompt.label},
                "success": verdict == "PASS" if verdict else None,
                "score": float(score) if score else None,
                "failureReason": _ERROR if verdict == "ERROR" else 0,
            }


def _rendered(template: str, variables: Mapping[str, str]) -> str:
    """Return a template with its variables; these alone where it has others than can be told, or none."""
    text = _VARIABLE.sub(lambda match: variables.get(match[1], match[0]), template)
    if text != template and not _VARIABLE.search(text) and "{%" not in template:
        return text
    values = [value for value in variables.values() if value]
    if len(values) <= 1:
        return values[0] if values else template
    return "\n".join(f"{name}: {value}" for name, value in variables.items() if value)
