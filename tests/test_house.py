"""The rules of the house that a program can check: what imports what, what is public, how long things are."""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import pytest

import coeval
import p2l
import route
from tests.conftest import ROOT, Command

HEAVY = ("torch", "deepspeed", "datasets", "transformers", "fastapi", "matplotlib", "pandas")
LIGHT = ("p2l", "p2l.likelihood", "p2l.leaderboard", "p2l.metrics", "p2l.votes")
TORCH = {"torch", "deepspeed", "transformers", "safetensors"}
PACKAGES = (p2l, route, coeval)


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package.__name__).rglob("*.py"))
MODULES = {name_of(path) for path in SOURCES}
FOLDERS = sorted({path.parent for path in SOURCES})
CODE = [
    *SOURCES,
    *sorted(path for folder in ("tests", "benchmarks", "tools", "examples") for path in (ROOT / folder).rglob("*.py")),
]

PUBLIC = (
    "p2l.train",
    "p2l.endpoint",
    "p2l.eval",
    "p2l.eval_chrono",
    "p2l.auto_evals",
    "p2l.simulate",
    "p2l.cli",
    "p2l.client",
    "p2l.inference",
    "p2l.likelihood",
    "p2l.leaderboard",
    "p2l.metrics",
    "p2l.votes",
    "p2l.model",
    "p2l.training",
    "p2l.online_training.online_train",
    "p2l.online_training.geometric_buffer",
    "p2l.online_training.replay_buffer",
    "p2l.online_training.timestamps",
    "p2l.online_training.visualize",
    "route.openai_server",
    "router.openai_server",
    "coeval",
    "coeval.cli",
)
"""Module paths that the documentation promises."""

LONGEST_FUNCTION, LONGEST_FILE, SHORTEST_FILE = 60, 600, 60
MOST_MODULES, MOST_ROOT_MODULES = 20, 16
SHORT = {
    "p2l/commands/examples.py": "a command that copies files",
    "p2l/agents/skill.py": "a command that copies a file",
    "p2l/public/sample.py": "a file of the package, read",
    "p2l/simulation/config.py": "settings, which the arena, its models and its prompts share",
    "p2l/demo/services.py": "services as processes, which the demo, a benchmark and tests share",
    "p2l/common/cache.py": "one class, which the endpoint and the router share",
    "p2l/common/version.py": "the version, which a build reads without importing",
    "p2l/online_training/geometric_buffer.py": "a command of a promised path",
    "p2l/online_training/replay_buffer.py": "a command of a promised path",
    "p2l/endpoint.py": "a command of a promised path, whose flags are in p2l/serving/settings.py",
    "route/cli.py": "the table of commands",
    "route/application/settings.py": "settings, which import nothing",
    "route/application/openapi.py": "a description that is kept as data, in openapi.yaml beside it",
    "coeval/__main__.py": "python -m coeval",
    "coeval/errors.py": "the exceptions, which import nothing",
}
"""Files under 60 lines, each with its reason."""


@pytest.mark.parametrize("module", LIGHT)
def test_a_light_import_brings_nothing_heavy(command: Command, module: str) -> None:
    show = f"import sys, json, {module}; print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    done = command("python", "-c", show)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize("name", PUBLIC)
def test_a_promised_module_is_there(name: str) -> None:
    assert importlib.import_module(name).__doc__


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_is_and_a_package_what_is_public(path: Path) -> None:
    assert ast.get_docstring(tree_of(path))
    public = declared(tree_of(path))
    if path.name != "__init__.py":
        assert public is None, "__all__ stands in packages alone"
    elif public is not None:
        package = importlib.import_module(name_of(path))
        assert public == sorted(public, key=constants_classes_functions)
        assert [name for name in public if not hasattr(package, name)] == []


def declared(tree: ast.Module) -> list[str] | None:
    """The names in a module's `__all__`, if it has one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    return None


def constants_classes_functions(name: str) -> tuple[int, str]:
    """The order that ruff gives `__all__`."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(node: ast.AST, module: str, *, types: bool = False) -> Iterator[str]:
    """Names of modules below a statement; `from p2l.model import heads` is p2l.model.heads.

    With `types` those that types alone need count too, and what `import_module` is given by name.
    """
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not types:
        return
    if types and isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        yield from (str(ast.literal_eval(name)) for name in node.args if isinstance(name, ast.Constant))
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{module}: relative imports hide where things come from"
        whole = [f"{node.module}.{alias.name}" for alias in node.names]
        inner = [name for name in whole if name in MODULES]
        yield from inner or [str(node.module)]
    for child in ast.iter_child_nodes(node):
        yield from imported(child, module, types=types)


@cache
def graph(*, types: bool = False) -> dict[str, set[str]]:
    """Which modules each module imports, at the top or within a function; with `types` in every other way too."""
    return {
        name_of(path): {name for node in tree_of(path).body for name in imported(node, name_of(path), types=types)}
        for path in SOURCES
    }


def layer(module: str) -> str:
    """The folder of a module; a module in the root of a package is a layer of its own."""
    package, _, rest = module.partition(".")
    folder = rest if (ROOT / module.replace(".", "/")).is_dir() else rest.rpartition(".")[0]
    return f"{package}.{folder}" if folder else module


def layers(*, types: bool = False) -> dict[str, set[str]]:
    """Which layers each layer imports."""
    edges: dict[str, set[str]] = defaultdict(set)
    for module, names in graph(types=types).items():
        edges[layer(module)] |= {layer(name) for name in names if name in MODULES} - {layer(module)}
    return edges


def reached(start: str, edges: dict[str, set[str]]) -> set[str]:
    """Every node that `start` leads to, itself included."""
    seen, waiting = {start}, [start]
    while waiting:
        new = edges.get(waiting.pop(), set()) - seen
        seen |= new
        waiting += new
    return seen


@pytest.mark.parametrize("edges", [graph, layers], ids=["modules", "folders"])
def test_imports_go_in_no_circle(edges) -> None:
    """Imports that wait inside a function count too, and those of types, and modules imported by a name in quotes."""
    arrows = edges(types=True)
    assert [name for name in arrows if any(name in reached(other, arrows) for other in arrows[name] - {name})] == []


SHARED = {
    "p2l.common",
    "p2l.common.pages",
    "p2l.common.report",
    "p2l.likelihood",
    "p2l.leaderboard",
    "p2l.metrics",
    "p2l.votes",
}
"""What the router and CoEval take from p2l: light, without torch."""
SCORING = {"p2l.inference", "p2l.serving", "p2l.client", "p2l.public"}
"""What the router asks for scores besides; only its evaluation, which trains models, looks further into p2l."""


def test_the_router_and_coeval_take_what_is_light_from_p2l() -> None:
    for name, others in layers().items():
        if name.startswith("coeval"):
            assert {other for other in others if other.startswith("p2l")} <= SHARED, name
        elif name.startswith("route") and name != "route.evaluation":
            assert {other for other in others if other.startswith("p2l")} <= SHARED | SCORING, name


def test_packages_depend_one_way() -> None:
    """The model knows nothing of routing, routing nothing of CoEval, and nothing in the product of its tests."""
    below = {"p2l": {"route", "coeval"}, "route": {"coeval"}, "coeval": set()}
    for name, others in graph().items():
        forbidden = below[name.split(".")[0]] | {"benchmarks", "tests", "router"}
        assert {other.split(".")[0] for other in others} & forbidden == set(), name


@pytest.mark.parametrize("module", [name for name in LIGHT if name != "p2l"])
def test_mathematics_and_votes_do_not_know_torch(module: str) -> None:
    """Not at import, and not later either: no function of theirs imports it."""
    packages = {name.split(".")[0] for name in reached(module, graph())}
    assert packages & TORCH == set()


def test_no_part_imports_a_command() -> None:
    """Commands are at the top; only other commands may start them. `p2l.simulate` is a library as well."""
    commands = {name_of(path) for path in SOURCES if has_main(tree_of(path)) and name_of(path).startswith("p2l")}
    for name in sorted(name for name in graph().keys() - commands if name.startswith("p2l")):
        assert graph()[name] & (commands - {"p2l.simulate"}) == set(), name


def requirements(*lines: str) -> set[str]:
    """The distributions that lines of requirements name, spelled as modules are."""
    return {re.split(r"[\s<>=\[;]", line)[0].lower().replace("-", "_") for line in lines}


DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "opentelemetry": "opentelemetry_sdk",
    "google": "google_auth",
    "ppi_py": "ppi_python",
    "sklearn": "scikit_learn",
}


def test_what_is_imported_is_declared() -> None:
    """A package that only comes along with another may leave with it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    names = {name.split(".")[0] for imports in graph().values() for name in imports} - sys.stdlib_module_names
    missing = {DISTRIBUTIONS.get(name, name) for name in names - {"p2l", "route", "coeval", "llvmlite"}}
    assert missing - requirements(*project["dependencies"], *itertools.chain(*extras.values())) == set()


def test_what_benchmarks_import_is_installed_for_them() -> None:
    """They have an environment of their own, of what the products take and a file beside them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: lines for name, lines in project["optional-dependencies"].items() if name != "dev"}
    beside = (ROOT / "benchmarks" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    installed = requirements(*project["dependencies"], *itertools.chain(*extras.values()), *beside)
    for path in (ROOT / "benchmarks").rglob("*.py"):
        names = {name.split(".")[0] for name in imported(tree_of(path), str(path))} - sys.stdlib_module_names
        others = names - {"p2l", "route", "coeval", "benchmarks", "tests", "tools"}
        others -= {"nncf", "onnxruntime"}  # of a flag whose help says how to install them
        assert {DISTRIBUTIONS.get(name, name) for name in others} - installed == set(), path


def has_main(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body)


PICKLES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
SAFE_SETTINGS = {"allow_pickle": False, "weights_only": True, "trust_remote_code": False, "use_safetensors": True}
"""What a library is told about files that may come from others, wherever it is told anything."""


def unsafe_readings(tree: ast.Module) -> Iterator[str]:
    """Yield what opens, or lets a library open, a file that could run code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in PICKLES)
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in PICKLES:
            yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name != "UnpicklingError")
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            settings = {str(keyword.arg): ast.unparse(keyword.value) for keyword in node.keywords}
            if called in {"eval", "exec"} or called.endswith((".read_pickle", ".unsafe_load", ".full_load")):
                yield called
            if called == "torch.load" and "weights_only" not in settings:
                yield called
            yield from (
                f"{called}({name}={settings[name]})"
                for name, safe in SAFE_SETTINGS.items()
                if settings.get(name, str(safe)) != str(safe)
            )


def test_nothing_that_can_run_code_is_opened() -> None:
    """A file may come from anybody: no pickle, no remote code, no evaluated text."""
    found = {f"{path.relative_to(ROOT)}: {what}" for path in SOURCES for what in unsafe_readings(tree_of(path))}
    assert found == set()


def test_roots_and_folders_are_small() -> None:
    """The root of a package holds what users type or import; a folder holds what fits on a screen."""
    for package in PACKAGES:
        assert len(list((ROOT / package.__name__).glob("*.py"))) <= MOST_ROOT_MODULES
    modules = {folder: [path for path in folder.glob("*.py") if path.name != "__init__.py"] for folder in FOLDERS}
    assert {folder.name: len(inner) for folder, inner in modules.items() if len(inner) > MOST_MODULES} == {}


def lengths(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path.relative_to(ROOT)}:{node.name}", int(node.end_lineno or 0) - node.lineno + 1


def test_functions_and_files_have_the_length_of_a_concept() -> None:
    functions = dict(pair for path in CODE for pair in lengths(path))
    assert {name: length for name, length in functions.items() if length > LONGEST_FUNCTION} == {}
    files = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8").count("\n") for path in CODE}
    assert {name: lines for name, lines in files.items() if lines > LONGEST_FILE} == {}
    product = {path.relative_to(ROOT).as_posix() for path in SOURCES if path.name != "__init__.py"}
    short = {name for name in product if files[name] < SHORTEST_FILE}
    assert short == set(SHORT), "a file under 60 lines needs a reason here"


# Answers of the endpoint: pydantic writes them where they are served, the client reads them without it.
SAME_MEANING = {"PairInterval", "PairVote"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_a_class_name_means_one_thing_in_a_package(package) -> None:
    places = defaultdict(list)
    for path in (path for path in SOURCES if (ROOT / package.__name__) in path.parents):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.relative_to(ROOT).as_posix())
    assert {name: files for name, files in places.items() if len(files) > 1 and name not in SAME_MEANING} == {}
