"""Each page of the packages, with hostile texts wherever a page shows what somebody else wrote."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from p2l.commands import leaderboard as leaderboard_command
from p2l.common.pages import asset_url
from p2l.inference import P2L
from p2l.serving.settings import Settings
from route import compare_policies
from tests.browser.conftest import Visit, Visits, router_in_a_thread
from tests.browser.hostile_texts import EVERYTHING, FILE_NAMES, TEXTS
from tests.browser.test_reports import REPORTS
from tests.coeval.config.configs import write as write_experiment
from tests.coeval.helpers import coeval
from tests.coeval.reports.helpers import write_run
from tests.conftest import vote_rows, write_votes
from tests.p2l.evaluation.evaluation_helpers import FEW, rows, run_auto, write_lines
from tests.p2l.leaderboard.page_boards import board
from tests.p2l.serving.conftest import make_model, serving
from tests.route.router_helpers import COEFS
from tests.serving_process import serving as process_serving

Look = Callable[[Visits], Sequence[Visit]]
"""Opens a page, and all that is folded or asked for on it."""
Pages = Callable[[Path], AbstractContextManager[Look]]
"""Makes what the pages are of in a folder, and serves it."""


def renamed(source: dict[str, str], value: Any) -> Any:
    """JSON with other texts in place of some names, wherever they stand in it."""
    text = json.dumps(value)
    for name, other in source.items():
        text = text.replace(name, json.dumps(other)[1:-1])
    return json.loads(text)


def rewrite_run(run: Path, names: dict[str, str], text: str) -> None:
    """Put other names into all files of a run of CoEval, and a text in place of all that was said."""

    def with_text(record: dict[str, Any]) -> dict[str, Any]:
        said = dict.fromkeys(("prompt", "input", "response", "error"), text)
        said = {key: said[key] for key in said if key in record}
        return {**record, **said, **({"rationale": text} if "scores" in record else {})}

    for path in sorted(run.rglob("*.json*")):
        lines = path.read_text("utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text("utf-8")]
        records = [renamed(names, with_text(json.loads(line))) for line in lines]
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")
    settings = run / "config.yaml"
    settings.write_text(yaml.safe_dump(renamed(names, yaml.safe_load(settings.read_text("utf-8")))), "utf-8")


def hostile_run(folder: Path) -> Path:
    """A run of CoEval that somebody handed on: names, prompts, answers and rationales are hostile."""
    students = [f"student{number:02}x" for number in range(len(TEXTS))]
    names = dict(zip(students, TEXTS, strict=True)) | {"judgex": TEXTS[8], "teacherx": TEXTS[9]}
    run = write_run(
        folder, students=students, teachers=["teacherx"], judges=["judgex", "owl"], tasks=["mail"], items=4, pairs=True
    )
    rewrite_run(run, names, EVERYTHING)
    return run


def look_at_files(paths: Sequence[Path]) -> Look:
    """Open pages that are files, and unfold them."""

    def look(visit: Visits) -> Sequence[Visit]:
        visits = [visit(path.as_uri()) for path in paths]
        for opened in visits:
            opened.page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
        return visits

    return look


def files(make: Callable[[Path], Sequence[Path]]) -> Pages:
    """Pages that are files, which `make` writes into a folder."""

    @contextlib.contextmanager
    def pages(folder: Path) -> Iterator[Look]:
        yield look_at_files(make(folder))

    return pages


def report(name: str) -> Pages:
    """A report whose every name and text is hostile."""
    return files(lambda folder: [REPORTS[name](folder, list(TEXTS), EVERYTHING)])


def leaderboard_of_files(folder: Path) -> list[Path]:
    """`p2l leaderboard`, with names of files, models, groups and voters."""
    pages = []
    for number, name in enumerate(FILE_NAMES[:5]):
        votes = vote_rows(60, seed=number)
        names = dict(zip(("ant", "bee", "cat", "dog"), TEXTS[5 * number :], strict=False))
        for place, vote in enumerate(votes):
            for side in ("model_a", "model_b"):
                vote[side] = names[str(vote[side])]
            vote |= {"voter": TEXTS[place % 5], "group": TEXTS[(5 * number + 4) % len(TEXTS)]}
        source = write_votes(folder / f"{name}.jsonl", votes)
        pages.append(folder / f"page-{number}.html")
        leaderboard_command.main(
            ["--votes", str(source), "--by", "group", "--weigh-voters", "--html", str(pages[-1]), "--quiet"]
        )
    return pages


def notebook(folder: Path) -> list[Path]:
    """What a notebook shows of leaderboards, forecasts and models: no policy stands behind it."""
    model = P2L.from_pretrained(make_model(folder, seed=1, names=TEXTS), device="cpu")
    shown = [
        board(list(TEXTS[:10]), np.linspace(1, -1, 10)),
        board(list(TEXTS[10:]), np.linspace(1, -1, len(TEXTS) - 10), None),
        model,
        model.predict([EVERYTHING]),
        model.predict([EVERYTHING, "a poem"]),
    ]
    page = folder / "notebook.html"
    page.write_text(f"<meta charset=utf-8>{''.join(each._repr_html_() for each in shown)}", encoding="utf-8")
    return [page]


def auto_evals(folder: Path) -> list[Path]:
    """`p2l auto-evals`, whose votes are on hostile names."""
    made = rows(160, names=list(TEXTS))
    words = ("--eval_path", write_lines(folder / "eval.jsonl", made), "--categories", "all", *FEW)
    (folder / "model_list.json").write_text(json.dumps(sorted(TEXTS)), encoding="utf-8")
    run_auto(folder, *words, "--html", folder / "pages")
    return sorted((folder / "pages").rglob("*.html"))


def coeval_reports(folder: Path) -> list[Path]:
    """Every page of `coeval analyze all`."""
    assert coeval("analyze", "all", "--run", hostile_run(folder / "run"), "--out", folder / "reports") == 0
    return sorted((folder / "reports").rglob("index.html"))


def people_and_judges(folder: Path) -> list[Path]:
    """`coeval calibrate`: people's scores of each student, by annotators whose names are hostile."""
    run = hostile_run(folder / "run")
    scores = folder / "people.jsonl"
    with scores.open("w", encoding="utf-8") as file:
        for path in sorted(run.rglob("*.responses.jsonl")):
            for place, line in enumerate(path.read_text("utf-8").splitlines()):
                row = {"response_id": json.loads(line)["id"], "score": ("High", "Low")[place % 2]}
                for annotator in TEXTS[place % len(TEXTS)], TEXTS[-1 - place % len(TEXTS)]:
                    file.write(json.dumps(row | {"factor": "clarity", "annotator": annotator}) + "\n")
    words = ("--run", run, "--annotations", scores, "--out", folder / "calibration")
    assert coeval("analyze", "calibrate", *words) == 0
    return sorted((folder / "calibration").rglob("index.html"))


def policies(folder: Path) -> list[Path]:
    """`p2l-route compare-policies`: the names of an experiment, of its policies and of models."""
    shares = dict.fromkeys(TEXTS, 1 / len(TEXTS))
    events = [
        {
            "event": "request",
            "request_id": f"{EVERYTHING}{number}",
            "status": 200,
            "seconds": 1.0 + number % 7,
            "cost": 0.001,
            "tried": [TEXTS[number % len(TEXTS)]],
            "trial": {
                "experiment": EVERYTHING,
                "policy": TEXTS[number % len(TEXTS)],
                "unit": f"{EVERYTHING}{number}",
                "conversation": f"c{number}",
                "shares": shares,
                "chances": {name: {name: 1.0} for name in TEXTS},
            },
        }
        for number in range(10 * len(TEXTS))
    ]
    log, page = folder / "router.log", folder / "policies.html"
    log.write_text("".join(f"{json.dumps(event)}\n" for event in events), "utf-8")
    compare_policies.main([str(log), "--html", str(page)])
    return [page]


def description(folder: Path) -> list[Path]:
    """`coeval describe`, of an experiment that somebody else wrote."""

    def change(raw: dict[str, Any]) -> None:
        task = raw["tasks"][0]
        task |= {"description": EVERYTHING, "output_description": EVERYTHING, "rubric": {"right": EVERYTHING}}
        task["target_attributes"] = {"size": list(TEXTS)}
        task["prompt_library"] = {"test.bee": EVERYTHING.replace("{", "{{").replace("}", "}}")}

    path = write_experiment(folder, change)
    assert coeval("describe", "--config", path, "--no-open") == 0
    return [folder / "experiment_description.html"]


@contextlib.contextmanager
def viewer(folder: Path) -> Iterator[Look]:
    """`coeval view` with a key for others: the ranking, the list, a search and an item."""
    run = hostile_run(folder / "run")
    with process_serving("coeval", "view", "--run", run, "--key", "open", probe=asset_url("page.css")) as (url, _):

        def look(visit: Visits) -> Sequence[Visit]:
            opened = visit(f"{url}/?q={EVERYTHING[:300]}")
            page = opened.page
            page.fill("input[name=key]", "open")
            page.keyboard.press("Enter")
            page.wait_for_selector(".standings")
            page.goto(f"{url}/items.html#search={EVERYTHING[:300]}&task={TEXTS[0]}")
            page.wait_for_selector("#filters:not([hidden])")
            page.goto(f"{url}/items.html")
            page.click("#list .prompt >> nth=0")
            page.wait_for_selector(".answers")
            opened.complaints.clear()  # the browser writes the status 403 of the form for the key to its console
            return [opened]

        yield look


@contextlib.contextmanager
def endpoint(folder: Path) -> Iterator[Look]:
    """The endpoint's page: names of a model's folder, prompts, two prompts, a filter, and a prompt that is refused."""
    settings = Settings(
        str(make_model(folder, seed=1, names=TEXTS)), device="cpu", control=str(folder), streams=1, page_secret="s"
    )
    with serving(settings, None, None) as running:

        def look(visit: Visits) -> Sequence[Visit]:
            opened = visit(f"{running.url}/?turn={EVERYTHING[:300]}#turn={EVERYTHING[:300]}")
            page = opened.page
            page.fill("#turn-1", EVERYTHING)
            page.wait_for_function("() => document.querySelector('.facts').textContent.includes('is first')")
            page.click("text=Add a turn")
            page.wait_for_selector("#turn-2")
            page.click("button[value=other]")
            page.fill("#other-1", EVERYTHING)
            page.wait_for_selector(".board.pair")
            return [opened]

        yield look


ADMIN, VISITOR = "the-admin-key-of-the-router", "the-key-of-the-arena"


def hostile_router(folder: Path) -> AbstractContextManager[str]:
    """A router whose models, keys, teams and answers are hostile."""
    mock = {"name": "s", "type": "mock", "options": {"text": EVERYTHING}}
    return router_in_a_thread(
        folder,
        models={name: {**mock, "cost": 0.5 + place / 100} for place, name in enumerate(TEXTS)},
        coefs={**COEFS, **{name: 0.1 * place for place, name in enumerate(TEXTS)}},
        scripts={name: {"text": EVERYTHING} for name in COEFS},
        admin_key=ADMIN,
        database="router.sqlite",
        store_prompts=True,
        teams={TEXTS[0]: {"spend_per_day": 1000.0}},
        keys=[
            {"key": VISITOR, "name": "arena"},
            *({"key": f"a-key-{number}", "name": text, "team": TEXTS[0]} for number, text in enumerate(TEXTS)),
        ],
        arena={"key": "arena", "per_minute": 1000},
    )


@contextlib.contextmanager
def console(folder: Path) -> Iterator[Look]:
    """The router's console, after a prompt and a vote of the arena."""
    with hostile_router(folder) as url:

        def look(visit: Visits) -> Sequence[Visit]:
            battle = _fight(visit, url)
            opened = visit(f"{url}/console?problem={EVERYTHING[:300]}")
            page = opened.page
            page.fill("#key", EVERYTHING[:300])
            page.keyboard.press("Enter")
            page.wait_for_selector("[role=alert]")
            page.fill("#key", ADMIN)
            page.keyboard.press("Enter")
            page.wait_for_selector("#live")
            page.wait_for_load_state()  # what is typed before its script listens asks for nothing
            page.fill("#try-prompt", EVERYTHING)
            page.wait_for_selector("#mixture table")
            page.click("[data-part=requests] summary >> nth=0")
            page.fill("#new-name", TEXTS[3])
            page.keyboard.press("Enter")
            page.wait_for_selector("[role=status], [role=alert]")
            opened.complaints.clear()  # the browser writes the statuses of what was refused to its console
            return [battle, opened]

        yield look


@contextlib.contextmanager
def arena(folder: Path) -> Iterator[Look]:
    """The arena: a prompt, two answers, a vote, and the names."""
    with hostile_router(folder) as url:
        yield lambda visit: [_fight(visit, url)]


def _fight(visit: Visits, url: str) -> Visit:
    opened = visit(f"{url}/arena?prompt={EVERYTHING[:300]}")
    page = opened.page
    page.fill("#prompt", EVERYTHING)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#vote:not([hidden])")
    page.keyboard.press("b")
    page.wait_for_selector("#verdict table")
    return opened


PAGES: dict[str, Pages] = {
    **{f"report {name}": report(name) for name in REPORTS},
    "leaderboard of files": files(leaderboard_of_files),
    "notebook": files(notebook),
    "auto-evals": files(auto_evals),
    "coeval reports": files(coeval_reports),
    "coeval calibrate": files(people_and_judges),
    "policies": files(policies),
    "coeval describe": files(description),
    "coeval view": viewer,
    "endpoint": endpoint,
    "console": console,
    "arena": arena,
}
"""What the test opens, by name."""
