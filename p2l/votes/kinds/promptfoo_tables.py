"""promptfoo's CSV, a row for each test and some columns for each prompt of a provider, as its JSON lines.

The header repeats names: `[PROVIDER] LABEL`, `Status`, `Score` and others stand there once for each prompt. Tables of
older versions have no column `Status`; their answers begin with `[PASS]`, `[FAIL]` or `[ERROR]` instead.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from p2l.common.errors import VoteError
from p2l.votes.containers import TableFile, TemporaryFile, head_of
from p2l.votes.json_lines import open_jsonl
from p2l.votes.rows import Source

_PROMPT = re.compile(
    r"(?:\[eval-[^\]]+\] )?\[(?P<provider>.+?)\] (?P<label>.*)", re.DOTALL
)  # compared runs name theirs
_VERDICT = re.compile(r"\[(PASS|FAIL|ERROR)\](?: |$)")
_FOLLOWERS = ("Status", "Grader Reason")
_VARIABLE = re.compile(r"{{\s*([\w.-]+)\s*}}")
_DESCRIPTION = "Description"
_ERROR = 2  # promptfoo's failureReason of an answer that failed
_MAX_FIELD_CHARS = 16 << 20


class _Prompt(NamedTuple):
    """The columns of one prompt of one provider."""

    provider: str
    label: str
    column: int  # of the answer
    status: int | None
    score: int | None


def is_promptfoo_table(file: TableFile) -> bool:
    """Return whether a CSV file is one that promptfoo wrote."""
    text = head_of(file.path).decode("utf-8-sig", errors="replace")
    try:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=file.separator)
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


def open_promptfoo_table(file: TableFile) -> Source:
    """Open such a file as the results that it holds; VoteError where it cannot be read."""
    temporary = TemporaryFile()
    limit = csv.field_size_limit(_MAX_FIELD_CHARS)
    try:
        with (
            file.path.open(newline="", encoding="utf-8-sig") as source,
            temporary.path.open("w", encoding="ascii") as lines,
        ):
            results = _results(csv.reader(source, delimiter=file.separator))
            lines.writelines(f"{json.dumps(result)}\n" for result in results)
    except UnicodeDecodeError as error:
        raise VoteError(f"{file}: is not UTF-8 (byte {error.start + 1} of a part); save it as UTF-8") from error
    except (csv.Error, ValueError) as error:
        raise VoteError(f"{file}: is not CSV as promptfoo writes it: {error}") from error
    finally:
        csv.field_size_limit(limit)
    if not temporary.path.stat().st_size:
        raise VoteError(f"{file}: holds no rows")
    written = TableFile(temporary.path, file.name, temporary=temporary)
    note = "a table of promptfoo's holds no prompts: they are its templates with the variables, or these alone"
    return replace(open_jsonl(written), unit="result", notes=[note])


def _results(rows: Iterator[list[str]]) -> Iterator[dict[str, object]]:
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
