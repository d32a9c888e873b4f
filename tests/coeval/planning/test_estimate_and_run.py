"""The calls that are estimated are the calls that a run makes, whole or what is left of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coeval.config.keys import Keys
from coeval.config.loading import load_config
from coeval.mock.server import MockServer
from coeval.phases.start import start_of
from coeval.planning.estimate import static_estimate
from coeval.schema import PHASES
from tests.coeval.helpers import STATIC_TASK, coeval, model, write_config

ALL = ("teacher", "student", "judge")


@pytest.fixture
def server() -> Iterator[MockServer]:
    with MockServer() as made:
        yield made


def expected(path: Path, *, go_on: bool = False, only: str | None = None) -> dict[str, int]:
    """Phase -> calls, where there are any."""
    config = load_config(path, keys=Keys(), continue_in_place=go_on)
    run, modes = start_of(config, continue_in_place=go_on)
    found = static_estimate(config, run=run, modes=modes, only=only and only.split(","))
    return {phase: part["calls"] for phase, part in found["per_phase"].items() if part["calls"]}


def made(server: MockServer) -> dict[str, int]:
    """Phase -> answers since the last look."""
    found: dict[str, int] = {}
    for (_, phase), count in server.phases.items():
        found[str(phase)] = found.get(str(phase), 0) + count
    server.phases.clear()
    return found


def tasks(total: int = 3, **keys: Any) -> list[Any]:
    return [{**STATIC_TASK, "sampling": {"target": [1, 2], "nuance": [1], "total": total}, **keys}]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"target_attributes": "auto", "nuanced_attributes": "auto"},
        {"evaluation_mode": "per_factor"},
        {"evaluation_mode": "pairwise"},
        {"evaluation_mode": "pairwise", "pairwise": {"both_orders": False, "pairs": 2}},
        {"rubric": {"clarity": "Is it clear?", "same": {"metric": "exact_match"}}},
    ],
)
def test_a_new_run(tmp_path: Path, server: MockServer, keys: dict[str, Any]) -> None:
    models = [model("ant", server, roles=ALL), model("bee", server, roles=("student", "judge")), model("cat", server)]
    if "same" in keys.get("rubric", {}):
        models.append({"name": "same", "interface": "metric", "roles": ["judge"]})
    path = write_config(tmp_path, models, tasks(**keys))
    wanted = expected(path)
    assert coeval("run", "--config", path) == 0
    assert made(server) == wanted


def test_what_is_left_after_more_items_and_another_judge(tmp_path: Path, server: MockServer) -> None:
    ant, bee = model("ant", server, roles=ALL), model("bee", server)
    path = write_config(tmp_path, [ant, bee], tasks(2))
    assert coeval("run", "--config", path) == 0
    made(server)
    path = write_config(tmp_path, [ant, {**bee, "roles": ["student", "judge"]}], tasks(4))
    wanted = expected(path, go_on=True)
    assert wanted == {"data_generation": 2, "response_collection": 4, "evaluation": 12}
    assert coeval("run", "--config", path, "--continue") == 0
    assert made(server) == wanted
    assert expected(path, go_on=True) == {}


def test_a_student_that_joins_a_finished_run(tmp_path: Path, server: MockServer) -> None:
    models = [model("ant", server, roles=ALL), model("bee", server)]
    assert coeval("run", "--config", write_config(tmp_path, models, tasks())) == 0
    made(server)
    phases = {"response_collection": "Model", "evaluation": "Model"}
    more = [*models, model("cat", server)]
    path = write_config(tmp_path, more, tasks(), name="two.yaml", id="two", resume_from="one", phases=phases)
    wanted = expected(path)
    assert wanted == {"response_collection": 3, "evaluation": 3}
    assert coeval("run", "--config", path) == 0
    assert made(server) == wanted


@pytest.mark.parametrize("modes", [("New", "Model", "Model"), ("New", "Keep", "Keep"), ("Keep", "New", "Extend")])
def test_nothing_stays_that_builds_on_what_is_made_anew(
    tmp_path: Path, server: MockServer, modes: tuple[str, str, str]
) -> None:
    models = [model("ant", server, roles=ALL), model("bee", server)]
    assert coeval("run", "--config", write_config(tmp_path, models, tasks())) == 0
    made(server)
    phases = dict(zip(("data_generation", "response_collection", "evaluation"), modes, strict=True))
    path = write_config(tmp_path, models, tasks(), name="two.yaml", id="two", resume_from="one", phases=phases)
    wanted = expected(path)
    assert coeval("run", "--config", path) == 0
    assert made(server) == wanted
    assert (wanted["response_collection"], wanted["evaluation"]) == (6, 6)


@pytest.mark.parametrize("mode", ["single", "pairwise"])
def test_students_that_are_gone_owe_nothing_and_cost_nothing(tmp_path: Path, server: MockServer, mode: str) -> None:
    """One student leaves, another and a judge join, in a new run and in one that goes on."""
    models = [model("ant", server, roles=ALL), model("bee", server), model("cat", server)]
    all_tasks = tasks(evaluation_mode=mode)
    assert coeval("run", "--config", write_config(tmp_path, models, all_tasks)) == 0
    made(server)
    others = [models[0], models[2], model("dog", server), model("elk", server, roles=["judge"])]
    phases = {"response_collection": "Model", "evaluation": "Model"}
    for settings, more in (({"id": "two", "resume_from": "one", "phases": phases}, {}), ({}, {"go_on": True})):
        path = write_config(tmp_path, others, all_tasks, name="two.yaml", **settings)
        wanted = expected(path, **more)
        assert wanted["response_collection"] == 3
        assert coeval("run", "--config", path, *(["--continue"] if more else [])) == 0
        assert made(server) == wanted
        assert expected(path.rename(tmp_path / "again.yaml"), go_on=True) == {}


@pytest.mark.parametrize("only", ["cat", "bee", "cat,bee", "ant"])
def test_a_run_of_some_models(tmp_path: Path, server: MockServer, only: str) -> None:
    ant, bee = model("ant", server, roles=ALL), model("bee", server, roles=["judge"])
    assert coeval("run", "--config", write_config(tmp_path, [ant], tasks())) == 0
    made(server)
    path = write_config(tmp_path, [ant, bee, model("cat", server)], tasks(4))
    wanted = expected(path, go_on=True, only=only)
    assert coeval("run", "--config", path, "--continue", "--only-models", only) == 0
    assert made(server) == wanted


@pytest.mark.parametrize("modes", ["Extend Extend Extend", "Keep Extend New", "Model Keep Model"])
def test_a_run_that_is_there_and_starts_with_modes(tmp_path: Path, server: MockServer, modes: str) -> None:
    models = [model("ant", server, roles=ALL), model("bee", server)]
    assert coeval("run", "--config", write_config(tmp_path, models, tasks())) == 0
    made(server)
    phases = dict(zip(PHASES, ["Keep", "Keep", *modes.split()], strict=True))
    settings = {"phases": phases, "estimate_cost": True, "estimate_samples": 0}
    path = write_config(tmp_path, [*models, model("cat", server)], tasks(4), **settings)
    wanted = expected(path)
    assert coeval("run", "--config", path) == 0
    assert made(server) == wanted
    kept = json.loads((tmp_path / "runs" / "one" / "cost_estimate.json").read_text())
    assert (kept["total_calls"], kept["is_remaining_estimate"]) == (sum(wanted.values()), True)
