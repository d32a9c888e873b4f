"""Render the Helm chart of `deploy/chart` where there is no helm: the few forms of its templates, and nothing else.

    python -m tools.chart --set ingress.enabled=true --set-file router.config=deploy/router.yaml | kubectl apply -f -

A template may hold `{{ .Values.a.b }}`, `{{ toJson .Values.a.b }}` and blocks from `{{- if .Values.a.b }}` to
`{{- end }}`, each of the two a line; helm renders the same from them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from p2l.common.errors import InputError

CHART = Path(__file__).resolve().parents[1] / "deploy" / "chart"
_BLOCK = re.compile(r"^\{\{- if \.Values\.([\w.]+) \}\}\n(.*?)^\{\{- end \}\}\n", re.MULTILINE | re.DOTALL)
_VALUE = re.compile(r"\{\{ (toJson )?\.Values\.([\w.]+) \}\}")


def value_at(values: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path; raise InputError where there is none."""
    value: Any = values
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise InputError(f"{path}: is no value of the chart")
        value = value[name]
    return value


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """Return the text of a template; raise InputError for a form that only helm knows, or a value that is not there."""

    def block(match: re.Match[str]) -> str:
        return match[2] if value_at(values, match[1]) else ""

    def value(match: re.Match[str]) -> str:
        found = value_at(values, match[2])
        return json.dumps(found) if match[1] else str(found)

    text = _VALUE.sub(value, _BLOCK.sub(block, template))
    # Braces of YAML's own may close side by side.
    if re.search(r"\{\{[- ]", text):
        raise InputError("a template holds a form that is not known here")
    return text


def chart(changes: Mapping[str, Any]) -> dict[str, str]:
    """Return the manifests of the chart by the names of their files, with changed values by dotted paths."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    for path, changed in changes.items():
        value_at(values, path)
        parent, _, name = path.rpartition(".")
        (value_at(values, parent) if parent else values)[name] = changed
    paths = sorted((CHART / "templates").glob("*.yaml"))
    return {path.stem: rendered(path.read_text(encoding="utf-8"), values) for path in paths}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.chart", description=__doc__)
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="a value, as YAML")
    parser.add_argument(
        "--set-file", action="append", default=[], metavar="PATH=FILE", help="a value from a file's text"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    flags = build_parser().parse_args(argv)
    changes: dict[str, Any] = {}
    for path, _, text in (each.partition("=") for each in flags.set):
        changes[path] = yaml.safe_load(text)
    for path, _, file in (each.partition("=") for each in flags.set_file):
        changes[path] = Path(file).read_text(encoding="utf-8")
    try:
        print("---\n".join(chart(changes).values()), end="")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
