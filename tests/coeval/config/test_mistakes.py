"""Several mistakes together: each is told, and nothing that only follows from another."""

from pathlib import Path
from typing import Any

import pytest

from coeval.config.keys import Keys
from coeval.config.loading import load_config
from coeval.config.reading import ConfigErrors
from tests.coeval.config.configs import GOOD, Change, experiment, mistakes, model, put, task, write


def places(folder: Path, change: Change, **options: Any) -> list[str]:
    """The keys that messages name."""
    return [line.split(": ")[1] for line in mistakes(folder, change, **options)]


def all_of(*changes: Change) -> Change:
    def change(raw: Any) -> None:
        for one in changes:
            one(raw)

    return change


LABEL = {"name": "lab", "interface": "label", "roles": ["judge"]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            experiment(quota={"ants": {"max_call": 3}, "bee": 7, "cat": 1}),
            ["quota.ants.max_call", "quota.ants", "quota.bee", "quota.cat", "quota.cat"],
        ),
        (all_of(lambda raw: raw.pop("tasks"), experiment(resume_from="gone")), ["resume_from"]),
        (all_of(experiment(storage_folder=7), experiment(resume_from="gone")), ["storage_folder"]),
        (put("models", 3), ["models"]),
        (put("models", None), ["models"]),
        (all_of(put("models", None), experiment(quota={"ant": {"max_calls": 1}})), ["models"]),
        (all_of(put("models", 0, "ant"), experiment(quota={"ant": {"max_calls": 1}})), ["models[0]"]),
        (all_of(model(name=7), task(prompt_library={"test.ant": "x"})), ["models[0].name"]),
        (model(name=" "), ["models[0].name"]),
        (model(name="a\nb"), ["models.a\\nb.name"]),
        (model(name="y" * 73), [f"models.{'y' * 73}.name"]),
        (model(roles=["techer", "studnt"]), ["models.ant.roles[0]", "models.ant.roles[1]"]),
        (model(roles=7), ["models.ant.roles"]),
        (model(parameters={"temperature": float("nan")}), ["models.ant.parameters.temperature"]),
        (model(interface="auto", parameters={"model": 7}), ["models.ant.parameters.model"]),
        (put("tasks", [None]), ["tasks[0]"]),
        (put("tasks", "sums"), ["tasks"]),
        (task(target_attributes={"size": 1}, label_attributes=["size"]), ["tasks.sums.target_attributes.size"]),
        (task(target_attributes=1, target_attributes_seed={"a": ["b"]}), ["tasks.sums.target_attributes"]),
        (task(evaluation_mode="pairs", pairwise={"pairs": 3}), ["tasks.sums.evaluation_mode"]),
        (put("tasks", 0, "sampling", "target", None), ["tasks.sums.sampling.target"]),
        (
            all_of(lambda raw: raw["models"].append(LABEL), task(label_attributes=["sizes"])),
            ["tasks.sums.label_attributes[0]"],
        ),
        (
            all_of(
                lambda raw: raw["models"].append({"name": "m", "interface": "metric", "roles": ["judge"]}),
                task(rubric={"a": None, "b": 3, "c": {"metric": ["bleu"]}}),
            ),
            ["tasks.sums.rubric.a", "tasks.sums.rubric.b", "tasks.sums.rubric.c"],
        ),
        (experiment(storage_folder="y" * 300), ["storage_folder"]),
        (experiment(id="y" * 300), ["id"]),
    ],
)
def test_each_mistake_is_told_and_nothing_that_follows_from_it(
    tmp_path: Path, change: Change, expected: list[str]
) -> None:
    found = [place.removeprefix("experiment.") for place in places(tmp_path, change)]
    assert sorted(found) == sorted(expected)


def _misspelt(*where: str | int) -> Change:
    """Misspell a key, the last of these."""

    def change(raw: Any) -> None:
        *path, last = where
        for part in path:
            raw = raw[part]
        raw[f"{str(last)[:-1]}x"] = raw.pop(last)

    return change


@pytest.mark.parametrize(
    "where",
    [
        *[(key,) for key in GOOD],
        *[("models", 0, key) for key in GOOD["models"][0]],
        *[("tasks", 0, key) for key in GOOD["tasks"][0]],
        *[("tasks", 0, "sampling", key) for key in GOOD["tasks"][0]["sampling"]],
        *[("experiment", key) for key in GOOD["experiment"]],
    ],
    ids=lambda where: ".".join(map(str, where)),
)
def test_one_typo_is_one_line(tmp_path: Path, where: tuple[str | int, ...]) -> None:
    (line,) = mistakes(tmp_path, _misspelt(*where))
    assert f"did you mean '{where[-1]}'?" in line


@pytest.mark.parametrize("key", ["sample", "sample.bee"])
def test_a_sample_prompt_that_nobody_is_asked_is_no_mistake(tmp_path: Path, key: str) -> None:
    """The second model is not a teacher; the items of a task without any to write were ingested."""
    library = task(prompt_library={key: "Write {task_description} with {target_attributes}."})
    assert places(tmp_path, library) == []
    (tmp_path / "runs" / "first" / "phase3_datapoints").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "phase3_datapoints" / "sums.mmlu.datapoints.jsonl").touch()
    none = put("tasks", 0, "sampling", "total", 0)
    assert places(tmp_path, all_of(library, none, put("models", 0, "roles", ["student"]))) == []


def test_a_key_written_twice_hides_no_other_mistake(tmp_path: Path) -> None:
    path = write(tmp_path, model(interface="opnai"))
    path.write_text(f"{path.read_text()}  probe_mode: full\n  probe_mode: ful\n")
    with pytest.raises(ConfigErrors) as caught:
        load_config(path, keys=Keys())
    interface, twice, mode = caught.value.messages
    assert "models.ant.interface" in interface
    assert "experiment.probe_mode: is written twice" in twice
    assert "must be one of full, resume, disable" in mode


def test_a_mistake_in_an_anchor_is_told_wherever_it_is_used(tmp_path: Path) -> None:
    path = write(tmp_path)
    text = path.read_text().replace("parameters:\n    skill: 0.5", "parameters: &more {temperature: 9}")
    path.write_text(
        text.replace("tasks:", "- {name: cat, interface: mock, roles: student, parameters: {<<: *more}}\ntasks:")
    )
    with pytest.raises(ConfigErrors) as caught:
        load_config(path, keys=Keys())
    assert ["bee" in line or "cat" in line for line in caught.value.messages] == [True, True]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_byte_order_mark_and_foreign_letters_are_no_mistake(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path, task(description="Größer als 2? ☃"))
    path.write_text(path.read_text(encoding="utf-8"), encoding=encoding)
    assert load_config(path, keys=Keys()).tasks[0].description == "Größer als 2? ☃"


def test_what_is_no_file_of_text_is_told(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text(), encoding="utf-16")
    for what, why in ((path, ":1: is not text in UTF-8"), (tmp_path, "cannot be read: Is a directory")):
        with pytest.raises(ConfigErrors, match=why):
            load_config(what, keys=Keys())


def test_a_megabyte_is_read_like_any_other_file(tmp_path: Path) -> None:
    values = [f"value number {number}" for number in range(50_000)]
    path = write(tmp_path, task(target_attributes={"size": values}, rubrik={}))
    assert path.stat().st_size > 1_000_000
    with pytest.raises(ConfigErrors, match=r":50033: tasks\.sums\.rubrik"):
        load_config(path, keys=Keys())


@pytest.mark.parametrize("number", ["5", "9" * 400])
def test_a_number_as_key_is_told_however_long_it_is(tmp_path: Path, number: str) -> None:
    path = write(tmp_path)
    path.write_text(f"{path.read_text()}? {number}\n: x\n")
    with pytest.raises(ConfigErrors, match="keys are text"):
        load_config(path, keys=Keys())


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("total: 3", "total: 010", "sampling.total: 010 is a number in base 8"),
        ("total: 3", "total: 1:30", "sampling.total: 1:30 is a number in base 60"),
        ("- odd", "- no", 'nuanced_attributes.tone[1]: no is false to YAML; write "no" in quotes'),
        ("tone:", "off:", 'nuanced_attributes.off: off is false to YAML; write "off" in quotes'),
        ("tone:", "Size:", "nuanced_attributes.Size: is a target attribute too"),
    ],
)
def test_what_would_silently_be_read_as_something_else_is_told(
    tmp_path: Path, before: str, after: str, expected: str
) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace(before, after, 1), encoding="utf-8")
    with pytest.raises(ConfigErrors) as caught:
        load_config(path, keys=Keys(env={}))
    assert expected in str(caught.value)


def test_words_in_quotes_and_true_are_values(tmp_path: Path) -> None:
    path = write(tmp_path)
    text = path.read_text(encoding="utf-8")
    before = text.partition("- odd")[0].rpartition("\n")[2]
    path.write_text(text.replace("- odd", f'- "no"\n{before}- true\n{before}- 10', 1), encoding="utf-8")
    assert load_config(path, keys=Keys(env={})).tasks[0].nuanced_attributes == {"tone": ["plain", "no", True, 10]}
