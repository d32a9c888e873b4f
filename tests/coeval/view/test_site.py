"""The viewer's files, as `coeval view` writes and serves them: every score leads to what it is of, and all is text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx2
import pytest

from p2l.common.pages import asset_url
from tests.coeval.analysis.runs import both, evaluation, response, verdict, write_lines
from tests.coeval.analysis.runs import write_run as write_small_run
from tests.coeval.helpers import STATIC_TASK, coeval, model, records, run_of, write_config
from tests.coeval.view.hostile_runs import JUDGES, PLANT, STUDENTS, rewrite, write_hostile_run
from tests.parsed_page import Page
from tests.serving_process import serving

LEVELS = {"High": 1.0, "Medium": 0.5, "Low": 0.0}


def page(path: Path) -> Page:
    return Page(path.read_text("utf-8"))


def pages_of_items(site: Path) -> dict[str, Page]:
    """Id -> page, whose title begins with it."""
    pages = [page(path) for path in sorted((site / "item").glob("*.html"))]
    return {one.text.partition(":")[0]: one for one in pages}


def bundle(run: Path, out: Path) -> Path:
    assert coeval("view", "--run", run, "--bundle", out) == 0
    return out


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hostile_run(tmp_path_factory.mktemp("hostile") / "run")


@pytest.fixture(scope="module")
def site(hostile: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle(hostile, tmp_path_factory.mktemp("site") / "out")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that `coeval run` made, and its viewer."""
    folder = tmp_path_factory.mktemp("real")
    models = [
        model("strong", roles=["teacher", "student"], skill=0.9),
        model("weak", skill=0.2),
        *(model(name, roles=["judge"], noise=noise) for name, noise in (("calm", 0.1), ("hasty", 0.4))),
    ]
    scored = {**STATIC_TASK, "rationale": True}
    pairwise = {**STATIC_TASK, "name": "notes", "evaluation_mode": "pairwise", "rationale": True}
    assert coeval("run", "--config", write_config(folder, models, [scored, pairwise])) == 0
    bundle(run_of(folder).folder, folder / "site")
    return folder


def test_an_item_shows_all_that_was_said_of_it(real: Path) -> None:
    run = run_of(real)
    items = {record["id"]: record for record in records(run, "data_generation")}
    by_id = pages_of_items(real / "site")
    assert {*by_id} == {*items}
    for record in items.values():
        assert " ".join(record["prompt"].split()) in by_id[record["id"]].text
        assert " ".join(record["reference_response"].split()) in by_id[record["id"]].text
        assert all(value in by_id[record["id"]].texts for value in record["sampled_target_attributes"].values())
    for record in records(run, "response_collection"):
        assert " ".join(record["response"].split()) in by_id[record["datapoint_id"]].text
    for record in records(run, "evaluation"):
        shown = by_id[record["datapoint_id"]].text
        assert record["rationale"] in shown
        mean = sum(LEVELS[level] for level in record["scores"].values()) / len(record["scores"])
        grades = " ".join(f"{factor} {level}" for factor, level in sorted(record["scores"].items()))
        plain = re.sub(r" , apart from [\w ,-]+?(?= (?:clarity|tone|That))", "", shown)
        assert f"{record['judge_model_id']} {mean:.2f} {grades}" in plain
    for record in records(run, "pairwise"):
        shown, flips = by_id[record["datapoint_id"]].text, {*record["verdicts"]} == {"model_a", "model_b"}
        assert record["rationale"].replace("\n", " ") in shown
        assert "verdicts flip with the order" in shown
        winner = {"model_a": record["model_a"], "model_b": record["model_b"]}.get(record["winner"], "tie")
        assert re.search(f"{record['judge_model_id']} {winner} {'flips' if flips else ''}", shown)


def test_the_ranking_says_who_is_best_and_how_far_judges_agree(real: Path) -> None:
    shown = page(real / "site/index.html")
    assert (
        shown.text.index("strong answers best") < shown.text.index("Krippendorff") < shown.text.index("About the run")
    )
    assert "strong is preferred most" in shown.text
    links = shown.values("a", "href")
    assert "items.html#student=weak&sort=low" in links
    assert "items.html#judge=hasty&sort=apart" in links


def test_every_link_leads_somewhere(site: Path) -> None:
    for path in [*site.glob("*.html"), *sorted((site / "item").glob("*.html"))[:8]]:
        for link in (
            page(path).values("a", "href") + page(path).values("link", "href") + page(path).values("script", "src")
        ):
            name, _, anchor = link.partition("#")
            target = (path.parent / name) if name else path
            assert target.is_file(), f"{path}: {link}"
            if anchor and "=" not in anchor:
                ids = {str(attributes["id"]) for _, attributes in page(target).tags if "id" in attributes}
                assert anchor in ids, f"{path}: {link}"


def test_lists_lead_to_every_item_without_scripts(site: Path) -> None:
    lists = [site / "items.html", site / "items-2.html"]
    assert sorted(site.glob("items*.html")) == sorted(lists)
    links = [
        link
        for path in lists
        for link in page(path).values("a", "href")
        if link.startswith("item/") and "#" not in link
    ]
    assert sorted(links) == sorted(f"item/{path.name}" for path in (site / "item").glob("*.html"))
    assert "items-2.html" in page(lists[0]).values("a", "href")
    assert "items.html" in page(lists[1]).values("a", "href")
    assert "ant has the best answer, alone or with others, to " in page(lists[0]).text


@lru_cache(maxsize=1)
def scores_of(run: Path) -> dict[tuple[str, str, str], dict[str, float]]:
    """(item, student, judge) -> factor -> score."""
    found = {}
    for path in sorted((run / "phase5_evaluations").glob("*.jsonl")):
        for record in map(json.loads, path.read_text("utf-8").splitlines()):
            if record.get("status") != "failed":
                key = (record["datapoint_id"], record["student_model_id"], record["judge_model_id"])
                found[key] = {factor: LEVELS[level] for factor, level in record["scores"].items()}
    return found


def verdicts_of(run: Path, names: dict[str, list[str]]) -> dict[str, list[tuple[int, int, int, int]]]:
    """Item -> (student, student, judge, whether it flips), as the places of their names."""
    verdicts: dict[str, list[tuple[int, int, int, int]]] = {}
    for path in sorted((run / "phase5_pairwise").glob("*.jsonl")):
        for record in map(json.loads, path.read_text("utf-8").splitlines()):
            pair = (names["student"].index(record[f"model_{side}"]) for side in "ab")
            flips = int(sorted(record["verdicts"]) == ["model_a", "model_b"])
            line = (*pair, names["judge"].index(record["judge_model_id"]), flips)
            verdicts.setdefault(record["datapoint_id"], []).append(line)
    return verdicts


def test_the_files_of_the_script_hold_every_score_and_distance(hostile: Path, site: Path) -> None:
    scores = scores_of(hostile)
    names, items = (json.loads((site / f"data/{name}.json").read_text("utf-8")) for name in ("run", "items-0"))
    assert names["items"] == len(items) == 54
    seen = set()
    for key, task, _, _, prompt, cells, verdicts in items:
        asked = re.match(r"Question (\d+) of (\w+) on (\w+):", prompt)
        assert asked
        datapoint = f"{asked[3]}__{asked[2]}__{int(asked[1]):05d}"
        assert names["names"]["task"][task] == asked[3]
        assert (site / f"item/{key}.html").is_file()
        assert sorted(zip(*(iter(verdicts),) * 4, strict=True)) == sorted(
            verdicts_of(hostile, names["names"])[datapoint]
        )
        for student, judge, score, gap in zip(*(iter(cells),) * 4, strict=True):
            one, other = names["names"]["student"][student], names["names"]["judge"][judge]
            mine = scores[datapoint, one, other]
            assert score == pytest.approx(1000 * sum(mine.values()) / len(mine), abs=1)
            others = [scores[datapoint, one, name] for name in JUDGES if (datapoint, one, name) in scores]
            assert gap == max(1000 * abs(mine[factor] - them[factor]) for them in others for factor in mine)
            seen.add((datapoint, one, other))
    assert seen == set(scores)


def test_search_finds_what_pages_show(site: Path) -> None:
    texts = [entry for path in sorted(site.glob("data/texts-*.json")) for entry in json.loads(path.read_text("utf-8"))]
    assert len(texts) == 54
    for entries in texts:
        labels = [label for _, label, _ in entries]
        assert labels[:2] == ["prompt", "reference"]
        assert {f"answer of {student}" for student in STUDENTS} <= set(labels)
        assert sum(" on " in label for label in labels) >= 10
        assert any("Because of" in text for _, _, text in entries)


def test_texts_of_others_are_text_under_a_strict_policy(site: Path) -> None:
    for path in site.rglob("*.html"):
        shown = page(path)
        assert all(src.split("/")[-1] == "view.js" for src in shown.values("script", "src"))
        assert len(shown.values("script", "src")) == sum(tag == "script" for tag, _ in shown.tags) == 1
        assert not [tag for tag, _ in shown.tags if tag in ("img", "iframe", "object", "style", "base")]
        names = {name for _, attributes in shown.tags for name in attributes}
        assert not [name for name in names if name.startswith("on") or name == "style"]
        (policy,) = [a["content"] for _, a in shown.tags if a.get("http-equiv") == "Content-Security-Policy"]
        assert policy is not None
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert PLANT in page(site / "items.html").text
    assert all(PLANT in page(path).text for path in (site / "item").glob("*.html"))


@pytest.fixture(scope="module")
def served(hostile: Path) -> Iterator[str]:
    with serving("coeval", "view", "--run", hostile, probe="/") as (url, _):
        yield url


def test_what_is_served_is_what_a_bundle_holds(site: Path, served: str) -> None:
    with httpx2.Client() as client:
        for path in [path for path in site.rglob("*") if path.is_file()]:
            answer = client.get(f"{served}/{path.relative_to(site).as_posix()}")
            assert answer.status_code == 200
            assert answer.content == path.read_bytes(), path
            assert answer.headers["x-content-type-options"] == "nosniff"
        root = client.get(served)
    assert root.content == (site / "index.html").read_bytes()
    assert "frame-ancestors 'none'" in root.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    [
        "meta.json",
        "../meta.json",
        "%2e%2e/meta.json",
        "data/..%2f..%2fmeta.json",
        "item/zz.html",
        "items-0.html",
        "items-3.html",
        "items-99999999999.html",
        "data/items-1.json",
        "data/texts-9.json",
        "item/0123456789abcdef.html",
    ],
)
def test_nothing_else_is_served(served: str, path: str) -> None:
    assert httpx2.get(f"{served}/{path}").status_code == 404


def test_it_is_read_only_and_for_this_machine(served: str) -> None:
    assert httpx2.post(f"{served}/index.html", content=b"x").status_code == 405
    assert httpx2.post(f"{served}/session", content=b"x" * 5000).status_code == 413
    assert httpx2.get(served, headers={"host": "evil.example"}).status_code == 403
    assert httpx2.get(served, headers={"x-forwarded-for": "10.0.0.1"}).status_code == 403


def test_a_key_opens_it_for_others(hostile: Path) -> None:
    with (
        serving("coeval", "view", "--run", hostile, "--key", "open", probe=asset_url("page.css")) as (url, _),
        httpx2.Client(headers={"host": "viewer.example"}) as client,
    ):
        assert client.get(url).status_code == 403
        assert "Key of this viewer" in client.get(url).text
        for key, site, status in (
            ("shut", "same-origin", 403),
            ("open", "cross-site", 403),
            ("open", "same-origin", 303),
        ):
            assert client.get(f"{url}/data/run.json").status_code == 403
            sent = client.post(f"{url}/session", data={"key": key}, headers={"sec-fetch-site": site})
            assert sent.status_code == status
        assert "ant answers best" in client.get(url).text
        assert client.get(f"{url}/data/run.json").json()["items"] == 54


# Runs that are not whole.


def small(folder: Path, **more: Any) -> Path:
    scores = {
        ("mail/ada/0", student, judge): both(level)
        for student, level in (("s1", "High"), ("s2", "Low"))
        for judge in "jk"
    }
    return write_small_run(folder, scores, **more)


def test_what_failed_or_is_out_of_date_is_said_and_not_counted(tmp_path: Path) -> None:
    run = small(tmp_path / "run")
    answer = {**response("mail/ada/0", "s3"), "response": "", "status": "failed", "error": "the model is out of order"}
    write_lines(run / "phase4_responses/t.x.responses.jsonl", [answer], "a")
    failed = evaluation("mail/ada/0", "s1", "h", {}, status="failed", error="no grade of the scale")
    stale = evaluation("mail/ada/0", "s2", "h", both("High"), rationale="of the answer before", judged="another text")
    partial = evaluation("mail/ada/0", "s2", "i", {"fit": "High"}, rationale="half of it")
    write_lines(run / "phase5_evaluations/t.x.y.evaluations.jsonl", [failed, stale, partial], "a")
    (shown,) = pages_of_items(bundle(run, tmp_path / "site")).values()
    assert "No answer: the model is out of order" in shown.text
    assert "No scores: no grade of the scale" in shown.text
    assert "half of it" in shown.text
    assert "do not count" in shown.text
    assert "of the answer before" not in shown.text
    assert "s1 answers best, with 1.00; s2 scores 0.00." in shown.text


def test_a_run_without_scores_shows_its_items_and_says_so(tmp_path: Path) -> None:
    run = small(tmp_path / "run", status="in_progress")
    (run / "phase5_evaluations/t.x.y.evaluations.jsonl").write_text("")
    site = bundle(run, tmp_path / "site")
    assert "nothing to rank" in page(site / "index.html").text
    assert "Partial results: the run's status is in_progress" in page(site / "index.html").text
    assert "1 items, none of which has been judged yet." in page(site / "items.html").text
    (shown,) = pages_of_items(site).values()
    assert "Nobody has judged the answers yet." in shown.text
    assert "an answer" in shown.text


def test_a_run_of_verdicts_alone_is_ranked_by_them(tmp_path: Path) -> None:
    run = small(tmp_path / "run")
    (run / "phase5_evaluations/t.x.y.evaluations.jsonl").unlink()
    verdicts = [
        verdict("mail/ada/0", "s1", "s2", "j", "model_a", "model_a", "model_a"),
        verdict("mail/ada/0", "s1", "s2", "k", "tie", "model_a", "model_b"),
        verdict("mail/ada/0", "s1", "s2", "l", "tie (bothbad)", "tie (bothbad)", "model_b"),
    ]
    write_lines(run / "phase5_pairwise/mail.ada.j.pairwise.jsonl", verdicts)
    site = bundle(run, tmp_path / "site")
    assert page(site / "index.html").text.startswith(
        "Ranking: run Skip to content run Ranking Items Who answers best s1 is preferred most"
    )
    (shown,) = pages_of_items(site).values()
    assert "1 of 3 verdicts flip with the order" in shown.text
    assert (
        "j s1 in both orders k tie flips the answer shown first wins l both bad s1 first: both bad; s2 first: s2"
        in shown.text
    )


def test_long_texts_are_cut_and_turns_are_shown_apart(tmp_path: Path) -> None:
    run = small(tmp_path / "run")
    turns = [{"role": "user", "content": "first words"}, {"role": "assistant", "content": "an aside"}, "last words"]
    rewrite(run, "phase3_datapoints", lambda record: {**record, "prompt": turns})
    rewrite(run, "phase4_responses", lambda record: {**record, "response": "x" * 300_000})
    site = bundle(run, tmp_path / "site")
    (path,) = (site / "item").glob("*.html")
    assert path.stat().st_size < 220_000
    assert "200,000 more characters are in the file of the run" in page(path).text
    assert "user first words assistant an aside last words" in page(path).text
    assert "first words an aside last words" in page(site / "items.html").text


def test_records_that_were_moved_meanwhile_leave_a_page_that_says_so(tmp_path: Path) -> None:
    run = small(tmp_path / "run")
    with serving("coeval", "view", "--run", run, probe="/") as (url, _):
        for name in ("phase3_datapoints", "phase4_responses", "phase5_evaluations"):
            for path in (run / name).iterdir():
                path.write_text("{}\n")
        (key, *_) = httpx2.get(f"{url}/data/items-0.json").json()[0]
        shown = Page(httpx2.get(f"{url}/item/{key}.html").text)
    assert "The prompt cannot be read any more." in shown.text


def test_a_wrong_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "site").mkdir()
    assert coeval("view", "--run", tmp_path, "--bundle", tmp_path / "site") == 1
    assert "holds no run" in capsys.readouterr().err
    assert coeval("view", "--run", small(tmp_path / "run"), "--bundle", tmp_path / "site") == 1
    assert (
        capsys.readouterr().err
        == f"error: {tmp_path / 'site'}: is there already; choose another folder, or remove it\n"
    )
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert coeval("view", "--run", tmp_path / "run", "--key", " ") == 1
    assert "--key" in capsys.readouterr().err
