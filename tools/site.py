"""Gather the pages of the documentation site: `python -m tools.site build/pages`, which `make site` then builds.

The pages of docs/ and the measurements of benchmarks/, the README as the first one, the tutorial written from its
notebook, and a reference generated from the parsers of all commands, the models of all configurations, and the
docstrings of what users import.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from p2l.common.program import Parser, parser_of

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PROGRAMS = {"p2l": "p2l.cli", "p2l-route": "route.cli", "coeval": "coeval.cli"}
CONFIGURATIONS = {
    "Offline training": ("p2l.training.train_config:TrainConfig", "train/training.md"),
    "Online training": ("p2l.online_training.online_config:OnlineConfig", "train/online.md"),
    "Router": ("route.config:RouterConfig", "route/routing.md"),
    "A model of the router": ("route.config:ModelConfig", "route/routing.md"),
}
"""Title: (model that checks the keys, page whose tables explain them)."""
MODULES = (
    "p2l.inference",
    "p2l.client",
    "p2l.votes",
    "p2l.leaderboard",
    "p2l.likelihood",
    "p2l.metrics",
    "p2l.simulate",
)
_ROOT_PAGES = ("AGENTS.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
_REDIRECT = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={address}">
<link rel="canonical" href="{address}">
<title>Moved</title>
<a href="{address}">This page has moved.</a>
"""


def gather(folder: Path) -> None:
    """Write every page into a folder, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("*.ipynb"))
    # docs/ itself is the root of the site, so links out of it and into it are one folder shorter.
    for page in folder.rglob("*.md"):
        page.write_text(page.read_text(encoding="utf-8").replace("](../../", "](../"), encoding="utf-8")
    (folder / "benchmarks").mkdir()
    for name in (*_ROOT_PAGES, "README.md", "benchmarks/RESULTS.md", "benchmarks/LOG.md"):
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](").replace("](../docs/", "](../")
        (folder / name.replace("README", "index")).write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "LICENSE", folder)
    shutil.copy(ROOT / "NOTICE", folder)
    for name in ("examples", "training_configs", "deploy"):
        shutil.copytree(ROOT / name, folder / name)
    pages = {
        "start/tutorial": notebook_page(DOCS / "start" / "tutorial.ipynb").replace("](../../", "](../"),
        "reference-commands": "\n".join(command_lines()),
        "reference-configuration": "\n".join(configuration_lines()),
        "reference-python": "\n".join(python_lines()),
    }
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text.rstrip() + "\n", encoding="utf-8")
    write_redirects(folder)


def write_redirects(folder: Path) -> None:
    """Write a page that leads on at each address that pages had before they stood in folders."""
    targets = {"experiments.html": "benchmarks/LOG.html"}
    for page in sorted(folder.glob("*/*.md")):
        group, name = page.parent.name, page.stem
        if group != "benchmarks":
            old_name = f"coeval-{name}" if group == "coeval" and name != "coeval" else name
            targets[f"{old_name}.html"] = f"{group}/{name}.html"
    for address, target in targets.items():
        (folder / address).write_text(_REDIRECT.format(address=target), encoding="utf-8")


def notebook_page(notebook: Path) -> str:
    """Return a notebook as a page: its texts, its code, and what the code printed when it was saved."""
    parts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        printed = "".join(text for output in cell.get("outputs", []) for text in output.get("text", []))
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts)


def command_lines() -> Iterator[str]:
    """Yield the reference of all commands: the help of each, as it is printed."""
    yield "# Commands\n"
    yield "Every `--help`, as it is printed; written from the parsers when the site is built.\n"
    for program, module in PROGRAMS.items():
        for title, commands in importlib.import_module(module).GROUPS.items():
            yield f"## {program}: {title}\n"
            for name, (entry, about) in commands.items():
                yield f"### {program} {name}\n\n{about.capitalize()}.\n"
                for parser in _with_subcommands(parser_of(entry)):
                    yield f"```text\n{parser.format_help().rstrip()}\n```\n"


def _with_subcommands(parser: Parser) -> Iterator[Parser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from (one for one in action.choices.values() if one.description)


def configuration_lines() -> Iterator[str]:
    """Yield the reference of configurations: keys, types, defaults and meaning from their models."""
    yield "# Configurations\n"
    yield "Keys of the YAML files, from the models that check them. An unknown key ends with the nearest one.\n"
    for title, (place, page) in CONFIGURATIONS.items():
        module, _, name = place.partition(":")
        model: type[BaseModel] = getattr(importlib.import_module(module), name)
        yield f"## {title}\n\n{inspect.getdoc(model) or ''} Explained in [{page}]({page}).\n"
        yield "| key | type | default | meaning |\n|---|---|---|---|"
        meanings = _meanings(page)
        properties = model.model_json_schema()["properties"]
        for key, field in model.model_fields.items():
            kind = _kind(properties[field.alias or key])
            default = "needed" if field.is_required() else _default(field)
            yield f"| `{key}` | {kind} | {default} | {meanings.get(key, _cell(field.description or ''))} |"
        yield ""


def _meanings(page: str) -> dict[str, str]:
    """Return what the tables of a page say of each key; a row may have several."""
    meanings: dict[str, str] = {}
    folder = page.partition("/")[0]
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        cells = re.split(r"(?<!\\)\|", line)
        if len(cells) > 3:
            # The reference stands in the root of the site, the page in a folder.
            text = cells[-2].strip().replace("](#", f"]({page}#")
            text = re.sub(r"\]\((?!https?:|\.\./|\w+/)", f"]({folder}/", text).replace("](../", "](")
            meanings |= dict.fromkeys(re.findall(r"`(\w+)`", cells[1]), text)
    return meanings


def _kind(schema: dict[str, Any]) -> str:
    """Return the type of a value in words."""
    if "enum" in schema:
        return " or ".join(f"`{one}`" for one in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(one) for one in schema["anyOf"] if one.get("type") != "null"))
    if "const" in schema:
        return f"`{schema['const']}`"
    name = str(schema.get("type", "object"))
    return {"array": "list", "object": "mapping", "boolean": "true or false"}.get(name, name)


def _default(field: Any) -> str:
    value = field.default if field.default is not PydanticUndefined else field.default_factory()
    return "" if value is None else f"`{_cell(str(value))}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def python_lines() -> Iterator[str]:
    """Yield the reference of the modules that users import: signatures and docstrings of what they define."""
    yield "# Python\n"
    yield "What users import, from its docstrings.\n"
    for name in MODULES:
        module = importlib.import_module(name)
        yield f"## {name}\n\n{inspect.getdoc(module) or ''}\n"
        for member, thing in _public(module):
            yield f"### {name}.{member}\n\n```python\n{_signature(member, thing)}\n```\n\n{_doc(thing)}\n"
            if inspect.isclass(thing):
                for method, function in inspect.getmembers(thing, inspect.isfunction):
                    if (
                        not method.startswith("_")
                        and function.__qualname__.startswith(thing.__name__)
                        and function.__doc__
                    ):
                        yield f"**`{_signature(method, function)}`**\n\n{_doc(function)}\n"


def _public(module: Any) -> Iterator[tuple[str, Any]]:
    names: Sequence[str] = getattr(module, "__all__", None) or [
        name for name in vars(module) if not name.startswith("_")
    ]
    for name in names:
        thing = getattr(module, name)
        ours = (
            getattr(thing, "__module__", "").startswith("p2l.") or getattr(thing, "__module__", "") == module.__name__
        )
        is_own = hasattr(module, "__all__") or thing.__module__ == module.__name__ if ours else False
        if is_own and (inspect.isclass(thing) or inspect.isfunction(thing)) and thing.__doc__:
            yield name, thing


def _signature(name: str, thing: Any) -> str:
    try:
        return re.sub(r"<[^<>]*(<[^<>]* at 0x\w+>|at 0x\w+)>", "...", f"{name}{inspect.signature(thing)}")
    except (TypeError, ValueError):
        return name


def _doc(thing: Any) -> str:
    """Return a docstring whose sections (Attributes:, Raises:) are lists."""
    text = inspect.getdoc(thing) or ""
    text = re.sub(r"^(Args|Attributes|Raises|Returns):$", r"\n**\1**\n", text, flags=re.MULTILINE)
    return re.sub(r"^    (\w[\w, ]*): ", r"- `\1`: ", text, flags=re.MULTILINE)


def main() -> None:
    """Gather the pages into the folder named."""
    flags = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__.split("\n")[0])
    flags.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "pages")
    gather(flags.parse_args().folder)


if __name__ == "__main__":
    main()
