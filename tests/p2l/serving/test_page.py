"""The endpoint's page without a browser: headers, keys, forms, errors, and the numbers on it."""

import json
import math
import re
from pathlib import Path

import httpx2
import numpy as np
import pytest

from p2l.common.errors import InputError
from p2l.common.pages import Sessions, asset_urls
from p2l.inference import P2L
from p2l.likelihood import win_rates, win_rates_if
from p2l.public import PUBLIC
from p2l.serving.boards import read_clusters, reference_of, topics
from p2l.serving.score_cache import Answer
from tests.p2l.serving.conftest import NAMES, Running, Start
from tests.p2l.serving.test_uncertainty import with_posterior

pytestmark = pytest.mark.usefixtures("torch_alone")

FORM = {"content-type": "application/x-www-form-urlencoded"}


def post(server: Running, body: str, path: str = "/page/board", **headers: str) -> httpx2.Response:
    return server.client.post(path, content=body, headers=FORM | headers)


def test_every_page_forbids_scripts_of_its_own_and_other_hosts(start: Start) -> None:
    server = start()
    for answer in (server.client.get("/"), post(server, "turn=hello")):
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert "<script>" not in answer.text
        assert "style=" not in answer.text


def test_files_of_pages_are_kept_for_ever_and_change_their_address_with_their_content(start: Start) -> None:
    server = start()
    for url in asset_urls():
        answer = server.client.get(url, headers={"accept-encoding": "identity"})
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert server.client.get(url, headers={"accept-encoding": "gzip"}).content == answer.content
    digest = asset_urls()[0].split("/")[2]
    for path in (f"static/{'0' * 12}/page.js", f"static/{digest}/..%2f__init__.py", f"static/{digest}/nothing.js"):
        assert server.client.get(f"/{path}").status_code == 404


def test_without_a_page_there_is_none(start: Start) -> None:
    server = start(page=False)
    assert [server.client.get(path).status_code for path in ("/", asset_urls()[0])] == [404, 404]
    assert post(server, "turn=hello").status_code == 404


def test_the_board_is_that_of_the_api(start: Start, folder: Path, tmp_path: Path) -> None:
    server = start(model_path=str(with_posterior(folder, tmp_path / "model")))
    shown = post(server, "turn=one&turn=&turn=two&as=json").json()
    rows = server.client.post("/leaderboard", json={"prompt": ["one", "two"]}).json()["leaderboard"]
    assert shown["prompt"] == ["one", "two"]
    assert [row["model"] for row in shown["leaderboard"]] == [row["model"] for row in rows]
    for row, other in zip(shown["leaderboard"], rows, strict=True):
        assert row["win_rate"] == pytest.approx(other["win_rate"], abs=1e-6)
        assert row["lower"] < row["win_rate"] < row["upper"]
    both = post(server, "turn=one&other=two&as=json").json()
    assert [board["prompt"] for board in both] == [["one"], ["two"]]


def test_a_board_of_hundreds_shows_its_first_models_until_all_are_asked_for(start: Start) -> None:
    server = start(model_path=PUBLIC)
    names = [row["model"] for row in post(server, "turn=Prove+it.&as=json").json()["leaderboard"]]

    def shown(body: str) -> list[str]:
        return re.findall(r'<th scope="row">(.*?)</th>', post(server, body).text)

    first = shown("turn=Prove+it.")
    assert first == names[: len(first)]
    assert len(first) < 50
    assert f"Show {len(names) - len(first)} more" in post(server, "turn=Prove+it.").text
    assert shown("turn=Prove+it.&models=all") == names
    # A filter looks through all of them, and what was unfolded stays so while a prompt is typed.
    assert names[-1] in shown(f"turn=Prove+it.&filter={names[-1]}")
    assert 'name="models" value="all"' in post(server, "turn=Prove+it.&models=all").text


def test_a_model_without_a_posterior_shows_no_intervals(start: Start) -> None:
    page = post(start(), "turn=hello").text
    assert 'class="range"' not in page
    assert "votes settle" not in page


def test_errors_are_sentences_on_the_page(start: Start) -> None:
    server = start(max_chars=100, max_turns=3)
    long, many = post(server, "turn=" + "x" * 101), post(server, "turn=x&" * 30)
    assert (long.status_code, many.status_code) == (413, 413)
    assert "--max-chars" in long.text
    assert "--max-turns" in many.text
    assert 'role="alert"' in long.text
    assert post(server, "turn=%ff%fe&filter=%00&example=9999&add=nothing&drop=x", path="/").status_code == 200


def test_a_session_begins_with_the_key_alone(start: Start) -> None:
    server = start(api_key="right", page_secret="s")
    own = {"sec-fetch-site": "same-origin"}
    with httpx2.Client(base_url=server.url) as browser:
        assert browser.get("/").status_code == 403
        assert browser.post("/page/board", content="turn=x", headers=FORM).status_code == 403
        for key, headers in (("wrong", own), ("right", {"sec-fetch-site": "cross-site"}), ("right", {})):
            assert browser.post("/page/session", content=f"key={key}", headers=FORM | headers).status_code == 403
        begun = browser.post("/page/session", content="key=right", headers=FORM | own)
        assert begun.status_code == 303
        assert "right" not in begun.headers["set-cookie"]
        assert "table" in browser.get("/").text
        assert browser.post("/predict", json={"prompt": ["x"]}).status_code == 403
        name, cookie = next(iter(browser.cookies.items()))
        until, *rest = cookie.split(".")
        browser.cookies.set(name, ".".join([str(int(until) + 9), *rest]), domain="127.0.0.1")
        browser.cookies.delete(name, domain="127.0.0.1")
        assert browser.get("/").status_code == 403


def test_a_session_ends() -> None:
    from starlette.requests import Request
    from starlette.responses import Response

    now = [0.0]
    sessions, other = Sessions("secret", "name", lambda: now[0]), Sessions("another", "name", lambda: now[0])
    scope = {"type": "http", "scheme": "http", "server": ("host", 80), "path": "/", "headers": []}
    response = Response()
    sessions.start(Request(scope), response)
    cookie = response.headers["set-cookie"].split(";")[0]
    request = Request(scope | {"headers": [(b"cookie", cookie.encode())]})
    assert sessions.has(request)
    assert not other.has(request)
    now[0] = 13 * 3600.0
    assert not sessions.has(request)


def test_ends_of_win_rates_are_those_of_one_model_that_moves_alone() -> None:
    from p2l.likelihood import get

    likelihood, coefs = get("grk"), np.array([0.5, -0.2, 1.0])
    np.testing.assert_allclose(win_rates_if(coefs, coefs, likelihood, 0.3), win_rates(coefs, likelihood, 0.3))
    moved = win_rates_if(coefs + 0.7, coefs, likelihood, 0.3)
    for number in range(3):
        alone = coefs + 0.7 * (np.arange(3) == number)
        assert moved[number] == pytest.approx(win_rates(alone, likelihood, 0.3)[number])


def test_clusters_of_explain_are_named_and_faulty_files_refused(start: Start, tmp_path: Path) -> None:
    cells = [
        {"cluster": cluster, "model": name, "change": sign * 100 * math.cos(number)}
        for cluster, sign in (("sums", 1), ("poems", -1))
        for number, name in enumerate(NAMES)
    ]
    path = tmp_path / "clusters.json"
    path.write_text(json.dumps({"strengths": cells}))
    assert read_clusters(str(path), NAMES).names == ["sums", "poems"]
    page = post(start(clusters=str(path)), "turn=what is 12").text
    assert "sums" in page or "poems" in page
    for content, said in (
        ({"strengths": cells[1:]}, "every model"),
        ({}, "explain --output"),
        ([], "explain --output"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(InputError, match=said):
            read_clusters(str(path), NAMES)


def test_a_prompt_resembles_the_topic_it_comes_from(model: P2L) -> None:
    """Answers are made up: on programming the first model gains, elsewhere all are alike."""
    from p2l.serving.boards import board_of

    plain, shifted = [0.0, 0.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]
    listed = [shifted if topic == "Programming" else plain for topic, prompts in topics().items() for _ in prompts]
    answers = [Answer(np.array(coefs, "f"), 0.0, None, False, "r") for coefs in listed]
    reference = reference_of(model, answers, None)
    board = board_of(model, answers[0], reference)
    assert board.resembles[0][0] == "Programming"
    assert board.resembles[0][1] == pytest.approx(1.0)
    assert board.rows[0].model == "ant"


def test_a_topic_whose_examples_do_not_resemble_each_other_is_not_named(model: P2L) -> None:
    from p2l.serving.boards import board_of

    noise = np.random.default_rng(0).normal(size=(sum(map(len, topics().values())), 4))
    noise[:3] = 2.0, 0.0, 0.0, 0.0  # programming alone holds together
    answers = [Answer(coefs.astype("f"), 0.0, None, False, "r") for coefs in noise]
    reference = reference_of(model, answers, None)
    assert "Programming" in reference.clusters.names
    assert len(reference.clusters.names) < len(topics()) / 2
    assert {name for name, _ in board_of(model, answers[-1], reference).resembles} <= set(reference.clusters.names)
