"""A configuration out of a conversation: a dozen questions, or one sentence that a model turns into a task.

Each answer may be empty, which takes what stands in brackets. What comes out is checked as `coeval run` checks it, and
says in comments what each part is for and what else could stand there.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from coeval.calling.calls import Asking, Call
from coeval.config.keys import Keys
from coeval.config.loading import load_config
from coeval.config.reading import ConfigErrors
from coeval.errors import RunError
from coeval.ingest.answers import model_name
from coeval.interfaces import INTERFACES, VIRTUAL
from coeval.parsing import MalformedAnswerError, read_object
from coeval.schema import Config, Model
from p2l.common.cli import nearest

Ask = Callable[[str], str]  # shows a question and returns the answer; raises EOFError where nobody answers any more
Say = Callable[[str], None]
JSON = dict[str, Any]
_ATTEMPTS = 3
_STATIC_RUBRIC = {"accuracy": "What it says is right.", "clarity": "A reader understands it at once."}


class Wizard:
    """The conversation."""

    def __init__(self, ask: Ask, say: Say, keys: Keys) -> None:
        self._ask = ask
        self._say = say
        self._keys = keys

    def task(self) -> JSON:
        """Ask what the task is: six questions."""
        self._say("What shall models be compared on? An empty answer takes what stands in brackets.")
        description = self._text("What do they have to do, in a sentence?", needed=True)
        task: JSON = {
            "name": self._text("A name for this task", task_name(description), check=_check_name),
            "description": description,
            "output_description": self._text("What does a good answer look like?", "A short text."),
        }
        question = "In what do answers differ? `tone: warm, cold; length: short, long`, or auto: teachers say"
        task["target_attributes"] = _attributes(self._text(question, "auto", _attributes))
        rubric = self._text("What makes an answer good? `accuracy: ...; clarity: ...`, or auto", "auto", _rubric)
        task["rubric"] = _rubric(rubric)
        task["total"] = int(self._text("How many items shall each teacher write?", "20", _number))
        return task

    def models(self) -> list[JSON]:
        """Ask who takes part: three questions."""
        self._say("Models are `provider:model`, such as openai:gpt-4o-mini, or the model alone, with commas between.")
        students = self._models("Which models answer?", needed=True)
        judges = self._models("Which models judge?", students)
        teachers = self._models("Which models write the items?", judges)
        roles: dict[str, list[str]] = {}
        for role, names in (("teacher", teachers), ("student", students), ("judge", judges)):
            for name in names:
                roles.setdefault(name, []).append(role)
        return _models(roles)

    def experiment(self, task: JSON, models: Sequence[JSON]) -> JSON:
        """Ask how the run of these models goes: three questions."""
        students = sum("student" in model["roles"] for model in models)

        def check_mode(text: str) -> None:
            if text not in ("scores", "pairs"):
                raise ValueError("write scores or pairs")
            if text == "pairs" and students < 2:
                raise ValueError("one model answers, and pairs need two; write scores")

        pairs = self._text("Do judges score each answer, or compare pairs? scores or pairs", "scores", check_mode)
        budget = self._text("The most dollars that the run may spend, or none", "none", _budget)
        folder = self._text("The folder for runs", "runs")
        task["evaluation_mode"] = "pairwise" if pairs == "pairs" else "single"
        experiment: JSON = {"id": str(task["name"]), "storage_folder": folder}
        return experiment | ({} if budget == "none" else {"budget_usd": float(budget.lstrip("$"))})

    def _text(
        self, question: str, default: str = "", check: Callable[[str], object] | None = None, *, needed: bool = False
    ) -> str:
        """Ask until the answer can be used."""
        prompt = f"{question}{f' [{default}]' if default else ''}"
        prompt += " " if prompt.endswith("?") else ": "
        while True:
            try:
                answer = self._ask(prompt).strip() or default
            except EOFError:
                if needed:
                    raise RunError(f"no answer to: {question}") from None
                return default
            try:
                if needed and not answer:
                    raise ValueError("this needs an answer")
                if check is not None:
                    check(answer)
            except ValueError as error:
                self._say(f"  {error}")
                continue
            return answer

    def _models(self, question: str, default: Sequence[str] = (), *, needed: bool = False) -> list[str]:
        return _listed(self._text(question, ", ".join(default), self._check_models, needed=needed))

    def _check_models(self, answer: str) -> None:
        if not _listed(answer):
            raise ValueError("name a model")
        for identity in _listed(answer):
            interface, parted, _ = identity.partition(":")
            names = [name for name in (*INTERFACES, "auto") if name not in VIRTUAL]
            if parted and interface not in names:
                near = nearest(interface, names) or f"; there are {', '.join(names)}"
                raise ValueError(f"there is no provider {interface!r}{near}")
        models = _models(dict.fromkeys(_listed(answer), ("teacher", "student", "judge")))
        problems = mistakes(_whole({"name": "x"}, models), self._keys)
        for problem in problems:
            if problem.startswith("models."):
                raise ValueError(problem)


def _listed(answer: str) -> list[str]:
    """Return the names between commas, each once."""
    return list(dict.fromkeys(name.strip() for name in answer.split(",") if name.strip()))


def _models(roles: Mapping[str, Sequence[str]]) -> list[JSON]:
    """Return the entries of models; one whose name another provider's has already is named after its own, too."""
    entries: dict[str, JSON] = {}
    for identity, of in roles.items():
        entry = _model(identity, of)
        names = [entry["name"], f"{entry['interface']}-{entry['name']}"]
        names += [f"{names[1]}-{number}" for number in range(2, 2 + len(roles))]
        entry["name"] = next(name for name in names if name not in entries)
        entries[entry["name"]] = entry
    return list(entries.values())


def _model(name: str, roles: Sequence[str]) -> JSON:
    interface, parted, identity = name.partition(":")
    interface, identity = (interface, identity) if parted else ("auto", name)
    parameters = {"model": identity}
    return {"name": model_name(identity), "interface": interface, "roles": list(roles), "parameters": parameters}


def task_name(description: str) -> str:
    """Return a name of up to three words of a sentence."""
    words = [word for word in re.findall(r"[a-z0-9]+", description.lower()) if len(word) > 3]
    return "-".join(words[:3])[:40] or "task"


def _check_name(text: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", text) or "__" in text:
        raise ValueError("letters (a-z, A-Z), digits, - and _ alone, and no __")


def _parts(text: str) -> dict[str, str]:
    parts = dict(part.partition(":")[::2] for part in text.split(";") if part.strip())
    if not parts or not all(name.strip() and value.strip() for name, value in parts.items()):
        raise ValueError("write `name: text; name: text`, or auto")
    return {name.strip(): value.strip() for name, value in parts.items()}


def _attributes(text: str) -> str | dict[str, list[str]]:
    if text == "auto":
        return text
    attributes = {name: _listed(values) for name, values in _parts(text).items()}
    if bare := [name for name, values in attributes.items() if not values]:
        raise ValueError(f"{bare[0]} has no values")
    return attributes


def _rubric(text: str) -> str | dict[str, str]:
    return text if text == "auto" else _parts(text)


def _number(text: str) -> None:
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise ValueError("a whole number of at least 1")


def _budget(text: str) -> None:
    if text == "none":
        return
    if not re.fullmatch(r"\$?\d{0,9}\.?\d{1,9}", text) or not float(text.lstrip("$")):
        raise ValueError("a number of dollars above 0, or none")


# One sentence, of which a model makes a task.

_SENTENCE = """Design a test set for language models. What it is for, in the user's words: {sentence}

Reply with a JSON object alone, with these keys:
"name": short, in lower case, with hyphens
"description": an instruction of one sentence to the model that is tested
"output_description": what an answer looks like
"target_attributes": an object, attribute of answers -> list of two to four values, which together span what answers \
have to be
"nuanced_attributes": the same, of inputs, for differences that do not change the right answer
"rubric": an object, three to five factors in snake_case -> one sentence that tells a good answer from a bad one
"""


async def task_from(sentence: str, model: Model, asking: Asking) -> JSON:
    """Return the task that a model makes of a sentence. Raise RunError if it makes none, CallError if it fails."""
    why = ""
    for attempt in range(_ATTEMPTS):
        prompt = _SENTENCE.replace("{sentence}", json.dumps(sentence, ensure_ascii=False))
        call = Call(model, "teacher", None, "", ("wizard", str(attempt)), prompt, attempt)
        try:
            return _read_task(read_object((await asking.ask(call)).text, lambda reply: "rubric" in reply))
        except (MalformedAnswerError, ValueError) as error:
            why = str(error)
    raise RunError(f"{model.name} wrote no task in {_ATTEMPTS} attempts: {why}; answer the questions instead")


def _read_task(reply: Mapping[str, Any]) -> JSON:
    texts = {key: reply.get(key) for key in ("description", "output_description")}
    if not all(isinstance(text, str) and text.strip() for text in texts.values()):
        raise ValueError("description or output_description is missing")
    maps = {key: reply.get(key) for key in ("target_attributes", "nuanced_attributes", "rubric")}
    if not isinstance(maps["target_attributes"], dict) or not isinstance(maps["rubric"], dict):
        raise ValueError("target_attributes or rubric is not an object")
    maps["nuanced_attributes"] = maps["nuanced_attributes"] if isinstance(maps["nuanced_attributes"], dict) else {}
    name = re.sub(r"[^a-z0-9]+", "-", str(reply.get("name", "")).lower()).strip("-")
    return {"name": name[:40] or task_name(str(texts["description"])), **texts, **maps, "total": 20}


def author_config(name: str, keys: Keys) -> Config:
    """Return a configuration with one model, to write a task with. Raise ConfigErrors if it cannot be used."""
    try:
        return _loaded(_whole({"name": "x"}, [_model(name, ["teacher", "student", "judge"])]), keys)
    except ConfigErrors as errors:
        why = [re.sub(r"^\S+\.interface: (auto: )?", "", _plain(message)) for message in errors.messages]
        raise ConfigErrors([f"--model {name}: {message}" for message in why]) from None


# The configuration as a file.


def _whole(task: JSON, models: Sequence[JSON], experiment: JSON | None = None) -> JSON:
    """Return the configuration of a task as the wizard knows it."""
    target = task.get("target_attributes", "auto")
    drawn = [1, 2] if isinstance(target, str) else [1, max(1, len(target))]
    nuanced = task.get("nuanced_attributes", "auto")
    whole_task = {
        "name": task["name"],
        "description": task.get("description", "x"),
        "output_description": task.get("output_description", "x"),
        "target_attributes": target,
        "nuanced_attributes": nuanced,
        "sampling": {"target": drawn, "nuance": [0, 1] if nuanced else [0, 0], "total": task.get("total", 20)},
        "rubric": task.get("rubric", _STATIC_RUBRIC),
        "evaluation_mode": task.get("evaluation_mode", "single"),
    }
    return {
        "models": list(models),
        "tasks": [whole_task],
        "experiment": experiment or {"id": "wizard", "storage_folder": tempfile.gettempdir()},
    }


def _loaded(raw: Mapping[str, Any], keys: Keys) -> Config:
    with tempfile.TemporaryDirectory(prefix="coeval-") as folder:
        path = Path(folder) / "wizard.yaml"
        path.write_text(yaml.safe_dump(dict(raw), sort_keys=False, allow_unicode=True), encoding="utf-8")
        return load_config(path, keys=keys, fresh=False)


def mistakes(raw: Mapping[str, Any], keys: Keys) -> tuple[str, ...]:
    """Return what is wrong with a configuration, without the name of a file."""
    try:
        _loaded(raw, keys)
    except ConfigErrors as errors:
        return tuple(map(_plain, errors.messages))
    return ()


def _plain(message: str) -> str:
    """Return a mistake without the file that it is in, which is gone."""
    return re.sub(r"^\S*wizard\.yaml:?\d*:? ?", "", message)


_COMMENTS = {
    "models": (
        "Who takes part. `interface: auto` takes the cheapest provider that you have a key of; a role may have",
        "parameters of its own under role_parameters. Keys come from the environment or keys.yaml.",
    ),
    "tasks": (
        "What is tested. Attributes and rubric that say `auto` are proposed by the teachers; `coeval generate` writes",
        "their proposals into a file, to be read before a run. sampling: how many attributes an item shows (target: of",
        "the answer, nuance: of the input), and how many items each teacher writes (total).",
    ),
    "experiment": (
        "How it runs: id and storage_folder name the run's folder; quota and budget_usd bound what it may use.",
    ),
}


def config_text(task: JSON, models: Sequence[JSON], experiment: JSON, cost: str) -> str:
    """Return the configuration as YAML with comments."""
    head = ["A configuration of CoEval; docs/coeval/config.md has every key.", *cost.splitlines()]
    parts = ["\n".join(f"# {line}".rstrip() for line in head)]
    for name, value in _whole(task, models, experiment).items():
        body = yaml.safe_dump({name: value}, sort_keys=False, allow_unicode=True, width=110)
        parts.append("".join(f"# {line}\n" for line in _COMMENTS[name]) + body)
    return "\n\n".join(part.rstrip() for part in parts) + "\n"
