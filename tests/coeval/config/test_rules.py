"""Each rule of a configuration, and what it says to whoever breaks it."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from tests.coeval.config.configs import Change, experiment, mistakes, model, put, task

SAMPLING = {"target": [1, 2], "nuance": [1], "total": 3}


def sampling(**keys: Any) -> Change:
    return task(sampling={**SAMPLING, **keys})


def students_only(raw: Any) -> None:
    raw["models"] = [{"name": "ant", "interface": "mock", "roles": ["student"]}]


def no_teacher(raw: Any) -> None:
    raw["models"][0]["roles"] = ["student"]


def no_judge(raw: Any) -> None:
    raw["models"][1]["roles"] = ["student"]


def both(*changes: Change) -> Change:
    def change(raw: Any) -> None:
        for one in changes:
            one(raw)

    return change


def metric_judge(*, alone: bool = False, **keys: Any) -> Change:
    def change(raw: Any) -> None:
        raw["models"].append({"name": "m", "interface": "metric", "roles": ["judge"], **keys})
        if alone:
            no_judge(raw)

    return change


RULES: list[tuple[str, Change, str]] = [
    ("V-01 models", put("models", []), "models: there are none; add a list of at least one (V-01)"),
    ("V-01 tasks", lambda raw: raw.pop("tasks"), "tasks: there are none; add a list of at least one (V-01)"),
    ("V-01 experiment", lambda raw: raw.pop("experiment"), "experiment: is missing; add it with an id"),
    ("V-02", put("models", 1, "name", "ant"), "models.ant.name: 'ant' is the name of two models; rename one (V-02)"),
    ("V-03", lambda raw: raw["tasks"].append(raw["tasks"][0]), "'sums' is the name of two tasks; rename one (V-03)"),
    ("V-04 model", model(name="a/b"), "'a/b' may hold letters (a-z, A-Z), digits, '.', '_' and '-' alone (V-04)"),
    ("V-04 task", task(name="a.b"), "'a.b' may hold letters (a-z, A-Z), digits, '_' and '-' alone (V-04)"),
    ("V-04 __", model(name="a__b"), "must not hold '__', which parts the ids of records (V-04)"),
    (
        "V-04 id",
        experiment(id="a b"),
        "experiment.id: 'a b' may hold letters (a-z, A-Z), digits, '.', '_' and '-' alone",
    ),
    ("V-04 dots", experiment(id=".."), "experiment.id: '..' may hold"),
    ("V-05 none", model(roles=[]), "models.ant.roles: name at least one of teacher, student, judge (V-05)"),
    ("V-05 unknown", model(roles=["techer"]), "there is no role 'techer' (did you mean 'teacher'?)"),
    ("V-06", model(interface="opnai"), "models.ant.interface: there is no 'opnai' (did you mean 'openai'?) (V-06)"),
    ("V-07 judge", students_only, "models: no model is a judge; give at least one that role (V-07)"),
    ("V-07 teacher", no_teacher, "no model is a teacher, and task sums has items to be written"),
    ("V-08", experiment(phases={"rubric_mapping": "Model"}), "`Model` is for the last three phases"),
    ("V-09", task(rubric="extend"), "`extend` adds to the rubric of an earlier run"),
    ("V-10", experiment(resume_from="old"), "experiment.resume_from: there is no run 'old' at"),
    ("V-12", experiment(generation_retries=-1), "must be a whole number of at least 0, and is -1 (V-12)"),
    (
        "V-13 interface",
        experiment(batch={"mistral": {}}),
        "mistral: has no batches here; those with batches are openai",
    ),
    (
        "V-13 phase",
        experiment(batch={"openai": {"evaluate": True}}),
        "not a phase with batches (did you mean 'evaluation'?)",
    ),
    ("V-13 model", model(interface="groq", parameters={"model": "x"}, batch_enabled=True), "groq has no batches here"),
    ("V-15", experiment(probe_mode="ful"), "must be one of full, resume, disable, and is 'ful' (did you mean 'full'?)"),
    ("V-16", experiment(probe_on_fail="stop"), "must be one of abort, warn, and is 'stop' (V-16)"),
    ("V-17", task(label_attributes=["sizes"]), "'sizes' is not a target attribute written here (did you mean 'size'?)"),
    ("V-17 auto", task(target_attributes="auto", label_attributes=["x"]), "it has to be given as a map"),
    ("V-18", task(rubric={"b": {"metric": "blue"}}), "one of bertscore, bleu, exact_match; it is 'blue'"),
    ("V-18 judge", model(interface="metric", roles=["judge"], parameters={"metric": "x"}), "there is no 'x'; choose"),
    ("V-19", model(interface="metric"), "a model with `interface: metric` is a judge and nothing else (V-19)"),
    ("unknown top", put("tsks", []), "tsks: unknown key (did you mean 'tasks'?)"),
    ("unknown model", model(paramters={}), "models.ant.paramters: unknown key (did you mean 'parameters'?)"),
    ("unknown task", task(rubrik={}), "tasks.sums.rubrik: unknown key (did you mean 'rubric'?)"),
    ("unknown experiment", experiment(qouta={}), "experiment.qouta: unknown key (did you mean 'quota'?)"),
    ("unknown sampling", sampling(totl=3), "tasks.sums.sampling.totl: unknown key (did you mean 'total'?)"),
    ("phase", experiment(phases={"evaluatoin": "New"}), "unknown key (did you mean 'evaluation'?)"),
    ("mode", experiment(phases={"evaluation": "new"}), "must be one of New, Keep, Extend, Model, and is 'new'"),
    ("evaluation mode", task(evaluation_mode="factor"), "must be one of single, per_factor, pairwise, and is 'factor'"),
    ("log level", experiment(log_level="info"), "must be one of DEBUG, INFO, WARNING, ERROR, and is 'info'"),
    ("sampling missing", lambda raw: raw["tasks"][0].pop("sampling"), "tasks.sums.sampling: is missing; add `target"),
    ("sampling shape", sampling(target=[1, 2, 3]), "must be `[min, max]`, `[n]`, `n` or `all` with whole numbers"),
    ("sampling order", sampling(target=[2, 1]), "the least, 2, is above the most, 1; turn them round"),
    ("sampling too many", sampling(nuance=[2, 2]), "asks for at least 2 attributes of 1; lower it, or add attributes"),
    ("sampling total", sampling(total="ten"), "must be a whole number of at least 0, and is 'ten'"),
    ("quota model", experiment(quota={"bea": {"max_calls": 1}}), "quota.bea: there is no model of this name"),
    ("quota shape", experiment(quota={"bee": 5}), "must be `{max_calls: N}`, and is 5"),
    ("quota calls", experiment(quota={"bee": {}}), "experiment.quota.bee.max_calls: is missing; add `max_calls: N`"),
    (
        "no model id",
        model(interface="openai"),
        "models.ant.parameters.model: is missing; add what openai calls the model",
    ),
    ("missing name", lambda raw: raw["models"][0].pop("name"), "models[0].name: is missing; add a name"),
    (
        "missing text",
        lambda raw: raw["tasks"][0].pop("description"),
        "tasks.sums.description: is missing; add a sentence",
    ),
    ("no rubric", task(rubric={}), "tasks.sums.rubric: has no factors; add some, or write `auto`"),
    ("rubric word", task(rubric="atuo"), "must be a map of factors to descriptions, `auto` or `extend`"),
    ("attribute values", task(target_attributes={"x": 1}), "target_attributes.x: must be a list of values, and is 1"),
    ("attribute key", task(target_attributes={True: ["a"]}), "keys are text: write 'True' in quotes"),
    ("inner key", task(pairwise={1: 2}), "tasks.sums.pairwise.1: keys are text: write '1' in quotes"),
    ("no values", task(target_attributes={"x": []}), "has no values; add some, or remove it"),
    ("complete", task(target_attributes="complete"), "`complete` needs target_attributes_seed to start from"),
    ("lonely seed", task(target_attributes_seed={"a": ["b"]}), "goes with `target_attributes: auto` or `complete`"),
    ("pairwise off", task(pairwise={"schedule": "all"}), "goes with `evaluation_mode: pairwise` alone"),
    ("active", task(evaluation_mode="pairwise", pairwise={"schedule": "active"}), "needs the number of pairs"),
    ("prompt id", task(prompt_library={"tset": "x"}), "there is no prompt 'tset' (did you mean 'test'?)"),
    ("prompt model", task(prompt_library={"test.ants": "x"}), "there is no model 'ants' (did you mean 'ant'?)"),
    ("prompt variable", task(prompt_library={"test": "{inputs}"}), "no variable {inputs} (did you mean 'input'?)"),
    ("prompt brace", task(prompt_library={"test": "{input"}), "write braces that belong to the text twice"),
    ("prompt format", task(prompt_library={"test": "{input:d}"}), "write braces that belong to the text twice"),
    ("prompt width", task(prompt_library={"test": "{input:>99999999999}"}), "{input} has a format or a conversion"),
    ("prompt width within", task(prompt_library={"sample": "{seed:{seed}}"}), "has a format or a conversion"),
    ("prompt conversion", task(prompt_library={"test": "{input!r}"}), "{input} has a format or a conversion"),
    ("prompt attribute", task(prompt_library={"test": "{input.__class__}"}), "no variable {input.__class__}"),
    ("prompt position", task(prompt_library={"test": "{input[0]}"}), "no variable {input[0]}"),
    ("prompt repeats", task(prompt_library={"test": "{input}" * 1001}), "has 1,001 variables in braces"),
    ("temperature", model(parameters={"temperature": "hot"}), "temperature: must be a number from 0 to 2"),
    ("tokens", model(parameters={"max_tokens": 0}), "max_tokens: must be a whole number of at least 1, and is 0"),
    ("no json", model(parameters={"day": datetime.date(2026, 1, 1)}), "must be what JSON can say; put dates in quotes"),
    ("bits", model(parameters={"load_in_4bit": True, "load_in_8bit": True}), "does not go with load_in_4bit"),
    ("role of parameters", model(role_parameters={"teach": {}}), "unknown key (did you mean 'teacher'?)"),
    ("address by role", model(role_parameters={"teacher": {"base_url": "x"}}), "is the same in every role"),
    ("model by role", model(role_parameters={"judge": {"model": 4}}), "judge.model: must be text, and is 4"),
    (
        "region by role",
        model(role_parameters={"judge": {"api_version": "1"}}),
        "judge.api_version: is the same in every",
    ),
    ("token by role", model(role_parameters={"judge": {"session_token": "x"}}), "session_token: is the same in every"),
    ("access key", model(access_key=7), "models.ant.access_key: must be text that is not empty"),
    ("budget", experiment(budget_usd=0), "experiment.budget_usd: must be a number above 0, and is 0"),
    ("timeout", experiment(request_timeout="long"), "must be a number above 0, and is 'long'"),
    (
        "concurrency",
        experiment(concurrency={"opnai": 3}),
        "concurrency.opnai: is not an interface (did you mean 'openai'?)",
    ),
    (
        "rate",
        experiment(rate_limit={"openai": -1}),
        "experiment.rate_limit.openai: must be a number above 0, and is -1",
    ),
    ("cache", experiment(cache="no"), "experiment.cache: must be true or false, and is 'no'"),
    ("seed", experiment(seed=True), "experiment.seed: must be a whole number of at least 0, and is true"),
    ("not a mapping", put("experiment", ["x"]), "experiment: must be a mapping, 'key: value', and is a list"),
    ("not a list", put("models", {"a": 1}), "models: must be a list, '- ...', and is a mapping"),
    ("entry", put("models", 0, "ant"), "models[0]: must be a mapping, 'key: value', and is text"),
    (
        "no metric judge",
        task(rubric={"right": "It is.", "b": {"metric": "bleu"}}),
        "tasks.sums.rubric.b: nobody computes bleu; add a judge with `interface: metric`",
    ),
    (
        "other metric",
        both(task(rubric={"b": {"metric": "bleu"}}), metric_judge(parameters={"metric": "exact_match"})),
        "tasks.sums.rubric.b: nobody computes bleu",
    ),
    (
        "idle metric",
        metric_judge(),
        "models.m.interface: no rubric has a metric for it to compute; add a factor such as `NAME: {metric: bleu}`",
    ),
    ("nobody reads", metric_judge(alone=True), "tasks.sums.rubric: no judge reads answers, and nothing of them is"),
    ("password", model(parameters={"base_url": "http://me:word@host/v1"}), "base_url: holds a name or password; take"),
    (
        "no items",
        sampling(total=0),
        "sampling.total: is 0, and there are no items yet; raise it, or ingest a benchmark",
    ),
    (
        "V-07 labels",
        both(task(label_attributes=["size"]), no_judge),
        "no model is a judge; give at least one that role, or add one with `interface: label`",
    ),
    ("label judge", model(interface="label", roles=["judge"]), "a label judge needs a task with `label_attributes`"),
]


@pytest.mark.parametrize(("change", "message"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES])
def test_a_broken_rule_is_named_with_its_key(tmp_path: Path, change: Change, message: str) -> None:
    assert any(message in line for line in mistakes(tmp_path, change)), mistakes(tmp_path, change)


def pairwise_with_one_student(raw: Any) -> None:
    raw["tasks"][0]["evaluation_mode"] = "pairwise"
    raw["models"][0]["roles"] = ["teacher"]


def test_pairs_need_two_students(tmp_path: Path) -> None:
    [line] = mistakes(tmp_path, pairwise_with_one_student)
    assert "`pairwise` compares students, and there is one" in line


def test_the_judge_of_labels_that_joins_by_itself_has_its_name_alone(tmp_path: Path) -> None:
    def change(raw: Any) -> None:
        raw["models"][1]["name"] = "label"
        raw["tasks"][0].update(target_attributes={"mood": ["warm", "cold"]}, label_attributes=["mood"])

    [line] = mistakes(tmp_path, change)
    assert "models.label.name: a judge `label` joins by itself" in line


def test_labels_need_no_judge_that_reads_and_metrics_one_that_computes_them(tmp_path: Path) -> None:
    label = {"name": "m", "interface": "label", "roles": ["judge"]}
    compared = both(task(label_attributes=["size"]), no_judge, lambda raw: raw["models"].append(label))
    assert mistakes(tmp_path, compared) == []
    metrics = task(rubric={"b": {"metric": "bleu"}})
    assert mistakes(tmp_path, both(metrics, metric_judge(alone=True, parameters={"metric": "bleu"}))) == []


def test_items_of_a_benchmark_are_enough(tmp_path: Path) -> None:
    meta(tmp_path)
    items = tmp_path / "runs" / "first" / "phase3_datapoints" / "sums.mmlu.datapoints.jsonl"
    items.parent.mkdir()
    items.write_text("{}\n", encoding="utf-8")
    assert mistakes(tmp_path, sampling(total=0), continue_in_place=True) == []


def meta(folder: Path, **keys: Any) -> None:
    run = folder / "runs" / "first"
    run.mkdir(parents=True)
    (run / "meta.json").write_text(json.dumps({"experiment_id": "first", **keys}), encoding="utf-8")


def test_v11_a_new_run_does_not_start_in_the_folder_of_another(tmp_path: Path) -> None:
    meta(tmp_path)
    [line] = mistakes(tmp_path)
    assert "runs/first holds a run already; go on with it by `coeval run --config " in line
    assert ".yaml --continue`, choose another id" in line
    assert line.endswith("(V-11)")
    assert mistakes(tmp_path, fresh=False) == []
    assert mistakes(tmp_path, continue_in_place=True) == []


def test_v11_modes_that_are_all_written_say_what_to_do_with_a_run_that_is_there(tmp_path: Path) -> None:
    meta(tmp_path)
    phases = {"attribute_mapping": "Keep", "rubric_mapping": "Keep", "data_generation": "Keep"}
    assert mistakes(tmp_path, experiment(phases=phases)) != []
    assert mistakes(tmp_path, experiment(phases={**phases, "response_collection": "New", "evaluation": "New"})) == []


def test_v14_going_on_needs_a_run_of_the_same_id(tmp_path: Path) -> None:
    [line] = mistakes(tmp_path, continue_in_place=True)
    assert "--continue: runs/first/meta.json is not there; start without --continue (V-14)" in line
    meta(tmp_path, experiment_id="other")
    [line] = mistakes(tmp_path, continue_in_place=True)
    assert "holds run 'other'; use its id, or another folder (V-14)" in line


def test_going_on_with_a_broken_meta_is_refused(tmp_path: Path) -> None:
    meta(tmp_path)
    (tmp_path / "runs" / "first" / "meta.json").write_text("{", encoding="utf-8")
    [line] = mistakes(tmp_path, continue_in_place=True)
    assert "meta.json cannot be read" in line


def test_a_metric_that_cannot_be_computed_here_is_told_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coeval.config.checks.missing_package", lambda factor: f"{factor['metric']} needs a package")

    def change(raw: Any) -> None:
        raw["tasks"][0]["rubric"]["alike"] = {"metric": "bertscore"}
        raw["models"].append({"name": "m", "interface": "metric", "roles": ["judge"]})

    [line] = mistakes(tmp_path, change)
    assert "tasks.sums.rubric.alike: bertscore needs a package (V-18)" in line
    assert mistakes(tmp_path, change, fresh=False) == []
